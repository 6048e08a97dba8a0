//! Judges a history. Pure: it knows nothing but the records, and says what no correct server could
//! have done.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use serde::{Deserialize, Serialize};

use crate::{
    history::{
        Accepted, Action, Answer, Delivery, Event, EventKind, Outcome, Records, Send, Settle, Time,
    },
    keeper,
    publisher::{self, Wrong},
};

/// What a history shows.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Messages whose send was answered.
    pub(crate) sent: usize,
    /// Messages delivered at least once.
    pub(crate) delivered: usize,
    /// Messages whose ack was answered.
    pub(crate) acked: usize,
    /// Deliveries beyond the first of their message.
    pub(crate) duplicates: usize,
    /// Attempts without an answer.
    pub(crate) unknown: usize,
    /// Attempts that the server refused.
    pub(crate) refused: usize,
    /// Settles that came after the end of their lease.
    pub(crate) stale: usize,
    /// States of keys that were written with an ack.
    pub(crate) states: usize,
    /// Messages whose publish to two queues was answered.
    pub(crate) published: usize,
    /// Until the last answer.
    pub(crate) duration: Time,
    /// Every broken promise.
    pub(crate) problems: Vec<Problem>,
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Problem {
    pub(crate) broken: Promise,
    pub(crate) text: String,
}

/// What a server promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    /// An accepted message is delivered until it is acknowledged.
    Kept,
    /// What was acknowledged does not come back.
    Acked,
    /// Messages of a key come in the order in which they were accepted.
    Ordered,
    /// One holder at a time has messages of a key.
    OneHolder,
    /// What is delivered was sent, and was not refused.
    Sent,
    /// One unique id is one message.
    Unique,
    /// Every delivery is a counted attempt.
    Counted,
    /// A message goes with the state of its key that was written with its ack, or neither; what is held is held.
    Stated,
    /// Nothing is answered before it can be kept.
    Synced,
    /// What is no damage is not reported as damage, and what should go on goes on.
    Served,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.broken, self.text)
    }
}

/// The problems of one promise.
struct Problems<'a> {
    broken: Promise,
    all: &'a mut Vec<Problem>,
}

impl Problems<'_> {
    fn push(&mut self, text: String) {
        let broken = self.broken;
        self.all.push(Problem { broken, text });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            delivered,
            acked,
            duplicates,
            unknown,
            refused,
            stale,
            states,
            published,
            duration,
            problems,
        } = self;
        write!(
            f,
            "{sent} sent, {delivered} delivered, {acked} acknowledged, {duplicates} duplicates, \
             {unknown} unknown outcomes, {refused} refused, {stale} stale settles, {states} states, {published} published, \
             {duration:.1?}, {} \
             broken promises",
            problems.len()
        )
    }
}

/// Checks a history that ended with empty queues.
pub(crate) fn check(records: &Records) -> Report {
    let Records {
        sends,
        deliveries,
        settles,
        events,
        steps,
        published,
    } = records;
    let refused_sends = sends.iter().filter(|send| send.answer == Answer::Refused);
    let refused_settles = settles
        .iter()
        .filter(|settle| settle.outcome == Outcome::Refused);
    let mut report = Report {
        sent: accepted(sends).len(),
        acked: acked(deliveries, settles, events).len(),
        unknown: records.unknown(),
        refused: refused_sends.count() + refused_settles.count(),
        stale: settles
            .iter()
            .filter(|settle| settle.outcome == Outcome::Stale)
            .count(),
        states: keeper::written(steps),
        published: publisher::published(published),
        duration: settles
            .iter()
            .map(|settle| settle.returned)
            .max()
            .unwrap_or_default(),
        ..Report::default()
    };
    let first = first_deliveries(deliveries);
    report.delivered = first.len();
    report.duplicates = deliveries.len() - first.len();

    let mut of = |broken, judge: &dyn Fn(&mut Problems<'_>)| {
        let all = &mut report.problems;
        judge(&mut Problems { broken, all });
    };
    of(Promise::Kept, &|problems| {
        every_send_is_delivered_and_settled(sends, deliveries, settles, problems);
    });
    of(Promise::Sent, &|problems| {
        what_is_delivered_was_sent(sends, deliveries, problems);
    });
    of(Promise::Unique, &|problems| {
        unique_ids_are_remembered(sends, deliveries, problems);
    });
    of(Promise::Ordered, &|problems| {
        sequences_follow_time(sends, problems);
        keys_are_in_order(sends, &first, problems);
    });
    of(Promise::OneHolder, &|problems| {
        keys_have_one_holder(deliveries, settles, events, problems);
    });
    of(Promise::Acked, &|problems| {
        acks_stay_done(deliveries, settles, events, problems);
    });
    of(Promise::Counted, &|problems| {
        attempts_are_counted(deliveries, events, problems);
    });
    of(Promise::Stated, &|problems| {
        keeper::judge(steps, |problem| problems.push(problem));
    });
    for (broken, is_missing) in [(Promise::Kept, true), (Promise::Sent, false)] {
        of(broken, &|problems| {
            publisher::judge(published, |wrong| match wrong {
                Wrong::Missing(text) if is_missing => problems.push(text),
                Wrong::Extra(text) if !is_missing => problems.push(text),
                _ => {}
            });
        });
    }
    of(Promise::Synced, &|problems| {
        nothing_is_accepted_in_a_freeze(sends, events, problems);
    });
    report
}

