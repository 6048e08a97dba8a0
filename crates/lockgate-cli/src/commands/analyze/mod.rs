//! `lockgate analyze`.

mod chart;
mod input;
mod repetition;
mod replay;
mod report;

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use sha2::{Digest as _, Sha256};

pub use self::input::fuzz;
pub(crate) use self::input::{Format, TimeUnit};
use self::{
    input::{InputError, LeftOut, Micros, Requests, Wanted},
    repetition::Repetition,
    replay::{Replay, Ticks},
    report::Report,
};
use crate::{
    args::Analyze,
    exit::{Exit, Failure},
    output::{Output, count, note},
    svg,
};

/// The longest line read. A file that has no lines must not fill the memory.
const LINE_BYTES_MAX: usize = 8 << 20;

/// So many lines are named that were left out.
const LEFT_OUT_TOLD: usize = 10;

pub(crate) fn run(args: &Analyze) -> Result<(), Failure> {
    // Before a long input is read for nothing.
    if let Some(path) = &args.svg {
        svg::check_free(path)?;
    }
    let name = if args.file == Path::new("-") {
        "standard input".to_owned()
    } else {
        args.file.display().to_string()
    };
    let mut study = Study::new(args);
    let read = study.read(open(&args.file)?);
    // Also of a failure, which they may explain.
    study.tell_left_out();
    let names = read.map_err(|failure| failure.context(format!("reading {name}")))?;
    if study.repetition.requests() == 0 {
        return Err(study.nothing(&name, &names));
    }
    let report = study.report();
    if let Some(path) = &args.svg {
        svg::create(path, &report.svg(&args.key))?;
    }
    let mut output = Output::new();
    if args.json {
        output.json(&report)?;
    } else {
        report.print(&mut output)?;
    }
    output.flush()
}

fn open(path: &Path) -> Result<Box<dyn BufRead + Send>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).map_err(|error| {
        let exit = match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Failed,
        };
        Failure::from_error(exit, error).context(format!("opening {}", path.display()))
    })?;
    Ok(Box::new(BufReader::with_capacity(64 << 10, file)))
}

/// How requests come in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// One after the other, so many in the time of a run as there are consumers.
    Stream,
    /// All are there when it begins.
    Backlog,
    /// At their own times.
    Recorded,
}

/// All that is kept of the requests read so far.
struct Study<'a> {
    args: &'a Analyze,
    lines: u64,
    /// A number for each key, by a digest of it: 128 bits, of which two keys have the same only by an attack that
    /// nobody can pay for.
    keys: HashMap<[u8; 16], u32>,
    repetition: Repetition,
    replays: Vec<(Load, Replay)>,
    clock: Clock,
    left_out: u64,
    /// The first of them.
    told: Vec<(u64, LeftOut)>,
}

/// The times of requests, from the first one on.
#[derive(Default)]
struct Clock {
    first: Option<Micros>,
    latest: Micros,
    /// Requests whose time is before an earlier one's.
    late: u64,
    /// The line of the first of them.
    first_late: Option<u64>,
}

impl<'a> Study<'a> {
    fn new(args: &'a Analyze) -> Self {
        let consumers = args.consumers;
        let mut replays = vec![
            // A request each tick, so that as many come during a run as there are consumers.
            (Load::Stream, Replay::new(consumers, consumers.get().into())),
            (Load::Backlog, Replay::new(consumers, 1)),
        ];
        if let Some(work) = args.work {
            replays.push((Load::Recorded, Replay::new(consumers, work.as_micros())));
        }
        Self {
            args,
            lines: 0,
            keys: HashMap::new(),
            repetition: Repetition::new(consumers),
            replays,
            clock: Clock::default(),
            left_out: 0,
            told: Vec::new(),
        }
    }

    /// Reads to the end. Returns fields that lines have which lack the key.
    fn read(&mut self, source: Box<dyn BufRead + Send>) -> Result<Vec<String>, Failure> {
        let args = self.args;
        let wanted = Wanted {
            key: args.key.clone(),
            time: args.time.clone().map(|field| (field, args.time_unit)),
            format: args.format,
            line_bytes_max: LINE_BYTES_MAX,
        };
        let stopped = |error| stopped(error, args);
        let mut requests = Requests::new(source, &args.file, wanted).map_err(stopped)?;
        let mut key = Vec::new();
        while let Some(line) = requests.next(&mut key).map_err(stopped)? {
            self.lines += 1;
            match line.request {
                Ok(time) => self.request(line.number, &key, time)?,
                Err(why) if args.strict => {
                    return Err(Failure::failed(format!("line {} {why}", line.number)));
                }
                Err(why) => {
                    self.left_out += 1;
                    if self.told.len() < LEFT_OUT_TOLD {
                        self.told.push((line.number, why));
                    }
                }
            }
        }
        Ok(requests.names().to_vec())
    }

