//! The schedules of a server: messages that it sends once at a time, at a fixed rate, or as a cron expression says.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hyper::Method;
pub use lockgate_core::{CatchUp, Overlap, Timing};
use lockgate_core::{
    ExchangeName, Key, Message, MessageId, Millis, QueueName, RoutingKey, ScheduleName, WallTime,
};
use serde::{Deserialize, Serialize};

use crate::{
    CallError, Client,
    api::{self, Encoding},
    queue::{headers, read, wall_time},
    records::{NO_BODY, Nothing, part},
    target::{Unfit, in_words, instant},
};

/// What a schedule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSpec {
    /// When it fires.
    pub timing: Timing,
    /// Where its messages go.
    pub to: ScheduleTo,
    /// The message, without a unique id, a due time and a producer: each firing has a unique id of its own.
    pub message: Message,
    /// What becomes of missed times.
    pub catch_up: CatchUp,
    /// What happens while the last message is still in its queue. For an exchange only [`Overlap::Allow`].
    pub overlap: Overlap,
    /// A time to which the schedule comes later than this is missed.
    pub late_max: Millis,
}

/// Where the messages of a schedule go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleTo {
    /// Into a queue.
    Queue(QueueName),
    /// To the queues of an exchange.
    Exchange {
        /// The exchange.
        exchange: ExchangeName,
        /// The routing key.
        routing_key: RoutingKey,
    },
}

/// A schedule as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// Its name.
    pub name: ScheduleName,
    /// It rises with every change by a caller. Firings do not change it.
    pub generation: u64,
    /// What it does.
    pub spec: ScheduleSpec,
    /// When it was made.
    pub created: WallTime,
    /// When a caller changed it last.
    pub changed: WallTime,
    /// Whether it is paused.
    pub paused: bool,
    /// Its next time. If it has passed, it is about to fire, or `waits_for` or `problem` says why not.
    pub next: Option<WallTime>,
    /// The time for which `next` stands in, because somebody moved it.
    pub planned: Option<WallTime>,
    /// Its next times, up to five; in a list perhaps one.
    pub next_times: Vec<WallTime>,
    /// The message for which it waits, because of [`Overlap::Queue`].
    pub waits_for: Option<MessageId>,
    /// Why it is due and does not fire, as of the last try.
    pub problem: Option<String>,
    /// The last firing.
    pub last: Option<Firing>,
    /// Whether the message of the last firing is still in its queue.
    pub unsettled: bool,
    /// What it counts.
    pub counts: Counts,
}

/// The last firing of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Firing {
    /// The time for which it was. `None`: it was by hand.
    pub scheduled: Option<WallTime>,
    /// When it was.
    pub at: WallTime,
    /// The message; of an exchange, what was published.
    pub message: Option<MessageId>,
}

/// What a schedule counts, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Firings at its times.
    pub fired: u64,
    /// Firings by hand.
    pub by_hand: u64,
    /// Times that were missed and did not fire.
    pub missed: u64,
    /// Times that did not fire because the last message was still there.
    pub overlapped: u64,
    /// Messages that were cancelled for the next one.
    pub replaced: u64,
}

/// What a put did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Put {
    /// Whether the schedule was made now.
    pub created: bool,
    /// Whether it was made or changed now.
    pub changed: bool,
    /// The schedule as it is now.
    pub schedule: Description,
}

/// A page of schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Those that the caller may read, in the order of their names. May be empty.
    pub schedules: Vec<Description>,
    /// List after this name for the next page. `None`: that were all.
    pub next: Option<ScheduleName>,
}

