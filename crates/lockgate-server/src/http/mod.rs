//! Everything between the socket and an action. It knows HTTP and no queues.
//!
//! The way of a byte through the files: `listener` accepts the connection, `wire` follows its bytes
//! (with `framing` and `progress`), hyper parses them under `connection`, `router` checks and
//! routes the request (with `hosts`, `body` and `refusal`), and the SQS protocol, the admin API,
//! `health`, `metrics` or `console` answers it. Where a [`Handler`] stands in the place of queues, `handled`
//! does what `router` does.

mod backup;
mod body;
mod connection;
mod console;
pub(crate) mod counters;
mod date;
pub(crate) mod drain;
mod follow;
mod framing;
pub(crate) mod fuzzing;
mod handled;
mod health;
pub(crate) mod hosts;
mod listener;
mod metrics;
pub(crate) mod printable;
pub(crate) mod progress;
mod refusal;
pub(crate) mod response;
mod router;
mod seen;
mod space;
pub(crate) mod tls;
mod wire;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::SystemTime,
};

use hyper::{header::HeaderValue, server::conn::http1};
use lockgate_core::WallTime;
use lockgate_engine::Engine;

pub(crate) use console::is_base_path;
#[cfg(test)]
pub(crate) use counters::Action as CountedAction;
pub(crate) use listener::run;

use self::{
    body::{BodyBudget, Followers},
    counters::Counters,
    drain::{Drain, DrainTrigger},
    hosts::Hosts,
    tls::{Certificate, Tls},
};
use crate::{
    Deadlines, Limits, ServerOptions, api,
    auth::{AccessKeys, Authenticator},
    handler::Handler,
    sns, sqs,
};

/// What all connections of one server share.
#[derive(Debug)]
pub(crate) struct Core {
    /// `None` without authentication.
    authenticator: Option<Authenticator>,
    limits: Limits,
    deadlines: Deadlines,
    hosts: Hosts,
    behind: Behind,
    counters: Counters,
    bodies: BodyBudget,
    answers: Arc<BodyBudget>,
    followers: Followers,
    /// Log lines that were dropped, if the program counts them.
    pub(crate) lines_dropped: Arc<AtomicU64>,
    protocol: http1::Builder,
    drain: Drain,
    drain_trigger: DrainTrigger,
    /// `None`: connections are not encrypted.
    tls: Option<Arc<Tls>>,
}

/// What answers requests.
#[derive(Debug)]
enum Behind {
    Queues(Box<Queues>),
    Handler(Arc<dyn Handler>),
}

/// The queues of an engine, and the APIs in front of them.
#[derive(Debug)]
pub(crate) struct Queues {
    /// The host in queue URLs, instead of the one that the client sent.
    advertised_host: Option<String>,
    service: sqs::Service,
    sns: sns::Service,
    api: api::Service,
    engine: Engine,
    started: WallTime,
    backup: backup::Slot,
    console: console::Console,
}

/// What is to answer requests.
#[derive(Debug)]
pub(crate) enum Answering {
    Engine(Engine),
    Handler(Arc<dyn Handler>),
}

impl Core {
    /// `options` have been checked.
    pub(crate) fn new(options: ServerOptions, tls: Option<Tls>, answering: Answering) -> Self {
        let (drain_trigger, drain) = drain::drain();
        let authenticator = Authenticator::new(&options.authentication, &options.region);
        let behind = match answering {
            Answering::Handler(handler) => Behind::Handler(handler),
            Answering::Engine(engine) => {
                let config = sqs::Config {
                    account: options.account,
                    region: options.region,
                    https: tls.is_some(),
                };
                let keys = authenticator.as_ref().map(|who| who.keys().clone());
                let of_sns = config.clone();
                let service =
                    sqs::Service::new(engine.clone(), config, drain.clone(), keys.clone());
                let changes = service.changes.clone();
                let sns = sns::Service::new(engine.clone(), of_sns, changes.clone());
                let body_bytes_max = options.limits.body_bytes_max;
                let (engine_of_api, drain) = (engine.clone(), drain.clone());
                let api = api::Service::new(engine_of_api, drain, changes, body_bytes_max, keys);
                Behind::Queues(Box::new(Queues {
                    advertised_host: options.advertised_host.clone(),
                    service,
                    sns,
                    api,
                    started: engine.now().wall,
                    console: console::Console::new(&options.console_base_path, &engine),
                    engine,
                    backup: backup::Slot::default(),
                }))
            }
        };
        let answers = Arc::new(BodyBudget::new(options.limits.bodies_bytes_max));
        let advertised = options.advertised_host.as_deref().and_then(hosts::split);
        let advertised_name = advertised.map(|(host, _port)| host.to_owned());
        Self {
            authenticator,
            hosts: Hosts::new(options.allowed_hosts.into_iter().chain(advertised_name)),
            behind,
            counters: Counters::default(),
            bodies: BodyBudget::new(options.limits.bodies_bytes_max),
            followers: Followers::new(&answers, options.limits.bodies_bytes_max),
            answers,
            lines_dropped: Arc::default(),
            protocol: connection::protocol(&options.limits),
            limits: options.limits,
            deadlines: options.deadlines,
            drain,
            drain_trigger,
            tls: tls.map(Arc::new),
        }
    }

    /// The time in answers.
    fn now(&self) -> WallTime {
        match &self.behind {
            Behind::Queues(queues) => queues.engine.now().wall,
            Behind::Handler(_) => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                let millis = since.unwrap_or_default().as_millis();
                WallTime(u64::try_from(millis).unwrap_or(u64::MAX))
            }
        }
    }

    pub(crate) fn certificate(&self) -> Option<Certificate> {
        self.tls.clone().map(Certificate)
    }

    pub(crate) fn access_keys(&self) -> Option<AccessKeys> {
        self.authenticator.as_ref().map(|who| who.keys().clone())
    }
}

impl Queues {
    /// An id for the next request, for answers that do not come from the SQS service.
    pub(crate) fn request_id(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(self.service.request_id()).ok()
    }
}
