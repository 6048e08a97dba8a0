//! The console, as a browser sees it.

use lockgate_server::{AccessKey, Authentication, Grant, Names, Secret, Verb};
use serde_json::json;

use crate::support::{Answer, TestServer, in_time};

/// A browser that keeps its cookie.
struct Browser<'s> {
    server: &'s TestServer,
    cookie: String,
}

impl<'s> Browser<'s> {
    fn new(server: &'s TestServer) -> Self {
        let cookie = String::new();
        Self { server, cookie }
    }

    async fn get(&self, path: &str) -> Answer {
        let cookie = &self.cookie;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n");
        let answer = self.server.ask(request).await;
        check_headers(&answer);
        answer
    }

    async fn post(&self, path: &str, form: &str) -> Answer {
        let (cookie, length) = (&self.cookie, form.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nCookie: {cookie}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{form}"
        );
        let answer = self.server.ask(request).await;
        check_headers(&answer);
        answer
    }

    /// Posts a form with the token that is on the page `on`.
    async fn press(&self, on: &str, path: &str, form: &str) -> Answer {
        let token = token(&self.get(on).await);
        self.post(path, &format!("token={token}&{form}")).await
    }

    /// Logs in; the answer, and whether there is a session.
    async fn log_in(&mut self, key: &str, secret: &str) -> Answer {
        let form = format!("key={key}&secret={}", secret.replace(' ', "+"));
        let answer = self.post("/console/login", &form).await;
        if let Some(cookie) = answer.header("set-cookie") {
            for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/console;"] {
                assert!(cookie.contains(part), "{cookie}");
            }
            cookie
                .split(';')
                .next()
                .unwrap()
                .clone_into(&mut self.cookie);
        }
        answer
    }
}

