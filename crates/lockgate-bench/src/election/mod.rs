//! `election.*`: how long nobody leads when the leader changes, and what a change costs the store.
//!
//! `hand_over` and `crash` are over two candidates in processes of their own (of the store in memory: in one). A planned
//! switch takes from the moment at which the leader has handed over, and so does nothing more, to the moment at which its
//! successor may begin; a crash from the `kill -9` to that moment. `rate` and `messages` are over a hundred candidates, each
//! with a connection of its own, whose leaders resign at once. Messages are all that candidates send to the store, divided by
//! the terms.
//!
//! Times are those of a clock that all processes of the machine share. A successor that begins before its predecessor has
//! handed over is an error.

mod candidate;
mod counter;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::json;

use self::{
    candidate::{Stand, VARIABLE, now},
    counter::Counter,
    store::{Figures, Kind, STORES, Store},
};
use crate::{
    Course, Courses, Setup,
    load::as_f64,
    queue::params,
    report::{Params, Report, Round, histogram},
    wanted,
};

pub(crate) use self::{
    candidate::run as stand,
    store::{Served, start_by},
};
pub(crate) const FIGURES: &[&str] = &store::FIGURES;

/// The shortest that there is, so that a hundred crashes take minutes.
const LEASE: Duration = Duration::from_secs(1);
/// So long that no renewal is among the messages of a switch.
const LONG_LEASE: Duration = Duration::from_secs(100);

/// How long an election with a crowd lasts, and how large the crowd is.
const CROWD_TIME: Duration = Duration::from_secs(10);
const CROWD: usize = 100;

/// Switches of each kind.
const SWITCHES: u32 = 100;

/// Whoever says nothing for that long never will.
const PATIENCE: Duration = Duration::from_secs(60);

struct ElectionCourse {
    store: &'static Store,
    is_short: bool,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let names = &setup.args.names;
    // A run of all figures installs and starts nothing.
    let is_chosen = |store: &&Store| match store.kind {
        Kind::Script(..) if names.is_empty() => false,
        _ => {
            let Figures {
                hand_over,
                crash,
                rate,
                messages,
            } = store.figures;
            [hand_over, crash, rate, messages]
                .iter()
                .any(|figure| wanted(names, figure))
        }
    };
    let is_short = setup.args.quick || names.is_empty();
    let course = |store| Box::new(ElectionCourse { store, is_short }) as Box<dyn Course>;
    Ok(STORES.iter().filter(is_chosen).map(course).collect())
}

impl Course for ElectionCourse {
    fn round(&mut self, _: &Setup, _: Duration, _: &mut Report) -> anyhow::Result<()> {
        Ok(())
    }

    fn finish(&mut self, setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
        let name = self.store.name;
        let Some(served) = self.store.start(setup)? else {
            eprintln!("election.{name}: not measured, its server is not there");
            return Ok(());
        };
        let measured = self.measure(&served.url, setup, report);
        let stopped = served.stop(setup);
        measured.with_context(|| format!("election.{name}"))?;
        stopped
    }

    fn close(self: Box<Self>, _: &Setup) {}
}

impl ElectionCourse {
    fn measure(&self, url: &str, setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
        let names = &setup.args.names;
        let figures = &self.store.figures;
        let (switches, crashes, crowd, time) = match self.is_short {
            true => (3, 1, 10, CROWD_TIME / 20),
            false => (SWITCHES, SWITCHES, CROWD, CROWD_TIME),
        };
        let of = |candidates: usize, lease: Duration| {
            let mut params = Params {
                size: 0,
                keys: 0,
                ..params(setup, 1, 1)
            };
            params.more.insert("candidates", json!(candidates));
            params.more.insert("lease_ms", json!(lease.as_millis()));
            params
        };
        let stand = |election: &str, url: &str| Stand {
            url: url.to_owned(),
            election: election.to_owned(),
            lease: LEASE,
            candidates: 1,
            is_churning: false,
        };
        let no_rate = || Round {
            rate: None,
            floor: None,
            syncs_per_message: None,
        };
        if wanted(names, figures.hand_over) {
            let mut stand = stand("planned", url);
            let processes = match self.store.kind {
                Kind::Memory => {
                    stand.candidates = 2;
                    1
                }
                _ => 2,
            };
            let gaps = Line::start(stand, processes)?.hand_over(switches)?;
            report.add(figures.hand_over, &of(2, LEASE), None, no_rate(), &gaps);
        }
        if self.store.kind != Kind::Memory && wanted(names, figures.crash) {
            let gaps = Line::start(stand("crashes", url), 2)?.crash(crashes)?;
            report.add(figures.crash, &of(2, LEASE), None, no_rate(), &gaps);
        }
        let crowd_at = |election: &str, url: &str| Stand {
            lease: LONG_LEASE,
            candidates: crowd,
            is_churning: true,
            ..stand(election, url)
        };
        let params = of(crowd, LONG_LEASE);
        if wanted(names, figures.rate) {
            let (terms, took) = churn(crowd_at("crowd", url), time, || 0)?.terms;
            let rate = as_f64(terms) / took.as_secs_f64();
            report.quantity(figures.rate, &params, rate, "elections/s", None);
        }
        if wanted(names, figures.messages)
            && let Some(counter) = setup.runtime.block_on(Counter::start(url))?
        {
            let _guard = setup.runtime.enter();
            let counted = churn(crowd_at("counted", &counter.url), time, || {
                counter.messages()
            })?;
            let each = as_f64(counted.messages) / as_f64(counted.terms.0);
            report.quantity(figures.messages, &params, each, "messages/election", None);
        }
        Ok(())
    }
}

