//! How many clients there may be.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::support::{Raw, TestServer, in_time};

/// Asks `raw` for a page, which proves that its connection was accepted.
async fn is_served(raw: &mut Raw) -> bool {
    raw.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    raw.try_answer()
        .await
        .is_some_and(|answer| answer.status == 200)
}

#[tokio::test]
async fn connections_beyond_the_limit_are_turned_away_until_one_ends() {
    for of_address in [false, true] {
        let server = TestServer::start_with(|options| {
            let limits = &mut options.limits;
            if of_address {
                limits.connections_per_address_max = 2;
            } else {
                limits.connections_max = 2;
            }
        })
        .await;
        let mut first = server.connect().await;
        let mut second = server.connect().await;
        assert!(is_served(&mut first).await && is_served(&mut second).await);
        let mut third = server.connect().await;
        third
            .answer()
            .await
            .expect_refusal(503, "Too many connections");
        assert_eq!(third.closed().await, b"");
        drop(first);
        // When the server notices, nobody tells us.
        in_time(async { while !is_served(&mut server.connect().await).await {} }).await;
        assert!(is_served(&mut second).await);
    }
}

#[tokio::test]
async fn thousands_of_idle_connections_do_not_keep_others_out() {
    let idle = allowed_descriptors(2_000);
    let server = TestServer::start().await;
    let mut connections = Vec::new();
    for at in 0..idle {
        let mut raw = server.connect().await;
        if at % 2 == 0 {
            raw.send("GET /healthz HTTP/1.1\r\nHo").await; // half a head
        }
        connections.push(raw);
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    // They are all there, and each is served when it wants to be.
    for (at, raw) in connections.iter_mut().enumerate().step_by(97) {
        if at % 2 == 0 {
            raw.send("st: localhost\r\n\r\n").await;
            assert_eq!(raw.answer().await.status, 200);
        } else {
            assert!(is_served(raw).await);
        }
    }
    drop(connections);
    let report = server.stop().await;
    assert_eq!(report.cut, 0);
    assert!(report.connections > idle as u64);
}

/// Makes room for `wanted` connections of which both ends are ours; fewer where that is not allowed.
fn allowed_descriptors(wanted: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let connections = usize::try_from(allowed).unwrap_or(usize::MAX) / 2;
    wanted.min(connections.saturating_sub(100))
}
