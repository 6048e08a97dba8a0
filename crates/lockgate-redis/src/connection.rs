//! The connection: made, checked, asked, and made again.

use std::{
    collections::HashMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockgate_core::RecordsError;
use lockgate_records::{Asking, Backoff, Bell, Url, unreadable};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo as _, ProtocolVersion, PushInfo,
    PushKind, RedisError, Script, TlsCertificates, Value,
    aio::MultiplexedConnection,
    from_redis_value_ref,
    io::tcp::{TcpSettings, socket2},
};
use tokio::{sync::Mutex, time::timeout};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

use crate::RedisRecordsOptions;

/// After so long without a word the system asks whether the server's end of the connection is still there.
const QUIET: Duration = Duration::from_secs(5);

const PROGRAM: &str = include_str!("program.lua");

/// What a server keeps of what it has answered, by its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisDurability {
    /// Nothing that a restart survives.
    Memory,
    /// A snapshot now and then.
    Snapshots,
    /// All, if only its process dies; all but the last seconds, if its machine does.
    EverySecond,
    /// All, on this one server.
    Always,
}

/// How to reach the server, and the connection to it.
pub(crate) struct Link {
    client: Client,
    pub(crate) options: RedisRecordsOptions,
    /// What all keys begin with. All are of one slot.
    prefix: String,
    script: Script,
    pub(crate) bell: Bell,
    /// Held while it is made, so that many callers make one.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    connection: Option<Connection>,
    backoff: Backoff,
}

/// One connection for commands and for word of changes. Clones are the same.
#[derive(Clone)]
struct Connection {
    connection: MultiplexedConnection,
    has_ended: Arc<AtomicBool>,
    /// Somebody has waited for an answer in vain.
    is_silent: Arc<AtomicBool>,
}

impl Connection {
    fn serves(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire) && !self.is_silent.load(Ordering::Acquire)
    }
}

fn invalid(why: impl Into<String>) -> RecordsError {
    let why = why.into();
    RecordsError::Invalid { why }
}

fn unavailable(error: &RedisError) -> RecordsError {
    let why = error.to_string();
    RecordsError::Unavailable { why }
}

/// The client for that URL, and the store that it names.
pub(crate) fn read(url: &str) -> Result<(Client, Option<String>), RecordsError> {
    let mut url = Url::of(url)?;
    if !["redis://", "rediss://"]
        .iter()
        .any(|it| url.base.starts_with(it))
    {
        return Err(invalid(
            "the URL of the server does not begin with redis:// or rediss://",
        ));
    }
    let store = url.take("store");
    let authorities = url.take("ssl-ca");
    url.ends("store and ssl-ca")?;
    // Its error might name what it could not read, which may be the password.
    let unreadable = |_| {
        invalid(
            "the URL of the server cannot be read: it is redis://USER:PASSWORD@HOST:PORT/DATABASE",
        )
    };
    let info = url
        .base
        .as_str()
        .into_connection_info()
        .map_err(unreadable)?;
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3);
    // Who only watches sends nothing, and would never learn that a server has gone without a word.
    let probes = socket2::TcpKeepalive::new()
        .with_time(QUIET)
        .with_interval(QUIET / 3);
    let tcp = TcpSettings::default()
        .set_keepalive(probes)
        .set_user_timeout(2 * QUIET);
    let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
    let client = if url.base.starts_with("rediss://") {
        // The client takes the process's provider; whoever has chosen one keeps it.
        if CryptoProvider::get_default().is_none() {
            let _ = ring::default_provider().install_default();
        }
        let root_cert = authorities.map(|path| {
            fs::read(&path).map_err(|error| invalid(format!("ssl-ca={path}: {error}")))
        });
        let root_cert = root_cert.transpose()?;
        let client_tls = None;
        Client::build_with_tls(
            info,
            TlsCertificates {
                client_tls,
                root_cert,
            },
        )
    } else {
        Client::open(info)
    };
    let client = client.map_err(|error| invalid(error.to_string()))?;
    Ok((client, store))
}

