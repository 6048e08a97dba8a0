//! Which queues a message gets to.

use super::*;

#[test]
fn each_queue_gets_a_message_once_and_the_first_binding_decides() {
    let mut run = with_queues(&["a", "b", "c"]);
    make(&mut run, "e", ExchangeKind::Topic, Unroutable::Reject);
    make(&mut run, "f", ExchangeKind::Fanout, Unroutable::Reject);
    bind(&mut run, "e", to_queue("c"), by_topic("x.#"));
    let mut second = binding("e", to_queue("a"), by_topic("#"));
    second.options.key_from = Some(KeyFrom::RoutingKey);
    give(&mut run, second).unwrap();
    bind(&mut run, "e", to_queue("a"), by_topic("x.y"));
    bind(&mut run, "e", to_exchange("f"), by_topic("*.y"));
    bind(&mut run, "f", to_queue("b"), Pattern::Everything);
    bind(&mut run, "f", to_queue("a"), Pattern::Everything);
    assert_eq!(queues(&run, "e", "x.y"), ["c", "a", "b"]);
    let routing = key("x.y");
    let message = Published::new(&routing, &[], None);
    let route = run.machine.route(&exchange("e"), &message).unwrap();
    let a = route.targets[1];
    assert_eq!((a.exchange, a.binding), (ExchangeId(1), 2));
    let key = a.options.key_from.as_ref().unwrap().key(&message).unwrap();
    assert_eq!(key, Some(Key::new("x.y").unwrap()));
    assert!(route.targets[0].options.key_from.is_none());
    // The first one goes: then the next one decides.
    let unbind = Unbind {
        exchange: exchange("e"),
        to: to_queue("a"),
        pattern: by_topic("#"),
    };
    give(&mut run, unbind).unwrap();
    let route = run.machine.route(&exchange("e"), &message).unwrap();
    assert_eq!(route.targets[1].binding, 3);
}

#[test]
fn a_key_comes_from_the_routing_key_or_a_header() {
    let (routing, empty) = (key("eu"), key(""));
    let headers = [
        header("user", "7"),
        header("bad", "a\nb"),
        header("none", ""),
    ];
    let message = Published::new(&routing, &headers, None);
    let of = |name: &str| KeyFrom::Header(name.into()).key(&message);
    assert_eq!(of("user"), Ok(Some(Key::new("7").unwrap())));
    assert_eq!(of("missing"), Ok(None));
    assert_eq!(of("none"), Ok(None));
    assert!(
        of("bad")
            .unwrap_err()
            .to_string()
            .contains("a key may not contain '\\n'")
    );
    assert_eq!(
        KeyFrom::RoutingKey.key(&message),
        Ok(Some(Key::new("eu").unwrap()))
    );
    assert_eq!(
        KeyFrom::RoutingKey.key(&Published::new(&empty, &[], None)),
        Ok(None)
    );
}

