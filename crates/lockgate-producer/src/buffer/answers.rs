//! What the sink says of a batch, and what follows for its records.

use std::time::Duration;

use lockgate_core::{Accepted, Fate, Millis, ProducerRefused, TransportError};

use super::{Buffer, Sending, packing::Packing};
use crate::{DropReason, options::WhenUnknown};

/// What a sink has refused of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefusedOf {
    /// Records that were dropped for it.
    pub(crate) dropped: u64,
    /// Records of packs, which are sent again each by itself.
    pub(crate) split: u64,
}

enum Verdict {
    Drop(DropReason),
    /// It goes back. `blame`: the sink could not take it, or what became of it is unknown.
    Again {
        blame: bool,
    },
}

impl<T, I: Clone> Buffer<T, I> {
    /// What became of a batch. An answer that is missing is unknown. Returns what the sink has refused.
    pub(crate) fn answered(
        &mut self,
        id: usize,
        results: Vec<Result<Accepted<I>, TransportError>>,
        now: Millis,
        random: u64,
    ) -> RefusedOf {
        let mut refused = RefusedOf::default();
        let Some(sent) = self.batches.try_remove(id) else {
            return refused;
        };
        self.figures.sending += Duration::from_millis(now.saturating_sub(sent.at));
        let was_fenced = self.fenced.is_some();
        let mut results = results.into_iter();
        let (mut took, mut failed) = (false, false);
        let mut back = Vec::new();
        for (number, pack) in sent.packs.of(&sent.records).enumerate() {
            let result = results.next().unwrap_or_else(|| {
                Err(TransportError::new(
                    Fate::Unknown,
                    "the sink gave no answer",
                ))
            });
            let is_refused = result.as_ref().is_err_and(|error| error.fate.is_never());
            took |= is_refused || result.is_ok();
            if is_refused && pack.len() > 1 {
                // Perhaps for one of them, or for its size.
                for &place in pack {
                    self.records[place].packing = Packing::Alone;
                    match self.again(place, false, now) {
                        Verdict::Drop(reason) => self.drop_record(place, reason, None),
                        Verdict::Again { blame } => {
                            refused.split += 1;
                            back.push((place, number, blame));
                        }
                    }
                }
                continue;
            }
            for &place in pack {
                let error = match &result {
                    Ok(accepted) => {
                        self.deliver(place, accepted.clone());
                        continue;
                    }
                    Err(error) => error.clone(),
                };
                let is_unknown = error.fate == Fate::Unknown;
                match self.judge(place, &error, now) {
                    Verdict::Drop(reason) => {
                        failed |= !is_refused;
                        refused.dropped += u64::from(is_refused);
                        self.drop_record(place, reason, Some(error));
                    }
                    Verdict::Again { blame } => {
                        let record = &mut self.records[place];
                        record.packing = record.packing.after(is_unknown, record.may_be_there);
                        failed |= blame;
                        back.push((place, number, blame));
                    }
                }
            }
        }
        match (took, failed) {
            (true, _) => {
                let was_retry = sent.has_retries && !failed;
                (self.health).succeeded(was_retry, now.saturating_sub(sent.at));
            }
            // Also where the sink has forgotten the producer, or says of everything that what is before it is missing.
            (false, _) if self.fenced.is_none() => {
                self.figures.failed_batches += 1;
                self.health.failed(now, random);
                if sent.has_retries {
                    self.health.give_token();
                }
            }
            (false, _) => {}
        }
        self.put_back(back, &sent.lanes, took, now, random);
        if let Some(error) = self.fenced.clone().filter(|_| !was_fenced) {
            self.tell_fenced(&error);
        }
        if self.lanes.ready_count > 0 {
            self.ready_since.get_or_insert(now);
        }
        refused
    }

    /// Records go back to the front of their lanes, in their order. Where others of the batch succeeded, their lanes wait.
    /// `back` has the place of each, the number of its message, and whether it is to blame.
    fn put_back(
        &mut self,
        back: Vec<(usize, usize, bool)>,
        lanes: &[usize],
        took: bool,
        now: Millis,
        random: u64,
    ) {
        let mut blamed = Vec::new();
        let mut solo = None;
        for (place, message, blame) in back.into_iter().rev() {
            self.figures.retries += 1;
            let blame = blame && took;
            self.set_state(place, Sending::Waits);
            let record = &mut self.records[place];
            record.is_retry |= blame;
            let seq = record.seq;
            if blame && self.lanes.is_shared(record.lane) {
                // Those behind it do not wait for it. Those of one message stay together, and share one again.
                if let Some((before, lane)) = solo
                    && message == before
                {
                    record.lane = lane;
                    self.lanes.push_front(lane, seq, place, record.size);
                    continue;
                }
                record.lane = self.lanes.solo();
                solo = Some((message, record.lane));
                let until = now.saturating_add(self.rules.backoff.after(1, random));
                self.lanes.set_failures(record.lane, 1);
                self.lanes.push_front(record.lane, seq, place, record.size);
                self.lanes.release(record.lane, Some(until));
                continue;
            }
            self.lanes.push_front(record.lane, seq, place, record.size);
            if blame {
                blamed.push(record.lane);
            }
        }
        for &lane in lanes {
            let is_blamed = blamed.contains(&lane);
            let before = self.lanes.failures(lane);
            let failures = match (took, is_blamed) {
                (_, true) => before.saturating_add(1),
                (true, false) => 0,
                (false, false) => before,
            };
            self.lanes.set_failures(lane, failures);
            let wait = is_blamed.then(|| self.rules.backoff.after(failures, random));
            self.lanes
                .release(lane, wait.map(|wait| now.saturating_add(wait)));
        }
    }

    fn judge(&mut self, place: usize, error: &TransportError, now: Millis) -> Verdict {
        match error.producer_refused() {
            Some(ProducerRefused::Unknown) => {
                self.incarnation = None;
                return self.again(place, false, now);
            }
            // The one before it is sent again, and this one with it.
            Some(ProducerRefused::Gap) => return self.again(place, false, now),
            _ => {}
        }
        let record = &mut self.records[place];
        let is_known = self.rules.is_marked || self.rules.has_unique_ids;
        match error.fate {
            // For good: another producer, or a later leader, has taken over.
            Fate::Stale => {
                self.fenced.get_or_insert_with(|| error.clone());
                return Verdict::Again { blame: false };
            }
            fate if fate.is_never() => return Verdict::Drop(DropReason::Refused),
            Fate::Unknown => {
                record.may_be_there = true;
                if !is_known {
                    self.figures.uncertain += 1;
                    if self.rules.when_unknown == WhenUnknown::GiveUp {
                        return Verdict::Drop(DropReason::Unknown);
                    }
                }
            }
            _ => {}
        }
        self.again(place, true, now)
    }

    fn again(&self, place: usize, blame: bool, now: Millis) -> Verdict {
        let record = &self.records[place];
        let spool = self.spool.as_ref().zip(record.spot);
        match record.expires {
            Some(at) if at <= now => Verdict::Drop(DropReason::Expired),
            // It was on its way when its file was given up, and the file waits for it.
            _ if spool.is_some_and(|(spool, spot)| spool.has_given_up(spot)) => {
                Verdict::Drop(DropReason::Oldest)
            }
            _ => Verdict::Again { blame },
        }
    }
}
