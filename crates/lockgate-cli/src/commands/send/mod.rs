//! `lockgate send`.

mod lines;

use std::{collections::BTreeMap, path::Path};

use lockgate_core::QueueName;
use lockgate_machine::Rejection;
use serde::Serialize;

pub use self::lines::fuzz_line;
use self::lines::{Outgoing, Pump};
use super::{Retry, block_on, client, find_queue, no_such_queue};
use crate::{
    args::Send,
    client::{
        CallError, Client, CreateQueue, GetQueueAttributes, MessageAttribute, SendEntry,
        SendMessageBatch, SendMessageBatchAnswer,
    },
    exit::{Exit, Failure},
    output::Output,
};

/// What one call of the protocol takes.
const CALL_MESSAGES_MAX: usize = 10;
const CALL_BYTES_MAX: usize = 1 << 20;

/// The longest key, group or unique id.
const ID_LEN_MAX: usize = 128;

pub(crate) fn run(args: Send) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    let defaults = Outgoing {
        place: None,
        body: String::new(),
        key: args.key.clone(),
        group: args.group.clone(),
        unique_id: None,
        delay_seconds: args.delay.map(|delay| delay.as_secs()),
        attributes: args
            .attribute
            .iter()
            .map(|(name, kind, value)| {
                let attribute = MessageAttribute {
                    data_type: kind.clone(),
                    string_value: Some(value.clone()),
                    binary_value: None,
                };
                (name.clone(), attribute)
            })
            .collect(),
    };
    block_on(async {
        let mut sender = Sender::new(client, &args).await?;
        match args.body {
            Some(body) => {
                let message = Outgoing {
                    body,
                    unique_id: args.unique_id,
                    ..defaults
                };
                let message = sender.checked(message)?;
                sender.send(vec![message]).await?;
            }
            None => {
                let source = args.file.as_deref().unwrap_or(Path::new("-"));
                let mut pump = Pump::start(source, defaults)?;
                sender.drain(&mut pump).await?;
            }
        }
        sender.finish()
    })
}

/// A message that was sent, as `--json` prints it.
#[derive(Serialize)]
struct Sent<'a> {
    id: &'a str,
    sequence: Option<&'a str>,
    duplicate: bool,
}

/// Why no queue takes the message.
fn refused(message: &Outgoing) -> Option<Failure> {
    if message.body.is_empty() {
        let what = "the message is empty; it needs at least one byte";
        return Some(Failure::failed(what));
    }
    let ids = [
        ("key", &message.key),
        ("group", &message.group),
        ("unique id", &message.unique_id),
    ];
    ids.into_iter().find_map(|(what, id)| {
        let id = id.as_ref()?;
        let fits = (1..=ID_LEN_MAX).contains(&id.len());
        if fits && id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        Some(Failure::failed(format!(
            "{id:?} cannot be a {what}: it takes 1 to {ID_LEN_MAX} ASCII letters, digits and punctuation \
             marks, and no spaces"
        )))
    })
}

struct Sender {
    client: Client,
    name: String,
    queue: QueueName,
    url: String,
    /// Whether the queue keeps an order by key.
    keyed: bool,
    dedup: Dedup,
    json: bool,
    output: Output,
    sent: u64,
    duplicates: u64,
}

/// A call that was given up on.
struct Unanswered {
    /// Why, the last time.
    error: CallError,
    /// Whether no attempt can have had an effect.
    nothing_done: bool,
}

/// How the queue recognises a repeated message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dedup {
    /// It does not.
    None,
    /// By the message's unique id, which is made up where there is none.
    UniqueId,
    /// By the message's unique id, or else by its body.
    Content,
}

impl Sender {
    async fn new(mut client: Client, args: &Send) -> Result<Self, Failure> {
        let name = args.queue.clone();
        let url = match find_queue(&mut client, &name).await? {
            Some(url) => url,
            None if args.create => create(&mut client, &name).await?,
            None => {
                return Err(no_such_queue(&mut client, &name).await.hint(format!(
                    "make it with `lockgate queue create {name}`, or say --create"
                )));
            }
        };
        let truth = ["FifoQueue", "ContentBasedDeduplication"];
        let call = GetQueueAttributes {
            queue_url: url.clone(),
            attribute_names: truth.map(str::to_owned).to_vec(),
        };
        let attributes = client.call(&call).await?.attributes;
        let [keyed, by_content] =
            truth.map(|name| attributes.get(name).is_some_and(|v| v == "true"));
        let dedup = match (keyed, by_content) {
            (false, _) => Dedup::None,
            (true, false) => Dedup::UniqueId,
            (true, true) => Dedup::Content,
        };
        let queue = QueueName::new(&name).map_err(Failure::usage)?;
        Ok(Self {
            client,
            name,
            queue,
            url,
            keyed,
            dedup,
            json: args.json,
            output: Output::new(),
            sent: 0,
            duplicates: 0,
        })
    }

