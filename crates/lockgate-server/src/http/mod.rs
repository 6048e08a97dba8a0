//! Everything between the socket and an action. It knows HTTP and no queues.
//!
//! The way of a byte through the files: `listener` accepts the connection, `wire` follows its bytes
//! (with `framing` and `progress`), hyper parses them under `connection`, `router` checks and
//! routes the request (with `hosts`, `body` and `refusal`), and the SQS protocol, the admin API,
//! `health` or `metrics` answers it.

mod backup;
mod body;
mod connection;
mod counters;
mod date;
pub(crate) mod drain;
mod exposition;
mod framing;
pub(crate) mod fuzzing;
mod health;
pub(crate) mod hosts;
mod listener;
mod metrics;
pub(crate) mod printable;
pub(crate) mod progress;
mod refusal;
pub(crate) mod response;
mod router;
mod space;
pub(crate) mod tls;
mod wire;

use std::sync::{Arc, atomic::AtomicU64};

use hyper::{header::HeaderValue, server::conn::http1};
use lockgate_core::WallTime;
use lockgate_engine::Engine;

pub(crate) use listener::run;

use self::{
    body::BodyBudget,
    counters::Counters,
    drain::{Drain, DrainTrigger},
    hosts::Hosts,
    tls::{Certificate, Tls},
};
use crate::{
    Deadlines, Limits, ServerOptions, api,
    auth::{AccessKeys, Authenticator},
    sqs,
};

/// What all connections of one server share.
#[derive(Debug)]
pub(crate) struct Core {
    /// `None` without authentication.
    authenticator: Option<Authenticator>,
    limits: Limits,
    deadlines: Deadlines,
    hosts: Hosts,
    /// The host in queue URLs, instead of the one that the client sent.
    advertised_host: Option<String>,
    service: sqs::Service,
    api: api::Service,
    engine: Engine,
    started: WallTime,
    counters: Counters,
    bodies: BodyBudget,
    answers: Arc<BodyBudget>,
    backup: backup::Slot,
    /// Log lines that were dropped, if the program counts them.
    pub(crate) lines_dropped: Arc<AtomicU64>,
    protocol: http1::Builder,
    drain: Drain,
    drain_trigger: DrainTrigger,
    /// `None`: connections are not encrypted.
    tls: Option<Arc<Tls>>,
}

impl Core {
    /// `options` have been checked.
    pub(crate) fn new(options: ServerOptions, tls: Option<Tls>, engine: Engine) -> Self {
        let (drain_trigger, drain) = drain::drain();
        let authenticator = Authenticator::new(&options.authentication, &options.region);
        let config = sqs::Config {
            account: options.account,
            region: options.region,
            https: tls.is_some(),
        };
        let keys = authenticator.as_ref().map(|who| who.keys().clone());
        let service = sqs::Service::new(engine.clone(), config, drain.clone(), keys);
        let changes = service.changes.clone();
        let body_bytes_max = options.limits.body_bytes_max;
        let api = api::Service::new(engine.clone(), drain.clone(), changes, body_bytes_max);
        let advertised = options.advertised_host.as_deref().and_then(hosts::split);
        let advertised_name = advertised.map(|(host, _port)| host.to_owned());
        Self {
            authenticator,
            hosts: Hosts::new(options.allowed_hosts.into_iter().chain(advertised_name)),
            advertised_host: options.advertised_host,
            service,
            api,
            started: engine.now().wall,
            engine,
            counters: Counters::default(),
            bodies: BodyBudget::new(options.limits.bodies_bytes_max),
            answers: Arc::new(BodyBudget::new(options.limits.bodies_bytes_max)),
            backup: backup::Slot::default(),
            lines_dropped: Arc::default(),
            protocol: connection::protocol(&options.limits),
            limits: options.limits,
            deadlines: options.deadlines,
            drain,
            drain_trigger,
            tls: tls.map(Arc::new),
        }
    }

    /// An id for the next request, for answers that do not come from the SQS service.
    pub(crate) fn request_id(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(self.service.request_id()).ok()
    }

    pub(crate) fn certificate(&self) -> Option<Certificate> {
        self.tls.clone().map(Certificate)
    }

    pub(crate) fn access_keys(&self) -> Option<AccessKeys> {
        self.authenticator.as_ref().map(|who| who.keys().clone())
    }
}
