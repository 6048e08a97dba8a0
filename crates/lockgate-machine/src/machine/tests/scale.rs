//! The cost of a receive does not grow with messages that it cannot lease.

use lockgate_core::{HolderName, Key, UniqueId};

use super::harness::{Run, check, name};
use crate::{Command, CreateQueue, QueueSettings, Receive, SendMessage};

/// How many keys a receive would walk over.
fn ready_keys(run: &Run, queue: &str) -> usize {
    run.machine.ready_keys(&name(queue))
}

#[test]
fn locked_keys_are_in_no_list_that_a_receive_walks() {
    let mut script = String::from("queue q keyed\n");
    for key in 0..1000 {
        script += &format!("send q key=k{key}\nsend q key=k{key}\n");
    }
    script += "receive q 1000\nreceive q 1000\n";
    let run = check(&script);
    assert_eq!(ready_keys(&run, "q"), 0);
    let run = check(&(script + "send q key=free"));
    assert_eq!(ready_keys(&run, "q"), 1);
}

#[test]
fn a_long_key_counts_as_one() {
    let mut script = String::from("queue q keyed\n");
    for _ in 0..2000 {
        script += "send q key=long\n";
    }
    script += "send q key=other\n";
    let run = check(&script);
    assert_eq!(ready_keys(&run, "q"), 2);
    let run = check(&(script + "receive q 1 => 1\nreceive q 1 => 2001"));
    assert_eq!(ready_keys(&run, "q"), 0);
}

/// The sum of the queues' limits, as an operator sees it, is no less than the memory they can take.
#[test]
fn a_queue_that_is_full_takes_no_more_memory_than_its_settings_say() {
    const MESSAGES: u32 = 20_000;
    let settings = QueueSettings {
        keyed: true,
        quota_messages: Some(MESSAGES.into()),
        dedup_bytes_max: 64 * u64::from(MESSAGES),
        in_flight_max: MESSAGES,
        producers_max: 0,
        ..QueueSettings::default()
    };
    let most = settings.memory_bytes_max().unwrap();
    assert_eq!(most, 20_000 * (96 + 200 + 64 + 64));
    let mut run = Run::new();
    let empty = run.machine.heap_bytes();
    run.give(&Command::CreateQueue(Box::new(CreateQueue {
        name: name("q"),
        settings,
        annotations: [].into(),
        tags: [].into(),
    })))
    .unwrap();
    let mut worst = 0;
    for number in 1..=u64::from(MESSAGES) {
        let mut message = lockgate_core::Message::new("");
        message.key = Some(Key::new(&format!("key-{number}")).unwrap());
        message.unique_id = Some(UniqueId::new(&format!("id-{number}")).unwrap());
        run.give(&Command::Send(Box::new(SendMessage {
            queue: name("q"),
            message,
        })))
        .unwrap();
        run.give(&Command::Receive(Receive {
            queue: name("q"),
            max: 1,
            key_max: None,
            lease: None,
            holder: HolderName::new("worker").unwrap(),
        }))
        .unwrap();
        // A key's text comes with two counters, in steps of sixteen bytes.
        let texts = number * 48;
        worst = worst.max((run.machine.heap_bytes() - empty) as u64 + texts);
    }
    assert!(worst <= most, "{worst} of {most}");
    // And not so much more that the figure would be useless.
    assert!(worst >= most / 2, "{worst} of {most}");
}
