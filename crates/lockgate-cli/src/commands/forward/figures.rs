//! The figures of a forwarding whose messages do not come over HTTP.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use hyper::{Method, StatusCode};
use lockgate_producer::{PipelineWatch, Producer};
use lockgate_server::{Handler, HandlerAnswer, HandlerRequest};

use super::{
    Target,
    http::{Problem, ready},
};

/// Serves them, and takes nothing. Clones have the same figures.
#[derive(Clone, Debug)]
pub(super) struct Figuring {
    producer: Producer<Target>,
    /// As soon as there is one.
    pipeline: Arc<OnceLock<PipelineWatch<Target>>>,
}

impl Figuring {
    pub(super) fn new(producer: &Producer<Target>) -> Self {
        Self {
            producer: producer.clone(),
            pipeline: Arc::default(),
        }
    }

    /// From now on the figures are those of a pipeline. There is at most one.
    pub(super) fn watch(&self, pipeline: PipelineWatch<Target>) {
        let _ = self.pipeline.set(pipeline);
    }
}

/// The answer of a listener that has figures only.
pub(in crate::commands) fn no_messages() -> HandlerAnswer {
    let detail = "no messages are taken here; there are /healthz, /readyz and /metrics";
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail).into()
}

impl Handler for Figuring {
    fn takes(&self, _: &Method, _: &str) -> Result<(), Box<HandlerAnswer>> {
        Err(Box::new(no_messages()))
    }

    fn answer(
        &self,
        _: HandlerRequest,
    ) -> Pin<Box<dyn Future<Output = HandlerAnswer> + Send + '_>> {
        Box::pin(async { no_messages() })
    }

    fn ready(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async { ready(&self.producer) })
    }

    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async {
            let name = self.producer.name().as_str();
            match self.pipeline.get() {
                Some(pipeline) => pipeline.figures().await.prometheus(name),
                None => self.producer.figures().prometheus(name),
            }
        })
    }
}
