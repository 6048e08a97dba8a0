//! Packs that a source gives, and what becomes of the messages in them.
//!
//! A pack has one lease, so it is settled once: when each of its messages has ended. It is acknowledged if all of them are.
//! If one failed, the pack comes again, and a worker that remembers it leaves out what was done of it; another worker does
//! that again. If one is rejected, and none is to come again, the pack is.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use lockgate_core::{Leased, MessageName, Settlement, cut_reason, limits::HoldScope};

/// What a worker remembers of packs that may come again, in messages.
const REMEMBERED_MAX: usize = 1 << 16;

/// How the messages of a pack have ended, each in its place.
pub(super) type Ends = Vec<Option<Settlement>>;

/// The messages of a pack under a lease.
#[derive(Debug)]
pub(super) struct Pack {
    pub(super) name: Option<MessageName>,
    /// What was done of it under earlier leases.
    pub(super) done: Ends,
}

/// One message of a pack.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) pack: Arc<Pack>,
    pub(super) index: usize,
}

/// What a pack is remembered by. A queue in memory has numbers only, and lives no longer than this.
pub(super) fn name_of<Receipt>(leased: &Leased<Receipt>) -> Option<MessageName> {
    let number = || Some(MessageName::Text(leased.sequence?.0.to_string().into()));
    leased.name.clone().or_else(number)
}

/// How a pack ends whose messages have ended so; `None`: some have not.
pub(super) fn of_all(ends: &Ends) -> Option<Settlement> {
    let ends: Option<Vec<&Settlement>> = ends.iter().map(Option::as_ref).collect();
    let ends = ends?;
    let longest =
        |of: fn(&Settlement) -> Option<Duration>| ends.iter().copied().filter_map(of).max();
    // The first reason, and of which message.
    let reason = |of: fn(&Settlement) -> Option<&Arc<str>>| {
        let mut reasons = ends
            .iter()
            .zip(1..)
            .filter_map(|(how, at)| Some((of(how)?, at)));
        let count = ends.len();
        let text =
            |(reason, at): (_, usize)| format!("message {at} of {count} in its pack: {reason}");
        reasons.next().map(text).map(|text| cut_reason(text.into()))
    };
    // A pack that fails for ever uses up its attempts.
    if ends
        .iter()
        .any(|how| matches!(how, Settlement::Nack { .. }))
    {
        let delay = longest(|how| match how {
            Settlement::Nack { delay, .. }
            | Settlement::Defer { delay }
            | Settlement::Hold { delay, .. } => Some(*delay),
            _ => None,
        });
        return Some(Settlement::Nack {
            delay: delay.unwrap_or_default(),
            reason: reason(|how| match how {
                Settlement::Nack { reason, .. } => reason.as_ref(),
                _ => None,
            }),
        });
    }
    // Nothing else is held for longer because one message waits longer: that one asks again.
    let held = longest(|how| match how {
        Settlement::Hold { delay, .. } => Some(*delay),
        _ => None,
    });
    if let Some(delay) = held {
        let is_wide = |how: &&Settlement| {
            matches!(
                how,
                Settlement::Hold {
                    scope: HoldScope::Queue,
                    ..
                }
            )
        };
        let scope = match ends.iter().any(is_wide) {
            true => HoldScope::Queue,
            false => HoldScope::Key,
        };
        return Some(Settlement::Hold { delay, scope });
    }
    let deferred = longest(|how| match how {
        Settlement::Defer { delay } => Some(*delay),
        _ => None,
    });
    if let Some(delay) = deferred {
        return Some(Settlement::Defer { delay });
    }
    if ends.contains(&&Settlement::GiveBack) {
        return Some(Settlement::GiveBack);
    }
    if ends
        .iter()
        .any(|how| matches!(how, Settlement::Reject { .. }))
    {
        let reason = reason(|how| match how {
            Settlement::Reject { reason } => reason.as_ref(),
            _ => None,
        });
        return Some(Settlement::Reject { reason });
    }
    Some(Settlement::Ack)
}

/// Packs that may come again, with what was done of them.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    packs: HashMap<MessageName, Ends>,
    order: VecDeque<MessageName>,
    messages: usize,
}

