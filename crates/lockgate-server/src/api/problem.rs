//! The table of all error codes of the API, and the form of errors (RFC 9457).

use std::num::NonZeroU64;

use hyper::{
    HeaderMap, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use lockgate_core::{ProducerRefused, coordination::FenceError};
use lockgate_engine::EngineError;
use lockgate_machine::{Rejection, ScheduleError, Setting, SettingsError, StaleReason, TimingPart};
use serde::{Serialize, Serializer};

use super::shapes::{LedgerFault, RecordFault, StaleWord};
use crate::{
    fault::{shorten, shortened},
    http::response::Response,
};

/// Declares the codes once: the enum, the status and the title of each.
macro_rules! codes {
    ($($code:ident = $name:literal, $status:literal, $title:literal;)*) => {
        /// What went wrong, for programs. Codes are never renamed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum Code {
            $(#[doc = concat!($title, ".")] $code,)*
        }

        impl Code {
            /// Every code.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$code,)*];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$code => $name,)* }
            }

            /// The status of its answer.
            pub(crate) const fn status(self) -> u16 {
                match self { $(Self::$code => $status,)* }
            }

            /// It as a URI.
            const fn uri(self) -> &'static str {
                match self { $(Self::$code => concat!("urn:lockgate:problem:", $name),)* }
            }

            const fn title(self) -> &'static str {
                match self { $(Self::$code => $title,)* }
            }
        }
    };
}

codes! {
    // About the request.
    MalformedRequest = "malformed_request", 400, "The request cannot be read";
    InvalidValue = "invalid_value", 400, "A value is not allowed";
    KeyRequired = "key_required", 400, "The queue is keyed and the message has no key";
    KeyNotTaken = "key_not_taken", 400, "The queue is not keyed, keeps no order, and takes a group instead of a key";
    GroupNotTaken = "group_not_taken", 400, "The queue is keyed and takes a key instead of a group";
    UniqueIdRequired = "unique_id_required", 400, "The queue wants a unique id on every message";
    PatternNotTaken = "pattern_not_taken", 400, "The exchange is of another kind, which has no binding by that";
    InvalidCopyKey = "invalid_copy_key", 400, "What a binding takes as the key of a queue's copy cannot be a key";
    InvalidReceipt = "invalid_receipt", 400, "The receipt was not given out by this server";
    InvalidPage = "invalid_page", 400, "The page token was not given out by this server";
    // About the caller.
    Unauthenticated = "unauthenticated", 401, "The request is not signed, or not well";
    AccessDenied = "access_denied", 403, "The access key may not do that";
    NotServed = "not_served", 403, "Such requests are not served";
    // About the target.
    NotFound = "not_found", 404, "There is nothing at this address";
    QueueNotFound = "queue_not_found", 404, "There is no such queue";
    MessageNotFound = "message_not_found", 404, "There is no such message in the queue";
    KeyNotFound = "key_not_found", 404, "The queue has nothing under that key";
    RecordNotFound = "record_not_found", 404, "There is no such record";
    ProducerNotFound = "producer_not_found", 404, "The queue knows no such producer";
    LedgerNotFound = "ledger_not_found", 404, "There is no such ledger";
    ExchangeNotFound = "exchange_not_found", 404, "There is no such exchange";
    ScheduleNotFound = "schedule_not_found", 404, "There is no such schedule";
    EventNotFound = "event_not_found", 404, "No event of the ledger has that unique id";
    StateNotFound = "state_not_found", 404, "The key has no state";
    MethodNotAllowed = "method_not_allowed", 405, "The address does not take this method";
    // About the state.
    QueueExists = "queue_exists", 409, "There is a queue of that name with other settings";
    QueueNotKeyed = "queue_not_keyed", 409, "The queue is not keyed: nothing holds its messages up, and no key has a state";
    MessageInFlight = "message_in_flight", 409, "The message is in flight";
    LeaseStale = "lease_stale", 409, "A lease is not current any more";
    RecordConflict = "record_conflict", 409, "The record has another version";
    RecordHeld = "record_held", 409, "Somebody holds the record's lease";
    StateConflict = "state_conflict", 409, "The state of the key has another version";
    LedgerExists = "ledger_exists", 409, "There is a ledger of that name with other options";
    LedgerMoved = "ledger_moved", 409, "The head of the ledger is another one";
    LedgerDeposed = "ledger_deposed", 409, "The ledger has seen a later epoch than that of the writer";
    LedgerSealed = "ledger_sealed", 409, "The ledger is sealed";
    ReaderMoved = "reader_moved", 409, "The reader is not where it was expected";
    LedgerBeyond = "ledger_beyond", 409, "The ledger has not got to that place";
    ExchangeExists = "exchange_exists", 409, "There is an exchange of that name with another kind or rule";
    ExchangeCycle = "exchange_cycle", 409, "The exchange would lead back to itself";
    ExchangeUsed = "exchange_used", 409, "Another exchange leads to the exchange";
    ScheduleChanged = "schedule_changed", 409, "The schedule has another generation";
    ScheduleUnsettled = "schedule_unsettled", 409, "The last message of the schedule is still there";
    Unroutable = "unroutable", 409, "The exchange finds no queue for the message, and refuses such messages";
    RouteTooLarge = "route_too_large", 409, "The message would go to too many queues, or finding them takes too long";
    Deposed = "deposed", 409, "The term of the fence is over: the server has seen a later one of that election";
    ProducerFenced = "producer_fenced", 409, "Another incarnation of the producer has opened the queue";
    ProducerGap = "producer_gap", 409, "The record that this one comes after was not accepted: send both again";
    ProducerUnknown = "producer_unknown", 409, "The queue does not know this incarnation of the producer: open it again";
    SentBefore = "sent_before", 409, "The record of the producer was accepted before";
    LedgerTrimmed = "ledger_trimmed", 410, "The ledger does not keep these events any more";
    // About limits.
    BodyTooLarge = "body_too_large", 413, "The request body is too large";
    MessageTooLarge = "message_too_large", 413, "The message is too large for the queue";
    UnsupportedMediaType = "unsupported_media_type", 415, "The body is not of the type that is taken here";
    QueueFull = "queue_full", 429, "The queue holds as much as its quota allows";
    UniqueIdsFull = "unique_ids_full", 429, "The memory for remembered unique ids is used up";
    InFlightFull = "in_flight_full", 429, "As many messages are in flight as the queue allows";
    ProducersFull = "producers_full", 429, "The queue remembers as many producers as it may";
    RecordsFull = "records_full", 429, "The records take as much memory as they may";
    LedgerFull = "ledger_full", 429, "The ledgers remember as much as they may";
    // About the server.
    UnknownOutcome = "unknown_outcome", 500, "Storage failed, and whether it was done is unknown";
    LedgerDamaged = "ledger_damaged", 500, "Events of the ledger are lost, or contradict one another";
    Unavailable = "unavailable", 503, "The server cannot do it now; nothing was done";
    DiskFull = "disk_full", 503, "The disk is full; nothing was done";
}