impl Link {
    pub(crate) fn new(client: Client, options: RedisRecordsOptions) -> Self {
        Self {
            client,
            prefix: format!("{{{}}}:", options.store),
            script: Script::new(PROGRAM),
            options,
            bell: Bell::default(),
            kept: Mutex::default(),
        }
    }

    /// Connects for the first time.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<(), RecordsError> {
        self.connection().await.map(drop)
    }

    /// Runs the program.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        of: &[&[u8]],
        changes: bool,
    ) -> Result<Value, RecordsError> {
        let mut was_lost = false;
        loop {
            let mut kept = self.connection().await?;
            let mut call = self.script.prepare_invoke();
            call.key(&self.prefix);
            for argument in of {
                call.arg(*argument);
            }
            let is_silent = kept.is_silent.clone();
            let asking = Asking::over(&is_silent);
            let asked = call.invoke_async::<Value>(&mut kept.connection);
            let asked = timeout(self.options.timeout, asked).await;
            asking.answered();
            let error = match asked {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => error,
                Err(_late) => {
                    self.forget(&kept).await;
                    let why = self.late();
                    return Err(match changes {
                        true => RecordsError::Unknown { why },
                        false => RecordsError::Unavailable { why },
                    });
                }
            };
            match error.kind() {
                // The server says no, before the program has changed anything: it is loading, full, or a replica now. A
                // replica is asked no more.
                ErrorKind::Server(_) | ErrorKind::Extension => {
                    self.forget(&kept).await;
                    return Err(unavailable(&error));
                }
                ErrorKind::Client | ErrorKind::InvalidClientConfig => {
                    return Err(unavailable(&error));
                }
                _ => {}
            }
            self.forget(&kept).await;
            if changes {
                let why = error.to_string();
                return Err(RecordsError::Unknown { why });
            }
            if was_lost {
                return Err(unavailable(&error));
            }
            was_lost = true;
        }
    }

    fn late(&self) -> String {
        format!(
            "no answer from the server within {:?}",
            self.options.timeout
        )
    }

    /// The connection, made if there is none. That goes on if whoever has asked for it waits no more.
    async fn connection(self: &Arc<Self>) -> Result<Connection, RecordsError> {
        if let Some(connection) = &self.kept.lock().await.connection
            && connection.serves()
        {
            return Ok(connection.clone());
        }
        let link = self.clone();
        let made = tokio::spawn(async move { link.make_once().await });
        made.await.unwrap_or_else(|ended| {
            let why = ended.to_string();
            Err(RecordsError::Unavailable { why })
        })
    }

    async fn make_once(&self) -> Result<Connection, RecordsError> {
        let mut kept = self.kept.lock().await;
        if let Some(connection) = &kept.connection
            && connection.serves()
        {
            return Ok(connection.clone());
        }
        if kept.connection.take().is_some() {
            // Of what happens until the next one is there nobody hears.
            self.bell.ring_all();
        }
        kept.backoff.check()?;
        let made = match timeout(self.options.timeout, self.make()).await {
            Ok(made) => made,
            Err(_late) => Err(RecordsError::Unavailable { why: self.late() }),
        };
        kept.backoff.connected(&made);
        let made = made?;
        kept.connection = Some(made.clone());
        Ok(made)
    }

    /// It ends with the last of those who have asked over it.
    async fn forget(&self, lost: &Connection) {
        lost.has_ended.store(true, Ordering::Release);
        let mut kept = self.kept.lock().await;
        let is_kept = |kept: &Connection| Arc::ptr_eq(&kept.has_ended, &lost.has_ended);
        if kept.connection.as_ref().is_some_and(is_kept) {
            kept.connection = None;
        }
        drop(kept);
        // From here on nobody hears of changes.
        self.bell.ring_all();
    }

    /// A connection that hears of changes, to a server that keeps records.
    async fn make(&self) -> Result<Connection, RecordsError> {
        let has_ended = Arc::new(AtomicBool::new(false));
        let heard = {
            let (bell, has_ended) = (self.bell.clone(), has_ended.clone());
            move |push: PushInfo| -> Result<(), redis::aio::SendError> {
                match push.kind {
                    PushKind::Message => {
                        if let Some(Value::BulkString(name)) = push.data.get(1) {
                            bell.ring(&String::from_utf8_lossy(name));
                        }
                    }
                    PushKind::Disconnection => {
                        has_ended.store(true, Ordering::Release);
                        bell.ring_all();
                    }
                    _ => {}
                }
                Ok(())
            }
        };
        // Each command has its own time; the client's default is half a second.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.timeout))
            .set_response_timeout(None)
            .set_push_sender(heard);
        let connected = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        let address = self.client.get_connection_info().addr().to_string();
        let mut connection = connected.await.map_err(|error| {
            let why = format!("{address}: {error}");
            RecordsError::Unavailable { why }
        })?;
        let said: String = redis::cmd("INFO")
            .query_async(&mut connection)
            .await
            .map_err(|error| unavailable(&error))?;
        check(&said)?;
        let channel = format!("{}changes", self.prefix);
        let subscribed = connection.subscribe(channel).await;
        subscribed.map_err(|error| unavailable(&error))?;
        Ok(Connection {
            connection,
            has_ended,
            is_silent: Arc::default(),
        })
    }

    pub(crate) async fn durability(self: &Arc<Self>) -> Result<RedisDurability, RecordsError> {
        let mut kept = self.connection().await?;
        let asked = async {
            let mut ask = redis::cmd("CONFIG");
            ask.arg("GET")
                .arg("appendonly")
                .arg("appendfsync")
                .arg("save");
            ask.query_async::<HashMap<String, String>>(&mut kept.connection)
                .await
        };
        let settings = match timeout(self.options.timeout, asked).await {
            Ok(settings) => settings.map_err(|error| unavailable(&error))?,
            Err(_late) => return Err(RecordsError::Unavailable { why: self.late() }),
        };
        let is = |name: &str, value: &str| settings.get(name).is_some_and(|it| it == value);
        Ok(match is("appendonly", "yes") {
            true if is("appendfsync", "always") => RedisDurability::Always,
            true if is("appendfsync", "everysec") => RedisDurability::EverySecond,
            // Whenever the system likes.
            true => RedisDurability::Snapshots,
            false if is("save", "") => RedisDurability::Memory,
            false => RedisDurability::Snapshots,
        })
    }
}

