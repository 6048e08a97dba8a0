//! Keys of a queue, and what each waits for.

use maud::{Markup, html};
use serde_json::{Value, json};

use crate::{
    Answer, Api, Fields,
    messages::articles,
    page::{View, done},
    queue::tabs,
    value::{encode, flag, grouped, list as values, number, query, text},
};

pub(crate) async fn list(view: &View, api: &impl Api, name: &str, fields: &Fields) -> Answer {
    let parked = fields.get("parked");
    let asked = query(&[
        ("limit", "100"),
        ("parked", if parked.is_empty() { "" } else { "true" }),
        ("page", fields.get("page")),
    ]);
    let reply = api
        .call(
            "GET",
            &format!("/queues/{}/keys{asked}", encode(name)),
            None,
        )
        .await;
    if reply.status != 200 {
        return view.refused(&reply);
    }
    let here = format!("{}/queues/{name}/keys", view.home);
    let keys = values(&reply.body, "/keys");
    let next = text(&reply.body, "/next_page");
    let body = html! {
        (tabs(view, name))
        p { a href=(here) { "All keys" } " · " a href={ (here) "?parked=1" } { "Parked keys" } }
        form action={ (view.home) "/queues/" (name) "/key" } {
            label { "Find a key or group" input name="key" required; }
            button { "Show" }
        }
        @if keys.is_empty() { p { "No key to show." } } @else {
            div.table tabindex="0" role="region" aria-label="Keys" { table {
                thead { tr {
                    th scope="col" { "Key" } th.number scope="col" { "Messages" } th scope="col" { "Waits for" }
                    th scope="col" { "By" } th scope="col" { "Until" }
                } }
                tbody { @for key in keys { (row(view, name, key)) } }
            } }
        }
        @if !next.is_empty() {
            p { a href={ (here) (query(&[("parked", parked), ("page", next)])) } { "Next page" } }
        }
    };
    view.page(&format!("Keys of {name}"), &body)
}

fn row(view: &View, name: &str, key: &Value) -> Markup {
    let text_of = |place| text(key, place);
    html! { tr {
        td.name { @if let Some(key) = key["key"].as_str() {
            a href={ (view.home) "/queues/" (name) "/key" (query(&[("key", key)])) } { (key) }
        } @else { em { "without a key" } } }
        td.number { (grouped(number(key, "/messages"))) }
        td.state { (text_of("/waits_for")) @if !text_of("/limit").is_empty() { ": " (text_of("/limit")) } }
        td.name { (text_of("/holder")) }
        td { (text_of("/until")) }
    } }
}

pub(crate) async fn show(view: &View, api: &impl Api, name: &str, fields: &Fields) -> Answer {
    let key = fields.get("key");
    let queue = format!("/queues/{}", encode(name));
    let reply = api.call("GET", &queue, None).await;
    if reply.status != 200 {
        return view.refused(&reply);
    }
    let field = if flag(&reply.body, "/keyed") {
        "key"
    } else {
        "group"
    };
    let explained = api
        .call("GET", &format!("{queue}/keys/{}", encode(key)), None)
        .await;
    if explained.status != 200 {
        return view.refused(&explained);
    }
    // Who may not receive may see why a key waits, and not its messages.
    let asked = query(&[("limit", "20"), (field, key), ("page", fields.get("page"))]);
    let line = api
        .call("GET", &format!("{queue}/messages{asked}"), None)
        .await;
    let is_parked = text(&explained.body, "/waits_for") == "parked";
    let next = text(&line.body, "/next_page");
    let here = format!("{}/queues/{name}/key", view.home);
    let button = |action: &str, label: &str| {
        html! { form.inline method="post" action={ (here) "/" (action) } {
            (view.hidden()) input type="hidden" name="key" value=(key); button { (label) }
        } }
    };
    let body = html! {
        (done(fields))
        (tabs(view, name))
        p.state { (text(&explained.body, "/explanation")) }
        @if field == "key" {
            @if is_parked { (button("resume", "Resume")) } @else { (button("park", "Park")) }
            details {
                summary { "Drop all messages of the key…" }
                form method="post" action={ (here) "/drop" } {
                    (view.hidden()) input type="hidden" name="key" value=(key);
                    label { "Type the key: " (key) input name="confirm" required autocomplete="off"; }
                    button { "Drop all messages of the key" }
                }
            }
        }
        h2 { "Its messages" }
        @if line.status == 200 { (articles(values(&line.body, "/messages"))) } @else {
            p.problem { (text(&line.body, "/detail")) }
        }
        @if !next.is_empty() { p { a href={ (here) (query(&[("key", key), ("page", next)])) } { "Next page" } } }
    };
    view.page(&format!("{key} in {name}"), &body)
}

pub(crate) async fn act(
    view: &View,
    api: &impl Api,
    name: &str,
    action: &str,
    form: &Fields,
) -> Answer {
    let key = form.get("key");
    let done = match action {
        "park" => "key-parked",
        "resume" => "key-resumed",
        "drop" if form.get("confirm") == key => "key-dropped",
        "drop" => {
            return view.problem(
                400,
                "Nothing was done: the key that was typed is another one.",
            );
        }
        _ => return view.nothing(),
    };
    let path = format!("/queues/{}/keys/{}/{action}", encode(name), encode(key));
    let reply = api.call("POST", &path, Some(json!({}))).await;
    let back = format!("/queues/{name}/key{}", query(&[("key", key)]));
    let count = number(&reply.body, "/messages");
    view.changed(format!("POST {path}"), &reply, &back, done, count)
}
