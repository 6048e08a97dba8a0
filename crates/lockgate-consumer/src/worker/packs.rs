//! Packs that a source gives, and what becomes of the messages in them.
//!
//! A pack has one lease, so it is settled once: when each of its messages is. It is acknowledged if all of them are. If one
//! failed, the pack comes again, and a worker that has its messages of last time leaves out those that were done; another
//! worker runs them again. If one is rejected, and none is to come again, the pack is.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockgate_core::{Leased, Message, MessageName, Settlement, cut_reason, pack};

/// What a worker remembers of packs that come again, in messages.
const REMEMBERED_MAX: usize = 1 << 16;

/// The messages of a pack under a lease.
#[derive(Debug)]
pub(super) struct Pack {
    name: Option<MessageName>,
    ends: Mutex<Vec<Option<Settlement>>>,
}

/// One message of a pack.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) pack: Arc<Pack>,
    index: usize,
}

impl Member {
    /// Notes how it ended. Returns how the pack ends, if this was the last of it.
    pub(super) fn end(&self, how: Settlement) -> Option<Settlement> {
        let mut ends = self.pack.ends();
        ends[self.index] = Some(how);
        of_all(&ends)
    }
}

impl Pack {
    fn ends(&self) -> MutexGuard<'_, Vec<Option<Settlement>>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a pack ends whose messages have ended so; `None`: some have not.
fn of_all(ends: &[Option<Settlement>]) -> Option<Settlement> {
    let rank = |how: &Settlement| match how {
        Settlement::Ack => 0,
        Settlement::Reject { .. } => 1,
        Settlement::GiveBack => 2,
        Settlement::Defer { .. } => 3,
        Settlement::Hold { .. } => 4,
        // A pack that fails for ever uses up its attempts.
        Settlement::Nack { .. } => 5,
    };
    let mut worst: Option<(usize, &Settlement)> = None;
    for (index, how) in ends.iter().enumerate() {
        let how = how.as_ref()?;
        if worst.is_none_or(|(_, before)| rank(how) > rank(before)) {
            worst = Some((index, how));
        }
    }
    let (index, worst) = worst?;
    let is_rejected = |how: &Option<Settlement>| matches!(how, Some(Settlement::Reject { .. }));
    if *worst == Settlement::GiveBack && ends.iter().any(is_rejected) {
        // What is behind a rejected message goes back. If it cost no attempt, workers could hand the pack on for ever.
        return Some(Settlement::Nack {
            delay: Duration::ZERO,
            reason: None,
        });
    }
    let mut how = worst.clone();
    if let Settlement::Nack { reason, .. } | Settlement::Reject { reason } = &mut how
        && let Some(reason) = reason
    {
        let text = format!(
            "message {} of {} in its pack: {reason}",
            index + 1,
            ends.len()
        );
        *reason = cut_reason(text.into());
    }
    Some(how)
}

/// Messages of a pack, each under its lease.
pub(super) type Members<Receipt> = Vec<(Leased<Receipt>, Member)>;

/// Packs that are to come again, with those of their messages that were done.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    packs: HashMap<MessageName, Vec<Option<Settlement>>>,
    order: VecDeque<MessageName>,
    messages: usize,
}

impl Remembered {
    /// Keeps what was done of a pack that comes again.
    pub(super) fn keep(&mut self, pack: &Pack) {
        let Some(name) = &pack.name else {
            return;
        };
        let done = |how: &Option<Settlement>| match how {
            Some(how @ (Settlement::Ack | Settlement::Reject { .. })) => Some(how.clone()),
            _ => None,
        };
        let ends: Vec<_> = pack.ends().iter().map(done).collect();
        if ends.iter().all(Option::is_none) {
            return;
        }
        self.messages += ends.len();
        if let Some(before) = self.packs.insert(name.clone(), ends) {
            self.messages -= before.len();
        } else {
            self.order.push_back(name.clone());
        }
        while self.messages > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            let gone = self.packs.remove(&oldest).unwrap_or_default();
            self.messages -= gone.len();
        }
    }

    fn take(&mut self, name: Option<&MessageName>) -> Option<Vec<Option<Settlement>>> {
        let ends = self.packs.remove(name?)?;
        self.order.retain(|other| Some(other) != name);
        self.messages -= ends.len();
        Some(ends)
    }

    /// The messages of a pack that are to be handled, in their order.
    pub(super) fn open<Receipt: Clone>(
        &mut self,
        leased: &Leased<Receipt>,
    ) -> Result<Members<Receipt>, pack::PackError> {
        let messages = pack::unpack(&leased.message)?;
        // A queue in memory has numbers only, and lives no longer than this.
        let number = || {
            leased
                .sequence
                .map(|it| MessageName::Text(it.0.to_string().into()))
        };
        let name = leased.name.clone().or_else(number);
        let ends = self.take(name.as_ref());
        let ends = ends.filter(|ends| ends.len() == messages.len());
        let ends = ends.unwrap_or_else(|| vec![None; messages.len()]);
        let is_left: Vec<bool> = ends.iter().map(Option::is_none).collect();
        let pack = Arc::new(Pack {
            name,
            ends: Mutex::new(ends),
        });
        let member = |(index, message): (usize, Message)| {
            let name = leased.name.as_ref();
            let name = name.map(|name| MessageName::Text(format!("{name}#{index}").into()));
            let leased = Leased {
                name,
                message,
                ..leased.clone()
            };
            let pack = pack.clone();
            (leased, Member { pack, index })
        };
        let all = messages.into_iter().enumerate();
        Ok(all
            .filter(|(index, _)| is_left[*index])
            .map(member)
            .collect())
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
        assert_eq!(of_all(&[ack(), None]), None);
        assert_eq!(of_all(&[ack(), ack()]), ack());
        let rejected = of_all(&[ack(), Some(reject("no")), Some(reject("nor"))]);
        assert_eq!(rejected, Some(reject("message 2 of 3 in its pack: no")));
        let failed = [
            Some(Settlement::GiveBack),
            Some(nack(Some("why"))),
            Some(reject("no")),
        ];
        let failed = of_all(&failed);
        assert_eq!(failed, Some(nack(Some("message 2 of 3 in its pack: why"))));
        assert_eq!(of_all(&[Some(nack(None)), ack()]), Some(nack(None)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut remembered = Remembered::default();
        for number in 0..40 {
            let mut ends = vec![Some(Settlement::Ack); 4_096];
            ends[0] = Some(Settlement::GiveBack);
            remembered.keep(&Pack {
                name: Some(MessageName::Text(format!("{number}").into())),
                ends: Mutex::new(ends),
            });
        }
        assert_eq!((remembered.packs.len(), remembered.order.len()), (16, 16));
        let oldest = MessageName::Text("24".into());
        assert!(
            remembered
                .take(Some(&oldest))
                .is_some_and(|ends| ends[0].is_none())
        );
        assert_eq!(remembered.messages, 15 * 4_096);
    }
}
