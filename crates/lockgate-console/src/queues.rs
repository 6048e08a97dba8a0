//! The list of queues.

use std::cmp::Reverse;

use maud::{Markup, html};
use serde_json::{Value, json};

use crate::{
    Answer, Api, Fields, Reply,
    page::{View, done},
    value::{encode, flag, grouped, number, query, text},
};

/// Rows of a page.
const ROWS: usize = 100;
/// Queues that are read to sort them by their figures, or to filter them.
const READ_MAX: usize = 10_000;
const READ_AT_ONCE: usize = 1000;

/// What queues can be sorted by: its word, its label, and where the figure is.
const COLUMNS: [(&str, &str, &str); 6] = [
    ("ready", "Ready", "/counts/ready"),
    ("in-flight", "In flight", "/counts/in_flight"),
    ("delayed", "Delayed", "/counts/delayed"),
    ("keys", "Keys", "/counts/keys"),
    ("parked", "Parked keys", "/counts/parked_keys"),
    ("bytes", "Bytes", "/counts/bytes"),
];

/// The queues of a page.
struct Rows {
    queues: Vec<Value>,
    /// The `page` of the next page.
    next: Option<String>,
    /// There are more queues than are read to sort them.
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
            p { "There are more queues: only the first " (grouped(READ_MAX as u64)) " by name are looked at here." }
        }
        @if rows.queues.is_empty() { p { "No queue to show." } } @else { (table(view, fields, &rows.queues)) }
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

fn table(view: &View, fields: &Fields, queues: &[Value]) -> Markup {
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
                td.name { a href={ (view.home) "/queues/" (text(queue, "/name")) } { (text(queue, "/name")) } }
                td.state { (state(queue)) }
                @for (_, _, place) in COLUMNS { td.number { (grouped(number(queue, place))) } }
                td { (text(queue, "/counts/oldest_at")) }
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
        let is_cut = false;
        return Ok(Rows {
            queues,
            next,
            is_cut,
        });
    }
    let mut found = Vec::new();
    let mut next = Some(String::new());
    let mut read_so_far = 0;
    while let Some(page) = next.take_if(|_| read_so_far < READ_MAX) {
        let (queues, following) = read(api, READ_AT_ONCE, &page).await?;
        // Large tags make a page short, and it must not end the search before its time.
        read_so_far += queues.len().max(1);
        next = following;
        let queues = queues.into_iter();
        found.extend(
            queues
                .filter(|queue| text(queue, "/name").contains(filter))
                .map(figures),
        );
    }
    if let Some((_, _, place)) = COLUMNS.iter().find(|(word, ..)| *word == sort) {
        found.sort_by_key(|queue| Reverse(number(queue, place)));
    } else if sort == "oldest" {
        let oldest = |queue: &Value| text(queue, "/counts/oldest_at").to_owned();
        found.sort_by_cached_key(|queue| (oldest(queue).is_empty(), oldest(queue)));
    }
    let from: usize = page.parse().unwrap_or(0);
    let more = found.len() > from.saturating_add(ROWS);
    Ok(Rows {
        queues: found.into_iter().skip(from).take(ROWS).collect(),
        next: more.then(|| (from + ROWS).to_string()),
        is_cut: next.is_some(),
    })
}

/// What the list shows of a queue.
fn figures(mut queue: Value) -> Value {
    let mut part = |name: &str| queue.get_mut(name).map(Value::take).unwrap_or_default();
    json!({
        "name": part("name"), "paused": part("paused"), "held_until": part("held_until"),
        "limited": part("limited"), "counts": part("counts"),
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
