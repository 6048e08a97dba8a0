//! What all pages have.

use maud::{DOCTYPE, Markup, html};

use crate::{
    Answer, Change, Reply,
    value::{query, text},
};

/// For whom a page is.
pub(crate) struct View {
    /// The path of the console.
    pub(crate) home: String,
    /// What forms of the page have.
    pub(crate) token: String,
    pub(crate) who: Option<String>,
    pub(crate) is_login: bool,
}

impl View {
    pub(crate) fn page(&self, title: &str, body: &Markup) -> Answer {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) " · Lockgate" }
                    link rel="stylesheet" href={ (self.home) "/assets/console.css" };
                    @if !self.is_login { script src={ (self.home) "/assets/console.js" } defer {} }
                    link rel="icon" type="image/svg+xml" href={ (self.home) "/assets/icon.svg" };
                }
                body {
                    a.skip href="#main" { "Skip to the page" }
                    header {
                        strong { "Lockgate" }
                        @if !self.is_login {
                            nav aria-label="Console" {
                                a href=(self.home) { "Overview" }
                                a href={ (self.home) "/queues" } { "Queues" }
                                a href={ (self.home) "/schedules" } { "Schedules" }
                                a href={ (self.home) "/server" } { "Server" }
                            }
                        }
                        @if let Some(who) = &self.who {
                            form.who method="post" action={ (self.home) "/logout" } {
                                (self.hidden())
                                span { "Access key " b { (who) } } " "
                                button { "Log out" }
                            }
                        }
                    }
                    p.problem id="lost" role="alert" hidden { "The server has not answered for a while. What is shown is old." }
                    main id="main" tabindex="-1" { h1 { (title) } (body) }
                }
            }
        };
        Answer {
            status: 200,
            content_type: "text/html; charset=utf-8",
            location: None,
            body: page.into_string(),
            change: None,
        }
    }

    /// The token, in each form.
    pub(crate) fn hidden(&self) -> Markup {
        html! { input type="hidden" name="token" value=(self.token); }
    }

    /// A button that posts to that path of the console.
    pub(crate) fn button(&self, path: &str, label: &str) -> Markup {
        html! {
            form.inline method="post" action={ (self.home) (path) } { (self.hidden()) button { (label) } }
        }
    }

    pub(crate) fn problem(&self, status: u16, what: &str) -> Answer {
        let title = match status {
            403 => "Not allowed",
            404 => "Not found",
            _ => "That did not work",
        };
        let body = html! { p.problem role="alert" { (what) } p { a href={ (self.home) "/queues" } { "All queues" } } };
        let mut answer = self.page(title, &body);
        answer.status = status;
        answer
    }

    pub(crate) fn nothing(&self) -> Answer {
        self.problem(404, "There is no such page.")
    }

    /// What the API has refused.
    pub(crate) fn refused(&self, reply: &Reply) -> Answer {
        let detail = match text(&reply.body, "/detail") {
            "" => "The server could not do that.",
            detail => detail,
        };
        self.problem(reply.status, detail)
    }

    /// What follows a change: the page at `back`, which says what was done, or why it was not.
    pub(crate) fn changed(
        &self,
        what: String,
        reply: &Reply,
        back: &str,
        done: &str,
        count: u64,
    ) -> Answer {
        let mut answer = if reply.status < 400 {
            let count = count.to_string();
            let join = query(&[("done", done), ("count", &count)]);
            let join = if back.contains('?') {
                join.replacen('?', "&", 1)
            } else {
                join
            };
            Answer::to(format!("{}{back}{join}", self.home))
        } else {
            self.refused(reply)
        };
        let status = reply.status;
        answer.change = Some(Change { what, status });
        answer
    }
}

/// What the last change did. Only these texts can be said, whatever a link says.
pub(crate) fn done(fields: &crate::Fields) -> Markup {
    let count = fields.number("count");
    let text = match fields.get("done") {
        "created" => "The queue was created.",
        "paused" => "The queue is paused: nobody gets its messages until it is resumed.",
        "resumed" => "The queue is resumed.",
        "purged" => "The queue was purged. Messages that were dropped:",
        "deleted" => "The queue was deleted.",
        "sent" => "The message was sent.",
        "redriven" => "Dead letters were moved. How many:",
        "schedule-paused" => "The schedule is paused: it does not fire until it is resumed.",
        "schedule-resumed" => "The schedule is resumed, from its first time after now on.",
        "schedule-run" => "The schedule has sent its message.",
        "schedule-deleted" => "The schedule was deleted.",
        "key-parked" => "The key is parked.",
        "key-resumed" => "The key is resumed.",
        "key-dropped" => "Messages of the key were dropped. How many:",
        _ => return html! {},
    };
    html! { p.done role="status" { (text) @if text.ends_with(':') { " " (crate::value::grouped(count)) "." } } }
}