#[test]
fn what_no_queue_takes_goes_to_alternates_and_the_last_one_decides() {
    let mut run = with_queues(&["a", "rest"]);
    make(&mut run, "last", ExchangeKind::Direct, Unroutable::Drop);
    make(&mut run, "middle", ExchangeKind::Direct, alternate("last"));
    make(&mut run, "e", ExchangeKind::Direct, alternate("middle"));
    make(&mut run, "strict", ExchangeKind::Direct, Unroutable::Reject);
    bind(&mut run, "e", to_queue("a"), by_key("a"));
    bind(&mut run, "last", to_queue("rest"), by_key("rest"));
    let route = |run: &Run, from: &str, routing: &str| {
        let routing = key(routing);
        let message = Published::new(&routing, &[], None);
        let route = run.machine.route(&exchange(from), &message)?;
        let alternates = route.alternates.clone();
        Ok::<_, ExchangeError>((names(&run.machine, route), alternates))
    };
    let (middle, last) = (ExchangeId(2), ExchangeId(1));
    assert_eq!(
        route(&run, "e", "a").unwrap(),
        (vec!["a".to_owned()], vec![])
    );
    let rest = vec!["rest".to_owned()];
    assert_eq!(
        route(&run, "e", "rest").unwrap(),
        (rest.clone(), vec![middle, last])
    );
    assert_eq!(route(&run, "e", "x").unwrap(), (vec![], vec![middle, last]));
    let refused = route(&run, "strict", "x").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "exchange strict has no queue for the message"
    );
    let strict = UpdateExchange {
        notes: None,
        exchange: exchange("last"),
        unroutable: Some(Unroutable::Reject),
    };
    give(&mut run, strict).unwrap();
    let refused = route(&run, "e", "x").unwrap_err().to_string();
    assert!(
        refused.contains("nor have its 2 alternates up to last"),
        "{refused}"
    );

    // An exchange that a binding leads to has its own alternate, and the one in front of it still has its own if that gives
    // no queue.
    make(&mut run, "inner", ExchangeKind::Direct, alternate("strict"));
    bind(&mut run, "e", to_exchange("inner"), by_key("rest"));
    assert_eq!(
        route(&run, "e", "rest").unwrap(),
        (rest.clone(), vec![middle, last])
    );
    bind(&mut run, "strict", to_queue("a"), by_key("rest"));
    assert_eq!(
        route(&run, "e", "rest").unwrap(),
        (vec!["a".to_owned()], vec![])
    );

    // A binding of the inner one to a queue that was deleted, and is not freed yet, matches nothing.
    make_queue(&mut run, "gone");
    bind(&mut run, "inner", to_queue("gone"), by_key("rest"));
    let to_gone = vec!["gone".to_owned()];
    assert_eq!(route(&run, "e", "rest").unwrap(), (to_gone, vec![]));
    let queue = name("gone");
    give(&mut run, DeleteQueue { queue }).unwrap();
    let by_inner = (vec!["a".to_owned()], vec![]);
    assert_eq!(route(&run, "e", "rest").unwrap(), by_inner);
    run.check_recovery();
}

#[test]
fn a_long_way_through_exchanges_needs_no_stack() {
    let way = || {
        let mut run = with_queues(&["q"]);
        let names: Vec<_> = (0..3_000).map(|number| format!("e{number}")).collect();
        let create = |text: &str| CreateExchange {
            notes: Default::default(),
            name: exchange(text),
            kind: ExchangeKind::Fanout,
            unroutable: Unroutable::Reject,
        };
        for text in &names {
            quick(&mut run, create(text)).unwrap();
        }
        for both in names.windows(2) {
            let next = binding(&both[0], to_exchange(&both[1]), Pattern::Everything);
            quick(&mut run, next).unwrap();
        }
        quick(
            &mut run,
            binding("e2999", to_queue("q"), Pattern::Everything),
        )
        .unwrap();
        assert_eq!(queues(&run, "e0", ""), ["q"]);
        let back = quick(
            &mut run,
            binding("e2999", to_exchange("e0"), Pattern::Everything),
        );
        assert!(exchange_error(back).contains("cannot lead"));
        let from_image = loaded(&mut run.machine);
        assert_eq!(from_image.exchange_figures(), (3_000, 3_000, 3_000 * 768));
    };
    let thread = std::thread::Builder::new().stack_size(512 << 10);
    thread.spawn(way).unwrap().join().unwrap();
}

#[test]
fn a_route_to_too_many_queues_is_refused() {
    let mut run = Run::new();
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    for number in 0..=10_000 {
        let queue = format!("q{number}");
        make_queue(&mut run, &queue);
        quick(
            &mut run,
            binding("e", to_queue(&queue), Pattern::Everything),
        )
        .unwrap();
        if number == 9_999 {
            assert_eq!(queues(&run, "e", "").len(), 10_000);
        }
    }
    let routing = key("");
    let refused = run
        .machine
        .route(&exchange("e"), &Published::new(&routing, &[], None));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("to more than 10000 queues"), "{refused}");
}

