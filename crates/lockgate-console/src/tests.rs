use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use serde_json::json;

use super::*;

/// An API that answers at once.
struct Answers(fn(&str, &str) -> (u16, Value), Mutex<Vec<String>>);

impl Api for Answers {
    async fn call(&self, method: &'static str, path: &str, _body: Option<Value>) -> Reply {
        self.1.lock().unwrap().push(format!("{method} {path}"));
        let (status, body) = self.0(method, path);
        Reply { status, body }
    }

    async fn figures(&self) -> Option<Figures> {
        self.1.lock().unwrap().push("figures".to_owned());
        let (_, answer) = self.0("figures", "");
        let queues = answer["queues"].as_array()?.iter();
        let figures = |queue: &Value| QueueFigures {
            limited_keys: crate::value::number(queue, "/counts/limited_keys"),
            dead_letter: queue["dead_letter"].as_str().map(ToOwned::to_owned),
            dead_letter_missing: queue["dead_letter_missing"] == true,
            ..QueueFigures::of(queue)
        };
        Some(Figures {
            queues: queues.map(figures).collect(),
            is_cut: answer["is_cut"] == true,
        })
    }

    fn history(&self, _span: Span) -> Option<(Vec<Point>, Vec<Point>)> {
        Some((vec![[1.0; 6]], vec![[2.0; 6]]))
    }

    fn history_of(&self, queue: &str, _span: Span) -> Option<Vec<Point>> {
        (queue == "busy").then(|| vec![[1.0; 6]])
    }

    fn inside(&self) -> Option<Inside> {
        None
    }
}

fn ask(
    console: &Console<()>,
    path: &str,
    form: Option<&str>,
    answers: fn(&str, &str) -> (u16, Value),
) -> (Answer, Vec<String>) {
    let api = Answers(answers, Mutex::default());
    let (path, query) = path
        .split_once('?')
        .map_or((path, None), |(path, query)| (path, Some(query)));
    let form = form.map(str::as_bytes);
    let request = Request {
        path,
        query,
        form,
        session: None,
        who: None,
    };
    let answer =
        match pin!(console.answer(request, &api)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => unreachable!("the API answers at once"),
        };
    (answer, api.1.into_inner().unwrap())
}

fn console() -> Console<()> {
    Console::new("", [1; 32]).unwrap()
}

fn token(console: &Console<()>) -> String {
    console.view(None, None).token
}

fn nothing(_: &str, _: &str) -> (u16, Value) {
    (200, json!({}))
}

#[test]
fn a_base_path_is_one_or_is_refused() {
    for base in ["", "/a", "/a/b-c"] {
        let console: Console<()> = Console::new(base, [1; 32]).unwrap();
        assert_eq!(console.path(&format!("{base}/console")), Some(""));
        assert_eq!(console.path("/console/queues"), Some("/queues"));
        assert_eq!(console.path("/consoles"), None);
        assert_eq!(console.home(), format!("{base}/console"));
    }
    for base in ["a", "/", "/a/", "//a", "/a b", "/../a", "/a?b"] {
        assert!(Console::<()>::new(base, [1; 32]).is_none(), "{base}");
    }
}

#[test]
fn sessions_are_bounded_and_the_oldest_one_ends() {
    let console: Console<usize> = Console::new("", [1; 32]).unwrap();
    let id = |at: usize| {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&at.to_le_bytes());
        id
    };
    let mut sessions: Vec<String> = Vec::new();
    for at in 0..=SESSIONS_MAX {
        sessions.push(console.log_in(id(at), at, Duration::from_millis(at as u64)));
    }
    let now = Duration::from_secs(60);
    assert!(console.session(Some(&sessions[0]), now).is_none());
    let cookie = format!("a=b; {COOKIE}={}", sessions[1]);
    assert_eq!(
        console.session(Some(&cookie), now).map(|(_, who)| who),
        Some(1)
    );
    console.log_out(&sessions[1]);
    assert!(console.session(Some(&cookie), now).is_none());
    assert!(console.session(Some(&sessions[2]), AGE_MAX + now).is_none());
}

