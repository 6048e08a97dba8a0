//! Operations on queues: list, create, change, purge, delete, pause.

use std::collections::BTreeMap;

use lockgate_core::{Millis, QueueName};
use lockgate_machine::{
    self as machine, CreatedQueue, DeleteQueue, DescribeQueue, Pause, Purge, QueueDescription,
    QueuePage, QueueSettings,
};

use super::{page_after, page_limit, page_start_queue};
use crate::{
    answer::json_len,
    api::{
        Code, Problem, Request, Service,
        shapes::{ChangeQueue, CreateQueue, Instant, ListQueues, Purged, Queue, Queues, Sending},
    },
    auth::Verb,
    queue::{allow_policy::lets_in, extension, kind, tags},
};

/// How many queues a page grows by at a time.
const PAGE_STEP: usize = 100;
/// A page does not grow further once its queues' tags have so many bytes as written.
const TAGS_BYTES_MAX: usize = 4 << 20;

/// The bytes of a queue's tags as written.
fn tags_len(queue: &QueueDescription) -> usize {
    let texts = queue.tags.iter().flat_map(|(tag, value)| [tag, value]);
    texts.map(|text| json_len(text.as_bytes())).sum()
}

impl Service {
    pub(in crate::api) async fn list_queues(
        &self,
        request: &Request<'_>,
        input: ListQueues,
    ) -> Result<Queues, Problem> {
        let limit = page_limit(input.limit);
        let mut after = input.page.as_deref().map(page_start_queue).transpose()?;
        let prefix = input.prefix.unwrap_or_default();
        let mut queues: Vec<Queue> = Vec::new();
        let mut bytes = 0;
        // Pages are filled although the caller may not see some queues; in steps, because the tags
        // of one queue may take a hundred kilobytes.
        loop {
            let asked = machine::ListQueues {
                prefix: prefix.clone(),
                after: after.clone(),
                limit: (limit - queues.len()).min(PAGE_STEP),
            };
            let QueuePage { queues: page, next } = self.engine.query(asked).await?;
            after = next;
            bytes += page.iter().map(tags_len).sum::<usize>();
            queues.extend(
                page.into_iter()
                    .filter(|queue| request.may(Verb::Read, &queue.name))
                    .map(|queue| self.view(queue)),
            );
            if after.is_none() || queues.len() == limit || bytes >= TAGS_BYTES_MAX {
                return Ok(Queues {
                    queues,
                    next_page: after.map(|last| page_after(last.as_str())),
                });
            }
        }
    }

    /// The queue, and whether it existed before.
    pub(in crate::api) async fn create_queue(
        &self,
        request: &Request<'_>,
        input: CreateQueue,
    ) -> Result<(Queue, bool), Problem> {
        let (name, keyed) = kind::check_name(&input.name).map_err(|_| {
            let given = &input.name;
            Problem::invalid(
                "name",
                format_args!(
                    "{given:?} is not 1 to 80 letters, digits, '-' and '_', which for a keyed queue end in .fifo"
                ),
            )
        })?;
        request.check(Verb::Manage, &name)?;
        let tags = input
            .tags
            .all()
            .map_err(|error| Problem::invalid("tags", error))?;
        tags::check(&tags).map_err(|error| Problem::invalid("tags", error.message))?;
        let mut settings = QueueSettings::over_http(keyed);
        // A setting by name wins over a tag.
        extension::apply(&BTreeMap::new(), &tags, &mut settings)
            .map_err(|error| Problem::invalid("tags", error.message))?;
        input.settings.apply(&mut settings)?;
        self.check_dead_letter(request, &name, &settings)?;
        let create = machine::CreateQueue {
            name,
            settings: settings.clone(),
            annotations: BTreeMap::new(),
            tags,
        };
        let CreatedQueue {
            existed,
            description,
        } = self.engine.submit(create).await?;
        if existed && !description.settings.is_what_asks(&settings) {
            return Err(Problem::new(
                Code::QueueExists,
                format!("queue {} exists with other settings", description.name),
            ));
        }
        Ok((self.view(*description), existed))
    }

    pub(in crate::api) async fn get_queue(
        &self,
        request: &Request<'_>,
        name: &str,
    ) -> Result<Queue, Problem> {
        let entry = self.queue(request, Verb::Read, name)?;
        Ok(self.view(self.describe(&entry.name).await?))
    }

    pub(in crate::api) fn get_sending(
        &self,
        request: &Request<'_>,
        name: &str,
    ) -> Result<Sending, Problem> {
        let entry = self.queue(request, Verb::Send, name)?;
        Ok(Sending {
            keyed: entry.settings.keyed,
            dedup_content: entry.settings.dedup_content,
            dedup_window_ms: entry.settings.dedup_window,
            message_bytes_max: entry.settings.message_bytes_max,
        })
    }

