//! What proves a term to whatever its leader writes to.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{ElectionName, Epoch, NameError, RecordName, RecordsError};

/// Proves a term to whatever its leader writes to: a sink takes it with a write, and refuses one whose epoch is lower
/// than one it has seen of the same election. Clones prove the same term.
///
/// It also says how long the term still lasts, by the leader's own clock. A leader that was frozen, or whose clock has
/// gone on while the computer was suspended, sees it at its next look. Between the look and the write it may be frozen
/// again: only the sink that compares epochs is proof against that.
#[derive(Clone)]
pub struct Fence {
    election: ElectionName,
    epoch: Epoch,
    span: Option<Arc<dyn TermSpan>>,
}

/// How long a term still lasts. Coordinators implement it.
pub trait TermSpan: Send + Sync {
    /// How much longer its leader may work; zero when the term is over.
    fn remaining(&self) -> Duration;

    /// Whether the leader shall stop at the next good place, to write a checkpoint and to hand over.
    fn is_ending(&self) -> bool {
        self.remaining().is_zero()
    }
}

/// Why a write is not made under a fence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The term is over by the leader's own clock. Nothing was sent.
    #[error("the term {} of election {election} is over", epoch.0)]
    Over {
        /// Which election.
        election: ElectionName,
        /// Which term.
        epoch: Epoch,
    },
    /// The sink has seen a later term. Nothing was written.
    #[error("the term {} of election {election} is over: there is a later term {}", epoch.0, newest.0)]
    Deposed {
        /// Which election.
        election: ElectionName,
        /// Whose write it was.
        epoch: Epoch,
        /// The highest epoch that the sink has seen.
        newest: Epoch,
    },
    /// This sink, or store, cannot compare epochs, so it takes no fence: whoever was deposed could still write to it.
    #[error("{what} compares no epochs, so it takes no fence")]
    Unsupported {
        /// Which kind.
        what: &'static str,
    },
}

/// What of a [`Fence`] goes with a request: `reports:17` is the term 17 of the election `reports`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FenceMark {
    /// Of which election.
    pub election: ElectionName,
    /// Which term.
    pub epoch: Epoch,
}

/// Why a text is no mark of a fence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no fence: write ELECTION:EPOCH, such as reports:17")]
pub struct FenceMarkError {
    text: String,
}

impl fmt::Display for FenceMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.election, self.epoch.0)
    }
}

impl FromStr for FenceMark {
    type Err = FenceMarkError;

    fn from_str(text: &str) -> Result<Self, FenceMarkError> {
        let parse = || {
            let (election, epoch) = text.rsplit_once(':')?;
            let is_plain = epoch.bytes().all(|byte| byte.is_ascii_digit());
            Some(Self {
                election: ElectionName::new(election).ok()?,
                epoch: Epoch(epoch.parse().ok().filter(|_| is_plain)?),
            })
        };
        parse().ok_or_else(|| FenceMarkError {
            text: text.chars().take(100).collect(),
        })
    }
}

impl FenceMark {
    /// The record in which a store of records keeps the [`Guard`] of the election: `fence/ELECTION`. Its value is the highest
    /// epoch that was seen, as a decimal number. Whoever deletes it lets older terms write again.
    ///
    /// # Errors
    /// For a name that is too long.
    pub fn guard(&self) -> Result<RecordName, NameError> {
        RecordName::new(&format!("fence/{}", self.election))
    }

    /// The [guard](Self::guard) for a change of that record.
    ///
    /// # Errors
    /// [`Invalid`](RecordsError::Invalid) if that record is the guard, which no change under its fence changes, and for a name
    /// that is too long.
    pub fn guard_for(&self, changed: &RecordName) -> Result<RecordName, RecordsError> {
        let why = match self.guard() {
            Ok(guard) if guard != *changed => return Ok(guard),
            Ok(guard) => {
                format!("{guard} guards the fence of this command, which cannot change it too")
            }
            Err(error) => error.to_string(),
        };
        Err(RecordsError::Invalid { why })
    }

    /// Lets a write pass by the guard's value; `None`: there is no guard yet. The value that replaces it in the same step;
    /// `None`: it stays.
    ///
    /// # Errors
    /// [`Deposed`](FenceError::Deposed). A value that is not the decimal number of an epoch, without a sign or a leading zero,
    /// has seen every epoch: it was not written by this, so nobody knows what it has seen.
    pub fn admit(&self, guard: Option<&[u8]>) -> Result<Option<Bytes>, FenceError> {
        let seen = guard.map(|value| {
            let epoch = str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse().ok());
            let epoch = epoch.filter(|epoch: &u64| epoch.to_string().as_bytes() == value);
            Epoch(epoch.unwrap_or(u64::MAX))
        });
        let mut guard = Guard::new(seen);
        guard.admit(&Fence::new(self.election.clone(), self.epoch))?;
        let is_raised = guard.newest() != seen;
        Ok(is_raised.then(|| self.epoch.0.to_string().into()))
    }
}

impl Fence {
    /// A fence whose holder is told elsewhere how long the term lasts, such as a process that was given the epoch.
    #[must_use]
    pub fn new(election: ElectionName, epoch: Epoch) -> Self {
        Self {
            election,
            epoch,
            span: None,
        }
    }

    /// The same, of a term that lasts so long.
    #[must_use]
    pub fn with_span(mut self, span: Arc<dyn TermSpan>) -> Self {
        self.span = Some(span);
        self
    }

