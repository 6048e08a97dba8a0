//! `lockgate ledger export`.

use super::{
    Shown, look,
    pages::{Pages, first_of, range},
};
use crate::{
    args::{ExportFormat, LedgerExport},
    client::{Client, Encoding},
    exit::Failure,
    output::Output,
};

const COLUMNS: [&str; 8] = [
    "sequence_id",
    "previous_id",
    "unique_id",
    "time",
    "epoch",
    "hash",
    "payload",
    "payload_encoding",
];

pub(super) async fn run(client: &Client, args: &LedgerExport) -> Result<(), Failure> {
    let (ledger, head) = look(client, &args.ledger.name).await?;
    let (from, to) = range(args.range, &head)?;
    let chain = first_of(&ledger, &head, from).await?;
    let mut pages = Pages::new(ledger, chain);
    let mut output = Output::new();
    if args.format == ExportFormat::Csv {
        output.raw(&row(COLUMNS)?)?;
    }
    while pages.last() < to {
        let page = pages.next_up_to(to).await?;
        for event in &page.events {
            let shown = Shown::of(event);
            match args.format {
                ExportFormat::Jsonl => output.json(&shown)?,
                ExportFormat::Csv => output.raw(&csv(&shown)?)?,
            }
        }
        // Whoever reads gets a page while the next one comes; and nobody reads for nothing.
        output.flush()?;
    }
    output.flush()
}

fn csv(event: &Shown) -> Result<Vec<u8>, Failure> {
    let (id, previous) = (event.sequence_id.to_string(), event.previous_id.to_string());
    let epoch = event.epoch.to_string();
    row([
        &id,
        &previous,
        event.unique_id.as_deref().unwrap_or_default(),
        &event.time,
        &epoch,
        event.hash.as_deref().unwrap_or_default(),
        &event.payload,
        match event.payload_encoding {
            Some(Encoding::Base64) => "base64",
            _ => "",
        },
    ])
}

/// One line, with quotation marks where they are needed.
fn row(fields: [&str; COLUMNS.len()]) -> Result<Vec<u8>, Failure> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let written = writer.write_record(fields);
    written.map_err(|error| Failure::failed(error).context("writing CSV"))?;
    writer
        .into_inner()
        .map_err(|error| Failure::failed(error.error()).context("writing CSV"))
}
