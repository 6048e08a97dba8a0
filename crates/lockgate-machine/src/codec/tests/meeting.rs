//! Effects that meet: on a few queues, messages, keys, ledgers and exchanges.

use super::*;

/// Effects on a few queues, messages and keys, so that they interact; all other numbers are arbitrary.
fn meeting_effects() -> impl Strategy<Value = Vec<Effect>> {
    let effect = (0..KINDS).prop_flat_map(effect_at).prop_map(|mut effect| {
        bring_together(&mut effect);
        effect
    });
    prop::collection::vec(effect, 0..60)
}

fn bring_together(effect: &mut Effect) {
    let few = |queue: &mut QueueId| queue.0 = queue.0 % 3 + 1;
    let few_numbers = |sequence: &mut Sequence| sequence.0 = sequence.0 % 6 + 1;
    let few_keys = |key: &mut Key| *key = Key::new(&format!("{}", key.as_str().len() % 3)).unwrap();
    let few_producers = |name: &mut ProducerName| {
        *name = ProducerName::new(&format!("{}", name.as_str().len() % 3)).unwrap();
    };
    let few_marks = |produced: &mut Produced| {
        let mark = &produced.mark;
        let mut name = mark.producer().clone();
        few_producers(&mut name);
        let (opening, lane) = (mark.opening() % 3, mark.lane() % 2);
        produced.mark = ProducerMark::new(name, opening, lane, mark.number()).unwrap();
    };
    let few_ledgers = |ledger: &mut LedgerId| ledger.0 = ledger.0 % 2 + 1;
    let few_events = |block: &mut EventBlock| {
        few_ledgers(&mut block.ledger);
        block.first.0 = block.first.0 % 12 + 1;
    };
    let few_exchanges = |exchange: &mut ExchangeId| exchange.0 %= 4;
    let few_schedules = |schedule: &mut ScheduleId| schedule.0 %= 4;
    // Some of them come.
    let few_times = |next: &mut Option<WallTime>| {
        *next = next.map(|at| WallTime(at.0 % 1_000));
    };
    let few_alternates = |unroutable: &mut Unroutable<ExchangeId>| {
        if let Unroutable::Alternate(exchange) = unroutable {
            few_exchanges(exchange);
        }
    };
    match effect {
        Effect::Advanced { now, .. } => now.wall.0 %= 1_000,
        Effect::TermStarted { .. } | Effect::TermEnded { .. } => {}
        Effect::QueueCreated { queue, name, .. } => {
            few(queue);
            *name = QueueName::new(&format!("queue-{queue}")).unwrap();
        }
        Effect::QueueChanged { queue, .. }
        | Effect::QueueDeleted { queue }
        | Effect::Purged { queue }
        | Effect::Paused { queue, .. }
        | Effect::LeaseBoundRaised { queue, .. } => few(queue),
        Effect::Accepted(stored) | Effect::Compacted(stored) => {
            few(&mut stored.queue);
            few_numbers(&mut stored.sequence);
            stored.message.key.iter_mut().for_each(few_keys);
            let produced = &mut stored.message.producer;
            produced.iter_mut().for_each(|produced| few_marks(produced));
        }
        Effect::SequencesReserved {
            queue,
            below: sequence,
        }
        | Effect::Leased {
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
        } => {
            few(queue);
            few_numbers(sequence);
        }
        Effect::Moved {
            from,
            sequence,
            to,
            to_sequence,
            ..
        } => {
            few(from);
            few(to);
            few_numbers(sequence);
            few_numbers(to_sequence);
        }
        Effect::KeyParked { queue, key }
        | Effect::KeyResumed { queue, key }
        | Effect::KeyStatePut { queue, key, .. }
        | Effect::KeyStateDropped { queue, key } => {
            few(queue);
            few_keys(key);
        }
        Effect::Held { queue, what, .. } => {
            few(queue);
            if let HoldTarget::Key(Some(key)) = what {
                few_keys(key);
            }
        }
        Effect::ProducerOpened {
            queue, producer, ..
        }
        | Effect::ProducerForgotten { queue, producer } => {
            few(queue);
            few_producers(producer);
        }
        Effect::MarkRaised {
            queue, produced, ..
        } => {
            few(queue);
            few_marks(produced);
        }
        Effect::RecordPut { name, .. }
        | Effect::RecordDeleted { name, .. }
        | Effect::RecordLeased { name, .. }
        | Effect::RecordReleased { name, .. } => {
            *name = RecordName::new(&format!("{}", name.as_str().len() % 3)).unwrap();
        }
        Effect::LedgerCreated { ledger, name, .. } => {
            few_ledgers(ledger);
            *name = LedgerName::new(&format!("ledger-{}", ledger.0)).unwrap();
        }
        Effect::LedgerDeleted { ledger }
        | Effect::ReaderMoved { ledger, .. }
        | Effect::LedgerSealed { ledger, .. } => few_ledgers(ledger),
        Effect::LedgerTrimmed { ledger, first } | Effect::EventsLost { ledger, first } => {
            few_ledgers(ledger);
            first.0 = first.0 % 12 + 1;
        }
        Effect::EventsAppended(appended) => few_events(&mut appended.block),
        Effect::EventsCompacted(block) => few_events(block),
        Effect::ExchangeCreated {
            exchange,
            name,
            unroutable,
            ..
        } => {
            few_exchanges(exchange);
            *name = ExchangeName::new(&format!("exchange-{}", exchange.0)).unwrap();
            few_alternates(unroutable);
        }
        Effect::ExchangeChanged {
            exchange,
            unroutable,
            ..
        } => {
            few_exchanges(exchange);
            few_alternates(unroutable);
        }
        Effect::ExchangeDeleted { exchange } => few_exchanges(exchange),
        Effect::Bound {
            exchange,
            number,
            binding,
        } => {
            few_exchanges(exchange);
            *number %= 6;
            match &mut Arc::make_mut(binding).to {
                BindTo::Queue(queue) => few(queue),
                BindTo::Exchange(exchange) => few_exchanges(exchange),
            }
        }
        Effect::Unbound { exchange, number } => {
            few_exchanges(exchange);
            *number %= 6;
        }
        Effect::Published { exchange, .. } | Effect::ExchangeNoted { exchange, .. } => {
            few_exchanges(exchange);
        }
        Effect::ScheduleSet {
            schedule,
            name,
            next,
            spec,
            ..
        } => {
            few_schedules(schedule);
            few_times(next);
            // Mostly each has one name.
            let of = if name.as_str().len() % 8 == 0 {
                9
            } else {
                schedule.0
            };
            *name = ScheduleName::new(&format!("{of}")).unwrap();
            Arc::make_mut(spec).overlap = Overlap::Queue;
        }
        Effect::ScheduleChanged { schedule, next, .. } => {
            few_schedules(schedule);
            few_times(next);
        }
        Effect::ScheduleDeleted { schedule } => few_schedules(schedule),
        Effect::ScheduleStepped {
            schedule,
            next,
            firing,
            ..
        } => {
            few_schedules(schedule);
            few_times(next);
            let message = firing.as_mut().and_then(|firing| firing.message.as_mut());
            if let Some(message) = message {
                let (mut queue, mut sequence) = (message.queue(), message.sequence());
                few(&mut queue);
                few_numbers(&mut sequence);
                *message = MessageId::new(queue, sequence, Term::default());
            }
        }
        Effect::IdsIndexed { queue, .. } => few(queue),
        Effect::EventIdsIndexed { ledger, up_to } => {
            few_ledgers(ledger);
            up_to.0 %= 12;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Any records that can be decoded can be folded in any order: a log that was put together from
    /// the remains of two must not stop a start.
    #[test]
    fn whatever_can_be_decoded_can_be_folded(effects in meeting_effects(), now in now()) {
        let mut machine = crate::Machine::new(crate::MachineLimits::default());
        let mut batched = crate::Machine::new(crate::MachineLimits::default());
        let mut decoder = batch::BatchDecoder::new(&batched);
        for (position, effect) in (0..).zip(effects) {
            let position = lockgate_core::Position(position * 100);
            let record = [effect, Effect::Advanced { now, budget: 100 }];
            machine.fold(&record, position);
            decoder.push(&encode(&record), position);
        }
        batched.fold_batch(&decoder.take(Default::default()), |_, _| {});
        prop_assert_eq!(batched.state_view(), machine.state_view());
        prop_assert_eq!(batched.effects_ignored(), machine.effects_ignored());
        let _ = machine.state_view();
        prop_assert_eq!(machine.problems_of_exchanges(), Vec::<String>::new());
        let _ = machine.tick(now);
        machine.housekeep(1000);
    }
}