#[test]
fn filters_that_take_too_long_refuse_the_publish() {
    let mut run = Run::new();
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    let filter = Filter::new(FilterScope::Body, r#"{"a": [{"wildcard": "*x*y*"}]}"#).unwrap();
    for number in 0..400 {
        let queue = format!("q{number}");
        make_queue(&mut run, &queue);
        let mut bind = binding("e", to_queue(&queue), Pattern::Everything);
        bind.options.filter = Some(filter.clone());
        quick(&mut run, bind).unwrap();
    }
    let routing = key("");
    let route = |bytes: usize| {
        let body = Bytes::from(format!(r#"{{"a": "xy{}"}}"#, "z".repeat(bytes)));
        let message = Published::new(&routing, &[], Some(&body));
        let route = run.machine.route(&exchange("e"), &message)?;
        Ok::<_, ExchangeError>(route.targets.len())
    };
    assert_eq!(route(150_000), Ok(400));
    assert!(matches!(route(250_000), Err(ExchangeError::TooMuch { .. })));
    // No filter looks into a body that is longer than those of SNS.
    let refused = route(300_000);
    assert!(matches!(refused, Err(ExchangeError::Unroutable { .. })));
}

#[test]
fn a_route_is_explained() {
    let mut run = with_queues(&["a", "b"]);
    make(&mut run, "rest", ExchangeKind::Fanout, Unroutable::Drop);
    make(&mut run, "e", ExchangeKind::Headers, alternate("rest"));
    let shop = all_of(&[("shop", "1")]);
    let mut first = binding("e", to_queue("a"), shop.clone());
    first.options = filtered(r#"{"event": ["new"]}"#);
    give(&mut run, first).unwrap();
    bind(&mut run, "e", to_queue("b"), all_of(&[("shop", "2")]));
    let explain = |headers: &[(&str, &str)], limit| ExplainRoute {
        exchange: exchange("e"),
        routing_key: key(""),
        headers: headers
            .iter()
            .map(|(name, value)| header(name, value))
            .collect(),
        body: None,
        limit,
    };
    let route = ask(&run, explain(&[("shop", "1"), ("event", "old")], 10));
    assert_eq!(route.bindings.len(), 1);
    assert_eq!(
        route.bindings[0].binding.pattern.to_string(),
        "all headers of shop=1"
    );
    assert_eq!(
        route.bindings[0].outcome,
        StepOutcome::Filtered(
            "the filter misses the key `event` of the headers: its value meets no condition".into()
        )
    );
    assert_eq!(
        (route.queues, route.alternates),
        (0, vec![exchange("rest")])
    );
    assert_eq!(route.unroutable, Some(Unroutable::Drop));

    bind(&mut run, "e", to_queue("a"), all_of(&[("event", "new")]));
    let route = ask(&run, explain(&[("shop", "1"), ("event", "new")], 10));
    let outcomes: Vec<_> = route.bindings.iter().map(|step| &step.outcome).collect();
    assert_eq!(outcomes, [&StepOutcome::Routes, &StepOutcome::Again]);
    assert_eq!((route.queues, route.more, route.unroutable), (1, 0, None));
    let route = ask(&run, explain(&[("shop", "1"), ("event", "new")], 1));
    assert_eq!((route.bindings.len(), route.more), (1, 1));
}

/// The reasons of a page have one bound: behind it they are shorter, and say so.
#[test]
fn the_reasons_of_a_page_take_a_bounded_time() {
    let mut run = Run::new();
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Drop);
    let filter = Filter::new(FilterScope::Body, r#"{"a": ["x"]}"#).unwrap();
    for number in 0..60 {
        let queue = format!("q{number}");
        make_queue(&mut run, &queue);
        let mut bind = binding("e", to_queue(&queue), Pattern::Everything);
        bind.options.filter = Some(filter.clone());
        quick(&mut run, bind).unwrap();
    }
    let explain = |values: usize| {
        let body = format!(r#"{{"a": [{}0]}}"#, "1,".repeat(values));
        let route = ask(
            &run,
            ExplainRoute {
                exchange: exchange("e"),
                routing_key: key(""),
                headers: Vec::new(),
                body: Some(body.into()),
                limit: 100,
            },
        );
        let is_short = |step: &&crate::RouteStep| match &step.outcome {
            StepOutcome::Filtered(why) => why.contains("ask for fewer bindings"),
            other => panic!("{other:?}"),
        };
        (
            route.bindings.len(),
            route.bindings.iter().filter(is_short).count(),
        )
    };
    assert_eq!(explain(100), (60, 0));
    let (all, short) = explain(4_000);
    assert_eq!(all, 60);
    assert!((40..55).contains(&short), "{short}");
}
