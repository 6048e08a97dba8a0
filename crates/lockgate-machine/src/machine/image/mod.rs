//! The whole machine as bytes, written while the machine continues, and loaded again.
//!
//! [`Machine::freeze`] shares the pages of all slabs with a [`Frozen`] machine. From then on a fold
//! that changes a page copies it first, at most once. Meanwhile another thread writes the frozen
//! pages out and gives them back. So a snapshot shows one instant of the whole machine, its writer
//! may take any time, and no command waits for it.
//!
//! An image holds everything that follows from the log, except the volatile parts (see the module
//! above) and the tables, which are built from the slabs again. Slots keep their indexes, including
//! free ones, so a loaded machine behaves in every later step like the one that was frozen.
//! `docs/internals/format.md`, section "Image", describes the layout.

mod load;

use std::{collections::BTreeMap, fmt, sync::OnceLock};

use lockgate_core::{
    LedgerId, Location, MessageId, Position, QueueId, Sequence, ledger::SequenceId,
};

use super::{
    Machine,
    housekeeping::PurgedContent,
    state::{Content, IndexedIds, Queue},
};
use crate::{columns::Row, dedup::DedupWindow, sequences::Sequences, slab::Slab, table::HashSeed};

pub use self::load::ImageLoader;

/// The first bytes of each piece of an image.
const MAGIC: [u8; 8] = *b"LOCKGIMG";

/// The version that is written, and the highest that is read.
pub(crate) const IMAGE_VERSION: u32 = 1;

/// Bytes of a section's head: its kind, its owner, its first index, its length.
const HEAD_BYTES: usize = 13;

/// A piece ends with the section that takes it to so many bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The kinds of sections. Sections come in the order of [`Kind::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Shard = 1,
    Queues = 2,
    Contents = 3,
    Keys = 4,
    Holders = 5,
    LeaseStates = 6,
    Origins = 7,
    TimesToLive = 8,
    WallTimers = 9,
    MachineTimers = 10,
    Messages = 11,
    /// Leaves of the index by number; the owner is a content.
    Leaves = 12,
    /// Remembered ids; the owner is a queue.
    UniqueIds = 13,
    /// Ids of a purged content; the owner is the number of the purged content.
    PurgedUniqueIds = 14,
    End = 15,
    /// The outline of key sequences; the owner is a queue that has some.
    KeySequences = 16,
    /// The pages of key sequences; the owner is the queue.
    KeySequencePages = 17,
    /// The outline of the messages' failures, if there are some.
    Failures = 18,
    /// The pages of failures.
    FailurePages = 19,
    /// The outline of what keys owe under limits, if there are some.
    Debtors = 20,
    /// The pages of debtors.
    DebtorPages = 21,
    /// The numbers of the records and the outline of their table, if there ever were some.
    Records = 22,
    /// The pages of records.
    RecordPages = 23,
    /// The outline of the states of keys; the owner is a queue that had some.
    KeyStates = 24,
    /// The pages of states of keys; the owner is the queue.
    KeyStatePages = 25,
    /// The outline of the producers; the owner is a queue that had some.
    Producers = 26,
    /// The pages of producers; the owner is the queue.
    ProducerPages = 27,
    /// The pages of openings of producers; the owner is the queue.
    OpeningPages = 28,
    /// How many ledgers were ever made, if there were some.
    LedgersMade = 29,
    /// Everything of a ledger besides what follows; the owner is its number.
    Ledgers = 30,
    /// Where the events of a ledger are; the owner is its number.
    EventBlocks = 31,
    /// The pages of the inputs of a ledger; the owner is its number.
    InputPages = 32,
    /// The pages of the unique ids of a ledger; the owner is its number.
    EventIdPages = 33,
    /// How far the unique ids of a queue are in the index; the owner is the queue.
    IndexedIds = 34,
    /// How far the unique ids of a ledger are in the index; the owner is its number.
    IndexedEventIds = 35,
    /// How many exchanges were ever made and the outline of the bindings, if there were some.
    Exchanges = 36,
    /// Everything of an exchange besides its bindings; the owner is its number.
    Exchange = 37,
    /// The pages of the bindings of all exchanges.
    BindingPages = 38,
    /// The outline of the payloads that several messages have, if there are some.
    SharedPayloads = 39,
    /// Their pages.
    SharedPayloadPages = 40,
    /// The notes of an exchange that has some; the owner is its number.
    ExchangeNotes = 41,
    /// How many schedules were ever made, the last generation and the outline of the schedules, if there were some.
    Schedules = 42,
    /// The pages of the schedules.
    SchedulePages = 43,
}

