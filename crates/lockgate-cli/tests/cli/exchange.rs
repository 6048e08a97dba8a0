//! `lockgate exchange`.

use serde_json::json;

use crate::{messages::Town, support::Done};

/// What a command says beside its output.
fn says(done: Done) -> String {
    let said = done.stderr.clone();
    done.ok();
    said
}

#[test]
fn messages_are_routed_as_bindings_say() {
    let town = Town::new();
    for queue in ["orders.fifo", "audit", "images"] {
        town.run(&format!("queue create {queue}")).ok();
    }
    town.run("exchange show events").fails_with(3);
    town.run("exchange create events --kind topic").ok();
    town.run("exchange create events --kind topic").ok();
    town.run("exchange create events --kind fanout")
        .fails_with(4);
    town.run("exchange create events --kind topic --unroutable drop")
        .fails_with(4);
    town.run("exchange create events --kind fanout --unroutable drop --change")
        .fails_with(4);
    let bind = "exchange bind events --queue orders.fifo --topic orders.*.eu --key-from-header customer \
                --filter {\"store\":[\"web\",1.50]}";
    assert!(says(town.run(bind)).contains("bound"));
    assert!(says(town.run(bind)).contains("there is such a binding"));
    town.run("exchange bind events --queue audit --topic # --skip-when-full")
        .ok();
    town.run("exchange bind events --queue audit").fails_with(1);
    town.run("exchange bind events --queue none --topic x")
        .fails_with(3);
    town.run("exchange bind events --topic x").fails_with(2);
    town.run("exchange bind events --queue audit --topic x --filter no")
        .fails_with(2);

    let publish = "exchange publish events --routing-key orders.new.eu 17 --header store=web --header customer=42";
    let published = says(town.run(publish));
    assert!(published.contains("published: 2 copies\n"), "{published}");
    let published = town.run(&format!("{publish} --unique-id u --json"));
    let published = published.json();
    assert_eq!(
        (&published[0]["copies"], &published[0]["duplicates"]),
        (&json!(2), &json!(0))
    );
    let again = says(town.run(&format!("{publish} --unique-id u")));
    assert!(
        again.contains("2 copies, 2 of them there before"),
        "{again}"
    );
    let orders = town.drain("orders.fifo");
    assert_eq!((orders.len(), &orders[0]["key"]), (2, &json!("42")));
    assert_eq!(town.drain("audit").len(), 2);
    // The queue is keyed, and the message has no key.
    let refused =
        town.run("exchange publish events --routing-key orders.new.eu x --header store=web");
    assert!(refused.fails_with(1).contains("key_required"));

    let explained = town
        .run("exchange explain events orders.new.eu --header store=phone")
        .ok();
    for part in ["filtered", "`store`", "1 queue would get the message"] {
        assert!(explained.contains(part), "{explained}");
    }
    let shown = town.run("exchange show events").ok();
    for part in [
        "orders.fifo",
        "\"orders.*.eu\"",
        "header customer",
        "headers: {",
        "skip",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = town.run("exchange show events --json").json();
    assert_eq!(shown[0]["exchange"]["counts"]["copies"], 4);
    assert_eq!(
        shown[0]["bindings"][0]["filter"],
        json!({"store": ["web", 1.50]})
    );
    town.run("exchange unbind events --queue audit --topic #")
        .ok();
    town.run("exchange unbind events --queue audit --topic #")
        .fails_with(3);

    let unroutable = town.run("exchange publish events --routing-key users x");
    assert!(unroutable.fails_with(4).contains("unroutable"));
    town.run("exchange create rest --kind headers").ok();
    town.run("exchange bind rest --queue images --header type=image --header type=photo --header urgent --any")
        .ok();
    town.run("exchange create events --kind topic --alternate rest --change")
        .ok();
    let file = town.sandbox.run_with_input(
        "exchange publish events --routing-key users --file - --header type=photo",
        "from standard input",
    );
    assert!(says(file).contains("published: 1 copy\n"));
    assert_eq!(town.drain("images")[0]["body"], "from standard input");
    let explained = town.run("exchange explain events users").ok();
    assert!(
        explained.contains("its alternate rest looks"),
        "{explained}"
    );
    assert!(explained.contains("it would be refused"), "{explained}");

    let list = town.run("exchange list ev").ok();
    assert!(
        list.starts_with("NAME\tKIND") && list.contains("events\ttopic\tto rest\t1\t"),
        "{list}"
    );
    assert_eq!(town.run("exchange list --json").json().len(), 2);
    town.run("exchange delete rest").fails_with(2);
    town.run("exchange delete rest --yes").fails_with(4);
    town.run("exchange delete rest --yes --force").ok();
    town.run("exchange create events --kind topic --unroutable drop --change")
        .ok();
    let dropped = says(town.run("exchange publish events --routing-key users x"));
    assert!(dropped.contains("dropped"), "{dropped}");
    town.run("exchange delete events --yes").ok();
    town.run("exchange delete events --yes").fails_with(3);
}

fn lines(town: &Town, flags: &str, input: &str) -> Done {
    let line = format!("exchange publish events --lines - {flags}");
    town.sandbox.run_with_input(&line, input)
}

#[test]
fn lines_are_published_in_order_up_to_the_first_that_is_refused() {
    let town = Town::new();
    for queue in ["orders.fifo", "audit"] {
        town.run(&format!("queue create {queue} --dedup-window 5m"))
            .ok();
    }
    town.run("exchange create events --kind topic").ok();
    town.run("exchange bind events --queue orders.fifo --topic orders.#")
        .ok();
    town.run("exchange bind events --queue audit --topic #")
        .ok();
    let input: String = (0..250)
        .map(|number| {
            let place = if number % 2 == 0 { "orders.eu" } else { "users" };
            format!("{{\"routing_key\":\"{place}\",\"body\":{number},\"key\":\"k\",\"unique_id\":\"u{number}\"}}\n")
        })
        .collect();
    let done = lines(&town, "", &input).ok();
    assert_eq!(done, "published 250 messages to events: 375 copies\n");
    let again = lines(&town, "", &input).ok();
    assert_eq!(
        again,
        "published 250 messages to events: 375 copies (250 already there)\n"
    );
    let orders = town.drain("orders.fifo");
    let bodies: Vec<_> = orders
        .iter()
        .map(|it| it["body"].as_str().unwrap())
        .collect();
    let even: Vec<_> = (0..250).step_by(2).map(|it: u32| it.to_string()).collect();
    assert_eq!(bodies, even);
    assert_eq!(town.drain("audit").len(), 250);

    // A line may leave its routing key to the flag; the third line has no key, and a queue is keyed.
    let input = "{\"body\":\"a\",\"key\":\"k\"}\n{\"body\":\"b\",\"routing_key\":\"users\"}\n{\"body\":\"c\"}\n{\"body\":\"d\"}\n";
    let refused = lines(&town, "--routing-key orders.us --json", input);
    assert_eq!(refused.stdout.lines().count(), 2);
    let error = refused.fails_with(1);
    assert!(error.contains("standard input:3"), "{error}");
    assert!(error.contains("key_required"), "{error}");
    assert!(
        error.contains("2 messages were sent, nothing after them"),
        "{error}"
    );
    assert_eq!(town.drain("audit").len(), 2);
    let wrong = lines(&town, "", "{\"body\":\"a\",\"routing_key\":7}\n").fails_with(1);
    assert!(wrong.contains("standard input:1"), "{wrong}");
    let to_a_queue = town.send_lines("audit", "{\"body\":\"a\",\"routing_key\":\"x\"}\n");
    assert!(
        to_a_queue
            .fails_with(1)
            .contains("lockgate exchange publish")
    );
    town.run("exchange publish events --unique-ids x")
        .fails_with(2);
}

/// The copies of all messages of a call may be too many for one record; then they go in several.
#[test]
fn many_copies_go_in_parts() {
    let town = Town::new();
    town.run("exchange create events --kind fanout").ok();
    for queue in 0..40 {
        town.run(&format!("queue create q{queue}")).ok();
        town.run(&format!("exchange bind events --queue q{queue}"))
            .ok();
    }
    let body = "x".repeat(10_000);
    let input = format!("{{\"body\":\"{body}\"}}\n").repeat(60);
    let done = lines(&town, "", &input).ok();
    assert_eq!(done, "published 60 messages to events: 2400 copies\n");
    assert_eq!(town.counts("q39")["ready"], 60);
}
