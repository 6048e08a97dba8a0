//! The answer to a client that follows a ledger.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::Frame;

use super::{body::FollowerShare, connection::Client, refusal::Refusal};
use crate::api::{Code, Follow, Problem};

type Step = Pin<Box<dyn Future<Output = (Follow, Option<Bytes>)> + Send>>;

/// Lines on their way to a client.
pub(crate) struct Stream {
    /// Reads the next lines. `None` at the end.
    step: Option<Step>,
    /// Of the lines that hyper has now.
    share: Option<FollowerShare>,
    client: Arc<Client>,
}

impl Stream {
    pub(super) fn new(follow: Follow, client: &Arc<Client>) -> Self {
        Self {
            step: Some(Box::pin(step(follow))),
            share: None,
            client: client.clone(),
        }
    }

    /// hyper asks for the next lines when it has room for them.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        let Some(running) = &mut self.step else {
            return Poll::Ready(None);
        };
        self.share = None;
        let (mut follow, lines) = ready!(running.as_mut().poll(cx));
        let Some(mut lines) = lines else {
            self.step = None;
            self.client.progress.answered(None, None);
            return Poll::Ready(None);
        };
        let followers = &self.client.core.followers;
        match followers.hold(self.client.peer.ip(), lines.len()) {
            Ok(share) => self.share = Some(share),
            Err(_) => {
                let problem = Problem::new(Code::Unavailable, Refusal::AnswersFull.to_string());
                lines = follow.end(&problem);
            }
        }
        self.step = Some(Box::pin(step(follow)));
        Poll::Ready(Some(Frame::data(lines)))
    }
}

async fn step(mut follow: Follow) -> (Follow, Option<Bytes>) {
    let lines = follow.next().await;
    (follow, lines)
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}
