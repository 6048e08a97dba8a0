//! The states of keys and holds: what is asked of them, and what answers must be.
//!
//! Answers about both have reached the disk, in queues of level `disk`. So whatever the disk loses, no version of a state
//! that was answered is given out again or taken back, a message is gone if the state that its holder wrote with its
//! acknowledgement is there, and nothing that was held is given out before its time.

use std::collections::BTreeMap;

use lockgate_core::{KeyState, KeyStateWrite, LeaseToken, RecordVersion, Replaces};
use lockgate_engine::{Request, Work};
use lockgate_machine::{
    ChangeKeyState, Command, GetKeyState, Hold, HoldTarget, Rejection, WriteState,
};

use crate::{
    Violation,
    answers::Asked,
    model::Existence,
    world::{KEYED, KEYS, PASSING, PLAIN, SKIPPING, WRITTEN, World, key, name},
};

const HOLD_MS: u64 = 2_000;

/// What was answered about the state of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownState {
    /// The highest version.
    version: u64,
    /// The write that made it, if that was told.
    write: Option<u64>,
    /// Versions up to this one were dropped.
    gone: u64,
    /// Whether it has a state for certain.
    is_there: bool,
    /// How many drops were asked for.
    drops: u64,
}

/// A queue with the number of a key.
pub(crate) type Whose = (&'static str, u64);

#[derive(Clone, Default)]
pub(crate) struct States {
    known: BTreeMap<Whose, KnownState>,
    /// The message that a write acknowledges.
    writes: Vec<Option<u64>>,
    /// Holds of a queue (`None`) or of a key or group of it: until when in real time, and after how many answers that
    /// was told.
    holds: BTreeMap<(&'static str, Option<u64>), (u64, u64)>,
    holds_told: u64,
    /// When somebody last asked for the end of one.
    ended: BTreeMap<(&'static str, Option<u64>), u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedState {
    whose: Whose,
    /// `None`: a drop.
    write: Option<u64>,
    /// What was known when it was asked.
    known: KnownState,
    /// By the holder of a lease that another one of the message has followed.
    is_superseded: bool,
}

impl States {
    /// Nothing is certain any more.
    pub(crate) fn forgive(&mut self) {
        self.known.clear();
        self.holds.clear();
        self.writes.fill(None);
    }

    pub(crate) fn holds_told(&self) -> u64 {
        self.holds_told
    }
}

fn value(write: u64) -> Vec<u8> {
    let mut value = write.to_le_bytes().to_vec();
    value.resize(8 + usize::try_from(write % 5).unwrap() * 90, 7);
    value
}

impl World {
    pub(crate) fn any_state_request(&mut self) -> Request<u64> {
        let queue = [KEYED, SKIPPING][self.random.index(2)];
        let whose = (queue, self.random.below(KEYS));
        if self.random.chance(40) {
            let get = GetKeyState {
                queue: name(queue),
                key: key(whose.1),
            };
            return self.request(Work::Query(get.into()), vec![Asked::GetState(whose)]);
        }
        let (write, asked) = self.any_write(whose, None);
        let change = ChangeKeyState {
            queue: name(queue),
            key: key(whose.1),
            write,
        };
        let command = Command::ChangeKeyState(Box::new(change));
        self.request(Work::from(command), vec![Asked::State(asked)])
    }

    /// With the acknowledgements of a transaction, the states of some of their keys.
    pub(crate) fn any_states(
        &mut self,
        tokens: &[LeaseToken],
    ) -> (Vec<AskedState>, Vec<WriteState>) {
        let mut writes = BTreeMap::new();
        for &token in tokens {
            let Some(lease) = self.model.leases.get(&token).cloned() else {
                continue;
            };
            let of_key = self.model.messages[&lease.message].key;
            if ![KEYED, SKIPPING].contains(&lease.queue) || self.random.chance(30) {
                continue;
            }
            let Some(of_key) = of_key else { continue };
            let (write, mut asked) = self.any_write((lease.queue, of_key), Some(lease.message));
            let newer = |other: &LeaseToken| {
                (other.queue, other.message) == (token.queue, token.message)
                    && (other.term.epoch, other.lease) > (token.term.epoch, token.lease)
            };
            asked.is_superseded = self.model.leases.keys().any(newer);
            writes.insert(asked.whose, (asked, WriteState { token, write }));
        }
        writes.into_values().unzip()
    }

    fn any_write(&mut self, whose: Whose, acks: Option<u64>) -> (KeyStateWrite, AskedState) {
        let known = self.model.states.known.entry(whose).or_default();
        let is_drop = self.random.chance(15);
        if is_drop {
            known.drops += 1;
            known.is_there = false;
        }
        let known = *known;
        let replaces = match self.random.below(10) {
            0 if acks.is_none() => Replaces::Any,
            1 => Replaces::Version(Some(RecordVersion(known.version.saturating_sub(1)))),
            2..5 if !known.is_there => Replaces::Version(None),
            _ => Replaces::Version((known.version > 0).then_some(RecordVersion(known.version))),
        };
        let write = (!is_drop).then_some(self.model.states.writes.len() as u64);
        if write.is_some() {
            self.model.states.writes.push(acks);
        }
        self.note(format!(
            "write {write:?} of {whose:?}, in place of {replaces:?}"
        ));
        let asked = AskedState {
            whose,
            write,
            known,
            is_superseded: false,
        };
        let value = write.map(|write| value(write).into());
        (KeyStateWrite { replaces, value }, asked)
    }

    pub(crate) fn state_written(
        &mut self,
        asked: AskedState,
        version: Option<RecordVersion>,
    ) -> Result<(), Violation> {
        let known = self.model.states.known.entry(asked.whose).or_default();
        let wrong = |what: &str| {
            Err(format!(
                "state of {:?}, {known:?}: {asked:?} {what}",
                asked.whose
            ))
        };
        if asked.is_superseded {
            return wrong("was done for a holder from before");
        }
        match (asked.write, version) {
            (None, None) => known.gone = known.gone.max(asked.known.version),
            (Some(_), Some(version)) if version.0 <= known.version => {
                return wrong(&format!("got {version} again"));
            }
            (Some(_), Some(version)) => {
                known.version = version.0;
                known.write = asked.write;
                known.is_there = known.drops == asked.known.drops;
            }
            (_, version) => return wrong(&format!("got {version:?}")),
        }
        self.tally.count("states written", 1);
        Ok(())
    }

    /// What is shown is not taken back, and what was done with it was done.
    pub(crate) fn state_shown(
        &mut self,
        whose: Whose,
        shown: Option<&KeyState>,
    ) -> Result<(), Violation> {
        let known = self.model.states.known.entry(whose).or_default();
        let Some(shown) = shown else {
            return match known.is_there {
                true => Err(format!("the state of {whose:?} is lost: {known:?}")),
                false => Ok(()),
            };
        };
        let write = shown
            .value
            .first_chunk::<8>()
            .map(|it| u64::from_le_bytes(*it));
        let is_whole = write.is_some_and(|write| value(write) == shown.value);
        let version = shown.version.0;
        let is_other = version == known.version && known.write.is_some_and(|it| Some(it) != write);
        if !is_whole || version < known.version || version <= known.gone || is_other {
            return Err(format!(
                "state of {whose:?}, {known:?}: shows {version}, {write:?}"
            ));
        }
        (known.version, known.write) = (version, write);
        let acks =
            write.and_then(|write| self.model.states.writes.get(usize::try_from(write).ok()?));
        if let Some(&Some(message)) = acks {
            self.known(message).state = Existence::Gone;
        }
        self.tally.count("states shown", 1);
        Ok(())
    }

    pub(crate) fn state_refused(
        &mut self,
        asked: AskedState,
        refused: &Rejection,
    ) -> Result<(), Violation> {
        let Rejection::KeyStateConflict {
            queue,
            key: of,
            version,
        } = refused
        else {
            return Err(format!("{asked:?} was answered by {refused:?}"));
        };
        // In a transaction it may be about another key.
        if (queue, of) != (&name(asked.whose.0), &key(asked.whose.1)) {
            return Ok(());
        }
        let known = self.model.states.known.entry(asked.whose).or_default();
        match version {
            Some(version) if version.0 < known.version => Err(format!(
                "state of {:?}, {known:?}: was told of {version}",
                asked.whose
            )),
            None if known.is_there => Err(format!("the state of {:?} is lost", asked.whose)),
            _ => Ok(()),
        }
    }

    pub(crate) fn any_hold(&mut self) -> Request<u64> {
        let queue = [KEYED, SKIPPING, PLAIN][self.random.index(3)];
        let of = self.random.chance(80).then(|| self.random.below(KEYS));
        let time = if self.random.chance(20) {
            0
        } else {
            1 + self.random.below(HOLD_MS)
        };
        if time == 0 {
            self.model.states.holds.remove(&(queue, of));
            self.model.states.ended.insert((queue, of), self.real_ms);
        }
        self.note(format!("hold {of:?} of {queue} for {time} ms"));
        let hold = Hold {
            queue: name(queue),
            what: match of {
                None => HoldTarget::Queue,
                of => HoldTarget::Key(of.map(key)),
            },
            time,
        };
        let asked = Asked::Hold {
            queue,
            of,
            asked_at: self.real_ms,
            time,
        };
        self.request(Work::from(Command::Hold(hold)), vec![asked])
    }

    /// A hold was answered. It began when it was asked for, or later.
    pub(crate) fn held(&mut self, queue: &'static str, of: Option<u64>, asked_at: u64, time: u64) {
        // A power cut may take what is only written, and who deletes a queue its holds.
        if queue == WRITTEN || queue == PASSING {
            return;
        }
        let (states, until_ms) = (&mut self.model.states, asked_at + time);
        // Its end may have been asked for meanwhile.
        if states
            .ended
            .get(&(queue, of))
            .is_some_and(|&ended| ended >= asked_at)
        {
            return;
        }
        self.tally.count("holds", 1);
        states.holds_told += 1;
        let held = states.holds.entry((queue, of)).or_default();
        *held = (held.0.max(until_ms), states.holds_told);
    }

    /// Nothing is given out that was held when the receive was asked for.
    pub(crate) fn check_holds(
        &self,
        queue: &'static str,
        message: u64,
        told: u64,
    ) -> Result<(), Violation> {
        let of = self.model.messages[&message].key;
        for held in [(queue, None), (queue, of)] {
            let known = self.model.states.holds.get(&held);
            if let Some(&(until_ms, number)) = known
                && until_ms > self.real_ms
                && number <= told
            {
                let left = until_ms - self.real_ms;
                return Err(format!(
                    "{message} was delivered, and {held:?} is held for {left} ms"
                ));
            }
        }
        Ok(())
    }
}
