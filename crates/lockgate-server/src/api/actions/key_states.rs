//! Operations on the states of keys: read, write and drop them.

use lockgate_core::{self as core, Key, KeyStateWrite, RecordVersion, Replaces};
use lockgate_engine::QueueEntry;
use lockgate_machine::{self as machine, ChangeKeyState, GetKeyState, KeyStatePage};

use super::{
    invalid_page,
    keys::{check_keyed, key_of},
    page_after, page_limit, page_start,
};
use crate::{
    api::{
        Code, Problem, Request, Service,
        shapes::{
            DropKeyState, Encoding, Instant, KeyState, KeyStateStatus, KeyStateWritten, KeyStates,
            ListKeyStates, NewState, PutKeyState, StateOfKey,
        },
    },
    auth::Verb,
};

impl Service {
    pub(in crate::api) async fn list_key_states(
        &self,
        request: &Request<'_>,
        queue: &str,
        input: ListKeyStates,
    ) -> Result<KeyStates, Problem> {
        let queue = self.queue(request, Verb::Receive, queue)?;
        check_keyed(&queue)?;
        let after = match &input.page {
            None => None,
            Some(page) => Some(Key::new(&page_start(page)?).map_err(|_| invalid_page())?),
        };
        let list = machine::ListKeyStates {
            queue: queue.name.clone(),
            prefix: input.prefix.unwrap_or_default(),
            after,
            limit: page_limit(input.limit),
        };
        let KeyStatePage { states, next } = self.engine.query(list).await?;
        let states = states.into_iter().map(|(key, state)| StateOfKey {
            key: key.to_string(),
            state: state.into(),
        });
        Ok(KeyStates {
            states: states.collect(),
            next_page: next.map(|next| page_after(next.as_str())),
        })
    }

    pub(in crate::api) async fn get_key_state(
        &self,
        request: &Request<'_>,
        queue: &str,
        key: &str,
    ) -> Result<KeyState, Problem> {
        let queue = self.queue(request, Verb::Receive, queue)?;
        let get = GetKeyState {
            key: key_of(&queue, key)?,
            queue: queue.name.clone(),
        };
        match self.engine.query(get).await? {
            Some(state) => Ok((&state).into()),
            None => Err(Problem::new(
                Code::StateNotFound,
                format!("key {key} of queue {} has no state", queue.name),
            )),
        }
    }

    pub(in crate::api) async fn put_key_state(
        &self,
        request: &Request<'_>,
        queue: &str,
        key: &str,
        input: PutKeyState,
    ) -> Result<KeyStateWritten, Problem> {
        let queue = self.queue(request, Verb::Manage, queue)?;
        let write = KeyStateWrite {
            replaces: replaces(input.replaces, input.any)?,
            value: Some(input.value_encoding.decode("value", input.value)?),
        };
        let version = self.change_key_state(&queue, key, write).await?;
        Ok(KeyStateWritten {
            // A state that is written has one.
            version: version.map_or(0, |version| version.0),
        })
    }

    pub(in crate::api) async fn drop_key_state(
        &self,
        request: &Request<'_>,
        queue: &str,
        key: &str,
        input: &DropKeyState,
    ) -> Result<(), Problem> {
        let queue = self.queue(request, Verb::Manage, queue)?;
        if input.replaces.is_none() && !input.any {
            let detail = "is required, unless `any` is true";
            return Err(Problem::invalid("replaces", detail));
        }
        let write = KeyStateWrite {
            replaces: replaces(input.replaces, input.any)?,
            value: None,
        };
        self.change_key_state(&queue, key, write).await?;
        Ok(())
    }

    async fn change_key_state(
        &self,
        queue: &QueueEntry,
        key: &str,
        write: KeyStateWrite,
    ) -> Result<Option<RecordVersion>, Problem> {
        let change = ChangeKeyState {
            key: key_of(queue, key)?,
            queue: queue.name.clone(),
            write,
        };
        Ok(self.engine.submit(change).await?)
    }
}

fn replaces(version: Option<u64>, any: bool) -> Result<Replaces, Problem> {
    match (version, any) {
        (Some(_), true) => Err(Problem::invalid("any", "not with `replaces`")),
        (None, true) => Ok(Replaces::Any),
        (version, false) => Ok(Replaces::Version(version.map(RecordVersion))),
    }
}

/// Checks the state of a settle and turns it into the machine's form.
pub(super) fn state_write(given: NewState) -> Result<KeyStateWrite, Problem> {
    let value = match (given.value, given.drop) {
        (Some(value), false) => Some(given.value_encoding.decode("value", value)?),
        (None, true) => None,
        _ => {
            let detail = "is required, unless `drop` is true; and not with it";
            return Err(Problem::invalid("value", detail));
        }
    };
    Ok(KeyStateWrite {
        replaces: Replaces::Version(given.replaces.map(RecordVersion)),
        value,
    })
}

/// As numbers.
pub(super) fn versions(
    versions: &[Option<RecordVersion>],
) -> impl Iterator<Item = Option<u64>> + '_ {
    let versions = versions.iter();
    versions.map(|version| version.map(|version| version.0))
}

impl From<machine::KeyStateStatus> for KeyStateStatus {
    fn from(state: machine::KeyStateStatus) -> Self {
        Self {
            version: state.version.0,
            bytes: state.bytes,
            written_at: Instant(state.written),
        }
    }
}

impl From<&core::KeyState> for KeyState {
    fn from(state: &core::KeyState) -> Self {
        let (value, value_encoding) = Encoding::encode(&state.value);
        Self {
            value,
            value_encoding,
            version: state.version.0,
            written_at: Instant(state.written),
        }
    }
}
