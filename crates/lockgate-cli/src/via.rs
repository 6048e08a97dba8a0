//! The store that elects, by its URL.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use lockgate_client::{Client, Endpoint};
use lockgate_coordination::{FileRecords, RecordsCoordinator, RecordsTenure};
use lockgate_core::{
    ElectionName, RecordsError,
    coordination::{
        AskToResign, Call, Campaign, CoordinationError, Coordinator, CoordinatorCapabilities,
        ElectionState, EndReason, Fence, Observe, Tenure, Term,
    },
};
#[cfg(feature = "mysql")]
use lockgate_mysql::MysqlRecords;
#[cfg(feature = "postgres")]
use lockgate_postgres::PostgresRecords;
#[cfg(feature = "redis")]
use lockgate_redis::RedisRecords;
#[cfg(feature = "zookeeper")]
use lockgate_zookeeper::{ZookeeperCoordinator, ZookeeperTenure};
use percent_encoding::percent_decode_str;

use crate::{
    commands::{client_at, environment},
    exit::{Exit, Failure},
    settings::{Flags, resolve, table},
};

/// Where elections are held.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Server(Endpoint),
    Folder(PathBuf),
    #[cfg(feature = "zookeeper")]
    Zookeeper(String),
    #[cfg(feature = "postgres")]
    Postgres(String),
    #[cfg(feature = "mysql")]
    Mysql(String),
    #[cfg(feature = "redis")]
    Redis(String),
}

/// Looks whether that URL names a store. The error shows nothing of it: there may be a password in it.
pub(crate) fn check(url: &str) -> Result<(), String> {
    place(url).map(drop)
}

fn place(url: &str) -> Result<Place, String> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    match scheme {
        "http" | "https" => match url.parse() {
            Ok(endpoint) => Ok(Place::Server(endpoint)),
            // Its error shows the URL, in which there may be a password.
            Err(_) => Err(
                "the value is no URL of a server: it is http://HOST:PORT or https://HOST:PORT, without a user and a path"
                    .to_owned(),
            ),
        },
        "file" => {
            if rest.contains(['?', '#']) {
                return Err("in the path of a file:// URL, write ? as %3F and # as %23".to_owned());
            }
            let path = percent_decode_str(rest).decode_utf8();
            let path = path.map_err(|_| "the path of the file:// URL is no UTF-8".to_owned())?;
            if !path.starts_with('/') {
                return Err("write file:///FOLDER with the whole path of the folder".to_owned());
            }
            Ok(Place::Folder(PathBuf::from(path.into_owned())))
        }
        #[cfg(feature = "zookeeper")]
        "zk" => match lockgate_zookeeper::ZookeeperOptions::parse(url) {
            Ok(_) => Ok(Place::Zookeeper(url.to_owned())),
            Err(error) => Err(error.to_string()),
        },
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Place::Postgres(url.to_owned())),
        #[cfg(feature = "mysql")]
        "mysql" => Ok(Place::Mysql(url.to_owned())),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Ok(Place::Redis(url.to_owned())),
        _ => Err(format!(
            "the value begins with none of {}",
            SCHEMES.join(", ")
        )),
    }
}

/// What URLs of stores begin with.
const SCHEMES: &[&str] = &[
    "http://",
    "https://",
    "file://",
    #[cfg(feature = "zookeeper")]
    "zk://",
    #[cfg(feature = "postgres")]
    "postgres://",
    #[cfg(feature = "mysql")]
    "mysql://",
    #[cfg(feature = "redis")]
    "redis://",
];

/// A coordinator of any kind.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    Server(RecordsCoordinator<Client>),
    Folder(RecordsCoordinator<FileRecords>),
    #[cfg(feature = "zookeeper")]
    Zookeeper(ZookeeperCoordinator),
    #[cfg(feature = "postgres")]
    Postgres(RecordsCoordinator<PostgresRecords>),
    #[cfg(feature = "mysql")]
    Mysql(RecordsCoordinator<MysqlRecords>),
    #[cfg(feature = "redis")]
    Redis(RecordsCoordinator<RedisRecords>),
}