    /// Sends everything that comes, in order, until the end or the first thing that is wrong.
    async fn drain(&mut self, pump: &mut Pump) -> Result<(), Failure> {
        let mut batch: Vec<Outgoing> = Vec::new();
        let mut bytes = 0;
        // Take what is there, up to a full call, but never wait for a call to become full: a
        // message that somebody types is sent at once.
        while let Some(item) = pump.next().await {
            let mut item = Some(item);
            while let Some(next) = item.take() {
                let message = match next.and_then(|message| self.checked(message)) {
                    Ok(message) => message,
                    Err(failure) => {
                        self.send(batch).await?;
                        return Err(self.stopped(failure));
                    }
                };
                let size = message.size();
                let full = batch.len() == CALL_MESSAGES_MAX || bytes + size > CALL_BYTES_MAX;
                if full && !batch.is_empty() {
                    self.send(std::mem::take(&mut batch)).await?;
                    bytes = 0;
                }
                bytes += size;
                batch.push(message);
                item = pump.ready();
            }
            self.send(std::mem::take(&mut batch)).await?;
            bytes = 0;
        }
        Ok(())
    }

    /// The message, if the queue can take it. Asked here, because the server would refuse the whole
    /// call for one such message, in the words of SQS, which has one name for a key and a group.
    fn checked(&self, message: Outgoing) -> Result<Outgoing, Failure> {
        match refused(&message).or_else(|| self.misplaced(&message)) {
            None => Ok(message),
            Some(failure) => Err(match message.place {
                Some(place) => failure.context(place),
                None => failure,
            }),
        }
    }

    /// Why a message with this key or group is not for the queue.
    fn misplaced(&self, message: &Outgoing) -> Option<Failure> {
        let queue = self.queue.clone();
        Some(match (self.keyed, &message.key, &message.group) {
            (true, Some(_), None) | (false, None, _) => return None,
            (true, None, None) => {
                Failure::failed(format!("a message for {} needs a key", self.name)).hint(
                    "give all one key with --key, or each its own: {\"key\": ..., \"body\": ...}",
                )
            }
            (true, _, Some(_)) => Failure::failed(Rejection::GroupNotTaken { queue }),
            (false, Some(_), _) => Failure::failed(Rejection::KeyNotTaken { queue })
                .hint("a group is given with --group; a queue is keyed if its name ends in .fifo"),
        })
    }

