//! The counters of the HTTP side.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hyper::StatusCode;
use lockgate_core::Distribution;

/// Declares an enum whose values are labels of a metric.
macro_rules! labels {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $type {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)*];

            pub(crate) const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)*
                }
            }
        }
    };
}

labels! {
    /// Why a request or a connection was refused or cut.
    Refused {
        /// `accept` failed, most likely for lack of file descriptors.
        Accept = "accept",
        Connections = "connections",
        ConnectionsOfAddress = "connections_of_address",
        /// The system's clock shows a time that HTTP cannot express.
        Clock = "clock",
        /// Includes handshakes that did not end in time.
        TlsHandshake = "tls_handshake",
        HeaderDeadline = "header_deadline",
        BodyDeadline = "body_deadline",
        AnswerDeadline = "answer_deadline",
        /// hyper could not parse it.
        Malformed = "malformed",
        HeadTooLarge = "head_too_large",
        Framing = "framing",
        Host = "host",
        Origin = "origin",
        Path = "path",
        Method = "method",
        /// Not signed, or signed wrongly.
        Authentication = "authentication",
        ContentEncoding = "content_encoding",
        ContentType = "content_type",
        BodyTooLarge = "body_too_large",
        BodyBroken = "body_broken",
        BodiesFull = "bodies_full",
        BodiesOfAddress = "bodies_of_address",
        BodiesOfUnknown = "bodies_of_unknown",
        AnswersFull = "answers_full",
        Backup = "backup",
    }
}

labels! {
    /// What a request asked for.
    Action {
        /// Refused before the action was known, or an unknown action.
        Other = "other",
        Healthz = "healthz",
        Readyz = "readyz",
        Metrics = "metrics",
        Backup = "backup",
        Api = "api",
        Console = "console",
        AddPermission = "AddPermission",
        CancelMessageMoveTask = "CancelMessageMoveTask",
        ChangeMessageVisibility = "ChangeMessageVisibility",
        ChangeMessageVisibilityBatch = "ChangeMessageVisibilityBatch",
        CreateQueue = "CreateQueue",
        DeleteMessage = "DeleteMessage",
        DeleteMessageBatch = "DeleteMessageBatch",
        DeleteQueue = "DeleteQueue",
        GetQueueAttributes = "GetQueueAttributes",
        GetQueueUrl = "GetQueueUrl",
        ListDeadLetterSourceQueues = "ListDeadLetterSourceQueues",
        ListMessageMoveTasks = "ListMessageMoveTasks",
        ListQueueTags = "ListQueueTags",
        ListQueues = "ListQueues",
        PurgeQueue = "PurgeQueue",
        ReceiveMessage = "ReceiveMessage",
        RemovePermission = "RemovePermission",
        SendMessage = "SendMessage",
        SendMessageBatch = "SendMessageBatch",
        SetQueueAttributes = "SetQueueAttributes",
        StartMessageMoveTask = "StartMessageMoveTask",
        TagQueue = "TagQueue",
        UntagQueue = "UntagQueue",
        ConfirmSubscription = "ConfirmSubscription",
        CreateTopic = "CreateTopic",
        DeleteTopic = "DeleteTopic",
        GetSubscriptionAttributes = "GetSubscriptionAttributes",
        GetTopicAttributes = "GetTopicAttributes",
        ListSubscriptions = "ListSubscriptions",
        ListSubscriptionsByTopic = "ListSubscriptionsByTopic",
        ListTagsForResource = "ListTagsForResource",
        ListTopics = "ListTopics",
        Publish = "Publish",
        PublishBatch = "PublishBatch",
        SetSubscriptionAttributes = "SetSubscriptionAttributes",
        SetTopicAttributes = "SetTopicAttributes",
        Subscribe = "Subscribe",
        TagResource = "TagResource",
        Unsubscribe = "Unsubscribe",
        UntagResource = "UntagResource",
    }
}

