//! What a term's record says: who leads since when, who led before, and the last checkpoint.
//!
//! It is JSON, for people who look and for programs in other languages:
//!
//! ```text
//! {"format": 1,
//!  "term": {"epoch": 7, "leader": "host-1", "began_ms": 1767225600000, "ended": {"at_ms": ..., "reason": "asked"}},
//!  "past": [the earlier terms, the newest first],
//!  "checkpoint": {"epoch": 6, "value": base64}}
//! ```
//! A term without `ended` goes on, or its leader has not handed over.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use lockgate_core::{
    ElectionName, Epoch, HolderName, WallTime,
    coordination::{Checkpoint, EndReason, PastTerm, Term, TermEnd},
};
use serde::{Deserialize, Serialize};

/// The most earlier terms that are kept.
pub const HISTORY_MAX: usize = 32;

const FORMAT: u32 = 1;

/// What the record of a term says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chronicle {
    /// The last term that was opened.
    pub term: Option<PastTerm>,
    /// Those before, the newest first.
    pub past: Vec<PastTerm>,
    /// The last checkpoint that any leader has written.
    pub checkpoint: Option<Checkpoint>,
}

impl Chronicle {
    /// Whether that term is the last one that was opened.
    #[must_use]
    pub fn is_open(&self, epoch: Epoch) -> bool {
        self.term.as_ref().is_some_and(|term| term.epoch == epoch)
    }

    /// Whether that term is closed.
    #[must_use]
    pub fn is_closed(&self, epoch: Epoch) -> bool {
        let ended = |term: &PastTerm| term.epoch == epoch && term.ended.is_some();
        self.term.as_ref().is_some_and(ended)
    }

    /// A term begins.
    pub fn open(&mut self, epoch: Epoch, leader: HolderName, began: WallTime) {
        let before = self.term.replace(PastTerm {
            epoch,
            leader,
            began,
            ended: None,
        });
        if let Some(before) = before {
            self.past.insert(0, before);
            self.past.truncate(HISTORY_MAX);
        }
    }

    /// The last term as its leader sees it.
    #[must_use]
    pub fn opened(&self, election: ElectionName, epoch: Epoch, leader: HolderName) -> Term {
        Term {
            election,
            epoch,
            leader,
            predecessor: self.past.first().cloned(),
            last_checkpoint: self.checkpoint.clone(),
        }
    }

    /// The leader of that term leaves a checkpoint.
    pub fn save(&mut self, epoch: Epoch, value: Bytes) {
        self.checkpoint = Some(Checkpoint { epoch, value });
    }

    /// The term ends.
    pub fn close(
        &mut self,
        epoch: Epoch,
        at: WallTime,
        reason: EndReason,
        checkpoint: Option<Bytes>,
    ) {
        if let Some(term) = self.term.as_mut().filter(|term| term.epoch == epoch) {
            term.ended = Some(TermEnd { at, reason });
        }
        if let Some(value) = checkpoint {
            self.save(epoch, value);
        }
    }

    /// The terms before the one that goes on, the newest first.
    #[must_use]
    pub fn history(self, current: Option<Epoch>) -> Vec<PastTerm> {
        let last = self.term.filter(|term| Some(term.epoch) != current);
        last.into_iter()
            .chain(self.past)
            .take(HISTORY_MAX)
            .collect()
    }

    /// The bytes of the record.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let checkpoint = self.checkpoint.as_ref().map(|checkpoint| StoredCheckpoint {
            epoch: checkpoint.epoch.0,
            value: STANDARD.encode(&checkpoint.value),
        });
        let stored = Stored {
            format: FORMAT,
            term: self.term.as_ref().map(StoredTerm::of),
            past: self.past.iter().map(StoredTerm::of).collect(),
            checkpoint,
        };
        // Maps with keys that are no text are what JSON cannot say; there is none.
        serde_json::to_vec(&stored).unwrap_or_default().into()
    }

    /// What these bytes say. A record that was only leased has none.
    ///
    /// # Errors
    /// What cannot be read, and where.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let stored: Stored = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if stored.format != FORMAT {
            return Err(format!(
                "it has format {}, and this version knows format {FORMAT}",
                stored.format
            ));
        }
        let checkpoint = stored.checkpoint.map(|checkpoint| {
            let value = STANDARD.decode(&checkpoint.value);
            Ok::<_, String>(Checkpoint {
                epoch: Epoch(checkpoint.epoch),
                value: value
                    .map_err(|error| format!("checkpoint: {error}"))?
                    .into(),
            })
        });
        if stored.past.len() > HISTORY_MAX {
            return Err(format!("it has more than {HISTORY_MAX} earlier terms"));
        }
        let past = stored.past.into_iter().map(StoredTerm::into_past);
        Ok(Self {
            term: stored.term.map(StoredTerm::into_past).transpose()?,
            past: past.collect::<Result<_, _>>()?,
            checkpoint: checkpoint.transpose()?,
        })
    }
}

