//! `lockgate leaders`.

use std::time::Duration;

use lockgate_core::{
    ElectionName, HolderName, WallTime,
    coordination::{
        AskToResign, CoordinationError, Coordinator as _, ElectionState, Observe, PastTerm,
    },
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{Retry, block_on, environment, instant, lead::word};
use crate::{
    args::{Leaders, LeadersList, LeadersResign, LeadersWatch},
    client::Encoding,
    exit::{Exit, Failure},
    output::{Output, Table, complain, note, tell},
    settings::{resolve, table},
    units::{millis, show_duration},
    via::Via,
};

/// The longest wait of one request.
const WAIT: Duration = Duration::from_secs(60);

/// For how long a store that does not answer is asked again.
const RETRY_FOR: Duration = Duration::from_secs(60);

pub(super) fn run(args: &Leaders) -> Result<(), Failure> {
    block_on(async {
        let flags = &args.settings().0;
        let within = resolve(flags, &environment)?.get(&table::TIMEOUT);
        let via = answered(within, Via::open(flags)).await?;
        let store = Store { via, within };
        match args {
            Leaders::List(args) => list(&store, args).await,
            Leaders::Watch(args) => watch(&store, args).await,
            Leaders::Resign(args) => resign(&store, args).await,
        }
    })
}

/// A store, and how long it may take to answer.
struct Store {
    via: Via,
    within: Duration,
}

impl Store {
    async fn observe(&self, observe: Observe) -> Result<ElectionState, Failure> {
        let within = self.within.saturating_add(observe.wait);
        answered(within, self.via.observe(observe)).await
    }

    async fn look(&self, election: &ElectionName) -> Result<ElectionState, Failure> {
        let observe = Observe {
            election: election.clone(),
            seen: None,
            wait: Duration::ZERO,
        };
        self.observe(observe).await
    }
}

/// Waits so long for an answer.
async fn answered<T, E: Into<Failure>>(
    within: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match timeout(within, asked).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => {
            let within = show_duration(within);
            let what = format!("the store has not answered within {within}");
            Err(Failure::new(Exit::Unreachable, what))
        }
    }
}

async fn list(store: &Store, args: &LeadersList) -> Result<(), Failure> {
    let elections = match &args.election {
        Some(election) => vec![election.clone()],
        None => answered(store.within, store.via.elections()).await?,
    };
    let (mut states, mut refused) = (Vec::new(), None);
    for election in elections {
        match store.look(&election).await {
            Ok(state) => states.push((election, state)),
            // The others are shown all the same.
            Err(failure) if failure.exit() == Exit::Refused && args.election.is_none() => {
                complain("warning", &failure.to_string());
                refused = Some(failure.told());
            }
            Err(failure) => return Err(failure),
        }
    }
    show(args, &states)?;
    refused.map_or(Ok(()), Err)
}

fn show(args: &LeadersList, states: &[(ElectionName, ElectionState)]) -> Result<(), Failure> {
    if let (Some(election), [(_, state)]) = (&args.election, states)
        && state.leader.is_none()
        && state.history.is_empty()
        && state.candidates.is_empty()
    {
        let what = format!("nobody has led {election}, and nobody stands for it");
        return Err(Failure::new(Exit::NotFound, what));
    }
    let mut output = Output::new();
    if args.json {
        for (election, state) in states {
            output.json(&shown(election, state))?;
        }
        return output.flush();
    }
    let mut table = Table::new(["ELECTION", "LEADER", "EPOCH", "SINCE", "LEASE", "WAITING"]);
    for (election, state) in states {
        let leader = state.leader.as_ref();
        table.row([
            election.to_string(),
            leader.map_or_else(String::new, |it| it.name.to_string()),
            leader.map_or_else(String::new, |it| it.epoch.0.to_string()),
            leader.and_then(|it| time(it.began?)).unwrap_or_default(),
            leader.map_or_else(String::new, |it| show_duration(it.remaining)),
            state.candidates.len().to_string(),
        ]);
    }
    output.table(&table)?;
    if let (Some(_), Some((_, state))) = (&args.election, states.first()) {
        output.line("")?;
        let mut table = Table::new(["EPOCH", "LEADER", "BEGAN", "ENDED", "REASON"]);
        for term in &state.history {
            table.row([
                term.epoch.0.to_string(),
                term.leader.to_string(),
                time(term.began).unwrap_or_default(),
                term.ended.and_then(|end| time(end.at)).unwrap_or_default(),
                term.ended.map_or("", |end| word(end.reason)).to_owned(),
            ]);
        }
        output.table(&table)?;
    }
    output.flush()
}

