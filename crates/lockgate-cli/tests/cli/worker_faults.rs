//! Workers of the library over a network that is cut and stalls, a server that is stopped, and workers that are
//! stopped and killed.

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use lockgate_client::{Client, RemoteQueue};
use lockgate_consumer::{Job, Worker, handler};
use lockgate_core::QueueName;
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::mpsc;

use crate::{messages::Town, support::signal};

/// What the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Flows,
    /// Nothing comes to the server any more; what is on its way waits.
    StalledToServer,
    /// Nothing comes back.
    StalledToClient,
    /// Connections break, and no new one is made.
    Cut,
}

/// A network between clients and a server.
struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    network: Mutex<(Network, Vec<TcpStream>)>,
    changed: Condvar,
}

impl Proxy {
    fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            network: Mutex::new((Network::Flows, Vec::new())),
            changed: Condvar::new(),
        });
        let (server, of_thread) = (server.to_owned(), shared.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let mut network = of_thread.network.lock().unwrap();
                if network.0 == Network::Cut {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&server) else {
                    continue;
                };
                let of = |stream: &TcpStream| stream.try_clone().unwrap();
                network.1.extend([of(&client), of(&server)]);
                let ways = [
                    (of(&client), of(&server), Network::StalledToServer),
                    (server, client, Network::StalledToClient),
                ];
                for (from, to, stalls) in ways {
                    let shared = of_thread.clone();
                    std::thread::spawn(move || shared.carry(from, to, stalls));
                }
            }
        });
        Self { address, shared }
    }

    fn set(&self, network: Network) {
        let mut state = self.shared.network.lock().unwrap();
        state.0 = network;
        if network == Network::Cut {
            for stream in state.1.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Carries bytes one way until that ends.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream, stalls: Network) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
        {
            let network = self.network.lock().unwrap();
            let is_stalled = |state: &mut (Network, Vec<TcpStream>)| state.0 == stalls;
            drop(self.changed.wait_while(network, is_stalled).unwrap());
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}

async fn jobs_at(endpoint: &str) -> RemoteQueue {
    let client = Client::builder(endpoint.parse().unwrap()).timeout(Duration::from_secs(2));
    let client = client.build().await.unwrap();
    client
        .queue(&QueueName::new("jobs.fifo").unwrap())
        .await
        .unwrap()
}

fn number(job: &Job) -> u32 {
    std::str::from_utf8(job.body()).unwrap().parse().unwrap()
}

fn send(town: &Town, numbers: std::ops::Range<u32>, keys: u32) {
    let lines: String = numbers
        .map(|number| format!("{{\"body\":\"{number}\",\"key\":\"k{}\"}}\n", number % keys))
        .collect();
    town.send_lines("jobs.fifo", &lines).ok();
}

/// Asks again until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const NOTHING: [(&str, u32); 3] = [("ready", 0), ("in_flight", 0), ("delayed", 0)];

/// Handlers that go on, by key, and keys that two had who were both current.
#[derive(Default)]
struct Seen {
    going: HashMap<String, Vec<Job>>,
    twice: Vec<String>,
}

impl Seen {
    fn begins(&mut self, job: &Job) {
        let key = job.key().unwrap().to_string();
        let others = self.going.entry(key.clone()).or_default();
        if job.is_current() && others.iter().any(Job::is_current) {
            self.twice.push(key);
        }
        others.push(job.clone());
    }
}

/// Ends with its handler, however that ends.
struct Going(Arc<Mutex<Seen>>, Job);

impl Drop for Going {
    fn drop(&mut self) {
        let mut seen = self.0.lock().unwrap();
        let going = seen.going.get_mut(self.1.key().unwrap().as_str()).unwrap();
        let is_this = |job: &Job| job.body().as_ptr() == self.1.body().as_ptr();
        going.retain(|job| !is_this(job));
    }
}

/// Two workers behind a network that stalls in each direction for longer than a lease, so that answers come
/// when their leases have ended, and that is cut: nothing is lost, first attempts keep their order, and no two
/// handlers are current for one key.
#[test]
fn a_network_that_stalls_and_breaks_costs_time_only() {
    const KEYS: u32 = 8;
    const COUNT: u32 = 240;
    for profile in ["sqs", "strict"] {
        let town = Town::new();
        town.run("queue create jobs.fifo").ok();
        town.run(&format!("queue set jobs.fifo --key-profile {profile}"))
            .ok();
        send(&town, 0..COUNT, KEYS);
        let proxy = Proxy::to(town.server.url.trim_start_matches("http://"));
        let endpoint = format!("http://{}", proxy.address);

        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (tell, mut told) = mpsc::unbounded_channel::<u32>();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let start = || {
            let (tell, seen) = (tell.clone(), seen.clone());
            let builder = Worker::over(runtime.block_on(jobs_at(&endpoint)));
            let builder = builder.lease(Duration::from_secs(1)).run_max(1);
            let _within = runtime.enter();
            let worker = builder.start(move |job: Job| {
                let (tell, seen) = (tell.clone(), seen.clone());
                async move {
                    seen.lock().unwrap().begins(&job);
                    let going = Going(seen, job);
                    let _ = tell.send(number(&going.1));
                    // Others get their turn meanwhile.
                    tokio::task::yield_now().await;
                    Ok(())
                }
            });
            worker.unwrap()
        };
        let workers = [start(), start()];
        let lost = || {
            let states = workers
                .iter()
                .map(|worker| runtime.block_on(worker.state()));
            let counts = states.map(|state| state.unwrap().counts);
            // An acknowledgement without an answer may have been done.
            let lost = counts.map(|counts| counts.lost + counts.unconfirmed);
            lost.sum::<u64>()
        };

        let mut firsts = BTreeMap::<u32, Vec<u32>>::new();
        let mut count = 0;
        while count < COUNT {
            let number = told.blocking_recv().unwrap();
            let of_key = firsts.entry(number % KEYS).or_default();
            if of_key.contains(&number) {
                continue;
            }
            of_key.push(number);
            count += 1;
            let fault = match count {
                40 => Network::StalledToClient,
                100 => Network::StalledToServer,
                160 => Network::Cut,
                _ => continue,
            };
            let before = lost();
            proxy.set(fault);
            // What they had in their hands is not theirs any more.
            until("leases are lost", || lost() > before);
            proxy.set(Network::Flows);
        }
        for (key, numbers) in &firsts {
            let expected: Vec<u32> = (*key..COUNT).step_by(KEYS as usize).collect();
            assert_eq!(numbers, &expected, "{profile}");
        }
        for worker in workers {
            let ended = runtime.block_on(worker.drain(Duration::from_secs(60)));
            assert_eq!(ended.left, 0, "{ended:?}");
        }
        assert_eq!(seen.lock().unwrap().twice, [""; 0], "{profile}");
        // What was acknowledged while the network was away comes once more, when its lease ends.
        town.run("receive jobs.fifo --exec true --wait 3s");
        assert_eq!(town.counts("jobs.fifo"), json!(BTreeMap::from(NOTHING)));
    }
}

/// The handler of a message learns that its lease is lost while nobody answers, and the message comes again.
#[test]
fn a_server_that_is_stopped_for_longer_than_a_lease_takes_the_message_back() {
    struct Dropped(mpsc::UnboundedSender<u32>, u32);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }
    let town = Town::new();
    town.run("queue create jobs.fifo").ok();
    send(&town, 0..1, 1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (begins, mut begun) = mpsc::unbounded_channel();
    let (ends, mut ended) = mpsc::unbounded_channel();
    let builder = Worker::over(runtime.block_on(jobs_at(&town.server.url)));
    let builder = builder.lease(Duration::from_secs(1));
    let within = runtime.enter();
    let worker = builder.start(move |job: Job| {
        let dropped = Dropped(ends.clone(), job.attempt());
        let begins = begins.clone();
        async move {
            let _ = begins.send(job.attempt());
            if job.attempt() == 1 {
                std::future::pending::<()>().await;
            }
            drop(dropped);
            Ok(())
        }
    });
    drop(within);
    assert_eq!(begun.blocking_recv(), Some(1));
    town.server.signal(Signal::STOP);
    assert_eq!(ended.blocking_recv(), Some(1), "it is dropped meanwhile");
    town.server.signal(Signal::CONT);
    assert!(begun.blocking_recv() >= Some(2));
    let ended = runtime.block_on(worker.unwrap().drain(Duration::from_secs(60)));
    assert_eq!((ended.left, ended.counts.acknowledged), (0, 1), "{ended:?}");
    assert_eq!(town.counts("jobs.fifo"), json!(BTreeMap::from(NOTHING)));
}

/// Where the process that the next test starts finds its server.
const ENDPOINT: &str = "TEST_WORKER_ENDPOINT";

/// No test, unless the next one has started this process: then it is a worker, which says what it does and
/// waits for a line before it ends a handler.
#[test]
fn serves_as_a_worker_for_another_test() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let builder = Worker::over(runtime.block_on(jobs_at(&endpoint)));
    let builder = builder.lease(Duration::from_secs(1)).held_max(1);
    let (begins, begun) = std::sync::mpsc::channel();
    let within = runtime.enter();
    let worker = builder.start(handler::blocking(move |job: Job| {
        let _ = begins.send((number(&job), job.attempt()));
        let _ = std::io::stdin().read_line(&mut String::new());
        println!("\ncurrent {}", job.is_current());
        Ok(())
    }));
    drop(within);
    let worker = worker.unwrap();
    let (number, attempt) = begun.recv().unwrap();
    // One is enough. Who asks for the state knows that the pause has come.
    worker.pause();
    runtime.block_on(worker.state()).unwrap();
    println!("\nbegins {number} {attempt}");
    until("a handler has ended", || {
        let counts = runtime.block_on(worker.state()).unwrap().counts;
        counts.acknowledged + counts.lost + counts.unconfirmed > 0
    });
    let counts = runtime.block_on(worker.drain(Duration::ZERO)).counts;
    let lost = counts.lost + counts.unconfirmed;
    println!("\nended {} {lost}", counts.acknowledged);
}

