//! Callers of one key in many processes, each with a client of one server.

use std::time::Duration;

use lockgate_conformance::coalesce;

use crate::support::TestServer;

#[tokio::test]
async fn processes_conform_over_a_server() {
    let (server, _folder) = TestServer::plain().await;
    let all = [server.client(), server.client(), server.client()];
    let pass = |span: Duration| {
        server.clock.advance(span.as_millis().try_into().unwrap());
        server.engine.clock_changed();
    };
    coalesce::across_processes(all, pass).await;
    server.stop().await;
}