/// A schedule of a server. Clones are the same schedule. Made by [`Client::schedule`].
///
/// Each method is one call. What the server refuses is a [`CallError::Refused`], whose code says why, such as
/// `schedule_not_found`, or `schedule_changed` for another generation.
///
/// # Cancellation
/// As [`Client`] has it.
///
/// ```no_run
/// use lockgate_client::{Client, schedule::{Overlap, ScheduleSpec, ScheduleTo, Timing}};
/// use lockgate_core::{Message, QueueName, ScheduleName};
///
/// # async fn report(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
/// let timing = Timing::Cron { expression: "0 9 * * mon-fri".into(), zone: "Europe/Berlin".into() };
/// let to = ScheduleTo::Queue(QueueName::new("mail")?);
/// let mut spec = ScheduleSpec::new(timing, to, Message::new("weekly report"));
/// spec.overlap = Overlap::Skip;
/// let put = client.schedule(ScheduleName::new("report")?).put(spec).await?;
/// println!("{:?}", put.schedule.next_times);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RemoteSchedule {
    client: Client,
    name: ScheduleName,
    generation: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToWord {
    Queue(String),
    Exchange(String),
}

#[derive(Default, Serialize)]
struct PutWords {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every_ms: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    to: Option<ToWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routing_key: Option<String>,
    message: api::Message,
    catch_up: &'static str,
    overlap: &'static str,
    late_max_ms: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
}

#[derive(Serialize)]
struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
}

#[derive(Deserialize)]
struct PutAnswer {
    created: bool,
    changed: bool,
    schedule: Shown,
}

#[derive(Deserialize)]
struct RunAnswer {
    message_id: String,
}

#[derive(Deserialize)]
struct Listed {
    schedules: Vec<Shown>,
    next_page: Option<String>,
}

/// A schedule in the words of the API.
#[derive(Deserialize)]
struct Shown {
    name: String,
    generation: u64,
    at: Option<String>,
    every_ms: Option<Millis>,
    from: Option<String>,
    cron: Option<String>,
    zone: Option<String>,
    to: ToWord,
    routing_key: Option<String>,
    message: ShownMessage,
    catch_up: String,
    overlap: String,
    late_max_ms: Millis,
    created_at: String,
    changed_at: String,
    paused: bool,
    next_at: Option<String>,
    planned_at: Option<String>,
    next_times: Vec<String>,
    waits_for: Option<String>,
    problem: Option<String>,
    last: Option<ShownFiring>,
    unsettled: bool,
    counts: Counts,
}

#[derive(Deserialize)]
struct ShownMessage {
    body: String,
    body_encoding: Encoding,
    key: Option<String>,
    group: Option<String>,
    time_to_live_ms: Option<Millis>,
    #[serde(default)]
    headers: BTreeMap<String, api::Header>,
    content_type: Option<String>,
    trace_context: Option<String>,
    level: Option<String>,
    priority: u8,
}

#[derive(Deserialize)]
struct ShownFiring {
    scheduled_at: Option<String>,
    at: String,
    message_id: Option<String>,
}

impl ScheduleSpec {
    /// The default of `late_max`: a minute.
    pub const LATE_MAX_DEFAULT: Millis = 60_000;

    /// A schedule with the defaults of everything else.
    #[must_use]
    pub fn new(timing: Timing, to: ScheduleTo, message: Message) -> Self {
        Self {
            timing,
            to,
            message,
            catch_up: CatchUp::default(),
            overlap: Overlap::default(),
            late_max: Self::LATE_MAX_DEFAULT,
        }
    }
}

impl Client {
    /// Names a schedule. Whether there is one shows its first call. An access key needs the grants `manage` and `send` on the
    /// queue or exchange to make one, `manage` to change it, `send` to run it, and `read` to look at it.
    #[must_use]
    pub fn schedule(&self, name: ScheduleName) -> RemoteSchedule {
        RemoteSchedule {
            client: self.clone(),
            name,
            generation: None,
        }
    }

