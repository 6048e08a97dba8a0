//! The list of queues.

use std::cmp::Reverse;

use maud::{Markup, html};
use serde_json::{Value, json};

use crate::{
    Answer, Api, Fields, Figures, QUEUES_MAX, QueueFigures, Reply,
    page::{View, done},
    value::{encode, flag, grouped, query, text},
};

/// Rows of a page.
const ROWS: usize = 100;

/// What queues can be sorted by: its word, its label, and the figure.
type Column = (&'static str, &'static str, fn(&QueueFigures) -> u64);

const COLUMNS: [Column; 6] = [
    ("ready", "Ready", |queue| queue.ready),
    ("in-flight", "In flight", |queue| queue.in_flight),
    ("delayed", "Delayed", |queue| queue.delayed),
    ("keys", "Keys", |queue| queue.keys),
    ("parked", "Parked keys", |queue| queue.parked_keys),
    ("bytes", "Bytes", |queue| queue.bytes),
];

/// The queues of a page.
struct Rows {
    queues: Vec<QueueFigures>,
    /// The `page` of the next page.
    next: Option<String>,
    /// There are more queues than are looked at to sort them.
    is_cut: bool,
}

pub(crate) async fn list(view: &View, api: &impl Api, fields: &Fields) -> Answer {
    let rows = match rows(api, fields).await {
        Ok(rows) => rows,
        Err(reply) => return view.refused(&reply),
    };
    let (filter, sort) = (fields.get("filter"), fields.get("sort"));
    let here = format!("{}/queues", view.home);
    let body = html! {
        (done(fields))
        form role="search" action=(here) {
            label { "Name contains" input type="search" name="filter" value=(filter); }
            input type="hidden" name="sort" value=(sort);
            button { "Filter" }
        }
        @if rows.is_cut {
            p { "There are more queues: only the first " (grouped(QUEUES_MAX as u64)) " by name are looked at here." }
        }
        @if rows.queues.is_empty() { p { "No queue to show." } } @else {
            div id="live" data-live { (table(view, fields, &rows.queues)) }
        }
        @if let Some(next) = &rows.next {
            p { a href={ (here) (query(&[("filter", filter), ("sort", sort), ("page", next)])) } { "Next page" } }
        }
        h2 { "Create a queue" }
        form method="post" action=(here) {
            (view.hidden())
            label { "Name (keyed if it ends in .fifo)" input name="name" required; }
            button { "Create" }
        }
    };
    view.page("Queues", &body)
}

fn table(view: &View, fields: &Fields, queues: &[QueueFigures]) -> Markup {
    let (filter, sort) = (fields.get("filter"), fields.get("sort"));
    let heading = |word: &str, label: &str, kind: &str, direction: &str| {
        let by = query(&[("filter", filter), ("sort", word)]);
        let is_sorted = word == sort;
        html! {
            th class=(kind) scope="col" aria-sort=[is_sorted.then_some(direction)] {
                a href={ (view.home) "/queues" (by) } { (label) }
            }
        }
    };
    html! {
        div.table tabindex="0" role="region" aria-label="Queues" { table {
            thead { tr {
                (heading("", "Name", "name", "ascending"))
                th scope="col" { "State" }
                @for (word, label, _) in COLUMNS { (heading(word, label, "number", "descending")) }
                (heading("oldest", "Oldest message", "time", "ascending"))
            } }
            tbody { @for queue in queues { tr {
                td.name { a href={ (view.home) "/queues/" (queue.name) } { (queue.name) } }
                td.state { (queue.state) }
                @for (_, _, figure) in COLUMNS { td.number { (grouped(figure(queue))) } }
                td { (queue.oldest.as_deref().unwrap_or("")) }
            } } }
        } }
    }
}

/// Why a queue as a whole gives no leases.
pub(crate) fn state(queue: &Value) -> String {
    if flag(queue, "/paused") {
        "paused".to_owned()
    } else if !text(queue, "/held_until").is_empty() {
        format!("held until {}", text(queue, "/held_until"))
    } else if !text(queue, "/limited/limit").is_empty() {
        format!("limited by {}", text(queue, "/limited/limit"))
    } else {
        "open".to_owned()
    }
}

/// Reads a page: of queues in order of their names, only that page is read.
async fn rows(api: &impl Api, fields: &Fields) -> Result<Rows, Reply> {
    let (filter, sort, page) = (fields.get("filter"), fields.get("sort"), fields.get("page"));
    if filter.is_empty() && sort.is_empty() {
        let (queues, next) = read(api, ROWS, page).await?;
        return Ok(Rows {
            queues: queues.iter().map(QueueFigures::of).collect(),
            next,
            is_cut: false,
        });
    }
    let Some(Figures { queues, is_cut }) = api.figures().await else {
        return Err(Reply {
            status: 503,
            body: json!({ "detail": "The server is stopping." }),
        });
    };
    let mut found: Vec<QueueFigures> = queues;
    found.retain(|queue| queue.name.contains(filter));
    if let Some((_, _, figure)) = COLUMNS.iter().find(|(word, ..)| *word == sort) {
        found.sort_by_key(|queue| Reverse(figure(queue)));
    } else if sort == "oldest" {
        found.sort_by_key(|queue| queue.oldest_ms.unwrap_or(u64::MAX));
    }
    let from: usize = page.parse().unwrap_or(0);
    let more = found.len() > from.saturating_add(ROWS);
    Ok(Rows {
        queues: found.into_iter().skip(from).take(ROWS).collect(),
        next: more.then(|| (from + ROWS).to_string()),
        is_cut,
    })
}

async fn read(
    api: &impl Api,
    limit: usize,
    page: &str,
) -> Result<(Vec<Value>, Option<String>), Reply> {
    let asked = query(&[("limit", &limit.to_string()), ("page", page)]);
    let mut reply = api.call("GET", &format!("/queues{asked}"), None).await;
    if reply.status != 200 {
        return Err(reply);
    }
    let next = reply.body["next_page"].as_str().map(ToOwned::to_owned);
    let queues = match reply.body["queues"].take() {
        Value::Array(queues) => queues,
        _ => Vec::new(),
    };
    Ok((queues, next))
}

pub(crate) async fn create(view: &View, api: &impl Api, form: &Fields) -> Answer {
    let name = form.get("name").trim();
    let reply = api
        .call("POST", "/queues", Some(json!({ "name": name })))
        .await;
    let what = format!("POST /queues {}", encode(name));
    view.changed(what, &reply, "/queues", "created", 0)
}
