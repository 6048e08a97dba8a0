//! The service over a real engine and a real log, on a disk in memory and with a manual clock. No
//! test waits.

mod attempts;
mod decoders;
mod extension;
mod fair;
mod hostile;
mod messages;
mod moves;
mod permissions;
mod protocols;
mod query;
mod queues;
mod tables;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lockgate_core::{HolderName, Millis, ShardId};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{FaultyDisk, ManualClock};
use serde_json::{Value, json};

use self::protocols::Speaks;
use super::{Config, Request, Service};
use crate::http::{
    drain::{self, DrainTrigger},
    progress::Hangup,
    response::KeepGuard,
};

const ACCOUNT: &str = "000000000000";
const HOST: &str = "localhost:9324";
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// A service, and hands on everything around it.
struct Shop {
    service: Service,
    engine: Engine,
    clock: ManualClock,
    disk: FaultyDisk,
    drain: DrainTrigger,
    speaks: Speaks,
}

/// An answer as a client sees it.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
    /// The header `x-amzn-query-error`.
    query_error: Option<String>,
    retry_after: Option<String>,
    guard: Option<KeepGuard>,
}

impl Shop {
    fn open() -> Self {
        Self::speaking(Speaks::Json)
    }

    fn speaking(speaks: Speaks) -> Self {
        Self::on(FaultyDisk::new(), ManualClock::default(), speaks)
    }

    fn on(disk: FaultyDisk, clock: ManualClock, speaks: Speaks) -> Self {
        Self::of_shard(ShardId::default(), disk, clock, speaks)
    }

    fn of_shard(shard: ShardId, disk: FaultyDisk, clock: ManualClock, speaks: Speaks) -> Self {
        let options = LocalLogOptions {
            free_bytes_min: 0,
            ..LocalLogOptions::default()
        };
        let log = LocalLog::open(Arc::new(disk.clone()), options).unwrap();
        let (engine, _) = Engine::start(
            log,
            Arc::new(clock.clone()),
            EngineOptions {
                shard,
                ..EngineOptions::default()
            },
        )
        .unwrap();
        let (drain, signal) = drain::drain();
        let config = Config {
            account: ACCOUNT.into(),
            region: "us-east-1".into(),
            https: false,
        };
        Self {
            service: Service::new(engine.clone(), config, signal, None),
            engine,
            clock,
            disk,
            drain,
            speaks,
        }
    }

    /// The same shard after an orderly stop and a new start.
    async fn reopened(self) -> Self {
        self.engine.shutdown().await;
        drop(self.service);
        drop(self.engine);
        Self::on(self.disk, self.clock, self.speaks)
    }

    /// Advances the clock.
    fn pass(&self, span: Millis) {
        self.clock.advance(span);
        self.engine.clock_changed();
    }

    async fn raw(&self, target: Option<&str>, body: impl Into<Bytes>) -> Answer {
        self.traced(None, target, body).await
    }

