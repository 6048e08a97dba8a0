//! Chooses one of the servers that a URL names: the one that takes writes, or, for those who only
//! read, else a standby.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{net::lookup_host, time::timeout_at};
use tokio_postgres::{
    Client, Config, Socket,
    config::{Host, TargetSessionAttrs},
    tls::{MakeTlsConnect, TlsConnect},
};

use crate::session::{Failure, Unasked, drive, first_row};

/// The servers that a URL names.
pub(crate) struct Hosts {
    /// For each of them: everything else is the same.
    servers: Vec<Server>,
}

struct Server {
    /// Without an address.
    config: Config,
    host: Option<Host>,
    address: Option<IpAddr>,
    port: u16,
}

/// What a server is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Only the one that takes writes will do.
    Writing,
    /// That one too, or else the first standby.
    Reading,
}

/// A connection to a server.
pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) unasked: Arc<Unasked>,
    /// It takes no writes.
    pub(crate) is_standby: bool,
    /// Its `synchronous_standby_names`, if there are any.
    pub(crate) standbys: Option<String>,
}

/// Whether the server takes writes, and for whom its commits wait. A server that is only set to
/// read-only will do: the session sets that otherwise.
const ASK: &str = "
    SELECT pg_catalog.pg_is_in_recovery(),
           pg_catalog.current_setting('synchronous_standby_names', true)";

impl Hosts {
    pub(crate) fn of(config: Config) -> Self {
        let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
        let ports = config.get_ports();
        let servers = (0..hosts.len().max(addresses.len()))
            .map(|index| Server {
                config: without_hosts(&config),
                host: hosts.get(index).cloned(),
                address: addresses.get(index).copied(),
                port: *ports.get(index).or(ports.first()).unwrap_or(&5432),
            })
            .collect();
        Self { servers }
    }

    /// Connects to the first that takes writes, or else, if that will do, to the first standby. Each server
    /// gets an equal share of the time that is left, in which its name is looked up and then each of its
    /// addresses gets an equal share, so that one that is silent does not keep it from the others. Names are
    /// looked up anew each time: a failover may be a name that points elsewhere.
    pub(crate) async fn connect<T>(
        &self,
        deadline: Instant,
        wanted: Use,
        tls: T,
    ) -> Result<Connected, Failure>
    where
        T: MakeTlsConnect<Socket, Stream: Send + 'static, TlsConnect: Send> + Clone,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let mut failed = Vec::new();
        let mut standby = None;
        for (index, server) in self.servers.iter().enumerate() {
            let end = Instant::now() + share(deadline, self.servers.len() - index);
            let places = match server.places(end).await {
                Ok(places) => places,
                Err(failure) => {
                    failed.push((server.to_string(), failure));
                    continue;
                }
            };
            let count = places.len();
            for (index, Place { name, config }) in places.into_iter().enumerate() {
                match connect(&config, share(end, count - index), tls.clone()).await {
                    Ok(connected) if !connected.is_standby => return Ok(connected),
                    Ok(connected) if wanted == Use::Reading => {
                        standby.get_or_insert(connected);
                    }
                    Ok(_) => failed.push((name, Failure::Standby)),
                    Err(failure) => failed.push((name, failure)),
                }
            }
        }
        if let Some(standby) = standby {
            return Ok(standby);
        }
        Err(if failed.is_empty() {
            Failure::NoHost
        } else {
            Failure::NoneServes(failed)
        })
    }
}

/// What each of so many gets of the time until then.
fn share(end: Instant, count: usize) -> Duration {
    let left = end.saturating_duration_since(Instant::now());
    left / u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// Where a name points to.
async fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(test)]
    if name == tests::UNANSWERED {
        std::future::pending::<()>().await;
    }
    Ok(lookup_host((name, port)).await?.collect())
}

/// Where one server is.
struct Place {
    name: String,
    config: Config,
}

