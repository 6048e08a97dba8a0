//! The machine: [`decide`](Machine::decide) computes what a command does, and
//! [`fold`](Machine::fold) does it.
//!
//! The files are divided by topic; each contains both deciding and folding for its topic:
//!
//! - `state`: what the machine holds, and in how many bytes; `list`: linked lists through it.
//! - `order`: a message's way through its queue, and which keys are ready.
//! - `send`, `receive`, `settle`, `transact`, `messages`, `keys`, `queues`: the commands.
//!   `compact`: the places of messages' bytes in the log, and compaction.
//! - `ledgers`: event logs with one total order. `exchanges`: which queues a published message gets to.
//! - `records`: versioned values that may be leased. `key_states`: the states of keys.
//! - `producers`: which records of producers were accepted.
//! - `failures`: what is kept of failed attempts. `limits`: what limits hold. `holds`: holds that somebody asks for.
//! - `time`: terms, timers, retention. `query`: queries. `housekeeping`: freeing purged memory.
//!   `read_ahead`: reading ahead for a group of commands.
//! - `image`: the whole machine as bytes, written while it continues.
//! - `state_view`: the whole logical state as a comparable value.
//!
//! # What is volatile
//! Some parts of the machine do not follow from the log and never affect folding: which records are durable
//! ([`reached`](Machine::reached)), the order of the list of ready keys (a key enters it when its record
//! becomes durable), which keys a limit holds, counters of duplicates and stale tokens, and which purged memory is freed already.
//! Decisions may depend on them, because their effects are logged; folding must not.

mod bounds;
mod check;
mod compact;
mod draft;
mod exchanges;
mod failures;
mod holds;
mod housekeeping;
mod ids;
mod image;
mod key_sequences;
mod key_states;
mod keys;
mod ledgers;
mod limits;
mod list;
mod messages;
mod moves;
mod order;
mod outcomes;
mod producers;
mod query;
mod query_pages;
mod queues;
mod read_ahead;
mod receive;
mod records;
mod schedules;
mod send;
mod settle;
mod shared;
mod spans;
mod state;
mod state_view;
#[cfg(test)]
mod tests;
mod time;
mod transact;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
};

use lockgate_core::{BootId, Level, MachineTime, Now, Position, QueueId, QueueName, ShardId, Term};

use self::{
    draft::Draft,
    exchanges::Exchanges,
    housekeeping::PurgedContent,
    key_states::KeyStates,
    ledgers::Ledgers,
    limits::{Debtor, Walks},
    producers::Producers,
    read_ahead::Likely,
    records::RecordTable,
    schedules::{ScheduleSet, Schedules},
    shared::SharedPayloads,
    state::{
        Awaiting, Contents, FailuresEntry, Holder, Keys, LeaseState, Message, OriginEntry, Queues,
        TimeToLive,
    },
};
use crate::{
    AnyCommand, BatchRecord, Cancel, ChangeKey, ChangeQueue, Command, Decision, DeleteLedger,
    DeleteQueue, Effect, EngineCommand, ForgetProducer, OpenProducer, Pause, Purge, QueueTotals,
    RecordBatch, Rejection, Reply, Reschedule, SealLedger, Settled, SyncWindow, TrimLedger,
    codec::batch::Step,
    effect::Arrival,
    live::LiveRanges,
    slab::{NONE, Slab},
    table::{HashSeed, Table, hash_pair},
    wheel::Wheel,
};

/// Effects of a batch that are read ahead for at a time, up to the end of a record: what was read
/// for the first of them must still be in the processor's cache when the last of them is folded.
const FOLDED_AT_ONCE: usize = if cfg!(test) { 3 } else { 64 };

pub use self::bounds::MachineLimits;
pub use self::exchanges::{ExchangeError, ExchangeView, Route, Target};
pub use self::housekeeping::Housekeeping;
pub(crate) use self::image::IMAGE_VERSION;
pub use self::image::{Frozen, ImageLoader};
pub use self::ledgers::{LedgerView, LiveBlock};
pub use self::producers::ProducerView;
pub use self::read_ahead::Upcoming;
pub use self::records::RecordCounts;
pub use self::schedules::{ScheduleError, ScheduleView, TimingPart};
pub use self::spans::Span;
pub use self::state_view::{
    KeyView, LeaseView, MessageState, MessageView, QueueView, RecordsView, StateView,
};