/// A worker in a process of its own; killed when dropped.
struct Process {
    child: Child,
    says: std::sync::mpsc::Receiver<String>,
    hears: ChildStdin,
}

impl Process {
    fn start(town: &Town) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("worker_faults::serves_as_a_worker_for_another_test")
            .env(ENDPOINT, &town.server.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        let (tell, says) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let ours = ["begins ", "current ", "ended "];
                if ours.iter().any(|word| line.starts_with(word)) {
                    let _ = tell.send(line);
                }
            }
        });
        Self { child, says, hears }
    }

    #[track_caller]
    fn says(&self) -> String {
        self.says.recv_timeout(Duration::from_secs(120)).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker that is stopped for longer than its lease finds its handler not current, and its acknowledgement
/// changes nothing; what one had that is killed comes to another.
#[test]
fn a_worker_that_is_stopped_or_killed_loses_what_it_had_and_nothing_else() {
    let town = Town::new();
    town.run("queue create jobs.fifo").ok();
    send(&town, 0..2, 1);
    let mut stopped = Process::start(&town);
    assert_eq!(stopped.says(), "begins 0 1");
    signal(&stopped.child, Signal::STOP);

    // Another one gets the first message, and holds the second.
    let mut other = Process::start(&town);
    assert_eq!(other.says(), "begins 0 2");
    writeln!(other.hears).unwrap();
    assert_eq!(other.says(), "current true");
    assert_eq!(other.says(), "ended 1 0");
    let third = Process::start(&town);
    assert_eq!(third.says(), "begins 1 1");

    signal(&stopped.child, Signal::CONT);
    writeln!(stopped.hears).unwrap();
    assert_eq!(stopped.says(), "current false");
    assert_eq!(stopped.says(), "ended 0 1");
    // Its acknowledgement has changed nothing for who has the key.
    let counts = town.counts("jobs.fifo");
    assert_eq!(counts, json!({"ready": 0, "in_flight": 1, "delayed": 0}));

    signal(&third.child, Signal::KILL);
    let mut last = Process::start(&town);
    assert_eq!(last.says(), "begins 1 2");
    writeln!(last.hears).unwrap();
    assert_eq!(last.says(), "current true");
    assert_eq!(last.says(), "ended 1 0");
    assert_eq!(town.counts("jobs.fifo"), json!(BTreeMap::from(NOTHING)));
}
