//! The table of targets.

use std::{panic, sync::Arc, thread};

use lockgate_cli::fuzzing as cli;
use lockgate_core::{
    ExchangeId, ExchangeName, Header, Message, QueueId, QueueName, WallTime, pack,
};
use lockgate_machine::{
    BindTo, Binding, BindingOptions, Effect, ExchangeKind, ExchangeNotes, Filter, FilterScope,
    HeaderPair, HeadersMatch, Pattern, TopicPattern, Unroutable, encode_record,
};
use lockgate_server::fuzzing as server;

use crate::{
    Target, checksums, curator, disk, filter, golden, page, planted, schedule, state, words,
};

const IN_JSON: &[(&str, &str)] = &[("{\"a\":", "}"), ("[", "]"), ("\"\\\"", "\\\"\"")];
const IN_FILTERS: &[(&str, &str)] = &[
    ("{\"a\":", "}"),
    ("[", "]"),
    ("{\"a\":[1],\"$or\":[{\"b\":[1]},", "]}"),
    ("*a", "*"),
];
const IN_HOCON: &[(&str, &str)] = &[("a {", "}"), ("a = [", "]"), ("a.", ""), ("[", "]")];
const IN_TOML: &[(&str, &str)] = &[("[", "]"), ("{ a = ", " }"), ("a.", "")];
const IN_QUERY: &[(&str, &str)] = &[
    ("SendMessageBatchRequestEntry.1.", ""),
    ("MessageAttribute.1.Value.", ""),
    ("Attribute.1.", ""),
    ("%25", ""),
];

/// Text may be this long. A level for each of its words is more than a stack has room for, and what is
/// longer is tried less often.
const TEXT_BYTES: usize = 8 << 10;

const NONE: Target = Target {
    name: "",
    about: "",
    decode: |_| Ok(()),
    words: &[],
    pairs: &[],
    seeds: Vec::new,
    repair: None,
    bytes_max: TEXT_BYTES,
    memory: (256, 256 << 10),
    is_planted: false,
};

