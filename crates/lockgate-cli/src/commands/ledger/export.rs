//! `lockgate ledger export`.

use std::borrow::Cow;

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
    if args.csv_guard && args.format != ExportFormat::Csv {
        return Err(Failure::usage("--csv-guard goes with --format csv"));
    }
    let (ledger, head) = look(client, &args.ledger.name).await?;
    let (from, to) = range(args.range, &head)?;
    let chain = first_of(&ledger, &head, from).await?;
    let mut pages = Pages::new(ledger, chain);
    let mut output = Output::new();
    if args.format == ExportFormat::Csv {
        output.raw(&row(COLUMNS.map(Cow::from))?)?;
    }
    while pages.last() < to {
        let page = pages.next_up_to(to).await?;
        for event in &page.events {
            let shown = Shown::of(event);
            match args.format {
                ExportFormat::Jsonl => output.json(&shown)?,
                ExportFormat::Csv => output.raw(&csv(&shown, args.csv_guard)?)?,
            }
        }
        // Whoever reads gets a page while the next one comes; and nobody reads for nothing.
        output.flush()?;
    }
    output.flush()
}

fn csv(event: &Shown, is_guarded: bool) -> Result<Vec<u8>, Failure> {
    let (id, previous) = (event.sequence_id.to_string(), event.previous_id.to_string());
    let epoch = event.epoch.to_string();
    let cells: [&str; COLUMNS.len()] = [
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
    ];
    row(cells.map(|cell| match is_guarded {
        true => guarded(cell),
        false => cell.into(),
    }))
}

/// Behind an apostrophe, if a spreadsheet would take it for a formula and run it.
fn guarded(cell: &str) -> Cow<'_, str> {
    match cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) {
        true => format!("'{cell}").into(),
        false => cell.into(),
    }
}

/// One line, with quotation marks where they are needed and the end that RFC 4180 wants.
fn row(cells: [Cow<'_, str>; COLUMNS.len()]) -> Result<Vec<u8>, Failure> {
    let mut writer = csv::WriterBuilder::new();
    let writer = writer.terminator(csv::Terminator::CRLF);
    let mut writer = writer.from_writer(Vec::new());
    let written = writer.write_record(cells.iter().map(|cell| cell.as_bytes()));
    written.map_err(|error| Failure::failed(error).context("writing CSV"))?;
    writer
        .into_inner()
        .map_err(|error| Failure::failed(error.error()).context("writing CSV"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_a_spreadsheet_would_run_are_guarded() {
        for formula in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"] {
            assert_eq!(guarded(formula), format!("'{formula}"));
        }
        for harmless in ["", "a=1", "1", "'", "{\"a\":-1}", " =1"] {
            assert_eq!(guarded(harmless), harmless);
        }
    }
}
