//! The metrics page: its format, its names, and that its figures add up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockgate_core::{
    Disk, DiskOperation, Epoch, ExchangeName, LedgerName, Message, QueueName, ReaderName,
    RoutingKey,
    ledger::{Append, Ledger as _, LedgerOptions, NewEvent, ReaderPosition, SequenceId},
};
use lockgate_log::LocalLogOptions;
use lockgate_machine::{
    Bind, BindTo, BindingOptions, CreateExchange, CreateLedger, ExchangeKind, Pattern, Publish,
    Unroutable,
};
use lockgate_sim::FaultyDisk;
use serde_json::json;

use crate::support::{TestServer, in_time, start_engine_over};

/// Parses the Prometheus text format, strictly: types and samples by name.
struct Page {
    types: BTreeMap<String, String>,
    /// By name and labels, as written.
    samples: BTreeMap<String, f64>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self {
            types: BTreeMap::new(),
            samples: BTreeMap::new(),
        };
        let mut help = None;
        let mut family = None;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, words) = rest.split_once(' ').unwrap();
                assert!(words.ends_with('.'), "{line}");
                help = Some(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(help.take().as_deref(), Some(name), "{line}");
                assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                let before = page.types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "{line}");
                family = Some(name.to_owned());
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let name = series.split('{').next().unwrap();
                let family = family.as_deref().unwrap();
                let is_histogram = page.types[family] == "histogram";
                let of_histogram = ["_bucket", "_sum", "_count"];
                let suffix = name.strip_prefix(family).unwrap();
                assert_eq!(is_histogram, of_histogram.contains(&suffix), "{line}");
                assert!(is_histogram || suffix.is_empty(), "{line}");
                let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
                let before = page.samples.insert(series.to_owned(), value);
                assert_eq!(before, None, "{line}");
            }
        }
        page
    }
}

async fn page(server: &TestServer) -> Page {
    let answer = server.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    Page::parse(&answer.body)
}

