//! Exchanges in random histories: an index and a work list find what a look at every binding finds.

use lockgate_core::UniqueId;

use super::*;

/// Where a message goes, by looking at every binding.
fn naive_route(
    view: &StateView,
    first: ExchangeId,
    message: &Published<'_>,
) -> (Vec<QueueId>, Vec<ExchangeId>, Unroutable<ExchangeId>) {
    let (mut seen, mut queues, mut alternates) = (vec![first], Vec::new(), Vec::new());
    let (mut at, mut next) = (first, 0);
    loop {
        while let Some(id) = seen.get(next).copied() {
            next += 1;
            let mut further = Vec::new();
            for binding in view.exchanges[&id].bindings.values() {
                let filter = &binding.options.filter;
                if binding.pattern.matches(message)
                    && filter.as_ref().is_none_or(|filter| filter.matches(message))
                {
                    further.push(binding.to);
                }
            }
            if let (true, Unroutable::Alternate(id)) = (
                further.is_empty() && id != at,
                view.exchanges[&id].unroutable,
            ) {
                further.push(BindTo::Exchange(id));
            }
            for to in further {
                match to {
                    BindTo::Queue(queue) if !queues.contains(&queue) => queues.push(queue),
                    BindTo::Exchange(id) if !seen.contains(&id) => seen.push(id),
                    _ => {}
                }
            }
        }
        let last = view.exchanges[&at].unroutable;
        match last {
            Unroutable::Alternate(id) if queues.is_empty() => {
                alternates.push(id);
                at = id;
                if !seen.contains(&id) {
                    seen.push(id);
                }
            }
            last => return (queues, alternates, last),
        }
    }
}

const KINDS: [ExchangeKind; 4] = ExchangeKind::ALL;

fn pattern_of(kind: ExchangeKind, with: u8) -> Pattern {
    let topics = ["#", "a.*", "*.b", "a.#", "#.b", "a.b"];
    match kind {
        ExchangeKind::Direct => by_key(["a.b", "b", ""][usize::from(with % 3)]),
        ExchangeKind::Topic => by_topic(topics[usize::from(with % 6)]),
        ExchangeKind::Fanout => Pattern::Everything,
        ExchangeKind::Headers => match with % 3 {
            0 => all_of(&[("a", "1")]),
            1 => all_of(&[("a", "1"), ("b", "1")]),
            _ => {
                let pairs = vec![pair("a", "1"), pair("b", "2")];
                Pattern::Headers(Arc::new(HeadersMatch::any(pairs).unwrap()))
            }
        },
    }
}

/// A step whose numbers choose what is done. Then some messages are routed, and the same by looking at every binding.
pub(in crate::machine::tests) fn step(run: &mut Run, what: u8, how: u8, with: u8) {
    let text = |number: u8| format!("e{}", number % 6);
    let from = text(how);
    let kind = KINDS[usize::from(how % 6 % 4)];
    let unroutable = match with % 5 {
        0 => Unroutable::Reject,
        1 => Unroutable::Drop,
        _ => alternate(&text(with / 5)),
    };
    let to = match with % 4 {
        0 => to_exchange(&text(with / 4)),
        _ => BindTo::Queue(name(
            crate::machine::tests::random::QUEUES[usize::from(with / 4) % 3],
        )),
    };
    let pattern = pattern_of(kind, what / 16);
    let command: Command = match what % 16 {
        0..4 => CreateExchange {
            notes: Default::default(),
            name: exchange(&from),
            kind,
            unroutable,
        }
        .into(),
        4 => UpdateExchange {
            notes: (how > 64).then(|| crate::ExchangeNotes {
                tags: [(text(with), text(how))].into(),
                ..Default::default()
            }),
            exchange: exchange(&from),
            unroutable: Some(unroutable),
        }
        .into(),
        5 => DeleteExchange {
            exchange: exchange(&from),
            force: with.is_multiple_of(2),
        }
        .into(),
        6 | 7 => Unbind {
            exchange: exchange(&from),
            to,
            pattern,
        }
        .into(),
        8..11 => {
            let mut publish =
                publish::publish(&from, ["a.b", "b", ""][usize::from(with % 3)], "body");
            publish.message.headers = vec![header("a", "1"), header("b", "1")];
            publish.message.key = (with > 30).then(|| Key::new(&text(with)).unwrap());
            publish.message.unique_id = (with > 60).then(|| UniqueId::new(&text(how)).unwrap());
            publish.into()
        }
        _ => {
            let mut bind = binding(&from, to, pattern);
            if how > 128 {
                bind.options = filtered(r#"{"b": ["1", {"exists": false}]}"#);
            }
            if matches!(bind.to, BindTo::Queue(_)) {
                bind.options.envelope = how.is_multiple_of(5).then(|| text(with).into());
                bind.options.overflow = how
                    .is_multiple_of(7)
                    .then(|| name(crate::machine::tests::random::QUEUES[usize::from(how) % 3]));
            }
            bind.into()
        }
    };
    let _ = run.give(&command);
    let view = run.machine.state_view();
    for (routing, headers) in [
        ("a.b", vec![header("a", "1")]),
        ("b", vec![header("a", "1"), header("b", "1")]),
        ("", vec![header("b", "2")]),
    ] {
        let routing = key(routing);
        let message = Published::new(&routing, &headers, None);
        for (id, exchange) in &view.exchanges {
            let (queues, alternates, last) = naive_route(&view, *id, &message);
            match run.machine.route(&exchange.name, &message) {
                Ok(route) => {
                    let targets = route.targets.iter();
                    let targets: Vec<_> = targets.map(|target| target.queue).collect();
                    assert_eq!((targets, route.alternates), (queues, alternates));
                }
                Err(ExchangeError::Unroutable { .. }) => {
                    assert_eq!((queues, last), (vec![], Unroutable::Reject));
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}
