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
    endpoint: Endpoint,
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

/// What stands behind the SQS endpoint.
#[derive(Debug)]
pub(crate) enum Endpoint {
    /// Queues.
    Queues {
        service: Box<sqs::Service>,
        api: Box<api::Service>,
        engine: Engine,
        started: WallTime,
    },
    /// Nothing: the body is read and the answer is a constant.
    Floor,
}

/// What an [`Endpoint`] is made from.
#[derive(Debug)]
pub(crate) struct Setup {
    config: sqs::Config,
    /// `None`: nobody has to say who they are.
    keys: Option<AccessKeys>,
    drain: Drain,
}

impl Endpoint {
    pub(crate) fn queues(setup: &Setup, engine: Engine) -> Self {
        let started = engine.now().wall;
        let service = Box::new(sqs::Service::new(
            engine.clone(),
            setup.config.clone(),
            setup.drain.clone(),
            setup.keys.clone(),
        ));
        let changes = service.changes.clone();
        let api = api::Service::new(engine.clone(), setup.drain.clone(), changes);
        Self::Queues {
            service,
            api: Box::new(api),
            engine,
            started,
        }
    }

    /// A name for the next request, for answers that are not the SQS service's.
    pub(crate) fn request_id(&self) -> Option<HeaderValue> {
        match self {
            Self::Queues { service, .. } => HeaderValue::try_from(service.request_id()).ok(),
            Self::Floor => None,
        }
    }

    /// The wall clock; of no use where nothing stands behind.
    pub(crate) fn now(&self) -> WallTime {
        self.engine()
            .map_or_else(WallTime::default, |engine| engine.now().wall)
    }

    pub(crate) fn engine(&self) -> Option<&Engine> {
        match self {
            Self::Queues { engine, .. } => Some(engine),
            Self::Floor => None,
        }
    }
}

impl Core {
    /// `options` have been checked.
    pub(crate) fn new(
        options: ServerOptions,
        tls: Option<Tls>,
        endpoint: impl FnOnce(&Setup) -> Endpoint,
    ) -> Self {
        let (drain_trigger, drain) = drain::drain();
        let authenticator = Authenticator::new(&options.authentication, &options.region);
        let setup = Setup {
            config: sqs::Config {
                account: options.account,
                region: options.region,
                https: tls.is_some(),
            },
            keys: authenticator.as_ref().map(|who| who.keys().clone()),
            drain,
        };
        let advertised = options.advertised_host.as_deref().and_then(hosts::split);
        let advertised_name = advertised.map(|(host, _port)| host.to_owned());
        Self {
            authenticator,
            hosts: Hosts::new(options.allowed_hosts.into_iter().chain(advertised_name)),
            advertised_host: options.advertised_host,
            endpoint: endpoint(&setup),
            counters: Counters::default(),
            bodies: BodyBudget::new(options.limits.bodies_bytes_max),
            answers: Arc::new(BodyBudget::new(options.limits.bodies_bytes_max)),
            backup: backup::Slot::default(),
            lines_dropped: Arc::default(),
            protocol: connection::protocol(&options.limits),
            limits: options.limits,
            deadlines: options.deadlines,
            drain: setup.drain,
            drain_trigger,
            tls: tls.map(Arc::new),
        }
    }

    pub(crate) fn certificate(&self) -> Option<Certificate> {
        self.tls.clone().map(Certificate)
    }

    pub(crate) fn access_keys(&self) -> Option<AccessKeys> {
        self.authenticator.as_ref().map(|who| who.keys().clone())
    }
}