/// The answers to all sends that were answered, by id; the first one where there are several.
fn accepted(sends: &[Send]) -> BTreeMap<&str, &Accepted> {
    let mut accepted = BTreeMap::new();
    for send in sends {
        if let Some(answer) = send.answer.accepted() {
            accepted.entry(send.id.as_str()).or_insert(answer);
        }
    }
    accepted
}

/// The first delivery of every message, in order.
///
/// The order of the returns is the order of the leases wherever it matters: the next lease on a key
/// is given after the previous one was settled, which its holder asks for after its receive returned.
fn first_deliveries(deliveries: &[Delivery]) -> Vec<&Delivery> {
    let mut ordered: Vec<&Delivery> = deliveries.iter().collect();
    ordered.sort_by_key(|delivery| (delivery.returned, delivery.consumer, delivery.place));
    let mut seen = BTreeSet::new();
    ordered.retain(|delivery| seen.insert(delivery.id.as_str()));
    ordered
}

fn every_send_is_delivered_and_settled(
    sends: &[Send],
    deliveries: &[Delivery],
    settles: &[Settle],
    problems: &mut Problems<'_>,
) {
    let delivered: BTreeSet<&str> = deliveries
        .iter()
        .map(|delivery| delivery.id.as_str())
        .collect();
    let acks = settles.iter().filter(|settle| settle.action == Action::Ack);
    let perhaps_acked: BTreeSet<&str> = acks
        .filter(|ack| matches!(ack.outcome, Outcome::Done | Outcome::Unknown))
        .map(|ack| deliveries[ack.delivery].id.as_str())
        .collect();
    for id in accepted(sends).keys() {
        if !delivered.contains(id) {
            problems.push(format!(
                "{id}: its send was acknowledged, and it was never delivered"
            ));
        } else if !perhaps_acked.contains(id) {
            problems.push(format!("{id}: gone from the queue without an ack"));
        }
    }
}

fn what_is_delivered_was_sent(
    sends: &[Send],
    deliveries: &[Delivery],
    problems: &mut Problems<'_>,
) {
    // Whether there was an attempt that may have put it there.
    let mut sent: HashMap<&str, bool> = HashMap::new();
    for send in sends {
        *sent.entry(&send.id).or_default() |= send.answer != Answer::Refused;
    }
    let delivered: BTreeSet<&str> = deliveries
        .iter()
        .map(|delivery| delivery.id.as_str())
        .collect();
    for id in delivered {
        match sent.get(id) {
            Some(true) => {}
            Some(false) => problems.push(format!("{id}: delivered, but its send was refused")),
            None => problems.push(format!("{id}: delivered, but nobody sent it")),
        }
    }
}

/// All sends of one id, answered or not, made at most one message: every answer and every delivery
/// shows the same one.
fn unique_ids_are_remembered(sends: &[Send], deliveries: &[Delivery], problems: &mut Problems<'_>) {
    let mut messages: HashMap<&str, &Accepted> = HashMap::new();
    let answers = sends
        .iter()
        .filter_map(|send| Some((send.id.as_str(), send.answer.accepted()?)));
    let handed = deliveries
        .iter()
        .map(|delivery| (delivery.id.as_str(), &delivery.as_accepted));
    for (id, message) in answers.chain(handed) {
        let known = messages.entry(id).or_insert(message);
        if *known != message {
            problems.push(format!("{id}: is {known:?} and also {message:?}"));
        }
    }
    let mut owners: HashMap<&str, &str> = HashMap::new();
    for (id, message) in &messages {
        if let Some(other) = owners.insert(&message.message, id) {
            problems.push(format!(
                "{id} and {other}: both are message {}",
                message.message
            ));
        }
    }
}

