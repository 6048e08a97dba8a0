//! Who may address the server, by what name, and from which pages.

use std::{io::ErrorKind, net::SocketAddr};

use lockgate_server::{BindError, Server, ServerOptions};
use tokio::net::TcpStream;

use crate::support::{TestServer, start_engine};

fn request(method_and_target: &str, headers: &str) -> String {
    format!("{method_and_target} HTTP/1.1\r\nContent-Length: 0\r\n{headers}\r\n\r\n")
}

#[tokio::test]
async fn only_local_and_configured_names_are_served_on_every_path() {
    let server = TestServer::start_with(|options| {
        options.allowed_hosts = vec!["Queue".to_owned()];
        options.advertised_host = Some("sqs.internal:8080".to_owned());
    })
    .await;
    for target in [
        "GET /healthz",
        "GET /metrics",
        "POST /",
        "POST /000000000000/q",
    ] {
        for host in [
            "localhost",
            "LocalHost:1",
            "127.0.0.1:9324",
            "[::1]:9324",
            "queue:80",
            "sqs.internal",
        ] {
            let answer = server.ask(request(target, &format!("Host: {host}"))).await;
            assert_ne!(answer.status, 403, "{target} {host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:9324",
            "localhost@evil.example",
            "10.0.0.1",
            "",
        ] {
            let answer = server.ask(request(target, &format!("Host: {host}"))).await;
            answer.expect_refusal(403, "--allowed-host");
        }
    }
}

#[tokio::test]
async fn pages_of_other_hosts_are_not_served() {
    let server = TestServer::start_with(|options| {
        options.allowed_hosts = vec!["console.internal".to_owned()];
    })
    .await;
    let with_origin = |origin: &str| {
        // As a form of a web page sends it: no preflight.
        request(
            "POST /",
            &format!("Host: localhost\r\nContent-Type: text/plain\r\nOrigin: {origin}"),
        )
    };
    for origin in [
        "http://localhost:3000",
        "https://127.0.0.1",
        "http://[::1]",
        "https://console.internal",
    ] {
        assert_ne!(
            server.ask(with_origin(origin)).await.status,
            403,
            "{origin}"
        );
    }
    for origin in [
        "http://evil.example",
        "null",
        "file://",
        "http://localhost.evil.example",
        "http://localhost\r\nOrigin: http://evil.example",
    ] {
        let answer = server.ask(with_origin(origin)).await;
        answer.expect_refusal(403, "--allowed-host");
    }
}

#[tokio::test]
async fn an_address_that_a_page_of_another_site_loads_is_not_served() {
    let server = TestServer::start().await;
    let load = |site: &str| {
        // As a browser fetches the source of an image: no origin.
        let headers = format!("Host: localhost\r\nSec-Fetch-Site: {site}");
        request("GET /?Action=ListQueues", &headers)
    };
    let answer = server.ask(load("cross-site")).await;
    answer.expect_refusal(403, "other sites");
    for site in ["none", "same-origin", "same-site"] {
        assert_eq!(server.ask(load(site)).await.status, 200, "{site}");
    }
}

/// A page reached by plain HTTP says neither `Origin` nor `Sec-Fetch-Site` with a GET.
#[tokio::test]
async fn a_get_without_an_authorization_changes_nothing() {
    let server = TestServer::start().await;
    let ask = async |target: &str, headers: &str| {
        let headers = format!("Host: localhost\r\n{headers}");
        server.ask(request(target, headers.trim_end())).await
    };
    let create = "GET /?Action=CreateQueue&QueueName=q";
    let signed =
        "Authorization: AWS4-HMAC-SHA256 Credential=any/20261122/us-east-1/sqs/aws4_request";
    let in_address = format!("{create}&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00");
    for (target, headers) in [
        (create, ""),
        (&in_address, ""),
        // Browsers remember passwords and send them by themselves.
        (create, "Authorization: Basic YTpi"),
    ] {
        let answer = ask(target, headers).await;
        assert_eq!(answer.status, 403, "{headers}: {answer:?}");
        assert!(answer.body.contains("Use POST"), "{answer:?}");
    }
    let mut raw = server.connect().await;
    let head = "HEAD /?Action=ListQueues";
    raw.send(request(head, "Host: localhost\r\nConnection: close"))
        .await;
    assert!(raw.closed().await.starts_with(b"HTTP/1.1 405"));
    let list = ask("GET /?Action=ListQueues", "").await;
    assert!(!list.body.contains("<QueueUrl>"), "{list:?}");
    assert_eq!(ask(create, signed).await.status, 200);
    assert_eq!(
        ask("POST /?Action=PurgeQueue&QueueUrl=q", "").await.status,
        200
    );
    for (target, status) in [
        ("GET /000000000000/q?Action=ReceiveMessage", 403),
        ("GET /000000000000/q?Action=DeleteQueue", 403),
        ("GET /000000000000/q?Action=GetQueueAttributes", 200),
        ("GET /api/v1/backup", 403),
        ("GET /api/v1/queues", 200),
    ] {
        assert_eq!(ask(target, "").await.status, status, "{target}");
    }
}

/// As a form of a page may have it, or a report of a browser about a page.
#[tokio::test]
async fn a_body_that_would_not_be_read_is_refused() {
    let server = TestServer::start().await;
    for kind in [
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/csp-report",
    ] {
        let answer = server
            .ask(format!(
                "POST /?Action=CreateQueue&QueueName=q HTTP/1.1\r\nHost: localhost\r\n\
                 Content-Type: {kind}\r\nContent-Length: 2\r\n\r\nab"
            ))
            .await;
        answer.expect_refusal(415, "must be a form");
    }
}

#[tokio::test]
async fn a_host_in_the_request_line_counts_too() {
    let server = TestServer::start().await;
    let evil = request("GET http://evil.example/healthz", "Host: localhost");
    server.ask(evil).await.expect_refusal(403, "evil.example");
    let good = request("GET http://localhost/healthz", "Host: localhost");
    assert_eq!(server.ask(good).await.status, 200);
}

#[tokio::test]
async fn a_refused_name_does_not_come_back_raw() {
    let server = TestServer::start().await;
    let host = format!("Host: \u{85}\u{2028}<b>{}", "x".repeat(1000));
    let answer = server.ask(request("GET /healthz", &host)).await;
    answer.expect_refusal(403, "\\u{85}\\u{2028}");
    assert!(answer.body.len() < 800, "{answer:?}");
}

/// What to bind is decided before the engine is touched, so one will do.
async fn bind(change: impl FnOnce(&mut ServerOptions)) -> Result<Server, BindError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let engine = tokio::task::spawn_blocking(move || start_engine(&path))
        .await
        .unwrap();
    let mut options = ServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..ServerOptions::default()
    };
    change(&mut options);
    let server = Server::bind(options, engine.clone()).await;
    engine.shutdown().await;
    server
}