impl Kind {
    const ALL: [Self; 43] = [
        Self::Shard,
        Self::Queues,
        Self::Contents,
        Self::Keys,
        Self::Holders,
        Self::LeaseStates,
        Self::Origins,
        Self::TimesToLive,
        Self::WallTimers,
        Self::MachineTimers,
        Self::Messages,
        Self::Leaves,
        Self::UniqueIds,
        Self::PurgedUniqueIds,
        Self::KeySequences,
        Self::KeySequencePages,
        Self::Failures,
        Self::FailurePages,
        Self::Debtors,
        Self::DebtorPages,
        Self::Records,
        Self::RecordPages,
        Self::KeyStates,
        Self::KeyStatePages,
        Self::Producers,
        Self::ProducerPages,
        Self::OpeningPages,
        Self::LedgersMade,
        Self::Ledgers,
        Self::EventBlocks,
        Self::InputPages,
        Self::EventIdPages,
        Self::IndexedIds,
        Self::IndexedEventIds,
        Self::Exchanges,
        Self::Exchange,
        Self::BindingPages,
        Self::SharedPayloads,
        Self::SharedPayloadPages,
        Self::ExchangeNotes,
        Self::Schedules,
        Self::SchedulePages,
        Self::End,
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Its index in the order of sections.
    fn place(self) -> usize {
        let place = Self::ALL.iter().position(|kind| *kind == self);
        place.expect("all kinds have one")
    }

    fn next(self) -> Option<Self> {
        Self::ALL.get(self.place() + 1).copied()
    }
}

/// A machine at one instant, which another thread can write as an image while the machine continues.
///
/// Dropping it gives its pages back; the machine takes unchanged pages over again without a copy. A
/// clone takes time in the number of pages.
pub struct Frozen {
    /// Has no tables. Written pages are removed.
    machine: Machine,
    /// The next section: its kind, the index of its owner in `owners`, its page.
    next: (Kind, usize, u32),
    /// The owners of sections of that kind.
    owners: Vec<u32>,
    located: OnceLock<Located>,
}

/// An index of messages' places.
struct Located {
    /// The index by number of each queue.
    by_number: BTreeMap<QueueId, Sequences>,
    /// Moved messages by their id: their present queue and number.
    moved: BTreeMap<MessageId, (QueueId, Sequence)>,
}

impl Machine {
    /// Freezes the whole machine as it is now, for another thread to write as an image.
    ///
    /// Takes time in the number of pages and queues, not of messages: a few milliseconds for ten
    /// million messages. Afterwards the first fold that changes a page copies it, unless the page
    /// was already written and given back. Any number of frozen machines may exist at a time.
    #[must_use]
    pub fn freeze(&mut self) -> Frozen {
        Frozen {
            machine: self.share(),
            next: (Kind::Shard, 0, 0),
            owners: vec![0],
            located: OnceLock::new(),
        }
    }

