//! Producers as services use them, over a sink with faults.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod levels;
mod overload;
mod pipeline;
mod spool;

use std::time::Duration;

use lockgate_core::{Key, Message};
use lockgate_producer::{Producer, ProducerOptions, testing::TestSink};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

async fn open(sink: &TestSink, options: ProducerOptions) -> Producer<TestSink> {
    Producer::open(sink.clone(), options).await.unwrap()
}

fn keyed(key: &str, body: impl Into<Vec<u8>>) -> Message {
    Message::new(body.into()).with_key(Key::new(key).unwrap())
}

fn bodies(sink: &TestSink) -> Vec<String> {
    let messages = sink.messages().into_iter();
    let text = |message: Message| String::from_utf8(message.body.to_vec()).unwrap();
    messages.map(text).collect()
}

/// What holds of every producer at every time.
fn check_law(producer: &Producer<TestSink>) {
    let it = producer.figures();
    assert_eq!(
        it.accepted + it.recovered,
        it.delivered + it.dropped_all() + it.pending,
        "{it:?}"
    );
}