    fn request(&mut self, line: u64, key: &[u8], time: Option<Micros>) -> Result<(), Failure> {
        let mut digest = [0; 16];
        digest.copy_from_slice(&Sha256::digest(key)[..16]);
        let next = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        let key = *self.keys.entry(digest).or_insert(next);
        if key == next && next >= self.args.keys_max {
            let max = self.args.keys_max;
            return Err(Failure::failed(format!(
                "line {line} has a key after {}, which are all that --keys-max allows",
                count(max.into(), "different key")
            ))
            .hint(
                "give a larger --keys-max, which takes about 100 bytes of memory a key, or choose a field with fewer \
                 values",
            ));
        }
        let position = Ticks::from(self.repetition.requests());
        let recorded = match time {
            Some(time) => self.clock.at(time, line),
            None => 0,
        };
        if self.args.strict && self.clock.late > 0 {
            let what = format!("line {line} has a time before that of a line above it");
            return Err(Failure::failed(what).hint("sort the lines by their time"));
        }
        self.repetition.request(key);
        for (load, replay) in &mut self.replays {
            let at = match load {
                Load::Stream => position,
                Load::Backlog => 0,
                Load::Recorded => recorded,
            };
            replay.request(key, at);
        }
        Ok(())
    }

    fn tell_left_out(&self) {
        if self.left_out > 0 {
            let lines = count(self.lines, "line");
            note(&format!("{} of {lines} left out:", self.left_out));
            for (line, why) in &self.told {
                note(&format!("  line {line} {why}"));
            }
            let more = self.left_out - self.told.len() as u64;
            if more > 0 {
                note(&format!("  and {more} more"));
            }
        }
        if let Some(line) = self.clock.first_late {
            let late = count(self.clock.late, "request");
            note(&format!(
                "{late} with a time before that of a line above, the first in line {line}: the replay has each come at \
                 the latest time above it"
            ));
        }
    }

    /// What to say if there is no request at all.
    fn nothing(&self, name: &str, names: &[String]) -> Failure {
        let key = &self.args.key;
        let Some((line, why)) = self.told.first() else {
            return Failure::failed(format!("{name} has no lines"));
        };
        let failure = Failure::failed(format!(
            "no line of {name} is a request with {key}: line {line} {why}"
        ));
        match names {
            [] => failure,
            names => failure.hint(has_fields("its lines have", names, key)),
        }
    }

    fn report(&self) -> Report {
        let replays = self.replays.iter();
        Report::new(
            self.args.consumers,
            &self.repetition.summary(),
            replays.map(|(load, replay)| (*load, replay.covered())),
            self.clock.first.map(|_| self.clock.late),
            (self.left_out, &self.told),
        )
    }
}

impl Clock {
    /// The time since the first one. It does not go back.
    fn at(&mut self, time: Micros, line: u64) -> Ticks {
        let first = *self.first.get_or_insert(time);
        if time - first < self.latest {
            self.late += 1;
            self.first_late.get_or_insert(line);
        }
        self.latest = self.latest.max(time - first);
        self.latest.unsigned_abs()
    }
}

/// Names the fields there are, and one that may be meant.
fn has_fields(who: &str, names: &[String], wanted: &str) -> String {
    const SIMILAR: f64 = 0.8;

    fn last(name: &str) -> &str {
        name.rsplit('.').next().unwrap_or(name)
    }
    let alike = |name: &&String| last(name) == last(wanted);
    let rated = names
        .iter()
        .map(|name| (strsim::jaro_winkler(name, wanted), name));
    let rated = rated.filter(|(similarity, _)| *similarity > SIMILAR);
    let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let meant = best
        .map(|(_, name)| name)
        .or_else(|| names.iter().find(alike));
    let meant = meant.map_or_else(String::new, |name| format!("; did you mean {name}?"));
    format!("{who} {}{meant}", names.join(", "))
}

fn stopped(error: InputError, args: &Analyze) -> Failure {
    let hint = match &error {
        InputError::UnknownFormat => Some(format!(
            "say --format jsonl, csv or access; CSV has names in its first line, {} among them",
            args.key
        )),
        InputError::NoColumn { column, names } => Some(has_fields("it has", names, column)),
        InputError::NoField { field } => Some(has_fields(
            "it has",
            &input::access_fields().map(str::to_owned),
            field,
        )),
        InputError::LineTooLong { .. } => {
            Some("write one request a line: `jq -c '.[]'` does that with an array".to_owned())
        }
        _ => None,
    };
    let failure = Failure::from_error(Exit::Failed, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
