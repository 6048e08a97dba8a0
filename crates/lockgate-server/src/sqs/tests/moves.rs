//! Message move tasks.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{HANGS_AFTER, Shop, protocols::in_both_protocols, text};

in_both_protocols![
    dead_letters_go_back_to_where_they_came_from,
    dead_letters_go_to_the_queue_that_is_named,
    a_chain_of_dead_letter_queues_is_gone_back,
    dead_letters_moved_elsewhere_still_go_home,
    a_message_without_a_source_fails_the_task_and_stays,
    a_task_whose_destination_is_gone_fails,
    one_task_runs_at_a_time_and_can_be_cancelled,
    a_task_goes_on_after_a_restart,
    tasks_are_listed_newest_first,
    handles_of_tasks_that_are_not_there,
    both_queues_are_of_one_kind_and_not_the_same,
    groups_keep_their_order,
];

fn arn(name: &str) -> String {
    format!("arn:aws:sqs:us-east-1:000000000000:{name}")
}

impl Shop {
    /// A queue `name` that moves a message to `dead` at its second receive.
    async fn dying(&self, name: &str, dead: &str) -> String {
        let policy = json!({"deadLetterTargetArn": arn(dead), "maxReceiveCount": 1});
        self.queue(name, json!({"RedrivePolicy": policy.to_string()}))
            .await
    }

    /// Receives all messages until they are dead letters.
    async fn kill(&self, url: &str) {
        let input = json!({"QueueUrl": url, "VisibilityTimeout": 0, "MaxNumberOfMessages": 10});
        while self.counts(url).await != [0, 0, 0] {
            self.ok("ReceiveMessage", input.clone()).await;
            self.pass(1);
        }
    }

    async fn start(&self, from: &str, more: Value) -> String {
        let mut input = json!({"SourceArn": arn(from)});
        for (name, value) in more.as_object().unwrap() {
            input[name] = value.clone();
        }
        text(&self.ok("StartMessageMoveTask", input).await["TaskHandle"])
    }

    async fn tasks(&self, of: &str) -> Vec<Value> {
        let input = json!({"SourceArn": arn(of), "MaxResults": 10});
        let output = self.ok("ListMessageMoveTasks", input).await;
        output["Results"].as_array().unwrap().clone()
    }

    /// The newest task of a queue, once `holds` is true for it.
    async fn task_when(&self, of: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let looking = async {
            loop {
                let task = self.tasks(of).await.remove(0);
                if holds(&task) {
                    return task;
                }
                tokio::task::yield_now().await;
            }
        };
        let found = tokio::time::timeout(HANGS_AFTER, looking).await;
        found.expect("it comes to hold")
    }

    /// The newest task of a queue, once it has ended.
    async fn ended(&self, of: &str) -> Value {
        let over = ["COMPLETED", "CANCELLED", "FAILED"];
        self.task_when(of, |task| over.contains(&text(&task["Status"]).as_str()))
            .await
    }
}

async fn dead_letters_go_back_to_where_they_came_from(shop: Shop) {
    let dead = shop.queue("dead", json!({})).await;
    let a = shop.dying("a", "dead").await;
    let b = shop.dying("b", "dead").await;
    shop.send(&a, "from a").await;
    shop.send(&b, "from b").await;
    shop.kill(&a).await;
    shop.kill(&b).await;
    assert_eq!(shop.counts(&dead).await, [2, 0, 0]);
    assert_eq!(shop.tasks("dead").await, Vec::<Value>::new());
    let handle = shop.start("dead", json!({})).await;
    let handle: Value = serde_json::from_slice(&STANDARD.decode(handle).unwrap()).unwrap();
    assert_eq!(handle["sourceArn"], arn("dead"));
    assert_eq!(text(&handle["taskId"]).len(), 36);
    let task = shop.ended("dead").await;
    let started = task["StartedTimestamp"].clone();
    assert!(started.is_u64(), "{task}");
    assert_eq!(
        task,
        json!({"Status": "COMPLETED", "SourceArn": arn("dead"), "StartedTimestamp": started,
            "ApproximateNumberOfMessagesMoved": 2, "ApproximateNumberOfMessagesToMove": 2})
    );
    assert_eq!(shop.counts(&dead).await, [0, 0, 0]);
    let again = shop.receive(&a).await;
    assert_eq!(text(&again[0]["Body"]), "from a");
    assert_eq!(again[0]["Attributes"]["ApproximateReceiveCount"], "1");
    assert_eq!(shop.bodies(&b).await, ["from b"]);
}

async fn dead_letters_go_to_the_queue_that_is_named(shop: Shop) {
    shop.queue("dead", json!({})).await;
    let source = shop.dying("source", "dead").await;
    let other = shop.queue("other", json!({})).await;
    for number in 0..600 {
        shop.send(&source, &number.to_string()).await;
    }
    shop.kill(&source).await;
    shop.start("dead", json!({"DestinationArn": arn("other")}))
        .await;
    let task = shop.ended("dead").await;
    assert_eq!(task["DestinationArn"], arn("other"));
    assert_eq!(task["ApproximateNumberOfMessagesMoved"], 600);
    assert_eq!(shop.counts(&other).await, [600, 0, 0]);
    assert_eq!(shop.counts(&source).await, [0, 0, 0]);
}

