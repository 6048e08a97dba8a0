//! Creates, changes, pauses, purges and deletes queues.
//!
//! A purge takes effect at one instant and in O(1): the queue gets a new, empty content, and
//! [`Machine::housekeep`] frees the old one in steps. Parked keys are part of the content, so a
//! purge forgets them.

use std::{collections::BTreeMap, sync::Arc};

use lockgate_core::{Level, MachineTime, Now, Position, QueueId, QueueName, Sequence, WallTime};

use super::{
    Machine,
    draft::Draft,
    housekeeping::PurgedContent,
    key_sequences::KeySequences,
    key_states::KeyStates,
    limits::QueueLimits,
    messages::count_dropped,
    state::{Content, Queue, Reserve},
};
use crate::{
    CreateQueue, CreatedQueue, DropReason, Effect, QueueCounts, QueueDescription, QueueSettings,
    QueueTotals, Rejection, Reply, SettingsError, dedup::DedupWindow, slab::NONE, table::hash_pair,
};

impl Machine {
    pub(super) fn decide_create_queue(
        &self,
        draft: &mut Draft,
        create: &CreateQueue,
        now: Now,
    ) -> Result<Reply, Rejection> {
        if let Some(&index) = self.queue_names.get(&create.name) {
            draft.level = Level::Process;
            draft.rest_on(self.unless_durable(self.queues[index].changed_at));
            return Ok(Reply::Queue(CreatedQueue {
                existed: true,
                description: Box::new(self.describe(index)),
            }));
        }
        self.check_settings(&create.name, None, &create.settings)?;
        if self.queues.len() >= self.limits.queues_max as usize {
            return Err(Rejection::ShardFull {
                what: "queues",
                max: u64::from(self.limits.queues_max),
            });
        }
        if self.next_queue > QueueId::MAX.0 {
            return Err(Rejection::ShardFull {
                what: "queues ever made",
                max: u64::from(QueueId::MAX.0),
            });
        }
        let queue = QueueId(self.next_queue);
        let mut settings = create.settings.clone();
        settings.dedup_scope_from = None;
        draft.add(
            Effect::QueueCreated {
                queue,
                name: create.name.clone(),
                settings: Box::new(settings.clone()),
                annotations: create.annotations.clone(),
                tags: create.tags.clone(),
                at: now.wall,
            },
            self.administration_level(),
        );
        Ok(Reply::Queue(CreatedQueue {
            existed: false,
            description: Box::new(QueueDescription {
                id: queue,
                name: create.name.clone(),
                settings,
                annotations: create.annotations.clone(),
                tags: create.tags.clone(),
                created: now.wall,
                changed: now.wall,
                paused: false,
                limited: None,
                held: None,
                counts: QueueCounts::default(),
                totals: QueueTotals::default(),
            }),
        }))
    }

    pub(super) fn decide_change_queue(
        &self,
        draft: &mut Draft,
        name: &QueueName,
        settings: Option<&QueueSettings>,
        annotations: Option<&BTreeMap<String, String>>,
        tags: Option<&BTreeMap<String, String>>,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let queue = &self.queues[self.named_queue(name)?];
        if let Some(settings) = settings {
            self.check_settings(name, Some(&queue.settings), settings)?;
        }
        let mut settings = Box::new(settings.unwrap_or(&queue.settings).clone());
        settings.follow(&queue.settings, now.machine);
        if settings.limits() != queue.settings.limits() {
            // What is owed until now is paid off by the old limits.
            draft.add(Effect::Advanced { now, budget: 0 }, Level::Memory);
        }
        draft.add(
            Effect::QueueChanged {
                queue: queue.id,
                settings,
                annotations: annotations.unwrap_or(&queue.annotations).clone(),
                tags: tags.unwrap_or(&queue.tags).clone(),
                at: now.wall,
            },
            self.administration_level(),
        );
        Ok(Reply::Done)
    }

    pub(super) fn decide_delete_queue(
        &self,
        draft: &mut Draft,
        name: &QueueName,
    ) -> Result<Reply, Rejection> {
        let queue = self.queues[self.named_queue(name)?].id;
        draft.add(Effect::QueueDeleted { queue }, self.administration_level());
        Ok(Reply::Done)
    }

    pub(super) fn decide_purge(
        &self,
        draft: &mut Draft,
        name: &QueueName,
    ) -> Result<Reply, Rejection> {
        let queue = &self.queues[self.named_queue(name)?];
        let messages = self.contents[queue.content].messages();
        draft.add(
            Effect::Purged { queue: queue.id },
            self.administration_level(),
        );
        Ok(Reply::Dropped(messages))
    }

