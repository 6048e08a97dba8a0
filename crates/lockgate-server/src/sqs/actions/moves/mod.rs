//! Message move tasks: move dead letters back to the queues they came from, or to a given queue.
//!
//! A task is a loop of small commands. Each command moves a bounded number of messages in one
//! record, so every message is in exactly one queue and nobody waits for a long task. The task and
//! its result are kept with the source queue: a task that a stop of the server interrupted
//! continues after the next start.
//! after the next start.

mod pace;
mod runner;
mod task;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lockgate_core::QueueName;
use lockgate_engine::QueueEntry;
use lockgate_machine::DescribeQueue;
use serde_json::{Value, json};

pub(super) use self::runner::Mover;
use self::{
    runner::Start,
    task::{Status, Task},
};
use super::{Call, Service, in_range_unnamed, required};
use crate::{
    auth::Verb,
    queue::allow_policy::arn_parts,
    sqs::{
        error::{ErrorCode, SqsError},
        names,
        shapes::{
            CancelMessageMoveTaskInput, CancelMessageMoveTaskOutput, ListMessageMoveTasksInput,
            ListMessageMoveTasksOutput, MoveTaskEntry, StartMessageMoveTaskInput,
            StartMessageMoveTaskOutput,
        },
        text::Text,
    },
};

/// How many tasks of a queue are kept, and listed at most.
const TASKS_MAX: usize = 10;
const RATE_MAX: u64 = 500;

impl Service {
    /// Starts a task that moves the messages of a dead-letter queue.
    pub(crate) async fn start_message_move_task(
        &self,
        call: &Call<'_>,
        input: StartMessageMoveTaskInput<'_>,
    ) -> Result<StartMessageMoveTaskOutput, SqsError> {
        let source_arn = required(input.source_arn, "SourceArn")?;
        let rate = in_range_unnamed(
            input.max_number_of_messages_per_second,
            1,
            RATE_MAX,
            "MaxNumberOfMessagesPerSecond",
            "You must enter a number that's between 1 and 500.",
        )?
        .and_then(|rate| u16::try_from(rate).ok());
        let source = self.in_arn(call, Verb::Receive, &source_arn, "SourceArn")?;
        let sources = self.engine.directory().dead_letter_sources(&source.name);
        if sources.is_empty() {
            return Err(SqsError::invalid_parameter(
                "Source queue must be configured as a Dead Letter Queue.",
            ));
        }
        let destination = match input.destination_arn {
            Some(arn) => Some(self.destination(call, &source, &arn)?),
            None => {
                for queue in &sources {
                    call.check(Verb::Send, &queue.name)?;
                }
                None
            }
        };
        let _alone = self.changes.lock().await;
        let source = self.queue_named(Some(&source.name))?;
        let mut tasks = task::of(&source);
        if tasks.first().is_some_and(|task| !task.status.is_over()) {
            return Err(SqsError::invalid_parameter(
                "There is already a task running. Only one active task is allowed for a source \
                 queue arn at a given time.",
            ));
        }
        let query = DescribeQueue {
            queue: source.name.clone(),
        };
        let to_move = self.engine.query(query).await?.counts.ready;
        let task = Task {
            id: self.request_id(),
            by: call.identity.map(|key| key.id.clone()),
            destination,
            rate,
            started: self.engine.now().wall.0,
            to_move,
            moved: 0,
            status: Status::Running,
            failure: None,
        };
        let task_handle = handle(&task.id, &names::queue_arn(&self.config, &source.name));
        tasks.insert(0, task.clone());
        tasks.truncate(TASKS_MAX);
        self.mover.save(&source, &tasks).await?;
        self.mover.run(&source, task, Start::First);
        Ok(StartMessageMoveTaskOutput { task_handle })
    }