/// So that clients are told at once, and know that nothing has happened.
#[tokio::test]
async fn an_address_that_is_reserved_refuses_clients_until_it_is_listened_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let engine = tokio::task::spawn_blocking(move || start_engine(&path))
        .await
        .unwrap();
    let options = |address: &str| ServerOptions {
        listen: address.parse().unwrap(),
        ..ServerOptions::default()
    };
    let first = Server::bind(options("127.0.0.1:0"), engine.clone());
    let taken = first.await.unwrap();
    let refused = Server::reserve(options(&taken.local_addr().to_string())).unwrap_err();
    assert!(matches!(refused, BindError::Listen { .. }), "{refused}");
    let reserved = Server::reserve(options("127.0.0.1:0")).unwrap();
    let address = reserved.local_addr().unwrap();
    let error = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let server = reserved.listen(engine.clone()).await.unwrap();
    assert_eq!(server.local_addr(), address);
    TcpStream::connect(address).await.unwrap();
    engine.shutdown().await;
}

#[tokio::test]
async fn other_machines_are_let_in_only_when_that_is_asked_for() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let address: SocketAddr = address.parse().unwrap();
        let error = bind(|options| options.listen = address).await.unwrap_err();
        assert!(
            matches!(error, BindError::Remote { listen } if listen == address),
            "{error}"
        );
        assert!(error.to_string().contains("no authentication"), "{error}");
    }
    let server = bind(|options| {
        options.listen = "0.0.0.0:0".parse().unwrap();
        options.allow_remote = true;
    })
    .await
    .unwrap();
    assert!(server.local_addr().ip().is_unspecified());
}

#[tokio::test]
async fn options_out_of_range_are_refused_by_name() {
    type Change = fn(&mut ServerOptions);
    let cases: [(&str, Change); 6] = [
        ("account", |options| options.account = "12".to_owned()),
        ("region", |options| options.region = "eu west".to_owned()),
        ("allowed host", |options| {
            options.allowed_hosts = vec!["a:1".to_owned()];
        }),
        ("advertised host", |options| {
            options.advertised_host = Some("http://a".to_owned());
        }),
        ("head_bytes_max", |options| {
            options.limits.head_bytes_max = 1;
        }),
        ("transfer_rate_min", |options| {
            options.deadlines.transfer_rate_min = 0;
        }),
    ];
    for (name, change) in cases {
        let error = bind(change).await.unwrap_err();
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_an_error() {
    let server = TestServer::start().await;
    let address = server.address;
    let error = bind(|options| options.listen = address).await.unwrap_err();
    assert!(
        matches!(error, BindError::Listen { listen, .. } if listen == address),
        "{error}"
    );
}
