//! What a sequencer decides: what it appends of what came, and what it does when an append is in doubt. No I/O.

use std::ops::Range;

use lockgate_core::{
    Fate, InputId, Message, MessageName, QueueName, UniqueId,
    ledger::{Append, EVENT_BYTES_MAX, EventHash, LedgerError, NewEvent},
    pack,
};

use crate::message::{header, shown};

/// The header that has the unique id of an event, where it is not that of the message.
pub(super) const UNIQUE_ID: &str = "unique_id";

/// After so many appends in doubt, one behind the other, a leader gives up its term.
pub(super) const ATTEMPTS_MAX: u32 = 6;

/// What becomes of messages.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Of each message, in order.
    pub(super) inputs: Vec<Planned>,
    /// Which of the inputs go into one append, in order.
    pub(super) appends: Vec<Range<usize>>,
}

/// What becomes of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// It is appended.
    Event(NewEvent),
    /// It never can be.
    Rejected(String),
}

/// Neither the message nor its source has an id that lasts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoId;

impl Plan {
    /// Splits messages into appends within their bounds. `carried`: whether all sinks could carry an event, or why not.
    pub(super) fn new<'m>(
        source: &QueueName,
        messages: impl Iterator<Item = (Option<&'m MessageName>, &'m Message)>,
        carried: impl Fn(&NewEvent) -> Result<(), String>,
        allow_repeats: bool,
    ) -> Result<Self, NoId> {
        let mut plan = Self::default();
        let (mut first, mut events, mut bytes, mut id_bytes) = (0, 0, 0, 0);
        for (at, (name, message)) in messages.enumerate() {
            let planned = plan_one(source, name, message, &carried);
            if let Planned::Event(event) = &planned {
                if event.unique_id.is_none() && event.input.is_none() && !allow_repeats {
                    return Err(NoId);
                }
                let (len, ids) = (event.payload.len(), event.id_bytes());
                if events == Append::EVENTS_MAX
                    || bytes + len > Append::BYTES_MAX
                    || id_bytes + ids > Append::ID_BYTES_MAX
                {
                    plan.appends.push(first..at);
                    (first, events, bytes, id_bytes) = (at, 0, 0, 0);
                }
                (events, bytes, id_bytes) = (events + 1, bytes + len, id_bytes + ids);
            }
            plan.inputs.push(planned);
        }
        plan.appends.push(first..plan.inputs.len());
        Ok(plan)
    }
}

fn plan_one(
    source: &QueueName,
    name: Option<&MessageName>,
    message: &Message,
    carried: impl Fn(&NewEvent) -> Result<(), String>,
) -> Planned {
    let len = message.body.len();
    if len > EVENT_BYTES_MAX {
        return Planned::Rejected(format!(
            "its body has {len} bytes, and an event has at most {EVENT_BYTES_MAX}"
        ));
    }
    if pack::is_pack(message) {
        return Planned::Rejected(
            "it is a pack of several messages: have its producer send them one by one".to_owned(),
        );
    }
    let unique_id = match header(message, UNIQUE_ID) {
        None => message.unique_id.clone(),
        Some(value) => {
            let text = str::from_utf8(value).ok();
            match text.and_then(|text| UniqueId::new(text).ok()) {
                Some(id) => Some(id),
                None => {
                    let (value, max) = (shown(value), UniqueId::MAX_LEN);
                    return Planned::Rejected(format!(
                        "its header {UNIQUE_ID} is {value:?}: a unique id is a text of 1 to {max} bytes without control characters"
                    ));
                }
            }
        }
    };
    let event = NewEvent {
        unique_id,
        input: name.map(|name| input_of(source, name)),
        payload: message.body.clone(),
    };
    match carried(&event) {
        Ok(()) => Planned::Event(event),
        Err(why) => Planned::Rejected(why),
    }
}

/// What a ledger calls a message of that source: `orders/` and the name that the source has for it. A name that has no room in an
/// [`InputId`] is named by its hash: `orders#` and 64 hexadecimal digits.
fn input_of(source: &QueueName, name: &MessageName) -> InputId {
    let name = name.to_string();
    InputId::new(&format!("{source}/{name}")).unwrap_or_else(|_| {
        let hash = EventHash::START.next(name.as_bytes());
        InputId::new(&format!("{source}#{hash}"))
            .expect("80 bytes and 65, none a control character")
    })
}

/// What a leader does when an append, or a head, did not come through for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// It reads the head, and decides again.
    Again,
    /// It gives up its term.
    GiveUp,
}

/// After the attempt of that number, from 1. Only an append whose events all have an id may be repeated when it may have happened.
pub(super) fn doubt(error: &LedgerError, attempt: u32, may_repeat: bool) -> Doubt {
    let again = match error {
        // Nothing happened: somebody has appended, or an earlier attempt came through.
        LedgerError::Moved { .. } | LedgerError::Unavailable { .. } => true,
        LedgerError::Unknown { .. } => may_repeat,
        _ => false,
    };
    match again && attempt < ATTEMPTS_MAX {
        true => Doubt::Again,
        false => Doubt::GiveUp,
    }
}