pub const TARGETS: &[Target] = &[
    Target {
        name: "query",
        about: "requests of the Query protocol of SQS: parameters and form",
        decode: server::query,
        words: &[words::ACTIONS, words::MEMBERS, words::QUERY],
        pairs: IN_QUERY,
        seeds: query,
        ..NONE
    },
    Target {
        name: "sns",
        about: "requests of SNS: parameters and form",
        decode: server::sns,
        words: &[words::SNS],
        pairs: IN_QUERY,
        seeds: sns,
        ..NONE
    },
    Target {
        name: "aws-json",
        about: "requests of the AWS JSON protocol of SQS",
        decode: server::aws_json,
        words: &[words::ACTIONS, words::MEMBERS, words::AWS_JSON, words::JSON],
        pairs: IN_JSON,
        seeds: aws_json,
        ..NONE
    },
    Target {
        name: "api",
        about: "requests to /api/v1: path, parameters, body",
        decode: server::api,
        words: &[words::API, words::JSON],
        pairs: IN_JSON,
        seeds: api,
        ..NONE
    },
    Target {
        name: "http-head",
        about: "how requests are framed on a connection, and hosts",
        decode: server::heads,
        words: &[words::HTTP],
        bytes_max: 2 << 10,
        seeds: heads,
        ..NONE
    },
    Target {
        name: "signature",
        about: "the Authorization header and presigned addresses",
        decode: server::signature,
        words: &[words::SIGNATURE],
        bytes_max: 2 << 10,
        seeds: signatures,
        ..NONE
    },
    Target {
        name: "receipt",
        about: "receipt handles",
        decode: server::receipt,
        bytes_max: 256,
        seeds: || {
            texts(&["AQAAAAcAAAAAAAAAKgAAAAAAAAADAAAAAP7tvu8AAAAAAAAACQAAAAAAAAAAAAAAAAAAAAA"])
        },
        ..NONE
    },
    Target {
        name: "queues-toml",
        about: "the file of queues in TOML",
        decode: |bytes| on_larger_stack(cli::queues_toml, bytes),
        words: &[words::QUEUES, words::MEMBERS, words::TOML],
        pairs: IN_TOML,
        bytes_max: 2 << 10,
        // The library keeps a table for each part of a dotted key.
        memory: (2048, 256 << 10),
        seeds: queues_toml,
        ..NONE
    },
    Target {
        name: "queues-hocon",
        about: "the file of queues in ElasticMQ's form, which is HOCON",
        decode: |bytes| on_larger_stack(cli::queues_hocon, bytes),
        words: &[words::HOCON],
        pairs: IN_HOCON,
        seeds: queues_hocon,
        ..NONE
    },
    Target {
        name: "config",
        about: "the configuration file",
        decode: |bytes| on_larger_stack(cli::config, bytes),
        words: &[words::CONFIG, words::TOML],
        pairs: IN_TOML,
        bytes_max: 1 << 10,
        // Every mistake is told, each with the line it is in.
        memory: (2048, 256 << 10),
        seeds: || texts(&["listen = \"127.0.0.1:9324\"\ndata = \"/var/lib/lockgate\"\n"]),
        ..NONE
    },
    Target {
        name: "access-keys",
        about: "the file of access keys",
        decode: |bytes| on_larger_stack(cli::access_keys, bytes),
        words: &[words::KEYS, words::TOML],
        pairs: IN_TOML,
        memory: (2048, 256 << 10),
        seeds: access_keys,
        ..NONE
    },
    Target {
        name: "send-line",
        about: "lines of `lockgate send --file`",
        decode: cli::send_line,
        words: &[words::LINES, words::JSON],
        pairs: IN_JSON,
        seeds: send_lines,
        ..NONE
    },
    Target {
        name: "analyze-lines",
        about: "lines of `lockgate analyze`: JSON, CSV, access logs, gzip",
        decode: cli::requests,
        words: &[words::REQUESTS, words::JSON],
        pairs: IN_JSON,
        seeds: requests,
        ..NONE
    },
    Target {
        name: "spool",
        about: "records of a producer's spool",
        decode: lockgate_producer::fuzz_spool,
        words: &[words::BYTES],
        seeds: spool,
        ..NONE
    },
    Target {
        name: "pack",
        about: "bodies of packs: header, LZ4 block, messages",
        decode: pack::fuzz,
        words: &[words::BYTES],
        seeds: packs,
        // A block of LZ4 holds 255 times its bytes, and they are packed again.
        memory: (2048, 4 << 20),
        ..NONE
    },
    Target {
        name: "sizing",
        about: "models of `lockgate size`, and figures of producers",
        decode: cli::sizing_model,
        words: &[words::SIZING, words::JSON],
        pairs: IN_JSON,
        seeds: sizing_models,
        ..NONE
    },
    Target {
        name: "coalescer-state",
        about: "the state of a key that processes coalesce together, as its record has it",
        decode: lockgate_consumer::coalesce::fuzz_state,
        words: &[words::BYTES],
        seeds: coalescer_states,
        ..NONE
    },
    Target {
        name: "election-term",
        about: "the term of an election, as its record has it",
        decode: lockgate_coordination::fuzz_term,
        words: &[words::ELECTIONS, words::JSON],
        pairs: IN_JSON,
        seeds: election_terms,
        ..NONE
    },
    Target {
        name: "file-records",
        about: "the file of all records of a folder",
        decode: lockgate_coordination::fuzz_file,
        words: &[words::ELECTIONS, words::JSON],
        pairs: IN_JSON,
        seeds: file_records,
        ..NONE
    },
    Target {
        name: "event",
        about: "an event of a ledger, as a message has it",
        decode: lockgate_sequencer::fuzz_event,
        words: &[words::EVENTS, words::BYTES],
        seeds: events,
        ..NONE
    },
    Target {
        name: "event-page",
        about: "a page of a ledger's events, as a client reads it from a server",
        decode: page::read,
        words: &[words::PAGES, words::JSON],
        pairs: IN_JSON,
        seeds: pages,
        ..NONE
    },
    Target {
        name: "filter",
        about: "filters of bindings, and what they match",
        decode: filter::read,
        words: &[words::FILTERS, words::JSON],
        pairs: IN_FILTERS,
        seeds: filters,
        ..NONE
    },
    Target {
        name: "curator-payload",
        about: "items in nodes of queues in ZooKeeper that Curator writes",
        decode: curator::payload,
        seeds: curator_payloads,
        ..NONE
    },
    Target {
        name: "curator-names",
        about: "names of nodes of such queues, and the order in which they are taken",
        decode: curator::names,
        words: &[words::CURATOR],
        bytes_max: 1_000,
        seeds: curator_names,
        ..NONE
    },
    Target {
        name: "cron",
        about: "cron expressions and time zones of schedules, and their times",
        decode: schedule::read,
        words: &[words::CRON],
        bytes_max: 600,
        seeds: crons,
        ..NONE
    },
    Target {
        name: "records",
        about: "records of the log: effects, decoded, encoded and folded",
        decode: state::records,
        words: &[words::BYTES],
        seeds: records,
        bytes_max: 16 << 10,
        memory: (512, 4 << 20),
        ..NONE
    },
    Target {
        name: "image",
        about: "the state in a snapshot",
        decode: state::image,
        words: &[words::BYTES],
        seeds: golden::images,
        bytes_max: 16 << 10,
        memory: (512, 4 << 20),
        ..NONE
    },
    Target {
        name: "segments",
        about: "segments of the log: headers, records, recovery",
        decode: disk::segments,
        words: &[words::BYTES],
        seeds: segments,
        repair: Some(checksums::segments),
        bytes_max: 8 << 10,
        memory: (64, 4 << 20),
        ..NONE
    },
    Target {
        name: "snapshot",
        about: "snapshot files: header and pieces",
        decode: disk::snapshot,
        words: &[words::BYTES],
        seeds: golden::snapshots,
        repair: Some(checksums::snapshot),
        bytes_max: 16 << 10,
        memory: (16, 1 << 20),
        ..NONE
    },
    Target {
        name: "backup",
        about: "the stream of a backup",
        decode: disk::backup,
        words: &[words::BYTES],
        seeds: golden::backups,
        repair: Some(checksums::backup),
        bytes_max: 16 << 10,
        memory: (512, 4 << 20),
        ..NONE
    },
    Target {
        name: "postgres-rows",
        about: "rows of the log in PostgreSQL",
        decode: lockgate_postgres::fuzzing::rows,
        words: &[words::BYTES],
        seeds: rows,
        repair: Some(checksums::rows),
        bytes_max: 4 << 10,
        ..NONE
    },
    Target {
        name: "planted-recursion",
        about: "a recursion without a limit, planted",
        decode: planted::recursion,
        words: &[words::PLANTED],
        seeds: || texts(&["Entry.1.a"]),
        is_planted: true,
        ..NONE
    },
    Target {
        name: "planted-allocation",
        about: "a length that is believed, planted",
        decode: planted::allocation,
        words: &[words::PLANTED],
        seeds: || texts(&["LEN 3abc"]),
        bytes_max: 256,
        is_planted: true,
        ..NONE
    },
    Target {
        name: "planted-panic",
        about: "a panic behind a checksum, planted",
        decode: planted::checksum,
        words: &[words::PLANTED],
        seeds: || vec![b"    a".to_vec()],
        repair: Some(checksums::planted),
        bytes_max: 64,
        is_planted: true,
        ..NONE
    },
];

