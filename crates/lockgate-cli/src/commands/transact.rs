//! `lockgate transact`: settles, sends and publishes, all or nothing.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{block_on, client, millis};
use crate::{
    args::Transact,
    exit::{Exit, Failure},
    output::{Output, count, note},
};

#[derive(Deserialize)]
struct Transacted {
    sent: Vec<Sent>,
    #[serde(default)]
    published: Vec<Published>,
}

#[derive(Serialize, Deserialize)]
struct Sent {
    id: String,
    sequence: u64,
    duplicate: bool,
}

#[derive(Serialize, Deserialize)]
struct Published {
    copies: u64,
    duplicates: u64,
    skipped: u64,
    dropped: bool,
}

pub(super) fn run(args: &Transact) -> Result<(), Failure> {
    let transaction = match &args.file {
        Some(path) => read(path)?,
        None => written(args),
    };
    let client = client(&args.settings)?;
    block_on(async {
        let result = client
            .call(Method::POST, "/transactions", Some(&transaction))
            .await;
        let Transacted { sent, published } = result.map_err(|error| {
            let unknown = !error.nothing_done();
            let no_receipt = error.is_receipt_wrong();
            let failure = Failure::from(error);
            if no_receipt {
                failure.or_hint("`lockgate receive` prints receipts, as \"receipt\"")
            } else if unknown {
                failure.or_hint("repeat it: if it says that a message is gone, it was done")
            } else {
                failure
            }
        })?;
        let settles = transaction["settles"].as_array().map_or(0, Vec::len) as u64;
        if args.json {
            let mut output = Output::new();
            for sent in &sent {
                output.json(sent)?;
            }
            for published in &published {
                output.json(published)?;
            }
            output.flush()?;
        }
        let settled = format!("settled {}", count(settles, "message"));
        note(&match published.len() {
            0 => format!("{settled} and sent {}", sent.len()),
            published => format!("{settled}, sent {} and published {published}", sent.len()),
        });
        Ok(())
    })
}

/// What the flags say, in the words of the admin API.
fn written(args: &Transact) -> Value {
    let ack = |receipt: &String| json!({"receipt": receipt, "action": "ack"});
    let settles: Vec<Value> = args.ack.iter().map(ack).collect();
    let send = args.body.as_ref().map(|body| {
        json!({
            "queue": args.queue,
            "message": {
                "body": body,
                "key": args.key,
                "group": args.group,
                "unique_id": args.unique_id,
                "delay_ms": args.delay.map(millis),
            },
        })
    });
    json!({"settles": settles, "sends": Vec::from_iter(send)})
}

/// The file as it is; what it may say is the server's business.
fn read(path: &Path) -> Result<Value, Failure> {
    let name = if path == Path::new("-") {
        "standard input".into()
    } else {
        path.to_string_lossy()
    };
    let text = if path == Path::new("-") {
        let mut text = Vec::new();
        io::stdin().read_to_end(&mut text).map(|_| text)
    } else {
        fs::read(path)
    };
    let text = text.map_err(|error| {
        let exit = match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Failed,
        };
        Failure::from_error(exit, error).context(format!("reading {name}"))
    })?;
    serde_json::from_slice(&text).map_err(|error| Failure::usage(format!("{name}: {error}")))
}
