//! Judges a history. Pure: it knows nothing but the records, and says what no correct server could
//! have done.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use crate::history::{Accepted, Action, Delivery, Outcome, Records, Send, Settle, Time};

/// What a history shows.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Messages whose send was answered.
    pub(crate) sent: usize,
    /// Messages delivered at least once.
    pub(crate) delivered: usize,
    /// Deliveries beyond the first of their message.
    pub(crate) duplicates: usize,
    /// Attempts without an answer.
    pub(crate) unknown: usize,
    /// Settles that came after the end of their lease.
    pub(crate) stale: usize,
    /// Until the last answer.
    pub(crate) duration: Time,
    /// Every broken promise, one sentence each.
    pub(crate) problems: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            delivered,
            duplicates,
            unknown,
            stale,
            duration,
            problems,
        } = self;
        write!(
            f,
            "{sent} sent, {delivered} delivered, {duplicates} duplicates, {unknown} unknown outcomes, \
             {stale} stale settles, {duration:.1?}, {} broken promises",
            problems.len()
        )
    }
}

/// Checks a history that ended with an empty queue.
pub(crate) fn check(records: &Records) -> Report {
    let Records {
        sends,
        deliveries,
        settles,
    } = records;
    let mut report = Report {
        sent: accepted(sends).len(),
        unknown: sends.iter().filter(|send| send.accepted.is_none()).count()
            + settles
                .iter()
                .filter(|settle| settle.outcome == Outcome::Unknown)
                .count(),
        stale: settles
            .iter()
            .filter(|settle| settle.outcome == Outcome::Stale)
            .count(),
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

    let problems = &mut report.problems;
    every_send_is_delivered_and_settled(sends, deliveries, settles, problems);
    unique_ids_are_remembered(sends, deliveries, problems);
    sequences_follow_time(sends, problems);
    keys_are_in_order(sends, &first, problems);
    keys_have_one_holder(deliveries, settles, problems);
    acks_stay_done(deliveries, settles, problems);
    attempts_are_counted(deliveries, problems);
    report
}

/// The answers to all sends that were answered, by id; the first one where there are several.
fn accepted(sends: &[Send]) -> BTreeMap<&str, &Accepted> {
    let mut accepted = BTreeMap::new();
    for send in sends {
        if let Some(answer) = &send.accepted {
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
    problems: &mut Vec<String>,
) {
    let delivered: BTreeSet<&str> = deliveries
        .iter()
        .map(|delivery| delivery.id.as_str())
        .collect();
    let acks = settles.iter().filter(|settle| settle.action == Action::Ack);
    let perhaps_acked: BTreeSet<&str> = acks
        .filter(|ack| ack.outcome != Outcome::Stale)
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
    let sent: BTreeSet<&str> = sends.iter().map(|send| send.id.as_str()).collect();
    for id in delivered.difference(&sent) {
        problems.push(format!("{id}: delivered, but nobody sent it"));
    }
}

/// All sends of one id, answered or not, made at most one message: every answer and every delivery
/// shows the same one.
fn unique_ids_are_remembered(sends: &[Send], deliveries: &[Delivery], problems: &mut Vec<String>) {
    let mut messages: HashMap<&str, &Accepted> = HashMap::new();
    let answers = sends
        .iter()
        .filter_map(|send| Some((send.id.as_str(), send.accepted.as_ref()?)));
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
fn sequences_follow_time(sends: &[Send], problems: &mut Vec<String>) {
    // By sequence number: the message, its first call and its first answer.
    let mut messages: BTreeMap<u128, (&str, Time, Time)> = BTreeMap::new();
    let mut first_calls: HashMap<&str, Time> = HashMap::new();
    for send in sends {
        let first = first_calls.entry(&send.id).or_insert(send.call);
        *first = send.call.min(*first);
    }
    for send in sends {
        let Some(accepted) = &send.accepted else {
            continue;
        };
        let Ok(sequence) = accepted.sequence.parse() else {
            problems.push(format!(
                "{}: sequence {} is no number",
                send.id, accepted.sequence
            ));
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

fn keys_are_in_order(sends: &[Send], first: &[&Delivery], problems: &mut Vec<String>) {
    let numbers: HashMap<&str, u64> = sends
        .iter()
        .map(|send| (send.id.as_str(), send.number))
        .collect();
    let mut latest: HashMap<&str, (u64, &str)> = HashMap::new();
    for delivery in first {
        let Some(&number) = numbers.get(delivery.id.as_str()) else {
            continue;
        };
        let latest = latest
            .entry(&delivery.key)
            .or_insert((number, &delivery.id));
        if number < latest.0 {
            let (key, id) = (&delivery.key, &delivery.id);
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
fn keys_have_one_holder(deliveries: &[Delivery], settles: &[Settle], problems: &mut Vec<String>) {
    let mut asked: HashMap<usize, Time> = HashMap::new();
    for settle in settles {
        let first = asked.entry(settle.delivery).or_insert(settle.call);
        *first = settle.call.min(*first);
    }
    let mut by_key: BTreeMap<&str, Vec<(Time, Time, &Delivery)>> = BTreeMap::new();
    for (index, delivery) in deliveries.iter().enumerate() {
        let lease_end = delivery.call + delivery.lease;
        let end = asked
            .get(&index)
            .map_or(lease_end, |asked| lease_end.min(*asked));
        if delivery.returned < end {
            by_key
                .entry(&delivery.key)
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

fn acks_stay_done(deliveries: &[Delivery], settles: &[Settle], problems: &mut Vec<String>) {
    let mut done: HashMap<&str, Time> = HashMap::new();
    for settle in settles {
        if settle.action == Action::Ack && settle.outcome == Outcome::Done {
            let first = done
                .entry(&deliveries[settle.delivery].id)
                .or_insert(settle.returned);
            *first = settle.returned.min(*first);
        }
    }
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

/// A lease that survives its server is counted: no two deliveries of a message are the same attempt.
fn attempts_are_counted(deliveries: &[Delivery], problems: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for delivery in deliveries {
        if !seen.insert((&delivery.id, delivery.attempt)) {
            problems.push(format!(
                "{}: attempt {} was given twice",
                delivery.id, delivery.attempt
            ));
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
                sequence: self.accepted.len().to_string(),
            };
            self.accepted.push((name.to_owned(), accepted.clone()));
            accepted
        }

        /// `key` is one letter, so that an id is as short as `a1`.
        fn send_as(&mut self, id: &str, accepted: Option<Accepted>) {
            let (call, returned) = self.second();
            self.records.sends.push(Send {
                id: id.to_owned(),
                key: id[..1].to_owned(),
                number: id[1..].parse().unwrap(),
                call,
                returned,
                accepted,
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
                key: id[..1].to_owned(),
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

        fn handle(&mut self, id: &str, consumer: usize) {
            let delivery = self.deliver(id, consumer);
            self.settle(delivery, Action::Ack, Outcome::Done);
        }

        #[track_caller]
        fn good(self) -> Report {
            let report = check(&self.records);
            assert_eq!(report.problems, Vec::<String>::new());
            report
        }

        #[track_caller]
        fn bad(self, text: &str) {
            let problems = check(&self.records).problems;
            assert!(
                problems.len() == 1 && problems[0].contains(text),
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
}