#[test]
fn nothing_is_done_without_the_token_of_the_session() {
    let console = console();
    let other: Console<()> = Console::new("", [2; 32]).unwrap();
    for form in [
        String::new(),
        "token=".into(),
        "token=ab".into(),
        format!("token={}", token(&other)),
    ] {
        for path in [
            "/queues",
            "/queues/a/pause",
            "/queues/a/delete",
            "/queues/a/send",
            "/queues/a/key/drop",
        ] {
            let (answer, calls) = ask(&console, path, Some(&form), nothing);
            assert_eq!(
                (answer.status, calls.len(), answer.change),
                (403, 0, None),
                "{path} {form}"
            );
        }
    }
    let form = format!("token={}", token(&console));
    let (answer, calls) = ask(&console, "/queues/a/pause", Some(&form), nothing);
    assert_eq!(
        (answer.status, calls),
        (303, vec!["POST /queues/a/pause".to_owned()])
    );
    let what = "POST /queues/a/pause".to_owned();
    assert_eq!(answer.change, Some(Change { what, status: 200 }));
}

#[test]
fn a_queue_is_emptied_or_deleted_only_if_its_name_was_typed() {
    let console = console();
    for (typed, calls_expected) in [("", 0), ("b", 0), ("a", 1)] {
        for action in ["purge", "delete"] {
            let form = format!("token={}&confirm={typed}", token(&console));
            let (_, calls) = ask(
                &console,
                &format!("/queues/a/{action}"),
                Some(&form),
                nothing,
            );
            assert_eq!(calls.len(), calls_expected, "{typed:?} {action}");
        }
    }
}

#[test]
fn what_the_api_refuses_is_said_and_escaped() {
    let refuse: fn(&str, &str) -> (u16, Value) =
        |_, _| (404, json!({ "detail": "no queue \"<b>\"" }));
    let (answer, _) = ask(&console(), "/queues/a", None, refuse);
    assert_eq!(answer.status, 404);
    assert!(
        answer.body.contains("no queue &quot;&lt;b&gt;&quot;"),
        "{}",
        answer.body
    );
}

#[test]
fn ten_thousand_queues_are_sorted_and_paged_by_the_server() {
    let page: fn(&str, &str) -> (u16, Value) = |method, path| {
        let query = path.split_once('?').map_or("", |(_, query)| query);
        let fields = Fields::read(query.as_bytes());
        let (from, limit) = match method {
            "figures" => (0, 10_000),
            _ => (fields.number("page"), fields.number("limit")),
        };
        let queue = |at: u64| json!({ "name": format!("q{at:05}"), "counts": { "ready": at } });
        let queues: Vec<Value> = (from..from + limit).map(queue).collect();
        let next = from + limit;
        (
            200,
            json!({ "queues": queues, "next_page": (next < 10_000).then(|| next.to_string()) }),
        )
    };
    let (answer, calls) = ask(&console(), "/queues", None, page);
    assert_eq!(calls.len(), 1);
    assert!(answer.body.contains(">q00099<") && !answer.body.contains(">q00100<"));
    let (answer, calls) = ask(&console(), "/queues?sort=ready&page=100", None, page);
    assert_eq!(calls, ["figures"]);
    assert!(answer.body.contains(">q09899<") && !answer.body.contains(">q09900<"));
    assert!(!answer.body.contains("There are more queues"));
    let (answer, _) = ask(&console(), "/queues?filter=q0123", None, page);
    assert_eq!(answer.body.matches("<tr>").count(), 11);
}

#[test]
fn pages_that_are_not_there_call_nothing() {
    for path in [
        "/x",
        "/queues/a/b/c",
        "/queues/%2e%2e",
        "/queues/a%2Fb",
        "/queues//keys/x",
    ] {
        let (answer, calls) = ask(&console(), path, None, nothing);
        assert_eq!((answer.status, calls.len()), (404, 0), "{path}");
    }
}

#[test]
fn a_page_has_no_script_but_its_own_and_no_address_of_another_server() {
    let (answer, _) = ask(&console(), "/queues/a", None, |_, _| {
        (
            200,
            json!({ "name": "a", "settings": { "x": "<script>" }, "counts": {} }),
        )
    });
    let script = "<script src=\"/console/assets/console.js\" defer></script>";
    assert_eq!(answer.body.matches(script).count(), 1, "{}", answer.body);
    let body = answer.body.replace(script, "");
    for never in [
        "<script", "http://", "https://", "style=", "onclick", "data:",
    ] {
        assert!(!body.contains(never), "{never}: {body}");
    }
}

