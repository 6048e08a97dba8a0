//! Creates and changes the queues that a file declares, before the server serves clients.
//!
//! All declarations are checked before the first queue is created, so a wrong file changes nothing.
//! Queues are created without their dead-letter queues, which are set afterwards: the order in the
//! file does not matter, and after a crash in between the next start continues.

mod exchanges;

use std::collections::BTreeMap;

use lockgate_core::QueueName;
use lockgate_engine::{Directory, Engine, EngineError};
use lockgate_machine::{
    ChangeQueue, CreateQueue, KeyPolicy, QueueSettings, Setting, SettingValue, SettingsError,
    TypedCommand,
};

pub use self::exchanges::{
    DeclaredBinding, DeclaredExchange, ExchangePart, ExchangeProblem, ExchangeReference,
    check_exchanges, check_references, declare_exchanges, exchange_references, other_kind,
};
use crate::queue::{allow_policy::lets_in, extension, kind, tags as queue_tags};

/// A queue that should exist, with at least these settings and tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredQueue {
    /// Its name; the name of a keyed queue ends in `.fifo`.
    pub name: String,
    /// Settings; each once.
    pub settings: Vec<(&'static Setting, SettingValue)>,
    pub tags: BTreeMap<String, String>,
}

/// What was done for a declared queue or exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// It did not exist and was created.
    Created,
    /// It existed with other settings or tags and was changed.
    Changed,
    /// It existed with these settings and tags.
    Unchanged,
}

/// What is wrong with a declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct DeclareProblem {
    /// The index of the queue, from 0.
    pub queue: usize,
    pub part: DeclaredPart,
    /// What is wrong, and what to do.
    pub what: String,
}

/// A part of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclaredPart {
    /// The name, or the queue as a whole.
    Name,
    /// The setting of this name.
    Setting(&'static str),
    Tags,
}

/// Why queues or exchanges were not declared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeclareError {
    /// A declaration is wrong; nothing was done.
    #[error("{} of the declared queues are refused", .0.len())]
    Refused(Vec<DeclareProblem>),
    /// The declaration of an exchange is wrong.
    #[error("the declared exchanges are refused for {} reasons", .0.len())]
    Exchanges(Vec<ExchangeProblem>),
    /// An exchange could not be created, changed or bound; what comes before it was.
    #[error("making, changing or binding exchange {exchange}")]
    Exchange {
        exchange: String,
        #[source]
        source: EngineError,
    },
    /// A queue could not be created or changed; the queues before it were.
    #[error("making or changing queue {queue}")]
    Engine {
        queue: String,
        #[source]
        source: EngineError,
    },
}

/// What is wrong with these declarations by themselves, whatever queues exist. A dead-letter queue
/// that is not declared may exist.
#[must_use]
pub fn check_queues(queues: &[DeclaredQueue]) -> Vec<DeclareProblem> {
    match plan(queues, None) {
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    }
}

/// Creates the declared queues that are missing, and changes the settings and tags of existing ones
/// where they differ. Settings that a declaration does not name stay as they are, and so do queues
/// that are not declared.
///
/// Call this before a server is bound.
///
/// # Errors
/// [`DeclareError::Refused`] if any declaration is wrong; then nothing is done.
///
/// # Cancellation
/// Dropping the future may leave some of the work undone; declaring again completes it.
pub async fn declare_queues(
    engine: &Engine,
    queues: &[DeclaredQueue],
) -> Result<Vec<Declared>, DeclareError> {
    let plans = plan(queues, Some(engine.directory())).map_err(DeclareError::Refused)?;
    for plan in plans.iter().filter(|plan| plan.before.is_none()) {
        let mut settings = plan.settings.clone();
        settings.dead_letter = None;
        settings.key_policy = settings
            .key_policy
            .filter(|&policy| policy != KeyPolicy::Skip);
        let create = CreateQueue {
            name: plan.name.clone(),
            settings,
            annotations: BTreeMap::new(),
            tags: plan.tags.clone(),
        };
        plan.submit(engine, create).await?;
    }
    for plan in plans.iter().filter(|plan| plan.is_changed_after_all()) {
        let change = ChangeQueue {
            queue: plan.name.clone(),
            settings: Some(Box::new(plan.settings.clone())),
            annotations: None,
            tags: Some(plan.tags.clone()),
        };
        plan.submit(engine, change).await?;
    }
    Ok(plans.iter().map(Plan::outcome).collect())
}

/// A declared queue as it should become.
struct Plan {
    name: QueueName,
    settings: QueueSettings,
    tags: BTreeMap<String, String>,
    /// The queue as it is; `None` if it does not exist.
    before: Option<(QueueSettings, BTreeMap<String, String>)>,
}

impl Plan {
    fn outcome(&self) -> Declared {
        match &self.before {
            None => Declared::Created,
            Some((settings, tags)) if *settings == self.settings && *tags == self.tags => {
                Declared::Unchanged
            }
            Some(_) => Declared::Changed,
        }
    }

    /// Whether settings are left to set once all queues exist.
    fn is_changed_after_all(&self) -> bool {
        match self.outcome() {
            Declared::Created => self.settings.dead_letter.is_some(),
            Declared::Changed => true,
            Declared::Unchanged => false,
        }
    }

