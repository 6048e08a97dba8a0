//! Who has logged in.

use std::{collections::HashMap, time::Duration};

/// How long a session lasts.
pub const AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// The most sessions at once; another one ends the oldest.
pub const SESSIONS_MAX: usize = 1024;

/// The sessions of a server.
pub(crate) struct Sessions<T>(HashMap<String, Session<T>>);

struct Session<T> {
    who: T,
    began: Duration,
}

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> Sessions<T> {
    pub(crate) fn add(&mut self, id: String, who: T, now: Duration) {
        self.0.retain(|_, session| session.is_young(now));
        if self.0.len() >= SESSIONS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, session)| session.began);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(id, Session { who, began: now });
    }

    pub(crate) fn find(&self, id: &str, now: Duration) -> Option<T> {
        let session = self.0.get(id)?;
        session.is_young(now).then(|| session.who.clone())
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }
}

impl<T> Session<T> {
    fn is_young(&self, now: Duration) -> bool {
        now.saturating_sub(self.began) < AGE_MAX
    }
}