#[tokio::test]
async fn every_metric_is_documented_and_every_documented_metric_exists() {
    let server = TestServer::start().await;
    let page = page(&server).await;
    let documented: BTreeSet<String> = include_str!("../../../../docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|rest| rest.split('`').next().unwrap())
        .filter(|name| name.starts_with("lockgate_") || name.starts_with("process_"))
        // Those are of others, whose tests compare them.
        .filter(|name| {
            let others = ["producer_", "pipeline_", "sequencer_"];
            !others
                .iter()
                .any(|other| name[name.find('_').unwrap() + 1..].starts_with(other))
        })
        .map(str::to_owned)
        .collect();
    let served: BTreeSet<String> = page.types.into_keys().collect();
    assert_eq!(served, documented);
}

#[tokio::test]
async fn requests_and_refusals_are_counted() {
    let server = TestServer::start().await;
    server.get("/healthz").await;
    server.get("/favicon.ico").await;
    server
        .ask("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        .await;
    let page = page(&server).await;
    for (series, value) in [
        (
            "lockgate_http_requests_total{action=\"healthz\",status=\"200\"}",
            1.0,
        ),
        (
            "lockgate_http_requests_total{action=\"other\",status=\"404\"}",
            1.0,
        ),
        (
            "lockgate_http_requests_total{action=\"other\",status=\"403\"}",
            1.0,
        ),
        ("lockgate_http_refused_total{reason=\"host\"}", 1.0),
        ("lockgate_http_refused_total{reason=\"path\"}", 1.0),
        ("lockgate_http_refused_total{reason=\"origin\"}", 0.0),
        ("lockgate_http_connections_total", 4.0),
        ("lockgate_ready", 1.0),
        ("lockgate_queues", 0.0),
    ] {
        assert_eq!(page.samples.get(series), Some(&value), "{series}");
    }
}

#[tokio::test]
async fn times_are_in_histograms() {
    let server = TestServer::start().await;
    server
        .sqs("CreateQueue", &json!({"QueueName": "jobs"}))
        .await;
    let url = server.queue_url("jobs");
    let sent = json!({"QueueUrl": url, "MessageBody": "x"});
    for _ in 0..3 {
        server.sqs("SendMessage", &sent).await;
    }
    let receive = json!({"QueueUrl": url, "MaxNumberOfMessages": 2});
    let received = server.sqs("ReceiveMessage", &receive).await;
    let receipt = &received["Messages"][0]["ReceiptHandle"];
    let delete = json!({"QueueUrl": url, "ReceiptHandle": receipt});
    server.sqs("DeleteMessage", &delete).await;
    let page = page(&server).await;
    for (series, count) in [
        (
            "lockgate_http_request_seconds_count{action=\"SendMessage\"}",
            3.0,
        ),
        (
            "lockgate_http_request_seconds_bucket{action=\"SendMessage\",le=\"+Inf\"}",
            3.0,
        ),
        ("lockgate_delivery_age_seconds_count", 2.0),
        ("lockgate_lease_seconds_count", 1.0),
    ] {
        assert_eq!(page.samples.get(series), Some(&count), "{series}");
    }
    for name in ["append", "sync"] {
        let series = format!("lockgate_engine_{name}_seconds_count");
        assert!(page.samples[&series] >= 1.0, "{series}");
    }
    let syncs = page.samples["lockgate_engine_sync_seconds_count"];
    assert_eq!(page.samples["lockgate_engine_syncs_total"], syncs);
}

/// Each limit has its own series, also where it is no time that it holds until.
#[tokio::test]
async fn the_page_says_which_limit_holds_a_queue() {
    let server = TestServer::start().await;
    for (queue, setting, value) in [
        ("conc", "limit_concurrency", "1"),
        ("gap", "limit_gap", "1h"),
        ("rate", "limit_rate", "1/h"),
        ("keys", "limit_rate", "1/h per key"),
    ] {
        let tag = format!("lockgate:{}", setting.replace('_', "-"));
        let create = json!({"QueueName": queue, "tags": {tag: value}});
        server.sqs("CreateQueue", &create).await;
        let url = format!("http://localhost/000000000000/{queue}");
        for _ in 0..2 {
            let send = json!({"QueueUrl": url, "MessageBody": "x"});
            server.sqs("SendMessage", &send).await;
        }
        server
            .sqs("ReceiveMessage", &json!({"QueueUrl": url}))
            .await;
    }
    let page = page(&server).await;
    let series = |queue: &str, limit: &str| {
        let labels = format!("{{queue=\"{queue}\",limit=\"{limit}\"}}");
        let limited = page.samples[&format!("lockgate_queue_limited{labels}")];
        let seconds = format!("lockgate_queue_limited_seconds{labels}");
        (limited, page.samples.get(&seconds).copied())
    };
    for limit in ["held", "concurrency", "gap", "rate", "owing_keys"] {
        for (queue, holds) in [("conc", "concurrency"), ("gap", "gap"), ("rate", "rate")] {
            let (limited, seconds) = series(queue, limit);
            assert_eq!(limited == 1.0, limit == holds, "{queue} {limit}");
            let has_end = limit == holds && limit != "concurrency";
            assert_eq!(
                seconds.is_some_and(|left| left > 0.0),
                has_end,
                "{queue} {limit}"
            );
        }
        assert_eq!(series("keys", limit), (0.0, None));
    }
    let keys = |queue: &str| {
        let name = format!("lockgate_queue_limited_keys{{queue=\"{queue}\"}}");
        page.samples[&name]
    };
    assert_eq!((keys("keys"), keys("rate")), (1.0, 0.0));
    let owing = "lockgate_queue_owing_keys{queue=\"keys\"}";
    assert_eq!(page.samples[owing], 1.0);
}

/// As many exchanges are shown as may be, and the others are counted.
#[tokio::test]
async fn the_page_shows_exchanges_up_to_its_limit() {
    let server = TestServer::start_with(|options| options.limits.metrics_queues_max = 1).await;
    server.sqs("CreateQueue", &json!({"QueueName": "q"})).await;
    let exchange = |name| ExchangeName::new(name).unwrap();
    for (name, unroutable) in [("a", Unroutable::Drop), ("b", Unroutable::Reject)] {
        let create = CreateExchange {
            notes: Default::default(),
            name: exchange(name),
            kind: ExchangeKind::Direct,
            unroutable,
        };
        server.engine.submit(create).await.unwrap();
    }
    let key = |key| RoutingKey::new(key).unwrap();
    let bind = Bind {
        keep: false,
        exchange: exchange("a"),
        to: BindTo::Queue(QueueName::new("q").unwrap()),
        pattern: Pattern::RoutingKey(key("k")),
        options: BindingOptions::default(),
    };
    server.engine.submit(bind).await.unwrap();
    for routing_key in ["k", "k", "other"] {
        let publish = Publish {
            subject: None,
            exchange: exchange("a"),
            routing_key: key(routing_key),
            message: Message::new("x"),
        };
        server.engine.submit(publish).await.unwrap();
    }
    let page = page(&server).await;
    for (series, value) in [
        ("lockgate_exchanges", 2.0),
        ("lockgate_exchanges_missing", 0.0),
        ("lockgate_exchanges_omitted", 1.0),
        ("lockgate_exchange_bindings{exchange=\"a\"}", 1.0),
        ("lockgate_exchange_published_total{exchange=\"a\"}", 3.0),
        ("lockgate_exchange_copies_total{exchange=\"a\"}", 2.0),
        ("lockgate_exchange_unroutable_total{exchange=\"a\"}", 1.0),
        ("lockgate_exchange_dropped_total{exchange=\"a\"}", 1.0),
        ("lockgate_exchange_skipped_total{exchange=\"a\"}", 0.0),
        ("lockgate_exchange_refused_total{exchange=\"a\"}", 0.0),
    ] {
        assert_eq!(page.samples.get(series), Some(&value), "{series}");
    }
    assert!(
        !page
            .samples
            .keys()
            .any(|series| series.contains("exchange=\"b\""))
    );
}

/// As many ledgers and readers are shown as may be, and the others are counted.
#[tokio::test]
async fn the_page_shows_ledgers_up_to_its_limit() {
    let server = TestServer::start_with(|options| options.limits.metrics_queues_max = 2).await;
    for name in ["a", "b", "c"] {
        let name = LedgerName::new(name).unwrap();
        let options = LedgerOptions::default();
        let create = CreateLedger {
            name: name.clone(),
            options,
        };
        server.engine.submit(create).await.unwrap();
        let ledger = server.engine.ledger(name);
        let append = Append {
            epoch: Epoch(7),
            head: None,
            events: vec![NewEvent::default(); 3],
            settled: Vec::new(),
        };
        ledger.append(append).await.unwrap();
        for reader in ["r \"1\"", "r 2"] {
            let position = ReaderPosition {
                reader: ReaderName::new(reader).unwrap(),
                sequence_id: SequenceId(1),
            };
            ledger.move_reader(position, None).await.unwrap();
        }
    }
    let page = page(&server).await;
    for (series, value) in [
        ("lockgate_ledgers", 3.0),
        ("lockgate_ledgers_missing", 0.0),
        ("lockgate_ledgers_omitted", 1.0),
        ("lockgate_ledger_head{ledger=\"b\"}", 3.0),
        ("lockgate_ledger_first{ledger=\"b\"}", 1.0),
        ("lockgate_ledger_epoch{ledger=\"a\"}", 7.0),
        (
            "lockgate_ledger_reader_lag_events{ledger=\"a\",reader=\"r \\\"1\\\"\"}",
            2.0,
        ),
        ("lockgate_ledger_readers_omitted", 2.0),
    ] {
        assert_eq!(page.samples.get(series), Some(&value), "{series}");
    }
    assert!(
        !page
            .samples
            .contains_key("lockgate_ledger_head{ledger=\"c\"}")
    );
}

/// Storage that hangs is when somebody looks at the page.
#[tokio::test]
async fn the_page_answers_while_storage_hangs() {
    for (operation, missing) in [(DiskOperation::Sync, 0.0), (DiskOperation::Write, 1.0)] {
        let disk = FaultyDisk::new();
        let over: Arc<dyn Disk> = Arc::new(disk.clone());
        let start = || start_engine_over(over, LocalLogOptions::default());
        let engine = tokio::task::spawn_blocking(start).await.unwrap();
        let server = TestServer::start_over(engine, |_| ()).await;
        let create = json!({ "QueueName": "q" });
        server.sqs("CreateQueue", &create).await;
        let stall = Arc::new(disk.stall(operation, 0));
        let mut sending = server.connect().await;
        let send = json!({ "QueueUrl": server.queue_url("q"), "MessageBody": "x" });
        sending
            .send(TestServer::sqs_request("SendMessage", &send))
            .await;
        let is_stalled = stall.clone();
        tokio::task::spawn_blocking(move || is_stalled.wait())
            .await
            .unwrap();

        // On a busy machine the engine may take longer than the page waits, and another thread's write may be the
        // first that hangs.
        let page = in_time(async {
            loop {
                let page = page(&server).await;
                if page.samples["lockgate_queues_missing"] == missing {
                    break page;
                }
            }
        });
        let page = page.await;
        assert_eq!(page.samples["lockgate_queues"], 1.0);
        let accepted = "lockgate_queue_accepted_total{queue=\"q\"}";
        let shown = page.samples.get(accepted).copied();
        assert_eq!(shown, (missing == 0.0).then_some(1.0), "{operation:?}");
        drop(stall);
        assert_eq!(sending.answer().await.status, 200);
        server.stop().await;
    }
}

#[tokio::test]
async fn what_a_queue_accepted_is_accounted_for() {
    let server = TestServer::start_with(|options| options.limits.metrics_queues_max = 1).await;
    for name in ["orders", "other"] {
        server
            .sqs("CreateQueue", &json!({ "QueueName": name }))
            .await;
    }
    let url = server.queue_url("orders");
    for body in ["a", "bb", "ccc"] {
        let send = json!({ "QueueUrl": url, "MessageBody": body });
        server.sqs("SendMessage", &send).await;
    }
    let delayed = json!({ "QueueUrl": url, "MessageBody": "later", "DelaySeconds": 900 });
    server.sqs("SendMessage", &delayed).await;
    let receive = json!({ "QueueUrl": url });
    let first = server.sqs("ReceiveMessage", &receive).await;
    server.sqs("ReceiveMessage", &receive).await;
    let receipt = &first["Messages"][0]["ReceiptHandle"];
    let delete = json!({ "QueueUrl": url, "ReceiptHandle": receipt });
    server.sqs("DeleteMessage", &delete).await;

    let page = page(&server).await;
    let of_queue = |name: &str| {
        let series = format!("lockgate_queue_{name}{{queue=\"orders\"}}");
        page.samples[&series]
    };
    for (name, value) in [
        ("ready_messages", 1.0),
        ("in_flight_messages", 1.0),
        ("delayed_messages", 1.0),
        ("accepted_total", 4.0),
        ("acknowledged_total", 1.0),
        ("leased_total", 2.0),
        ("leases_ended_total", 0.0),
        ("duplicates_total", 0.0),
    ] {
        assert_eq!(of_queue(name), value, "{name}");
    }
    assert!(of_queue("bytes") >= 8.0);
    let dropped: f64 = page
        .samples
        .iter()
        .filter(|(series, _)| series.starts_with("lockgate_queue_dropped_total{queue=\"orders\""))
        .map(|(_, value)| value)
        .sum();
    let pending: f64 = ["ready_messages", "in_flight_messages", "delayed_messages"]
        .map(of_queue)
        .iter()
        .sum();
    assert_eq!(
        of_queue("accepted_total") + of_queue("moved_in_total"),
        of_queue("acknowledged_total") + of_queue("moved_out_total") + dropped + pending
    );
    assert_eq!(page.samples["lockgate_queues"], 2.0);
    assert_eq!(page.samples["lockgate_queues_omitted"], 1.0);
    assert!(page.samples["lockgate_engine_records_total"] > 0.0);
}
