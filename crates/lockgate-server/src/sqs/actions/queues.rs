//! Creates, finds, empties and deletes queues.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use lockgate_core::{MachineTime, Millis, QueueId, QueueName};
use lockgate_machine::{CreateQueue, CreatedQueue, DeleteQueue, Purge};

use super::{Call, Service, in_range_unnamed, tags};
use crate::{
    auth::Verb,
    queue::{
        extension,
        kind::{Kind, kind_of, queue_name},
    },
    sqs::{
        error::{ErrorCode, SqsError},
        names,
        queue_attributes::{Attribute, Form, Targets},
        shapes::{
            CreateQueueInput, GetQueueUrlInput, ListDeadLetterSourceQueuesInput,
            ListDeadLetterSourceQueuesOutput, ListQueuesInput, ListQueuesOutput, Nothing,
            QueueInput, QueueUrlOutput, TextMap,
        },
        text::Text,
    },
};

/// How many queues a page lists at most.
const PAGE_MAX: u64 = 1_000;

impl Service {
    /// Creates a queue. Does nothing if it exists with the same attributes.
    pub(crate) async fn create_queue(
        &self,
        call: &Call<'_>,
        input: CreateQueueInput<'_>,
    ) -> Result<QueueUrlOutput, SqsError> {
        let name = given_name(input.queue_name)?;
        let attributes = input.attributes.unwrap_or_default();
        let fifo = attributes
            .get(&Attribute::FifoQueue.name().into())
            .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let kind = if fifo { Kind::Fifo } else { Kind::Standard };
        let name = queue_name(&name, kind)?;
        call.check_openly(Verb::Manage, &name)?;
        let tags = tags::checked(input.tags.unwrap_or_default(), BTreeMap::new(), &name)?;
        let mut wanted = Form::new(kind);
        let targets = Reachable {
            service: self,
            call,
        };
        wanted.apply_tags(&BTreeMap::new(), &tags)?;
        wanted.apply(&attributes, &name, &self.config, &targets)?;
        extension::check(&wanted.settings)?;
        let url = QueueUrlOutput {
            queue_url: names::queue_url(&self.config, call.host, &name),
        };
        // Many programs declare their queues at each start. This answers them without the engine.
        if let Some(existing) = self.engine.directory().get(&name) {
            let existing = Form::of(&existing.settings, &existing.annotations);
            self.check_same(&existing, &wanted, &attributes)?;
            return Ok(url);
        }
        let create = CreateQueue {
            name,
            settings: wanted.settings.clone(),
            annotations: wanted.annotations.clone(),
            tags,
        };
        if let CreatedQueue {
            existed: true,
            description,
        } = self.engine.submit(create).await?
        {
            let existing = Form::of(&description.settings, &description.annotations);
            self.check_same(&existing, &wanted, &attributes)?;
        }
        Ok(url)
    }

    fn check_same(
        &self,
        existing: &Form,
        wanted: &Form,
        given: &TextMap<'_>,
    ) -> Result<(), SqsError> {
        match existing.first_difference(wanted, given, &self.config) {
            None => Ok(()),
            Some(attribute) => Err(SqsError::new(
                ErrorCode::QueueNameExists,
                format!(
                    "A queue already exists with the same name and a different value for \
                     attribute {}",
                    attribute.name()
                ),
            )),
        }
    }

    /// Deletes a queue and all its messages. A queue of the same name can be created at once: AWS
    /// demands a wait of 60 seconds, which protects its caches, and Lockgate has none.
    pub(crate) async fn delete_queue(
        &self,
        call: &Call<'_>,
        input: QueueInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let queue = self
            .queue(call, Verb::Purge, input.queue_url.as_ref())?
            .name
            .clone();
        self.engine.submit(DeleteQueue { queue }).await?;
        Ok(Nothing {})
    }