/// What the next start of a shard must know about time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockState {
    /// The boot of the last term.
    pub boot_id: BootId,
    /// Machine time minus time since boot in that term.
    pub clock_offset: i64,
    /// The latest instant that was logged.
    pub now: Now,
}

/// When [`Machine::tick`] next has something to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// By wall time: due messages and retention. Never later than the first of them; may be earlier.
    pub wall: Option<lockgate_core::WallTime>,
    /// By machine time: ends of leases, backoffs and windows. Never later than the first of them;
    /// may be earlier.
    pub machine: Option<MachineTime>,
}

/// All queues of one shard.
///
/// An empty one is cheap; its memory grows with its contents. An engine owns it and uses it from one thread.
pub struct Machine {
    limits: MachineLimits,

    /// All terms that were started; the last one is the current one.
    terms: Vec<Term>,
    clock: ClockState,
    secret: Option<[u8; 32]>,
    seed: HashSeed,
    next_lease: u64,

    queues: Queues,
    queue_names: BTreeMap<QueueName, u32>,
    queue_ids: Table,
    /// The queue of the last send: the next command mostly uses the same one.
    recent_queue: u32,
    /// The probable message of the effect being folded, if reading ahead has found one.
    likely_message: u32,
    next_queue: u32,
    /// The totals of deleted queues.
    deleted_totals: QueueTotals,

    contents: Contents,
    keys: Keys,
    by_key: Table,
    messages: Slab<Message>,
    lease_states: Slab<LeaseState>,
    holders: Slab<Holder>,
    by_holder: Table,
    origins: Slab<OriginEntry>,
    by_moved_message: Table,
    /// Origins by the message's id, which finds it in whichever queue it is.
    by_moved_id: Table,
    times_to_live: Slab<TimeToLive>,
    by_ttl_message: Table,
    failures: Slab<FailuresEntry>,
    by_failed_message: Table,
    /// Memory of the failures, including those of purged messages until they are freed.
    failure_bytes: u64,
    records: RecordTable,
    ledgers: Ledgers,
    exchanges: Exchanges,
    schedules: Schedules,
    /// Memory of the states of keys.
    key_state_bytes: u64,
    /// The states of queues that were deleted, until they are freed.
    dead_states: Vec<KeyStates>,
    /// What producers take in an image.
    producer_bytes: u64,
    /// The producers of queues that were deleted, until they are freed.
    dead_producers: Vec<Producers>,
    /// What keys owe under the limits of their queues.
    debtors: Slab<Debtor>,
    by_debtor: Table,
    /// Timers by machine time of who waits for a limit. Volatile.
    waits: Wheel,
    /// Rows to look at again. Volatile.
    walks: Walks,
    /// Keys that wait to owe something may have room now. Volatile.
    owing_keys_fell: bool,
    /// The time of the last tick. Volatile.
    ticked: Option<MachineTime>,
    /// Unique ids remembered in all queues, including purged ones until they are freed.
    unique_ids: u64,
    /// Of these, those that queues remember for ever, without purged ones. Volatile: a hint whether some may be indexed.
    ids_for_ever: u64,
    /// Whether ids may be in the index, and not in memory. Follows from the queues and ledgers.
    has_indexed_ids: bool,
    /// Counted keys in all queues.
    key_sequences: u64,

    /// Timers by wall time.
    wall: Wheel,
    /// Timers by machine time.
    machine: Wheel,

    /// Every record that starts before this is durable. `None`: all are, because they were recovered.
    durable: Option<Position>,
    /// Messages that are not leasable before their record is durable, in order of their records.
    awaiting: VecDeque<Awaiting>,
    /// Queues that gained leasable messages.
    woken: Vec<QueueId>,
    purged: VecDeque<PurgedContent>,
    /// The places of messages' bytes in the log. Follows from `messages`.
    live: LiveRanges,
    shared: SharedPayloads,

    /// The record being folded.
    folding_at: Position,
    effects_ignored: u64,
}