    pub(super) fn decide_pause(
        &self,
        draft: &mut Draft,
        name: &QueueName,
        paused: bool,
    ) -> Result<Reply, Rejection> {
        let queue = &self.queues[self.named_queue(name)?];
        if queue.paused == paused {
            draft.rest_on(self.unless_durable(queue.changed_at));
        } else {
            draft.add(
                Effect::Paused {
                    queue: queue.id,
                    paused,
                },
                self.administration_level(),
            );
        }
        Ok(Reply::Done)
    }

    /// Changes of a queue itself are synced, whatever the level of its messages.
    pub(super) fn administration_level(&self) -> Level {
        self.limits.log_level.min(Level::Disk)
    }

    /// Whether the queue `name` may have these settings. `before`: its present ones.
    fn check_settings(
        &self,
        name: &QueueName,
        before: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> Result<(), Rejection> {
        settings
            .check(name, before)
            .and_then(|()| self.check_dead_letter(before, settings))
            .and_then(|()| self.check_forever(before, settings))
            .map_err(|source| Rejection::Settings {
                queue: name.clone(),
                source,
            })?;
        if settings.level > self.limits.log_level {
            return Err(Rejection::Level {
                queue: name.clone(),
                asked: settings.level,
                queue_level: before.map_or(settings.level, |before| before.level),
                log_level: self.limits.log_level,
            });
        }
        Ok(())
    }

    /// Whether a new queue may remember unique ids for ever.
    fn check_forever(
        &self,
        before: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> Result<(), SettingsError> {
        if before.is_none() && settings.remembers_for_ever() && !self.limits.unique_id_index {
            return Err(SettingsError::ForeverUnsupported);
        }
        Ok(())
    }

    /// Whether the dead-letter queue exists and fits. A dead-letter queue that was set before and
    /// has been deleted does not hinder other changes.
    fn check_dead_letter(
        &self,
        before: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> Result<(), SettingsError> {
        let Some(dead_letter) = &settings.dead_letter else {
            return Ok(());
        };
        if before.is_some_and(|before| before.dead_letter == settings.dead_letter) {
            return Ok(());
        }
        let queue = dead_letter.clone();
        match self.queue_names.get(&queue) {
            None => Err(SettingsError::DeadLetterMissing { queue }),
            Some(&index) if self.queues[index].settings.keyed != settings.keyed => {
                Err(SettingsError::DeadLetterKind { queue })
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) fn fold_queue_created(
        &mut self,
        id: QueueId,
        name: &QueueName,
        settings: &QueueSettings,
        annotations: &BTreeMap<String, String>,
        tags: &BTreeMap<String, String>,
        at: WallTime,
    ) -> Option<()> {
        if self.queue_names.contains_key(name) || self.queue_index(id).is_some() {
            return None;
        }
        self.next_queue = self.next_queue.max(id.0.saturating_add(1));
        self.forget_earlier_debtors(id);
        self.forget_earlier_bindings(id);
        let index = self.queues.insert(Queue {
            id,
            name: name.clone(),
            settings: Arc::new(settings.clone()),
            annotations: Arc::new(annotations.clone()),
            tags: Arc::new(tags.clone()),
            created: at,
            changed: at,
            changed_at: self.folding_at,
            paused: false,
            held_until: None,
            hold_timer: NONE,
            content: NONE,
            next_sequence: Sequence(1),
            id_tails: Vec::new(),
            reserve: Reserve::default(),
            lease_bound: MachineTime(0),
            lease_bound_at: Position(0),
            dedup: DedupWindow::new(self.seed),
            indexed: None,
            dedup_timer: NONE,
            dedup_at: MachineTime::MAX,
            key_sequences: KeySequences::new(self.seed),
            states: None,
            producers: None,
            limits: QueueLimits::new(settings.limits(), self.clock.now.machine),
            sweep_timer: NONE,
            totals: QueueTotals::default(),
            woken: false,
        });
        let content = self.contents.insert(Content::new(index, id, settings));
        self.queues[index].content = content;
        self.queue_names.insert(name.clone(), index);
        let queues = &self.queues;
        self.queue_ids.insert(hash_pair(id.0, 0), index, |queue| {
            hash_pair(queues[queue].id.0, 0)
        });
        Some(())
    }

    pub(super) fn fold_queue_changed(
        &mut self,
        queue: QueueId,
        settings: &QueueSettings,
        annotations: &BTreeMap<String, String>,
        tags: &BTreeMap<String, String>,
        at: WallTime,
    ) -> Option<()> {
        let index = self.queue_index(queue)?;
        let queue = &mut self.queues[index];
        queue.settings = Arc::new(settings.clone());
        queue.annotations = Arc::new(annotations.clone());
        queue.tags = Arc::new(tags.clone());
        queue.changed = at;
        queue.changed_at = self.folding_at;
        if settings.key_sequences_max == 0 {
            self.key_sequences -= queue.key_sequences.len() as u64;
            queue.key_sequences = KeySequences::new(self.seed);
        }
        let content = queue.content;
        self.contents[content].profile = settings.key_profile;
        self.change_limits(index);
        self.rearm_sweep(index);
        self.arm_producers(index);
        self.wake(content);
        Some(())
    }

    pub(super) fn fold_queue_deleted(&mut self, queue: QueueId) -> Option<()> {
        let index = self.queue_index(queue)?;
        self.empty(index, DropReason::QueueDeleted, true);
        let states = self.queues[index].states.take();
        self.key_state_bytes -= states.as_deref().map_or(0, KeyStates::bytes);
        self.dead_states.extend(states.map(|states| *states));
        if let Some(producers) = self.queues[index].producers.take() {
            if producers.timer != NONE {
                self.machine.remove(producers.timer);
            }
            self.producer_bytes -= producers.image_bytes();
            self.dead_producers.push(*producers);
        }
        self.queue_ids
            .remove(hash_pair(queue.0, 0), |other| other == index);
        let queue = self.queues.remove(index);
        self.key_sequences -= queue.key_sequences.len() as u64;
        self.queue_names.remove(&queue.name);
        // The new content has never held anything.
        self.contents.remove(queue.content);
        for timer in [queue.dedup_timer, queue.hold_timer] {
            if timer != NONE {
                self.machine.remove(timer);
            }
        }
        self.forget_limits(queue.id, queue.limits);
        self.exchanges.drop_queue(queue.id, self.folding_at);
        self.deleted_totals.add(&queue.totals);
        Some(())
    }

    pub(super) fn fold_purged(&mut self, queue: QueueId) -> Option<()> {
        let index = self.queue_index(queue)?;
        let forget_ids = !self.queues[index].settings.dedup_survives_purge;
        self.empty(index, DropReason::Purged, forget_ids);
        self.queues[index].changed_at = self.folding_at;
        Some(())
    }

    /// Gives the queue an empty content and leaves the old one to be freed in steps.
    fn empty(&mut self, index: u32, reason: DropReason, forget_ids: bool) {
        let queue = &mut self.queues[index];
        self.schedules.queue_emptied(queue.id);
        let fresh = Content::new(index, queue.id, &queue.settings);
        let fresh = self.contents.insert(fresh);
        let old = std::mem::replace(&mut queue.content, fresh);
        let content = &mut self.contents[old];
        content.dead = true;
        count_dropped(&mut queue.totals, reason, content.messages());
        let sweep = std::mem::replace(&mut queue.sweep_timer, NONE);
        if sweep != NONE {
            self.wall.remove(sweep);
        }
        let mut unique_ids = None;
        if forget_ids {
            if queue.settings.remembers_for_ever() {
                let last = Sequence(queue.next_sequence.0 - 1);
                queue.indexed.get_or_insert_default().forgotten = last;
            }
            let empty = DedupWindow::new(self.seed);
            let ids = std::mem::replace(&mut queue.dedup, empty);
            if queue.settings.remembers_for_ever() {
                let held = ids.held() as u64;
                self.ids_for_ever = self.ids_for_ever.saturating_sub(held);
            }
            unique_ids = Some(ids);
            let timer = std::mem::replace(&mut queue.dedup_timer, NONE);
            if timer != NONE {
                self.machine.remove(timer);
            }
        }
        self.purged.push_back(PurgedContent {
            content: old,
            unique_ids,
        });
    }

    pub(super) fn fold_paused(&mut self, queue: QueueId, paused: bool) -> Option<()> {
        let index = self.queue_index(queue)?;
        let queue = &mut self.queues[index];
        queue.paused = paused;
        queue.changed_at = self.folding_at;
        let content = queue.content;
        self.wake(content);
        Some(())
    }
}