/// Whether the next attempt to publish fares no better, if nobody helps: what was read is gone, or the ledger refuses.
pub(super) fn ledger_lasts(error: &LedgerError) -> bool {
    // Whoever is deposed hears of it by its lease.
    !error.may_pass() && !matches!(error, LedgerError::Deposed { .. })
}

/// The same of a sink: it is gone, or can never take the event.
pub(super) fn sink_lasts(fate: Fate) -> bool {
    matches!(fate, Fate::Closed | Fate::Refused | Fate::Unsupported)
}

#[cfg(test)]
mod tests {
    use lockgate_core::{Epoch, Header, ledger::SequenceId};

    use super::*;

    fn source() -> QueueName {
        QueueName::new("orders").unwrap()
    }

    fn plan(messages: &[Message], allow_repeats: bool) -> Result<Plan, NoId> {
        let messages = messages.iter().map(|message| (None, message));
        Plan::new(&source(), messages, |_| Ok(()), allow_repeats)
    }

    #[test]
    fn appends_keep_their_bounds_and_the_order() {
        let large = Message::new(vec![0; EVENT_BYTES_MAX]);
        let too_large = Message::new(vec![0; EVENT_BYTES_MAX + 1]);
        let fit = Append::BYTES_MAX / EVENT_BYTES_MAX;
        let mut messages = vec![large; fit];
        messages.extend([too_large, Message::new("x"), Message::new("y")]);
        let made = plan(&messages, true).unwrap();
        assert_eq!(made.appends, [0..fit + 1, fit + 1..fit + 3]);
        assert!(matches!(&made.inputs[fit], Planned::Rejected(why) if why.contains("at most")));
        let many = plan(&vec![Message::new("x"); Append::EVENTS_MAX + 1], true).unwrap();
        assert_eq!(many.appends.len(), 2);
        assert!(matches!(plan(&[Message::new("x")], false), Err(NoId)));
        let nothing = plan(&[], true).unwrap().appends;
        assert_eq!(nothing, std::slice::from_ref(&(0..0)));
    }

    #[test]
    fn what_is_no_event_is_rejected_with_the_reason() {
        let with = |value: &str| {
            let mut message = Message::new("x");
            message.unique_id = Some(UniqueId::new("of-the-message").unwrap());
            message.headers.push(Header {
                name: UNIQUE_ID.into(),
                kind: "String".into(),
                value: value.to_owned().into(),
            });
            message
        };
        let pack = pack::pack(&[Message::new("x"), Message::new("y")], false);
        let made = plan(&[with("of-the-header"), with("a\nb"), pack], true).unwrap();
        let [
            Planned::Event(event),
            Planned::Rejected(id),
            Planned::Rejected(several),
        ] = &made.inputs[..]
        else {
            panic!("{made:?}");
        };
        // What somebody has written for the ledger counts more than what a queue has made up for itself.
        assert_eq!(event.unique_id, UniqueId::new("of-the-header").ok());
        assert!(id.contains("unique_id"), "{id}");
        assert!(several.contains("pack"), "{several}");

        let messages = [Message::new("12345678"), Message::new("123456789")];
        let named = messages.iter().map(|message| (None, message));
        let carried = |event: &NewEvent| match event.payload.len() {
            ..=8 => Ok(()),
            _ => Err("too large".to_owned()),
        };
        let made = Plan::new(&source(), named, carried, true).unwrap();
        assert!(matches!(
            &made.inputs[..],
            [Planned::Event(_), Planned::Rejected(_)]
        ));
    }

    #[test]
    fn inputs_of_two_names_are_two() {
        let input = |name: &str| {
            let input = input_of(&source(), &MessageName::Text(name.into()));
            input.as_str().to_owned()
        };
        assert_eq!(input("7"), "orders/7");
        let (long, longer) = ("x".repeat(300), "x".repeat(301));
        assert!(input(&long).starts_with("orders#"));
        assert_ne!(input(&long), input(&longer));
        assert_ne!(input("a\n"), input("a\t"));
        let longest = QueueName::new(&"q".repeat(QueueName::MAX_LEN)).unwrap();
        assert!(
            input_of(&longest, &MessageName::Text(long.into()))
                .as_str()
                .len()
                <= 256
        );
    }

    #[test]
    fn only_what_may_be_done_twice_is_tried_again() {
        let unknown = LedgerError::Unknown { why: "lost".into() };
        let moved = LedgerError::Moved {
            head: SequenceId(1),
        };
        let (epoch, newest) = (Epoch(1), Epoch(2));
        let deposed = LedgerError::Deposed { epoch, newest };
        assert_eq!(doubt(&unknown, 1, true), Doubt::Again);
        assert_eq!(doubt(&unknown, 1, false), Doubt::GiveUp);
        assert_eq!(doubt(&moved, 1, false), Doubt::Again);
        assert_eq!(doubt(&moved, ATTEMPTS_MAX, true), Doubt::GiveUp);
        assert_eq!(doubt(&deposed, 1, true), Doubt::GiveUp);
    }
}