impl Action {
    /// The action with that name.
    pub(crate) fn of_aws(name: Option<&str>) -> Self {
        name.and_then(|name| {
            let mut known = Self::ALL
                .iter()
                .copied()
                .filter(|action| action.is_of_aws());
            known.find(|action| action.label() == name)
        })
        .unwrap_or(Self::Other)
    }

    fn is_of_aws(self) -> bool {
        self as usize >= Self::AddPermission as usize
    }
}

/// Statuses with a counter of their own; any other status counts as 0.
const STATUSES: [u16; 16] = [
    0, 200, 201, 202, 400, 401, 403, 404, 405, 409, 413, 415, 429, 431, 500, 503,
];

/// All counters of one server.
#[derive(Debug)]
pub(crate) struct Counters {
    opened: AtomicU64,
    closed: AtomicU64,
    abandoned: AtomicU64,
    refused: [AtomicU64; Refused::ALL.len()],
    requests: [[AtomicU64; STATUSES.len()]; Action::ALL.len()],
    times: [Mutex<Distribution>; Action::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self {
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            refused: std::array::from_fn(zero),
            requests: std::array::from_fn(|_| std::array::from_fn(zero)),
            times: std::array::from_fn(|_| Mutex::new(Distribution::SHORT)),
        }
    }
}

impl Counters {
    pub(crate) fn connection_opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// A client was gone before its answer was ready.
    pub(crate) fn abandoned(&self) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self, reason: Refused) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn request(&self, action: Action, status: StatusCode, took: Duration) {
        let at = STATUSES
            .iter()
            .position(|&known| known == status.as_u16())
            .unwrap_or(0);
        self.requests[action as usize][at].fetch_add(1, Ordering::Relaxed);
        let micros = took.as_micros().try_into().unwrap_or(u64::MAX);
        self.time(action).record_micros(micros);
    }

    fn time(&self, action: Action) -> std::sync::MutexGuard<'_, Distribution> {
        // Numbers are whole whatever happens to who writes them.
        let time = self.times[action as usize].lock();
        time.unwrap_or_else(PoisonError::into_inner)
    }

    /// How long requests took, by action. Actions that never occurred are left out.
    pub(crate) fn each_time(&self) -> impl Iterator<Item = (Action, Distribution)> {
        let times = Action::ALL
            .iter()
            .map(|&action| (action, *self.time(action)));
        times.filter(|(_, spans)| spans.count() > 0)
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Connections open now.
    pub(crate) fn connections_open(&self) -> u64 {
        // In this order, so that every closed connection counts as opened too.
        let closed = self.closed.load(Ordering::Acquire);
        self.opened.load(Ordering::Relaxed).saturating_sub(closed)
    }

    /// Requests given up on by their clients.
    pub(crate) fn requests_abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.each_request().map(|(_, _, count)| count).sum()
    }

    /// Answered requests by action and status. Combinations that never occurred are left out.
    pub(crate) fn each_request(&self) -> impl Iterator<Item = (Action, u16, u64)> {
        Action::ALL.iter().flat_map(move |&action| {
            let counts = self.requests[action as usize].iter();
            STATUSES
                .iter()
                .zip(counts)
                .map(move |(&status, count)| (action, status, count.load(Ordering::Relaxed)))
                .filter(|&(_, _, count)| count > 0)
        })
    }

    pub(crate) fn each_refused(&self) -> impl Iterator<Item = (Refused, u64)> {
        let counts = self.refused.iter();
        Refused::ALL
            .iter()
            .zip(counts)
            .map(|(&reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_actions_become_labels() {
        assert_eq!(Action::of_aws(Some("SendMessage")), Action::SendMessage);
        for unknown in [
            Some("AmazonSQS.SendMessage"),
            Some("healthz"),
            Some(""),
            None,
        ] {
            assert_eq!(Action::of_aws(unknown), Action::Other, "{unknown:?}");
        }
    }
}
