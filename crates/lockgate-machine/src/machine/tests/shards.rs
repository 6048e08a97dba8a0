//! Everything of a shard contains its number and is refused by others; and no number exceeds its bits.

use lockgate_core::{
    BootId, Epoch, HolderName, Incarnation, LeaseToken, Level, Message, MessageId, QueueId,
    Sequence, ShardId, Term, WallTime,
};

use super::harness::{Run, name};
use crate::{
    Command, CreateQueue, CreatedQueue, Delivery, Effect, Effects, EngineCommand, ImageLoader,
    Machine, MachineLimits, Move, MoveTo, Payload, Receive, Rejection, Reply, SendMessage, Settle,
    SettleAction, Settled, StaleReason, StoredMessage, Transact,
};

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

/// The shard of the harness.
const OWN: u16 = 7;

fn send(run: &mut Run, queue: &str) -> Result<MessageId, Rejection> {
    let (queue, message) = (name(queue), Message::new("x"));
    match run.give(&Command::Send(Box::new(SendMessage { queue, message })))? {
        Reply::Sent(sent) => Ok(sent.id),
        other => panic!("{other:?}"),
    }
}

fn receive(run: &mut Run, queue: &str) -> Vec<Delivery> {
    let receive = Receive {
        queue: name(queue),
        max: 10,
        key_max: None,
        lease: None,
        holder: HolderName::new("h").unwrap(),
    };
    match run.give(&Command::Receive(receive)).unwrap() {
        Reply::Received(deliveries) => deliveries,
        other => panic!("{other:?}"),
    }
}

fn ack(token: LeaseToken) -> Settle {
    let action = SettleAction::Ack;
    Settle { token, action }
}

fn start(run: &Run, shard: ShardId) -> EngineCommand {
    EngineCommand::StartTerm {
        term: Term {
            shard,
            epoch: run.machine.term().epoch.next(),
            incarnation: Incarnation(5),
        },
        boot_id: BootId([1; 16]),
        clock_offset: 0,
        secret: [9; 32],
    }
}

#[test]
fn ids_and_tokens_say_their_shard() {
    let mut run = Run::new();
    run.lines("queue q");
    assert_eq!(run.machine.shard(), Some(shard(OWN)));
    let id = send(&mut run, "q").unwrap();
    assert_eq!(id.shard(), shard(OWN));
    let delivery = &receive(&mut run, "q")[0];
    assert_eq!(delivery.token.shard(), shard(OWN));
    assert_eq!((delivery.id, delivery.token.message), (id, id));
    assert_eq!(Machine::new(MachineLimits::default()).shard(), None);
}

/// Includes a change of visibility, which in Amazon's unkeyed queues takes effect with any of a
/// message's tokens.
#[test]
fn a_token_does_nothing_to_another_message_that_has_its_number() {
    for kind in ["sqs", "strict", "keyed"] {
        let mut run = Run::new();
        run.lines(&format!("queue q {kind}"));
        let kept = run.log.len();
        let key = if kind == "keyed" { "key=a" } else { "" };
        let line = format!("send q {key}");
        run.lines(&line);
        let lost = receive(&mut run, "q").remove(0).token;
        run.lose_all_but(kept);
        run.lines(&line);
        let mut settle_all = || {
            for action in [
                SettleAction::Ack,
                SettleAction::Extend { lease: 5_000 },
                SettleAction::Nack {
                    delay: 0,
                    reason: None,
                },
                SettleAction::Nack {
                    delay: 5_000,
                    reason: None,
                },
                SettleAction::ChangeVisibility { hidden: 0 },
                SettleAction::ChangeVisibility { hidden: 5_000 },
                SettleAction::Defer { delay: 5_000 },
                SettleAction::GiveBack,
                SettleAction::Reject { reason: None },
            ] {
                let told = run.give(&Command::Settle(Settle {
                    token: lost,
                    action,
                }));
                let gone: Result<_, Rejection> =
                    Ok(Reply::Settled(Settled::Stale(StaleReason::Gone)));
                assert_eq!(format!("{told:?}"), format!("{gone:?}"));
            }
            receive(&mut run, "q")
        };
        let [other] = &settle_all()[..] else {
            panic!("the other message is where it was");
        };
        assert_eq!(other.token.sequence, lost.sequence);
        assert_ne!(other.token.message, lost.message);
        assert!(settle_all().is_empty(), "it stays in flight");
        run.lines("counts q => ready 0, in flight 1, delayed 0");
        run.check_recovery();
    }
}

