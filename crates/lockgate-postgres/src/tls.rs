//! TLS to the server: whether a URL asks for it, whom it trusts, and the stream.
//!
//! The stream is written here because what there is for it brings a dozen crates more, to bind the
//! password's proof to the certificate; here the certificate is always verified, which keeps anybody
//! else from the password in the first place.

use std::{
    io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{SystemTime, UNIX_EPOCH},
};

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Config, Socket,
    config::SslMode,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_rustls::{
    TlsConnector, client,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{
            CertificateDer, InvalidDnsNameError, ServerName, UnixTime, pem::PemObject as _,
        },
        time_provider::TimeProvider,
    },
};

use crate::OpenError;

/// What is in the way of TLS. [`OpenError::Tls`] says that it is about TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("{}: it cannot be read as certificates (PEM)", .0.display())]
    File(
        PathBuf,
        #[source] tokio_rustls::rustls::pki_types::pem::Error,
    ),
    #[error("{}: no authority in it can be used", .0.display())]
    NoAuthority(PathBuf),
    #[error(
        "this system names no authorities to trust: name a file of them with sslrootcert=FILE, or \
         install the package ca-certificates"
    )]
    NoSystem,
    #[error("setting it up")]
    Setup(#[source] tokio_rustls::rustls::Error),
}

/// How a URL wants to be connected to.
pub(crate) struct Target {
    pub(crate) config: Config,
    /// `None`: plainly.
    pub(crate) tls: Option<Tls>,
}

/// Makes connections encrypted, with a server whose certificate is verified.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Target {
    /// Reads a connection string: as PostgreSQL's own clients do, but that TLS always verifies the
    /// certificate, its name included.
    pub(crate) fn of(url: &str) -> Result<Self, OpenError> {
        let Parameters { url, mode, roots } = Parameters::taken_from(url)?;
        let mut config: Config = url.parse().map_err(OpenError::Url)?;
        let wanted = match mode.as_deref() {
            None => config.get_ssl_mode() == SslMode::Require,
            Some("disable" | "allow" | "prefer") => false,
            Some("require" | "verify-ca" | "verify-full") => true,
            Some(mode) => {
                return Err(OpenError::SslMode {
                    mode: mode.to_owned(),
                });
            }
        };
        if !wanted {
            config.ssl_mode(SslMode::Disable);
            return Ok(Self { config, tls: None });
        }
        config.ssl_mode(SslMode::Require);
        let tls = Tls::trusting(roots).map_err(|error| OpenError::Tls(Box::new(error)))?;
        Ok(Self {
            config,
            tls: Some(tls),
        })
    }
}

/// The parameters about TLS, which the parser of URLs knows in part, and the URL without them and
/// without what it has of `target_session_attrs`.
struct Parameters {
    url: String,
    mode: Option<String>,
    /// `None`: the system's authorities.
    roots: Option<PathBuf>,
}

impl Parameters {
    fn taken_from(url: &str) -> Result<Self, OpenError> {
        let mut taken = Self {
            url: url.to_owned(),
            mode: None,
            roots: None,
        };
        // Behind the last one: a password may have a question mark in it.
        let Some((rest, query)) = url.rsplit_once('?').filter(|_| url.contains("://")) else {
            return Ok(taken);
        };
        let mut others = Vec::new();
        for parameter in query.split('&') {
            let value = |value| percent_decode_str(value).decode_utf8_lossy().into_owned();
            match parameter.split_once('=') {
                Some(("sslmode", mode)) => taken.mode = Some(value(mode)),
                Some(("sslrootcert", "system")) => taken.roots = None,
                Some(("sslrootcert", file)) => taken.roots = Some(value(file).into()),
                // The server that takes writes is looked for in any case.
                Some(("target_session_attrs", "any" | "read-write" | "primary")) => {}
                Some(("target_session_attrs", _)) => {
                    return Err(OpenError::Options {
                        what: "target_session_attrs asks for a standby, and only the primary takes writes: \
                               read-write, or nothing, finds it among the hosts",
                    });
                }
                Some((name @ ("sslcert" | "sslkey" | "sslcrl" | "sslpassword"), _)) => {
                    return Err(OpenError::SslParameter {
                        name: name.to_owned(),
                    });
                }
                _ => others.push(parameter),
            }
        }
        let mark = if others.is_empty() { "" } else { "?" };
        taken.url = format!("{rest}{mark}{}", others.join("&"));
        Ok(taken)
    }
}

