//! Queues that a file declares: made and changed before anybody is served.
//!
//! Everything is checked before the first queue is made, so a wrong file changes nothing. Queues are
//! made without their dead-letter queues first and get them afterwards: the file's order does not
//! matter, and where a crash comes in between, the next start goes on.

use std::collections::BTreeMap;

use lockgate_core::QueueName;
use lockgate_engine::{Directory, Engine, EngineError};
use lockgate_machine::{
    ChangeQueue, CreateQueue, KeyPolicy, QueueSettings, Setting, SettingValue, SettingsError,
    TypedCommand,
};

use crate::queue::{allow_policy::lets_in, extension, kind, tags as queue_tags};

/// A queue that is to be there, with at least these settings and tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredQueue {
    /// Its name; one that ends in `.fifo` is that of a keyed queue.
    pub name: String,
    /// Settings; each once.
    pub settings: Vec<(&'static Setting, SettingValue)>,
    pub tags: BTreeMap<String, String>,
}

/// What became of a declared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// It was not there, and was made.
    Created,
    /// It was there otherwise, and was changed.
    Changed,
    /// It was there like that already.
    Unchanged,
}

/// What is wrong with a declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct DeclareProblem {
    /// Which of the queues, counted from 0.
    pub queue: usize,
    /// Which part of it.
    pub part: DeclaredPart,
    /// What is wrong, and what to do.
    pub what: String,
}

/// A part of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclaredPart {
    /// The name, or the queue as such.
    Name,
    /// The setting of this name.
    Setting(&'static str),
    Tags,
}

/// Why queues were not declared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeclareError {
    /// Something in the declarations is wrong; nothing was done.
    #[error("{} of the declared queues are refused", .0.len())]
    Refused(Vec<DeclareProblem>),
    /// A queue could not be made or changed; those before it were.
    #[error("making or changing queue {queue}")]
    Engine {
        queue: String,
        #[source]
        source: EngineError,
    },
}

/// What is wrong with these declarations as such, whatever queues there are. A dead-letter queue that
/// is not declared may exist.
#[must_use]
pub fn check_queues(queues: &[DeclaredQueue]) -> Vec<DeclareProblem> {
    match plan(queues, None) {
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    }
}

/// Makes the declared queues that are missing, and sets what differs in those that are there. What a
/// declaration does not name stays as it is, and so do queues that are not declared.
///
/// To be called before a server is bound.
///
/// # Errors
/// [`DeclareError::Refused`] if anything is wrong with any of them, before anything is done.
///
/// # Cancellation
/// Dropping the future leaves some of it undone; declaring again does the rest.
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

/// A declared queue as it will be.
struct Plan {
    name: QueueName,
    settings: QueueSettings,
    tags: BTreeMap<String, String>,
    /// How it is; `None`: it is not.
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

    /// Whether there is something left to set once all queues exist.
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

/// The queues as they will be. `existing` is `None` where nobody knows what is there.
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
        // Only now is it known what every dead-letter queue will be like.
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
    // What is set by name wins over what a tag says.
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
            // A tag set it.
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

/// Whether the dead-letter queue will be there and takes the queue's messages. One that was set before and
/// is gone by now is in no other change's way.
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
        // It may exist.
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
