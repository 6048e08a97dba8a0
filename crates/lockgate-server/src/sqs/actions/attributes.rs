//! Reads and changes a queue's attributes.

use std::collections::BTreeMap;

use lockgate_core::WallTime;
use lockgate_machine::{ChangeQueue, DescribeQueue};

use super::{Call, Service, queues::Reachable, required};
use crate::{
    auth::Verb,
    sqs::{
        error::SqsError,
        names,
        queue_attributes::{self, Attribute, Form},
        shapes::{
            GetQueueAttributesInput, GetQueueAttributesOutput, Nothing, SetQueueAttributesInput,
        },
    },
};

impl Service {
    /// The attributes asked for by name. Counts are exact.
    pub(crate) async fn get_queue_attributes(
        &self,
        call: &Call<'_>,
        input: GetQueueAttributesInput<'_>,
    ) -> Result<GetQueueAttributesOutput, SqsError> {
        let queue = self.queue(call, Verb::Read, input.queue_url.as_ref())?;
        let names = input.attribute_names.unwrap_or_default();
        let wanted = queue_attributes::wanted(names.iter().map(|name| &**name))?;
        // Only counts need the engine; then its one answer provides everything.
        let counts = if wanted.iter().any(|attribute| attribute.is_count()) {
            let query = DescribeQueue {
                queue: queue.name.clone(),
            };
            Some(self.engine.query(query).await?.counts)
        } else {
            None
        };
        let form = Form::of(&queue.settings, &queue.annotations);
        let seconds = |time: WallTime| (time.0 / 1000).to_string().into();
        let attributes: BTreeMap<_, _> = wanted
            .into_iter()
            .filter_map(|attribute| {
                let value = match attribute {
                    Attribute::QueueArn => Some(names::queue_arn(&self.config, &queue.name).into()),
                    Attribute::CreatedTimestamp => Some(seconds(queue.created)),
                    Attribute::LastModifiedTimestamp => Some(seconds(queue.changed)),
                    _ if attribute.is_count() => counts
                        .as_ref()
                        .and_then(|counts| queue_attributes::count(attribute, counts))
                        .map(|count| count.to_string().into()),
                    _ => form.value(attribute, &self.config),
                };
                Some((attribute.name(), value?))
            })
            .collect();
        Ok(GetQueueAttributesOutput { attributes })
    }

    pub(crate) async fn set_queue_attributes(
        &self,
        call: &Call<'_>,
        input: SetQueueAttributesInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let name = self
            .queue(call, Verb::Manage, input.queue_url.as_ref())?
            .name
            .clone();
        let given = required(
            input.attributes.filter(|given| !given.is_empty()),
            "Attribute.Name",
        )?;
        let _alone = self.changes.lock().await;
        let queue = self.queue_named(Some(&name))?;
        let before = Form::of(&queue.settings, &queue.annotations).tagged(&queue.tags);
        let mut form = before.clone();
        let targets = Reachable {
            service: self,
            call,
        };
        form.apply(&given, &name, &self.config, &targets)?;
        if form == before {
            return Ok(Nothing {});
        }
        let change = ChangeQueue {
            queue: name,
            settings: Some(Box::new(form.settings)),
            annotations: Some(form.annotations),
            tags: None,
        };
        self.engine.submit(change).await?;
        Ok(Nothing {})
    }
}
