//! The API over a real engine and a real log, on a disk in memory and with a manual clock.

mod dead_letters;
mod decoders;
mod describe;
mod examples;
mod exchanges;
mod holds;
mod key_states;
mod ledgers;
mod limits;
mod operations;
mod producers;
mod reads;
mod records;
mod schedules;
mod schema;

use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use lockgate_core::{HolderName, Millis, WallTime};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{FaultyDisk, ManualClock};
use serde_json::Value;

use super::{Request, Service};
use crate::{
    auth::AccessKey,
    http::response::KeepGuard,
    http::{
        drain::{self, DrainTrigger},
        progress::Hangup,
    },
};

/// A service, and hands on what is around it.
struct Shop {
    service: Service,
    engine: Engine,
    clock: ManualClock,
    identity: Option<Arc<AccessKey>>,
    _drain: DrainTrigger,
}

/// An answer as a client sees it.
#[derive(Debug)]
struct Answer {
    status: u16,
    content_type: String,
    body: Value,
    guard: Option<KeepGuard>,
}

impl Shop {
    fn open() -> Self {
        let clock = ManualClock::new(WallTime(1_795_248_000_000));
        let options = LocalLogOptions {
            free_bytes_min: 0,
            ..LocalLogOptions::default()
        };
        let log = LocalLog::open(Arc::new(FaultyDisk::new()), options).unwrap();
        let (engine, _) =
            Engine::start(log, Arc::new(clock.clone()), EngineOptions::default()).unwrap();
        let (trigger, drain) = drain::drain();
        Self {
            service: Service::new(engine.clone(), drain, Arc::default(), 4 << 20, None),
            engine,
            clock,
            identity: None,
            _drain: trigger,
        }
    }

    /// Advances the clock.
    fn pass(&self, span: Millis) {
        self.clock.advance(span);
        self.engine.clock_changed();
    }

    /// Sends a request as a client would; `target` is the path after `/api/v1` with its query.
    async fn raw(&self, method: &Method, target: &str, body: impl Into<Bytes>) -> Answer {
        self.raw_fenced(method, target, body, None).await
    }

    /// The same for the leader of a term.
    async fn raw_fenced(
        &self,
        method: &Method,
        target: &str,
        body: impl Into<Bytes>,
        fence: Option<&str>,
    ) -> Answer {
        let target = format!("/api/v1{target}");
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&*target, None),
        };
        let request = Request {
            method,
            path,
            query,
            content_type: Some("application/json"),
            body: body.into(),
            fence,
            holder: HolderName::new("tester").unwrap(),
            identity: self.identity.clone(),
            hangup: Hangup::default(),
        };
        let response = self.service.handle(request).await;
        Answer {
            status: response.status.as_u16(),
            content_type: response.headers["content-type"]
                .to_str()
                .unwrap()
                .to_owned(),
            body: serde_json::from_slice(&response.body).unwrap(),
            guard: response.on_sent,
        }
    }

    /// Sends a request, and keeps the leases of the answer.
    async fn ask(&self, method: Method, target: &str, body: Value) -> Answer {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let mut answer = self.raw(&method, target, body).await;
        if let Some(guard) = answer.guard.take() {
            guard.keep();
        }
        let expected = if answer.status < 400 {
            "application/json"
        } else {
            "application/problem+json"
        };
        assert_eq!(answer.content_type, expected, "{answer:?}");
        answer
    }

    /// Sends a request that must succeed.
    async fn ok(&self, method: Method, target: &str, body: Value) -> Value {
        let answer = self.ask(method.clone(), target, body).await;
        assert!(answer.status < 300, "{method} {target}: {answer:?}");
        answer.body
    }

    async fn get(&self, target: &str) -> Value {
        self.ok(Method::GET, target, Value::Null).await
    }

    async fn post(&self, target: &str, body: Value) -> Value {
        self.ok(Method::POST, target, body).await
    }

    /// Sends a request that must be refused, and returns status, code, field and detail.
    async fn refused(&self, method: Method, target: &str, body: Value) -> (u16, String, String) {
        let answer = self.ask(method, target, body).await;
        assert!(answer.status >= 400, "{target}: {answer:?}");
        assert_eq!(answer.body["status"], answer.status);
        let text = |name: &str| answer.body[name].as_str().unwrap_or("").to_owned();
        (answer.status, text("code"), text("field"))
    }
}