/// The stack of what reads TOML, whose library goes 80 levels deep and no deeper, and HOCON, which goes 32: compiled for a
/// fuzzer, and the command line without optimisation, a level takes kilobytes.
const LARGER_STACK_BYTES: usize = 1 << 20;

/// Decodes on a thread with room for that.
fn on_larger_stack(decode: fn(&[u8]) -> Result<(), String>, bytes: &[u8]) -> Result<(), String> {
    thread::scope(|scope| {
        let larger = thread::Builder::new().stack_size(LARGER_STACK_BYTES);
        let decoding = larger
            .spawn_scoped(scope, || decode(bytes))
            .map_err(|error| error.to_string())?;
        match decoding.join() {
            Ok(outcome) => outcome,
            Err(panic) => panic::resume_unwind(panic),
        }
    })
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn query() -> Vec<Vec<u8>> {
    texts(&[
        "Action=ListQueues&QueueNamePrefix=a&Version=2012-11-05",
        "Action=CreateQueue&QueueName=orders.fifo&Attribute.1.Name=FifoQueue&Attribute.1.Value=true\
         &Attribute.2.Name=VisibilityTimeout&Attribute.2.Value=40&Tag.1.Key=team&Tag.1.Value=shop",
        "Action=SendMessage&QueueUrl=http%3A%2F%2Flocalhost%3A9324%2F000000000000%2Forders\
         &MessageBody=a+b&DelaySeconds=5&MessageAttribute.1.Name=n\
         &MessageAttribute.1.Value.DataType=Number&MessageAttribute.1.Value.StringValue=1",
        "Action=SendMessageBatch&SendMessageBatchRequestEntry.1.Id=a\
         &SendMessageBatchRequestEntry.1.MessageBody=x&SendMessageBatchRequestEntry.2.Id=b\
         &SendMessageBatchRequestEntry.2.MessageBody=y",
        "Action=ReceiveMessage&MaxNumberOfMessages=10&AttributeName.1=All&MessageAttributeName.1=a.*",
        "Action=DeleteMessageBatch&DeleteMessageBatchRequestEntry.1.Id=a\
         &DeleteMessageBatchRequestEntry.1.ReceiptHandle=x",
        "Action=UntagQueue\nTagKey.1=a&TagKey.2=b",
    ])
}

fn sns() -> Vec<Vec<u8>> {
    texts(&[
        "Action=CreateTopic&Name=orders.fifo&Attributes.entry.1.key=DisplayName&Attributes.entry.1.value=a\
         &Attributes.entry.2.key=Policy&Attributes.entry.2.value=%7B%22Statement%22%3A%5B%5D%7D\
         &Tags.member.1.Key=team&Tags.member.1.Value=shop&Version=2010-03-31",
        "Action=Publish&TopicArn=arn%3Aaws%3Asns%3Aus-east-1%3A000000000000%3Aorders\
         &Message=%7B%22default%22%3A%22x%22%2C%22sqs%22%3A%22y%22%7D&MessageStructure=json\
         &MessageAttributes.entry.1.Name=n&MessageAttributes.entry.1.Value.DataType=Number\
         &MessageAttributes.entry.1.Value.StringValue=1",
        "Action=PublishBatch&PublishBatchRequestEntries.member.1.Id=a\
         &PublishBatchRequestEntries.member.1.Message=x\
         &PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Name=n\
         &PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Value.DataType=Binary\
         &PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Value.BinaryValue=AP8%3D",
        "Action=Unsubscribe\nSubscriptionArn=\
         arn:aws:sns:us-east-1:000000000000:orders:00000001-0000-8000-8000-000000000002",
    ])
}

fn aws_json() -> Vec<Vec<u8>> {
    texts(&[
        "ListQueues\n{}",
        r#"CreateQueue
{"QueueName":"orders.fifo","Attributes":{"FifoQueue":"true","DeduplicationScope":"messageGroup"},"tags":{"lockgate:delay-max":"30d"}}"#,
        r#"SendMessage
{"QueueUrl":"u","MessageBody":"\u00e4","MessageAttributes":{"n":{"DataType":"Binary","BinaryValue":"YWJj"}}}"#,
        r#"SendMessageBatch
{"Entries":[{"Id":"a","MessageBody":"x","MessageGroupId":"g"},{"Id":"b","MessageBody":"y"}]}"#,
        r#"ReceiveMessage
{"MaxNumberOfMessages":10,"WaitTimeSeconds":20,"MessageSystemAttributeNames":["All"]}"#,
        r#"ChangeMessageVisibilityBatch
{"Entries":[{"Id":"a","ReceiptHandle":"h","VisibilityTimeout":0}]}"#,
        r#"SetQueueAttributes
{"Attributes":{"ReceiveMessageWaitTimeSeconds":"20"}}"#,
        r#"StartMessageMoveTask
{"SourceArn":"arn:aws:sqs:us-east-1:000000000000:dead","MaxNumberOfMessagesPerSecond":5}"#,
    ])
}

fn api() -> Vec<Vec<u8>> {
    texts(&[
        "GET /api/v1/queues?limit=7&prefix=a\n",
        "POST /api/v1/queues\n{\"name\":\"orders.fifo\",\"settings\":{\"lease_ms\":1000}}",
        "PATCH /api/v1/queues/orders\n{\"tags\":{\"team\":null}}",
        "POST /api/v1/queues/orders/messages\n{\"messages\":[{\"body\":\"a\",\"key\":\"k\"}]}",
        "POST /api/v1/queues/orders/receive\n{\"max\":10,\"wait_ms\":100}",
        "POST /api/v1/queues/orders/purge\n",
        "POST /api/v1/ledgers\n{\"name\":\"trades\",\"hashed\":true,\"retention_ms\":60000}",
        "POST /api/v1/ledgers/trades/events\n{\"epoch\":1,\"head\":7,\"events\":[{\"payload\":\"a\",\
         \"unique_id\":\"u\",\"input\":\"i\"}],\"settled\":[\"i\"]}",
        "GET /api/v1/ledgers/trades/events?after=1&limit=7&wait_ms=100\n",
        "GET /api/v1/ledgers/trades/follow?after=1&heartbeat_ms=100\n",
        "GET /api/v1/ledgers/trades/unique-ids/a%2Fb\n",
        "PUT /api/v1/ledgers/trades/readers/audit\n{\"sequence_id\":7}",
        "POST /api/v1/ledgers/trades/seal\n{\"epoch\":1}",
        "POST /api/v1/ledgers/trades/trim\n{\"first_id\":7}",
        "POST /api/v1/exchanges\n{\"name\":\"events\",\"kind\":\"topic\",\"unroutable\":{\"alternate\":\"rest\"}}",
        "PATCH /api/v1/exchanges/events\n{\"unroutable\":\"drop\"}",
        "DELETE /api/v1/exchanges/events?force=true\n",
        "GET /api/v1/exchanges/events/bindings?limit=7&page=Nw\n",
        "POST /api/v1/exchanges/events/bind\n{\"to\":{\"queue\":\"a\"},\"topic\":\"orders.*.#\",\"filter\":{\"a\":[\"b\"]},\
         \"filter_scope\":\"body\",\"key_from\":{\"header\":\"a\"},\"skip_when_full\":true}",
        "POST /api/v1/exchanges/events/unbind\n{\"to\":{\"exchange\":\"b\"},\"headers\":{\"match\":\"any\",\
         \"pairs\":{\"a\":\"b\",\"c\":null,\"d\":[\"e\",null]}}}",
        "POST /api/v1/exchanges/events/messages\n{\"messages\":[{\"routing_key\":\"orders.eu\",\"message\":{\"body\":\"x\"}}]}",
        "POST /api/v1/exchanges/events/explain\n{\"routing_key\":\"orders.eu\",\"headers\":{\"a\":{\"value\":\"b\"}},\"body\":\"{}\"}",
    ])
}

fn heads() -> Vec<Vec<u8>> {
    texts(&[
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: localhost:9324\r\nContent-Length: 5\r\n\r\nabcde",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nabcde\r\n0\r\nA: b\r\n\r\n",
    ])
}

fn signatures() -> Vec<Vec<u8>> {
    texts(&[
        "GET /?Param2=value2&Param1=value1\nHost: example.amazonaws.com\nX-Amz-Date: 20150830T123600Z\n\
         Authorization: AWS4-HMAC-SHA256 \
         Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
         SignedHeaders=host;x-amz-date, \
         Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500\n\n",
        "POST /\nHost: example.amazonaws.com\nX-Amz-Date: 20150830T123600Z\n\
         Authorization: AWS4-HMAC-SHA256 \
         Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
         SignedHeaders=host;x-amz-date, \
         Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b\n\n",
    ])
}

fn queues_toml() -> Vec<Vec<u8>> {
    texts(&["[[queue]]\nname = \"orders.fifo\"\nlease = \"45s\"\n\
         dedup_content = true\n\
         dead_letter = \"dead.fifo\"\nattempts_max = 3\ntags = { team = \"shop\" }\n\n\
         [[queue]]\nname = \"dead.fifo\"\n"])
}

fn queues_hocon() -> Vec<Vec<u8>> {
    texts(&[
        "include classpath(\"application.conf\")\nqueues {\n  orders {\n    fifo = true\n    \
         defaultVisibilityTimeout = 45 seconds\n    \
         deadLettersQueue { name = \"dead\", maxReceiveCount = 3 }\n    tags { team = shop }\n  }\n  \
         \"dead.fifo\" { fifo = true }\n}\nqueues.mail.delay = 90s\n",
    ])
}

fn access_keys() -> Vec<Vec<u8>> {
    texts(&[
        "[[key]]\nid = \"AKIDEXAMPLE\"\nsecret = \"wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY\"\n\
          grants = [{ queues = \"orders*\", verbs = [\"send\", \"receive\"] }]\n",
    ])
}

fn send_lines() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"body":{"a":[1, 2.50]},"key":"k","unique_id":"u","delay_ms":5000}"#,
        r#"{"body":"text","attributes":{"a":"b","n":1,"t":{"type":"Binary","base64":"YWJj"}}}"#,
    ])
}

