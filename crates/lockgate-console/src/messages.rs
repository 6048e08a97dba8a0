//! Messages of a queue by peek, and its dead letters.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::{Map, Value, json};

use crate::{
    Answer, Api, Fields, Reply, body,
    page::{View, done},
    queue::tabs,
    value::{encode, grouped, list as values, number, query, text},
};

/// Messages of a page, each with its body in memory.
const SHOWN: usize = 10;
/// Pages that are read to find a text.
const PAGES_SEARCHED: usize = 20;
/// Pages of a hundred dead letters that are read to group them.
const PAGES_GROUPED: usize = 10;

const STATES: [&str; 4] = ["ready", "in_flight", "backoff", "delayed"];

pub(crate) async fn list(view: &View, api: &impl Api, name: &str, fields: &Fields) -> Answer {
    let wanted = fields.get("text");
    let mut page = fields.get("page").to_owned();
    let (mut found, mut looked_at) = (Vec::new(), 0);
    for _ in 0..PAGES_SEARCHED {
        let asked = query(&[
            ("limit", &SHOWN.to_string()),
            ("key", fields.get("key")),
            ("group", fields.get("group")),
            ("state", fields.get("state")),
            ("page", &page),
        ]);
        let reply = api
            .call(
                "GET",
                &format!("/queues/{}/messages{asked}", encode(name)),
                None,
            )
            .await;
        if reply.status != 200 {
            return view.refused(&reply);
        }
        let messages = values(&reply.body, "/messages");
        looked_at += messages.len();
        let has = |message: &&Value| wanted.is_empty() || contains(message, wanted);
        found.extend(messages.iter().filter(has).cloned());
        text(&reply.body, "/next_page").clone_into(&mut page);
        if wanted.is_empty() || page.is_empty() || found.len() >= SHOWN {
            break;
        }
    }
    let here = format!("{}/queues/{name}/messages", view.home);
    let given = |field: &'static str| (field, fields.get(field));
    let next = query(&[
        given("key"),
        given("group"),
        given("state"),
        given("text"),
        ("page", &page),
    ]);
    let body = html! {
        (tabs(view, name))
        form role="search" action=(here) {
            label { "Key" input name="key" value=(fields.get("key")); }
            label { "Group" input name="group" value=(fields.get("group")); }
            label { "State" select name="state" {
                option value="" { "any" }
                @for state in STATES { option selected[state == fields.get("state")] { (state) } }
            } }
            label { "Text in body or header" input name="text" value=(wanted); }
            button { "Filter" }
        }
        @if !wanted.is_empty() { p { "Messages looked at: " (grouped(looked_at as u64)) ", with the text: " (found.len()) "." } }
        (articles(&found))
        @if !page.is_empty() { p { a href={ (here) (next) } { "Go on" } } }
    };
    view.page(&format!("Messages of {name}"), &body)
}

fn contains(message: &Value, wanted: &str) -> bool {
    let in_headers = message["headers"].as_object().into_iter().flatten();
    let mut in_headers = in_headers
        .filter(|(name, header)| name.contains(wanted) || text(header, "/value").contains(wanted));
    text(message, "/body").contains(wanted) || in_headers.next().is_some()
}

/// Messages one below the other.
pub(crate) fn articles(messages: &[Value]) -> Markup {
    if messages.is_empty() {
        return html! { p { "No message to show." } };
    }
    html! { @for message in messages { article {
        @let shown = |place| text(message, place);
        p {
            b { (shown("/id")) } " · " span.state { (shown("/state")) }
            " · " (grouped(number(message, "/bytes"))) " bytes · attempts: " (number(message, "/attempts"))
            " · sent " (shown("/sent_at"))
            @for (label, place) in [("key", "/key"), ("group", "/group"), ("unique id", "/unique_id"),
                ("held by", "/holder"), ("due", "/due_at"), ("from", "/origin/queue"), ("because", "/origin/reason")] {
                @if !shown(place).is_empty() { " · " (label) " " b { (shown(place)) } }
            }
        }
        @if message["damaged"] == true { p.problem { "The log has lost what is in this message." } }
        @for failure in values(message, "/failures") {
            p { "Attempt " (number(failure, "/attempt")) " at " (text(failure, "/at")) ": " (body::cut(text(failure, "/error"))) }
        }
        @for (name, header) in message["headers"].as_object().into_iter().flatten() {
            p { "Header " b { (name) } ": " (body::cut(text(header, "/value"))) }
        }
        @if let Some(given) = message["body"].as_str() { (body::show(given, shown("/body_encoding") == "base64")) }
    } } }
}

