//! Accepts connections up to the limits, and ends a run in order.

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::IpAddr,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{
    join,
    net::{TcpListener, TcpStream},
    select,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{Behind, Core, Queues, body::network, connection, counters::Refused, date, space, tls};
use crate::RunReport;

pub(crate) async fn run(
    listener: TcpListener,
    core: Core,
    shutdown: impl Future<Output = ()> + Send,
) -> RunReport {
    let core = Arc::new(core);
    let mut tasks = JoinSet::new();
    select! {
        () = accept(listener, &core, &mut tasks, shutdown) => {}
        () = watch(&core) => {}
        () = tls::watch(core.tls.clone()) => {}
    }

    let began = Instant::now();
    let grace = core.deadlines.shutdown;
    tracing::info!(connections = tasks.len(), "shutting down");
    core.drain_trigger.pull();
    let drained = async {
        while let Some(ended) = tasks.join_next().await {
            report_panic(ended);
        }
    };
    let in_time = timeout_at(began + grace, drained).await.is_ok();
    let cut = if in_time { 0 } else { tasks.len() };
    // Connections own the guards that give leases back, so they must be dropped before the engine
    // stops.
    tasks.shutdown().await;
    let engine_stopped = match &core.behind {
        Behind::Queues(queues) => timeout(grace, queues.engine.shutdown()).await.is_ok(),
        Behind::Handler(_) => true,
    };
    RunReport {
        connections: core.counters.connections(),
        requests: core.counters.requests(),
        cut,
        engine_stopped,
        shutdown_time: began.elapsed(),
    }
}

/// Watches the disk of the queues, and their figures for the console. Never ends.
async fn watch(core: &Core) {
    match &core.behind {
        Behind::Queues(queues) => {
            let Queues {
                engine,
                api,
                console,
                ..
            } = &**queues;
            join!(space::watch(engine), console.watch(api, engine));
        }
        Behind::Handler(_) => std::future::pending().await,
    }
}

/// Accepts until `shutdown` is ready, and closes the listener.
async fn accept(
    listener: TcpListener,
    core: &Arc<Core>,
    tasks: &mut JoinSet<()>,
    shutdown: impl Future<Output = ()>,
) {
    let admission = Arc::new(Admission::new(
        core.limits.connections_max,
        core.limits.connections_per_address_max,
    ));
    let mut backoff = Backoff::default();
    let mut clock_is_told = false;
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = select! {
            biased;
            () = &mut shutdown => return,
            Some(ended) = tasks.join_next() => {
                report_panic(ended);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                if backoff.failures > 0 {
                    tracing::info!(
                        failures = backoff.failures,
                        "connections are accepted again"
                    );
                }
                backoff = Backoff::default();
                let is_set = date::is_representable(SystemTime::now());
                if !is_set && !clock_is_told {
                    tracing::error!(
                        "the system's clock is before 1970 or after 9999: connections are refused until it is set"
                    );
                }
                clock_is_told = !is_set;
                if !is_set {
                    core.counters.refused(Refused::Clock);
                    if core.tls.is_none() {
                        turn_away(&socket, "The server's clock is not set.");
                    }
                    continue;
                }
                match admission.admit(peer.ip()) {
                    Ok(permit) => {
                        let open = Counted::new(core);
                        let core = core.clone();
                        tasks.spawn(async move {
                            connection::serve(core, socket, peer).await;
                            drop((open, permit)); // also if it panics or is cut
                        });
                    }
                    Err(refused) => {
                        core.counters.refused(refused);
                        tracing::debug!(%peer, reason = refused.label(), "connection refused");
                        // No TLS handshake here: a flood of clients must not get one.
                        if core.tls.is_none() {
                            turn_away(&socket, "Too many connections open.");
                        }
                    }
                }
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => {
                // Most likely there are no file descriptors left, which passes. The connection
                // stays in the kernel's queue, so without a pause this loop would spin.
                core.counters.refused(Refused::Accept);
                if backoff.failures == 0 {
                    tracing::warn!(%error, "cannot accept connections for now; tried again all the time");
                }
                let pause = backoff.next_pause();
                select! {
                    () = &mut shutdown => return,
                    () = sleep(pause) => {}
                }
            }
        }
    }
}

/// Answers without reading anything. Cheap, because a flood of clients gets this answer.
fn turn_away(socket: &TcpStream, reason: &str) {
    // The buffer of a fresh socket has room for this. If not, the client only misses the reason.
    let _ = socket.try_write(unavailable(reason).as_bytes());
}

fn unavailable(reason: &str) -> String {
    let body =
        format!(r#"{{"__type":"com.amazonaws.sqs#ServiceUnavailable","message":"{reason}"}}"#);
    format!(
        "HTTP/1.1 503 Service Unavailable\r\n\
         content-type: application/x-amz-json-1.0\r\n\
         x-amzn-query-error: ServiceUnavailable;Receiver\r\n\
         retry-after: 1\r\n\
         x-amz-retry-after: 1000\r\n\
         connection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked; its client was cut off");
    }
}

/// One open connection in the counters.
struct Counted(Arc<Core>);

impl Counted {
    fn new(core: &Arc<Core>) -> Self {
        core.counters.connection_opened();
        Self(core.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counters.connection_closed();
    }
}

/// Errors that `accept` passes on from a connection that failed before it was accepted.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Pauses between failing attempts: doubling, up to a second.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    fn next_pause(&mut self) -> Duration {
        let pause = Duration::from_millis(10 << self.failures.min(7));
        self.failures = self.failures.saturating_add(1);
        pause.min(Duration::from_secs(1))
    }
}