    /// Removes all messages of a queue, at most once in 60 seconds.
    pub(crate) async fn purge_queue(
        &self,
        call: &Call<'_>,
        input: QueueInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let queue = self.queue(call, Verb::Purge, input.queue_url.as_ref())?;
        let now = self.engine.now().machine;
        if !self.purges.begin(queue.id, now) {
            return Err(SqsError::new(
                ErrorCode::PurgeQueueInProgress,
                format!(
                    "Only one PurgeQueue operation on {} is allowed every 60 seconds.",
                    queue.name
                ),
            ));
        }
        let purge = Purge {
            queue: queue.name.clone(),
        };
        if let Err(error) = self.engine.submit(purge).await {
            self.purges.undo(queue.id, now);
            return Err(error.into());
        }
        Ok(Nothing {})
    }

    /// The URL of a queue.
    pub(crate) fn get_queue_url(
        &self,
        call: &Call<'_>,
        input: GetQueueUrlInput<'_>,
    ) -> Result<QueueUrlOutput, SqsError> {
        let name = given_name(input.queue_name)?;
        let ours = input
            .queue_owner
            .is_none_or(|owner| *owner == *self.config.account);
        let name = QueueName::new(&name).ok().filter(|_| ours);
        let entry = self.queue_named(name.as_ref())?;
        call.check(Verb::Read, &entry.name)?;
        Ok(QueueUrlOutput {
            queue_url: names::queue_url(&self.config, call.host, &entry.name),
        })
    }

    /// The URLs of all queues, or of those whose names start with a prefix.
    pub(crate) fn list_queues(
        &self,
        call: &Call<'_>,
        input: ListQueuesInput<'_>,
    ) -> Result<ListQueuesOutput, SqsError> {
        let page = Page::new(input.max_results, input.next_token.as_ref())?;
        let prefix = input.queue_name_prefix.as_deref().unwrap_or("");
        let all = self.engine.directory().all();
        let matching = all
            .iter()
            .map(|entry| &entry.name)
            .filter(|name| name.as_str().starts_with(prefix) && call.may(Verb::Read, name));
        let (names, next_token) = page.cut(matching);
        Ok(ListQueuesOutput {
            queue_urls: self.urls(call, &names),
            next_token,
        })
    }

    /// The URLs of the queues whose dead-letter queue this is.
    pub(crate) fn list_dead_letter_source_queues(
        &self,
        call: &Call<'_>,
        input: ListDeadLetterSourceQueuesInput<'_>,
    ) -> Result<ListDeadLetterSourceQueuesOutput, SqsError> {
        let target = self.queue(call, Verb::Read, input.queue_url.as_ref())?;
        let page = Page::new(input.max_results, input.next_token.as_ref())?;
        let sources = self.engine.directory().dead_letter_sources(&target.name);
        let names = sources.iter().map(|entry| &entry.name);
        let (names, next_token) = page.cut(names.filter(|name| call.may(Verb::Read, name)));
        Ok(ListDeadLetterSourceQueuesOutput {
            queue_urls: self.urls(call, &names),
            next_token,
        })
    }

    fn urls(&self, call: &Call<'_>, names: &[&QueueName]) -> Vec<String> {
        names
            .iter()
            .map(|name| names::queue_url(&self.config, call.host, name))
            .collect()
    }
}

/// The queues that a caller may name as dead-letter queue: dead letters are messages sent there.
pub(super) struct Reachable<'a> {
    pub(super) service: &'a Service,
    pub(super) call: &'a Call<'a>,
}

impl Targets for Reachable<'_> {
    fn target(&self, name: &QueueName) -> Option<(Kind, BTreeMap<String, String>)> {
        let entry = self.service.engine.directory().get(name)?;
        self.call
            .may(Verb::Send, name)
            .then(|| (kind_of(&entry.settings), entry.annotations.clone()))
    }
}

/// Which part of a list is wanted. Lists are in order of names, so the next page starts after the
/// last name of a page, whatever queues are created or deleted in between.
#[derive(Debug)]
struct Page {
    /// The page has only names after this one.
    after: Option<QueueName>,
    limit: usize,
    /// Whether the answer has a token if there is more. AWS gives a token only if the request has a
    /// number of results.
    gives_token: bool,
}

