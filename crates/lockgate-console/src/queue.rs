//! One queue: its figures and settings, and what can be done with it.

use maud::{Markup, html};
use serde_json::{Value, json};

use crate::{
    Answer, Api, Fields,
    page::{View, done},
    plot,
    queues::state,
    value::{encode, flag, grouped, number, text},
};

const FIGURES: [(&str, &str); 8] = [
    ("Ready", "/counts/ready"),
    ("In flight", "/counts/in_flight"),
    ("Delayed", "/counts/delayed"),
    ("Bytes", "/counts/bytes"),
    ("Keys", "/counts/keys"),
    ("Parked keys", "/counts/parked_keys"),
    ("Limited keys", "/counts/limited_keys"),
    ("Unique ids in memory", "/counts/unique_ids"),
];

pub(crate) async fn show(view: &View, api: &impl Api, name: &str, fields: &Fields) -> Answer {
    let reply = api
        .call("GET", &format!("/queues/{}", encode(name)), None)
        .await;
    if reply.status != 200 {
        return view.refused(&reply);
    }
    let queue = &reply.body;
    let here = format!("/queues/{name}");
    let span = plot::span(fields);
    let points = api.history_of(name, span);
    let (pause, label) = match flag(queue, "/paused") {
        true => ("resume", "Resume"),
        false => ("pause", "Pause"),
    };
    let body = html! {
        (done(fields))
        (tabs(view, name))
        div id="live" data-live {
            p.state { "State: " (state(queue)) }
            @if flag(queue, "/dead_letter_missing") {
                p.problem { "Its dead-letter queue is not there: messages that fail for good stay." }
            }
            dl {
                @for (label, place) in FIGURES { div { dt { (label) } dd { (grouped(number(queue, place))) } } }
                @let oldest = text(queue, "/counts/oldest_at");
                @if !oldest.is_empty() { div { dt { "Oldest message" } dd { (oldest) } } }
            }
            (plot::section(&format!("{}{here}", view.home), span, points.as_deref(), &[]))
        }
        h2 { "What to do" }
        (view.button(&format!("{here}/{pause}"), label))
        (confirmed(view, name, "purge", "Drop all messages"))
        (confirmed(view, name, "delete", "Delete the queue with all it holds"))
        (send_form(view, name, flag(queue, "/keyed")))
        (pairs("Totals since it was created", &queue["totals"]))
        (pairs("Settings", &queue["settings"]))
        (pairs("Tags", &queue["tags"]))
    };
    view.page(name, &body)
}

/// The pages of a queue.
pub(crate) fn tabs(view: &View, name: &str) -> Markup {
    let here = format!("{}/queues/{name}", view.home);
    html! {
        nav aria-label="Queue" {
            a href=(here) { "Figures and settings" }
            a href={ (here) "/keys" } { "Keys" }
            a href={ (here) "/messages" } { "Messages" }
            a href={ (here) "/dead-letters" } { "Dead letters" }
        }
    }
}

/// A button that wants the name of the queue to be typed.
fn confirmed(view: &View, name: &str, action: &str, label: &str) -> Markup {
    html! {
        details {
            summary { (label) "…" }
            form method="post" action={ (view.home) "/queues/" (name) "/" (action) } {
                (view.hidden())
                label { "Type the name of the queue: " (name) input name="confirm" required autocomplete="off"; }
                button { (label) }
            }
        }
    }
}

fn send_form(view: &View, name: &str, keyed: bool) -> Markup {
    let (field, label) = if keyed {
        ("key", "Key")
    } else {
        ("group", "Group (may be empty)")
    };
    html! {
        h2 { "Send a message" }
        form method="post" action={ (view.home) "/queues/" (name) "/send" } {
            (view.hidden())
            label { (label) input name=(field) required[keyed]; }
            label { "Unique id (may be empty)" input name="unique_id"; }
            label { "Body" textarea name="body" required {} }
            button { "Send" }
        }
    }
}

pub(crate) fn pairs(title: &str, values: &Value) -> Markup {
    let Some(values) = values.as_object().filter(|values| !values.is_empty()) else {
        return html! {};
    };
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    html! {
        details { summary { h2.inline { (title) } } div.table tabindex="0" role="region" aria-label=(title) { table {
            tbody { @for (name, value) in values { tr { th scope="row" { (name) } td.name { (shown(value)) } } } }
        } } }
    }
}

pub(crate) async fn act(
    view: &View,
    api: &impl Api,
    name: &str,
    action: &str,
    form: &Fields,
) -> Answer {
    let here = format!("/queues/{name}");
    let path = format!("/queues/{}", encode(name));
    let is_confirmed = form.get("confirm").trim() == name;
    let (method, path, body, back, done) = match action {
        "pause" | "resume" => {
            let done = if action == "pause" {
                "paused"
            } else {
                "resumed"
            };
            (
                "POST",
                format!("{path}/{action}"),
                Some(json!({})),
                here.as_str(),
                done,
            )
        }
        "purge" | "delete" if !is_confirmed => {
            return view.problem(
                400,
                "Nothing was done: the name that was typed is not that of the queue.",
            );
        }
        "purge" => (
            "POST",
            format!("{path}/purge"),
            Some(json!({})),
            here.as_str(),
            "purged",
        ),
        "delete" => ("DELETE", path, None, "/queues", "deleted"),
        _ => return view.nothing(),
    };
    let reply = api.call(method, &path, body).await;
    let count = number(&reply.body, "/messages");
    view.changed(format!("{method} {path}"), &reply, back, done, count)
}