/// A term of any kind.
pub(crate) enum ViaTenure {
    Server(RecordsTenure<Client>),
    Folder(RecordsTenure<FileRecords>),
    #[cfg(feature = "zookeeper")]
    Zookeeper(ZookeeperTenure),
    #[cfg(feature = "postgres")]
    Postgres(RecordsTenure<PostgresRecords>),
    #[cfg(feature = "mysql")]
    Mysql(RecordsTenure<MysqlRecords>),
    #[cfg(feature = "redis")]
    Redis(RecordsTenure<RedisRecords>),
}

/// Does the same with whatever kind it is.
macro_rules! each {
    ($of:expr, $kind:ident, $it:ident => $what:expr) => {
        match $of {
            $kind::Server($it) => $what,
            $kind::Folder($it) => $what,
            #[cfg(feature = "zookeeper")]
            $kind::Zookeeper($it) => $what,
            #[cfg(feature = "postgres")]
            $kind::Postgres($it) => $what,
            #[cfg(feature = "mysql")]
            $kind::Mysql($it) => $what,
            #[cfg(feature = "redis")]
            $kind::Redis($it) => $what,
        }
    };
}

impl Via {
    /// The store that --via names, or else the server of --endpoint.
    pub(crate) async fn open(flags: &Flags) -> Result<Self, Failure> {
        let settings = resolve(flags, &environment)?;
        let place = match settings.get(&table::VIA) {
            Some(url) => {
                Some(place(&url).map_err(|what| Failure::usage(format!("--via: {what}")))?)
            }
            None => None,
        };
        match place.unwrap_or_else(|| Place::Server(settings.get(&table::ENDPOINT))) {
            Place::Server(endpoint) => {
                let client = client_at(endpoint, &settings)?.inner().clone();
                Ok(Self::Server(RecordsCoordinator::new(client)))
            }
            Place::Folder(folder) => {
                let records = FileRecords::open(folder).await.map_err(not_opened)?;
                Ok(Self::Folder(RecordsCoordinator::new(records)))
            }
            #[cfg(feature = "zookeeper")]
            Place::Zookeeper(url) => {
                Ok(Self::Zookeeper(ZookeeperCoordinator::connect(&url).await?))
            }
            #[cfg(feature = "postgres")]
            Place::Postgres(url) => {
                let records = PostgresRecords::connect(&url).await.map_err(not_opened)?;
                Ok(Self::Postgres(RecordsCoordinator::new(records)))
            }
            #[cfg(feature = "mysql")]
            Place::Mysql(url) => {
                let records = MysqlRecords::connect(&url).await.map_err(not_opened)?;
                Ok(Self::Mysql(RecordsCoordinator::new(records)))
            }
            #[cfg(feature = "redis")]
            Place::Redis(url) => {
                let records = RedisRecords::connect(&url).await.map_err(not_opened)?;
                Ok(Self::Redis(RecordsCoordinator::new(records)))
            }
        }
    }
}

impl Coordinator for Via {
    type Tenure = ViaTenure;

    fn capabilities(&self) -> CoordinatorCapabilities {
        each!(self, Via, it => it.capabilities())
    }