/// A request to resign, as its record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Whose term shall end.
    pub epoch: u64,
    /// Who asks.
    pub by: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    term: Option<StoredTerm>,
    #[serde(default)]
    past: Vec<StoredTerm>,
    checkpoint: Option<StoredCheckpoint>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTerm {
    epoch: u64,
    leader: String,
    began_ms: u64,
    ended: Option<StoredEnd>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredEnd {
    at_ms: u64,
    reason: StoredReason,
}

/// The words are kept for ever.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredReason {
    Asked,
    EndOfTerm,
    LeaseLost,
    Error,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCheckpoint {
    epoch: u64,
    value: String,
}

impl StoredTerm {
    fn of(term: &PastTerm) -> Self {
        Self {
            epoch: term.epoch.0,
            leader: term.leader.as_str().to_owned(),
            began_ms: term.began.0,
            ended: term.ended.map(|ended| StoredEnd {
                at_ms: ended.at.0,
                reason: match ended.reason {
                    EndReason::Asked => StoredReason::Asked,
                    EndReason::EndOfTerm => StoredReason::EndOfTerm,
                    EndReason::LeaseLost => StoredReason::LeaseLost,
                    EndReason::Error => StoredReason::Error,
                },
            }),
        }
    }

    fn into_past(self) -> Result<PastTerm, String> {
        Ok(PastTerm {
            epoch: Epoch(self.epoch),
            leader: HolderName::new(&self.leader).map_err(|error| error.to_string())?,
            began: WallTime(self.began_ms),
            ended: self.ended.map(|ended| TermEnd {
                at: WallTime(ended.at_ms),
                reason: match ended.reason {
                    StoredReason::Asked => EndReason::Asked,
                    StoredReason::EndOfTerm => EndReason::EndOfTerm,
                    StoredReason::LeaseLost => EndReason::LeaseLost,
                    StoredReason::Error => EndReason::Error,
                },
            }),
        })
    }
}

/// What a fuzzer gives its bytes to: what is read is the same after it was written.
pub(crate) fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let chronicle = Chronicle::decode(bytes)?;
    let again = Chronicle::decode(&chronicle.encode());
    assert_eq!(again.as_ref(), Ok(&chronicle), "encoded again");
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockgate_core::{RECORD_BYTES_MAX, coordination::CHECKPOINT_BYTES_MAX};

    use super::*;

    #[test]
    fn what_is_written_is_read_and_fits_into_a_record() {
        let mut chronicle = Chronicle::default();
        assert_eq!(Chronicle::decode(b""), Ok(Chronicle::default()));
        // The longest name there is in JSON, and more terms than are kept.
        let leader = HolderName::new(&"\"".repeat(HolderName::MAX_LEN)).unwrap();
        for epoch in (1..100).map(|epoch| u64::MAX - 100 + epoch).map(Epoch) {
            chronicle.open(epoch, leader.clone(), WallTime::MAX);
            assert!(chronicle.is_open(epoch) && !chronicle.is_closed(epoch));
            let checkpoint = Some(vec![7; CHECKPOINT_BYTES_MAX].into());
            chronicle.close(epoch, WallTime::MAX, EndReason::EndOfTerm, checkpoint);
            assert!(chronicle.is_closed(epoch));
            let bytes = chronicle.encode();
            assert!(bytes.len() <= RECORD_BYTES_MAX, "{}", bytes.len());
            assert_eq!(Chronicle::decode(&bytes).as_ref(), Ok(&chronicle));
            assert_eq!(fuzz(&bytes), Ok(()));
        }
        assert_eq!(chronicle.past.len(), HISTORY_MAX);
        let epochs = chronicle.past.iter().map(|term| term.epoch);
        assert!(epochs.clone().is_sorted_by(|newer, older| newer > older));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let why = |text: &str| Chronicle::decode(text.as_bytes()).unwrap_err();
        assert!(why("{\"format\":2}").contains("format 2"));
        assert!(why("{\"format\":1,\"next\":1}").contains("next"));
        assert!(why("x").contains("line 1"));
        let checkpoint = "{\"format\":1,\"checkpoint\":{\"epoch\":1,\"value\":\"?\"}}";
        assert!(why(checkpoint).starts_with("checkpoint: "));
        let nobody = "{\"format\":1,\"term\":{\"epoch\":1,\"leader\":\"\",\"began_ms\":0}}";
        assert!(why(nobody).contains("holder name"));
    }
}