async fn watch(store: &Store, args: &LeadersWatch) -> Result<(), Failure> {
    let (mut seen, mut is_first) = (None, true);
    let mut retry = Retry::new(RETRY_FOR);
    loop {
        let observe = Observe {
            election: args.election.clone(),
            seen,
            wait: if is_first { Duration::ZERO } else { WAIT },
        };
        let state = match store.observe(observe).await {
            Err(error) if error.exit() == Exit::Unreachable && retry.again().await => continue,
            state => state?,
        };
        retry = Retry::new(RETRY_FOR);
        let epoch = state.leader.as_ref().map(|leader| leader.epoch);
        if epoch == seen && !is_first {
            continue;
        }
        (seen, is_first) = (epoch, false);
        let mut output = Output::new();
        if args.json || !output.is_terminal() {
            output.json(&shown(&args.election, &state))?;
        } else {
            output.line(&match &state.leader {
                Some(leader) => format!(
                    "{} leads {} with epoch {}",
                    leader.name, args.election, leader.epoch.0
                ),
                None => format!("nobody leads {}", args.election),
            })?;
        }
        output.flush()?;
    }
}

async fn resign(store: &Store, args: &LeadersResign) -> Result<(), Failure> {
    let Some(leader) = store.look(&args.election).await?.leader else {
        let what = format!("nobody leads {}", args.election);
        return Err(Failure::new(Exit::NotFound, what));
    };
    let ask = AskToResign {
        election: args.election.clone(),
        epoch: leader.epoch,
        by: by()?,
        even_if_alone: args.even_if_alone,
    };
    let asked = async {
        let asked = store.via.ask_to_resign(ask).await;
        asked.map_err(|error| match error {
            CoordinationError::NoSuccessor { .. } => {
                Failure::from(error).hint("to ask all the same: --even-if-alone")
            }
            other => other.into(),
        })
    };
    answered(store.within, asked).await?;
    let mut told = json!({
        "election": args.election.as_str(), "epoch": leader.epoch.0, "leader": leader.name.as_str(),
    });
    let Some(wait) = args.wait else {
        let done = format!("asked {} to hand over", leader.name);
        return tell(args.json, &told, &done);
    };
    let until = Instant::now() + wait;
    let mut seen = Some(leader.epoch);
    let state = loop {
        let observe = Observe {
            election: args.election.clone(),
            seen,
            wait: until.saturating_duration_since(Instant::now()),
        };
        let state = store.observe(observe).await?;
        // Between two leaders there is none for a moment.
        if state.leader.is_some() || state.candidates.is_empty() || Instant::now() >= until {
            break state;
        }
        seen = None;
    };
    let next = state.leader.map(|next| (next.name, next.epoch));
    if next
        .as_ref()
        .is_some_and(|(_, epoch)| *epoch == leader.epoch)
    {
        let what = format!(
            "{} has not handed over within {}",
            leader.name,
            show_duration(wait)
        );
        return Err(Failure::new(Exit::Timeout, what));
    }
    told["next"] = match &next {
        Some((name, epoch)) => json!({"name": name.as_str(), "epoch": epoch.0}),
        None => Value::Null,
    };
    if !args.json {
        note(&match &next {
            Some((name, epoch)) => format!("{name} leads now, with epoch {}", epoch.0),
            None => format!("{} has handed over, and nobody leads now", leader.name),
        });
        return Ok(());
    }
    tell(true, &told, "")
}

/// Who asks: a person, if the system says which.
fn by() -> Result<HolderName, Failure> {
    let user = environment("USER").unwrap_or_else(|| "lockgate".to_owned());
    HolderName::new(&user)
        .or_else(|_| HolderName::new("lockgate"))
        .map_err(|error| Failure::from_error(Exit::Failed, error))
}

fn time(at: WallTime) -> Option<String> {
    instant(at)
}

fn shown(election: &ElectionName, state: &ElectionState) -> Value {
    let leader = state.leader.as_ref().map(|leader| {
        json!({
            "name": leader.name.as_str(), "epoch": leader.epoch.0, "began_at": leader.began.and_then(time),
            "remaining_ms": millis(leader.remaining),
        })
    });
    let checkpoint = state.last_checkpoint.as_ref().map(|last| {
        let (value, encoding) = Encoding::of(&last.value);
        json!({"epoch": last.epoch.0, "value": value, "value_encoding": encoding})
    });
    let names = state.candidates.iter().map(HolderName::as_str);
    json!({
        "election": election.as_str(),
        "leader": leader,
        "candidates": names.collect::<Vec<_>>(),
        "history": state.history.iter().map(past).collect::<Vec<_>>(),
        "last_checkpoint": checkpoint,
    })
}

fn past(term: &PastTerm) -> Value {
    json!({
        "epoch": term.epoch.0,
        "leader": term.leader.as_str(),
        "began_at": time(term.began),
        "ended_at": term.ended.and_then(|end| time(end.at)),
        "reason": term.ended.map(|end| word(end.reason)),
    })
}