    /// Sends up to one call's messages and prints what became of them.
    async fn send(&mut self, messages: Vec<Outgoing>) -> Result<(), Failure> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut places = Vec::with_capacity(messages.len());
        let mut entries = Vec::with_capacity(messages.len());
        for (index, message) in messages.into_iter().enumerate() {
            places.push(message.place.clone());
            entries.push(self.entry(index, message)?);
        }
        let call = SendMessageBatch {
            queue_url: self.url.clone(),
            entries,
        };
        let answer = match self.call(&call).await {
            Ok(answer) => answer,
            Err(Unanswered {
                error,
                nothing_done,
            }) => {
                let first = places.first().and_then(Option::as_deref);
                let last = places.last().and_then(Option::as_deref);
                let mut failure = Failure::from(error);
                if let (Some(first), Some(last)) = (first, last) {
                    failure = failure.context(match first == last {
                        true => first.to_owned(),
                        false => format!("{first} to {last}"),
                    });
                }
                if !nothing_done {
                    failure = failure.hint(format!(
                        "whether these {} messages arrived is unknown; {} before them were sent",
                        places.len(),
                        self.sent
                    ));
                    return Err(failure);
                }
                return Err(self.stopped(failure));
            }
        };
        self.report(&answer, &places)
    }

    /// One call, tried again while that can neither lose nor double a message.
    async fn call(
        &mut self,
        call: &SendMessageBatch,
    ) -> Result<SendMessageBatchAnswer, Unanswered> {
        let mut retry = Retry::new(self.client.timeout());
        let mut nothing_done = true;
        loop {
            let error = match self.client.call(call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // Also if this attempt did nothing: one before it may have.
            nothing_done &= error.nothing_done();
            let harmless = nothing_done || self.dedup != Dedup::None;
            if !(error.may_pass() && harmless && retry.again().await) {
                return Err(Unanswered {
                    error,
                    nothing_done,
                });
            }
        }
    }

    fn entry(&self, index: usize, message: Outgoing) -> Result<SendEntry, Failure> {
        let unique_id = match (message.unique_id, self.dedup) {
            (None, Dedup::UniqueId) => Some(random_id()?),
            (given, _) => given,
        };
        Ok(SendEntry {
            id: index.to_string(),
            message_body: message.body,
            delay_seconds: message.delay_seconds,
            message_attributes: message.attributes,
            message_deduplication_id: unique_id,
            message_group_id: message.key.or(message.group),
        })
    }

    fn report(
        &mut self,
        answer: &SendMessageBatchAnswer,
        places: &[Option<String>],
    ) -> Result<(), Failure> {
        let mut sent: BTreeMap<usize, _> = BTreeMap::new();
        for entry in &answer.successful {
            sent.insert(index_of(&entry.id, places)?, entry);
        }
        let mut refused: BTreeMap<usize, _> = BTreeMap::new();
        for entry in &answer.failed {
            refused.insert(index_of(&entry.id, places)?, entry);
        }
        if sent.len() + refused.len() != places.len() {
            return Err(Failure::failed(format!(
                "the server answered for {} of {} messages",
                sent.len() + refused.len(),
                places.len()
            )));
        }
        self.sent += sent.len() as u64;
        for entry in sent.values() {
            self.duplicates += u64::from(entry.duplicate);
            if self.json {
                self.output.json(&Sent {
                    id: &entry.message_id,
                    sequence: entry.sequence_number.as_deref(),
                    duplicate: entry.duplicate,
                })?;
            }
        }
        if self.json {
            self.output.flush()?;
        }
        let Some((index, first)) = refused.first_key_value() else {
            return Ok(());
        };
        let exit = crate::client::exit_of(hyper::StatusCode::BAD_REQUEST, &first.code);
        let name = &self.name;
        // SQS's own limit, which a tag of the queue lifts.
        let what = match first.message.starts_with("DelaySeconds") {
            true => format!(
                "the delay is longer than {name} takes: 15m, or what its tag lockgate:delay-max says, as after \
                 `lockgate queue set {name} --tag lockgate:delay-max=30d`: "
            ),
            false => String::new(),
        };
        let (message, code) = (&first.message, &first.code);
        let mut failure = Failure::new(exit, format!("{what}{message} ({code})"));
        if let Some(place) = &places[*index] {
            failure = failure.context(place.clone());
        }
        if refused.len() > 1 {
            let others: Vec<_> = refused
                .keys()
                .skip(1)
                .filter_map(|index| places[*index].as_deref())
                .collect();
            failure = failure.hint(format!("also refused: {}", others.join(", ")));
            return Err(failure);
        }
        Err(self.stopped(failure))
    }

    fn finish(mut self) -> Result<(), Failure> {
        if !self.json {
            let duplicates = match self.duplicates {
                0 => String::new(),
                duplicates => format!(" ({duplicates} already there)"),
            };
            let messages = if self.sent == 1 {
                "message"
            } else {
                "messages"
            };
            self.output.line(&format!(
                "sent {} {messages} to {}{duplicates}",
                self.sent, self.name
            ))?;
        }
        self.output.flush()
    }

    /// Adds how far the sending came, for whoever wants to go on from there.
    fn stopped(&self, failure: Failure) -> Failure {
        match self.sent {
            0 => failure.or_hint("nothing was sent"),
            1 => failure.or_hint("1 message was sent, nothing after it"),
            sent => failure.or_hint(format!("{sent} messages were sent, nothing after them")),
        }
    }
}

/// Makes a queue, which is keyed if its name says so; its URL.
pub(super) async fn create(client: &mut Client, name: &str) -> Result<String, CallError> {
    let mut attributes = BTreeMap::new();
    if name.ends_with(".fifo") {
        attributes.insert("FifoQueue".to_owned(), "true".to_owned());
    }
    let call = CreateQueue {
        queue_name: name.to_owned(),
        attributes,
        tags: BTreeMap::new(),
    };
    Ok(client.call(&call).await?.queue_url)
}

fn index_of(id: &str, places: &[Option<String>]) -> Result<usize, Failure> {
    id.parse()
        .ok()
        .filter(|index| *index < places.len())
        .ok_or_else(|| Failure::failed(format!("the server answered for an unknown entry {id:?}")))
}

/// 128 random bits: nobody else's message has the same.
pub(super) fn random_id() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Exit::Failed, format!("drawing random bytes: {error}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
