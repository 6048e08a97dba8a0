//! HTTPS: whom to trust, and what it means when a handshake fails.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
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

use crate::Endpoint;

/// What a client needs to be sure who a server is.
#[derive(Clone)]
pub(crate) struct Trust {
    pub(crate) connector: TlsConnector,
    /// Whom the certificate has to be for.
    pub(crate) name: ServerName<'static>,
}

/// Says why it cannot be known whom to trust.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// No certificate can be for the endpoint's host.
    #[error("{host:?} is no name that a certificate can be for")]
    Host {
        /// The host.
        host: String,
    },
    /// The file of authorities cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file of authorities holds something else.
    #[error("{}: {what}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The system has no authorities.
    #[error("this system names no authorities to trust{why}")]
    System {
        /// The first reason, behind a colon; empty if there is none.
        why: String,
    },
    /// The TLS library refuses its own defaults.
    #[error("setting up TLS")]
    Setup(#[source] rustls::Error),
}

/// Says why there is no TLS with a server. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsCause {
    /// The server speaks no TLS; perhaps plain HTTP.
    NotSpoken,
    /// The server closed the connection before it said anything: it stops at the moment, or speaks no TLS.
    Closed,
    /// Its certificate is of an authority that is not trusted.
    Untrusted,
    /// Its certificate is for other names than this host.
    OtherName {
        /// The host of the endpoint.
        host: String,
        /// The names that the certificate is for; empty if they are not known.
        names: Vec<String>,
    },
    /// Its certificate has expired.
    Expired,
    /// Its certificate is not valid yet.
    NotYetValid,
    /// Its certificate is an authority's own.
    Authority,
    /// Something else, in words.
    Other(String),
}

impl fmt::Display for TlsCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSpoken => "it does not speak TLS",
            Self::Closed => {
                "it closed the connection at once, as a server does that stops or does not speak TLS"
            }
            Self::Untrusted => "its certificate is of an authority that is not trusted",
            Self::OtherName { host, names } => {
                write!(f, "its certificate is not for {host}")?;
                return match names.is_empty() {
                    true => Ok(()),
                    false => write!(f, ", but for {}", names.join(", ")),
                };
            }
            Self::Expired => "its certificate has expired",
            Self::NotYetValid => "its certificate is not valid yet",
            Self::Authority => {
                "its certificate is an authority's own, which no server may use as its own"
            }
            Self::Other(what) => what,
        })
    }
}

impl Trust {
    /// Trusts the authorities in this file (PEM) and no others, else those of the system. Blocks: it reads
    /// files.
    pub(crate) fn new(endpoint: &Endpoint, authorities: Option<&Path>) -> Result<Self, TrustError> {
        let host = endpoint.host();
        let name = ServerName::try_from(host.to_owned()).map_err(|_| TrustError::Host {
            host: host.to_owned(),
        })?;
        let roots = match authorities {
            Some(file) => of_file(file)?,
            None => of_system()?,
        };
        // Safe defaults of the library are TLS 1.2 and 1.3.
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_details(provider, Arc::new(WallClock))
            .with_safe_default_protocol_versions()
            .map_err(TrustError::Setup)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name,
        })
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("name", &self.name)
            .finish_non_exhaustive()
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

fn of_file(file: &Path) -> Result<RootCertStore, TrustError> {
    let wrong = |what: String| TrustError::File {
        file: file.to_owned(),
        what,
    };
    let text = fs::read(file).map_err(|source| TrustError::Read {
        file: file.to_owned(),
        source,
    })?;
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

fn of_system() -> Result<RootCertStore, TrustError> {
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
    Err(TrustError::System { why })
}

/// Why there is no TLS with a server. `None` if the connection broke, which says nothing about the server.
pub(crate) fn explain(error: &io::Error, endpoint: &Endpoint) -> Option<TlsCause> {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(error) = inner else {
        // What a server does that takes the first bytes of TLS for a bad request, and one that stops.
        let is_closed = error.kind() == io::ErrorKind::UnexpectedEof;
        return is_closed.then_some(TlsCause::Closed);
    };
    Some(match error {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => TlsCause::NotSpoken,
        rustls::Error::InvalidCertificate(error) => about_certificate(error, endpoint),
        rustls::Error::PeerIncompatible(_) | rustls::Error::AlertReceived(_) => {
            TlsCause::Other(format!("it refuses: {error}"))
        }
        error => TlsCause::Other(error.to_string()),
    })
}

fn about_certificate(error: &CertificateError, endpoint: &Endpoint) -> TlsCause {
    let other_name = |names| TlsCause::OtherName {
        host: endpoint.host().to_owned(),
        names,
    };
    match error {
        // The second is an authority that has the name of a trusted one, but not its key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsCause::Untrusted,
        CertificateError::NotValidForName => other_name(Vec::new()),
        CertificateError::NotValidForNameContext { presented, .. } => {
            other_name(presented.iter().map(|name| bare(name).to_owned()).collect())
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsCause::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsCause::NotYetValid
        }
        // A self-signed certificate as `openssl req -x509` makes it is an authority's.
        CertificateError::Other(OtherError(other))
            if other.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
        {
            TlsCause::Authority
        }
        error => TlsCause::Other(format!("its certificate cannot be used: {error}")),
    }
}

/// `DnsName("localhost")` is how the library writes a name.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner);
    inner.trim_end_matches(')').trim_matches('"')
}