/// Counts open connections, in all and by address.
#[derive(Debug)]
struct Admission {
    open_max: usize,
    per_address_max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The right to one connection. Dropping it gives the right back.
#[derive(Debug)]
struct Permit {
    admission: Arc<Admission>,
    address: IpAddr,
}

impl Admission {
    fn new(open_max: usize, per_address_max: usize) -> Self {
        Self {
            open_max,
            per_address_max,
            open: Mutex::default(),
        }
    }

    fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Permit, Refused> {
        let address = network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.total >= self.open_max {
            return Err(Refused::Connections);
        }
        let of_address = open.by_address.get(&address).copied().unwrap_or(0);
        if of_address >= self.per_address_max {
            return Err(Refused::ConnectionsOfAddress);
        }
        open.total += 1;
        open.by_address.insert(address, of_address + 1);
        Ok(Permit {
            admission: self.clone(),
            address,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self
            .admission
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        open.total -= 1;
        if let Some(of_address) = open.by_address.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_in_all_and_by_address_and_leave_nothing_behind() {
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let admission = Arc::new(Admission::new(3, 2));
        let first = admission.admit(address(1)).unwrap();
        let _second = admission.admit("::ffff:10.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(
            admission.admit(address(1)).unwrap_err(),
            Refused::ConnectionsOfAddress
        );
        let third = admission.admit(address(2)).unwrap();
        assert_eq!(
            admission.admit(address(3)).unwrap_err(),
            Refused::Connections
        );
        drop(first);
        drop(third);
        let _again = admission.admit(address(1)).unwrap();
        let open = admission.open.lock().unwrap();
        assert_eq!((open.total, open.by_address.len()), (2, 1));
    }

    #[test]
    fn failing_accepts_pause_ever_longer_up_to_a_second() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..40).map(|_| backoff.next_pause().as_millis()).collect();
        assert_eq!(pauses[..8], [10, 20, 40, 80, 160, 320, 640, 1000]);
        assert!(pauses[8..].iter().all(|&pause| pause == 1000));
    }

    #[test]
    fn only_errors_of_the_server_itself_make_it_pause() {
        let no_descriptors = io::Error::from_raw_os_error(24);
        assert!(!concerns_one_connection(&no_descriptors));
        assert!(concerns_one_connection(
            &io::ErrorKind::ConnectionAborted.into()
        ));
    }
}
