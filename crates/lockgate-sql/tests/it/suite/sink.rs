//! A sink that fails as it is told to.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockgate_core::{
    Accepted, Fate, Level, Message, Sink, SinkCapabilities, TransportError, UniqueId,
};

/// How it answers a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It does not do it.
    Away,
    /// It does it, and the answer is lost.
    Lost,
    /// It refuses every second message, and accepts the others.
    Half,
}

#[derive(Clone, Debug)]
pub(crate) struct TestSink {
    pub(crate) can: SinkCapabilities,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// For the next batches; those behind them it accepts.
    pub(crate) replies: VecDeque<Reply>,
    /// Bodies that it refuses for ever.
    pub(crate) refused: HashSet<String>,
    pub(crate) accepted: Vec<Message>,
    known: HashSet<UniqueId>,
    pub(crate) batches: usize,
}

impl TestSink {
    pub(crate) fn new() -> Self {
        let mut can = SinkCapabilities::bodies_only(Level::Disk);
        can.batch_max = 10;
        (can.keys, can.groups, can.unique_ids) = (true, true, true);
        (can.due, can.time_to_live) = (true, true);
        (can.headers, can.priority) = (true, true);
        can.tells_duplicates = true;
        can.unique_id_window = Some(Duration::from_secs(600));
        Self {
            can,
            state: Arc::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        let state = self.state();
        let bodies = state.accepted.iter().map(|message| message.body.to_vec());
        bodies
            .map(|body| String::from_utf8(body).unwrap())
            .collect()
    }
}

impl Sink for TestSink {
    type Id = usize;

    fn sink_capabilities(&self) -> SinkCapabilities {
        self.can.clone()
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<usize>, TransportError>> {
        let mut state = self.state();
        state.batches += 1;
        let reply = state.replies.pop_front();
        let mut answers = Vec::new();
        for (place, message) in messages.into_iter().enumerate() {
            let body = String::from_utf8_lossy(&message.body).into_owned();
            if state.refused.contains(&body) {
                answers.push(Err(TransportError::new(
                    Fate::Refused,
                    format!("I want no {body}"),
                )));
                continue;
            }
            if reply == Some(Reply::Away) || reply == Some(Reply::Half) && place % 2 == 0 {
                answers.push(Err(TransportError::new(Fate::Retry, "not now")));
                continue;
            }
            let id = message.unique_id.clone().expect("each row has a unique id");
            let duplicate = !state.known.insert(id);
            if !duplicate {
                state.accepted.push(message);
            }
            answers.push(match reply {
                Some(Reply::Lost) => Err(TransportError::new(Fate::Unknown, "the answer is lost")),
                _ => Ok(Accepted {
                    id: Some(state.accepted.len()),
                    sequence: None,
                    duplicate,
                }),
            });
        }
        answers
    }
}
