//! `/metrics`. The names are documented in `docs/metrics.md`; a test compares the two.

use std::sync::atomic::Ordering::Relaxed;

use hyper::StatusCode;
use lockgate_metrics::{CONTENT_TYPE, Page, process};

use super::{Core, Queues, health, response::Response};

/// The whole page. If the engine does not answer in time, the page lacks the engine's figures.
pub(crate) async fn page(core: &Core, of: &Queues) -> Response {
    let mut page = Page::default();
    build(&mut page);
    page.gauge(
        "lockgate_ready",
        "Whether queues are served: 1, else 0; /readyz has the reason.",
    )
    .value(health::ready(core, of).is_ok());
    page.counter(
        "lockgate_stderr_lines_dropped_total",
        "Lines of the server's log that were dropped because nobody read them in time.",
    )
    .value(core.lines_dropped.load(Relaxed));
    http(&mut page, core);
    #[expect(clippy::cast_precision_loss, reason = "exact for 285,000 years")]
    let started = of.started.0 as f64 / 1_000.0;
    page.gauge(
        "lockgate_start_time_seconds",
        "When the server started, as Unix time.",
    )
    .value(started);
    process(&mut page);
    let names_max = core.limits.metrics_queues_max;
    of.engine.write_metrics(&mut page, names_max).await;
    health::page(StatusCode::OK, CONTENT_TYPE, page.finish())
}

/// The page of a server without queues; `rest` are the figures of what answers in their place.
pub(crate) fn page_without_queues(core: &Core, rest: &str) -> Response {
    let mut page = Page::default();
    build(&mut page);
    http(&mut page, core);
    process(&mut page);
    health::page(StatusCode::OK, CONTENT_TYPE, page.finish() + rest)
}

fn build(page: &mut Page) {
    page.gauge(
        "lockgate_build_info",
        "Always 1; the labels say what is running.",
    )
    .sample(&[("version", env!("CARGO_PKG_VERSION"))], true);
}

fn http(page: &mut Page, core: &Core) {
    let counters = &core.counters;
    page.gauge("lockgate_http_connections", "Open connections.")
        .value(counters.connections_open());
    page.gauge(
        "lockgate_http_connections_max",
        "Connections that may be open.",
    )
    .value(core.limits.connections_max);
    page.counter(
        "lockgate_http_connections_total",
        "Connections accepted and served.",
    )
    .value(counters.connections());
    page.gauge(
        "lockgate_http_body_bytes",
        "Bytes of request bodies in memory, without the first 16 KiB of each.",
    )
    .value(core.bodies.used());
    page.gauge(
        "lockgate_http_answer_bytes",
        "Bytes of answers that their clients have not taken yet, of those above 16 KiB.",
    )
    .value(core.answers.used());
    let requests = page.counter(
        "lockgate_http_requests_total",
        "Requests answered, by SQS action or page, and HTTP status (0: any other).",
    );
    for (action, status, count) in counters.each_request() {
        let status = status.to_string();
        requests.sample(&[("action", action.label()), ("status", &status)], count);
    }
    let times = page.histogram(
        "lockgate_http_request_seconds",
        "How long requests took until their answers were there, by SQS action or page; those that wait for messages wait in these too.",
    );
    for (action, spans) in counters.each_time() {
        times.sample(&[("action", action.label())], &spans);
    }
    page.counter(
        "lockgate_http_requests_abandoned_total",
        "Requests whose client was gone before the answer was there.",
    )
    .value(counters.requests_abandoned());
    let refused = page.counter(
        "lockgate_http_refused_total",
        "Connections refused or cut and requests refused before they reached an action, by reason.",
    );
    for (reason, count) in counters.each_refused() {
        refused.sample(&[("reason", reason.label())], count);
    }
}