    /// Ends a task; the messages that it has moved stay moved.
    pub(crate) async fn cancel_message_move_task(
        &self,
        call: &Call<'_>,
        input: CancelMessageMoveTaskInput<'_>,
    ) -> Result<CancelMessageMoveTaskOutput, SqsError> {
        let task_handle = required(input.task_handle, "TaskHandle")?;
        let (id, source_arn) = open_handle(&task_handle).ok_or_else(|| {
            SqsError::invalid_parameter("Value for parameter TaskHandle is invalid.")
        })?;
        let source = self.in_arn(call, Verb::Receive, &source_arn, "SourceArn")?;
        let _alone = self.changes.lock().await;
        let source = self.queue_named(Some(&source.name))?;
        let mut tasks = task::of(&source);
        let task = tasks
            .iter_mut()
            .find(|task| task.id == id)
            .ok_or_else(|| SqsError::new(ErrorCode::ResourceNotFound, "Task does not exist."))?;
        if task.status != Status::Running {
            return Err(SqsError::invalid_parameter(
                "Only active tasks can be cancelled.",
            ));
        }
        task.status = Status::Cancelling;
        let moved = self.mover.moved(source.id, task);
        self.mover.save(&source, &tasks).await?;
        self.mover.cancel(source.id);
        Ok(CancelMessageMoveTaskOutput {
            approximate_number_of_messages_moved: moved,
        })
    }

    /// The last tasks of a queue, newest first.
    pub(crate) fn list_message_move_tasks(
        &self,
        call: &Call<'_>,
        input: ListMessageMoveTasksInput<'_>,
    ) -> Result<ListMessageMoveTasksOutput, SqsError> {
        let arn = required(input.source_arn, "SourceArn")?;
        let limit = in_range_unnamed(
            input.max_results,
            1,
            TASKS_MAX as u64,
            "MaxResults",
            "You must enter a number that's between 1 and 10.",
        )?
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(1);
        let source = self.in_arn(call, Verb::Read, &arn, "SourceArn")?;
        let source_arn = names::queue_arn(&self.config, &source.name);
        let entry = |task: Task| MoveTaskEntry {
            approximate_number_of_messages_moved: self.mover.moved(source.id, &task),
            approximate_number_of_messages_to_move: task.to_move,
            destination_arn: task
                .destination
                .as_ref()
                .map(|name| names::queue_arn(&self.config, name)),
            task_handle: (task.status == Status::Running).then(|| handle(&task.id, &source_arn)),
            failure_reason: task.failure,
            max_number_of_messages_per_second: task.rate,
            source_arn: source_arn.clone(),
            started_timestamp: task.started,
            status: task.status.name(),
        };
        Ok(ListMessageMoveTasksOutput {
            results: task::of(&source)
                .into_iter()
                .take(limit)
                .map(entry)
                .collect(),
        })
    }

    fn destination(
        &self,
        call: &Call<'_>,
        source: &QueueEntry,
        arn: &Text<'_>,
    ) -> Result<QueueName, SqsError> {
        let to = self.in_arn(call, Verb::Send, arn, "DestinationArn")?;
        if to.id == source.id {
            return Err(SqsError::invalid_parameter(
                "Source queue arn and destination queue arn cannot be the same.",
            ));
        }
        if to.settings.keyed != source.settings.keyed {
            return Err(SqsError::invalid_parameter(
                "The source queue and destination queue must be of the same queue type.",
            ));
        }
        Ok(to.name.clone())
    }

    /// The queue that an ARN names, if the caller may do `verb` with it.
    fn in_arn(
        &self,
        call: &Call<'_>,
        verb: Verb,
        arn: &str,
        parameter: &str,
    ) -> Result<Arc<QueueEntry>, SqsError> {
        if arn_parts(arn).is_none() {
            return Err(SqsError::invalid_parameter(format!(
                "You must use this format to specify the {parameter}: \
                 arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
            )));
        }
        names::queue_in_arn(&self.config, arn)
            .and_then(|name| self.engine.directory().get(&name))
            .ok_or_else(SqsError::queue_does_not_exist)
            .and_then(|entry| call.check(verb, &entry.name).map(|()| entry))
            .map_err(|error| match error.code {
                ErrorCode::QueueDoesNotExist => SqsError::new(
                    ErrorCode::ResourceNotFound,
                    format!(
                        "The resource that you specified for the {parameter} parameter doesn't \
                         exist."
                    ),
                ),
                _ => error,
            })
    }
}

/// A task's handle, in the form of AWS's handles.
fn handle(id: &str, source_arn: &str) -> String {
    STANDARD.encode(json!({"taskId": id, "sourceArn": source_arn}).to_string())
}

/// The task and the ARN in a handle.
fn open_handle(handle: &str) -> Option<(String, String)> {
    let handle: Value = serde_json::from_slice(&STANDARD.decode(handle).ok()?).ok()?;
    let text = |member: &str| Some(handle.get(member)?.as_str()?.to_owned());
    Some((text("taskId")?, text("sourceArn")?))
}
