//! Where a model comes from: a file of it, or the figures of a producer.

use std::{fs::File, io, io::Read as _, time::Duration};

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use lockgate_producer::sizing::{Model, Reading, ReadingError, Readings};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    args::Size,
    client::Endpoint,
    commands::runtime,
    exit::{Exit, Failure},
    output::note,
    units::show_duration,
};

/// The most that is read of a file or an answer.
const BYTES_MAX: usize = 16 << 20;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// How often a running producer is read, after the first time.
const READINGS: u32 = 100;

pub(super) fn model(args: &Size) -> Result<Model, Failure> {
    if let [url] = args.from.as_slice()
        && (url.starts_with("http://") || url.starts_with("https://"))
    {
        let endpoint = url
            .parse()
            .map_err(|error| Failure::from_error(Exit::Usage, error))?;
        return runtime()?.block_on(watch(args, &endpoint));
    }
    let mut texts = Vec::with_capacity(args.from.len());
    for path in &args.from {
        texts.push(read(path).map_err(|failure| failure.context(format!("reading {path}")))?);
    }
    match texts.as_slice() {
        [text] if text.trim_start().starts_with('{') => {
            parse(text).map_err(|failure| failure.context(format!("reading {}", args.from[0])))
        }
        texts => of_files(args, texts),
    }
}

fn read(path: &str) -> Result<String, Failure> {
    let file: Box<dyn io::Read> = match path {
        "-" => Box::new(io::stdin()),
        path => Box::new(File::open(path).map_err(|error| {
            let exit = match error.kind() {
                io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::Failed,
            };
            Failure::from_error(exit, error)
        })?),
    };
    let mut text = String::new();
    let read = file.take(BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::from_error(Exit::Failed, error))?;
    if text.len() > BYTES_MAX {
        return Err(Failure::failed("it has more than 16MiB"));
    }
    Ok(text)
}

/// A model, or what the command printed with one.
fn parse(text: &str) -> Result<Model, Failure> {
    let printed = serde_json::from_str(text).and_then(|value: Value| match value.get("model") {
        Some(model) => Model::deserialize(model),
        None => serde_json::from_str(text),
    });
    printed.map_err(|error| Failure::from_error(Exit::Usage, error))
}

/// A model in JSON, or the figures of a producer, from anywhere.
pub fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    if text.trim_start().starts_with('{') {
        let model = parse(text).map_err(|failure| failure.to_string())?;
        return model.report().map(drop).map_err(|error| error.to_string());
    }
    let reading = Reading::parse(text, None).map_err(|error| error.to_string())?;
    let mut readings = Readings::default();
    let added = readings.add(0.0, Reading::default());
    let added = added.and_then(|()| readings.add(10.0, reading));
    let model = added.and_then(|()| readings.model(None));
    model.map(drop).map_err(|error| error.to_string())
}

fn of_files(args: &Size, texts: &[String]) -> Result<Model, Failure> {
    let mut readings = Readings::default();
    let steps = u32::try_from(texts.len()).unwrap_or(u32::MAX).max(2) - 1;
    for ((number, text), path) in (0..).zip(texts).zip(&args.from) {
        let reading = Reading::parse(text, args.producer.as_deref()).map_err(useless)?;
        let seconds = args.over.as_secs_f64() * f64::from(number) / f64::from(steps);
        let added = readings.add(seconds, reading);
        added.map_err(|error| useless(error).context(format!("reading {path}")))?;
    }
    readings.model(args.workers).map_err(useless)
}

/// Reads a running producer's figures again and again.
async fn watch(args: &Size, endpoint: &Endpoint) -> Result<Model, Failure> {
    if endpoint.is_https() {
        return Err(Failure::usage("figures are read over http:// only")
            .hint("fetch them into files, and name those"));
    }
    note(&format!("reading figures for {}", show_duration(args.over)));
    let mut readings = Readings::default();
    let began = Instant::now();
    for number in 0..=READINGS {
        sleep_until(began + args.over * number / READINGS).await;
        let text = fetch(endpoint).await.map_err(|failure| {
            let url = format!("http://{}{}", endpoint.authority(), endpoint.path());
            failure.context(format!("reading {url}"))
        })?;
        let at = began.elapsed().as_secs_f64();
        let reading = Reading::parse(&text, args.producer.as_deref()).map_err(useless)?;
        readings.add(at, reading).map_err(useless)?;
    }
    readings.model(args.workers).map_err(useless)
}

async fn fetch(endpoint: &Endpoint) -> Result<String, Failure> {
    let failed = |error: hyper::Error| Failure::from_error(Exit::Failed, error);
    let exchange = async {
        let stream = TcpStream::connect((endpoint.host(), endpoint.port())).await;
        let stream = stream.map_err(|error| Failure::from_error(Exit::Unreachable, error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        tokio::spawn(connection);
        let request = Request::builder()
            .uri(match endpoint.path() {
                "" => "/",
                path => path,
            })
            .header(HOST, endpoint.authority())
            .body(Empty::<Bytes>::new())
            .map_err(|error| Failure::from_error(Exit::Usage, error))?;
        let answer = sender.send_request(request).await.map_err(failed)?;
        if answer.status() != StatusCode::OK {
            return Err(Failure::failed(format!(
                "the answer is {}",
                answer.status()
            )));
        }
        let body = Limited::new(answer.into_body(), BYTES_MAX).collect().await;
        let body = body.map_err(Failure::failed)?.to_bytes();
        String::from_utf8(body.into()).map_err(|error| Failure::from_error(Exit::Failed, error))
    };
    let late = |_| Err(Failure::new(Exit::Timeout, "there was no answer in 5s"));
    timeout(ANSWER, exchange).await.unwrap_or_else(late)
}

fn useless(error: ReadingError) -> Failure {
    let hint = match error {
        ReadingError::TooFew => Some("name two files or more, or an address"),
        ReadingError::Several(_) => Some("say --producer NAME"),
        ReadingError::NothingInFlight => Some("give a longer --over, or more files"),
        _ => None,
    };
    let failure = Failure::from_error(Exit::Failed, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