    async fn submit(
        &self,
        engine: &Engine,
        command: impl TypedCommand,
    ) -> Result<(), DeclareError> {
        let error = |source| DeclareError::Engine {
            queue: self.name.to_string(),
            source,
        };
        engine.submit(command).await.map(drop).map_err(error)
    }
}

/// Plans all declared queues. `existing` is `None` if the existing queues are not known.
fn plan(
    queues: &[DeclaredQueue],
    existing: Option<&Directory>,
) -> Result<Vec<Plan>, Vec<DeclareProblem>> {
    let mut problems = Vec::new();
    let mut plans = Vec::new();
    for (at, queue) in queues.iter().enumerate() {
        let planned = match queues[..at].iter().any(|other| other.name == queue.name) {
            true => Err((
                DeclaredPart::Name,
                "it is declared twice; join the two".to_owned(),
            )),
            false => plan_one(queue, existing),
        };
        match planned {
            Ok(plan) => plans.push(plan),
            Err((part, what)) => problems.push(DeclareProblem {
                queue: at,
                part,
                what,
            }),
        }
    }
    if problems.is_empty() {
        // Now the settings of every dead-letter queue are known.
        for (at, plan) in plans.iter().enumerate() {
            if let Err(what) = check_dead_letter(plan, &plans, existing) {
                problems.push(DeclareProblem {
                    queue: at,
                    part: DeclaredPart::Setting("dead_letter"),
                    what,
                });
            }
        }
    }
    if problems.is_empty() {
        Ok(plans)
    } else {
        Err(problems)
    }
}

fn plan_one(
    queue: &DeclaredQueue,
    existing: Option<&Directory>,
) -> Result<Plan, (DeclaredPart, String)> {
    let (name, keyed) = kind::check_name(&queue.name)
        .map_err(|error| (DeclaredPart::Name, error.message.into_owned()))?;
    let entry = existing.and_then(|directory| directory.get(&name));
    let before = entry.map(|entry| (entry.settings.clone(), entry.tags.clone()));
    let (mut settings, old_tags) = before
        .clone()
        .unwrap_or_else(|| (QueueSettings::over_http(keyed), BTreeMap::new()));
    if settings.keyed != keyed {
        let kind = |keyed| if keyed { "keyed" } else { "unkeyed" };
        let what = format!(
            "there is a queue of this name that is {}, the file declares it {}, and that is fixed when a \
             queue is made: choose another name, or delete the queue first",
            kind(settings.keyed),
            kind(keyed)
        );
        return Err((DeclaredPart::Name, what));
    }
    let mut tags = old_tags.clone();
    tags.extend(queue.tags.clone());
    queue_tags::check(&tags)
        .and_then(|()| extension::apply(&old_tags, &tags, &mut settings))
        .map_err(|error| (DeclaredPart::Tags, error.message.into_owned()))?;
    // A setting by name wins over a tag.
    for (setting, value) in &queue.settings {
        let set = setting.set(&mut settings, value.clone());
        set.map_err(|error| (DeclaredPart::Setting(setting.name), error.to_string()))?;
    }
    let before_settings = before.as_ref().map(|(settings, _)| settings);
    settings.check(&name, before_settings).map_err(|error| {
        let declared = |setting: &str| queue.settings.iter().any(|(of, _)| of.name == setting);
        let part = match error.setting() {
            "keyed" => DeclaredPart::Name,
            setting if declared(setting) => DeclaredPart::Setting(setting),
            // A tag set this setting.
            _ => DeclaredPart::Tags,
        };
        (part, error.to_string())
    })?;
    Ok(Plan {
        name,
        settings,
        tags,
        before,
    })
}

/// Whether the dead-letter queue will exist and can take the queue's messages. A dead-letter queue
/// that was set before and no longer exists does not hinder other changes.
fn check_dead_letter(
    plan: &Plan,
    plans: &[Plan],
    existing: Option<&Directory>,
) -> Result<(), String> {
    let Some(target) = &plan.settings.dead_letter else {
        return Ok(());
    };
    let before = plan.before.as_ref();
    if before.is_some_and(|(before, _)| before.dead_letter.as_ref() == Some(target)) {
        return Ok(());
    }
    let entry = existing.and_then(|directory| directory.get(target));
    let declared = plans.iter().find(|plan| plan.name == *target);
    let keyed = match (declared, &entry, existing) {
        (Some(declared), _, _) => declared.settings.keyed,
        (None, Some(entry), _) => entry.settings.keyed,
        (None, None, Some(_)) => {
            return Err(format!(
                "its dead-letter queue {target} is neither declared nor there: declare it too"
            ));
        }
        // The dead-letter queue may exist.
        (None, None, None) => plan.settings.keyed,
    };
    if keyed != plan.settings.keyed {
        let queue = target.clone();
        return Err(SettingsError::DeadLetterKind { queue }.to_string());
    }
    match entry {
        Some(entry) if !lets_in(&entry.annotations, &plan.name) => Err(format!(
            "the redrive allow policy of {target} does not include {}",
            plan.name
        )),
        _ => Ok(()),
    }
}
