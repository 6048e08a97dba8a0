//! Queues that a file declares: made and changed before anybody is served.
//!
//! Everything is checked before the first queue is made, so a wrong file changes nothing. Queues are
//! made without their dead-letter queues first and get them afterwards: the file's order does not
//! matter, and where a crash comes in between, the next start goes on.

use std::collections::BTreeMap;

use lockgate_core::QueueName;
use lockgate_engine::{Directory, Engine, EngineError};
use lockgate_machine::{Command, CreateQueue, KeyPolicy};
use serde_json::json;

use super::{
    Config,
    actions::tags,
    error::SqsError,
    extension,
    names::{self, Kind},
    queue_attributes::{Attribute, Form, Targets, kind_of},
    shapes::TextMap,
};
use crate::ServerOptions;

/// A queue that is to be there, with at least these attributes and tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredQueue {
    /// Its name; one that ends in `.fifo` is that of a FIFO queue.
    pub name: String,
    /// Attributes by their SQS names, with values as SQS takes them.
    pub attributes: BTreeMap<String, String>,
    /// Name of the dead-letter queue, and how many attempts a message has before it goes there.
    pub dead_letter: Option<(String, u64)>,
    /// Tags.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredPart {
    /// The name, or the queue as such.
    Name,
    /// The attribute of this name.
    Attribute(String),
    /// The dead-letter queue.
    DeadLetter,
    /// The tags.
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
        /// Its name.
        queue: String,
        /// Why.
        #[source]
        source: EngineError,
    },
}

/// What is wrong with these declarations as such, whatever queues there are. A dead-letter queue that
/// is not declared may exist.
#[must_use]
pub fn check_queues(queues: &[DeclaredQueue], options: &ServerOptions) -> Vec<DeclareProblem> {
    match plan(queues, options, None) {
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    }
}

/// Makes the declared queues that are missing, and sets what differs in those that are there. What a
/// declaration does not name stays as it is, and so do queues that are not declared.
///
/// Of `options` the account and the region count. To be called before a server is bound.
///
/// # Errors
/// [`DeclareError::Refused`] if anything is wrong with any of them, before anything is done.
///
/// # Cancellation
/// Dropping the future leaves some of it undone; declaring again does the rest.
pub async fn declare_queues(
    engine: &Engine,
    options: &ServerOptions,
    queues: &[DeclaredQueue],
) -> Result<Vec<Declared>, DeclareError> {
    let plans = plan(queues, options, Some(engine.directory())).map_err(DeclareError::Refused)?;
    for plan in plans.iter().filter(|plan| plan.before.is_none()) {
        let mut settings = plan.form.settings.clone();
        settings.dead_letter = None;
        settings.key_policy = settings
            .key_policy
            .filter(|&policy| policy != KeyPolicy::Skip);
        let create = Command::CreateQueue(Box::new(CreateQueue {
            name: plan.name.clone(),
            settings,
            annotations: plan.form.annotations.clone(),
            tags: plan.tags.clone(),
        }));
        plan.submit(engine, create).await?;
    }
    for plan in plans.iter().filter(|plan| plan.is_changed_after_all()) {
        let change = Command::ChangeQueue {
            queue: plan.name.clone(),
            settings: Some(Box::new(plan.form.settings.clone())),
            annotations: Some(plan.form.annotations.clone()),
            tags: Some(plan.tags.clone()),
        };
        plan.submit(engine, change).await?;
    }
    Ok(plans.iter().map(Plan::outcome).collect())
}

/// A declared queue as it will be.
struct Plan {
    name: QueueName,
    form: Form,
    tags: BTreeMap<String, String>,
    /// How it is; `None`: it is not.
    before: Option<(Form, BTreeMap<String, String>)>,
}

impl Plan {
    fn outcome(&self) -> Declared {
        match &self.before {
            None => Declared::Created,
            Some((form, tags)) if *form == self.form && *tags == self.tags => Declared::Unchanged,
            Some(_) => Declared::Changed,
        }
    }

    /// Whether there is something left to set once all queues exist.
    fn is_changed_after_all(&self) -> bool {
        match self.outcome() {
            Declared::Created => self.form.settings.dead_letter.is_some(),
            Declared::Changed => true,
            Declared::Unchanged => false,
        }
    }

    async fn submit(&self, engine: &Engine, command: Command) -> Result<(), DeclareError> {
        let error = |source| DeclareError::Engine {
            queue: self.name.to_string(),
            source,
        };
        engine.submit(command).await.map(drop).map_err(error)
    }
}

/// Where redrive policies of declared queues find their targets: among those declared, then among
/// those there are.
struct Known<'a> {
    declared: BTreeMap<&'a QueueName, &'a Form>,
    /// `None`: nobody knows what is there.
    existing: Option<&'a Directory>,
    /// The kind of the queue that asks.
    kind: Kind,
}

impl Targets for Known<'_> {
    fn target(&self, name: &QueueName) -> Option<(Kind, BTreeMap<String, String>)> {
        if let Some(form) = self.declared.get(name) {
            return Some((form.kind, form.annotations.clone()));
        }
        match self.existing {
            Some(directory) => {
                let entry = directory.get(name)?;
                Some((kind_of(&entry.settings), entry.annotations.clone()))
            }
            None => Some((self.kind, BTreeMap::new())),
        }
    }
}