fn spool() -> Vec<Vec<u8>> {
    let message = [&[2, 1][..], &[0; 7], &[1, 3], &[0; 7], &[9], &[0; 8]].concat();
    let body = [0, 0, 0, 2, b'a', b'b'];
    let checkpoint = [&[1, 1, 1, b'p'][..], &[0; 7], &[4], &[0, 0, 0, 1]].concat();
    let stretch = [&[0; 7][..], &[6], &[0; 7], &[9]].concat();
    vec![
        [&message[..], &[0, 1], &body].concat(),
        [&message[..], &[0, 3], &body, &body].concat(),
        [&checkpoint[..], &stretch].concat(),
        vec![3],
    ]
}

fn packs() -> Vec<Vec<u8>> {
    let click = |body: &'static str| {
        let mut click = Message::new(body);
        click.content_type = Some("text/plain".into());
        click.headers.push(Header {
            name: "name".into(),
            kind: "String".into(),
            value: body.into(),
        });
        click
    };
    let small: Vec<_> = (0..20).map(|_| click("click on the same page")).collect();
    let body = |messages, compress| pack::pack(messages, compress).body.to_vec();
    vec![
        body(&small, true),
        body(&small[..2], false),
        body(&[Message::new("LGPK")], false),
    ]
}

fn sizing_models() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"arrivals_per_second":80,"stages":[{"name":"a","service":{"per_second":50},"workers":2,"batch":10,"buffer":7},
            {"name":"b","service":{"seconds":0.01},"variability":0}],"outage":{"stage":"a","seconds":9},
            "burst":{"times":2.5,"seconds":60},"record_bytes":1024}"#,
        "lockgate_producer_accepted_total{producer=\"p\"} 90\nlockgate_producer_refused_total{producer=\"p\"} 0\n\
         lockgate_producer_sent_total{producer=\"p\"} 80\nlockgate_producer_batches_total{producer=\"p\"} 8\n\
         lockgate_producer_in_flight{producer=\"p\"} 5\nlockgate_producer_memory_records{producer=\"p\"} 5\n\
         lockgate_producer_memory_bytes{producer=\"p\"} 500\n",
    ])
}