/// A message that was acknowledged before another one was first sent has the lower sequence number.
fn sequences_follow_time(sends: &[Send], problems: &mut Problems<'_>) {
    // By sequence number: the message, its first call and its first answer.
    let mut messages: BTreeMap<u128, (&str, Time, Time)> = BTreeMap::new();
    let mut first_calls: HashMap<&str, Time> = HashMap::new();
    for send in sends {
        let first = first_calls.entry(&send.id).or_insert(send.call);
        *first = send.call.min(*first);
    }
    for send in sends {
        let Some(sequence) = send
            .answer
            .accepted()
            .and_then(|answer| answer.sequence.as_ref())
        else {
            continue;
        };
        let Ok(sequence) = sequence.parse() else {
            problems.push(format!("{}: sequence {sequence} is no number", send.id));
            continue;
        };
        let message = (
            send.id.as_str(),
            first_calls[send.id.as_str()],
            send.returned,
        );
        let known = messages.entry(sequence).or_insert(message);
        known.2 = known.2.min(send.returned);
    }
    // From the highest down: who was answered first of all with a higher number.
    let mut earliest: Option<(Time, &str)> = None;
    for (id, call, returned) in messages.into_values().rev() {
        if let Some((answered, later)) = earliest
            && answered < call
        {
            problems.push(format!(
                "{id}: sent after {later} was acknowledged, with a lower sequence"
            ));
        }
        if earliest.is_none_or(|(answered, _)| returned < answered) {
            earliest = Some((returned, id));
        }
    }
}

fn keys_are_in_order(sends: &[Send], first: &[&Delivery], problems: &mut Problems<'_>) {
    let numbers: HashMap<&str, u64> = sends
        .iter()
        .map(|send| (send.id.as_str(), send.number))
        .collect();
    let mut latest: HashMap<&str, (u64, &str)> = HashMap::new();
    for delivery in first {
        let (Some(&number), Some(key)) = (numbers.get(delivery.id.as_str()), &delivery.key) else {
            continue;
        };
        let latest = latest.entry(key).or_insert((number, &delivery.id));
        if number < latest.0 {
            let id = &delivery.id;
            problems.push(format!(
                "{id}: delivered first after {}, a later one of key {key}",
                latest.1
            ));
        } else {
            *latest = (number, &delivery.id);
        }
    }
}

/// A lease is known to be valid from the return of its receive until its holder first asks to settle
/// it, and no longer than its length after the call of the receive.
fn keys_have_one_holder(
    deliveries: &[Delivery],
    settles: &[Settle],
    events: &[Event],
    problems: &mut Problems<'_>,
) {
    let lost: Vec<&Event> = events
        .iter()
        .filter(|event| event.kind == EventKind::LoseUnsynced)
        .collect();
    let mut asked: HashMap<usize, Time> = HashMap::new();
    for settle in settles {
        let first = asked.entry(settle.delivery).or_insert(settle.call);
        *first = settle.call.min(*first);
    }
    let mut by_key: BTreeMap<&str, Vec<(Time, Time, &Delivery)>> = BTreeMap::new();
    for (index, delivery) in deliveries.iter().enumerate() {
        let Some(key) = &delivery.key else {
            continue;
        };
        let lease_end = delivery.call + delivery.lease;
        // Leases that a disk in the same boot may have lost count as over.
        let lease_end = lost
            .iter()
            .filter(|event| delivery.call < event.to)
            .fold(lease_end, |end, event| end.min(event.from));
        let end = asked
            .get(&index)
            .map_or(lease_end, |asked| lease_end.min(*asked));
        if delivery.returned < end {
            by_key
                .entry(key)
                .or_default()
                .push((delivery.returned, end, delivery));
        }
    }
    for (key, mut leases) in by_key {
        leases.sort_by_key(|(start, ..)| *start);
        // The lease that reaches furthest so far, of each consumer.
        let mut held: BTreeMap<usize, (Time, &Delivery)> = BTreeMap::new();
        for (start, end, delivery) in leases {
            for (consumer, (until, other)) in &held {
                if *consumer != delivery.consumer && *until > start {
                    problems.push(format!(
                        "key {key}: {} went to consumer {} at {start:?} while consumer {consumer} held \
                         {} until {until:?}",
                        delivery.id, delivery.consumer, other.id
                    ));
                }
            }
            let furthest = held.entry(delivery.consumer).or_insert((end, delivery));
            if furthest.0 < end {
                *furthest = (end, delivery);
            }
        }
    }
}