fn plan(
    queues: &[DeclaredQueue],
    options: &ServerOptions,
    existing: Option<&Directory>,
) -> Result<Vec<Plan>, Vec<DeclareProblem>> {
    let config = Config {
        account: options.account.clone(),
        region: options.region.clone(),
        https: false,
    };
    let mut problems = Vec::new();
    let mut plans = Vec::new();
    for (at, queue) in queues.iter().enumerate() {
        let problem = |(part, what)| DeclareProblem {
            queue: at,
            part,
            what,
        };
        if queues[..at].iter().any(|other| other.name == queue.name) {
            let what = "it is declared twice; join the two".to_owned();
            problems.push(problem((DeclaredPart::Name, what)));
            continue;
        }
        match without_redrive(queue, &config, existing) {
            Ok(plan) => plans.push(plan),
            Err(wrong) => problems.push(problem(wrong)),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }

    // Only now is it known what every dead-letter queue will be like.
    let targets: Vec<(QueueName, Form)> = plans
        .iter()
        .map(|plan| (plan.name.clone(), plan.form.clone()))
        .collect();
    for (at, (queue, plan)) in queues.iter().zip(&mut plans).enumerate() {
        let known = Known {
            declared: targets.iter().map(|(name, form)| (name, form)).collect(),
            existing,
            kind: plan.form.kind,
        };
        let checked = with_redrive(queue, plan, &config, &known).and_then(|()| {
            extension::check(&plan.form.settings)
                .map_err(|error| (DeclaredPart::Tags, error.message.into_owned()))
        });
        if let Err((part, what)) = checked {
            problems.push(DeclareProblem {
                queue: at,
                part,
                what,
            });
        }
    }
    if problems.is_empty() {
        Ok(plans)
    } else {
        Err(problems)
    }
}

type Wrong = (DeclaredPart, String);

/// The queue with everything but where its dead letters go.
fn without_redrive(
    queue: &DeclaredQueue,
    config: &Config,
    existing: Option<&Directory>,
) -> Result<Plan, Wrong> {
    let wrong = |part: DeclaredPart| move |error: SqsError| (part, error.message.into_owned());
    let (name, fifo) = names::check_queue_name(&queue.name).map_err(wrong(DeclaredPart::Name))?;
    let kind = if fifo { Kind::Fifo } else { Kind::Standard };
    let entry = existing.and_then(|directory| directory.get(&name));
    let before = entry.map(|entry| {
        let form = Form::of(&entry.settings, &entry.annotations).tagged(&entry.tags);
        (form, entry.tags.clone())
    });
    if let Some((form, _)) = &before
        && form.kind != kind
    {
        let (is, needed) = match form.kind {
            Kind::Fifo => ("keyed (FIFO)", "unkeyed (standard)"),
            Kind::Standard => ("unkeyed (standard)", "keyed (FIFO)"),
        };
        let what = format!(
            "there is a queue of this name that is {is}, the file declares it {needed}, and that is \
             fixed when a queue is made: choose another name, or delete the queue first"
        );
        return Err((DeclaredPart::Name, what));
    }
    let (mut base, old_tags) = before
        .clone()
        .unwrap_or_else(|| (Form::new(kind), BTreeMap::new()));
    let tags = tags::checked(text_map(&queue.tags), old_tags.clone(), &name)
        .map_err(wrong(DeclaredPart::Tags))?;
    base.apply_tags(&old_tags, &tags)
        .map_err(wrong(DeclaredPart::Tags))?;
    let is_redrive = |attribute: &str| attribute == Attribute::RedrivePolicy.name();
    let given = queue.attributes.iter().filter(|(key, _)| !is_redrive(key));
    let given = text_map(given);
    let nowhere = Known {
        declared: BTreeMap::new(),
        existing,
        kind,
    };
    let mut form = base.clone();
    if let Err(error) = form.apply(&given, &name, config, &nowhere) {
        // Which of them it was: the first that is refused for this reason when it comes alone.
        let guilty = given.iter().find(|(key, value)| {
            let alone = TextMap::from_iter([((*key).clone(), (*value).clone())]);
            let refused = base.clone().apply(&alone, &name, config, &nowhere);
            refused.is_err_and(|other| other == error)
        });
        let part = match guilty {
            Some((key, _)) => DeclaredPart::Attribute(key.to_string()),
            None => DeclaredPart::Name,
        };
        return Err(wrong(part)(error));
    }
    Ok(Plan {
        name,
        form,
        tags,
        before,
    })
}

fn with_redrive(
    queue: &DeclaredQueue,
    plan: &mut Plan,
    config: &Config,
    known: &Known<'_>,
) -> Result<(), Wrong> {
    let attribute = Attribute::RedrivePolicy.name();
    let (part, policy) = match (&queue.dead_letter, queue.attributes.get(attribute)) {
        (None, None) => return Ok(()),
        (Some(_), Some(_)) => {
            let what = format!("the dead-letter queue is also given as {attribute}; keep one");
            return Err((DeclaredPart::DeadLetter, what));
        }
        (None, Some(policy)) => (
            DeclaredPart::Attribute(attribute.to_owned()),
            policy.clone(),
        ),
        (Some((target, attempts)), None) => {
            let (target, _) = names::check_queue_name(target).map_err(|error| {
                let what = format!("the dead-letter queue's name {target:?}: {error}");
                (DeclaredPart::DeadLetter, what)
            })?;
            if known.target(&target).is_none() {
                let what = format!(
                    "its dead-letter queue {target} is neither declared nor there: declare it too"
                );
                return Err((DeclaredPart::DeadLetter, what));
            }
            let policy = json!({
                "deadLetterTargetArn": names::queue_arn(config, &target),
                "maxReceiveCount": attempts,
            });
            (DeclaredPart::DeadLetter, policy.to_string())
        }
    };
    let given = TextMap::from_iter([(attribute.into(), policy.as_str().into())]);
    plan.form
        .apply(&given, &plan.name, config, known)
        .map_err(|error| (part, error.message.into_owned()))
}

fn text_map<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> TextMap<'a> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
        .collect()
}
