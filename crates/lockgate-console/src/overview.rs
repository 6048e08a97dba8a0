//! The first page: what needs attention, and the sums.

use std::collections::HashSet;

use maud::{Markup, html};
use serde_json::Value;

use crate::{
    Answer, Api, Fields, Figures, QUEUES_MAX, QueueFigures,
    page::{View, done},
    plot,
    value::{grouped, list, number, query, text},
};

/// Queues or schedules that are named of each kind of trouble.
const NAMED_MAX: usize = 20;

/// A kind of trouble, and what has it.
struct Trouble {
    what: &'static str,
    /// Where to look, its name, and a figure.
    places: Vec<(String, String, String)>,
}

pub(crate) async fn show(view: &View, api: &impl Api, fields: &Fields) -> Answer {
    let server = api.call("GET", "/server", None).await;
    if server.status != 200 {
        return view.refused(&server);
    }
    let Some(Figures { queues, is_cut }) = api.figures().await else {
        return view.problem(503, "The server is stopping.");
    };
    // Those that the caller may not read are not listed, so this fails only if the server stops.
    let schedules = api.call("GET", "/schedules?limit=1000", None).await.body;
    let troubles = troubles(view, &server.body, &queues, &schedules);
    let span = plot::span(fields);
    let is_cut = is_cut || !text(&schedules, "/next_page").is_empty();
    let body = html! {
        (done(fields))
        div id="live" data-live {
            h2 { "Needs attention" }
            @if troubles.is_empty() { p.done { "Nothing needs attention." } }
            @for trouble in &troubles { (shown(trouble)) }
            @if is_cut {
                p { "There is more: only the first " (grouped(QUEUES_MAX as u64)) " queues and 1,000 schedules by name, "
                    "or as many as one answer takes, are looked at here." }
            }
            h2 { "Now" }
            (sums(&server.body, &queues))
            @if let Some((points, server)) = api.history(span) {
                (plot::section(&view.home, span, Some(&points), &server))
            }
        }
    };
    view.page("Overview", &body)
}

fn troubles(
    view: &View,
    server: &Value,
    queues: &[QueueFigures],
    schedules: &Value,
) -> Vec<Trouble> {
    let home = &view.home;
    let of_queues = |what, under: &str, figure: &dyn Fn(&QueueFigures) -> Option<String>| {
        let place = |queue: &QueueFigures| {
            let link = format!("{home}/queues/{}{under}", queue.name);
            Some((link, queue.name.clone(), figure(queue)?))
        };
        let places = queues.iter().filter_map(place).collect();
        Trouble { what, places }
    };
    let some = |count: u64| (count > 0).then(|| grouped(count));
    let has = |it: bool| it.then(String::new);
    let dead: HashSet<&str> = queues
        .iter()
        .filter_map(|queue| queue.dead_letter.as_deref())
        .collect();
    let held = |queue: &QueueFigures| queue.ready + queue.in_flight + queue.delayed;
    let place = |name: &str, figure: &str| {
        vec![(format!("{home}/server"), name.to_owned(), figure.to_owned())]
    };
    let space = match text(server, "/space/state") {
        "full" => place("Disk full", "sends are refused until there is room"),
        "low" => place("Disk low", "sends are refused once it is full"),
        _ => Vec::new(),
    };
    let stopping = match text(server, "/status") {
        "serving" => Vec::new(),
        status => place("Server", status),
    };
    let stuck = list(schedules, "/schedules").iter();
    let stuck = stuck.filter_map(|schedule| {
        let problem = schedule["problem"].as_str()?.to_owned();
        let name = text(schedule, "/name");
        let link = format!("{home}/schedule{}", query(&[("name", name)]));
        Some((link, name.to_owned(), problem))
    });
    let all = [
        Trouble {
            what: "The server accepts no work",
            places: stopping,
        },
        Trouble {
            what: "Room on the disk",
            places: space,
        },
        of_queues("Parked keys", "/keys?parked=1", &|queue| {
            some(queue.parked_keys)
        }),
        of_queues("Dead letters", "/dead-letters", &|queue| {
            some(held(queue)).filter(|_| dead.contains(queue.name.as_str()))
        }),
        of_queues("Without their dead-letter queue", "", &|queue| {
            has(queue.dead_letter_missing)
        }),
        of_queues("Paused queues", "", &|queue| has(queue.state == "paused")),
        of_queues("Limits that hold a queue", "", &|queue| {
            let is_held = queue.state != "open" && queue.state != "paused";
            is_held.then(|| queue.state.clone().into_owned())
        }),
        of_queues("Keys that only a limit holds", "/keys", &|queue| {
            some(queue.limited_keys)
        }),
        Trouble {
            what: "Schedules that are due and do not fire",
            places: stuck.collect(),
        },
    ];
    let all = all.into_iter();
    all.filter(|trouble| !trouble.places.is_empty()).collect()
}

fn shown(trouble: &Trouble) -> Markup {
    let count = trouble.places.len();
    html! {
        section.trouble {
            h3 { (trouble.what) ": " (grouped(count as u64)) }
            ul { @for (link, name, figure) in trouble.places.iter().take(NAMED_MAX) {
                li { a href=(link) { (name) } @if !figure.is_empty() { ": " (figure) } }
            } }
            @if count > NAMED_MAX { p { "Only the first " (NAMED_MAX) " are shown." } }
        }
    }
}

fn sums(server: &Value, queues: &[QueueFigures]) -> Markup {
    let sum = |figure: fn(&QueueFigures) -> u64| queues.iter().map(figure).sum::<u64>();
    let figures = [
        ("Queues", queues.len() as u64),
        ("Ready", sum(|queue| queue.ready)),
        ("In flight", sum(|queue| queue.in_flight)),
        ("Delayed", sum(|queue| queue.delayed)),
        ("Bytes of messages", sum(|queue| queue.bytes)),
        ("Keys", sum(|queue| queue.keys)),
        ("Parked keys", sum(|queue| queue.parked_keys)),
        ("Limited keys", sum(|queue| queue.limited_keys)),
        ("Bytes on the disk", number(server, "/space/used_bytes")),
        ("Bytes free", number(server, "/space/free_bytes")),
    ];
    let dated = queues.iter().filter(|queue| queue.oldest_ms.is_some());
    let oldest = dated.min_by_key(|queue| queue.oldest_ms);
    html! {
        dl {
            @for (label, figure) in figures { div { dt { (label) } dd { (grouped(figure)) } } }
            @if let Some(QueueFigures { oldest: Some(at), name, .. }) = oldest {
                div { dt { "Oldest message" } dd { (at) " in " (name) } }
            }
        }
    }
}