    /// An estimate of an image's bytes, mostly right within a third: numbers that are close
    /// together take fewer bytes than numbers that are far apart. Costs nothing.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        let rows = [
            (self.messages.len(), 17),
            (self.keys.len(), 34),
            (self.lease_states.len(), 24),
            (self.origins.len(), 64),
            (self.times_to_live.len(), 12),
            (self.wall.len() + self.machine.len(), 24),
            (self.queues.len(), 1024),
        ];
        rows.iter()
            .map(|&(rows, bytes)| rows as u64 * bytes)
            .sum::<u64>()
            + self.unique_ids * 32
            + self.key_sequences * 28
            + self.failures.len() as u64 * 8
            + self.failure_bytes
            + self.debtors.len() as u64 * 32
            + self.records.bytes
            + self.key_state_bytes
            + self.producer_bytes
            + self.ledgers.image_bytes()
            + self.exchanges.image_bytes()
            + self.schedules.image_bytes()
            + self.shared.image_bytes()
    }

    /// A machine that shares the pages, without tables and volatile parts.
    fn share(&mut self) -> Self {
        Self {
            terms: self.terms.clone(),
            clock: self.clock,
            secret: self.secret,
            seed: self.seed,
            next_lease: self.next_lease,
            next_queue: self.next_queue,
            deleted_totals: self.deleted_totals,
            queues: self.queues.copy_with(|queue| Queue {
                name: queue.name.clone(),
                settings: queue.settings.clone(),
                annotations: queue.annotations.clone(),
                tags: queue.tags.clone(),
                id_tails: queue.id_tails.clone(),
                dedup: queue.dedup.share(),
                key_sequences: queue.key_sequences.share(),
                states: queue.states.as_mut().map(|states| Box::new(states.share())),
                producers: queue.producers.as_mut().map(|all| Box::new(all.share())),
                limits: queue.limits.clone(),
                ..*queue
            }),
            contents: self.contents.copy_with(|content| Content {
                // Numbers of a purged content are never looked up, and its index may still contain
                // freed messages.
                by_sequence: if content.dead {
                    Sequences::default()
                } else {
                    content.by_sequence.share()
                },
                ..*content
            }),
            keys: self.keys.share(),
            messages: self.messages.share(),
            lease_states: self.lease_states.share(),
            holders: self.holders.share(),
            origins: self.origins.share(),
            times_to_live: self.times_to_live.share(),
            failures: self.failures.share(),
            debtors: self.debtors.share(),
            records: self.records.share(),
            ledgers: self.ledgers.share(),
            exchanges: self.exchanges.share(),
            schedules: self.schedules.share(),
            shared: self.shared.share(),
            wall: self.wall.share(),
            machine: self.machine.share(),
            awaiting: self.awaiting.clone(),
            purged: self.purged.iter_mut().map(PurgedContent::share).collect(),
            live: self.live.clone(),
            effects_ignored: self.effects_ignored,
            ..Self::new(self.limits.clone())
        }
    }
}

impl PurgedContent {
    fn share(&mut self) -> Self {
        Self {
            content: self.content,
            unique_ids: self.unique_ids.as_mut().map(DedupWindow::share),
        }
    }
}

impl Frozen {
    /// Another frozen machine of the same instant that shares the pages.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self {
            machine: self.machine.share(),
            next: self.next,
            owners: self.owners.clone(),
            located: OnceLock::new(),
        }
    }

    /// Replaces the content of `out` with the image's next piece, about 1 MiB, and gives its pages
    /// back. Returns false, and leaves `out` empty, when there is no further piece.
    ///
    /// An [`ImageLoader`] takes the pieces in the same order, each of them whole.
    pub fn next_piece<'a>(&mut self, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        buffer.clear();
        self.next_section(buffer)?;
        while buffer.len() < PIECE_BYTES && self.next_section(buffer).is_some() {}
        Some(buffer)
    }

    /// Where the message's bytes are, if the queue had the message at that instant.
    ///
    /// Call this before pieces are taken, or on a [`fork`](Self::fork): pages that were given back are not
    /// searched. The first call builds an index of all messages, which takes about 10 ns for each.
    #[must_use]
    pub fn location(&self, queue: QueueId, sequence: Sequence) -> Option<Location> {
        let located = self.located.get_or_init(|| self.machine.locate());
        let message = located.by_number.get(&queue)?.get(sequence.0)?;
        let message = self.machine.messages.get(message)?;
        Some(message.location())
    }

    /// The queue and number of the message with that id at that instant, in whichever queue it was,
    /// if its bytes were at `at`. See [`location`](Self::location).
    #[must_use]
    pub fn place_of(&self, id: MessageId, at: Location) -> Option<(QueueId, Sequence)> {
        let located = self.located.get_or_init(|| self.machine.locate());
        let moved = located.moved.get(&id).copied();
        let (queue, sequence) = moved.unwrap_or((id.queue(), id.sequence()));
        (self.location(queue, sequence) == Some(at)).then_some((queue, sequence))
    }

    /// Whether the events of the block that begins there were at `at` at that instant. See [`location`](Self::location).
    #[must_use]
    pub fn has_events_at(&self, ledger: LedgerId, first: SequenceId, at: Position) -> bool {
        self.machine.has_events_at(ledger, first, at)
    }

    /// How many of the events of that block were kept.
    #[must_use]
    pub fn kept_of(&self, ledger: LedgerId, first: SequenceId, events: u64) -> u64 {
        self.machine.kept_of(ledger, first, events)
    }

    /// Appends the next section, with the head of a piece if it is the first one. `None`: there is
    /// none.
    fn next_section(&mut self, out: &mut Vec<u8>) -> Option<()> {
        if out.is_empty() {
            out.extend_from_slice(&MAGIC);
            out.extend_from_slice(&IMAGE_VERSION.to_le_bytes());
        }
        loop {
            let (kind, place, page) = self.next;
            let Some(&owner) = self.owners.get(place) else {
                let next = kind.next()?;
                self.owners = self.machine.owners(next);
                self.next = (next, 0, 0);
                continue;
            };
            let head = out.len();
            out.resize(head + HEAD_BYTES, 0);
            let Some(first) = self.machine.encode_section(kind, owner, page, out) else {
                out.truncate(head);
                self.next = (kind, place + 1, 0);
                continue;
            };
            self.next = (kind, place, page + 1);
            let len = u32::try_from(out.len() - head - HEAD_BYTES).expect("a page is small");
            out[head] = kind as u8;
            out[head + 1..head + 5].copy_from_slice(&owner.to_le_bytes());
            out[head + 5..head + 9].copy_from_slice(&first.to_le_bytes());
            out[head + 9..head + HEAD_BYTES].copy_from_slice(&len.to_le_bytes());
            return Some(());
        }
    }
}

