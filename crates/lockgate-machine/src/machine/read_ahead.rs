//! Reads ahead for a group of commands.

use std::hint::black_box;

use lockgate_core::{LeaseToken, QueueId, QueueName, Sequence};
use smallvec::SmallVec;

use super::{
    Machine,
    order::{key_hash, spread},
    state::{Message, flag},
};
use crate::{
    Command, Effect, Receive, RecordBatch, SendMessage, Transact, codec::batch::Step,
    sequences::Sequences, slab::NONE, table::mix,
};

/// How many commands are read ahead for at a time: more than the reads that a core can have in flight, and
/// few enough that what was read is still in the processor's cache when the last of them is decided.
const AT_ONCE: usize = if cfg!(test) { 3 } else { 64 };

/// Fewer messages than these stay in the processor's cache without reading ahead.
const MESSAGES_MIN: usize = if cfg!(test) { 1 } else { 10_000 };

/// With fewer keys than these, messages are mostly in the order in which they are used.
const KEYS_MIN: usize = if cfg!(test) { 1 } else { 64 };

/// What a machine will need next, for [`Machine::read_ahead`].
#[derive(Clone, Copy, Debug)]
pub enum Upcoming<'a> {
    Command(&'a Command),
    /// A [`Command::Receive`] that is not built yet.
    Receive(&'a Receive),
}

impl<'a> From<&'a Command> for Upcoming<'a> {
    fn from(command: &'a Command) -> Self {
        Self::Command(command)
    }
}

/// How many recently read messages are remembered: about as many as a batch has.
const RECENT: usize = 256;

/// What reading ahead found for the steps of a batch. These are hints: the code that uses one
/// checks whether it is right.
pub(super) struct Likely {
    /// For each step: the key of an accepted message, the message of another effect, or [`NONE`].
    pub(super) places: Vec<u32>,
    /// Messages that were read recently, by their numbers, such as messages that were leased and
    /// are now acknowledged: content, number and index.
    recent: Vec<(u32, u64, u32)>,
}

impl Default for Likely {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            recent: vec![(NONE, 0, NONE); RECENT],
        }
    }
}

/// Indexes of one kind.
type Indexes = SmallVec<[u32; AT_ONCE]>;

/// What a few commands will need, as far as it is known without waiting for memory.
#[derive(Default)]
struct Ahead {
    /// Hashes of the keys of sends.
    hashes: SmallVec<[u64; AT_ONCE]>,
    /// Contents and numbers of messages behind which the next number begins another leaf: then
    /// their own leaf is added to its table.
    leaf_ends: SmallVec<[(u32, u64); AT_ONCE]>,
    /// Contents and numbers of settled messages.
    settled: SmallVec<[(u32, u64); AT_ONCE]>,
    /// Keys whose messages receives will lease, and how many of each.
    ready: SmallVec<[(u32, u32); AT_ONCE]>,
    /// How many messages that is in all.
    to_lease: usize,
    /// In a batch: the steps that the hashes and the settled messages belong to.
    hashed_steps: Indexes,
    settled_steps: Indexes,
}

/// The indexes found for an [`Ahead`].
struct Found {
    /// The keys of the hashes, or [`NONE`].
    keys: Indexes,
    /// The settled messages, or [`NONE`].
    settled: Indexes,
}

/// The place of the last command; the next one is mostly at the same place.
#[derive(Default)]
struct Place<'a> {
    queue: Option<Asked<'a>>,
    /// The ready key that the next receive of that content will reach.
    ready: Option<(u32, u32)>,
}

/// What is known of a command's queue.
#[derive(Clone, Copy)]
struct Asked<'a> {
    name: &'a QueueName,
    content: u32,
    /// The number of its next message.
    next: u64,
    keyed: bool,
}

