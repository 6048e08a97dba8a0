//! Everything between the socket and an action. Knows HTTP and nothing of queues.
//!
//! A byte's way in, and the file that is about it: accepted by `listener`, followed by `wire` (with
//! `framing` and `progress`), parsed by hyper under `connection`, checked and routed by `router`
//! (with `hosts`, `body` and `refusal`), answered by the SQS
//! protocol, by the admin API, by `health` or by `metrics`.

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

/// All that the connections of one server share.
#[derive(Debug)]
pub(crate) struct Core {
    /// `None`: nobody has to say who they are.
    authenticator: Option<Authenticator>,
    limits: Limits,
    deadlines: Deadlines,
    hosts: Hosts,
    /// What queue URLs name, if not what the client says.
    advertised_host: Option<String>,
    /// The SQS API.
    service: sqs::Service,
    /// The admin API.
    api: api::Service,
    engine: Engine,
    started: WallTime,
    counters: Counters,
    bodies: BodyBudget,
    answers: Arc<BodyBudget>,
    backup: backup::Slot,
    /// Log lines that nobody will read, if somebody counts them.
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
        let api = api::Service::new(engine.clone(), drain.clone(), changes);
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

    /// A name for the next request, for answers that are not the SQS service's.
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
