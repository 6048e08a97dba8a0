//! Receives for clients that may end their side of the connection while they wait.

use std::{future, pin::pin, time::Duration};

use lockgate_engine::{Engine, EngineError, ReceivedBatch};
use lockgate_machine::Receive;

use crate::http::progress::Hangup;

/// Takes messages. Waits for the first one until the client ends its side, then returns what there
/// is: messages that come later could not reach the client. Dropping the future gives back the
/// leases that it took.
pub(crate) async fn receive(
    engine: &Engine,
    receive: Receive,
    wait: Duration,
    hangup: &Hangup,
) -> Result<ReceivedBatch, EngineError> {
    let at_once = receive.clone();
    let mut waiting = pin!(engine.receive(receive, wait));
    tokio::select! {
        biased;
        result = &mut waiting => return result,
        () = hangup.come() => {}
    }
    // The engine answers in order: if the first receive had found messages, its answer has come
    // before this one.
    let there = engine.receive(at_once, Duration::ZERO).await;
    tokio::select! {
        biased;
        result = &mut waiting => result,
        there = future::ready(there) => there,
    }
}