    async fn campaign(&self, campaign: Campaign) -> Result<ViaTenure, CoordinationError> {
        Ok(match self {
            Self::Server(it) => ViaTenure::Server(it.campaign(campaign).await?),
            Self::Folder(it) => ViaTenure::Folder(it.campaign(campaign).await?),
            #[cfg(feature = "zookeeper")]
            Self::Zookeeper(it) => ViaTenure::Zookeeper(it.campaign(campaign).await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(it) => ViaTenure::Postgres(it.campaign(campaign).await?),
            #[cfg(feature = "mysql")]
            Self::Mysql(it) => ViaTenure::Mysql(it.campaign(campaign).await?),
            #[cfg(feature = "redis")]
            Self::Redis(it) => ViaTenure::Redis(it.campaign(campaign).await?),
        })
    }

    async fn lock(&self, campaign: Campaign) -> Result<ViaTenure, CoordinationError> {
        Ok(match self {
            Self::Server(it) => ViaTenure::Server(it.lock(campaign).await?),
            Self::Folder(it) => ViaTenure::Folder(it.lock(campaign).await?),
            #[cfg(feature = "zookeeper")]
            Self::Zookeeper(it) => ViaTenure::Zookeeper(it.lock(campaign).await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(it) => ViaTenure::Postgres(it.lock(campaign).await?),
            #[cfg(feature = "mysql")]
            Self::Mysql(it) => ViaTenure::Mysql(it.lock(campaign).await?),
            #[cfg(feature = "redis")]
            Self::Redis(it) => ViaTenure::Redis(it.lock(campaign).await?),
        })
    }

    async fn observe(&self, observe: Observe) -> Result<ElectionState, CoordinationError> {
        each!(self, Via, it => it.observe(observe).await)
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, CoordinationError> {
        each!(self, Via, it => it.elections().await)
    }

    async fn left(&self) {
        each!(self, Via, it => it.left().await);
    }

    async fn ask_to_resign(&self, ask: AskToResign) -> Result<(), CoordinationError> {
        each!(self, Via, it => it.ask_to_resign(ask).await)
    }
}

impl Tenure for ViaTenure {
    fn term(&self) -> &Term {
        each!(self, ViaTenure, it => it.term())
    }

    fn fence(&self) -> &Fence {
        each!(self, ViaTenure, it => it.fence())
    }

    async fn called(&self) -> Call {
        each!(self, ViaTenure, it => it.called().await)
    }

    async fn lost(&self) {
        each!(self, ViaTenure, it => it.lost().await);
    }

    async fn over(&self) {
        each!(self, ViaTenure, it => it.over().await);
    }

    fn remaining(&self) -> Duration {
        each!(self, ViaTenure, it => it.remaining())
    }

    async fn save(&self, checkpoint: Bytes) -> Result<(), CoordinationError> {
        each!(self, ViaTenure, it => it.save(checkpoint).await)
    }

    async fn resign(
        self,
        reason: EndReason,
        checkpoint: Option<Bytes>,
    ) -> Result<(), CoordinationError> {
        each!(self, ViaTenure, it => it.resign(reason, checkpoint).await)
    }
}

fn not_opened(error: RecordsError) -> Failure {
    let exit = match error {
        RecordsError::Invalid { .. } => Exit::Usage,
        _ => Exit::Unreachable,
    };
    Failure::from_error(exit, error)
}

impl From<CoordinationError> for Failure {
    fn from(error: CoordinationError) -> Self {
        use CoordinationError as Error;
        let exit = match &error {
            Error::NotElected { .. } => Exit::NotElected,
            Error::Over { .. } | Error::NoSuccessor { .. } => Exit::Conflict,
            Error::Invalid { .. } | Error::Name(_) => Exit::Usage,
            Error::Damaged { .. } => Exit::Refused,
            Error::Unknown { .. } | Error::Unavailable { .. } => Exit::Unreachable,
            _ => Exit::Failed,
        };
        Self::from_error(exit, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_store() {
        let folder = |path: &str| Ok(Place::Folder(path.into()));
        assert_eq!(place("file:///var/lib/a%20b"), folder("/var/lib/a b"));
        assert!(matches!(
            place("https://q.example:9324"),
            Ok(Place::Server(_))
        ));
        for url in SCHEMES {
            assert!(
                check(&format!("{url}/a")).is_ok() || url.starts_with("http") || *url == "zk://",
                "{url}"
            );
        }
        assert!(check("zk://127.0.0.1:2181/elections").is_ok());
        for wrong in [
            "",
            "x",
            "file://reports",
            "file:reports",
            "http://",
            "http://u:secret@h:1/x",
            "file:///a?b",
            "ftp://secret@h",
            "zk://u:secret@h:1/x?style=y",
        ] {
            let told = check(wrong).unwrap_err();
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
