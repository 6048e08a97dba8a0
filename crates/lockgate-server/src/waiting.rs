//! Receiving for a client that may end its side of the connection while it waits.

use std::{future, pin::pin, time::Duration};

use lockgate_engine::{Engine, EngineError, ReceivedBatch};
use lockgate_machine::Receive;

use crate::http::progress::Hangup;

/// Takes messages, waiting for a first one until the client ends its side: then it gets what is there.
/// What comes later could go to nobody. Dropping the future gives back what it may have taken.
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
    // Asked later, it is answered later: if the first had found something, that is known by then.
    let there = engine.receive(at_once, Duration::ZERO).await;
    tokio::select! {
        biased;
        result = &mut waiting => result,
        there = future::ready(there) => there,
    }
}
