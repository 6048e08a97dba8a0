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