impl Machine {
    /// Reads what these commands will need, so that deciding and folding them finds it in the
    /// processor's cache. Changes only the time they take. Useful for commands that are given next
    /// and together need more than one message; with few messages or keys it does nothing.
    ///
    /// A send to one of a million keys waits for memory four times, each time for the address of the next
    /// read: its table's bucket, the key's state, its text, its last message. Receives and settles wait as
    /// often. One after the other, those waits are most of a command's cost. Here each step is done for 64
    /// commands before the next step, and no step branches on what it reads, so that the waits of a step
    /// overlap ("group prefetching": Chen, Ailamaki, Gibbons and Mowry 2004).
    pub fn read_ahead<'a>(&self, commands: impl IntoIterator<Item: Into<Upcoming<'a>>>) {
        if !self.is_worth_reading_ahead() {
            return;
        }
        let mut place = Place::default();
        let mut ahead = Ahead::default();
        for command in commands {
            match command.into() {
                Upcoming::Command(command) => self.look_at(command, &mut place, &mut ahead),
                Upcoming::Receive(receive) => {
                    self.look_at_receive(receive, &mut place, &mut ahead);
                }
            }
            if ahead.len() >= AT_ONCE {
                self.read(&std::mem::take(&mut ahead));
            }
        }
        if ahead.len() > 0 {
            self.read(&ahead);
        }
    }

    /// Reads what folding these effects of the batch will need, as [`read_ahead`](Self::read_ahead)
    /// does for commands. Writes the probable place of each into `likely`.
    pub(super) fn read_ahead_for_fold(
        &self,
        batch: &RecordBatch,
        steps: &[Step],
        likely: &mut Likely,
    ) {
        likely.places.clear();
        likely.places.resize(steps.len(), NONE);
        if !self.is_worth_reading_ahead() {
            return;
        }
        // Effects come in long runs of one queue.
        let mut last = None;
        let mut content_of = |queue| match last {
            Some((id, content)) if id == queue => Some(content),
            _ => {
                let content = self.queues[self.queue_index(queue)?].content;
                last = Some((queue, content));
                Some(content)
            }
        };
        let mut ahead = Ahead::default();
        for (index, step) in (0..).zip(steps) {
            match step {
                Step::Accepted(kept) => {
                    let Some(content) = content_of(kept.numbers.queue) else {
                        continue;
                    };
                    if let Some(hash) = batch.key_hash(kept, self.seed) {
                        ahead.hashes.push(spread(key_hash(content, hash)));
                        ahead.hashed_steps.push(index);
                    }
                    ahead.accept(content, kept.numbers.sequence.0);
                }
                Step::Other(effect) => {
                    if let Some((queue, sequence)) = message_of(effect)
                        && let Some(content) = content_of(queue)
                        && !likely.was_read(index, content, sequence.0)
                    {
                        ahead.settled.push((content, sequence.0));
                        ahead.settled_steps.push(index);
                    }
                }
            }
            if ahead.len() >= AT_ONCE {
                likely.note(&ahead, &self.read(&ahead));
                ahead = Ahead::default();
            }
        }
        if ahead.len() > 0 {
            likely.note(&ahead, &self.read(&ahead));
        }
    }

    fn is_worth_reading_ahead(&self) -> bool {
        self.messages.len() >= MESSAGES_MIN && self.keys.len() >= KEYS_MIN
    }

    fn look_at<'a>(&self, command: &'a Command, place: &mut Place<'a>, ahead: &mut Ahead) {
        match command.plain() {
            Command::Send(send) => self.look_at_send(send, place, ahead),
            Command::Settle(settle) => self.look_at_settle(settle.token, ahead),
            Command::Transact(Transact { settles, sends, .. }) => {
                for settle in settles {
                    self.look_at_settle(settle.token, ahead);
                }
                for send in sends {
                    self.look_at_send(send, place, ahead);
                }
            }
            Command::Receive(receive) => self.look_at_receive(receive, place, ahead),
            _ => {}
        }
    }

    fn look_at_send<'a>(&self, send: &'a SendMessage, place: &mut Place<'a>, ahead: &mut Ahead) {
        let Some(queue) = self.asked(&send.queue, place) else {
            return;
        };
        if let Some(key) = send.message.key.as_ref().or(send.message.group.as_ref()) {
            let hash = self.key_hash(queue.content, Some(key));
            ahead.hashes.push(spread(hash));
        }
        ahead.accept(queue.content, queue.next);
        queue.next += 1;
    }

    /// Reads as soon as enough was collected, because one receive may need very much.
    fn look_at_receive<'a>(&self, receive: &'a Receive, place: &mut Place<'a>, ahead: &mut Ahead) {
        let Some(&mut Asked { content, keyed, .. }) = self.asked(&receive.queue, place) else {
            return;
        };
        let mut key = match place.ready {
            Some((of, key)) if of == content => key,
            _ => self.contents[content].ready_keys.first,
        };
        let mut wanted = u32::from(receive.max);
        while wanted > 0
            && let Some(state) = self.keys.get(key)
        {
            let messages = if keyed { state.messages.min(wanted) } else { 1 };
            ahead.ready.push((key, messages));
            ahead.to_lease += messages as usize;
            wanted -= messages;
            key = state.links.after;
            if ahead.len() >= AT_ONCE {
                self.read(&std::mem::take(ahead));
            }
        }
        place.ready = Some((content, key));
    }

    fn look_at_settle(&self, token: LeaseToken, ahead: &mut Ahead) {
        if let Some(queue) = self.queue_index(token.queue) {
            let content = self.queues[queue].content;
            ahead.settled.push((content, token.sequence.0));
        }
    }

    fn asked<'a, 'p>(
        &self,
        name: &'a QueueName,
        place: &'p mut Place<'a>,
    ) -> Option<&'p mut Asked<'a>> {
        if place.queue.is_none_or(|queue| queue.name != name) {
            let queue = &self.queues[*self.queue_names.get(name)?];
            place.queue = Some(Asked {
                name,
                content: queue.content,
                next: queue.next_sequence.0,
                keyed: queue.settings.keyed,
            });
        }
        place.queue.as_mut()
    }

    /// Reads step by step. Each step only follows what the step before has read. It does not check
    /// which key or leaf a tag belongs to; the first candidate is nearly always right.
    fn read(&self, ahead: &Ahead) -> Found {
        let numbers = |content: u32| &self.contents[content].by_sequence;
        // Tables.
        wait_for(ahead.hashes.iter().map(|&hash| self.by_key.prefetch(hash)));
        wait_for(
            ahead
                .leaf_ends
                .iter()
                .map(|&(content, number)| numbers(content).prefetch(number)),
        );
        wait_for(
            ahead
                .settled
                .iter()
                .map(|&(content, number)| numbers(content).prefetch(number)),
        );

        // Keys of sends, and indexes of messages.
        let keys: Indexes = ahead
            .hashes
            .iter()
            .map(|&hash| self.by_key.find(hash, |_| true).unwrap_or(NONE))
            .collect();
        wait_for(keys.iter().map(|&key| self.read_key(key)));
        wait_for(
            ahead
                .settled
                .iter()
                .map(|&(content, number)| numbers(content).prefetch_leaf(number)),
        );

        // Texts of keys; messages to append behind, to lease, and to settle.
        let settled: Indexes = ahead
            .settled
            .iter()
            .map(|&(content, number)| numbers(content).get(number).unwrap_or(NONE))
            .collect();
        wait_for(keys.iter().map(|&key| self.read_text(key)));
        wait_for(keys.iter().map(|&key| match self.keys.get(key) {
            Some(key) => self.read_last(key.order.last),
            None => 0,
        }));
        wait_for(settled.iter().map(|&index| self.read_message(index)));
        let leased = self.read_leased(&ahead.ready);

        // The side tables of settled messages, and their neighbours.
        let message = |&index: &u32| self.messages.get(index);
        wait_for(settled.iter().filter_map(message).map(|message| {
            self.read_key(message.key)
                ^ self.read_lease_state(message)
                ^ self.read_message(message.order.after)
                ^ self.read_message(message.age.before)
                ^ self.read_message(message.age.after)
        }));
        // Folding a lease looks the message up by its number once more.
        let leased: SmallVec<[(&Sequences, u64); AT_ONCE]> = leased
            .iter()
            .filter_map(|&index| {
                let message = self.messages.get(index)?;
                let content = self.keys.get(message.key)?.content;
                Some((numbers(content), message.sequence().0))
            })
            .collect();
        wait_for(leased.iter().map(|(by, number)| by.prefetch(*number)));
        wait_for(leased.iter().map(|(by, number)| by.prefetch_leaf(*number)));
        wait_for(
            settled
                .iter()
                .filter_map(message)
                .map(|message| self.read_timer(message) ^ self.read_text(message.key)),
        );
        Found { keys, settled }
    }

    /// The messages of these keys that receives will lease. Only a message tells which one is
    /// behind it, so the first ones of all keys are read together, then the second ones, and so on.
    fn read_leased(&self, ready: &[(u32, u32)]) -> Indexes {
        let mut leased = Indexes::new();
        let first = |&(key, messages)| Some((self.keys.get(key)?.order.first, messages));
        let mut behind: SmallVec<[(u32, u32); AT_ONCE]> = ready.iter().filter_map(first).collect();
        let mut words = 0;
        while !behind.is_empty() {
            behind.retain_mut(|(index, left)| {
                let Some(message) = self.messages.get(*index) else {
                    return false;
                };
                leased.push(*index);
                words ^= self.read_message(*index);
                *index = message.order.after;
                *left = left.saturating_sub(1);
                *left > 0
            });
        }
        black_box(words);
        leased
    }

    /// Reads both cache lines that a key's state mostly occupies.
    fn read_key(&self, key: u32) -> u32 {
        self.keys.get(key).map_or(0, |key| key.hash ^ key.messages)
    }

    fn read_text(&self, key: u32) -> u32 {
        let name = self.keys.get(key).and_then(|key| key.name.as_ref());
        name.and_then(|name| name.as_str().as_bytes().first())
            .map_or(0, |&byte| u32::from(byte))
    }

    /// Reads both cache lines that a message mostly occupies.
    fn read_message(&self, index: u32) -> u32 {
        if index == NONE {
            return 0;
        }
        self.messages
            .get(index)
            .map_or(0, |message| message.age.after ^ message.first_word())
    }

    /// Reads the part of a message that appending another one behind it needs.
    fn read_last(&self, index: u32) -> u32 {
        let message = self.messages.get(index);
        message.map_or(0, |message| message.order.after)
    }

    fn read_lease_state(&self, message: &Message) -> u32 {
        if !message.has(flag::LEASED_ONCE) {
            return 0;
        }
        self.lease_states
            .get(message.extra)
            .map_or(0, |lease_state| lease_state.timer)
    }

    fn read_timer(&self, message: &Message) -> u32 {
        if !message.has(flag::LEASED_ONCE) {
            return 0;
        }
        self.lease_states
            .get(message.extra)
            .map_or(0, |lease_state| self.machine.prefetch(lease_state.timer))
    }
}

