//! The record of an election's terms, as its leader knows it.

use bytes::Bytes;
use lockgate_coordination::shell::Chronicle;
use lockgate_core::{
    RecordVersion,
    coordination::{CHECKPOINT_BYTES_MAX, CoordinationError},
};
use zookeeper_client::Error;

use crate::{
    nodes::{Kind, Nodes},
    session::{Failed, Session},
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    pub(crate) chronicle: Chronicle,
    /// The version of its node; `None`: there is no node.
    pub(crate) version: Option<i32>,
}

/// What has become of a write under a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// The record has another version.
    Conflict,
    /// The leader's node is gone.
    Deposed,
}

impl Book {
    /// Reads it, behind a [look](Session::look). A lock has none.
    pub(crate) async fn read(session: &Session, nodes: &Nodes) -> Result<Self, CoordinationError> {
        if nodes.kind == Kind::Lock {
            return Ok(Self::default());
        }
        match session.read(&nodes.term).await.map_err(Failed::of_a_read)? {
            Some((data, stat)) => Ok(Self {
                chronicle: Chronicle::decode(&data)
                    .map_err(|why| nodes.damaged(format!("node {}: {why}", nodes.term)))?,
                version: Some(stat.version),
            }),
            None => Ok(Self::default()),
        }
    }

    /// Writes it in the same step as it looks whether the leader's node is there.
    pub(crate) async fn write(
        &mut self,
        session: &Session,
        nodes: &Nodes,
        own: &str,
    ) -> Result<Written, CoordinationError> {
        let bytes = self.chronicle.encode();
        let written = session
            .write_while(own, &nodes.term, &bytes, self.version)
            .await;
        match written {
            Ok(Some(version)) => {
                self.version = Some(version);
                Ok(Written::Done)
            }
            Ok(None) => Ok(Written::Deposed),
            Err(Failed::Refused(Error::BadVersion | Error::NoNode | Error::NodeExists)) => {
                Ok(Written::Conflict)
            }
            Err(failed) => Err(failed.of_a_change()),
        }
    }

    /// Its version in the words of the protocol.
    pub(crate) fn record_version(&self) -> RecordVersion {
        let version = self.version.and_then(|version| u64::try_from(version).ok());
        RecordVersion(version.map_or(0, |version| version + 1))
    }
}

pub(crate) fn check(checkpoint: &Bytes) -> Result<(), CoordinationError> {
    match checkpoint.len() {
        0..=CHECKPOINT_BYTES_MAX => Ok(()),
        bytes => Err(CoordinationError::Invalid {
            why: format!(
                "a checkpoint must have at most {CHECKPOINT_BYTES_MAX} bytes, this one has {bytes}"
            ),
        }),
    }
}