impl Machine {
    fn locate(&self) -> Located {
        let by_number = self.queues.iter().map(|(_, queue)| {
            let mut index = self.contents[queue.content].by_sequence.clone();
            index.build_table();
            (queue.id, index)
        });
        let moved = self.origins.iter().map(|(_, origin)| {
            let message = &self.messages[origin.message];
            let content = &self.contents[self.keys[message.key].content];
            (origin.id, (content.queue_id, message.sequence()))
        });
        Located {
            by_number: by_number.collect(),
            moved: moved.collect(),
        }
    }

    /// The owners of sections of a kind, in order.
    fn owners(&self, kind: Kind) -> Vec<u32> {
        match kind {
            Kind::Leaves => self.contents.iter().map(|(index, _)| index).collect(),
            Kind::UniqueIds => self.queues.iter().map(|(index, _)| index).collect(),
            Kind::PurgedUniqueIds => (0..).zip(&self.purged).map(|(number, _)| number).collect(),
            Kind::KeySequences | Kind::KeySequencePages => {
                let queues = self.queues.iter();
                let queues = queues.filter(|(_, queue)| queue.key_sequences.len() > 0);
                queues.map(|(index, _)| index).collect()
            }
            Kind::Failures | Kind::FailurePages if self.failures.is_empty() => Vec::new(),
            Kind::Debtors | Kind::DebtorPages if self.debtors.is_empty() => Vec::new(),
            Kind::Records | Kind::RecordPages if self.records.is_unused() => Vec::new(),
            Kind::KeyStates | Kind::KeyStatePages => {
                let queues = self.queues.iter();
                let queues = queues.filter(|(_, queue)| queue.states.is_some());
                queues.map(|(index, _)| index).collect()
            }
            Kind::Producers | Kind::ProducerPages | Kind::OpeningPages => {
                let queues = self.queues.iter();
                let queues = queues.filter(|(_, queue)| queue.producers.is_some());
                queues.map(|(index, _)| index).collect()
            }
            Kind::IndexedIds => {
                let queues = self.queues.iter();
                let queues = queues.filter(|(_, queue)| queue.indexed.is_some());
                queues.map(|(index, _)| index).collect()
            }
            Kind::IndexedEventIds => {
                let ledgers = self.ledgers.by_id.iter();
                let ledgers = ledgers.filter(|(_, ledger)| ledger.indexed > SequenceId(0));
                ledgers.map(|(&id, _)| id).collect()
            }
            Kind::LedgersMade if self.ledgers.made == 0 => Vec::new(),
            Kind::Ledgers | Kind::EventBlocks | Kind::InputPages | Kind::EventIdPages => {
                self.ledgers.by_id.keys().copied().collect()
            }
            Kind::Exchanges | Kind::BindingPages if self.exchanges.is_unused() => Vec::new(),
            Kind::SharedPayloads | Kind::SharedPayloadPages if self.shared.rows.is_empty() => {
                Vec::new()
            }
            Kind::Exchange => self.exchanges.by_id.keys().copied().collect(),
            Kind::Schedules | Kind::SchedulePages if self.schedules.is_unused() => Vec::new(),
            Kind::ExchangeNotes => {
                let exchanges = self.exchanges.by_id.iter();
                let noted = exchanges.filter(|(_, state)| state.has_notes());
                noted.map(|(&id, _)| id).collect()
            }
            _ => vec![0],
        }
    }