fn acks_stay_done(
    deliveries: &[Delivery],
    settles: &[Settle],
    events: &[Event],
    problems: &mut Problems<'_>,
) {
    let done = acked(deliveries, settles, events);
    for delivery in deliveries {
        if let Some(acked) = done.get(delivery.id.as_str())
            && delivery.call > *acked
        {
            let (id, call) = (&delivery.id, delivery.call);
            problems.push(format!(
                "{id}: acknowledged at {acked:?}, delivered by a receive at {call:?}"
            ));
        }
    }
}

/// When each message's ack was first answered.
///
/// On a queue without keys an ack of a lease that has ended is answered alike and does nothing, as on
/// AWS: it says something only while its lease is certain.
fn acked<'a>(
    deliveries: &'a [Delivery],
    settles: &[Settle],
    events: &[Event],
) -> HashMap<&'a str, Time> {
    let losses: Vec<&Event> = losses(events).collect();
    let mut done: HashMap<&str, Time> = HashMap::new();
    for settle in settles {
        if settle.action != Action::Ack || settle.outcome != Outcome::Done {
            continue;
        }
        let delivery = &deliveries[settle.delivery];
        let leased = settle.returned < delivery.call + delivery.lease
            && !losses
                .iter()
                .any(|event| delivery.call < event.to && settle.returned > event.from);
        if delivery.key.is_some() || leased {
            let first = done.entry(&delivery.id).or_insert(settle.returned);
            *first = settle.returned.min(*first);
        }
    }
    done
}

/// What may have taken leases with it, which are not synced.
fn losses(events: &[Event]) -> impl Iterator<Item = &Event> {
    let loses = |kind| matches!(kind, EventKind::LoseUnsynced | EventKind::PowerCut);
    events.iter().filter(move |event| loses(event.kind))
}

/// A lease that survives its server is counted: no two deliveries of a message are the same attempt,
/// unless the disk may have lost the first.
fn attempts_are_counted(deliveries: &[Delivery], events: &[Event], problems: &mut Problems<'_>) {
    let losses: Vec<&Event> = losses(events).collect();
    let mut seen: HashMap<(&str, u32), &Delivery> = HashMap::new();
    for delivery in deliveries {
        let Some(other) = seen.insert((&delivery.id, delivery.attempt), delivery) else {
            continue;
        };
        let lost = losses
            .iter()
            .any(|event| other.call < event.to && delivery.returned > event.from);
        if !lost {
            problems.push(format!(
                "{}: attempt {} was given twice",
                delivery.id, delivery.attempt
            ));
        }
    }
}