impl Server {
    async fn places(&self, deadline: Instant) -> Result<Vec<Place>, Failure> {
        let mut config = self.config.clone();
        config.port(self.port);
        let name = match (&self.host, self.address) {
            (Some(Host::Tcp(name)), None) => name,
            (host, address) => {
                match host {
                    Some(Host::Tcp(name)) => _ = config.host(name),
                    Some(Host::Unix(path)) => _ = config.host_path(path),
                    None => {}
                }
                if let Some(address) = address {
                    config.hostaddr(address);
                }
                let name = self.to_string();
                return Ok(vec![Place { name, config }]);
            }
        };
        config.host(name);
        let found = timeout_at(deadline.into(), look_up(name, self.port))
            .await
            .map_err(|_late| Failure::NameLate)?
            .map_err(Failure::Name)?;
        let place = |found: SocketAddr| {
            let mut config = config.clone();
            config.hostaddr(found.ip());
            let name = if found.ip().to_string() == *name {
                self.to_string()
            } else {
                format!("{self} ({})", found.ip())
            };
            Place { name, config }
        };
        Ok(found.into_iter().map(place).collect())
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.address) {
            (Some(Host::Tcp(name)), _) => write!(f, "{name}:{}", self.port),
            (Some(Host::Unix(path)), _) => write!(f, "{}:{}", path.display(), self.port),
            (None, Some(address)) => write!(f, "{address}:{}", self.port),
            (None, None) => write!(f, "port {}", self.port),
        }
    }
}

/// Connects to one place, and has the runtime it is called on move the connection's bytes.
async fn connect<T>(config: &Config, time: Duration, tls: T) -> Result<Connected, Failure>
where
    T: MakeTlsConnect<Socket, Stream: Send + 'static, TlsConnect: Send>,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let connecting = async {
        let (client, connection) = config.connect(tls).await?;
        let unasked = Arc::<Unasked>::default();
        tokio::spawn(drive(connection, unasked.clone()));
        let messages = client.simple_query(ASK).await?;
        let row = first_row(&messages);
        let is_standby = row.and_then(|row| row.get(0)) == Some("t");
        let standbys = row.and_then(|row| row.get(1)).unwrap_or_default();
        Ok(Connected {
            client,
            unasked,
            is_standby,
            standbys: Some(standbys.to_owned()).filter(|names| !names.is_empty()),
        })
    };
    match tokio::time::timeout(time, connecting).await {
        Ok(connected) => connected,
        Err(_late) => Err(Failure::Late(time)),
    }
}

/// The same but for where; what is added to a configuration cannot be taken out of it again.
fn without_hosts(config: &Config) -> Config {
    let mut same = Config::new();
    if let Some(user) = config.get_user() {
        same.user(user);
    }
    if let Some(password) = config.get_password() {
        same.password(password);
    }
    if let Some(dbname) = config.get_dbname() {
        same.dbname(dbname);
    }
    if let Some(options) = config.get_options() {
        same.options(options);
    }
    if let Some(name) = config.get_application_name() {
        same.application_name(name);
    }
    if let Some(&timeout) = config.get_connect_timeout() {
        same.connect_timeout(timeout);
    }
    if let Some(&timeout) = config.get_tcp_user_timeout() {
        same.tcp_user_timeout(timeout);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        same.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        same.keepalives_retries(retries);
    }
    same.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(TargetSessionAttrs::Any);
    same
}

#[cfg(test)]
mod tests {
    use tokio_postgres::NoTls;

    use super::*;

    /// Whoever is asked for this name does not answer.
    pub(super) const UNANSWERED: &str = "unanswered.invalid";

    /// A name that nobody answers for leaves the servers behind it their share of the time.
    #[tokio::test]
    async fn a_name_that_is_not_looked_up_keeps_it_from_no_other() {
        // No server, but it ends the connection, if it is given the time.
        let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = other.local_addr().unwrap().port();
        tokio::spawn(async move { drop(other.accept().await) });
        let url = format!("postgres://user@{UNANSWERED}:5432,127.0.0.1:{port}/x");
        let hosts = Hosts::of(url.parse().unwrap());
        let deadline = Instant::now() + Duration::from_secs(4);
        let failed = hosts.connect(deadline, Use::Writing, NoTls).await;
        let told = failed.err().expect("no server is there").to_string();
        assert!(
            told.contains("its name was not looked up in time"),
            "{told}"
        );
        assert!(!told.contains("no answer"), "{told}");
    }
}