fn coalescer_states() -> Vec<Vec<u8>> {
    let number = |n: u64| n.to_be_bytes();
    let born = [number(7), number(1)].concat();
    let counts = [number(3), number(1), number(1), number(2)].concat();
    let failures_and_recent = [0, 0, 0, 1, 1];
    let recent = [number(7), number(1), number(3)].concat();
    let run = [number(2), number(2)].concat();
    let batch = [&number(1)[..], &[0, 0, 0, 1, 0, 0, 0, 2], b"ab"].concat();
    let head = [&[1][..], &born, &counts, &failures_and_recent, &recent].concat();
    vec![
        [&head[..], &[3], &run, &batch, &batch].concat(),
        [&head[..], &[2], &batch].concat(),
        [&head[..], &[0]].concat(),
    ]
}

fn events() -> Vec<Vec<u8>> {
    texts(&[
        "sequence_id=2\nprevious_id=1\ntime=1767225600000\nepoch=7\nunique_id=transfer-7\n\n7 coins",
        concat!(
            "sequence_id=1\nprevious_id=0\ntime=0\nepoch=0\n",
            "hash=00000000000000000000000000000000000000000000000000000000000000ff\n\n"
        ),
    ])
}

fn pages() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"events":[{"sequence_id":2,"previous_id":1,"unique_id":"transfer-7","time":"2026-01-01T00:00:00.000Z",
            "epoch":7,"hash":null,"payload":"7 coins","payload_encoding":"text"}],"head":{"sequence_id":9,
            "first_id":1,"epoch":7,"time":"2026-01-01T00:00:00.001Z","hash":null,"sealed":false}}"#,
        concat!(
            r#"{"events":[{"sequence_id":1,"previous_id":0,"unique_id":null,"time":"1970-01-01T00:00:00Z","epoch":0,"#,
            r#""hash":"00000000000000000000000000000000000000000000000000000000000000ff","payload":"/wA=","#,
            r#""payload_encoding":"base64"}],"head":{"sequence_id":1,"first_id":1,"epoch":0,"#,
            r#""time":"1970-01-01T00:00:00Z","#,
            r#""hash":"00000000000000000000000000000000000000000000000000000000000000ff","sealed":true}}"#
        ),
        r#"{"events":[],"head":{"sequence_id":0,"first_id":1,"epoch":0,"time":null,"hash":null,"sealed":false}}"#,
    ])
}