    /// Lists schedules whose names start with `prefix`, behind `after`, up to `limit` (1 to 1000) of them.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn list_schedules(
        &self,
        prefix: &str,
        after: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<Page, CallError> {
        let mut target = format!("/schedules?limit={limit}&prefix={}", part(prefix));
        if let Some(after) = after {
            // A page's token is the name that it begins after.
            let page = URL_SAFE_NO_PAD.encode(after.as_str());
            target.push_str(&format!("&page={page}"));
        }
        let listed: Listed = self.call(Method::GET, &target, NO_BODY).await?;
        let schedules = listed.schedules.into_iter();
        let schedules = schedules.map(|shown| described(self, shown));
        let next = listed.next_page.map(|page| {
            let name = URL_SAFE_NO_PAD.decode(page).ok();
            let name = name.and_then(|name| ScheduleName::new(&String::from_utf8(name).ok()?).ok());
            name.ok_or_else(|| self.no_lockgate("its page has no token of a page"))
        });
        Ok(Page {
            schedules: schedules.collect::<Result<_, _>>()?,
            next: next.transpose()?,
        })
    }
}

impl RemoteSchedule {
    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &ScheduleName {
        &self.name
    }

    /// The same schedule, whose changes happen only while it has that generation; 0: while there is none of its name.
    #[must_use]
    pub fn of_generation(&self, generation: u64) -> Self {
        Self {
            generation: Some(generation),
            ..self.clone()
        }
    }

    /// Makes the schedule, or changes it. If it is as asked, nothing changes; otherwise its next time stays unless its timing
    /// changes. So it may be sent again after a lost answer.
    ///
    /// # Errors
    /// As [`Client::call`]; [`CallError::Request`] for a message that JSON cannot say.
    pub async fn put(&self, spec: ScheduleSpec) -> Result<Put, CallError> {
        let body = self.in_words(spec).map_err(unfit)?;
        let target = self.target("");
        let put = self.client.call(Method::PUT, &target, Some(&body));
        let PutAnswer {
            created,
            changed,
            schedule,
        } = put.await?;
        Ok(Put {
            created,
            changed,
            schedule: described(&self.client, schedule)?,
        })
    }

    fn in_words(&self, spec: ScheduleSpec) -> Result<PutWords, Unfit> {
        let mut words = PutWords {
            message: in_words(spec.message)?,
            catch_up: spec.catch_up.name(),
            overlap: spec.overlap.name(),
            late_max_ms: spec.late_max,
            generation: self.generation,
            ..PutWords::default()
        };
        match spec.timing {
            Timing::At(at) => words.at = Some(instant(at)?),
            Timing::Every { period, from } => {
                words.every_ms = Some(period);
                words.from = from.map(instant).transpose()?;
            }
            Timing::Cron { expression, zone } => {
                words.cron = Some(expression.to_string());
                words.zone = Some(zone.to_string());
            }
        }
        words.to = Some(match spec.to {
            ScheduleTo::Queue(queue) => ToWord::Queue(queue.to_string()),
            ScheduleTo::Exchange {
                exchange,
                routing_key,
            } => {
                words.routing_key = Some(routing_key.to_string());
                ToWord::Exchange(exchange.to_string())
            }
        });
        Ok(words)
    }

    /// Returns the schedule as it is.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn describe(&self) -> Result<Description, CallError> {
        let target = self.target("");
        let shown = self.client.call(Method::GET, &target, NO_BODY);
        described(&self.client, shown.await?)
    }

    /// Fires it now, beside its times. Returns the id of the message; of an exchange, of what was published. After a lost answer it
    /// may have fired.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn run(&self) -> Result<MessageId, CallError> {
        let run = self.change::<RunAnswer>("/run", None);
        let RunAnswer { message_id } = run.await?;
        message_id
            .parse()
            .map_err(|error| self.client.no_lockgate(error))
    }

    /// Lets it not fire until it is resumed. Times that pass meanwhile are not missed.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn pause(&self) -> Result<Description, CallError> {
        described(&self.client, self.change("/pause", None).await?)
    }

    /// Lets it fire again, from its first time after now on.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn resume(&self) -> Result<Description, CallError> {
        described(&self.client, self.change("/resume", None).await?)
    }

    /// Lets it fire at that time instead of at its next one. Its series goes on behind both.
    ///
    /// # Errors
    /// As [`Client::call`]; [`CallError::Request`] for a time beyond the year 9999.
    pub async fn move_to(&self, at: WallTime) -> Result<Description, CallError> {
        let at = instant(at).map_err(unfit)?;
        described(&self.client, self.change("/move", Some(at)).await?)
    }

    /// Deletes it. Messages that it has sent stay.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn delete(&self) -> Result<(), CallError> {
        let generation = self.generation;
        let generation = generation.map(|generation| format!("?generation={generation}"));
        let target = self.target(&generation.unwrap_or_default());
        let Nothing {} = self.client.call(Method::DELETE, &target, NO_BODY).await?;
        Ok(())
    }

    fn target(&self, rest: &str) -> String {
        format!("/schedules/{}{rest}", part(self.name.as_str()))
    }

    async fn change<T: serde::de::DeserializeOwned>(
        &self,
        how: &str,
        at: Option<String>,
    ) -> Result<T, CallError> {
        let generation = self.generation;
        let body = Change { at, generation };
        let target = self.target(how);
        self.client.call(Method::POST, &target, Some(&body)).await
    }
}