pub(crate) async fn send(view: &View, api: &impl Api, name: &str, form: &Fields) -> Answer {
    // Browsers send the line breaks of a form as CR and LF.
    let body = form.get("body").replace("\r\n", "\n");
    let mut message = Map::from_iter([("body".to_owned(), Value::from(body))]);
    for field in ["key", "group", "unique_id"] {
        if !form.get(field).is_empty() {
            message.insert(field.to_owned(), form.get(field).into());
        }
    }
    let path = format!("/queues/{}/messages", encode(name));
    let mut reply = api
        .call("POST", &path, Some(json!({ "messages": [message] })))
        .await;
    if let Some(problem) = reply
        .body
        .pointer_mut("/results/0/problem")
        .map(Value::take)
    {
        let status = problem["status"]
            .as_u64()
            .and_then(|status| u16::try_from(status).ok());
        reply = Reply {
            status: status.unwrap_or(400),
            body: problem,
        };
    }
    view.changed(
        format!("POST {path}"),
        &reply,
        &format!("/queues/{name}"),
        "sent",
        0,
    )
}

/// Dead letters by where they came from and why, so far as they were looked at.
struct Groups {
    counts: BTreeMap<(String, String, String), u64>,
    looked_at: u64,
    is_cut: bool,
}

async fn groups(api: &impl Api, name: &str, source: &str) -> Result<Groups, Reply> {
    let (mut page, mut counts, mut looked_at) = (String::new(), BTreeMap::new(), 0);
    for _ in 0..PAGES_GROUPED {
        let asked = query(&[
            ("limit", "100"),
            ("bodies", "false"),
            ("source", source),
            ("page", &page),
        ]);
        let reply = api
            .call(
                "GET",
                &format!("/queues/{}/dead-letters{asked}", encode(name)),
                None,
            )
            .await;
        if reply.status != 200 {
            return Err(reply);
        }
        for message in values(&reply.body, "/messages") {
            let failure = values(message, "/failures").last();
            let error = failure.map_or("", |failure| text(failure, "/error"));
            let of = |place| text(message, place).to_owned();
            let group = (of("/origin/queue"), of("/origin/reason"), body::cut(error));
            *counts.entry(group).or_default() += 1;
            looked_at += 1;
        }
        text(&reply.body, "/next_page").clone_into(&mut page);
        if page.is_empty() {
            break;
        }
    }
    let is_cut = !page.is_empty();
    Ok(Groups {
        counts,
        looked_at,
        is_cut,
    })
}

pub(crate) async fn dead_letters(
    view: &View,
    api: &impl Api,
    name: &str,
    fields: &Fields,
) -> Answer {
    let source = fields.get("source");
    let groups = match groups(api, name, source).await {
        Ok(groups) => groups,
        Err(reply) => return view.refused(&reply),
    };
    let here = format!("{}/queues/{name}/dead-letters", view.home);
    let body = html! {
        (done(fields))
        (tabs(view, name))
        p {
            "Dead letters" @if !source.is_empty() { " of " b { (source) } } ": " (grouped(groups.looked_at))
            @if groups.is_cut { " and more: only these were looked at" } "."
        }
        @if !groups.counts.is_empty() {
            div.table tabindex="0" role="region" aria-label="Reasons" { table {
                thead { tr {
                    th scope="col" { "From" } th scope="col" { "Why" } th scope="col" { "Last error" }
                    th.number scope="col" { "Messages" }
                } }
                tbody { @for ((queue, reason, error), count) in &groups.counts { tr {
                    td.name { a href={ (here) (query(&[("source", queue)])) } { (queue) } }
                    td { (reason) } td.name { (error) } td.number { (grouped(*count)) }
                } } }
            } }
            h2 { "Move them back" }
            form method="post" action={ (view.home) "/queues/" (name) "/redrive" } {
                (view.hidden())
                input type="hidden" name="source" value=(source);
                label { "To (empty: where each came from)" input name="to"; }
                button {
                    "Move " @if groups.is_cut { "up to 10,000" } @else { (grouped(groups.looked_at)) } " messages"
                    @if !source.is_empty() { " of " (source) }
                }
            }
        }
    };
    view.page(&format!("Dead letters in {name}"), &body)
}

pub(crate) async fn redrive(view: &View, api: &impl Api, name: &str, form: &Fields) -> Answer {
    let path = format!("/queues/{}/dead-letters/redrive", encode(name));
    let mut asked = Map::from_iter([("max".to_owned(), Value::from(10_000))]);
    for field in ["source", "to"] {
        if !form.get(field).is_empty() {
            asked.insert(field.to_owned(), form.get(field).into());
        }
    }
    let reply = api.call("POST", &path, Some(asked.into())).await;
    let moved = number(&reply.body, "/moved");
    let stuck = text(&reply.body, "/stuck/reason");
    let problem = text(&reply.body, "/problem/detail");
    let what = format!("POST {path}");
    if reply.status < 400 && !(stuck.is_empty() && problem.is_empty()) {
        let why = if problem.is_empty() { stuck } else { problem };
        let said = format!(
            "Messages that were moved: {}. It ended at message {}: {why}",
            grouped(moved),
            text(&reply.body, "/stuck/id")
        );
        let mut answer = view.problem(409, &said);
        answer.change = view.changed(what, &reply, "", "", 0).change;
        return answer;
    }
    view.changed(
        what,
        &reply,
        &format!("/queues/{name}/dead-letters"),
        "redriven",
        moved,
    )
}