fn election_terms() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"format":1,"term":{"epoch":7,"leader":"host-1","began_ms":1767225600000,"ended":null},"past":
            [{"epoch":6,"leader":"host-2","began_ms":0,"ended":{"at_ms":5,"reason":"end_of_term"}}],
            "checkpoint":{"epoch":6,"value":"cGFnZSA3"}}"#,
        r#"{"format":1}"#,
    ])
}

fn file_records() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"format":1,"boot":"AAAAAAAAAAAAAAAAAAAAAA==","offset_ms":5,"revision":9,"deleted_version":2,"wall_ms":3,
            "machine_ms":4,"records":[{"name":"election/term/a","value":"e30=","version":3,"revision":9,"written_ms":1,
            "lease":{"holder":"host-1#0.0","epoch":9,"until_ms":10000,"delete_at_end":true}}]}"#,
    ])
}

fn requests() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[
        "jsonl user.id at\n{\"user\":{\"id\":7},\"at\":1692367527123}\n{\"user.id\":\"\\u00e4\",\"at\":\"1970-01-01T00:00:01.5Z\"}\n",
        "jsonl a.1.b\n{\"a\":[0,{\"b\":true}]}\n{}\n",
        "csv k t\nk,t,note\na,1.5,\"two\nlines \"\"\"\n,,\n",
        "access path time\n10.0.0.1 - eve [10/Oct/2000:13:55:36 -0700] \"GET /a?b HTTP/1.0\" 200 23 \"-\" \"curl\"\n",
        "any host\n::1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 304 -\n",
    ]);
    // `{"a":1}` in gzip, stored as it is.
    let packed: &[u8] =
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01\x08\0\xf7\xff{\"a\":1}\n\x46\xa3\xe8\x74\x08\0\0\0";
    seeds.push([b"any a\n", packed].concat());
    seeds
}