/// Shows how much the machine holds, not its contents: millions of messages, and a secret.
impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("term", &self.term())
            .field("now", &self.clock.now)
            .field("queues", &self.queues.len())
            .field("keys", &self.keys.len())
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// A machine without queues.
    ///
    /// # Panics
    /// If [`MachineLimits::range_bits`] is above 63.
    #[must_use]
    pub fn new(limits: MachineLimits) -> Self {
        Self {
            terms: Vec::new(),
            clock: ClockState::default(),
            secret: None,
            seed: HashSeed::default(),
            next_lease: 1,
            queues: Slab::default(),
            queue_names: BTreeMap::new(),
            queue_ids: Table::default(),
            recent_queue: NONE,
            likely_message: NONE,
            next_queue: 1,
            deleted_totals: QueueTotals::default(),
            contents: Slab::default(),
            keys: Slab::default(),
            by_key: Table::default(),
            messages: Slab::default(),
            lease_states: Slab::default(),
            holders: Slab::default(),
            by_holder: Table::default(),
            origins: Slab::default(),
            by_moved_message: Table::default(),
            by_moved_id: Table::default(),
            times_to_live: Slab::default(),
            by_ttl_message: Table::default(),
            failures: Slab::default(),
            by_failed_message: Table::default(),
            failure_bytes: 0,
            records: RecordTable::default(),
            ledgers: Ledgers::default(),
            exchanges: Exchanges::default(),
            schedules: Schedules::default(),
            key_state_bytes: 0,
            dead_states: Vec::new(),
            producer_bytes: 0,
            dead_producers: Vec::new(),
            debtors: Slab::default(),
            by_debtor: Table::default(),
            waits: Wheel::new(),
            walks: Walks::default(),
            owing_keys_fell: false,
            ticked: None,
            unique_ids: 0,
            ids_for_ever: 0,
            has_indexed_ids: false,
            key_sequences: 0,
            wall: Wheel::new(),
            machine: Wheel::new(),
            durable: None,
            awaiting: VecDeque::new(),
            woken: Vec::new(),
            purged: VecDeque::new(),
            live: LiveRanges::new(limits.range_bits),
            shared: SharedPayloads::default(),
            folding_at: Position(0),
            effects_ignored: 0,
            limits,
        }
    }

    /// What a command does at `now`, and the reply for its caller. Changes nothing.
    ///
    /// Call [`tick`](Self::tick) with that `now` first: leases and delays that it has not ended yet count as
    /// running, even if their time has come. The effects must be folded before the next command is decided.
    #[must_use]
    pub fn decide<'a>(&self, command: impl Into<AnyCommand<'a>>, now: Now) -> Decision {
        let now = self.monotonic(now);
        let mut draft = Draft::default();
        let outcome = match command.into() {
            AnyCommand::Caller(command) => self.decide_into(&mut draft, command, now),
            AnyCommand::Engine(command) => self.decide_for_engine(&mut draft, command, now),
        };
        let copying = draft.copying();
        match &outcome {
            // A refused command has no effects, and a refused transaction in particular. Effects that were
            // found on the way to a reply (exhausted messages) belong to a positive reply. What a refusal shows, such as
            // a lease that has ended, must be certain all the same.
            Err(_) => Decision {
                effects: crate::Effects::new(),
                outcome,
                level: draft.refusal_level,
                rests_on: draft.rests_on,
                copying,
            },
            Ok(_) => Decision {
                effects: draft.effects,
                outcome,
                level: draft.level,
                rests_on: draft.rests_on,
                copying,
            },
        }
    }

    fn decide_into(
        &self,
        draft: &mut Draft,
        command: &Command,
        now: Now,
    ) -> Result<Reply, Rejection> {
        match command {
            Command::CreateQueue(create) => self.decide_create_queue(draft, create, now),
            Command::ChangeQueue(ChangeQueue {
                queue,
                settings,
                annotations,
                tags,
            }) => self.decide_change_queue(
                draft,
                queue,
                settings.as_deref(),
                annotations.as_ref(),
                tags.as_ref(),
                now,
            ),
            Command::DeleteQueue(DeleteQueue { queue }) => self.decide_delete_queue(draft, queue),
            Command::Purge(Purge { queue }) => self.decide_purge(draft, queue),
            Command::Pause(Pause { queue, paused }) => self.decide_pause(draft, queue, *paused),
            Command::Send(send) => Ok(Reply::Sent(self.decide_send(
                draft,
                (&**send).into(),
                now,
            )?)),
            Command::Receive(receive) => self.decide_receive(draft, receive, now),
            Command::Settle(settle) => Ok(Reply::Settled(
                match self.decide_settle(draft, settle, now)? {
                    Ok(settled) => settled,
                    Err(stale) => Settled::Stale(stale),
                },
            )),
            Command::Transact(transact) => self.decide_transact(draft, transact, now),
            Command::Cancel(Cancel { queue, message }) => {
                self.decide_cancel(draft, queue, *message)
            }
            Command::Reschedule(Reschedule {
                queue,
                message,
                due,
            }) => self.decide_reschedule(draft, queue, *message, *due, now),
            Command::Move(command) => self.decide_move(draft, command, now),
            Command::ChangeKey(ChangeKey { queue, key, action }) => {
                self.decide_key(draft, queue, key, *action)
            }
            Command::ChangeKeyState(change) => self.decide_key_state(draft, change, now),
            Command::Hold(hold) => self.decide_hold(draft, hold, now),
            Command::PutRecord(put) => self.decide_put_record(draft, put, now),
            Command::DeleteRecord(delete) => self.decide_delete_record(draft, delete, now),
            Command::LeaseRecord(lease) => self.decide_lease_record(draft, lease, now),
            Command::ExtendRecord(extend) => self.decide_extend_record(draft, extend, now),
            Command::ReleaseRecord(release) => self.decide_release_record(draft, release, now),
            Command::OpenProducer(OpenProducer { queue, producer }) => {
                self.decide_open_producer(draft, queue, producer, now)
            }
            Command::ForgetProducer(ForgetProducer { queue, producer }) => {
                self.decide_forget_producer(draft, queue, producer)
            }
            Command::CreateLedger(create) => self.decide_create_ledger(draft, create, now),
            Command::DeleteLedger(DeleteLedger { ledger }) => {
                self.decide_delete_ledger(draft, ledger)
            }
            Command::AppendEvents(append) => self.decide_append_events(draft, append, now),
            Command::MoveReader(command) => self.decide_move_reader(draft, command),
            Command::SealLedger(SealLedger { ledger, epoch }) => {
                self.decide_seal_ledger(draft, ledger, *epoch)
            }
            Command::TrimLedger(TrimLedger { ledger, first }) => {
                self.decide_trim_ledger(draft, ledger, *first)
            }
            Command::CreateExchange(create) => self.decide_create_exchange(draft, create, now),
            Command::UpdateExchange(update) => self.decide_update_exchange(draft, update, now),
            Command::DeleteExchange(delete) => self.decide_delete_exchange(draft, delete),
            Command::Bind(bind) => self.decide_bind(draft, bind),
            Command::Unbind(unbind) => self.decide_unbind(draft, unbind),
            Command::Publish(publish) => {
                let published = self.decide_publish(draft, publish, now)?;
                Ok(Reply::Published(Box::new(published)))
            }
            Command::PutSchedule(put) => self.decide_put_schedule(draft, put, now),
            Command::ChangeSchedule(change) => self.decide_change_schedule(draft, change, now),
            Command::DeleteSchedule(delete) => self.decide_delete_schedule(draft, delete),
            Command::RunSchedule(run) => self.decide_run_schedule(draft, run, now),
            Command::Fenced(fenced) => self.decide_fenced(draft, fenced, now),
            Command::LookedUp(looked) => {
                draft.looked_up = Some(looked.answers.clone());
                self.decide_into(draft, &looked.command, now)
            }
        }
    }

    fn decide_for_engine(
        &self,
        draft: &mut Draft,
        command: &EngineCommand,
        now: Now,
    ) -> Result<Reply, Rejection> {
        match command {
            EngineCommand::StartTerm {
                term,
                boot_id,
                clock_offset,
                secret,
            } => self.decide_start_term(draft, *term, *boot_id, *clock_offset, secret, now),
            EngineCommand::EndTerm => {
                draft.add(
                    Effect::TermEnded { now },
                    self.limits.log_level.min(Level::Disk),
                );
                Ok(Reply::Done)
            }
            EngineCommand::Advance => {
                // Without a budget: due timers are fired by ticks, which bound their work.
                draft.add(
                    Effect::Advanced { now, budget: 0 },
                    self.limits.log_level.min(Level::Process),
                );
                Ok(Reply::Done)
            }
            EngineCommand::IdsIndexed { space, up_to } => {
                self.decide_ids_indexed(draft, *space, *up_to)
            }
            EngineCommand::Damaged { queue, sequence } => {
                self.decide_damaged(draft, *queue, *sequence)
            }
            EngineCommand::Compact { copies, from } => {
                Ok(self.decide_compact(draft, copies, *from))
            }
            EngineCommand::CompactEvents { block, from } => {
                self.decide_compact_events(draft, block, *from)
            }
            EngineCommand::LoseEvents { ledger, first } => {
                self.decide_lose_events(draft, *ledger, *first)
            }
            EngineCommand::StepSchedule(step) => self.decide_step_schedule(draft, step, now),
        }
    }

    /// Applies the effects of one record, which starts at `at`. Cannot fail: an effect on something
    /// that does not exist, because a record was lost, is counted and ignored.
    pub fn fold(&mut self, effects: &[Effect], at: Position) {
        self.folding_at = at;
        for (part, effect) in effects.iter().enumerate() {
            // No command makes a record with more effects; one from elsewhere must not cause a panic.
            let part = u16::try_from(part).unwrap_or(u16::MAX);
            if self.fold_effect(effect, part).is_none() {
                self.effects_ignored += 1;
            }
        }
    }

    /// Applies many records, each as [`fold`](Self::fold) does; for a start, which folds millions
    /// of them and decides nothing. `look` sees each record and the machine before it.
    pub fn fold_batch(
        &mut self,
        batch: &RecordBatch,
        mut look: impl FnMut(&Self, BatchRecord<'_>),
    ) {
        let mut steps = batch.steps();
        let mut folded = 0;
        let mut likely = Likely::default();
        let mut later_records = batch.records();
        while !later_records.is_empty() {
            let fitting =
                later_records.partition_point(|record| record.steps_end < folded + FOLDED_AT_ONCE);
            let (records, later) = later_records.split_at(later_records.len().min(fitting + 1));
            later_records = later;
            let end = records.last().map_or(folded, |record| record.steps_end);
            self.read_ahead_for_fold(batch, &steps[..end - folded], &mut likely);
            let mut places = likely.places.iter();
            for record in records {
                let (own, later) = steps.split_at(record.steps_end - folded);
                (steps, folded) = (later, record.steps_end);
                look(self, batch.record(record, own));
                self.folding_at = record.position;
                for ((part, step), &likely) in own.iter().enumerate().zip(&mut places) {
                    // As in `fold`.
                    let part = u16::try_from(part).unwrap_or(u16::MAX);
                    let is_folded = match step {
                        Step::Accepted(kept) => {
                            self.fold_accepted(&batch.arrival(kept, self.seed, likely), part)
                        }
                        Step::Other(effect) => {
                            self.likely_message = likely;
                            self.fold_effect(effect, part)
                        }
                    };
                    if is_folded.is_none() {
                        self.effects_ignored += 1;
                    }
                }
            }
        }
        self.likely_message = NONE;
    }

    /// `None`: the effect is on something that does not exist.
    fn fold_effect(&mut self, effect: &Effect, part: u16) -> Option<()> {
        match effect {
            Effect::TermStarted {
                term,
                boot_id,
                clock_offset,
                secret,
                now,
            } => self.fold_term_started(*term, *boot_id, *clock_offset, secret, *now),
            Effect::TermEnded { now } => self.fold_term_ended(*now),
            Effect::Advanced { now, budget } => self.fold_advanced(*now, *budget),
            Effect::QueueCreated {
                queue,
                name,
                settings,
                annotations,
                tags,
                at,
            } => self.fold_queue_created(*queue, name, settings, annotations, tags, *at),
            Effect::QueueChanged {
                queue,
                settings,
                annotations,
                tags,
                at,
            } => self.fold_queue_changed(*queue, settings, annotations, tags, *at),
            Effect::QueueDeleted { queue } => self.fold_queue_deleted(*queue),
            Effect::Purged { queue } => self.fold_purged(*queue),
            Effect::Paused { queue, paused } => self.fold_paused(*queue, *paused),
            Effect::Accepted(stored) => self.fold_accepted(&Arrival::from(&**stored), part),
            Effect::SequencesReserved { queue, below } => {
                self.fold_sequences_reserved(*queue, *below)
            }
            Effect::Leased {
                queue,
                sequence,
                lease,
                now,
                deadline,
                holder,
            } => self.fold_leased(*queue, *sequence, *lease, *now, *deadline, holder),
            Effect::LeaseBoundRaised { queue, until } => {
                self.fold_lease_bound_raised(*queue, *until)
            }
            Effect::Acked { queue, sequence } => self.fold_acked(*queue, *sequence),
            Effect::Nacked {
                queue,
                sequence,
                until,
                failed,
            } => self.fold_nacked(*queue, *sequence, *until, failed.as_ref()),
            Effect::Extended {
                queue,
                sequence,
                deadline,
            } => self.fold_extended(*queue, *sequence, *deadline),
            Effect::GivenBack {
                queue,
                sequence,
                started,
            } => self.fold_given_back(*queue, *sequence, *started),
            Effect::Moved {
                from,
                sequence,
                to,
                to_sequence,
                reason,
                at,
            } => self.fold_moved(*from, *sequence, *to, *to_sequence, reason, *at),
            Effect::Dropped {
                queue,
                sequence,
                reason,
            } => self.fold_dropped(*queue, *sequence, *reason),
            Effect::Rescheduled {
                queue,
                sequence,
                due,
            } => self.fold_rescheduled(*queue, *sequence, *due),
            Effect::KeyParked { queue, key } => self.fold_key_parked(*queue, key),
            Effect::KeyResumed { queue, key } => self.fold_key_resumed(*queue, key),
            Effect::KeyStatePut {
                queue,
                key,
                version,
                at,
                value,
            } => self.fold_key_state_put(*queue, key, *version, *at, value),
            Effect::KeyStateDropped { queue, key } => self.fold_key_state_dropped(*queue, key),
            Effect::Held { queue, what, until } => self.fold_held(*queue, what, *until),
            Effect::RecordPut {
                name,
                version,
                revision,
                at,
                value,
            } => self.fold_record_put(name, *version, *revision, *at, value),
            Effect::RecordDeleted { name, revision } => self.fold_record_deleted(name, *revision),
            Effect::RecordLeased {
                name,
                holder,
                epoch,
                deadline,
                delete_at_end,
            } => self.fold_record_leased(name, holder, *epoch, *deadline, *delete_at_end),
            Effect::RecordReleased { name, revision } => self.fold_record_released(name, *revision),
            Effect::ProducerOpened {
                queue,
                producer,
                incarnation,
                at,
            } => self.fold_producer_opened(*queue, producer, *incarnation, *at),
            Effect::ProducerForgotten { queue, producer } => {
                self.fold_producer_forgotten(*queue, producer)
            }
            Effect::MarkRaised {
                queue,
                produced,
                at,
            } => self.fold_mark_raised(*queue, produced, *at),
            Effect::Compacted(stored) => self.fold_compacted(stored, part),
            Effect::LedgerCreated {
                ledger,
                name,
                hashed,
                retention,
                at,
            } => self.fold_ledger_created(*ledger, name, *hashed, *retention, *at),
            Effect::LedgerDeleted { ledger } => self.fold_ledger_deleted(*ledger),
            Effect::EventsAppended(appended) => self.fold_events_appended(appended),
            Effect::ReaderMoved { ledger, reader, to } => {
                self.fold_reader_moved(*ledger, reader, *to)
            }
            Effect::LedgerSealed { ledger, epoch } => self.fold_ledger_sealed(*ledger, *epoch),
            Effect::LedgerTrimmed { ledger, first } => self.fold_ledger_trimmed(*ledger, *first),
            Effect::EventsCompacted(block) => self.fold_events_compacted(block),
            Effect::EventsLost { ledger, first } => self.fold_events_lost(*ledger, *first),
            Effect::IdsIndexed { queue, up_to } => self.fold_ids_indexed(*queue, *up_to),
            Effect::EventIdsIndexed { ledger, up_to } => {
                self.fold_event_ids_indexed(*ledger, *up_to)
            }
            Effect::ExchangeCreated {
                exchange,
                name,
                kind,
                unroutable,
                at,
            } => self.fold_exchange_created(*exchange, name, *kind, *unroutable, *at),
            Effect::ExchangeChanged {
                exchange,
                unroutable,
                at,
            } => self.fold_exchange_changed(*exchange, *unroutable, *at),
            Effect::ExchangeNoted { exchange, notes } => self.fold_exchange_noted(*exchange, notes),
            Effect::ExchangeDeleted { exchange } => self.fold_exchange_deleted(*exchange),
            Effect::Bound {
                exchange,
                number,
                binding,
            } => self.fold_bound(*exchange, *number, binding),
            Effect::Unbound { exchange, number } => self.fold_unbound(*exchange, *number),
            Effect::Published {
                exchange,
                copies,
                skipped,
                unroutable,
                dropped,
            } => self.fold_published(*exchange, (*copies, *skipped), (*unroutable, *dropped)),
            Effect::ScheduleSet {
                schedule,
                name,
                generation,
                next,
                planned,
                anchor,
                at,
                spec,
            } => {
                let set = ScheduleSet {
                    name,
                    generation: *generation,
                    next: *next,
                    planned: *planned,
                    anchor: *anchor,
                    at: *at,
                };
                self.fold_schedule_set(*schedule, &set, spec)
            }
            Effect::ScheduleChanged {
                schedule,
                generation,
                paused,
                next,
                planned,
                at,
            } => {
                let times = (*next, *planned);
                self.fold_schedule_changed(*schedule, *generation, *paused, times, *at)
            }
            Effect::ScheduleDeleted { schedule } => self.fold_schedule_deleted(*schedule),
            Effect::ScheduleStepped {
                schedule,
                firing,
                replaced,
                missed,
                next,
            } => self.fold_schedule_stepped(*schedule, *firing, *replaced, *missed, *next),
        }
    }

    /// Tells the machine that every record which starts before `durable` is durable; messages that
    /// waited for that become leasable.
    ///
    /// Until the first call everything folded counts as durable: it was recovered from a log that is synced
    /// before its shard serves. So an engine calls this once after recovery, and then after every sync.
    pub fn reached(&mut self, durable: Position) {
        self.durable = Some(self.durable.map_or(durable, |before| before.max(durable)));
        self.drain_awaiting(durable);
    }

    /// The queues that gained leasable messages since the last call, each once. A hint:
    /// [`leasable`](Self::leasable) may be false when the caller checks.
    pub fn take_woken(&mut self) -> impl Iterator<Item = QueueId> + use<> {
        let woken = std::mem::take(&mut self.woken);
        for &queue in &woken {
            if let Some(queue) = self.queue_index(queue) {
                self.queues[queue].woken = false;
            }
        }
        woken.into_iter()
    }

    /// Whether a receive from the queue would find something at the time of the last tick. The
    /// receive may still return nothing if it found only messages with too many attempts and moved
    /// them; repeat it then for as long as this is true.
    #[must_use]
    pub fn leasable(&self, queue: &QueueName) -> bool {
        self.queue_names
            .get(queue)
            .is_some_and(|&queue| self.is_leasable(queue))
    }

    /// The current term; all zero before the first.
    #[must_use]
    pub fn term(&self) -> Term {
        self.terms.last().copied().unwrap_or_default()
    }

    /// The shard's number; `None` before the first term, which sets it.
    #[must_use]
    pub fn shard(&self) -> Option<ShardId> {
        self.terms.last().map(|term| term.shard)
    }

    /// The shard's secret: 32 random bytes, the same for as long as the shard exists. `None` before
    /// the first term.
    #[must_use]
    pub fn secret(&self) -> Option<[u8; 32]> {
        self.secret
    }

    /// The seed for hashes of keys and unique ids; known from the first term on.
    pub(crate) fn seed(&self) -> Option<HashSeed> {
        self.secret.map(|_| self.seed)
    }

    /// What the next term must know about time.
    #[must_use]
    pub fn clock_state(&self) -> ClockState {
        self.clock
    }

    /// When [`tick`](Self::tick) must be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Deadlines {
        Deadlines {
            wall: self.wall.next_deadline().map(lockgate_core::WallTime),
            machine: {
                let timer = self.machine.next_deadline().map(MachineTime);
                match self.next_wait() {
                    None => timer,
                    wait => timer.into_iter().chain(wait).min(),
                }
            },
        }
    }

    /// Effects on something that does not exist. Not zero only after damage to the log.
    #[must_use]
    pub fn effects_ignored(&self) -> u64 {
        self.effects_ignored
    }

    /// The id of the queue with that name.
    #[must_use]
    pub fn queue_id(&self, name: &QueueName) -> Option<QueueId> {
        self.queue_names
            .get(name)
            .map(|&queue| self.queues[queue].id)
    }

    /// The sync window of the record with these effects, decided below [`Level::Disk`]: the
    /// shortest window of its queues. `of_log` applies to queues without their own window, and to
    /// effects of no queue: passed time, compacted messages, created and changed queues, and
    /// reserved sequence numbers, which should be durable before a send must wait for them.
    ///
    /// Leases and given-back leases need no earlier sync than the log's: the lease bound limits
    /// what a power cut may take of them, or the queue's level allows their loss.
    #[must_use]
    pub fn sync_window(&self, effects: &[Effect], of_log: SyncWindow) -> SyncWindow {
        // Most records concern one queue, however many effects they have.
        let mut known = None;
        let mut of = |id: &QueueId| match known {
            Some((last, window)) if last == *id => window,
            _ => {
                let window = self.window_of(*id, of_log);
                known = Some((*id, window));
                window
            }
        };
        // What a publish counts may wait as long as its copies.
        let effects = effects.iter();
        let windows = effects.filter(|effect| {
            !matches!(
                effect,
                Effect::Published { .. } | Effect::ScheduleStepped { .. }
            )
        });
        let windows = windows.map(|effect| match effect {
            Effect::Accepted(stored) => of(&stored.queue),
            Effect::Acked { queue, .. }
            | Effect::Nacked { queue, .. }
            | Effect::Extended { queue, .. }
            | Effect::Dropped { queue, .. }
            | Effect::Rescheduled { queue, .. }
            | Effect::Paused { queue, .. }
            | Effect::Purged { queue }
            | Effect::KeyParked { queue, .. }
            | Effect::KeyResumed { queue, .. }
            | Effect::KeyStatePut { queue, .. }
            | Effect::KeyStateDropped { queue, .. }
            | Effect::MarkRaised { queue, .. }
            | Effect::Held { queue, .. } => of(queue),
            Effect::Moved { from, to, .. } => of(from).shorter(of(to)),
            Effect::Leased { queue, .. } | Effect::GivenBack { queue, .. } => {
                of(queue).longer(of_log)
            }
            _ => of_log,
        });
        windows.reduce(SyncWindow::shorter).unwrap_or(of_log)
    }

    fn window_of(&self, queue: QueueId, of_log: SyncWindow) -> SyncWindow {
        let Some(queue) = self.queue_index(queue) else {
            return of_log;
        };
        let settings = &self.queues[queue].settings;
        if settings.level < Level::Disk {
            settings.unsynced_max().or(of_log)
        } else {
            // The queue asked for `disk`; the little that it writes below that level, mostly
            // leases, must not wait longer than that of other queues.
            settings.unsynced_max().shorter(of_log)
        }
    }

    fn queue_index(&self, id: QueueId) -> Option<u32> {
        let recent = self.queues.get(self.recent_queue);
        if recent.is_some_and(|queue| queue.id == id) {
            return Some(self.recent_queue);
        }
        self.queue_ids
            .find(hash_pair(id.0, 0), |queue| self.queues[queue].id == id)
    }

    fn named_queue(&self, name: &QueueName) -> Result<u32, Rejection> {
        self.queue_names
            .get(name)
            .copied()
            .ok_or_else(|| Rejection::QueueNotFound {
                queue: name.clone(),
            })
    }

    fn is_leasable(&self, queue: u32) -> bool {
        let state = &self.queues[queue];
        let content = &self.contents[state.content];
        !state.paused
            && state.held_until.is_none()
            && !content.ready_keys.is_empty()
            && content.counts.in_flight < u64::from(state.settings.in_flight_max)
            && !self.is_queue_limited(queue)
    }

    /// A clock that goes back must not make machine time go back.
    fn monotonic(&self, now: Now) -> Now {
        Now {
            wall: now.wall,
            machine: now.machine.max(self.clock.now.machine),
        }
    }

    /// What an answer must wait for if it depends on the record at `at`.
    fn unless_durable(&self, at: Position) -> Option<Position> {
        self.durable
            .is_some_and(|durable| at >= durable)
            .then_some(at)
    }
}