    /// Whose epochs can be compared with this one.
    #[must_use]
    pub fn election(&self) -> &ElectionName {
        &self.election
    }

    /// Higher than that of every earlier term of the election.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What of it goes with a request.
    #[must_use]
    pub fn mark(&self) -> FenceMark {
        FenceMark {
            election: self.election.clone(),
            epoch: self.epoch,
        }
    }

    /// How much longer the leader may work. `None`: this fence does not know.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.span.as_ref().map(|span| span.remaining())
    }

    /// Whether the leader shall stop at the next good place. Long work looks at it between its pieces.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.span.as_ref().is_some_and(|span| span.is_ending())
    }

    /// Looks whether the term still lasts, as far as the leader can know.
    ///
    /// # Errors
    /// [`Over`](FenceError::Over).
    pub fn check(&self) -> Result<(), FenceError> {
        match self.remaining() {
            Some(Duration::ZERO) => Err(FenceError::Over {
                election: self.election.clone(),
                epoch: self.epoch,
            }),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("election", &self.election)
            .field("epoch", &self.epoch)
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// What a sink remembers of one election: the highest epoch it has seen. It is kept with what it guards, and changed in
/// the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Guard(Option<Epoch>);

impl Guard {
    /// A guard that has seen that epoch; `None`: it has seen none.
    #[must_use]
    pub fn new(newest: Option<Epoch>) -> Self {
        Self(newest)
    }

    /// The highest epoch it has seen.
    #[must_use]
    pub fn newest(self) -> Option<Epoch> {
        self.0
    }

    /// Lets a write pass, unless it is of an earlier term than another one that has passed. The epochs that pass never
    /// fall.
    ///
    /// # Errors
    /// [`Deposed`](FenceError::Deposed).
    pub fn admit(&mut self, fence: &Fence) -> Result<(), FenceError> {
        match self.0 {
            Some(newest) if newest > fence.epoch => Err(FenceError::Deposed {
                election: fence.election.clone(),
                epoch: fence.epoch,
                newest,
            }),
            _ => {
                self.0 = Some(fence.epoch);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Span(Duration);

    impl TermSpan for Span {
        fn remaining(&self) -> Duration {
            self.0
        }
    }

    fn fence(epoch: u64) -> Fence {
        Fence::new(ElectionName::new("reports").unwrap(), Epoch(epoch))
    }

    #[test]
    fn the_epochs_that_pass_a_guard_never_fall() {
        let mut guard = Guard::default();
        for (epoch, passes) in [(3, true), (3, true), (2, false), (7, true), (3, false)] {
            assert_eq!(guard.admit(&fence(epoch)).is_ok(), passes, "{epoch}");
        }
        assert_eq!(guard.newest(), Some(Epoch(7)));
        let refused = guard.admit(&fence(6)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the term 6 of election reports is over: there is a later term 7"
        );
    }

    #[test]
    fn a_mark_is_read_as_it_is_written() {
        for text in ["reports:17", "a:b:0", "reports:18446744073709551615"] {
            let mark: FenceMark = text.parse().unwrap();
            assert_eq!(mark.to_string(), text);
        }
        for text in [
            "",
            "reports",
            "reports:",
            ":1",
            "reports:-1",
            "reports:+1",
            "r:18446744073709551616",
        ] {
            assert!(text.parse::<FenceMark>().is_err(), "{text}");
        }
        assert_eq!(fence(3).mark().guard().unwrap().as_str(), "fence/reports");
    }

    #[test]
    fn the_value_of_a_guard_never_falls() {
        let admit = |epoch, guard: Option<&[u8]>| fence(epoch).mark().admit(guard);
        assert_eq!(admit(3, None), Ok(Some("3".into())));
        assert_eq!(admit(3, Some(b"3")), Ok(None));
        assert_eq!(admit(4, Some(b"3")), Ok(Some("4".into())));
        assert!(admit(2, Some(b"3")).is_err());
        for strange in [
            &b"x"[..],
            b"",
            b"+1",
            b"01",
            b"1\n",
            b"18446744073709551616",
        ] {
            assert!(admit(2, Some(strange)).is_err());
            assert_eq!(admit(u64::MAX, Some(strange)), Ok(None));
        }
    }

    #[test]
    fn no_change_under_a_fence_changes_its_guard() {
        let guard_for = |name| fence(3).mark().guard_for(&RecordName::new(name).unwrap());
        assert_eq!(guard_for("a").unwrap().as_str(), "fence/reports");
        assert_eq!(guard_for("fence/other").unwrap().as_str(), "fence/reports");
        let refused = guard_for("fence/reports");
        assert!(matches!(refused, Err(RecordsError::Invalid { .. })));
    }

    #[test]
    fn a_fence_knows_when_its_term_is_over() {
        let second = Duration::from_secs(1);
        let lasts = fence(1).with_span(Arc::new(Span(second)));
        assert_eq!((lasts.remaining(), lasts.check()), (Some(second), Ok(())));
        assert!(!lasts.is_ending());
        let over = fence(1).with_span(Arc::new(Span(Duration::ZERO)));
        assert!(over.is_ending());
        let error = over.check().unwrap_err().to_string();
        assert_eq!(error, "the term 1 of election reports is over");
        // Told elsewhere.
        assert_eq!((fence(1).remaining(), fence(1).check()), (None, Ok(())));
    }
}
