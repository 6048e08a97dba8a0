//! What goes into an exchange and comes out of a queue behind it.

use std::time::Duration;

use lockgate_core::{
    Accepted, KeyStateWrite, Leased, Message, ReceiveRequest, RecordVersion, Settlement, Sink,
    SinkCapabilities, Source, SourceCapabilities, TransportError,
    coordination::{Fence, FenceError},
};

/// An exchange with one queue behind it, which gets every message. It takes what both take: an exchange alone cannot tell what its
/// queues refuse.
#[derive(Clone, Debug)]
pub struct Through<S, Q> {
    /// The exchange.
    pub sink: S,
    /// The queue.
    pub queue: Q,
}

impl<S: Sink, Q: Sink + Source> Sink for Through<S, Q> {
    type Id = S::Id;

    fn sink_capabilities(&self) -> SinkCapabilities {
        let (of_sink, mut can) = (
            self.sink.sink_capabilities(),
            self.queue.sink_capabilities(),
        );
        assert!(of_sink.keys && !of_sink.keys_only && of_sink.groups && of_sink.routes);
        can.batch_max = of_sink.batch_max;
        can.batch_bytes_max = of_sink.batch_bytes_max;
        can.message_bytes_max = can.message_bytes_max.min(of_sink.message_bytes_max);
        can.unique_ids &= of_sink.unique_ids;
        can.tells_duplicates &= of_sink.tells_duplicates;
        can.due &= of_sink.due;
        can.time_to_live &= of_sink.time_to_live;
        can.headers &= of_sink.headers;
        can.priority &= of_sink.priority;
        can.producers &= of_sink.producers;
        can.level_max = can.level_max.min(of_sink.level_max);
        can
    }

    /// The messages up to the first that the queue cannot carry; those from there on are refused as that one is.
    async fn send_batch(
        &self,
        mut messages: Vec<Message>,
    ) -> Vec<Result<Accepted<S::Id>, TransportError>> {
        let can = self.sink_capabilities();
        let mut parts = messages.iter().map(|message| can.check(message));
        let Some(at) = parts.position(|checked| checked.is_err()) else {
            return self.sink.send_batch(messages).await;
        };
        let rest = messages.split_off(at);
        let mut results = match messages.is_empty() {
            true => Vec::new(),
            false => self.sink.send_batch(messages).await,
        };
        let refused = can.check(&rest[0]).map_err(TransportError::from);
        let refused = refused.expect_err("it was refused");
        results.resize_with(at + rest.len(), || Err(refused.clone()));
        results
    }

    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        let queue = self.queue.fenced(fence)?;
        let sink = self.sink.fenced(fence)?;
        Ok(Self { sink, queue })
    }
}

impl<S: Sink, Q: Sink + Source> Source for Through<S, Q> {
    type Receipt = Q::Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.queue.source_capabilities()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Q::Receipt>>, TransportError> {
        self.queue.receive_batch(request).await
    }

    async fn settle_batch(
        &self,
        settles: Vec<(Q::Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        self.queue.settle_batch(settles).await
    }

    async fn settle_with_state(
        &self,
        settles: Vec<(Q::Receipt, Settlement)>,
        write: KeyStateWrite,
    ) -> Result<Option<RecordVersion>, TransportError> {
        self.queue.settle_with_state(settles, write).await
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Q::Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        self.queue.extend_batch(receipts, lease).await
    }
}
