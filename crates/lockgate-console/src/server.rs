//! The server: its log, its disk, and what was changed by the console.

use maud::html;

use crate::{
    Answer, Api,
    page::View,
    value::{grouped, number, text},
};

/// What only keys that may do everything see of a server.
#[derive(Clone, Debug, Default)]
pub struct Inside {
    /// Figures and their names.
    pub figures: Vec<(&'static str, u64)>,
    /// The last changes by the console, the latest first.
    pub changes: Vec<Changed>,
}

/// A change by the console.
#[derive(Clone, Debug)]
pub struct Changed {
    /// When, for people.
    pub at: String,
    /// The access key; empty without authentication.
    pub who: String,
    /// The address of the browser.
    pub peer: String,
    /// The call of the API.
    pub what: String,
    /// The status of the API's answer.
    pub status: u16,
}

pub(crate) async fn show(view: &View, api: &impl Api) -> Answer {
    let reply = api.call("GET", "/server", None).await;
    if reply.status != 200 {
        return view.refused(&reply);
    }
    let server = &reply.body;
    let space = match text(server, "/space/state") {
        "full" => "Full: the room is below the stop mark, and sends are refused.",
        "low" => {
            "Low: the room is below the low mark. Sends are refused once it is below the stop mark."
        }
        _ => "Enough: the room is above the low mark.",
    };
    let words = [
        ("Version", "/version"),
        ("State", "/status"),
        ("Started", "/started_at"),
        ("Its clock", "/now"),
        ("Highest level", "/limits/level_max"),
    ];
    let numbers = [
        ("Shard", "/shard"),
        ("Term", "/epoch"),
        ("Queues", "/queues"),
        ("Bytes on the disk", "/space/used_bytes"),
        ("Bytes free", "/space/free_bytes"),
        ("Records since the start", "/log/records"),
        ("Their bytes", "/log/record_bytes"),
        ("Syncs", "/log/syncs"),
        ("Records lost before the start", "/log/records_lost"),
        ("Largest body of a request", "/limits/body_bytes_max"),
    ];
    let inside = api.inside();
    let body = html! {
        dl {
            @for (label, place) in words { div { dt { (label) } dd { (text(server, place)) } } }
            @for (label, place) in numbers { div { dt { (label) } dd { (grouped(number(server, place))) } } }
        }
        h2 { "Room on the disk" }
        p.state { (space) }
        @if let Some(Inside { figures, changes }) = inside {
            h2 { "Log and snapshots" }
            dl { @for (label, figure) in figures { div { dt { (label) } dd { (grouped(figure)) } } } }
            h2 { "Last changes by the console" }
            @if changes.is_empty() { p { "None since the server started." } } @else {
                div.table tabindex="0" role="region" aria-label="Changes" { table {
                    thead { tr {
                        th scope="col" { "When" } th scope="col" { "Access key" } th scope="col" { "Address" }
                        th scope="col" { "What" } th.number scope="col" { "Status" }
                    } }
                    tbody { @for change in changes { tr {
                        td { (change.at) } td.name { (change.who) } td { (change.peer) }
                        td.name { (change.what) } td.number { (change.status) }
                    } } }
                } }
            }
            p.note { "The server's log has all of them." }
        } @else {
            p { "More of the server is shown to access keys that may do everything." }
        }
    };
    view.page("Server", &body)
}