fn unfit(unfit: Unfit) -> CallError {
    CallError::Request {
        what: unfit.to_string(),
    }
}

fn described(client: &Client, shown: Shown) -> Result<Description, CallError> {
    let description = description(shown);
    description.ok_or_else(|| client.no_lockgate("its schedule cannot be read"))
}

/// A schedule that came; `None` if no server says so.
fn description(shown: Shown) -> Option<Description> {
    let timing = match (shown.at, shown.every_ms, shown.cron) {
        (Some(at), None, None) => Timing::At(wall_time(&at)?),
        (None, Some(period), None) => Timing::Every {
            period,
            from: read(shown.from, wall_time)?,
        },
        (None, None, Some(cron)) => Timing::Cron {
            expression: cron.into(),
            zone: shown.zone?.into(),
        },
        _ => return None,
    };
    let to = match shown.to {
        ToWord::Queue(queue) => ScheduleTo::Queue(QueueName::new(&queue).ok()?),
        ToWord::Exchange(exchange) => ScheduleTo::Exchange {
            exchange: ExchangeName::new(&exchange).ok()?,
            routing_key: RoutingKey::new(&shown.routing_key.unwrap_or_default()).ok()?,
        },
    };
    let id = |text: &str| text.parse().ok();
    let last = match shown.last {
        None => None,
        Some(last) => Some(Firing {
            scheduled: read(last.scheduled_at, wall_time)?,
            at: wall_time(&last.at)?,
            message: read(last.message_id, id)?,
        }),
    };
    let next_times = shown.next_times.iter().map(|time| wall_time(time));
    Some(Description {
        name: ScheduleName::new(&shown.name).ok()?,
        generation: shown.generation,
        spec: ScheduleSpec {
            timing,
            to,
            message: message(shown.message)?,
            catch_up: CatchUp::named(&shown.catch_up)?,
            overlap: Overlap::named(&shown.overlap)?,
            late_max: shown.late_max_ms,
        },
        created: wall_time(&shown.created_at)?,
        changed: wall_time(&shown.changed_at)?,
        paused: shown.paused,
        next: read(shown.next_at, wall_time)?,
        planned: read(shown.planned_at, wall_time)?,
        next_times: next_times.collect::<Option<_>>()?,
        waits_for: read(shown.waits_for, id)?,
        problem: shown.problem,
        last,
        unsettled: shown.unsettled,
        counts: shown.counts,
    })
}

fn message(shown: ShownMessage) -> Option<Message> {
    let key = |text: &str| Key::new(text).ok();
    let body = shown.body_encoding.decode(&shown.body).ok()?;
    Some(Message {
        headers: headers(shown.headers)?,
        key: read(shown.key, key)?,
        group: read(shown.group, key)?,
        time_to_live: shown.time_to_live_ms,
        content_type: shown.content_type.map(Into::into),
        trace_context: shown.trace_context.map(Into::into),
        level: read(shown.level, |text| text.parse().ok())?,
        priority: shown.priority,
        ..Message::new(body)
    })
}