/// An error: RFC 9457's members, and further ones for programs.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Problem {
    /// `urn:lockgate:problem:` and the code.
    #[serde(rename = "type", serialize_with = "uri")]
    #[cfg_attr(test, schemars(with = "&'static str"))]
    kind: Code,
    /// The meaning of the code, for people; the same for every error with this code.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What went wrong, for programs.
    pub(super) code: Code,
    /// What was wrong with this request, and where, for people.
    pub(super) detail: String,
    /// The field or parameter that caused the error, such as `settings.lease_ms` or `sends[2].key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<Box<str>>,
    /// With `lease_stale`: why the lease is stale.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<StaleWord>,
    /// With `queue_not_found`: the name, as it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<Box<str>>,
    /// With the codes of records, and with `lease_stale` for the lease of a record: what it is instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<Box<RecordFault>>,
    /// With some of the codes of ledgers: what it is instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<Box<LedgerFault>>,
    /// With `state_conflict`: the version that the state has; absent if the key has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<NonZeroU64>,
    /// With `producer_fenced`: the incarnation that the queue takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    incarnation: Option<NonZeroU64>,
    /// With `deposed`: the highest epoch that the server has seen of the election.
    #[serde(skip_serializing_if = "Option::is_none")]
    newest_epoch: Option<NonZeroU64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn uri<S: Serializer>(code: &Code, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.uri())
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: code,
            title: code.title(),
            status: code.status(),
            code,
            detail: detail.into(),
            field: None,
            reason: None,
            queue: None,
            record: None,
            ledger: None,
            version: None,
            incarnation: None,
            newest_epoch: None,
        }
    }

    /// The error for a value, and its field.
    pub(super) fn invalid(field: &str, detail: impl std::fmt::Display) -> Self {
        let field = &*shorten(field);
        let detail = shortened(format_args!("{field}: {detail}"));
        Self::new(Code::InvalidValue, detail).at(field)
    }

    /// A queue that does not exist, or that the caller may not see.
    pub(super) fn queue_not_found(name: &str) -> Self {
        Self {
            queue: Some(name.into()),
            ..Self::new(
                Code::QueueNotFound,
                format!("queue {name:?} does not exist"),
            )
        }
    }

    pub(super) fn stale(reason: StaleReason, detail: String) -> Self {
        Self {
            reason: Some(reason.into()),
            ..Self::new(Code::LeaseStale, detail)
        }
    }

    /// The same error, for a record.
    pub(super) fn of_record(mut self, record: RecordFault) -> Self {
        self.record = Some(Box::new(record));
        self
    }

    /// The same error, for a ledger.
    pub(super) fn of_ledger(mut self, ledger: LedgerFault) -> Self {
        self.ledger = Some(Box::new(ledger));
        self
    }

    /// The same error for a field.
    pub(super) fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into().into());
        self
    }

    /// The same error for an entry of a list: `within` is put before the field.
    pub(super) fn within(mut self, within: &str) -> Self {
        let inner = self.field.take();
        if let Some(inner) = &inner {
            // The detail begins with the field's name too.
            if let Some(rest) = self.detail.strip_prefix(&**inner) {
                self.detail = format!("{within}.{inner}{rest}");
            }
        }
        self.field = Some(match inner {
            Some(inner) => format!("{within}.{inner}").into(),
            None => within.into(),
        });
        self
    }

    pub(crate) fn response(&self) -> Response {
        let mut headers = HeaderMap::with_capacity(4);
        let content_type = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == 503 {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        Response {
            status: StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST),
            headers,
            body: serde_json::to_vec(self).unwrap_or_default().into(),
            action: None,
            on_sent: None,
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Rejected(rejection) => rejection.into(),
            EngineError::Overloaded | EngineError::Stopped { .. } => {
                Self::new(Code::Unavailable, error.to_string())
            }
            // Nothing happened: reading failed, and the leases were given back.
            EngineError::Unreadable { .. } => {
                tracing::error!(error = ?error, "a message could not be read");
                Self::new(Code::Unavailable, error.to_string())
            }
            EngineError::Index { .. } => {
                let why = lockgate_core::with_sources(&error).to_string();
                tracing::error!(error = why, "a unique id could not be looked up");
                Self::new(Code::Unavailable, error.to_string())
            }
            error => {
                tracing::error!(%error, "a request's outcome is unknown");
                Self::new(Code::UnknownOutcome, error.to_string())
            }
        }
    }
}