async fn a_chain_of_dead_letter_queues_is_gone_back(shop: Shop) {
    let last = shop.queue("last", json!({})).await;
    let dead = shop.dying("dead", "last").await;
    let a = shop.dying("a", "dead").await;
    let b = shop.dying("b", "dead").await;
    for (url, body) in [(&a, "from a"), (&b, "from b")] {
        shop.send(url, body).await;
        shop.kill(url).await;
    }
    shop.kill(&dead).await;
    assert_eq!(shop.counts(&last).await, [2, 0, 0]);
    // First to the queues that the policy took them from, then to those they were sent to.
    for from in ["last", "dead"] {
        shop.start(from, json!({})).await;
        let task = shop.ended(from).await;
        assert_eq!(task["Status"], "COMPLETED", "{task}");
        assert_eq!(task["ApproximateNumberOfMessagesMoved"], 2);
    }
    let home = shop.receive(&a).await.remove(0);
    assert_eq!(text(&home["Body"]), "from a");
    assert!(home["Attributes"]["DeadLetterQueueSourceArn"].is_null());
    assert_eq!(shop.bodies(&b).await, ["from b"]);
}

async fn dead_letters_moved_elsewhere_still_go_home(shop: Shop) {
    let last = shop.queue("last", json!({})).await;
    shop.dying("dead", "last").await;
    let a = shop.dying("a", "dead").await;
    let b = shop.dying("b", "dead").await;
    for (url, body) in [(&a, "a"), (&b, "b")] {
        shop.send(url, body).await;
        shop.kill(url).await;
    }
    shop.start("dead", json!({"DestinationArn": arn("last")}))
        .await;
    assert_eq!(shop.ended("dead").await["Status"], "COMPLETED");
    let input = json!({"QueueUrl": last, "VisibilityTimeout": 0, "MaxNumberOfMessages": 10,
        "AttributeNames": ["All"]});
    let output = shop.ok("ReceiveMessage", input).await;
    for message in output["Messages"].as_array().unwrap() {
        let source = &message["Attributes"]["DeadLetterQueueSourceArn"];
        assert_eq!(*source, arn(&text(&message["Body"])));
    }
    shop.start("last", json!({})).await;
    let task = shop.ended("last").await;
    assert_eq!(task["Status"], "COMPLETED", "{task}");
    assert_eq!(shop.bodies(&a).await, ["a"]);
    assert_eq!(shop.bodies(&b).await, ["b"]);
}

async fn a_message_without_a_source_fails_the_task_and_stays(shop: Shop) {
    let dead = shop.queue("dead", json!({})).await;
    shop.dying("source", "dead").await;
    shop.send(&dead, "direct").await;
    shop.start("dead", json!({})).await;
    let task = shop.ended("dead").await;
    assert_eq!(task["Status"], "FAILED");
    assert_eq!(task["FailureReason"], "CouldNotDetermineMessageSource");
    assert_eq!(task["ApproximateNumberOfMessagesMoved"], 0);
    assert_eq!(shop.bodies(&dead).await, ["direct"]);
}

async fn a_task_whose_destination_is_gone_fails(shop: Shop) {
    let dead = shop.queue("dead", json!({})).await;
    shop.dying("source", "dead").await;
    let other = shop.queue("other", json!({})).await;
    for body in ["1", "2", "3"] {
        shop.send(&dead, body).await;
    }
    // At this rate the second message waits until the destination is gone.
    let more = json!({"DestinationArn": arn("other"), "MaxNumberOfMessagesPerSecond": 1});
    shop.start("dead", more).await;
    shop.ok("DeleteQueue", json!({"QueueUrl": other})).await;
    let task = shop.ended("dead").await;
    assert_eq!(task["Status"], "FAILED");
    assert_eq!(
        task["FailureReason"],
        "AWS.SimpleQueueService.NonExistentQueue"
    );
    assert_eq!(task["MaxNumberOfMessagesPerSecond"], 1);
}