#[track_caller]
fn check_headers(answer: &Answer) {
    let policy = answer.header("content-security-policy").unwrap_or_default();
    assert!(policy.starts_with("default-src 'none'"), "{answer:?}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let scripts = answer.body.matches("<script").count();
    let own = answer
        .body
        .matches("/console/assets/console.js\" defer></script>");
    assert_eq!(scripts, own.count(), "{}", answer.body);
    assert!(scripts <= 1, "{}", answer.body);
}

#[track_caller]
fn token(page: &Answer) -> String {
    let (_, rest) = page
        .body
        .split_once("name=\"token\" value=\"")
        .expect("a form");
    rest.split('"').next().unwrap().to_owned()
}

#[track_caller]
fn expect_location(answer: &Answer, location: &str) {
    assert_eq!(
        (answer.status, answer.header("location")),
        (303, Some(location)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn browsers_are_sent_to_the_console_and_programs_are_not() {
    let server = TestServer::start().await;
    let accepting = |target: &str, accept: &str, more: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n{more}\r\n")
    };
    let browser = server
        .ask(accepting("/", "text/html,application/xml;q=0.9", ""))
        .await;
    expect_location(&browser, "/console");
    for request in [
        accepting("/", "*/*", ""),
        accepting("/?Action=ListQueues", "text/html", ""),
        accepting("/", "text/html", "X-Amz-Target: AmazonSQS.ListQueues\r\n"),
    ] {
        assert_ne!(server.ask(request).await.status, 303);
    }
    let other_site = "Origin: http://evil.example\r\n";
    let answer = server
        .ask(accepting("/console/queues", "text/html", other_site))
        .await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn a_queue_is_made_filled_shown_paused_and_emptied_by_forms() {
    let server = TestServer::start().await;
    let browser = Browser::new(&server);
    let overview = browser.get("/console").await;
    assert!(
        overview.body.contains("Nothing needs attention."),
        "{overview:?}"
    );
    let made = browser
        .press("/console/queues", "/console/queues", "name=jobs.fifo")
        .await;
    assert_eq!(made.status, 303, "{made:?}");
    let here = "/console/queues/jobs.fifo";
    let hostile = "key=..%2F%3Cb%3E&body=%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27";
    let sent = browser.press(here, &format!("{here}/send"), hostile).await;
    assert_eq!(sent.status, 303, "{sent:?}");
    let peeked = browser.get(&format!("{here}/messages?text=alert")).await;
    assert!(
        peeked
            .body
            .contains("&lt;script&gt;alert(1)&lt;/script&gt;"),
        "{}",
        peeked.body
    );
    let keys = browser.get(&format!("{here}/keys")).await;
    assert!(keys.body.contains("/key?key=..%2F%3Cb%3E"), "{}", keys.body);
    let key = browser.get(&format!("{here}/key?key=..%2F%3Cb%3E")).await;
    assert!(
        key.body.contains("alert(1)") && !key.body.contains("/<b>"),
        "{}",
        key.body
    );
    let parked = browser
        .press(here, &format!("{here}/key/park"), "key=..%2F%3Cb%3E")
        .await;
    assert_eq!(parked.status, 303, "{parked:?}");
    assert!(
        browser
            .get(&format!("{here}/keys?parked=1"))
            .await
            .body
            .contains("parked")
    );

    browser.press(here, &format!("{here}/pause"), "").await;
    let overview = browser.get("/console").await.body;
    for trouble in [
        "Parked keys: 1",
        "/jobs.fifo/keys?parked=1\">jobs.fifo</a>: 1",
        "Paused queues: 1",
    ] {
        assert!(overview.contains(trouble), "{trouble}: {overview}");
    }
    assert!(browser.get(here).await.body.contains("State: paused"));
    browser.press(here, &format!("{here}/resume"), "").await;
    assert!(browser.get(here).await.body.contains("State: open"));
    let wrong = browser
        .press(here, &format!("{here}/purge"), "confirm=jobs")
        .await;
    assert_eq!(wrong.status, 400);
    let purged = browser
        .press(here, &format!("{here}/purge"), "confirm=jobs.fifo")
        .await;
    expect_location(&purged, &format!("{here}?done=purged&count=1"));
    let without_token = browser.post(&format!("{here}/pause"), "token=00").await;
    assert_eq!(without_token.status, 403);
    let deleted = browser
        .press(here, &format!("{here}/delete"), "confirm=jobs.fifo")
        .await;
    assert_eq!(deleted.status, 303);
    assert_eq!(browser.get(here).await.status, 404);
}

#[tokio::test]
async fn dead_letters_are_grouped_by_reason_and_moved_back() {
    let server = TestServer::start().await;
    let browser = Browser::new(&server);
    browser
        .press("/console/queues", "/console/queues", "name=dead")
        .await;
    let settings = json!({ "QueueName": "jobs", "Attributes": {
        "RedrivePolicy": "{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:000000000000:dead\",\"maxReceiveCount\":1}" } });
    server.sqs("CreateQueue", &settings).await;
    let url = server.queue_url("jobs");
    server
        .sqs(
            "SendMessage",
            &json!({ "QueueUrl": url, "MessageBody": "x" }),
        )
        .await;
    let once = json!({ "QueueUrl": url, "VisibilityTimeout": 0 });
    server.sqs("ReceiveMessage", &once).await;
    server.sqs("ReceiveMessage", &once).await;
    let here = "/console/queues/dead/dead-letters";
    let page = browser.get(here).await;
    assert!(page.body.contains("?source=jobs"), "{}", page.body);
    assert!(page.body.contains("Move 1 messages"), "{}", page.body);
    let overview = browser.get("/console").await.body;
    let link = format!("{here}\">dead</a>: 1");
    assert!(overview.contains(&link), "{overview}");
    let moved = browser
        .press(here, "/console/queues/dead/redrive", "source=jobs")
        .await;
    expect_location(&moved, &format!("{here}?done=redriven&count=1"));
    assert!(
        browser
            .get("/console/queues/jobs/messages")
            .await
            .body
            .contains("<pre>x</pre>")
    );
}

#[tokio::test]
async fn a_queue_that_is_busy_gets_plots() {
    let server = TestServer::start().await;
    let browser = Browser::new(&server);
    let (all, here) = ("/console/queues", "/console/queues/jobs");
    browser.press(all, all, "name=jobs").await;
    let quiet = browser.get(here).await.body;
    assert!(quiet.contains("not among the 50 busiest"), "{quiet}");
    let seen = async {
        while !browser.get(here).await.body.contains("<svg") {
            browser.press(here, &format!("{here}/send"), "body=x").await;
        }
        // Of all queues, once a second is complete.
        while !browser.get("/console").await.body.contains("d=\"M") {}
    };
    in_time(seen).await;
}

#[tokio::test]
async fn a_browser_waits_until_figures_change_or_the_server_stops() {
    let server = TestServer::start().await;
    let events = "GET /console/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut waiting = server.connect().await;
    waiting.send(events).await;
    // Whether it waits already or not, there is a change that it has not seen.
    let browser = Browser::new(&server);
    let told = async {
        let all = "/console/queues";
        for number in 0.. {
            let form = format!("name=q{number}");
            browser.press(all, all, &form).await;
            tokio::task::yield_now().await;
        }
    };
    let answer = tokio::select! {
        answer = in_time(waiting.answer()) => answer,
        () = told => unreachable!("it goes on"),
    };
    check_headers(&answer);
    assert_eq!(
        (answer.status, answer.header("content-type"), &*answer.body),
        (
            200,
            Some("text/event-stream"),
            "retry: 1000\ndata: changed\n\n"
        )
    );
    waiting.send(events).await;
    let report = in_time(server.stop()).await;
    assert_eq!(report.cut, 0, "{report:?}");
}

#[tokio::test]
async fn schedules_are_shown_paused_fired_and_deleted() {
    let server = TestServer::start().await;
    let browser = Browser::new(&server);
    let all = "/console/queues";
    for queue in ["name=jobs", "name=gone"] {
        browser.press(all, all, queue).await;
    }
    let put = |name: &str, queue: &str, time: &str| {
        let body = format!(
            r#"{{"to":{{"queue":"{queue}"}},"message":{{"body":"<script>x</script>"}},{time}}}"#
        );
        let length = body.len();
        server.ask(format!(
            "PUT /api/v1/schedules/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ))
    };
    let made = put("nightly", "jobs", r#""cron":"0 3 * * *""#).await;
    assert!(made.status < 300, "{made:?}");
    let listed = browser.get("/console/schedules").await.body;
    let link = "/console/schedule?name=nightly";
    assert!(
        listed.contains(link) && listed.contains("0 3 * * * (UTC)"),
        "{listed}"
    );
    let shown = browser.get(link).await.body;
    assert!(shown.contains("&lt;script&gt;x"), "{shown}");
    for (action, done) in [
        ("pause", "schedule-paused"),
        ("resume", "schedule-resumed"),
        ("run", "schedule-run"),
    ] {
        let path = format!("/console/schedule/{action}");
        let pressed = browser.press(link, &path, "name=nightly").await;
        expect_location(&pressed, &format!("{link}&done={done}&count=0"));
        let is_paused = browser.get(link).await.body.contains("State: paused");
        assert_eq!(is_paused, action == "pause");
    }
    let sent = browser.get("/console/queues/jobs/messages").await.body;
    assert!(sent.contains("&lt;script&gt;x"), "{sent}");

    let made = put("stuck", "gone", r#""after_ms":1000"#).await;
    assert!(made.status < 300, "{made:?}");
    let gone = "/console/queues/gone";
    let deleted = browser
        .press(gone, &format!("{gone}/delete"), "confirm=gone")
        .await;
    expect_location(&deleted, "/console/queues?done=deleted&count=0");
    let trouble = "Schedules that are due and do not fire: 1";
    let told = async { while !browser.get("/console").await.body.contains(trouble) {} };
    in_time(told).await;

    let delete = "/console/schedule/delete";
    let wrong = browser
        .press(link, delete, "name=nightly&confirm=night")
        .await;
    assert_eq!(wrong.status, 400);
    let deleted = browser
        .press(link, delete, "name=nightly&confirm=nightly")
        .await;
    expect_location(&deleted, "/console/schedules?done=schedule-deleted&count=0");
    assert_eq!(browser.get(link).await.status, 404);
    let page = browser.get("/console/server").await.body;
    let last = page.find("DELETE /schedules/nightly");
    let first = page.find("POST /queues jobs");
    assert!(last.is_some() && last < first, "{page}");
}

fn keys() -> Vec<AccessKey> {
    let key = |id: &str, verbs: &[Verb]| AccessKey {
        id: id.to_owned(),
        secret: Secret::new(format!("secret of {id}")),
        grants: vec![Grant {
            on: Names::Queues("jobs*".to_owned()),
            verbs: verbs.to_vec(),
        }],
    };
    vec![
        key("OWNER", &Verb::ALL),
        key("READER", &[Verb::Read]),
        key("NOBODY", &[]),
    ]
}

#[tokio::test]
async fn a_session_may_what_its_key_may_and_ends_with_it() {
    let server = TestServer::start_with(|options| {
        options.authentication = Authentication::AccessKeys(keys());
    })
    .await;
    let mut owner = Browser::new(&server);
    expect_location(&owner.get("/console/queues").await, "/console/login");
    for (key, secret) in [
        ("OWNER", "secret of READER"),
        ("OWNER", ""),
        ("NONE", "secret of OWNER"),
    ] {
        let refused = owner.log_in(key, secret).await;
        assert_eq!((refused.status, refused.header("set-cookie")), (403, None));
    }
    expect_location(&owner.log_in("OWNER", "secret of OWNER").await, "/console");
    let (all, here) = ("/console/queues", "/console/queues/jobs");
    assert_eq!(owner.press(all, all, "name=jobs").await.status, 303);

    let mut reader = Browser::new(&server);
    reader.log_in("READER", "secret of READER").await;
    assert!(reader.get(all).await.body.contains(">jobs<"));
    for (path, form) in [
        ("pause", ""),
        ("purge", "confirm=jobs"),
        ("delete", "confirm=jobs"),
        ("send", "body=x"),
    ] {
        let refused = reader.press(here, &format!("{here}/{path}"), form).await;
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
    }
    assert_eq!(reader.get(&format!("{here}/messages")).await.status, 403);
    // A token is of one session.
    let of_owner = token(&owner.get(here).await);
    let other = reader
        .post(&format!("{here}/pause"), &format!("token={of_owner}"))
        .await;
    assert!(other.body.contains("of another session"), "{other:?}");

    let mut nobody = Browser::new(&server);
    nobody.log_in("NOBODY", "secret of NOBODY").await;
    assert!(!nobody.get("/console").await.body.contains("jobs"));
    // It sees neither what others do nor how much of it there is.
    let server_page = nobody.get("/console/server").await.body;
    assert!(!server_page.contains("Last changes"), "{server_page}");
    assert!(!nobody.get("/console").await.body.contains("<svg"));
    assert!(nobody.get("/console/schedules").await.status == 200);
    for list in [all, "/console/queues?sort=ready"] {
        assert!(!nobody.get(list).await.body.contains(">jobs<"), "{list}");
        assert!(reader.get(list).await.body.contains(">jobs<"), "{list}");
    }
    assert_eq!(nobody.get(here).await.status, 404);

    let out = nobody.press(all, "/console/logout", "").await;
    expect_location(&out, "/console/login");
    expect_location(&nobody.get(all).await, "/console/login");
    let mut changed = keys();
    changed[0].secret = Secret::new("another secret");
    changed.remove(1);
    server
        .access_keys
        .as_ref()
        .unwrap()
        .replace(&changed)
        .unwrap();
    expect_location(&owner.get(all).await, "/console/login");
    expect_location(&reader.get(all).await, "/console/login");
}

#[tokio::test]
async fn behind_a_proxy_links_and_cookies_have_its_path() {
    let server = TestServer::start_with(|options| {
        options.console_base_path = "/q/lockgate".to_owned();
    })
    .await;
    for path in ["/console/queues", "/q/lockgate/console/queues"] {
        let page = Browser::new(&server).get(path).await;
        assert!(
            page.body
                .contains("href=\"/q/lockgate/console/assets/console.css\""),
            "{page:?}"
        );
    }
    let style = server.get("/console/assets/console.css").await;
    assert_eq!(
        style.header("content-type"),
        Some("text/css; charset=utf-8")
    );
}