impl From<Rejection> for Problem {
    fn from(rejection: Rejection) -> Self {
        let detail = rejection.to_string();
        match rejection {
            Rejection::QueueNotFound { queue } => Self::queue_not_found(queue.as_str()),
            Rejection::Settings { source, .. } => source.into(),
            Rejection::KeyRequired { .. } => Self::new(Code::KeyRequired, detail).at("key"),
            Rejection::KeyNotTaken { .. } => Self::new(Code::KeyNotTaken, detail).at("key"),
            Rejection::GroupNotTaken { .. } => Self::new(Code::GroupNotTaken, detail).at("group"),
            Rejection::UniqueIdRequired { .. } => {
                Self::new(Code::UniqueIdRequired, detail).at("unique_id")
            }
            Rejection::MessageTooLarge { .. } => Self::new(Code::MessageTooLarge, detail),
            Rejection::RecordTooLarge { .. } => Self::new(Code::BodyTooLarge, detail),
            Rejection::Level { .. } => Self::new(Code::InvalidValue, detail).at("level"),
            Rejection::QuotaExceeded { .. } => Self::new(Code::QueueFull, detail),
            Rejection::DedupFull { .. } => Self::new(Code::UniqueIdsFull, detail),
            Rejection::InFlightFull { .. } => Self::new(Code::InFlightFull, detail),
            Rejection::TransactionStale { index, reason } => {
                Self::stale(reason, detail).at(format!("settles[{index}]"))
            }
            Rejection::TransactionRefused { index, source } => {
                let mut problem = Self::from(*source);
                let message = if problem.field.is_some() {
                    ".message"
                } else {
                    ""
                };
                problem = problem.within(&format!("sends[{index}]{message}"));
                problem.detail = detail;
                problem
            }
            Rejection::TransactionPublishRefused { index, source } => {
                let problem = Self::from(*source).within(&format!("publishes[{index}]"));
                Self { detail, ..problem }
            }
            // States of a transaction come from its settles, whose leases are looked at first.
            Rejection::KeyStateStale { reason, .. } => Self::stale(reason, detail),
            Rejection::KeyStateConflict { version, .. } => Self {
                version: version.and_then(|version| NonZeroU64::new(version.0)),
                ..Self::new(Code::StateConflict, detail)
            },
            Rejection::KeyStatesFull { max } => {
                Self::new(Code::RecordsFull, detail).of_record(RecordFault {
                    bytes_max: Some(max),
                    ..RecordFault::default()
                })
            }
            Rejection::NoneWithoutKey { .. } => Self::new(Code::KeyRequired, detail),
            Rejection::KeyStateNotTaken { .. } => Self::new(Code::QueueNotKeyed, detail),
            Rejection::OtherShard { .. } => Self::new(Code::InvalidReceipt, detail),
            Rejection::MessageNotFound { .. } => Self::new(Code::MessageNotFound, detail),
            Rejection::MessageInFlight { .. } => Self::new(Code::MessageInFlight, detail),
            Rejection::KeyNotFound { .. } => Self::new(Code::KeyNotFound, detail),
            Rejection::SentBefore { .. } => Self::new(Code::SentBefore, detail),
            Rejection::Producer { refused, .. } => match refused {
                ProducerRefused::Fenced { current } => Self {
                    incarnation: NonZeroU64::new(current.0),
                    ..Self::new(Code::ProducerFenced, detail)
                },
                ProducerRefused::Gap => Self::new(Code::ProducerGap, detail),
                _ => Self::new(Code::ProducerUnknown, detail),
            },
            Rejection::ProducersFull { .. } => Self::new(Code::ProducersFull, detail),
            Rejection::ProducerNotFound { .. } => Self::new(Code::ProducerNotFound, detail),
            Rejection::Record(error) => error.into(),
            Rejection::Ledger(error) => error.into(),
            Rejection::Exchange(error) => error.into(),
            Rejection::Schedule(error) => match error {
                ScheduleError::NotFound { .. } => Self::new(Code::ScheduleNotFound, detail),
                ScheduleError::Generation { .. } => Self::new(Code::ScheduleChanged, detail),
                ScheduleError::Unsettled { .. } => Self::new(Code::ScheduleUnsettled, detail),
                // Its queue or exchange says it.
                ScheduleError::Target { source, .. } => {
                    let mut problem = Self::from(*source);
                    problem.detail = detail;
                    match problem.field {
                        Some(_) => problem.within("message"),
                        None => problem,
                    }
                }
                ScheduleError::Timing {
                    part: Some(part), ..
                } => {
                    let field = match part {
                        TimingPart::Period => "every_ms",
                        TimingPart::Cron => "cron",
                        TimingPart::Zone => "zone",
                    };
                    Self::new(Code::InvalidValue, detail).at(field)
                }
                _ => Self::new(Code::InvalidValue, detail),
            },
            Rejection::PublishRefused { source, .. } => {
                let mut problem = Self::from(*source);
                problem.detail = detail;
                match problem.field {
                    Some(_) => problem.within("message"),
                    None => problem,
                }
            }
            Rejection::Fenced(FenceError::Deposed { newest, .. }) => Self {
                newest_epoch: NonZeroU64::new(newest.0),
                ..Self::new(Code::Deposed, detail)
            },
            Rejection::LogFull { .. } => Self::new(Code::DiskFull, detail),
            Rejection::ShardFull { .. }
            | Rejection::OutOfDescriptors
            | Rejection::LookUp { .. } => Self::new(Code::Unavailable, detail),
            _ => Self::new(Code::InvalidValue, detail),
        }
    }
}

impl From<SettingsError> for Problem {
    fn from(error: SettingsError) -> Self {
        let field = match Setting::named(error.setting()) {
            Some(setting) => format!("settings.{}", setting.json_name()),
            None => error.setting().to_owned(),
        };
        Self::new(Code::InvalidValue, format!("{field}: {error}")).at(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_written_as_it_is_named() {
        for &code in Code::ALL {
            let problem = Problem::new(code, "x");
            let written = serde_json::to_value(&problem).unwrap();
            assert_eq!(written["code"], code.name());
            assert_eq!(problem.response().status.as_u16(), code.status());
        }
    }

    #[test]
    fn an_entry_of_a_list_is_named_with_its_place() {
        let problem = Problem::invalid("key", "must not be empty").within("messages[3]");
        assert_eq!(problem.field.as_deref(), Some("messages[3].key"));
        assert_eq!(problem.detail, "messages[3].key: must not be empty");
        let problem = Problem::new(Code::QueueFull, "full").within("sends[0]");
        assert_eq!(problem.field.as_deref(), Some("sends[0]"));
    }
}