/// Its caller may take "gone" for success, and must: the message is lost. "Ended", which a second
/// token of the settled message is told, would promise that it comes again.
#[test]
fn a_transaction_tells_a_lost_message_from_the_one_it_settled_under_the_same_number() {
    for kind in ["sqs", "strict", "keyed"] {
        let mut run = Run::new();
        run.lines(&format!("queue q {kind}"));
        let kept = run.log.len();
        let key = if kind == "keyed" { "key=a" } else { "" };
        let line = format!("send q {key}");
        run.lines(&line);
        let lost = receive(&mut run, "q").remove(0).token;
        run.lose_all_but(kept);
        run.lines(&line);
        let other = receive(&mut run, "q").remove(0).token;
        assert_eq!(other.sequence, lost.sequence);
        let told = |run: &mut Run, second| {
            let nack = SettleAction::Nack {
                delay: 300,
                reason: None,
            };
            let settles = vec![
                Settle {
                    token: other,
                    action: nack,
                },
                Settle {
                    token: second,
                    action: SettleAction::Ack,
                },
            ];
            let transact = Transact {
                settles,
                ..Transact::default()
            };
            match run.give(&Command::Transact(transact)) {
                Err(Rejection::TransactionStale { index: 1, reason }) => reason,
                answer => panic!("the second token is stale: {answer:?}"),
            }
        };
        assert_eq!(told(&mut run, lost), StaleReason::Gone);
        assert_eq!(told(&mut run, other), StaleReason::Ended);
        assert!(run.machine.is_current(other), "nothing has happened");
    }
}

#[test]
fn a_token_of_another_shard_is_refused_and_changes_nothing() {
    let mut run = Run::new();
    run.lines("queue q");
    send(&mut run, "q").unwrap();
    let own = receive(&mut run, "q")[0].token;
    // Equal except for the shard: as another shard with the same history would give it.
    let term = Term {
        shard: shard(1),
        ..own.term
    };
    let other = LeaseToken { term, ..own };
    let refused = Rejection::OtherShard {
        given: shard(1),
        own: shard(OWN),
    };
    assert_eq!(
        refused.to_string(),
        "it is of shard 1, and this is shard 7: take it to shard 1"
    );
    for action in [
        SettleAction::Ack,
        SettleAction::Nack {
            delay: 0,
            reason: None,
        },
        SettleAction::Extend { lease: 1000 },
        SettleAction::GiveBack,
    ] {
        let settle = Settle {
            token: other,
            action,
        };
        assert_eq!(run.give(&Command::Settle(settle)).unwrap_err(), refused);
    }
    let transact = Command::Transact(Transact {
        settles: vec![ack(own), ack(other)],
        ..Transact::default()
    });
    assert_eq!(run.give(&transact).unwrap_err(), refused);
    assert!(run.machine.is_current(own) && !run.machine.is_current(other));
    assert_eq!(run.describe("q").totals.stale_settles, 0);
    let settled = run.give(&Command::Settle(ack(own)));
    assert!(matches!(settled, Ok(Reply::Settled(Settled::Done))));
    run.check_recovery();
}

#[test]
fn no_term_begins_under_another_number() {
    let mut run = Run::new();
    let refused = run.give(&start(&run, shard(8))).unwrap_err();
    let expected = Rejection::OtherShard {
        given: shard(8),
        own: shard(OWN),
    };
    assert_eq!(refused, expected);
    assert!(run.give(&start(&run, shard(OWN))).is_ok());
}