fn filters() -> Vec<Vec<u8>> {
    texts(&[
        "{\"a\": [\"x\", 1, true, null], \"b\": [{\"numeric\": [\">=\", -1.5, \"<\", 10]}]}\n{\"a\": \"x\", \"b\": 2}",
        "{\"a\": {\"b\": [{\"prefix\": \"x\"}, {\"suffix\": \"y\"}, {\"equals-ignore-case\": \"Z\"}]}}\n\
         {\"a\": [{\"b\": \"xy\"}]}",
        "{\"$or\": [{\"a\": [{\"wildcard\": \"a*b\\\\*c\"}]}, {\"b\": [{\"exists\": false}]}]}\n{\"a\": \"ab*c\"}",
        "{\"a\": [{\"cidr\": \"10.0.0.0/8\"}, {\"anything-but\": {\"prefix\": [\"x\", \"y\"]}}]}\n[\"10.1.2.3\"]",
        "{\"c\": [{\"anything-but\": [\"x\", 1]}]}\n[1, \"x\", {}]",
    ])
}

fn curator_payloads() -> Vec<Vec<u8>> {
    vec![
        b"\0\x01\0\x01\x01\0\0\0\x07order-3\x02".to_vec(),
        b"\0\x01\0\x01\x01\0\0\0\x01x\x01\0\0\0\0\x01\0\0\0\x02yz\x02".to_vec(),
        b"\0\x01\0\x01\x02behind".to_vec(),
    ]
}

fn curator_names() -> Vec<Vec<u8>> {
    texts(&[
        "queue-0000000001\nqueue-|1A1FADE1F51|0000000000\nqueue-|000000FF|0000000004\nfoo",
        "queue-a2|1A1FADE1F51|0000000007\nqueue-|X|a|FF|x\nqueue-|1a1fade1f51|\nqueue-|-1|7",
        "queue-0FFFFFFFF0000000001\nqueue-1000000050000000003\nqueue-0000000003",
        "queue-|my_id_7|0000000000\nqueue-|z|0000000001\nqueue-|z|-2147483648",
    ])
}

fn crons() -> Vec<Vec<u8>> {
    texts(&[
        "0 9 * * mon-fri\nEurope/Berlin\n1795766400000",
        "*/15 0,30 2-3 L * 5#2\nAmerica/New_York\n1793512800000",
        "0 12 15W */3 *\nPacific/Apia\n1325100000000",
        "0 0 0 29 2 +0 2000-2400\nUTC\n0",
        "@weekly\nAustralia/Lord_Howe\n1775300000000",
    ])
}