    /// Appends a section without its head, and returns its first index. `None`: there is no such page.
    fn encode_section(
        &mut self,
        kind: Kind,
        owner: u32,
        page: u32,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        match kind {
            Kind::Shard
            | Kind::KeySequences
            | Kind::Failures
            | Kind::Debtors
            | Kind::Records
            | Kind::KeyStates
            | Kind::Producers
            | Kind::LedgersMade
            | Kind::Ledgers
            | Kind::IndexedIds
            | Kind::IndexedEventIds
            | Kind::Exchanges
            | Kind::Exchange
            | Kind::SharedPayloads
            | Kind::ExchangeNotes
            | Kind::Schedules
            | Kind::End
                if page > 0 =>
            {
                None
            }
            Kind::Shard => {
                self.encode_shard(out);
                Some(0)
            }
            // Kept until the end, because other pages are found through the queues.
            Kind::Queues => self.queues.encode_page(page, out),
            Kind::Contents => self.contents.encode_page(page, out),
            Kind::Keys => encode_page(&mut self.keys, page, out),
            Kind::Holders => encode_page(&mut self.holders, page, out),
            Kind::LeaseStates => encode_page(&mut self.lease_states, page, out),
            Kind::Origins => encode_page(&mut self.origins, page, out),
            Kind::TimesToLive => encode_page(&mut self.times_to_live, page, out),
            Kind::WallTimers => encode_page(self.wall.nodes(), page, out),
            Kind::MachineTimers => encode_page(self.machine.nodes(), page, out),
            Kind::Messages => encode_page(&mut self.messages, page, out),
            Kind::Leaves => encode_page(self.contents[owner].by_sequence.leaves(), page, out),
            Kind::UniqueIds => encode_page(self.queues[owner].dedup.ids(), page, out),
            Kind::PurgedUniqueIds => {
                let window = self.purged[owner as usize].unique_ids.as_mut()?;
                encode_page(window.ids(), page, out)
            }
            Kind::KeySequences => {
                self.queues[owner].key_sequences.encode_outline(out);
                Some(0)
            }
            Kind::KeySequencePages => {
                encode_page(self.queues[owner].key_sequences.pages(), page, out)
            }
            Kind::Failures => {
                self.failures.encode_outline(out);
                Some(0)
            }
            Kind::FailurePages => encode_page(&mut self.failures, page, out),
            Kind::Debtors => {
                self.debtors.encode_outline(out);
                Some(0)
            }
            Kind::DebtorPages => encode_page(&mut self.debtors, page, out),
            Kind::Records => {
                put_u64(out, self.records.revision);
                put_u64(out, self.records.deleted_version);
                self.records.entries.encode_outline(out);
                Some(0)
            }
            Kind::RecordPages => encode_page(&mut self.records.entries, page, out),
            Kind::KeyStates => {
                self.queues[owner].states.as_ref()?.encode_outline(out);
                Some(0)
            }
            Kind::KeyStatePages => {
                encode_page(self.queues[owner].states.as_mut()?.pages(), page, out)
            }
            Kind::Producers => {
                self.queues[owner].producers.as_ref()?.encode_outline(out);
                Some(0)
            }
            Kind::ProducerPages => {
                encode_page(self.queues[owner].producers.as_mut()?.entries(), page, out)
            }
            Kind::OpeningPages => {
                let producers = self.queues[owner].producers.as_mut()?;
                encode_page(producers.opening_entries(), page, out)
            }
            Kind::LedgersMade => {
                put_u32(out, self.ledgers.made);
                Some(0)
            }
            Kind::Ledgers => {
                self.ledgers.by_id.get(&owner)?.encode_outline(out);
                Some(0)
            }
            Kind::EventBlocks => {
                let blocks = &mut self.ledgers.by_id.get_mut(&owner)?.blocks;
                blocks.encode_chunk(page, out)
            }
            Kind::InputPages => {
                encode_page(&mut self.ledgers.by_id.get_mut(&owner)?.inputs, page, out)
            }
            Kind::EventIdPages => {
                encode_page(self.ledgers.by_id.get_mut(&owner)?.ids.ids(), page, out)
            }
            Kind::IndexedIds => {
                let IndexedIds { up_to, forgotten } = self.queues[owner].indexed?;
                put_u64(out, up_to.0);
                put_u64(out, forgotten.0);
                Some(0)
            }
            Kind::IndexedEventIds => {
                put_u64(out, self.ledgers.by_id.get(&owner)?.indexed.0);
                Some(0)
            }
            Kind::Exchanges => {
                put_u32(out, self.exchanges.made);
                self.exchanges.bindings.encode_outline(out);
                Some(0)
            }
            Kind::Exchange => {
                self.exchanges.by_id.get(&owner)?.encode_outline(out);
                Some(0)
            }
            Kind::BindingPages => encode_page(&mut self.exchanges.bindings, page, out),
            Kind::SharedPayloads => {
                self.shared.rows.encode_outline(out);
                Some(0)
            }
            Kind::SharedPayloadPages => encode_page(&mut self.shared.rows, page, out),
            Kind::ExchangeNotes => {
                self.exchanges.by_id.get(&owner)?.encode_notes(out);
                Some(0)
            }
            Kind::Schedules => {
                put_u32(out, self.schedules.made);
                put_u64(out, self.schedules.revision);
                self.schedules.rows.encode_outline(out);
                Some(0)
            }
            Kind::SchedulePages => encode_page(&mut self.schedules.rows, page, out),
            Kind::End => Some(0),
        }
    }

