//! The store that elects, by its URL.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use lockgate_client::{Client, Endpoint};
use lockgate_coordination::{FileRecords, RecordsCoordinator, RecordsTenure};
use lockgate_core::{
    ElectionName,
    coordination::{
        AskToResign, Call, Campaign, CoordinationError, Coordinator, CoordinatorCapabilities,
        ElectionState, EndReason, Fence, Observe, Tenure, Term,
    },
};
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
            Err(error) => Err(format!("the value is no URL of a server: {error}")),
        },
        "file" => {
            let path = percent_decode_str(rest).decode_utf8();
            let path = path.map_err(|_| "the path of the file:// URL is no UTF-8".to_owned())?;
            if !path.starts_with('/') {
                return Err("write file:///FOLDER with the whole path of the folder".to_owned());
            }
            Ok(Place::Folder(PathBuf::from(path.into_owned())))
        }
        _ => Err("the value begins with none of http://, https:// and file://".to_owned()),
    }
}

/// A coordinator of any kind.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    Server(RecordsCoordinator<Client>),
    Folder(RecordsCoordinator<FileRecords>),
}

/// A term of any kind.
pub(crate) enum ViaTenure {
    Server(RecordsTenure<Client>),
    Folder(RecordsTenure<FileRecords>),
}

/// Does the same with whatever kind it is.
macro_rules! each {
    ($of:expr, $kind:ident, $it:ident => $what:expr) => {
        match $of {
            $kind::Server($it) => $what,
            $kind::Folder($it) => $what,
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
                let records = FileRecords::open(folder).await;
                let records =
                    records.map_err(|error| Failure::from_error(Exit::Unreachable, error))?;
                Ok(Self::Folder(RecordsCoordinator::new(records)))
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
        })
    }

    async fn lock(&self, campaign: Campaign) -> Result<ViaTenure, CoordinationError> {
        Ok(match self {
            Self::Server(it) => ViaTenure::Server(it.lock(campaign).await?),
            Self::Folder(it) => ViaTenure::Folder(it.lock(campaign).await?),
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
        for wrong in [
            "",
            "x",
            "file://reports",
            "file:reports",
            "http://",
            "ftp://secret@h",
        ] {
            let told = check(wrong).unwrap_err();
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