#[test]
fn an_image_keeps_the_number_and_messages_keep_their_ids_under_another_one() {
    let mut run = Run::new();
    run.lines("queue q\nqueue r");
    let before = send(&mut run, "q").unwrap();
    let leased = receive(&mut run, "q")[0].token;
    let also_before = send(&mut run, "q").unwrap();

    let mut loader = ImageLoader::new(MachineLimits::default());
    let mut frozen = run.machine.freeze();
    let mut buffer = Vec::new();
    while let Some(piece) = frozen.next_piece(&mut buffer) {
        loader.piece(piece).unwrap();
    }
    let mut loaded = loader.finish().unwrap();
    assert_eq!(loaded.shard(), Some(shard(OWN)));
    assert_eq!(loaded.state_view(), run.machine.state_view());

    // As a restore under another number does.
    let renumbered = loaded.renumbered(shard(900), Epoch(90)).unwrap();
    loaded.fold(&[renumbered], lockgate_core::Position(1 << 20));
    assert_eq!(loaded.shard(), Some(shard(900)));
    run.machine = loaded;
    let after = send(&mut run, "q").unwrap();
    assert_eq!(after.shard(), shard(900));
    let ids = receive(&mut run, "q")
        .iter()
        .map(|it| it.id)
        .collect::<Vec<_>>();
    assert_eq!(ids, [also_before, after]);
    assert_eq!(before.shard(), shard(OWN));

    // Its leases continue and end by themselves; a settle with its token is refused with the token's shard.
    let refused = run.give(&Command::Settle(ack(leased))).unwrap_err();
    let (given, own) = (shard(OWN), shard(900));
    assert_eq!(refused, Rejection::OtherShard { given, own });
    assert_eq!(run.describe("q").counts.in_flight, 3);
}

/// Sets the queue's next message to the last number.
fn use_up(run: &mut Run, queue: &str) {
    let queue = run.machine.queue_id(&name(queue)).unwrap();
    let sequence = Sequence(Sequence::MAX.0 - 1);
    let accepted = Effect::Accepted(Box::new(StoredMessage {
        queue,
        sequence,
        id: MessageId::new(queue, sequence, run.machine.term()),
        accepted: WallTime(1),
        unique_until: None,
        key_sequence: None,
        marked_at: None,
        payload: Payload::Own,
        message: Message::new("x"),
    }));
    run.append(Effects::from_iter([accepted]));
}

fn no_number_left() -> Rejection {
    Rejection::ShardFull {
        what: "sequence numbers in a queue",
        max: (1 << 46) - 1,
    }
}

#[test]
fn sequence_numbers_end_with_the_last_one() {
    for level in [Level::Disk, Level::Memory] {
        let mut run = Run::new();
        run.lines(&format!("queue q level={level}"));
        use_up(&mut run, "q");
        assert_eq!(send(&mut run, "q").unwrap().sequence(), Sequence::MAX);
        assert_eq!(send(&mut run, "q").unwrap_err(), no_number_left());
        run.lines("restart kill");
        assert_eq!(send(&mut run, "q").unwrap_err(), no_number_left());
        run.check_recovery();
    }
}

#[test]
fn messages_stay_where_they_are_if_the_other_queue_has_no_number_left() {
    let mut run = Run::new();
    run.lines(
        "
        queue dead
        queue q dlq=dead/1
        send q
        send q
        ",
    );
    use_up(&mut run, "dead");
    send(&mut run, "dead").unwrap();
    let to = MoveTo::Queue(name("dead"));
    let (from, max) = (name("q"), 10);
    let refused = run
        .give(&Command::Move(Move {
            from,
            to,
            max,
            cursor: None,
        }))
        .unwrap_err();
    assert_eq!(refused, no_number_left());
    let tokens: Vec<_> = receive(&mut run, "q").iter().map(|it| it.token).collect();
    let action = SettleAction::Reject { reason: None };
    let token = tokens[0];
    let refused = run.give(&Command::Settle(Settle { token, action }));
    assert_eq!(refused.unwrap_err(), no_number_left());
    // Out of attempts, but delivered again.
    run.lines("wait 1min");
    assert_eq!(receive(&mut run, "q").len(), 2);
    run.check_recovery();
}

#[test]
fn queue_numbers_end_with_the_last_one() {
    let mut run = Run::new();
    let created = Effect::QueueCreated {
        queue: QueueId(QueueId::MAX.0 - 1),
        name: name("almost"),
        settings: Box::default(),
        annotations: Default::default(),
        tags: Default::default(),
        at: WallTime(1),
    };
    run.append(Effects::from_iter([created]));
    let mut create = |text: &str| {
        run.give(&Command::CreateQueue(Box::new(CreateQueue {
            name: name(text),
            settings: Default::default(),
            annotations: Default::default(),
            tags: Default::default(),
        })))
    };
    match create("last") {
        Ok(Reply::Queue(CreatedQueue { description, .. })) => {
            assert_eq!(description.id, QueueId::MAX);
        }
        other => panic!("{other:?}"),
    }
    let refused = Rejection::ShardFull {
        what: "queues ever made",
        max: (1 << 24) - 1,
    };
    assert_eq!(create("beyond").unwrap_err(), refused);
    run.check_recovery();
}
