//! What a server keeps in memory for whom it does not know yet.

use hyper::{HeaderMap, header::HeaderValue};
use lockgate_server::{AccessKey, Authentication, Grant, Names, Secret, Verb};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpSocket;

use crate::support::{Raw, TestServer, in_time, sign};

const FREE: usize = 16 << 10;

async fn start() -> TestServer {
    let admin = AccessKey {
        id: "ADMIN".to_owned(),
        secret: Secret::new("secret of ADMIN"),
        grants: vec![Grant {
            on: Names::Queues("*".to_owned()),
            verbs: Verb::ALL.to_vec(),
        }],
    };
    TestServer::start_with(|options| {
        options.authentication = Authentication::AccessKeys(vec![admin]);
        options.limits.bodies_bytes_max = 400_000;
    })
    .await
}

/// A request with a body of `len` bytes more than are free; its head and its body.
fn signed(id: &str, secret: &str, len: usize, announces: bool) -> (String, String) {
    let body = format!("{{}}{}", " ".repeat(FREE + len - 2));
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static("localhost"));
    let target = HeaderValue::from_static("AmazonSQS.ListQueues");
    headers.insert("x-amz-target", target);
    if announces {
        let digest = Sha256::digest(body.as_bytes());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let digest = HeaderValue::try_from(digest).unwrap();
        headers.insert("x-amz-content-sha256", digest);
    }
    let now = jiff::Timestamp::now().as_second();
    sign("POST /", &mut headers, &body, (id, secret), now);
    let mut head = "POST / HTTP/1.1\r\n".to_owned();
    for (name, value) in &headers {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    (head, body)
}

const SECRET: &str = "secret of ADMIN";

/// A client at another address of this machine.
async fn connect_from(server: &TestServer, address: &str) -> Raw {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(address.parse().unwrap()).unwrap();
    Raw(in_time(socket.connect(server.address)).await.unwrap())
}

#[tokio::test]
async fn what_the_head_tells_is_refused_before_the_body_comes() {
    let server = start().await;
    for (id, secret, announces, code) in [
        ("OTHER", SECRET, false, "InvalidClientTokenId"),
        ("OTHER", SECRET, true, "InvalidClientTokenId"),
        ("ADMIN", "another", true, "SignatureDoesNotMatch"),
    ] {
        let (head, _) = signed(id, secret, 100, announces);
        let answer = server.ask(head).await; // and nothing more
        answer.expect_refusal(403, "");
        let given = answer.header("x-amzn-query-error").unwrap();
        assert!(given.starts_with(code), "{given}");
        assert_eq!(answer.header("connection"), Some("close"));
    }
    let (head, body) = signed("ADMIN", SECRET, 100, true);
    let good = server.ask(format!("{head}{body}")).await;
    assert_eq!(good.status, 200, "{good:?}");
    let other = body.replace("{}", "[]");
    let bad = server.ask(format!("{head}{other}")).await;
    bad.expect_refusal(403, "signature");
}

#[tokio::test]
async fn senders_that_are_not_known_yet_do_not_take_all_memory_for_bodies() {
    let server = start().await;
    // Ids are no secret: whoever knows one may send bodies that turn out to be somebody else's.
    let mut unknown = Vec::new();
    for (address, len) in [("127.0.0.2:0", 120_000), ("127.0.0.3:0", 60_000)] {
        let (head, body) = signed("ADMIN", "another", len, false);
        let mut raw = connect_from(&server, address).await;
        raw.send(format!("{head}{}", &body[1..])).await;
        unknown.push(raw);
    }
    in_time(async {
        let held = "lockgate_http_body_bytes 180000\n";
        while !server.get("/metrics").await.body.contains(held) {}
    })
    .await;
    let ask = async |address: &str, len, announces| {
        let (head, body) = signed("ADMIN", SECRET, len, announces);
        let mut raw = connect_from(&server, address).await;
        raw.send(format!("{head}{body}")).await;
        raw.answer().await
    };
    let full = ask("127.0.0.4:0", 30_000, false).await;
    full.expect_refusal(503, "cannot tell yet");
    assert_eq!(full.header("retry-after"), Some("1"));
    assert_eq!(ask("127.0.0.4:0", 20_000, false).await.status, 200);
    assert_eq!(ask("127.0.0.4:0", 200_000, true).await.status, 200);
    let of_address = ask("127.0.0.2:0", 190_000, true).await;
    of_address.expect_refusal(503, "of your address");
    let metrics = server.get("/metrics").await.body;
    for reason in ["bodies_of_unknown", "bodies_of_address"] {
        let line = format!("lockgate_http_refused_total{{reason=\"{reason}\"}} 1\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
}