impl Page {
    fn new(max_results: Option<i64>, token: Option<&Text<'_>>) -> Result<Self, SqsError> {
        let limit = in_range_unnamed(
            max_results,
            1,
            PAGE_MAX,
            "MaxResults",
            "MaxResults must be an integer between 1 and 1000.",
        )?;
        let after = token
            .map(|token| {
                let name = URL_SAFE_NO_PAD.decode(token.as_bytes()).ok()?;
                QueueName::new(std::str::from_utf8(&name).ok()?).ok()
            })
            .map(|name| {
                name.ok_or_else(|| SqsError::invalid_parameter("Invalid or expired next token."))
            })
            .transpose()?;
        Ok(Self {
            gives_token: limit.is_some() || after.is_some(),
            limit: usize::try_from(limit.unwrap_or(PAGE_MAX)).unwrap_or(usize::MAX),
            after,
        })
    }

    /// The page of a sorted list, and the token for the next one.
    fn cut<'a>(
        &self,
        names: impl Iterator<Item = &'a QueueName>,
    ) -> (Vec<&'a QueueName>, Option<String>) {
        let mut rest = names
            .filter(|&name| self.after.as_ref().is_none_or(|after| name > after))
            .peekable();
        let page: Vec<_> = rest.by_ref().take(self.limit).collect();
        let token = match page.last() {
            Some(last) if self.gives_token && rest.peek().is_some() => {
                Some(URL_SAFE_NO_PAD.encode(last.as_str()))
            }
            _ => None,
        };
        (page, token)
    }
}

/// When each queue was last purged, as long as it matters. A restart forgets it; to AWS's clients
/// that looks like a minute that has passed.
#[derive(Debug, Default)]
pub(super) struct Purges(Mutex<HashMap<QueueId, MachineTime>>);

impl Purges {
    /// AWS's minimum interval between two purges.
    const INTERVAL: Millis = 60_000;

    /// Whether a purge may begin now; if so, records it.
    fn begin(&self, queue: QueueId, now: MachineTime) -> bool {
        let mut purges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        purges.retain(|_, &mut began| now.since(began) < Self::INTERVAL);
        if purges.contains_key(&queue) {
            return false;
        }
        purges.insert(queue, now);
        true
    }

    /// Forgets the purge recorded at `began`, which failed.
    fn undo(&self, queue: QueueId, began: MachineTime) {
        let mut purges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if purges.get(&queue) == Some(&began) {
            purges.remove(&queue);
        }
    }
}

/// The queue's name in the request.
fn given_name(name: Option<Text<'_>>) -> Result<Text<'_>, SqsError> {
    name.ok_or_else(|| {
        SqsError::invalid_parameter(
            "Value for parameter QueueName is invalid. Reason: Must specify a queue name.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_purged_once_a_minute_and_a_failed_purge_does_not_count() {
        let purges = Purges::default();
        let at = MachineTime;
        assert!(purges.begin(QueueId(1), at(1_000)));
        assert!(!purges.begin(QueueId(1), at(60_999)));
        assert!(purges.begin(QueueId(2), at(60_999)));
        assert!(purges.begin(QueueId(1), at(61_000)));
        purges.undo(QueueId(1), at(61_000));
        assert!(purges.begin(QueueId(1), at(61_001)));
        assert_eq!(purges.0.lock().unwrap().len(), 2, "old ones are forgotten");
    }

    #[test]
    fn pages_join_to_the_whole_list() {
        let names: Vec<_> = ["a", "b", "c", "d", "e"]
            .map(|name| QueueName::new(name).unwrap())
            .into();
        let mut token: Option<String> = None;
        let mut seen = String::new();
        loop {
            let text = token.as_deref().map(Text::from);
            let page = Page::new(Some(2), text.as_ref()).unwrap();
            let (page, next) = page.cut(names.iter());
            seen.extend(page.iter().map(|name| name.as_str()));
            seen.push('|');
            token = next;
            if token.is_none() {
                break;
            }
        }
        assert_eq!(seen, "ab|cd|e|");
        let whole = Page::new(None, None).unwrap();
        assert_eq!(whole.cut(names.iter()).0.len(), 5);
        for max in [0, -1, 1001, i64::MIN] {
            assert!(Page::new(Some(max), None).is_err(), "{max}");
        }
        for token in ["", "%", "AAAA", "////"] {
            assert!(Page::new(None, Some(&token.into())).is_err(), "{token}");
        }
    }
}