impl Remembered {
    /// Keeps what was done of a pack.
    pub(super) fn keep(&mut self, name: &MessageName, ends: &Ends) {
        let is_done =
            |how: &&Settlement| matches!(how, Settlement::Ack | Settlement::Reject { .. });
        let done = ends.iter().map(|how| how.as_ref().filter(is_done).cloned());
        let done: Ends = done.collect();
        if done.iter().all(Option::is_none) {
            return;
        }
        self.take(name);
        self.messages += done.len();
        self.packs.insert(name.clone(), done);
        self.order.push_back(name.clone());
        while self.messages > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            let gone = self.packs.remove(&oldest).unwrap_or_default();
            self.messages -= gone.len();
        }
    }

    /// What was done of a pack. It is kept, as the pack may come again whatever becomes of it now.
    pub(super) fn done(&self, name: &MessageName) -> Option<&Ends> {
        self.packs.get(name)
    }

    /// Forgets a pack, and returns what was done of it.
    pub(super) fn take(&mut self, name: &MessageName) -> Option<Ends> {
        let ends = self.packs.remove(name)?;
        // Mostly it is one of the last.
        if let Some(at) = self.order.iter().rposition(|other| other == name) {
            self.order.remove(at);
        }
        self.messages -= ends.len();
        Some(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_ends_when_all_of_it_has_and_as_its_worst() {
        let nack = |reason: Option<&str>| Settlement::Nack {
            delay: Duration::from_secs(1),
            reason: reason.map(Into::into),
        };
        let reject = |reason: &str| Settlement::Reject {
            reason: Some(reason.into()),
        };
        let ack = || Some(Settlement::Ack);
        let defer = |seconds| Settlement::Defer {
            delay: Duration::from_secs(seconds),
        };
        let hold = |seconds, scope| Settlement::Hold {
            delay: Duration::from_secs(seconds),
            scope,
        };
        let back = || Some(Settlement::GiveBack);
        assert_eq!(of_all(&vec![ack(), None]), None);
        assert_eq!(of_all(&vec![ack(), ack()]), ack());
        let rejected = of_all(&vec![ack(), Some(reject("no")), Some(reject("nor"))]);
        assert_eq!(rejected, Some(reject("message 2 of 3 in its pack: no")));
        // What goes back costs no attempt.
        assert_eq!(of_all(&vec![back(), Some(reject("no"))]), back());
        let failed = vec![
            back(),
            Some(nack(None)),
            Some(nack(Some("why"))),
            Some(reject("no")),
        ];
        let failed = of_all(&failed);
        assert_eq!(failed, Some(nack(Some("message 3 of 4 in its pack: why"))));
        assert_eq!(of_all(&vec![Some(nack(None)), ack()]), Some(nack(None)));
        // The longest wait counts, and the widest hold.
        let waits = of_all(&vec![Some(defer(2)), Some(defer(5)), back()]);
        assert_eq!(waits, Some(defer(5)));
        let (narrow, wide) = (hold(3, HoldScope::Key), hold(2, HoldScope::Queue));
        let held = of_all(&vec![Some(defer(9)), Some(narrow), Some(wide)]);
        assert_eq!(held, Some(hold(3, HoldScope::Queue)));
        let delay = Duration::from_secs(9);
        let failed = of_all(&vec![Some(nack(None)), Some(defer(9))]);
        assert_eq!(
            failed,
            Some(Settlement::Nack {
                delay,
                reason: None
            })
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut remembered = Remembered::default();
        for number in 0..40 {
            let mut ends = vec![Some(Settlement::Ack); 4_096];
            ends[0] = Some(Settlement::GiveBack);
            let name = MessageName::Text(format!("{number}").into());
            remembered.keep(&name, &ends);
        }
        assert_eq!((remembered.packs.len(), remembered.order.len()), (16, 16));
        let oldest = MessageName::Text("24".into());
        assert!(
            remembered
                .take(&oldest)
                .is_some_and(|ends| ends[0].is_none())
        );
        assert_eq!(remembered.messages, 15 * 4_096);
    }
}
