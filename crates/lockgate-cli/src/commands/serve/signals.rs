//! Signals that do not end a server: SIGHUP, which has keys and certificate read again, and those that
//! would end it for no reason of its own.

use std::convert::Infallible;

use lockgate_core::with_sources;
use lockgate_server::{AccessKey, AccessKeys, Certificate};
use tokio::{
    signal::unix::{Signal, SignalKind},
    task::spawn_blocking,
};
use tracing::{error, info, warn};

use crate::{
    commands::listen,
    exit::{Exit, Failure},
    settings::access_keys::KeyFile,
};

/// What a running server reads again.
pub(in crate::commands) struct Renewable {
    pub(in crate::commands) keys: Option<(KeyFile, AccessKeys)>,
    pub(in crate::commands) certificate: Option<Certificate>,
}

/// The signals, heard from the moment this is made.
///
/// SIGHUP is one of them also where it was ignored before (`nohup`): its handler ends nothing either.
pub(in crate::commands) struct Harmless {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    alarm: Signal,
}

impl Harmless {
    pub(in crate::commands) fn new() -> Result<Self, Failure> {
        Ok(Self {
            hangup: listen(SignalKind::hangup())?,
            user1: listen(SignalKind::user_defined1())?,
            user2: listen(SignalKind::user_defined2())?,
            alarm: listen(SignalKind::alarm())?,
        })
    }

    /// The name of the next one. Cancel safe.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.hangup.recv() => HANGUP,
            _ = self.user1.recv() => "SIGUSR1",
            _ = self.user2.recv() => "SIGUSR2",
            _ = self.alarm.recv() => "SIGALRM",
        }
    }
}

const HANGUP: &str = "SIGHUP";

/// Reads keys and certificate again at SIGHUP, and the keys whenever their file changes; the server
/// itself sees to changes of the certificate. What cannot be used changes nothing.
pub(in crate::commands) async fn attend(
    mut signals: Harmless,
    mut renewable: Renewable,
) -> Infallible {
    loop {
        tokio::select! {
            signal = signals.next() => {
                if signal == HANGUP {
                    renewable.read_again().await;
                } else {
                    info!(signal, "ignored; SIGTERM ends the server, SIGHUP has keys and certificate read again");
                }
            }
            fresh = changed(&mut renewable.keys) => {
                if let Some((_, current)) = &renewable.keys {
                    take_keys(current, fresh);
                }
            }
        }
    }
}

async fn changed(keys: &mut Option<(KeyFile, AccessKeys)>) -> Result<Vec<AccessKey>, Failure> {
    match keys {
        Some((file, _)) => file.changed().await,
        None => std::future::pending().await,
    }
}

impl Renewable {
    /// Reads no file itself: what this runs on also accepts connections.
    async fn read_again(&mut self) {
        if self.keys.is_none() && self.certificate.is_none() {
            info!(
                signal = HANGUP,
                "there are no access keys and no certificate to read again"
            );
        }
        if let Some((file, current)) = &mut self.keys {
            take_keys(current, file.read_again().await);
        }
        let Some(certificate) = self.certificate.clone() else {
            return;
        };
        match spawn_blocking(move || certificate.reload()).await {
            Ok(Ok(())) => info!("the certificate was read again; new connections get it"),
            Ok(Err(error)) => error!(
                error = with_sources(&error),
                "the certificate cannot be used, the old one stays"
            ),
            Err(_) => {} // the runtime ends
        }
    }
}

fn take_keys(current: &AccessKeys, fresh: Result<Vec<AccessKey>, Failure>) {
    let taken = fresh.and_then(|keys| {
        let taken = current.replace(&keys).map(|()| keys.len());
        taken.map_err(|error| Failure::from_error(Exit::Usage, error))
    });
    match taken {
        Ok(keys) => info!(
            keys,
            "the access keys were read again; new requests need these"
        ),
        Err(failure) => warn!(
            error = failure.to_string(),
            "the new access keys cannot be used, the old ones stay"
        ),
    }
}
