//! When a send is answered.

use lockgate_core::{Accepted, Message, Sequence, SinkCapabilities, Unsupported};
use lockgate_producer::{
    Answer, AnswerLevel, DropReason, OptionsError, Producer, ProducerOptions, Refusal, SendError,
    SpoolOptions, WhenFull,
    testing::{Fault, TestSink},
};

use crate::{LONG, bodies, check_law, keyed, open};

#[tokio::test]
async fn a_send_is_answered_at_its_level_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let sink = TestSink::new();
    sink.stop();
    let options = ProducerOptions {
        spool: Some(SpoolOptions::new(folder.path().join("spool"))),
        ..ProducerOptions::default()
    };
    let producer = open(&sink, options).await;
    let send = |body: &'static str| producer.send(Message::new(body));
    let accepted = send("a").level(AnswerLevel::Accepted).await;
    assert_eq!(accepted.unwrap(), Answer::Accepted);
    let durable = send("b").level(AnswerLevel::Durable).await;
    assert_eq!(durable.unwrap(), Answer::Durable);
    let delivered = send("c").level(AnswerLevel::Delivered).start().await;
    let mut delivered = std::pin::pin!(delivered.unwrap());
    let at_once = tokio::time::timeout(std::time::Duration::from_millis(50), delivered.as_mut());
    assert!(at_once.await.is_err(), "the sink is away");
    assert_eq!(producer.figures().pending, 3);
    sink.resume();
    let expected = Accepted {
        id: Some(3),
        sequence: Some(Sequence(3)),
        duplicate: false,
    };
    assert_eq!(delivered.await.unwrap(), Answer::Delivered(expected));
    assert_eq!(bodies(&sink), ["a", "b", "c"]);
    check_law(&producer);
}

#[tokio::test]
async fn what_a_sink_or_the_options_cannot_take_is_refused_with_the_reason_and_the_message() {
    let mut can = SinkCapabilities::bodies_only(lockgate_core::Level::Memory);
    can.message_bytes_max = 4;
    let sink = TestSink::with_capabilities(can);
    let producer = open(&sink, ProducerOptions::default()).await;
    let refused = producer.try_send(keyed("k", "b")).unwrap_err();
    assert!(matches!(
        refused.why,
        Refusal::Unsupported(Unsupported::Key)
    ));
    assert_eq!(refused.message.body, "b");
    let refused = producer.try_send(Message::new("12345")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the message has 5 bytes, and the sink takes 4"
    );
    let durable = producer.send(Message::new("b")).level(AnswerLevel::Durable);
    assert!(matches!(
        durable.try_start().unwrap_err().why,
        Refusal::NoSpool
    ));
    let spool = ProducerOptions {
        when_full: WhenFull::Spool,
        ..ProducerOptions::default()
    };
    let error = Producer::open(sink, spool).await.unwrap_err();
    let expected = OptionsError::NeedsSpool {
        option: "when_full = Spool",
    };
    assert_eq!(error.to_string(), expected.to_string());
}

#[tokio::test]
async fn a_record_that_the_sink_refuses_is_dropped_and_counted_and_its_sender_told() {
    let sink = TestSink::new();
    sink.set_fault(|message| match &message.body[..] {
        b"bad" => Fault::Fails(lockgate_core::Fate::Refused),
        _ => Fault::None,
    });
    let producer = open(&sink, ProducerOptions::default()).await;
    let bad = producer.send(Message::new("bad"));
    let good = producer.send(Message::new("good"));
    let (bad, good) = tokio::join!(bad.into_future(), good.into_future());
    let error = bad.unwrap_err();
    assert!(matches!(
        error,
        SendError::Dropped {
            reason: DropReason::Refused,
            may_be_delivered: false,
            source: Some(_),
        }
    ));
    assert!(matches!(good.unwrap(), Answer::Delivered(_)));
    let figures = producer.figures();
    assert_eq!(figures.dropped(DropReason::Refused), 1);
    let text = figures.prometheus("p");
    let line = "lockgate_producer_dropped_total{producer=\"p\",reason=\"refused\"} 1\n";
    assert!(text.contains(line), "{text}");
    check_law(&producer);
}

#[tokio::test]
async fn closing_sends_what_there_is_and_accepts_nothing_more() {
    let sink = TestSink::new();
    let producer = open(&sink, ProducerOptions::default()).await;
    let tickets: Vec<_> = (0..100)
        .map(|number| producer.try_send(keyed("k", number.to_string())).unwrap())
        .collect();
    let closed = producer.close(LONG).await;
    assert_eq!((closed.left, closed.figures.delivered), (0, 100));
    for ticket in tickets {
        assert!(matches!(ticket.await, Ok(Answer::Delivered(_))));
    }
    let expected: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(bodies(&sink), expected);
    let refused = producer.send(Message::new("late")).await.unwrap_err();
    assert_eq!(refused.to_string(), "the producer is closed");
}

#[tokio::test]
async fn flushing_waits_for_no_fuller_batch() {
    let sink = TestSink::new();
    let options = ProducerOptions {
        linger: lockgate_producer::Linger::Fixed(LONG * 100),
        ..ProducerOptions::default()
    };
    let producer = open(&sink, options).await;
    let ticket = producer.try_send(Message::new("a")).unwrap();
    assert_eq!(sink.messages().len(), 0);
    producer.flush().await;
    assert!(matches!(ticket.await, Ok(Answer::Delivered(_))));
}