    async fn traced(
        &self,
        trace_id: Option<&str>,
        target: Option<&str>,
        body: impl Into<Bytes>,
    ) -> Answer {
        let request = Request {
            trace_id: trace_id.map(str::to_owned),
            target: target.map(str::to_owned),
            content_type: Some("application/x-amz-json-1.0".into()),
            accept: None,
            path: "/".into(),
            query: None,
            query_mode: true,
            body: body.into(),
            by_link: false,
            hangup: Hangup::default(),
            holder: HolderName::new("tester").unwrap(),
            identity: None,
            host: HOST.into(),
        };
        // A guard against hanging for ever, not a measurement.
        let response = tokio::time::timeout(HANGS_AFTER, self.service.handle(request))
            .await
            .expect("an answer");
        let header = |name: &str| {
            let value = response.headers.get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        assert_eq!(
            header("content-type").as_deref(),
            Some("application/x-amz-json-1.0")
        );
        assert_eq!(header("x-amzn-requestid").map(|id| id.len()), Some(36));
        Answer {
            status: response.status.as_u16(),
            query_error: header("x-amzn-query-error"),
            retry_after: header("retry-after"),
            body: serde_json::from_slice(&response.body).unwrap(),
            guard: response.on_sent,
        }
    }

    /// Sends a request, and keeps the leases of its answer.
    async fn ask(&self, action: &str, input: Value) -> Answer {
        let mut answer = match self.speaks {
            Speaks::Json => {
                let target = format!("AmazonSQS.{action}");
                self.raw(Some(&target), input.to_string()).await
            }
            Speaks::Query => self.ask_by_form(action, &input).await,
        };
        if let Some(guard) = answer.guard.take() {
            guard.keep();
        }
        answer
    }

    /// The same in the older protocol.
    async fn ask_by_form(&self, action: &str, input: &Value) -> Answer {
        let form = protocols::form(action, input).expect("a form can say so");
        let xml = self.posted("/", &form).await;
        let (query_error, body) = if xml.status == 200 {
            (None, protocols::output(action, &xml.body))
        } else {
            let (code, blame, message) = protocols::error(&xml.body);
            let body = json!({"message": message});
            (Some(format!("{code};{blame}")), body)
        };
        Answer {
            status: xml.status,
            body,
            query_error,
            retry_after: xml.retry_after,
            guard: xml.guard,
        }
    }

    /// Sends a request that must succeed.
    async fn ok(&self, action: &str, input: Value) -> Value {
        let answer = self.ask(action, input.clone()).await;
        assert_eq!(answer.status, 200, "{action} {input}: {answer:?}");
        answer.body
    }

    /// Sends a request that must be refused, and returns the legacy code and the text.
    async fn refused(&self, action: &str, input: Value) -> (String, String) {
        let answer = self.ask(action, input.clone()).await;
        assert_ne!(answer.status, 200, "{action} {input}: {answer:?}");
        answer.error()
    }

    /// Creates a queue and returns its URL.
    async fn queue(&self, name: &str, attributes: Value) -> String {
        let mut attributes = attributes;
        if name.ends_with(".fifo") {
            attributes["FifoQueue"] = json!("true");
        }
        let input = json!({"QueueName": name, "Attributes": attributes});
        let output = self.ok("CreateQueue", input).await;
        output["QueueUrl"].as_str().unwrap().to_owned()
    }

    async fn send(&self, url: &str, body: &str) -> Value {
        self.ok("SendMessage", json!({"QueueUrl": url, "MessageBody": body}))
            .await
    }

    async fn send_fifo(&self, url: &str, group: &str, id: &str) -> Value {
        let input = json!({
            "QueueUrl": url,
            "MessageBody": id,
            "MessageGroupId": group,
            "MessageDeduplicationId": id,
        });
        self.ok("SendMessage", input).await
    }

    /// Receives up to ten messages with all attributes.
    async fn receive(&self, url: &str) -> Vec<Value> {
        let input = json!({
            "QueueUrl": url,
            "MaxNumberOfMessages": 10,
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        let output = self.ok("ReceiveMessage", input).await;
        match &output["Messages"] {
            Value::Array(messages) => messages.clone(),
            _ => vec![],
        }
    }

    /// The bodies of up to ten messages.
    async fn bodies(&self, url: &str) -> Vec<String> {
        let messages = self.receive(url).await;
        messages
            .iter()
            .map(|message| text(&message["Body"]))
            .collect()
    }

    async fn delete(&self, url: &str, message: &Value) -> Value {
        let input = json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]});
        self.ok("DeleteMessage", input).await
    }

    /// Waiting, in flight and delayed messages.
    async fn counts(&self, url: &str) -> [u64; 3] {
        let input = json!({"QueueUrl": url, "AttributeNames": ["All"]});
        let output = self.ok("GetQueueAttributes", input).await;
        ["", "NotVisible", "Delayed"].map(|kind| {
            let name = format!("ApproximateNumberOfMessages{kind}");
            text(&output["Attributes"][name]).parse().unwrap()
        })
    }

    async fn attribute(&self, url: &str, name: &str) -> Value {
        let input = json!({"QueueUrl": url, "AttributeNames": [name]});
        let output = self.ok("GetQueueAttributes", input).await;
        output["Attributes"][name].clone()
    }
}

impl Answer {
    fn error(&self) -> (String, String) {
        let header = self.query_error.as_deref().expect("x-amzn-query-error");
        let (code, blame) = header.split_once(';').unwrap();
        assert_eq!(blame == "Receiver", self.status >= 500, "{self:?}");
        (code.to_owned(), text(&self.body["message"]))
    }
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
        .to_owned()
}