/// A record about exchanges, which no golden folder has.
fn exchanges() -> Vec<u8> {
    let filter = Filter::new(FilterScope::Body, r#"{"a": ["x"]}"#).ok();
    let exchange = ExchangeId(1);
    let created = |id, name, kind, unroutable| {
        Some(Effect::ExchangeCreated {
            exchange: ExchangeId(id),
            name: ExchangeName::new(name).ok()?,
            kind,
            unroutable,
            at: WallTime(1),
        })
    };
    let bound = |exchange: u32, to, pattern, options| Effect::Bound {
        exchange: ExchangeId(exchange),
        number: 1,
        binding: Arc::new(Binding {
            to,
            pattern,
            options,
        }),
    };
    let pair = HeaderPair {
        name: "a".into(),
        value: Some("x".into()),
    };
    let wanted = HeadersMatch::all(vec![pair]).ok().map(Arc::new);
    let options = BindingOptions {
        filter,
        ..BindingOptions::default()
    };
    let topic = TopicPattern::new("a.*.#").ok();
    let effects = [
        created(1, "a", ExchangeKind::Topic, Unroutable::Drop),
        created(
            2,
            "b",
            ExchangeKind::Headers,
            Unroutable::Alternate(exchange),
        ),
        topic.map(|topic| {
            let to = BindTo::Queue(QueueId(1));
            let options = BindingOptions {
                envelope: Some("t".into()),
                overflow: QueueName::new("o").ok(),
                ..options.clone()
            };
            bound(1, to, Pattern::Topic(topic), options)
        }),
        wanted.map(|wanted| {
            let to = BindTo::Exchange(exchange);
            bound(2, to, Pattern::Headers(wanted), options)
        }),
        Some(Effect::ExchangeNoted {
            exchange,
            notes: Arc::new(ExchangeNotes {
                annotations: [("a".to_owned(), "x".to_owned())].into(),
                tags: [("b".to_owned(), "y".to_owned())].into(),
            }),
        }),
        Some(Effect::Unbound {
            exchange,
            number: 1,
        }),
        Some(Effect::ExchangeDeleted { exchange }),
    ];
    let effects: Vec<_> = effects.into_iter().flatten().collect();
    let mut record = Vec::new();
    encode_record(&effects, &mut record);
    record
}

fn records() -> Vec<Vec<u8>> {
    let with_lengths = |records: Vec<Vec<u8>>| {
        let mut input = Vec::new();
        for record in records {
            let len = u16::try_from(record.len()).unwrap_or(u16::MAX);
            input.extend_from_slice(&len.to_le_bytes());
            input.extend_from_slice(&record[..len.into()]);
        }
        input
    };
    let mut all = golden::records();
    all.push(vec![exchanges()]);
    all.into_iter().map(with_lengths).collect()
}

fn segments() -> Vec<Vec<u8>> {
    let alone = |segment: Vec<u8>| {
        let mut input = u16::try_from(segment.len())
            .unwrap_or(u16::MAX)
            .to_le_bytes()
            .to_vec();
        input.extend_from_slice(&segment);
        input
    };
    golden::segments().into_iter().map(alone).collect()
}

fn rows() -> Vec<Vec<u8>> {
    let input = |records: Vec<Vec<u8>>| {
        let mut bodies = Vec::new();
        let mut at = 1u64;
        for (number, record) in (1u64..).zip(&records) {
            let mut row = Vec::new();
            for number in [at, number, 1] {
                row.extend_from_slice(&number.to_le_bytes());
            }
            row.extend_from_slice(&[0; 4]);
            let len = u16::try_from(record.len()).unwrap_or(u16::MAX);
            row.extend_from_slice(&len.to_le_bytes());
            row.extend_from_slice(&record[..len.into()]);
            if let Some(sum) = lockgate_postgres::fuzzing::checksum_of(&row) {
                row[24..28].copy_from_slice(&sum);
            }
            at += row.len() as u64;
            bodies.extend_from_slice(&row);
        }
        let mut input = Vec::new();
        // Claim, epoch, tail, next number, trim, durable point, snapshot's number, beginning.
        for number in [1, 1, at, 1 + records.len() as u64, 0, at, 1, 0] {
            input.extend_from_slice(&number.to_le_bytes());
        }
        input.extend_from_slice(&bodies);
        input
    };
    golden::records().into_iter().take(3).map(input).collect()
}