/// What a crowd did.
struct Churned {
    terms: (u64, Duration),
    messages: u64,
}

/// Has a crowd elect for that long.
fn churn(stand: Stand, time: Duration, messages: impl Fn() -> u64) -> anyhow::Result<Churned> {
    let mut line = Line::start(stand, 1)?;
    line.until(|event| event.what == "ready")?;
    let (before, began) = (messages(), Instant::now());
    line.tell(0, "go")?;
    thread::sleep(time);
    line.tell(0, "stop")?;
    let said = line.until(|event| event.what == "terms")?;
    let terms = (said.number, began.elapsed());
    ensure!(terms.0 > 0, "nobody was elected in {time:?}");
    Ok(Churned {
        terms,
        messages: messages() - before,
    })
}

/// Processes that stand in one election.
struct Line {
    stand: Stand,
    processes: BTreeMap<usize, Process>,
    started: usize,
    events: Receiver<Event>,
    tell: Sender<Event>,
    /// Who stands behind the leader.
    standing: BTreeSet<String>,
}

struct Process {
    child: Child,
    input: ChildStdin,
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended is killed no more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line that a candidate's process has written: what has happened, to whom, and the time, or another number.
struct Event {
    process: usize,
    what: String,
    candidate: String,
    number: u64,
}

impl Line {
    fn start(stand: Stand, processes: usize) -> anyhow::Result<Self> {
        let (tell, events) = channel();
        let mut line = Self {
            stand,
            processes: BTreeMap::new(),
            started: 0,
            events,
            tell,
            standing: BTreeSet::new(),
        };
        for _ in 0..processes {
            line.add()?;
        }
        Ok(line)
    }

    fn add(&mut self) -> anyhow::Result<()> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(VARIABLE, self.stand.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a candidate")?;
        let (input, output) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .context("pipes")?;
        let (process, tell) = (self.started, self.tell.clone());
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for line in lines.chain(["ended".to_owned()]) {
                let mut words = line.split(' ');
                let mut word = || words.next().unwrap_or_default().to_owned();
                let (what, candidate, number) = (word(), word(), word());
                let number = number.parse().unwrap_or_default();
                let event = Event {
                    process,
                    what,
                    candidate,
                    number,
                };
                if tell.send(event).is_err() {
                    return;
                }
            }
        });
        self.processes.insert(process, Process { child, input });
        self.started += 1;
        Ok(())
    }

    fn tell(&mut self, process: usize, what: &str) -> anyhow::Result<()> {
        let to = self.processes.get_mut(&process).context("it has gone")?;
        writeln!(to.input, "{what}").context("telling a candidate")
    }

    /// The next such event.
    fn until(&mut self, is_it: impl Fn(&Event) -> bool) -> anyhow::Result<Event> {
        loop {
            let event = self.events.recv_timeout(PATIENCE);
            let event = event.context("the candidates say nothing more")?;
            match event.what.as_str() {
                "stands" => drop(self.standing.insert(event.candidate.clone())),
                "leads" => drop(self.standing.remove(&event.candidate)),
                // What it said is on the standard error.
                "ended" if self.processes.contains_key(&event.process) => {
                    bail!("a candidate has ended")
                }
                _ => {}
            }
            if is_it(&event) {
                return Ok(event);
            }
        }
    }

    /// Waits until somebody leads and somebody else stands. The leader's process.
    fn ready(&mut self, leader: Option<usize>) -> anyhow::Result<usize> {
        let leader = match leader {
            Some(leader) => leader,
            None => self.until(|event| event.what == "leads")?.process,
        };
        while self.standing.is_empty() {
            self.until(|event| event.what == "stands")?;
        }
        Ok(leader)
    }

    fn hand_over(&mut self, switches: u32) -> anyhow::Result<Histogram<u64>> {
        let (mut gaps, mut leader) = (histogram(), None);
        for _ in 0..switches {
            let process = self.ready(leader)?;
            self.tell(process, "resign")?;
            let (mut left, mut leads) = (None, None);
            while left.is_none() || leads.is_none() {
                let event = self.until(|event| matches!(event.what.as_str(), "left" | "leads"))?;
                match event.what.as_str() {
                    "left" => left = Some(event.number),
                    _ => {
                        leads = Some(event.number);
                        leader = Some(event.process);
                    }
                }
            }
            let gap = leads
                .zip(left)
                .and_then(|(leads, left)| leads.checked_sub(left));
            gaps.record(gap.context("two led at the same time")?)?;
        }
        Ok(gaps)
    }

    fn crash(&mut self, switches: u32) -> anyhow::Result<Histogram<u64>> {
        let (mut gaps, mut leader) = (histogram(), None);
        for _ in 0..switches {
            let process = self.ready(leader)?;
            let killed_at = now();
            // Its drop kills it.
            let Some(killed) = self.processes.remove(&process) else {
                bail!("the leader has gone");
            };
            drop(killed);
            let event = self.until(|event| event.what == "leads")?;
            leader = Some(event.process);
            gaps.record(event.number.saturating_sub(killed_at))?;
            self.add()?;
        }
        Ok(gaps)
    }
}
