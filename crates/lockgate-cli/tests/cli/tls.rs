//! HTTPS, with an authority made for the test.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned,
    crypto::ring,
    version::{TLS12, TLS13},
};

use crate::support::{Done, Sandbox, Server};

/// Says whom to trust.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        Self::named("Authority of a test")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Writes a certificate for `localhost` and its key, which only their owner may read.
    fn write(&self, folder: &Path) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        write_key(folder, &key.serialize_pem());
        fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.join("ca.pem"), self.0.pem()).unwrap();
    }

    /// Asks for a page; the answer as it came, or why there was none.
    fn get(
        &self,
        server: &Server,
        request: &str,
        version: &'static tokio_rustls::rustls::SupportedProtocolVersion,
    ) -> Result<(String, Option<ProtocolVersion>), std::io::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = "localhost".try_into().unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(server.url.trim_start_matches("https://"))?;
        let mut stream = StreamOwned::new(session, socket);
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        Ok((answer, stream.conn.protocol_version()))
    }
}

/// The server under the name its certificate is for.
fn endpoint(server: &Server) -> String {
    server.url.replace("127.0.0.1", "localhost")
}

fn write_key(folder: &Path, pem: &str) {
    let path = folder.join("key.pem");
    fs::write(&path, pem).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

const CONFIG: &str = "tls_cert = \"cert.pem\"\ntls_key = \"key.pem\"\n";

fn create_queue() -> String {
    let body = r#"{"QueueName":"q"}"#;
    format!(
        "POST / HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\nX-Amz-Target: AmazonSQS.CreateQueue\r\n\
         Content-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn a_server_with_a_certificate_speaks_https() {
    let sandbox = Sandbox::new();
    let authority = Authority::new();
    authority.write(sandbox.path());
    sandbox.write("lockgate.toml", CONFIG);
    let server = Server::start(&sandbox);
    assert!(
        server.url.starts_with("https://127.0.0.1:"),
        "{}",
        server.url
    );
    for (version, expected) in [
        (&TLS12, ProtocolVersion::TLSv1_2),
        (&TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let (answer, version) = authority.get(&server, &create_queue(), version).unwrap();
        assert_eq!(version, Some(expected));
        let url = "\"QueueUrl\":\"https://localhost:1/000000000000/q\"";
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") && answer.contains(url),
            "{answer}"
        );
    }

    // Whoever does not trust the authority, or does not speak TLS, gets nothing and is counted.
    Authority::new().get(&server, METRICS, &TLS13).unwrap_err();
    let mut plain = TcpStream::connect(server.url.trim_start_matches("https://")).unwrap();
    plain.write_all(METRICS.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let (metrics, _) = authority.get(&server, METRICS, &TLS13).unwrap();
    let failed = "lockgate_http_refused_total{reason=\"tls_handshake\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(failed));
    assert!(matches!(line, Some("1" | "2")), "{metrics}");
}

/// A rotation needs no restart, and one that went wrong does no harm.
#[test]
fn a_new_certificate_is_taken_without_a_restart() {
    let sandbox = Sandbox::new();
    let (first, second) = (Authority::new(), Authority::new());
    first.write(sandbox.path());
    sandbox.write("lockgate.toml", CONFIG);
    let mut server = Server::start(&sandbox);
    first.get(&server, METRICS, &TLS13).unwrap();
    write_key(sandbox.path(), "no key");
    server.event("the new certificate cannot be used, the old one stays");
    first.get(&server, METRICS, &TLS13).unwrap();
    second.write(sandbox.path());
    server.event("the certificate has changed; new connections get it");
    server.signal(rustix::process::Signal::HUP);
    server.event("the certificate was read again; new connections get it");
    second.get(&server, METRICS, &TLS13).unwrap();
    first.get(&server, METRICS, &TLS13).unwrap_err();
}

/// Whoever opens a named pipe waits for its writer. The server does not, whatever file it is.
#[test]
fn a_file_that_has_become_a_named_pipe_stops_no_server() {
    let sandbox = Sandbox::new();
    let authority = Authority::new();
    authority.write(sandbox.path());
    let private = |name: &str, text: &str| {
        let path = sandbox.write(name, text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let grants = "grants = [{ queues = \"*\", verbs = [\"read\"] }]";
    let keys = format!("[[key]]\nid = \"ID\"\nsecret_file = \"secret\"\n{grants}\n");
    private("secret", "the secret");
    private("keys.toml", &keys);
    let auth = "auth = \"sigv4\"\naccess_keys = \"keys.toml\"\n";
    sandbox.write("lockgate.toml", &format!("{CONFIG}{auth}"));
    let mut server = Server::start(&sandbox);
    let url = endpoint(&server);
    let old_keys = "the new access keys cannot be used, the old ones stay";
    let old_certificate = "the certificate cannot be used, the old one stays";
    for (name, told) in [
        ("secret", old_keys),
        ("keys.toml", old_keys),
        ("cert.pem", old_certificate),
        ("key.pem", old_certificate),
    ] {
        let path = sandbox.path().join(name);
        let kept = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        server.signal(rustix::process::Signal::HUP);
        let error = server.event(told)["error"].to_string();
        assert!(
            error.contains(name) && error.contains("not a regular file"),
            "{error}"
        );
        let list = sandbox
            .command(&format!("queue list --endpoint {url} --ca ca.pem"))
            .env("AWS_ACCESS_KEY_ID", "ID")
            .env("AWS_SECRET_ACCESS_KEY", "the secret")
            .output();
        Done::from(list.unwrap()).ok();
        // Written anew and not moved back, so that it is private again.
        fs::remove_file(&path).unwrap();
        private(name, std::str::from_utf8(&kept).unwrap());
    }
}

#[test]
fn a_certificate_that_cannot_be_used_is_told() {
    let sandbox = Sandbox::new();
    let serve = |arguments: &str| {
        let fixed = "serve --listen 127.0.0.1:0 --data data --log-format text";
        sandbox.run(&format!("{fixed} {arguments}"))
    };
    let both = "--tls-cert cert.pem --tls-key key.pem";
    let error = serve("--tls-cert cert.pem").fails_with(2);
    assert!(error.contains("--tls-key"), "{error}");
    let error = serve(both).fails_with(1);
    assert!(error.contains("reading cert.pem"), "{error}");

    Authority::new().write(sandbox.path());
    let key = sandbox.path().join("key.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let error = serve(both).fails_with(1);
    assert!(
        error.contains("key.pem: others may read this private key; chmod 600 it"),
        "{error}"
    );

    write_key(
        sandbox.path(),
        &KeyPair::generate().unwrap().serialize_pem(),
    );
    let error = serve(both).fails_with(1);
    assert!(
        error.contains("key.pem: this key is not the one of the certificate"),
        "{error}"
    );
    write_key(sandbox.path(), "");
    let error = serve(both).fails_with(1);
    assert!(
        error.contains("key.pem: there is no private key in it"),
        "{error}"
    );
    sandbox.write("cert.pem", "");
    let error = serve(both).fails_with(1);
    assert!(
        error.contains("cert.pem: there is no certificate in it"),
        "{error}"
    );
}

/// Every way in which the commands talk to a server: SQS, the admin API, a backup, many connections.
#[test]
fn commands_talk_to_a_server_over_https() {
    let sandbox = Sandbox::new();
    Authority::new().write(sandbox.path());
    sandbox.write("lockgate.toml", CONFIG);
    let server = Server::start(&sandbox);
    let url = endpoint(&server);
    let send = "send orders.fifo --create --key user-42";
    sandbox
        .run(&format!("{send} --endpoint {url} --ca ca.pem first"))
        .ok();

    // Each of the places a setting can stand in, and the system's authorities.
    let by_variable = sandbox
        .command(&format!("{send} --endpoint {url} second"))
        .env("LOCKGATE_CA", "ca.pem")
        .output();
    Done::from(by_variable.unwrap()).ok();
    let of_system = sandbox
        .command(&format!("{send} --endpoint {url} third"))
        .env("SSL_CERT_FILE", sandbox.path().join("ca.pem"))
        .output();
    Done::from(of_system.unwrap()).ok();
    sandbox.write(
        "client.toml",
        &format!("endpoint = \"{url}\"\nca = \"ca.pem\"\n"),
    );
    let run = |command: &str| sandbox.run(&format!("{command} --config client.toml"));

    let seen = run("peek orders.fifo --json").json();
    assert_eq!(seen.len(), 3, "{seen:?}");
    let received = run("receive orders.fifo --ack").json();
    let bodies: Vec<_> = received.iter().map(|message| &message["body"]).collect();
    assert_eq!(bodies, ["first", "second", "third"]);
    run("backup whole.backup").ok();
    sandbox.run("restore whole.backup --data copy").ok();
    assert_eq!(run("bench --json --time 1s --callers 2").json().len(), 3);
    run("queue delete orders.fifo --yes").ok();
}

#[test]
fn a_server_that_cannot_be_trusted_gets_no_request_and_the_reason_is_told() {
    let sandbox = Sandbox::new();
    let authority = Authority::new();
    authority.write(sandbox.path());
    sandbox.write("lockgate.toml", CONFIG);
    let server = Server::start(&sandbox);
    let url = endpoint(&server);
    let list = |arguments: &str| sandbox.run(&format!("queue list {arguments}"));

    // The authority of somebody else, and one that only has the name of the right one.
    for other in [Authority::named("Another"), Authority::new()] {
        sandbox.write("other.pem", &other.0.pem());
        let error = list(&format!("--endpoint {url} --ca other.pem")).fails_with(1);
        let told =
            format!("no TLS with {url}: its certificate is of an authority that is not trusted");
        assert!(
            error.contains(&told) && error.contains("--ca FILE"),
            "{error}"
        );
    }
    // --ca is instead of the system's authorities, not beside them.
    let beside = sandbox
        .command(&format!("queue list --endpoint {url} --ca other.pem"))
        .env("SSL_CERT_FILE", sandbox.path().join("ca.pem"))
        .output();
    Done::from(beside.unwrap()).fails_with(1);

    let error = list(&format!("--endpoint {} --ca ca.pem", server.url)).fails_with(1);
    let told = "its certificate is not for 127.0.0.1, but for localhost\n";
    assert!(error.contains(told), "{error}");

    // The other scheme than the server's, both ways.
    let error = list(&format!("--endpoint {}", url.replace("https", "http"))).fails_with(1);
    assert!(error.contains("does it serve HTTPS?"), "{error}");
    sandbox.write("lockgate.toml", "");
    let plain = Server::start_on(&sandbox, "plain");
    let url = plain.url.replace("http", "https");
    let error = list(&format!("--endpoint {url} --ca ca.pem")).fails_with(1);
    let told = format!("no TLS with {url}: it does not speak TLS\n");
    let hint = format!("--endpoint {}", plain.url);
    assert!(error.contains(&told) && error.contains(&hint), "{error}");
}

#[test]
fn authorities_that_cannot_be_read_are_told_before_anything_is_sent() {
    let sandbox = Sandbox::new();
    let list = |ca: &str| {
        let fixed = "queue list --endpoint https://localhost:1";
        sandbox.run(&format!("{fixed} --ca {ca}")).fails_with(2)
    };
    let error = list("gone.pem");
    assert!(error.contains("--ca gone.pem: No such file"), "{error}");
    sandbox.write("ca.pem", "secret");
    let error = list("ca.pem");
    assert!(
        error.contains("--ca ca.pem: there is no certificate in it"),
        "{error}"
    );
    sandbox.write(
        "ca.pem",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let error = list("ca.pem");
    assert!(
        error.contains("--ca ca.pem: a certificate in it cannot be used"),
        "{error}"
    );

    let nobody = sandbox
        .command("queue list --endpoint https://localhost:1")
        .env("SSL_CERT_FILE", sandbox.write("empty.pem", ""))
        .output();
    let error = Done::from(nobody.unwrap()).fails_with(2);
    assert!(
        error.contains("this system names no authorities to trust"),
        "{error}"
    );
}

/// A certificate as `openssl req -x509` makes it: an authority's, used as a server's.
#[test]
fn a_self_signed_certificate_says_what_is_wrong_with_it() {
    let sandbox = Sandbox::new();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    sandbox.write("cert.pem", &params.self_signed(&key).unwrap().pem());
    write_key(sandbox.path(), &key.serialize_pem());
    sandbox.write("lockgate.toml", CONFIG);
    let server = Server::start(&sandbox);
    let url = endpoint(&server);
    let error = sandbox
        .run(&format!("queue list --endpoint {url} --ca cert.pem"))
        .fails_with(1);
    assert!(
        error.contains("an authority's own") && error.contains("CA:FALSE"),
        "{error}"
    );
}
