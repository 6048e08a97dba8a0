//! HTTPS: whom to trust, and what it means when a handshake fails.

use std::{
    fs, io,
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, CertificateError, ClientConfig, InvalidMessage, OtherError, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
        time_provider::TimeProvider,
    },
};

use super::Endpoint;
use crate::exit::{Exit, Failure};

/// What a client needs to be sure who a server is.
#[derive(Clone)]
pub(crate) struct Trust {
    pub(super) connector: TlsConnector,
    /// Whom the certificate has to be for.
    pub(super) name: ServerName<'static>,
}

impl Trust {
    /// Trusts the authorities in this file (PEM) and no others, else those of the system: what
    /// SSL_CERT_FILE and SSL_CERT_DIR name, else the folder that the distribution keeps.
    ///
    /// # Errors
    /// If no authority can be read, or no certificate can be for the endpoint's host.
    pub(crate) fn new(endpoint: &Endpoint, ca: Option<&Path>) -> Result<Self, Failure> {
        let name = ServerName::try_from(endpoint.host().to_owned()).map_err(|_| {
            let host = endpoint.host();
            Failure::usage(format!("{host:?} is no name that a certificate can be for"))
        })?;
        let roots = match ca {
            Some(path) => of_file(path)?,
            None => of_system()?,
        };
        // Safe defaults of the library are TLS 1.2 and 1.3.
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_details(provider, Arc::new(WallClock))
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::from_error(Exit::Failed, error).context("setting up TLS"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name,
        })
    }
}

/// The wall clock, for the validity of certificates. The library's own panics before 1970; here none is
/// valid then.
#[derive(Debug)]
struct WallClock;

impl TimeProvider for WallClock {
    fn current_time(&self) -> Option<UnixTime> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Some(UnixTime::since_unix_epoch(since_1970.unwrap_or_default()))
    }
}

fn of_file(path: &Path) -> Result<RootCertStore, Failure> {
    let wrong = |what: String| Failure::usage(format!("--ca {}: {what}", path.display()));
    let text = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| wrong(format!("this is not PEM: {error}")))?;
    if certificates.is_empty() {
        let what = "there is no certificate in it (-----BEGIN CERTIFICATE-----)";
        return Err(wrong(what.to_owned()));
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|error| wrong(format!("a certificate in it cannot be used: {error}")))?;
    }
    Ok(roots)
}

fn of_system() -> Result<RootCertStore, Failure> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems have a few authorities of long ago that nothing of today can read.
    roots.add_parsable_certificates(found.certs);
    if !roots.is_empty() {
        return Ok(roots);
    }
    let why = match found.errors.first() {
        Some(error) => format!(": {error}"),
        None => String::new(),
    };
    Err(
        Failure::usage(format!("this system names no authorities to trust{why}"))
            .hint("name a file of them with --ca FILE, or install the package ca-certificates"),
    )
}

/// Why there is no TLS with a server, in words; and what to do, if there is something. `None` if the
/// connection broke, which says nothing about the server.
pub(super) fn explain(error: &io::Error, endpoint: &Endpoint) -> Option<(String, Option<String>)> {
    let no_tls = || {
        let plain = endpoint.to_string().replacen("https", "http", 1);
        let hint = format!("if it serves plain HTTP: --endpoint {plain}");
        ("it does not speak TLS".to_owned(), Some(hint))
    };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(error) = inner else {
        // What a server does that takes the first bytes of TLS for a bad request.
        return (error.kind() == io::ErrorKind::UnexpectedEof).then(no_tls);
    };
    Some(match error {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => no_tls(),
        rustls::Error::InvalidCertificate(error) => about_certificate(error, endpoint),
        rustls::Error::PeerIncompatible(_) | rustls::Error::AlertReceived(_) => {
            (format!("it refuses: {error}"), None)
        }
        error => (error.to_string(), None),
    })
}

fn about_certificate(error: &CertificateError, endpoint: &Endpoint) -> (String, Option<String>) {
    let host = endpoint.host();
    match error {
        // The second is an authority that has the name of a trusted one, but not its key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => (
            "its certificate is of an authority that is not trusted".to_owned(),
            Some("name a file with the authority's certificate: --ca FILE".to_owned()),
        ),
        CertificateError::NotValidForName => (
            format!("its certificate is not for {host}"),
            Some("use the name in --endpoint that the certificate is for".to_owned()),
        ),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<_> = presented.iter().map(|name| bare(name)).collect();
            (
                format!(
                    "its certificate is not for {host}, but for {}",
                    names.join(", ")
                ),
                Some("use a name in --endpoint that the certificate is for".to_owned()),
            )
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            "its certificate has expired".to_owned(),
            Some("renew it; if it is new, set this machine's clock".to_owned()),
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            "its certificate is not valid yet".to_owned(),
            Some("is this machine's clock right?".to_owned()),
        ),
        // A self-signed certificate as `openssl req -x509` makes it is an authority's.
        CertificateError::Other(OtherError(other))
            if other.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
        {
            (
                "its certificate is an authority's own, which no server may use as its own"
                    .to_owned(),
                Some(
                    "give the server one that the authority has signed, or make it with \
                 -addext basicConstraints=critical,CA:FALSE"
                        .to_owned(),
                ),
            )
        }
        error => (format!("its certificate cannot be used: {error}"), None),
    }
}

/// `DnsName("localhost")` is how the library writes a name.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner);
    inner.trim_end_matches(')').trim_matches('"')
}