    /// Appends everything that is not in a slab.
    fn encode_shard(&mut self, out: &mut Vec<u8>) {
        put_count(out, self.terms.len());
        for term in &self.terms {
            out.extend_from_slice(&term.shard.get().to_le_bytes());
            put_u64(out, term.epoch.0);
            put_u64(out, term.incarnation.0);
        }
        out.extend_from_slice(&self.clock.boot_id.0);
        out.extend_from_slice(&self.clock.clock_offset.to_le_bytes());
        put_u64(out, self.clock.now.wall.0);
        put_u64(out, self.clock.now.machine.0);
        out.push(u8::from(self.secret.is_some()));
        out.extend_from_slice(&self.secret.unwrap_or_default());
        out.push(u8::from(self.seed != HashSeed::default()));
        put_u64(out, self.next_lease);
        put_u32(out, self.next_queue);
        let mut totals = Vec::new();
        self.deleted_totals.encode(&mut totals);
        put_count(out, totals.len());
        out.extend_from_slice(&totals);
        put_u64(out, self.effects_ignored);
        self.live.encode(out);
        put_count(out, self.awaiting.len());
        for awaiting in &self.awaiting {
            put_u64(out, awaiting.position.0);
            put_u32(out, awaiting.index);
            put_u32(out, awaiting.queue.0);
            put_u64(out, awaiting.sequence.0);
        }
        self.queues.encode_outline(out);
        self.contents.encode_outline(out);
        self.keys.encode_outline(out);
        self.holders.encode_outline(out);
        self.lease_states.encode_outline(out);
        self.origins.encode_outline(out);
        self.times_to_live.encode_outline(out);
        self.wall.encode_outline(out);
        self.machine.encode_outline(out);
        self.messages.encode_outline(out);
        put_count(out, self.purged.len());
        for purged in &self.purged {
            put_u32(out, purged.content);
            out.push(u8::from(purged.unique_ids.is_some()));
            if let Some(window) = &purged.unique_ids {
                window.encode_outline(out);
            }
        }
    }
}

/// Appends a page and gives it back.
fn encode_page<T: Row, const PAGE: u32>(
    slab: &mut Slab<T, PAGE>,
    page: u32,
    out: &mut Vec<u8>,
) -> Option<u32> {
    let first = slab.encode_page(page, out)?;
    slab.forget_page(page);
    Some(first)
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    put_u32(out, u32::try_from(count).expect("counted by u32 elsewhere"));
}

/// Shows how much the machine holds, not its contents.
impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen")
            .field("machine", &self.machine)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