    pub(in crate::api) async fn change_queue(
        &self,
        request: &Request<'_>,
        name: &str,
        input: ChangeQueue,
    ) -> Result<Queue, Problem> {
        let entry = self.queue(request, Verb::Manage, name)?;
        let _changing = self.changes.lock().await;
        let before = self.describe(&entry.name).await?;
        let mut settings = before.settings.clone();
        let mut tags = before.tags.clone();
        let changed = input
            .tags
            .all()
            .map_err(|error| Problem::invalid("tags", error))?;
        for (tag, value) in changed {
            match value {
                Some(value) => tags.insert(tag, value),
                None => tags.remove(&tag),
            };
        }
        tags::check(&tags)
            .and_then(|()| extension::apply(&before.tags, &tags, &mut settings))
            .map_err(|error| Problem::invalid("tags", error.message))?;
        input.settings.apply(&mut settings)?;
        if settings.dead_letter != before.settings.dead_letter {
            self.check_dead_letter(request, &entry.name, &settings)?;
        }
        self.engine
            .submit(machine::ChangeQueue {
                queue: entry.name.clone(),
                settings: Some(Box::new(settings)),
                annotations: None,
                tags: Some(tags),
            })
            .await?;
        Ok(self.view(self.describe(&entry.name).await?))
    }

    pub(in crate::api) async fn delete_queue(
        &self,
        request: &Request<'_>,
        name: &str,
    ) -> Result<(), Problem> {
        let queue = self.queue(request, Verb::Purge, name)?.name.clone();
        self.engine.submit(DeleteQueue { queue }).await?;
        Ok(())
    }

    pub(in crate::api) async fn purge_queue(
        &self,
        request: &Request<'_>,
        name: &str,
    ) -> Result<Purged, Problem> {
        let queue = self.queue(request, Verb::Purge, name)?.name.clone();
        let messages = self.engine.submit(Purge { queue }).await?;
        Ok(Purged { messages })
    }

    pub(in crate::api) async fn pause_queue(
        &self,
        request: &Request<'_>,
        name: &str,
        paused: bool,
    ) -> Result<Queue, Problem> {
        let queue = self.queue(request, Verb::Manage, name)?.name.clone();
        self.engine
            .submit(Pause {
                queue: queue.clone(),
                paused,
            })
            .await?;
        Ok(self.view(self.describe(&queue).await?))
    }

    /// The queue as the API returns it.
    fn view(&self, description: QueueDescription) -> Queue {
        let from = description.settings.dedup_scope_from;
        let missing = self.is_dead_letter_missing(&description.settings);
        let held = description.held;
        let mut queue = Queue::from(description);
        queue.held_until = held.map(|held| Instant(self.engine.now().wall.plus(held)));
        queue.dead_letter_missing = missing;
        queue.settings.dedup_scope_pending_ms = from
            .map(|from| self.engine.remaining(from).as_millis())
            .filter(|&left| left > 0)
            .map(|left| Millis::try_from(left).unwrap_or(Millis::MAX));
        queue
    }

    /// Whether these settings name a dead-letter queue that is not there, or is keyed otherwise.
    pub(super) fn is_dead_letter_missing(&self, settings: &QueueSettings) -> bool {
        settings.dead_letter.as_ref().is_some_and(|to| {
            let to = self.engine.directory().get(to);
            to.is_none_or(|to| to.settings.keyed != settings.keyed)
        })
    }

    pub(super) async fn describe(&self, queue: &QueueName) -> Result<QueueDescription, Problem> {
        let query = DescribeQueue {
            queue: queue.clone(),
        };
        Ok(self.engine.query(query).await?)
    }

    /// Naming a dead-letter queue sends messages to it, so the caller must be allowed to send
    /// there, and that queue's policy may refuse the source.
    fn check_dead_letter(
        &self,
        request: &Request<'_>,
        source: &QueueName,
        settings: &QueueSettings,
    ) -> Result<(), Problem> {
        let lets_in = |target: &QueueName| {
            let target = self.engine.directory().get(target);
            target.is_none_or(|target| lets_in(&target.annotations, source))
        };
        match &settings.dead_letter {
            Some(queue) if !request.may(Verb::Send, queue) => {
                let queue = queue.clone();
                Err(lockgate_machine::SettingsError::DeadLetterMissing { queue }.into())
            }
            Some(queue) if !lets_in(queue) => Err(Problem::invalid(
                "settings.dead_letter",
                format_args!("the redrive allow policy of {queue} does not include {source}"),
            )),
            _ => Ok(()),
        }
    }
}