/// A send that is made and accepted while nothing can be written is a promise without a ground,
/// unless an earlier attempt may have been written before.
fn nothing_is_accepted_in_a_freeze(sends: &[Send], events: &[Event], problems: &mut Problems<'_>) {
    let mut first_calls: HashMap<&str, Time> = HashMap::new();
    for send in sends {
        let first = first_calls.entry(&send.id).or_insert(send.call);
        *first = send.call.min(*first);
    }
    for freeze in events
        .iter()
        .filter(|event| event.kind == EventKind::Freeze)
    {
        for send in sends {
            if send.answer.accepted().is_some()
                && first_calls[send.id.as_str()] > freeze.from
                && send.returned < freeze.to
            {
                let Send {
                    id, call, returned, ..
                } = send;
                problems.push(format!(
                    "{id}: sent at {call:?} and accepted at {returned:?}, in a freeze from {:?} to {:?}",
                    freeze.from, freeze.to
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Writes a history one step at a time; every step takes a second.
    #[derive(Default)]
    struct Story {
        records: Records,
        clock: Time,
        accepted: Vec<(String, Accepted)>,
    }

    impl Story {
        fn second(&mut self) -> (Time, Time) {
            self.clock += Duration::from_secs(1);
            (
                self.clock - Duration::from_millis(900),
                self.clock - Duration::from_millis(100),
            )
        }

        fn wait(&mut self, seconds: u64) {
            self.clock += Duration::from_secs(seconds);
        }

        /// What a good server answers: the same for the same name, numbered in order.
        fn accepted_as(&mut self, name: &str) -> Accepted {
            if let Some((_, known)) = self.accepted.iter().find(|(known, _)| known == name) {
                return known.clone();
            }
            let accepted = Accepted {
                message: format!("message {name}"),
                sequence: Some(self.accepted.len().to_string()),
            };
            self.accepted.push((name.to_owned(), accepted.clone()));
            accepted
        }

        /// `key` is one letter, so that an id is as short as `a1`.
        fn send_as(&mut self, id: &str, accepted: Option<Accepted>) {
            self.send_answered(id, accepted.map_or(Answer::Unknown, Answer::Accepted));
        }

        fn send_answered(&mut self, id: &str, answer: Answer) {
            let (call, returned) = self.second();
            self.records.sends.push(Send {
                id: id.to_owned(),
                key: Some(id[..1].to_owned()),
                number: id[1..].parse().unwrap(),
                call,
                returned,
                answer,
            });
        }

        fn send(&mut self, id: &str) {
            let accepted = self.accepted_as(id);
            self.send_as(id, Some(accepted));
        }

        fn deliver(&mut self, id: &str, consumer: usize) -> usize {
            let (call, returned) = self.second();
            let as_accepted = self.accepted_as(id);
            let attempt = 1 + self
                .records
                .deliveries
                .iter()
                .filter(|other| other.id == id)
                .count();
            self.records.deliveries.push(Delivery {
                id: id.to_owned(),
                key: Some(id[..1].to_owned()),
                as_accepted,
                consumer,
                attempt: u32::try_from(attempt).unwrap(),
                place: 0,
                call,
                returned,
                lease: Duration::from_secs(30),
            });
            self.records.deliveries.len() - 1
        }

        fn settle(&mut self, delivery: usize, action: Action, outcome: Outcome) {
            let (call, returned) = self.second();
            self.records.settles.push(Settle {
                delivery,
                action,
                call,
                returned,
                outcome,
            });
        }

        /// Something that takes a second.
        fn happens(&mut self, kind: EventKind) {
            let (from, to) = self.second();
            self.records.events.push(Event { kind, from, to });
        }

        fn handle(&mut self, id: &str, consumer: usize) {
            let delivery = self.deliver(id, consumer);
            self.settle(delivery, Action::Ack, Outcome::Done);
        }

        #[track_caller]
        fn good(self) -> Report {
            let report = check(&self.records);
            assert_eq!(report.problems, []);
            report
        }

        #[track_caller]
        fn bad(self, text: &str) {
            let problems = check(&self.records).problems;
            assert!(
                problems.len() == 1 && problems[0].text.contains(text),
                "{problems:?}"
            );
        }
    }

    /// Two keys, two consumers, an unknown send repeated, a nack, and an ack repeated.
    fn ordinary() -> Story {
        let mut story = Story::default();
        story.send_as("a1", None);
        story.send("a1");
        story.send("a2");
        story.send("b1");
        let nacked = story.deliver("a1", 1);
        story.settle(nacked, Action::Nack, Outcome::Done);
        story.handle("b1", 2);
        let acked = story.deliver("a1", 2);
        story.settle(acked, Action::Ack, Outcome::Unknown);
        story.settle(acked, Action::Ack, Outcome::Done);
        story.handle("a2", 1);
        story
    }

    #[test]
    fn an_ordinary_history_is_good() {
        let report = ordinary().good();
        assert_eq!(
            (report.sent, report.delivered, report.duplicates),
            (3, 3, 1)
        );
        assert_eq!(report.unknown, 2);
    }

    #[test]
    fn a_lost_message_is_found() {
        let mut story = ordinary();
        story.send("a3");
        story.bad("never delivered");
    }

    #[test]
    fn a_message_nobody_was_promised_may_be_missing() {
        let mut story = ordinary();
        story.send_as("a3", None);
        story.good();
    }

    #[test]
    fn a_message_that_vanished_after_its_delivery_is_found() {
        let mut story = ordinary();
        story.send("a3");
        let delivery = story.deliver("a3", 1);
        story.settle(delivery, Action::Ack, Outcome::Stale);
        story.bad("without an ack");
    }

    #[test]
    fn an_ack_without_an_answer_may_have_happened() {
        let mut story = ordinary();
        story.send("a3");
        let delivery = story.deliver("a3", 1);
        story.settle(delivery, Action::Ack, Outcome::Unknown);
        story.settle(delivery, Action::Ack, Outcome::Stale);
        story.good();
    }

    #[test]
    fn an_undone_ack_is_found() {
        let mut story = ordinary();
        story.handle("a2", 1);
        story.bad("acknowledged at");
    }

    #[test]
    fn an_ack_that_overlaps_a_receive_proves_nothing() {
        let mut story = ordinary();
        let acked = story.records.settles.last().unwrap().clone();
        let again = story.deliver("a2", 1);
        story.records.deliveries[again].call = acked.call;
        story.good();
    }

    #[test]
    fn a_swap_within_a_key_is_found() {
        let mut story = Story::default();
        story.send("a1");
        story.send("a2");
        story.handle("a2", 1);
        story.handle("a1", 1);
        story.bad("a1: delivered first after a2");
    }

    #[test]
    fn a_swap_within_one_answer_is_found() {
        let mut story = Story::default();
        story.send("a1");
        story.send("a2");
        let deliveries = [story.deliver("a2", 1), story.deliver("a1", 1)];
        let returned = story.records.deliveries[deliveries[0]].returned;
        story.records.deliveries[deliveries[1]].returned = returned;
        story.records.deliveries[deliveries[1]].place = 1;
        for delivery in deliveries {
            story.settle(delivery, Action::Ack, Outcome::Done);
        }
        story.bad("a1: delivered first after a2");
    }

    #[test]
    fn two_holders_of_a_key_are_found() {
        let mut story = ordinary();
        story.send("a3");
        story.send("a4");
        let first = story.deliver("a3", 1);
        let second = story.deliver("a4", 2);
        story.settle(first, Action::Ack, Outcome::Done);
        story.settle(second, Action::Ack, Outcome::Done);
        story.bad("while consumer 1 held a3");
    }

    #[test]
    fn two_messages_of_a_key_at_one_holder_are_good() {
        let mut story = ordinary();
        story.send("a3");
        story.send("a4");
        let deliveries = [story.deliver("a3", 1), story.deliver("a4", 1)];
        for delivery in deliveries {
            story.settle(delivery, Action::Ack, Outcome::Done);
        }
        story.good();
    }

    #[test]
    fn a_lease_that_ran_out_holds_nothing() {
        let mut story = ordinary();
        story.send("a3");
        story.deliver("a3", 1);
        story.wait(60);
        story.handle("a3", 2);
        story.good();
    }

    #[test]
    fn a_forgotten_unique_id_is_found() {
        let mut story = ordinary();
        let other = story.accepted_as("other");
        story.send_as("a1", Some(other));
        story.bad("a1: is");
    }

    #[test]
    fn a_second_message_of_an_id_is_found_by_its_delivery() {
        let mut story = ordinary();
        story.send_as("a3", None);
        story.send("a3");
        let twin = story.deliver("a3", 1);
        story.records.deliveries[twin].as_accepted = story.accepted_as("twin");
        story.settle(twin, Action::Ack, Outcome::Done);
        story.bad("a3: is");
    }

    #[test]
    fn a_sequence_that_went_back_is_found() {
        let mut story = Story::default();
        let (earlier, later) = (story.accepted_as("b1"), story.accepted_as("a1"));
        story.send_as("a1", Some(later));
        story.send_as("b1", Some(earlier));
        story.handle("a1", 1);
        story.handle("b1", 1);
        story.bad("b1: sent after a1 was acknowledged");
    }

    #[test]
    fn sends_at_the_same_time_may_be_numbered_either_way() {
        let mut story = Story::default();
        let (earlier, later) = (story.accepted_as("b1"), story.accepted_as("a1"));
        story.send_as("a1", Some(later));
        story.send_as("b1", Some(earlier));
        story.records.sends[1].call = story.records.sends[0].call;
        story.handle("a1", 1);
        story.handle("b1", 1);
        story.good();
    }

    #[test]
    fn one_message_for_two_ids_is_found() {
        let mut story = ordinary();
        let first = story.accepted_as("a1");
        story.send_as("a3", Some(first.clone()));
        let delivery = story.deliver("a3", 1);
        story.records.deliveries[delivery].as_accepted = first;
        story.settle(delivery, Action::Ack, Outcome::Done);
        story.bad("both are message");
    }

    #[test]
    fn an_attempt_that_was_forgotten_is_found() {
        let mut story = ordinary();
        let again = story
            .records
            .deliveries
            .iter()
            .rposition(|delivery| delivery.id == "a1");
        story.records.deliveries[again.unwrap()].attempt = 1;
        story.bad("attempt 1 was given twice");
    }

    #[test]
    fn a_message_nobody_sent_is_found() {
        let mut story = ordinary();
        story.handle("c1", 1);
        story.bad("nobody sent it");
    }

    #[test]
    fn a_refused_message_that_appears_is_found() {
        let mut story = ordinary();
        story.send_answered("a3", Answer::Refused);
        story.handle("a3", 1);
        story.bad("its send was refused");
    }

    #[test]
    fn a_refused_message_may_be_sent_again() {
        let mut story = ordinary();
        story.send_answered("a3", Answer::Refused);
        story.send("a3");
        story.handle("a3", 1);
        assert_eq!(story.good().refused, 1);
    }

    #[test]
    fn a_refused_ack_took_nothing() {
        let mut story = ordinary();
        story.send("a3");
        let delivery = story.deliver("a3", 1);
        story.settle(delivery, Action::Ack, Outcome::Refused);
        story.bad("without an ack");
    }

    /// A first delivery, a fault that takes what was not synced, and the same attempt once more.
    fn forgotten_attempt(kind: EventKind, wait: u64) -> Story {
        let mut story = ordinary();
        story.send("a3");
        story.deliver("a3", 1);
        story.happens(kind);
        story.wait(wait);
        let again = story.deliver("a3", 2);
        story.records.deliveries[again].attempt = 1;
        story.settle(again, Action::Ack, Outcome::Done);
        story
    }

    #[test]
    fn a_disk_that_lost_its_unsynced_writes_may_forget_leases() {
        forgotten_attempt(EventKind::LoseUnsynced, 0).good();
    }

    #[test]
    fn a_kill_may_not_forget_leases() {
        forgotten_attempt(EventKind::Kill, 60).bad("attempt 1 was given twice");
    }

    #[test]
    fn a_start_after_a_power_cut_must_wait_for_leases() {
        forgotten_attempt(EventKind::PowerCut, 60).good();
        forgotten_attempt(EventKind::PowerCut, 0).bad("while consumer 1 held a3");
    }

    #[test]
    fn an_answer_in_a_freeze_is_found() {
        let mut story = ordinary();
        story.send("a3");
        let times = story.records.sends.last().unwrap().clone();
        story.handle("a3", 1);
        story.records.events.push(Event {
            kind: EventKind::Freeze,
            from: times.call - Duration::from_millis(1),
            to: times.returned + Duration::from_millis(1),
        });
        story.bad("in a freeze");
    }

    #[test]
    fn messages_without_a_key_have_no_order() {
        let mut story = Story::default();
        story.send("a1");
        story.send("a2");
        for id in ["a2", "a1"] {
            let delivery = story.deliver(id, 1);
            story.records.deliveries[delivery].key = None;
            story.settle(delivery, Action::Ack, Outcome::Done);
        }
        story.good();
    }

    /// An ack so many seconds after its delivery, of a message without a key, that was followed by
    /// another delivery.
    fn unkeyed_ack_after(seconds: u64) -> Story {
        let mut story = Story::default();
        story.send("a1");
        let first = story.deliver("a1", 1);
        story.wait(seconds);
        story.settle(first, Action::Ack, Outcome::Done);
        story.handle("a1", 2);
        for delivery in &mut story.records.deliveries {
            delivery.key = None;
        }
        story
    }

    #[test]
    fn a_late_ack_of_a_message_without_a_key_says_nothing() {
        unkeyed_ack_after(60).good();
        unkeyed_ack_after(0).bad("acknowledged at");
    }
}
