//! What no client should send: a clear error or a closed connection, and the server goes on.

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};

use crate::support::{Raw, TestServer, in_time, post};

#[tokio::test]
async fn framing_that_two_parsers_may_read_differently_is_refused_and_ends_the_connection() {
    let server = TestServer::start().await;
    let chunked = "0\r\n\r\n";
    for (request, about) in [
        (
            post(
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                chunked,
            ),
            "both Content-Length and Transfer-Encoding",
        ),
        (
            post(
                "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                chunked,
            ),
            "both Content-Length and Transfer-Encoding",
        ),
        (
            post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"),
            "Content-Length must be given once",
        ),
        (
            post("Transfer-Encoding: gzip, chunked\r\n", chunked),
            "Transfer-Encoding must be given once",
        ),
        (
            "POST / HTTP/1.1\r\nHost: localhost\nContent-Length: 0\r\n\r\n".to_owned(),
            "without a carriage return",
        ),
        (
            "POST / HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n".to_owned(),
            "without a carriage return",
        ),
    ] {
        let mut raw = server.connect().await;
        // What an attacker would hide behind it.
        raw.send(request + "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await;
        let answer = raw.answer().await;
        answer.expect_refusal(400, about);
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(raw.closed().await, b"", "nothing else was answered");
    }
    // These hyper refuses by itself, without a body.
    for headers in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Transfer-Encoding: gzip\r\n",
    ] {
        let mut raw = server.connect().await;
        raw.send(post(headers, "hello")).await;
        assert_eq!(raw.answer().await.status, 400, "{headers:?}");
        assert_eq!(raw.closed().await, b"");
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_chunk_that_two_parsers_may_read_differently_is_refused() {
    let server = TestServer::start().await;
    for body in ["5\nhello\r\n0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "z\r\n"] {
        let mut raw = server.connect().await;
        raw.send(post("Transfer-Encoding: chunked\r\n", body)).await;
        assert_eq!(raw.answer().await.status, 400, "{body:?}");
        assert_eq!(raw.closed().await, b"");
    }
}

#[tokio::test]
async fn requests_sent_ahead_are_answered_in_order_up_to_the_first_bad_one() {
    let server = TestServer::start().await;
    let good = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let bad = "GET /healthz HTTP/1.1\r\nHost: localhost\n\r\n";
    let mut raw = server.connect().await;
    raw.send([good, good, bad, good].concat()).await;
    assert_eq!(raw.answer().await.status, 200);
    assert_eq!(raw.answer().await.status, 200);
    raw.answer().await.expect_refusal(400, "carriage return");
    assert_eq!(raw.closed().await, b"");
}

#[tokio::test]
async fn a_request_names_its_host_exactly_once() {
    let server = TestServer::start().await;
    server
        .ask("GET /healthz HTTP/1.1\r\n\r\n")
        .await
        .expect_refusal(400, "no Host header");
    server
        .ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
        .await
        .expect_refusal(400, "more than one Host");
    let old = server.ask("GET /healthz HTTP/1.0\r\n\r\n").await;
    assert_eq!(old.status, 200, "HTTP/1.0 knows no Host");
}

#[tokio::test]
async fn bodies_in_another_encoding_are_refused() {
    let server = TestServer::start().await;
    for encoding in ["gzip", "br", "identity, gzip", "zstd"] {
        let headers = format!("Content-Encoding: {encoding}\r\nContent-Length: 2\r\n");
        let answer = server.ask(post(&headers, "{}")).await;
        answer.expect_refusal(415, "Content-Encoding");
    }
    let plain = post("Content-Encoding: identity\r\nContent-Length: 2\r\n", "{}");
    assert_ne!(server.ask(plain).await.status, 415);
}

#[tokio::test]
async fn a_body_declared_too_large_is_refused_before_it_is_sent() {
    let server = TestServer::start_with(|options| options.limits.body_bytes_max = 100_000).await;
    let mut raw = server.connect().await;
    raw.send(post("Content-Length: 100001\r\n", "{")).await;
    let answer = raw.answer().await;
    answer.expect_refusal(413, "larger than 100000 bytes");
    assert_eq!(answer.header("connection"), Some("close"));

    // One that waits for permission gets none.
    let mut raw = server.connect().await;
    raw.send(post(
        "Content-Length: 100001\r\nExpect: 100-continue\r\n",
        "",
    ))
    .await;
    raw.answer().await.expect_refusal(413, "larger than");

    // One that sends all of it without looking can read the answer all the same.
    let mut raw = server.connect().await;
    let whole = post("Content-Length: 12000000\r\n", &"x".repeat(12_000_000));
    in_time(raw.0.write_all(whole.as_bytes())).await.unwrap();
    raw.answer().await.expect_refusal(413, "larger than");
    assert_eq!(raw.closed().await, b"");
}

#[tokio::test]
async fn a_body_of_the_largest_size_is_read() {
    for max in [100, 100_000] {
        let server = TestServer::start_with(|options| options.limits.body_bytes_max = max).await;
        let sized = format!("Content-Length: {max}\r\nExpect: 100-continue\r\n");
        let chunked = "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n".to_owned();
        let half = " ".repeat(max / 2);
        let chunk = format!("{:x}\r\n{half}\r\n", max / 2);
        for (headers, piece, end) in [(sized, &half, ""), (chunked, &chunk, "0\r\n\r\n")] {
            let mut raw = server.connect().await;
            raw.send(post(&headers, "")).await;
            assert_eq!(raw.answer().await.status, 100);
            raw.send([piece, piece, end].concat()).await;
            let answer = raw.answer().await;
            assert_eq!(
                answer.status, 404,
                "no action, but not too large: {answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_endless_chunked_body_is_cut_off() {
    let server = TestServer::start_with(|options| options.limits.body_bytes_max = 100_000).await;
    let mut raw = server.connect().await;
    raw.send(post("Transfer-Encoding: chunked\r\n", "")).await;
    let chunk = format!("{:x}\r\n{}\r\n", 50_000, "x".repeat(50_000));
    let (mut reader, mut writer) = raw.0.into_split();
    let sending =
        tokio::spawn(async move { while writer.write_all(chunk.as_bytes()).await.is_ok() {} });
    let mut start = [0; 12];
    in_time(reader.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 413");
    in_time(sending).await.unwrap();
}

#[tokio::test]
async fn many_large_bodies_at_once_are_refused_and_small_ones_are_not() {
    let server = TestServer::start_with(|options| options.limits.bodies_bytes_max = 100_000).await;
    let mut holding = server.connect().await;
    holding
        .send(post("Content-Length: 110000\r\n", &" ".repeat(109_999)))
        .await;
    // When that has been read nobody tells us; from then on others are refused.
    let refused = loop {
        let answer = server
            .ask(post("Content-Length: 60000\r\n", &" ".repeat(60_000)))
            .await;
        if answer.status == 503 {
            break answer;
        }
    };
    refused.expect_refusal(503, "Try again");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.header("x-amz-retry-after"), Some("1000"));
    let small = post("Content-Length: 16000\r\n", &" ".repeat(16_000));
    assert_eq!(server.ask(small).await.status, 404, "read, and no action");
}

#[tokio::test]
async fn answers_that_nobody_takes_are_limited_and_their_messages_stay_for_others() {
    const MESSAGE_BYTES: usize = 1_000_000;
    let server =
        TestServer::start_with(|options| options.limits.bodies_bytes_max = 16_000_000).await;
    server.sqs("CreateQueue", &json!({"QueueName": "q"})).await;
    let message = json!({"QueueUrl": "q", "MessageBody": "x".repeat(MESSAGE_BYTES)});
    for _ in 0..20 {
        server.sqs("SendMessage", &message).await;
    }
    let in_flight = async || {
        let asked = json!({"QueueUrl": "q", "AttributeNames": ["All"]});
        let answer = server.sqs("GetQueueAttributes", &asked).await;
        answer["Attributes"]["ApproximateNumberOfMessagesNotVisible"].clone()
    };
    let receive = |max: usize| {
        let body = json!({"QueueUrl": "q", "MaxNumberOfMessages": max});
        TestServer::sqs_request("ReceiveMessage", &body)
    };

    // So small a window that the kernel cannot take the answer off the server.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut greedy = Raw(in_time(socket.connect(server.address)).await.unwrap());
    greedy.send(receive(10)).await;
    in_time(greedy.0.read_u8()).await.unwrap();
    assert_eq!(in_flight().await, "10");

    let refused = server.ask(receive(10)).await;
    refused.expect_refusal(503, "nobody takes");
    assert_eq!(refused.header("x-amz-retry-after"), Some("1000"));
    assert_eq!(in_flight().await, "10", "the leases were given back");
    assert_eq!(server.ask(receive(1)).await.status, 200, "there is room");
    assert_eq!(in_flight().await, "11");

    drop(greedy);
    let taken = in_time(async {
        loop {
            let answer = server.ask(receive(9)).await;
            if answer.status == 200 {
                break answer;
            }
        }
    });
    assert!(taken.await.body.len() > 9 * MESSAGE_BYTES);
}

#[tokio::test]
async fn floods_of_headers_are_refused() {
    let server = TestServer::start().await;
    let many = |count| {
        let headers = "X: y\r\n".repeat(count);
        format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
    };
    assert_eq!(server.ask(many(99)).await.status, 200);
    assert_eq!(server.ask(many(100)).await.status, 431);
    let large = |len| {
        let value = "x".repeat(len);
        format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {value}\r\n\r\n")
    };
    assert_eq!(server.ask(large(16_000)).await.status, 200);
    assert_eq!(server.ask(large(16_400)).await.status, 431);
    assert_eq!(server.ask(large(500_000)).await.status, 431);
    let endless = format!("GET /{}", "x".repeat(100_000));
    assert_eq!(server.ask(endless).await.status, 431);
}

#[tokio::test]
async fn what_is_not_http_1_is_refused() {
    let server = TestServer::start().await;
    for bytes in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/3.0\r\nHost: localhost\r\n\r\n",
        b"GET /health z HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: local\0host\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"\r\n\r\n\r\n\r\nx\r\n\r\n",
    ] {
        let mut raw = server.connect().await;
        raw.send(bytes).await;
        let text = String::from_utf8_lossy(bytes);
        let answer = raw.closed().await;
        let refused = answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 ");
        assert!(refused, "{text:?}: {:?}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn random_bytes_do_no_harm() {
    let server = TestServer::start().await;
    // A linear congruential generator: the same bytes in every run.
    let mut state = 42u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    const PIECES: [&str; 16] = [
        "POST",
        " ",
        "/",
        " HTTP/1.1",
        "\r\n",
        "\n",
        "Host: localhost",
        "Content-Length: 7",
        "Transfer-Encoding: chunked",
        "0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "{}",
        "\r\n\r\n",
        "\0",
        "x",
        ":",
    ];
    for _ in 0..300 {
        let pieces = random() % 30;
        let bytes: String = (0..pieces)
            .map(|_| PIECES[random() % PIECES.len()])
            .collect();
        let mut raw = server.connect().await;
        raw.send(&bytes).await;
        let _ = raw.0.shutdown().await;
        let answer = raw.closed().await;
        assert!(
            !answer.starts_with(b"HTTP/1.1 5"),
            "{bytes:?}: {:?}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn deeply_nested_json_is_an_error_like_any_other() {
    let server = TestServer::start().await;
    for body in ["[".repeat(100_000), "{\"a\":".repeat(100_000)] {
        let headers = format!(
            "X-Amz-Target: AmazonSQS.SendMessage\r\nContent-Type: application/x-amz-json-1.0\r\n\
             Content-Length: {}\r\n",
            body.len()
        );
        server
            .ask(post(&headers, &body))
            .await
            .expect_refusal(400, "");
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}
