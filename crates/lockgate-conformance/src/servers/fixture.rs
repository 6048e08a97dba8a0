//! A server as a fixture of the suites.

use std::{sync::Arc, thread, time::Duration};

use lockgate_coordination::RecordsCoordinator;
use lockgate_core::ManualClock;

use super::{Shifts, fences};
use crate::{
    busy,
    coordination::{self, BoxedProcess},
    records,
};

/// Long enough for a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(30);

struct OnServer<S: Shifts> {
    server: S,
    records: S::Records,
    clock: ManualClock,
    processes: Vec<RecordsCoordinator<S::Records>>,
}

async fn connect<S: Shifts>(url: String) -> S::Records {
    S::connect(url, TIMEOUT).await.expect("the server is there")
}

pub(super) async fn suites<S: Shifts>(server: S) -> (S, Vec<&'static str>) {
    println!("fences: terms_never_fall");
    fences::terms_never_fall(&server).await;
    let records = connect::<S>(server.url()).await;
    let mut on_server = OnServer {
        server,
        records,
        clock: ManualClock::default(),
        processes: Vec::new(),
    };
    let mut not_run = records::run(&mut on_server).await;
    busy::one_works_on_a_key_and_late_ones_change_nothing(&mut on_server).await;
    not_run.extend(coordination::run(&mut on_server).await);
    (on_server.server, not_run)
}

impl<S: Shifts> OnServer<S> {
    fn pass(&mut self, span: Duration) {
        let url = self.server.url();
        // Of a thread of its own: this one has a runtime.
        let shifted = thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(S::shift(url, span));
        });
        // Before any leader knows: it must not renew in between.
        shifted.join().expect("the server is there");
        let span = u64::try_from(span.as_millis()).expect("it is short");
        self.clock.advance(span);
        for process in &self.processes {
            process.clock_changed();
        }
    }
}

impl<S: Shifts> records::Fixture for OnServer<S> {
    type Records = S::Records;

    fn records(&self) -> &S::Records {
        &self.records
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.pass(span);
        true
    }

    async fn restart(&mut self) -> bool {
        self.server.crash();
        self.records = connect::<S>(self.server.url()).await;
        true
    }
}

impl<S: Shifts> coordination::Fixture for OnServer<S> {
    type Coordinator = RecordsCoordinator<S::Records>;

    async fn process(&mut self) -> Self::Coordinator {
        let records = connect::<S>(self.server.url()).await;
        let process = RecordsCoordinator::new(records).clock(Arc::new(self.clock.clone()));
        self.processes.push(process.clone());
        process
    }

    fn process_maker(&self) -> Box<dyn FnOnce() -> BoxedProcess<Self::Coordinator> + Send> {
        let (url, clock) = (self.server.url(), Arc::new(self.clock.clone()));
        Box::new(move || {
            Box::pin(async move { RecordsCoordinator::new(connect::<S>(url).await).clock(clock) })
        })
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.pass(span);
        true
    }

    async fn restart(&mut self) -> bool {
        self.processes.clear();
        self.server.crash();
        true
    }
}