#[test]
fn the_overview_links_to_each_thing_that_needs_attention() {
    let answers: fn(&str, &str) -> (u16, Value) = |method, path| match (method, path) {
        ("figures", _) => {
            let mut queues = vec![
                json!({ "name": "parked", "counts": { "parked_keys": 3 } }),
                json!({ "name": "source", "dead_letter": "dead" }),
                json!({ "name": "dead", "counts": { "ready": 1, "delayed": 1000 } }),
                json!({ "name": "alone", "dead_letter_missing": true }),
                json!({ "name": "slow", "limited": { "limit": "rate" } }),
                json!({ "name": "keys", "counts": { "limited_keys": 5, "ready": 8 } }),
            ];
            let paused = |at| json!({ "name": format!("p{at}"), "paused": true });
            queues.extend((0..25).map(paused));
            (200, json!({ "queues": queues, "is_cut": true }))
        }
        (_, "/server") => (
            200,
            json!({ "status": "serving", "space": { "state": "low" } }),
        ),
        (_, path) => {
            assert!(path.starts_with("/schedules"), "{path}");
            let stuck = json!({ "name": "a b&c", "problem": "no <queue>" });
            (200, json!({ "schedules": [stuck, { "name": "well" }] }))
        }
    };
    let (answer, _) = ask(&console(), "", None, answers);
    for expected in [
        "<a href=\"/console/queues/parked/keys?parked=1\">parked</a>: 3<",
        "<a href=\"/console/queues/dead/dead-letters\">dead</a>: 1,001<",
        "<a href=\"/console/queues/alone\">alone</a><",
        "<a href=\"/console/queues/slow\">slow</a>: limited by rate<",
        "<a href=\"/console/queues/keys/keys\">keys</a>: 5<",
        "<a href=\"/console/schedule?name=a+b%26c\">a b&amp;c</a>: no &lt;queue&gt;<",
        "<a href=\"/console/server\">Disk low</a>",
        "Paused queues: 25",
        "Only the first 20 are shown.",
        "There is more",
        "<dt>Ready</dt><dd>9</dd>",
    ] {
        assert!(
            answer.body.contains(expected),
            "{expected}: {}",
            answer.body
        );
    }
    for never in [">well<", ">p20<", "queues/source", "needs attention."] {
        assert!(!answer.body.contains(never), "{never}: {}", answer.body);
    }
}

#[test]
fn busy_queues_have_plots_and_the_others_say_why_not() {
    let queue: fn(&str, &str) -> (u16, Value) = |_, _| (200, json!({ "name": "busy" }));
    let (busy, _) = ask(&console(), "/queues/busy?span=2d", None, queue);
    assert_eq!(busy.body.matches("<svg").count(), 3);
    assert!(
        busy.body
            .contains("?span=2d\" aria-current=\"true\">2 days"),
        "{}",
        busy.body
    );
    let (quiet, _) = ask(&console(), "/queues/quiet", None, queue);
    assert!(!quiet.body.contains("<svg") && quiet.body.contains("not among the 50 busiest"));
}

#[test]
fn a_schedule_is_deleted_only_if_its_name_was_typed() {
    let console = console();
    for (typed, expected) in [("", None), ("a+b", Some("DELETE /schedules/a%20b"))] {
        let form = format!("token={}&name=a+b&confirm={typed}", token(&console));
        let (_, calls) = ask(&console, "/schedule/delete", Some(&form), nothing);
        assert_eq!(calls.first().map(String::as_str), expected, "{typed:?}");
    }
    for action in ["pause", "resume", "run"] {
        let form = format!("token={}&name=a%2F..%2Fb", token(&console));
        let (answer, calls) = ask(
            &console,
            &format!("/schedule/{action}"),
            Some(&form),
            nothing,
        );
        assert_eq!(calls, [format!("POST /schedules/a%2F%2E%2E%2Fb/{action}")]);
        let back = answer.location.unwrap();
        assert!(
            back.starts_with("/console/schedule?name=a%2F..%2Fb&done="),
            "{back}"
        );
    }
}
