//! `lockgate forward` beside what fails: a queue that hangs, a disk that is full, a file that is damaged.

use std::{fs, path::Path, process::Command, time::Duration};

use rustix::process::Signal;

use crate::{
    forward::{Away, Forwarder, SPOOL, address, ended},
    messages::{Town, bodies},
    support::Server,
};

/// The numbers of messages, in order.
fn numbers(town: &Town) -> Vec<u32> {
    let received = town.drain("clicks");
    let number = |body: &str| body.trim().parse().unwrap();
    let mut numbers: Vec<u32> = bodies(&received).into_iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_queue_that_hangs_or_is_away_delays_messages_and_loses_none() {
    let town = Town::new();
    town.run("queue create clicks").ok();
    let mut forwarder = Forwarder::listening(&town.sandbox, SPOOL);
    let post = |forwarder: &Forwarder, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let (status, answer) = forwarder.post("", &number.to_string());
            // It may be delivered before it is synced.
            assert!([200, 202].contains(&status), "{status}: {answer}");
        }
    };
    town.server.signal(Signal::STOP);
    post(&forwarder, 0..20);
    town.server.signal(Signal::CONT);
    post(&forwarder, 20..40);
    town.server.signal(Signal::KILL);
    post(&forwarder, 40..60);
    forwarder.event("the queue cannot be reached; messages wait");
    let address = address(&town.server.url);
    let Town { sandbox, server } = town;
    let server = Server::restart(server, &sandbox, &address);
    let town = Town { sandbox, server };
    post(&forwarder, 60..70);
    forwarder.event("the queue can be reached again");
    let done = forwarder.terminate();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(ended(&done)["left"], 0, "{done:?}");
    assert!(numbers(&town).into_iter().eq(0..70));
}

/// The sink answers after the deadline, again and again, dies, and comes back: each message is there once, and in the order of
/// its key. `LOCKGATE_AWAY=150` leaves it away for so many seconds, with the usual deadline; `cargo xtask kill` does.
#[test]
fn answers_after_the_deadline_lose_nothing_and_bring_nothing_twice() {
    let away = std::env::var("LOCKGATE_AWAY").ok();
    let away = away.map(|away| Duration::from_secs(away.parse().unwrap()));
    let timeout = if away.is_some() { "30s" } else { "200ms" };
    let town = Town::new();
    town.run("queue create clicks.fifo").ok();
    let arguments = format!(
        "forward --from http://127.0.0.1:0 --to clicks.fifo {SPOOL} --send-timeout {timeout}"
    );
    let mut forwarder = Forwarder::spawn(&town.sandbox, &arguments);
    forwarder.listens();
    let mut sent = 0..;
    let mut post = |forwarder: &Forwarder, count: usize| {
        for number in sent.by_ref().take(count) {
            let key = format!("lockgate-key: k{}", number % 3);
            let (status, answer) = forwarder.post(&key, &u32::to_string(&number));
            assert!([200, 202].contains(&status), "{status}: {answer}");
        }
    };
    post(&forwarder, 20);
    for _ in 0..2 {
        town.server.signal(Signal::STOP);
        let failed = forwarder.figure("producer_failed_batches_total");
        post(&forwarder, 20);
        while forwarder.figure("producer_failed_batches_total") == failed {
            std::thread::yield_now();
        }
        post(&forwarder, 10);
        // It answers what nobody waits for any more.
        town.server.signal(Signal::CONT);
        post(&forwarder, 10);
        while forwarder.pending() > 0 {
            std::thread::yield_now();
        }
    }
    town.server.signal(Signal::STOP);
    post(&forwarder, 10);
    town.server.signal(Signal::KILL);
    if let Some(away) = away {
        std::thread::sleep(away);
    }
    post(&forwarder, 10);
    let address = address(&town.server.url);
    let Town { sandbox, server } = town;
    let server = Server::restart(server, &sandbox, &address);
    let town = Town { sandbox, server };
    while forwarder.pending() > 0 {
        std::thread::yield_now();
    }
    let done = forwarder.terminate();
    assert_eq!(done.code, Some(0), "{done:?}");
    let received = town.drain("clicks.fifo");
    assert_eq!(received.len(), 120);
    for key in 0..3 {
        let key = format!("k{key}");
        let of_key = received.iter().filter(|it| it["key"] == key.as_str());
        let numbers = of_key.map(|it| it["body"].as_str().unwrap().parse::<u32>().unwrap());
        let numbers: Vec<u32> = numbers.collect();
        assert!(
            numbers.is_sorted() && numbers.len() == 40,
            "{key}: {numbers:?}"
        );
    }
}