impl Likely {
    /// Whether this step's message was read recently; then it is probably the one that the step needs.
    fn was_read(&mut self, step: u32, content: u32, number: u64) -> bool {
        let (recent_content, recent_number, message) = self.recent[recent_slot(number)];
        let was_read = (recent_content, recent_number) == (content, number);
        if was_read {
            self.places[step as usize] = message;
        }
        was_read
    }

    fn note(&mut self, ahead: &Ahead, found: &Found) {
        for (&step, &key) in ahead.hashed_steps.iter().zip(&found.keys) {
            self.places[step as usize] = key;
        }
        let settled = ahead.settled_steps.iter().zip(&ahead.settled);
        for ((&step, &(content, number)), &message) in settled.zip(&found.settled) {
            self.places[step as usize] = message;
            self.recent[recent_slot(number)] = (content, number, message);
        }
    }
}

impl Ahead {
    fn len(&self) -> usize {
        self.hashes.len() + self.settled.len() + self.to_lease
    }

    /// Notes that a message with that number is accepted.
    fn accept(&mut self, content: u32, number: u64) {
        if Sequences::begins_leaf(number) {
            self.leaf_ends.push((content, number.saturating_sub(1)));
        }
    }
}

/// The slot for a message with that number. The messages of one moment are spread over the slots.
fn recent_slot(number: u64) -> usize {
    usize::from(mix(number).to_le_bytes()[0]) % RECENT
}