/// That the server takes writes, and drops none of them by itself.
fn check(said: &str) -> Result<(), RecordsError> {
    let of = |name: &str| {
        let mut lines = said.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(given, _)| *given == name)
            .map(|(_, value)| value.trim())
    };
    if of("role").is_some_and(|role| role != "master") {
        return Err(RecordsError::Unavailable {
            why: "the server is a replica, which takes no writes".to_owned(),
        });
    }
    if of("cluster_enabled") == Some("1") {
        return Err(invalid(
            "the server is one of a Redis Cluster, which a store of records cannot use",
        ));
    }
    let is_bounded = of("maxmemory").is_some_and(|max| max != "0");
    if let Some(policy) =
        of("maxmemory_policy").filter(|it| is_bounded && it.starts_with("allkeys"))
    {
        return Err(invalid(format!(
            "the server's setting maxmemory-policy is {policy}, which drops records when memory is short: it must be \
             noeviction, or one that drops only what expires"
        )));
    }
    Ok(())
}

/// A value of the program's answer, as the type that is needed.
pub(crate) fn value<T: redis::FromRedisValue>(value: &Value) -> Result<T, RecordsError> {
    from_redis_value_ref(value).map_err(|error| unreadable(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_keep_records_is_refused() {
        for (said, expected) in [
            ("role:slave\r\n", "replica"),
            ("role:master\r\ncluster_enabled:1\r\n", "Cluster"),
            (
                "role:master\r\nmaxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\n",
                "allkeys-lru",
            ),
        ] {
            let error = check(said).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        check("role:master\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n").unwrap();
        check("role:master\r\nmaxmemory:1000\r\nmaxmemory_policy:noeviction\r\n").unwrap();
    }
}