async fn one_task_runs_at_a_time_and_can_be_cancelled(shop: Shop) {
    let dead = shop.queue("dead", json!({})).await;
    shop.dying("source", "dead").await;
    shop.queue("other", json!({})).await;
    for body in 0..100 {
        shop.send(&dead, &body.to_string()).await;
    }
    let more = json!({"DestinationArn": arn("other"), "MaxNumberOfMessagesPerSecond": 1});
    let handle = shop.start("dead", more).await;
    let running = shop
        .task_when("dead", |task| task["ApproximateNumberOfMessagesMoved"] != 0)
        .await;
    assert_eq!(running["Status"], "RUNNING");
    assert_eq!(running["TaskHandle"], handle);
    assert_eq!(running["ApproximateNumberOfMessagesToMove"], 100);
    let again = json!({"SourceArn": arn("dead")});
    let (code, message) = shop.refused("StartMessageMoveTask", again).await;
    assert_eq!(code, "InvalidParameterValue");
    assert_eq!(
        message,
        "There is already a task running. Only one active task is allowed for a source queue arn \
         at a given time."
    );
    let cancel = json!({"TaskHandle": handle});
    let cancelled = shop.ok("CancelMessageMoveTask", cancel.clone()).await;
    assert!(cancelled["ApproximateNumberOfMessagesMoved"].as_u64() >= Some(1));
    let task = shop.ended("dead").await;
    assert_eq!(task["Status"], "CANCELLED");
    assert_eq!(task.get("TaskHandle"), None);
    let moved = task["ApproximateNumberOfMessagesMoved"].as_u64().unwrap();
    assert_eq!(shop.counts(&dead).await, [100 - moved, 0, 0]);
    let (code, _) = shop.refused("CancelMessageMoveTask", cancel).await;
    assert_eq!(code, "InvalidParameterValue");
}

async fn a_task_goes_on_after_a_restart(shop: Shop) {
    let dead = shop.queue("dead", json!({})).await;
    shop.dying("source", "dead").await;
    let other = shop.queue("other", json!({})).await;
    for body in ["1", "2", "3"] {
        shop.send(&dead, body).await;
    }
    let more = json!({"DestinationArn": arn("other"), "MaxNumberOfMessagesPerSecond": 1});
    let handle = shop.start("dead", more).await;
    shop.task_when("dead", |task| task["ApproximateNumberOfMessagesMoved"] == 1)
        .await;
    let shop = shop.reopened().await;
    let task = shop
        .task_when("dead", |task| task["ApproximateNumberOfMessagesMoved"] != 0)
        .await;
    assert_eq!(task["TaskHandle"], handle);
    let task = shop.ended("dead").await;
    assert_eq!(task["Status"], "COMPLETED");
    assert_eq!(task["ApproximateNumberOfMessagesMoved"], 3);
    assert_eq!(shop.counts(&other).await, [3, 0, 0]);
}

async fn tasks_are_listed_newest_first(shop: Shop) {
    shop.queue("dead", json!({})).await;
    shop.dying("source", "dead").await;
    for number in 0..12 {
        shop.pass(1000);
        shop.start("dead", json!({"MaxNumberOfMessagesPerSecond": number + 1}))
            .await;
        assert_eq!(shop.ended("dead").await["Status"], "COMPLETED");
    }
    let rates: Vec<u64> = shop
        .tasks("dead")
        .await
        .iter()
        .map(|task| task["MaxNumberOfMessagesPerSecond"].as_u64().unwrap())
        .collect();
    assert_eq!(rates, [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]);
    let one = shop
        .ok("ListMessageMoveTasks", json!({"SourceArn": arn("dead")}))
        .await;
    assert_eq!(one["Results"].as_array().unwrap().len(), 1);
}

async fn handles_of_tasks_that_are_not_there(shop: Shop) {
    shop.queue("q", json!({})).await;
    for (source, message) in [
        ("q", "Task does not exist."),
        (
            "none",
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
    ] {
        let handle = json!({"taskId": "10f57157-fc38-4da9-a113-4de7e12d05dd",
            "sourceArn": arn(source)});
        let input = json!({"TaskHandle": STANDARD.encode(handle.to_string())});
        let answer = shop.ask("CancelMessageMoveTask", input).await;
        assert_eq!(answer.status, 404);
        let expected = ("ResourceNotFoundException".to_owned(), message.to_owned());
        assert_eq!(answer.error(), expected);
    }
}

async fn both_queues_are_of_one_kind_and_not_the_same(shop: Shop) {
    shop.queue("dead", json!({})).await;
    shop.dying("source", "dead").await;
    shop.queue("f.fifo", json!({})).await;
    for (destination, code) in [
        ("f.fifo", "InvalidParameterValue"),
        ("dead", "InvalidParameterValue"),
        ("none", "ResourceNotFoundException"),
    ] {
        let input = json!({"SourceArn": arn("dead"), "DestinationArn": arn(destination)});
        assert_eq!(shop.refused("StartMessageMoveTask", input).await.0, code);
    }
    assert_eq!(shop.tasks("dead").await, Vec::<Value>::new());
}

async fn groups_keep_their_order(shop: Shop) {
    let dead = shop.queue("dead.fifo", json!({})).await;
    shop.dying("source.fifo", "dead.fifo").await;
    let other = shop.queue("other.fifo", json!({})).await;
    for id in ["1", "2", "3"] {
        shop.send_fifo(&dead, "g", id).await;
    }
    shop.start("dead.fifo", json!({"DestinationArn": arn("other.fifo")}))
        .await;
    shop.ended("dead.fifo").await;
    // Moved messages do not count as duplicates, and neither does a new send of the same id.
    shop.send_fifo(&other, "g", "1").await;
    assert_eq!(shop.bodies(&other).await, ["1", "2", "3", "1"]);
}