impl Tls {
    fn trusting(roots: Option<PathBuf>) -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        // Systems have a few authorities of long ago that nothing of today can read.
        match roots {
            Some(path) => {
                let found = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect);
                let found: Vec<_> = found.map_err(|error| TlsError::File(path.clone(), error))?;
                if store.add_parsable_certificates(found).0 == 0 {
                    return Err(TlsError::NoAuthority(path));
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                if store.add_parsable_certificates(found.certs).0 == 0 {
                    return Err(TlsError::NoSystem);
                }
            }
        }
        // Safe defaults of the library are TLS 1.2 and 1.3.
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_details(provider, Arc::new(WallClock))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .with_root_certificates(store)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
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

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, InvalidDnsNameError> {
        Ok(Handshake {
            connector: TlsConnector::from(self.0.clone()),
            name: ServerName::try_from(host.to_owned())?,
        })
    }
}

/// A connection that is about to be encrypted.
pub(crate) struct Handshake {
    connector: TlsConnector,
    /// Whom the certificate has to be for.
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        let handshake = self.connector.connect(self.name, stream);
        Box::pin(async move { Ok(Encrypted(handshake.await?)) })
    }
}

/// An encrypted connection.
pub(crate) struct Encrypted(client::TlsStream<Socket>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(url: &str) -> (String, Option<String>, Option<PathBuf>) {
        let taken = Parameters::taken_from(url).unwrap();
        (taken.url, taken.mode, taken.roots)
    }

    #[test]
    fn parameters_about_tls_are_taken_out_of_a_url_and_all_others_stay() {
        let plain = "postgres://u:a?b@h:1/d";
        assert_eq!(taken(plain), (plain.to_owned(), None, None));
        assert_eq!(
            taken("postgres://u@h/d?sslmode=verify-full&sslrootcert=%2Fca%20s.pem"),
            (
                "postgres://u@h/d".to_owned(),
                Some("verify-full".to_owned()),
                Some("/ca s.pem".into())
            )
        );
        assert_eq!(
            taken("postgres://u@h/d?application_name=x&sslmode=require&sslrootcert=system&a=b"),
            (
                "postgres://u@h/d?application_name=x&a=b".to_owned(),
                Some("require".to_owned()),
                None
            )
        );
        let words = "host=h user=u sslmode=require";
        assert_eq!(taken(words), (words.to_owned(), None, None));
    }

    #[test]
    fn what_asks_for_no_tls_gets_none_and_what_cannot_be_had_is_refused() {
        for url in [
            "postgres://u@h/d",
            "postgres://u@h/d?sslmode=prefer",
            "postgres://u@h/d?sslmode=allow",
            "postgres://u@h/d?sslmode=disable",
            "host=h user=u",
        ] {
            let target = Target::of(url).unwrap();
            assert!(target.tls.is_none(), "{url}");
            assert_eq!(target.config.get_ssl_mode(), SslMode::Disable);
        }
        for (url, text) in [
            (
                "postgres://u:hidden@h/d?sslmode=always",
                "sslmode=always is none of disable, prefer, require, verify-ca, verify-full",
            ),
            (
                "postgres://u:hidden@h/d?sslcert=me.pem",
                "sslcert: certificates of clients cannot be used",
            ),
            (
                "postgres://u:hidden@h/d?sslmode=require&sslrootcert=/nowhere",
                "TLS to the database",
            ),
        ] {
            let error = Target::of(url).err().unwrap();
            let told = error.to_string();
            assert!(told.contains(text), "{told}");
            assert!(!format!("{error:?}{told}").contains("hidden"), "{error:?}");
        }
    }
}