/// The existing message that the effect is about.
fn message_of(effect: &Effect) -> Option<(QueueId, Sequence)> {
    match effect {
        Effect::Compacted(stored) => Some((stored.queue, stored.sequence)),
        Effect::Leased {
            queue, sequence, ..
        }
        | Effect::Acked { queue, sequence }
        | Effect::Nacked {
            queue, sequence, ..
        }
        | Effect::Extended {
            queue, sequence, ..
        }
        | Effect::GivenBack {
            queue, sequence, ..
        }
        | Effect::Dropped {
            queue, sequence, ..
        }
        | Effect::Rescheduled {
            queue, sequence, ..
        }
        | Effect::Moved {
            from: queue,
            sequence,
            ..
        } => Some((*queue, *sequence)),
        _ => None,
    }
}

/// Uses all words, so that they are really read.
fn wait_for(words: impl Iterator<Item = u32>) {
    black_box(words.fold(0, |all, word| all ^ word));
}

#[cfg(test)]
mod tests {
    use super::{super::tests::harness::Run, *};
    use crate::Reply;

    fn receive(max: u16) -> Receive {
        Receive {
            queue: QueueName::new("q").unwrap(),
            max,
            key_max: None,
            lease: None,
            holder: lockgate_core::HolderName::new("somebody").unwrap(),
        }
    }

    #[test]
    fn receives_are_read_ahead_for_by_key_and_along_a_key() {
        for kind in ["keyed", "keyed sqs", "unkeyed"] {
            let mut run = Run::new();
            run.lines(&format!("queue q {kind}"));
            for key in ["a", "a", "a", "b", "c", "d"] {
                let what = if kind == "unkeyed" { "group" } else { "key" };
                run.lines(&format!("send q {what}={key}"));
            }
            let asked = [2, 2].map(receive);
            let mut place = Place::default();
            let ahead = asked.each_ref().map(|receive| {
                let mut ahead = Ahead::default();
                run.machine.look_at_receive(receive, &mut place, &mut ahead);
                run.machine
                    .read_leased(&ahead.ready)
                    .iter()
                    .map(|&index| run.machine.messages[index].sequence())
                    .collect::<Vec<_>>()
            });
            for (receive, ahead) in asked.into_iter().zip(ahead) {
                let reply = run.give(&Command::Receive(receive)).unwrap();
                let Reply::Received(leased) = reply else {
                    panic!("a receive was answered {reply:?}");
                };
                let mut leased: Vec<_> = leased.iter().map(|one| one.token.sequence).collect();
                leased.sort();
                assert_eq!(ahead, leased, "{kind}");
            }
        }
    }
}
