//! Tags of queues.

use std::collections::BTreeMap;

use lockgate_core::QueueName;
use lockgate_machine::ChangeQueue;

use super::{Call, Service, required};
use crate::{
    auth::Verb,
    queue::{
        extension,
        tags::{self, TAGS_MAX},
    },
    sqs::{
        error::SqsError,
        shapes::{
            ListQueueTagsOutput, Nothing, QueueInput, TagQueueInput, TextMap, UntagQueueInput,
        },
    },
};

impl Service {
    /// Adds tags to a queue; an existing key gets the new value.
    pub(crate) async fn tag_queue(
        &self,
        call: &Call<'_>,
        input: TagQueueInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let name = self
            .queue(call, Verb::Manage, input.queue_url.as_ref())?
            .name
            .clone();
        let added = required(input.tags.filter(|tags| !tags.is_empty()), "Tags")?;
        self.change_tags(name, |name, tags| checked(added, tags, name))
            .await
    }

    /// Removes tags from a queue; ignores keys that the queue does not have.
    pub(crate) async fn untag_queue(
        &self,
        call: &Call<'_>,
        input: UntagQueueInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let name = self
            .queue(call, Verb::Manage, input.queue_url.as_ref())?
            .name
            .clone();
        let keys = required(input.tag_keys, "TagKeys")?;
        if keys.is_empty() {
            return Err(tags::key_length().into());
        }
        // A reserved key may be removed: older versions did not refuse them.
        for key in &keys {
            tags::check_key_length(key)?;
        }
        self.change_tags(name, |_, mut tags| {
            for key in keys {
                tags.remove(&*key);
            }
            Ok(tags)
        })
        .await
    }

    /// All tags of a queue.
    pub(crate) fn list_queue_tags(
        &self,
        call: &Call<'_>,
        input: QueueInput<'_>,
    ) -> Result<ListQueueTagsOutput, SqsError> {
        let queue = self.queue(call, Verb::Read, input.queue_url.as_ref())?;
        Ok(ListQueueTagsOutput {
            tags: queue.tags.clone(),
        })
    }

    async fn change_tags(
        &self,
        name: QueueName,
        change: impl FnOnce(
            &QueueName,
            BTreeMap<String, String>,
        ) -> Result<BTreeMap<String, String>, SqsError>,
    ) -> Result<Nothing, SqsError> {
        let _alone = self.changes.lock().await;
        let queue = self.queue_named(Some(&name))?;
        let tags = change(&name, queue.tags.clone())?;
        if tags != queue.tags {
            let mut settings = queue.settings.clone();
            extension::apply(&queue.tags, &tags, &mut settings)?;
            let changed = settings != queue.settings;
            if changed {
                extension::check(&settings)?;
            }
            let change = ChangeQueue {
                queue: name,
                settings: changed.then(|| Box::new(settings)),
                annotations: None,
                tags: Some(tags),
            };
            self.engine.submit(change).await?;
        }
        Ok(Nothing {})
    }
}

/// The tags of a queue after some are added, if they are allowed.
pub(crate) fn checked(
    added: TextMap<'_>,
    mut tags: BTreeMap<String, String>,
    queue: &QueueName,
) -> Result<BTreeMap<String, String>, SqsError> {
    for (key, value) in &added {
        tags::check_key(key)?;
        tags::check_value(value)?;
    }
    tags.extend(
        added
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string())),
    );
    if tags.len() > TAGS_MAX {
        return Err(SqsError::invalid_parameter(format!(
            "Too many tags added for queue {queue}."
        )));
    }
    Ok(tags)
}
