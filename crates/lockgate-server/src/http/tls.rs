//! TLS in front of HTTP: certificate and key from files, read again when they change.

use std::{
    future::pending,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use tokio::task::spawn_blocking;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject as _},
        },
    },
};

use crate::{FileBytes, FileKinds, WatchedFiles};

/// The files of a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain in PEM, the server's own certificate first.
    pub certificates: PathBuf,
    /// Its private key, in PEM. Only its owner may be able to read the file.
    pub key: PathBuf,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("reading {}", path.display())]
    Read {
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The contents of a file cannot be used.
    #[error("{}: {what}", path.display())]
    Unusable {
        path: PathBuf,
        /// What is wrong with it, and what to do.
        what: String,
    },
}

/// A [server's](crate::Server) certificate. Its files are read again when they change, or on
/// request.
#[derive(Clone, Debug)]
pub struct Certificate(pub(crate) Arc<Tls>);

impl Certificate {
    /// Reads the files again; new connections get the new certificate. Blocks the thread while the
    /// disk reads.
    ///
    /// # Errors
    /// If the files cannot be used, or are not regular files; then the old certificate stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.0.reload()
    }
}

/// The certificate that new connections get.
pub(crate) struct Tls {
    files: TlsFiles,
    /// The state of the files before they were first read.
    seen: WatchedFiles,
    current: RwLock<TlsAcceptor>,
    /// Held while the files are read again, so that the latest read wins.
    reload: Mutex<()>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

impl Tls {
    pub(crate) fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let TlsFiles { certificates, key } = files.clone();
        let seen = WatchedFiles::new([certificates, key]);
        let current = RwLock::new(load(&files, FileKinds::Any)?);
        Ok(Self {
            files,
            seen,
            current,
            reload: Mutex::new(()),
        })
    }

    /// The acceptor for a connection that begins now.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again. If they cannot be used, the old certificate stays.
    fn reload(&self) -> Result<(), TlsError> {
        let _alone = self.reload.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = load(&self.files, FileKinds::Regular)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }
}

/// Reads the files again whenever they change. Never returns.
pub(crate) async fn watch(tls: Option<Arc<Tls>>) {
    let Some(tls) = tls else {
        return pending().await;
    };
    let mut files = tls.seen.clone();
    loop {
        files.changed().await;
        let read = tls.clone();
        // On another thread, because this one accepts connections.
        let Ok(reloaded) = spawn_blocking(move || read.reload()).await else {
            continue; // the runtime ends
        };
        match reloaded {
            Ok(()) => tracing::info!("the certificate has changed; new connections get it"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "the new certificate cannot be used, the old one stays");
            }
        }
    }
}

fn load(files: &TlsFiles, kinds: FileKinds) -> Result<TlsAcceptor, TlsError> {
    let unusable = |path: &Path, what: String| TlsError::Unusable {
        path: path.to_owned(),
        what,
    };
    let path = &files.certificates;
    let file = read(path, kinds)?;
    let certificates = CertificateDer::pem_slice_iter(&file.bytes).collect::<Result<Vec<_>, _>>();
    let certificates =
        certificates.map_err(|error| unusable(path, format!("this is not PEM: {error}")))?;
    if certificates.is_empty() {
        let what = "there is no certificate in it (-----BEGIN CERTIFICATE-----)";
        return Err(unusable(path, what.to_owned()));
    }
    let path = &files.key;
    let file = read(path, kinds)?;
    if !file.is_private() {
        return Err(unusable(
            path,
            "others may read this private key; chmod 600 it".to_owned(),
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(&file.bytes).map_err(|error| {
        unusable(path, match error {
            pem::Error::NoItemsFound => {
                "there is no private key in it that is not encrypted (-----BEGIN PRIVATE KEY-----)".to_owned()
            }
            error => format!("this is not PEM: {error}"),
        })
    })?;
    // The library's safe default versions are TLS 1.2 and 1.3.
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(certificates, key)
        });
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let certificate = files.certificates.display();
            unusable(
                path,
                format!("this key is not the one of the certificate in {certificate}"),
            )
        }
        error => unusable(&files.certificates, error.to_string()),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read(path: &Path, kinds: FileKinds) -> Result<FileBytes, TlsError> {
    FileBytes::read(path, kinds).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn what_changes_between_the_first_reading_and_the_watch_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let files = TlsFiles {
            certificates: folder.path().join("certificate"),
            key: folder.path().join("key"),
        };
        fs::write(&files.certificates, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
        let tls = Tls::open(files.clone()).unwrap();
        assert!(!tls.seen.clone().look());
        fs::write(&files.certificates, "a renewal goes wrong here").unwrap();
        assert!(tls.seen.clone().look());
        // The old certificate stays.
        tls.reload().unwrap_err();
        drop(tls.acceptor());
    }
}
