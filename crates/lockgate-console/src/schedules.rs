//! Schedules: when they fire, what becomes of it, and what can be done with them.

use maud::{Markup, html};
use serde_json::{Value, json};

use crate::{
    Answer, Api, Fields, body,
    page::{View, done},
    queue::pairs,
    value::{encode, flag, grouped, list as values, number, query, text},
};

pub(crate) async fn list(view: &View, api: &impl Api, fields: &Fields) -> Answer {
    let prefix = fields.get("prefix");
    let asked = query(&[
        ("limit", "100"),
        ("prefix", prefix),
        ("page", fields.get("page")),
    ]);
    let reply = api.call("GET", &format!("/schedules{asked}"), None).await;
    if reply.status != 200 {
        return view.refused(&reply);
    }
    let here = format!("{}/schedules", view.home);
    let schedules = values(&reply.body, "/schedules");
    let next = text(&reply.body, "/next_page");
    let body = html! {
        (done(fields))
        form role="search" action=(here) {
            label { "Name begins with" input type="search" name="prefix" value=(prefix); }
            button { "Filter" }
        }
        @if schedules.is_empty() { p { "No schedule to show." } } @else {
            div.table tabindex="0" role="region" aria-label="Schedules" { table {
                thead { tr {
                    th scope="col" { "Name" } th scope="col" { "Fires" } th scope="col" { "To" }
                    th scope="col" { "State" } th scope="col" { "Next time" }
                    th.number scope="col" { "Fired" } th.number scope="col" { "Missed" }
                } }
                tbody { @for schedule in schedules { tr {
                    @let name = text(schedule, "/name");
                    td.name { a href={ (view.home) "/schedule" (query(&[("name", name)])) } { (name) } }
                    td.name { (timing(schedule)) }
                    td.name { (destination(view, schedule)) }
                    td.state { (state(schedule)) }
                    td { (text(schedule, "/next_at")) }
                    td.number { (grouped(number(schedule, "/counts/fired"))) }
                    td.number { (grouped(number(schedule, "/counts/missed"))) }
                } } }
            } }
        }
        @if !next.is_empty() {
            p { a href={ (here) (query(&[("prefix", prefix), ("page", next)])) } { "Next page" } }
        }
    };
    view.page("Schedules", &body)
}

fn timing(schedule: &Value) -> String {
    let (at, cron) = (text(schedule, "/at"), text(schedule, "/cron"));
    if !at.is_empty() {
        format!("once, at {at}")
    } else if !cron.is_empty() {
        format!("{cron} ({})", text(schedule, "/zone"))
    } else {
        format!("every {} ms", grouped(number(schedule, "/every_ms")))
    }
}

fn destination(view: &View, schedule: &Value) -> Markup {
    let (queue, exchange) = (text(schedule, "/to/queue"), text(schedule, "/to/exchange"));
    html! {
        @if queue.is_empty() { "exchange " (exchange) " " (text(schedule, "/routing_key")) }
        @else { a href={ (view.home) "/queues/" (queue) } { (queue) } }
    }
}

fn state(schedule: &Value) -> String {
    let (problem, waits_for) = (text(schedule, "/problem"), text(schedule, "/waits_for"));
    if flag(schedule, "/paused") {
        "paused".to_owned()
    } else if !problem.is_empty() {
        format!("due, but does not fire: {problem}")
    } else if !waits_for.is_empty() {
        format!("waits for the message {waits_for}")
    } else if text(schedule, "/next_at").is_empty() {
        "done".to_owned()
    } else {
        "open".to_owned()
    }
}

pub(crate) async fn show(view: &View, api: &impl Api, fields: &Fields) -> Answer {
    let name = fields.get("name");
    if name.is_empty() {
        return view.nothing();
    }
    let reply = api
        .call("GET", &format!("/schedules/{}", encode(name)), None)
        .await;
    if reply.status != 200 {
        return view.refused(&reply);
    }
    let schedule = &reply.body;
    let (pause, label) = match flag(schedule, "/paused") {
        true => ("resume", "Resume"),
        false => ("pause", "Pause"),
    };
    let rows = [
        ("Next time", "/next_at"),
        ("Stands in for", "/planned_at"),
        ("Missed times", "/catch_up"),
        ("While the last message is there", "/overlap"),
        ("Made", "/created_at"),
        ("Changed", "/changed_at"),
        ("Last firing", "/last/at"),
        ("It was for", "/last/scheduled_at"),
        ("Last message", "/last/message_id"),
    ];
    let body = html! {
        (done(fields))
        p.state { "State: " (state(schedule)) }
        dl {
            div { dt { "Fires" } dd { (timing(schedule)) } }
            div { dt { "To" } dd { (destination(view, schedule)) } }
            @for (label, place) in rows {
                @let shown = text(schedule, place);
                @if !shown.is_empty() { div { dt { (label) } dd { (shown) } } }
            }
        }
        @let next = values(schedule, "/next_times");
        @if !next.is_empty() {
            h2 { "Next times" }
            ul { @for time in next { li { (time.as_str().unwrap_or("")) } } }
        }
        h2 { "What to do" }
        (button(view, name, pause, label))
        (button(view, name, "run", "Fire now, beside its times"))
        details {
            summary { "Delete the schedule…" }
            form method="post" action={ (view.home) "/schedule/delete" } {
                (view.hidden())
                input type="hidden" name="name" value=(name);
                label { "Type the name of the schedule: " (name) input name="confirm" required autocomplete="off"; }
                button { "Delete" }
            }
        }
        h2 { "Its message" }
        (body::show(text(schedule, "/message/body"), text(schedule, "/message/body_encoding") == "base64"))
        (pairs("Counts", &schedule["counts"]))
    };
    view.page(name, &body)
}

fn button(view: &View, name: &str, action: &str, label: &str) -> Markup {
    html! {
        form.inline method="post" action={ (view.home) "/schedule/" (action) } {
            (view.hidden())
            input type="hidden" name="name" value=(name);
            button { (label) }
        }
    }
}

pub(crate) async fn act(view: &View, api: &impl Api, action: &str, form: &Fields) -> Answer {
    let name = form.get("name");
    if name.is_empty() {
        return view.nothing();
    }
    let path = format!("/schedules/{}", encode(name));
    let here = format!("/schedule{}", query(&[("name", name)]));
    let done = match action {
        "pause" => "schedule-paused",
        "resume" => "schedule-resumed",
        "run" => "schedule-run",
        "delete" if form.get("confirm").trim() == name.trim() => {
            let reply = api.call("DELETE", &path, None).await;
            let what = format!("DELETE {path}");
            return view.changed(what, &reply, "/schedules", "schedule-deleted", 0);
        }
        "delete" => {
            let what = "Nothing was done: the name that was typed is not that of the schedule.";
            return view.problem(400, what);
        }
        _ => return view.nothing(),
    };
    let path = format!("{path}/{action}");
    let reply = api.call("POST", &path, Some(json!({}))).await;
    view.changed(format!("POST {path}"), &reply, &here, done, 0)
}