/// Whether this process may mount a file system of its own.
fn may_mount() -> bool {
    let mount = "mount -t tmpfs none /mnt";
    let tried = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", mount])
        .output();
    tried.is_ok_and(|tried| tried.status.success())
}

#[test]
fn a_full_disk_refuses_messages_until_there_is_room_and_loses_none() {
    if !may_mount() {
        eprintln!("not tried: no file system may be mounted here");
        return;
    }
    let away = Away::new();
    let disk = away.sandbox.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let arguments = "forward --from http://127.0.0.1:0 --to clicks --spool disk/spool \
                     --spool-free-min 1B --spool-max 4MiB --drain 0s";
    let script = "mount -t tmpfs -o size=8m none disk && head -c 5000000 /dev/zero > disk/filler && exec \"$@\"";
    let mut command = Command::new("unshare");
    let shell = away.sandbox.shell(&away.sandbox.command(arguments), script);
    command.args(["--map-root-user", "--mount"]).arg("sh");
    command.args(shell.get_args());
    command.current_dir(away.sandbox.path());
    for (name, value) in shell.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut forwarder = Forwarder::run(command);
    forwarder.listens();
    let mut answered = Vec::new();
    let mut send = |forwarder: &Forwarder, number: u32| {
        let body = format!("{number}{}", " ".repeat(100_000));
        let (status, answer) = forwarder.post("", &body);
        match status {
            200 | 202 => answered.push(number),
            _ => assert_eq!(status, 503, "{answer}"),
        }
        status
    };
    let refused = (0..1_000).find(|number| send(&forwarder, *number) == 503);
    let next = refused.expect("it takes all") + 1;
    forwarder.event("the disk of the spool is full");
    // The disk is in the other process's tree.
    let root = format!("/proc/{}/root", forwarder.id());
    let filler = disk.join("filler");
    let filler = Path::new(&root).join(filler.strip_prefix("/").unwrap());
    fs::remove_file(filler).unwrap();
    while send(&forwarder, next) == 503 {}
    let town = away.back();
    forwarder.event("the queue can be reached again");
    while forwarder.pending() > 0 {}
    let done = forwarder.terminate();
    assert_eq!(done.code, Some(0), "{done:?}");
    let there = numbers(&town);
    assert!(there.windows(2).all(|pair| pair[0] <= pair[1]));
    for number in answered {
        let count = there.iter().filter(|it| **it == number).count();
        // One that is refused and comes again is another message.
        assert!(count == 1 || number == next, "{number}: {count}");
    }
}

#[test]
fn a_damaged_file_of_the_spool_costs_what_is_in_the_damage() {
    let away = Away::new();
    let forwarder = Forwarder::listening(&away.sandbox, SPOOL);
    let body = |number: u32| format!("{number}{}", " ".repeat(200));
    for number in 0..30 {
        assert_eq!(forwarder.post("", &body(number)).0, 202);
    }
    forwarder.kill();
    let damaged = fs::read_dir(away.sandbox.path().join("spool")).unwrap();
    let damaged = damaged.filter(|entry| {
        let path = entry.as_ref().unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let wanted = body(10);
        let at = bytes
            .windows(wanted.len())
            .position(|it| it == wanted.as_bytes());
        if let Some(at) = at {
            bytes[at + 100] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
        at.is_some()
    });
    assert_eq!(damaged.count(), 1);
    let arguments = format!("forward --from http://127.0.0.1:0 --to clicks {SPOOL}");
    let mut forwarder = Forwarder::spawn(&away.sandbox, &arguments);
    let told = forwarder.event(
        "stretches of the spool cannot be read, with at least so many records; their bytes are kept in files that end in .damaged",
    );
    assert_eq!(told["records"], 1, "{told}");
    forwarder.listens();
    let town = away.back();
    while forwarder.pending() > 0 {}
    let done = forwarder.terminate();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        numbers(&town)
            .into_iter()
            .eq((0..30).filter(|it| *it != 10))
    );
}
