//! What a URL says.

use std::{path::Path, time::Duration};

use lockgate_core::RecordsError;
use lockgate_records::Url;
use mysql_async::{Opts, OptsBuilder, SslOpts};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

fn invalid(why: impl Into<String>) -> RecordsError {
    let why = why.into();
    RecordsError::Invalid { why }
}

/// A URL, of which whoever connects takes its own parameters first.
pub(crate) struct Target {
    pub(crate) url: Url,
    opts: Opts,
}

impl Target {
    pub(crate) fn of(url: &str) -> Result<Self, RecordsError> {
        let url = Url::of(url)?;
        let rest = (url.base)
            .strip_prefix("mysql://")
            .or_else(|| url.base.strip_prefix("mariadb://"))
            .ok_or_else(|| {
                invalid("the URL of the database does not begin with mysql:// or mariadb://")
            })?;
        // Its error would name what it could not read, which may be the password.
        let opts = Opts::from_url(&format!("mysql://{rest}")).map_err(|_| {
            invalid(
                "the URL of the database cannot be read: it is mysql://USER:PASSWORD@HOST:PORT/DATABASE",
            )
        })?;
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(invalid(
                "the URL names no database: it is mysql://USER:PASSWORD@HOST:PORT/DATABASE",
            ));
        }
        Ok(Self { url, opts })
    }

    /// The options of the connections. `own` names the parameters that were taken.
    pub(crate) fn opts(mut self, timeout: Duration, own: &str) -> Result<Opts, RecordsError> {
        let (mode, authorities) = (self.url.take("ssl-mode"), self.url.take("ssl-ca"));
        self.url.ends(&format!("{own}, ssl-mode and ssl-ca"))?;
        let mode = mode.map(|mode| mode.to_ascii_lowercase());
        let tls = match mode.as_deref() {
            None | Some("disabled" | "preferred") => None,
            Some("required" | "verify_ca" | "verify_identity") => {
                Some(tls(authorities.as_deref())?)
            }
            Some(mode) => {
                return Err(invalid(format!(
                    "ssl-mode={mode} is none of disabled, preferred, required, verify_ca, verify_identity: the last three \
                     are TLS with a certificate that is verified, all others are plain"
                )));
            }
        };
        let opts = OptsBuilder::from_opts(self.opts)
            .tcp_keepalive(Some(timeout.max(Duration::from_secs(1))))
            .tcp_nodelay(true)
            // A file of the machine that a server asks for would be sent to it; a socket is another way to it.
            .prefer_socket(false)
            .ssl_opts(tls);
        Ok(opts.into())
    }
}

/// TLS with a server whose certificate is verified, its name included.
fn tls(authorities: Option<&str>) -> Result<SslOpts, RecordsError> {
    // The client takes the process's provider; whoever has chosen one keeps it.
    if CryptoProvider::get_default().is_none() {
        let _ = ring::default_provider().install_default();
    }
    let roots = match authorities {
        Some(path) => {
            let bytes = std::fs::read(Path::new(path))
                .map_err(|error| invalid(format!("ssl-ca={path}: {error}")))?;
            vec![bytes.into()]
        }
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            let found = found.into_iter().map(|it| it.to_vec().into());
            found.collect()
        }
    };
    if roots.is_empty() {
        return Err(invalid(
            "this system names no authorities to trust: name a file of them with ssl-ca=FILE, or install the package \
             ca-certificates",
        ));
    }
    let tls = SslOpts::default()
        .with_disable_built_in_roots(true)
        .with_root_certs(roots);
    Ok(tls)
}
