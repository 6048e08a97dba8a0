//! Programs of both languages take from one queue, and are killed and stopped, and so is the server: no item is lost, none
//! has two live holders, and those that come again are no more than were in hand at each fault.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use lockgate_zookeeper::{
    ZookeeperOptions,
    queue::{CuratorQueue, CuratorQueueOptions, Kind, Place, Taking},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;

use crate::{
    curator::{Java, NEWEST, OLD},
    queues::now,
    server::Server,
};

const URL: &str = "LOCKGATE_TEST_TAKES_AT";
const FOLDER: &str = "LOCKGATE_TEST_TAKES_IN";
const ITEMS: usize = 240;
/// How long something is stopped: for longer than its session lives.
const STOPPED: Duration = Duration::from_secs(6);

async fn open(url: &str) -> CuratorQueue {
    let options = CuratorQueueOptions {
        taking: Some(Taking::LockSafe("/chaos-locks".to_owned())),
        session_timeout: Duration::from_secs(4),
        ..CuratorQueueOptions::new("/chaos", Kind::Delay)
    };
    let server = ZookeeperOptions::parse(url).unwrap();
    CuratorQueue::open(&server, options).await.unwrap()
}

/// What the other test starts: it takes until it is killed.
#[test]
fn process() {
    let Ok(url) = env::var(URL) else {
        return;
    };
    let folder = env::var(FOLDER).unwrap();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let queue = open(&url).await;
        println!("\nstarted");
        loop {
            // No server answers for a while.
            let Ok(taken) = queue.take().await else {
                continue;
            };
            let text = str::from_utf8(&taken.items[0]).unwrap().to_owned();
            println!("\ntook {text}");
            work(&Path::new(&folder).join(&text), &text).await;
            if taken.done().await.is_err() {
                println!("\nlost {text}");
            }
        }
    });
}

/// A file says who works on an item; one of a process that is killed or stopped says nothing.
async fn work(file: &Path, text: &str) {
    if let Ok(other) = fs::read_to_string(file)
        && let Ok(stat) = fs::read_to_string(format!("/proc/{other}/stat"))
        && !stat
            .rsplit_once(") ")
            .unwrap()
            .1
            .starts_with(['T', 't', 'Z', 'X'])
    {
        println!("\ntwice {text}");
    }
    fs::write(file, std::process::id().to_string()).unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let _ = fs::remove_file(file);
}

/// A program that takes. It is killed when this is dropped.
struct Taker(Child);

impl Taker {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Chaos {
    server: Server,
    folder: tempfile::TempDir,
    told: mpsc::UnboundedSender<String>,
    tells: mpsc::UnboundedReceiver<String>,
    taken: BTreeMap<String, usize>,
    starts: usize,
}

impl Chaos {
    fn listens(&self, mut child: Child) -> Taker {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = self.told.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = told.send(line);
            }
        });
        Taker(child)
    }

    fn rust(&self) -> Taker {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "queue_chaos::process", "--nocapture"]);
        command
            .env(URL, &self.server.url)
            .env(FOLDER, self.folder.path());
        self.listens(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    fn java(&self, curator: &str) -> Taker {
        let role = format!("works:{}", self.folder.path().display());
        let arguments = ["/chaos", "/chaos-locks", "delay", &role];
        self.listens(
            Java::command(curator, &self.server.url, "Queue", &arguments)
                .spawn()
                .unwrap(),
        )
    }

    fn hears(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("took", text)) => *self.taken.entry(text.to_owned()).or_default() += 1,
            Some(("twice", _)) => panic!("{line}"),
            _ if line == "started" => self.starts += 1,
            _ => {}
        }
    }

    async fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            let line = self.tells.recv().await.unwrap();
            self.hears(&line);
        }
    }

    async fn until_taken(&mut self, share: usize) {
        self.until(|chaos| chaos.taken.len() >= ITEMS * share / 100)
            .await;
    }
}

/// `cargo xtask curator` runs many rounds.
#[tokio::test(flavor = "multi_thread")]
async fn no_item_is_lost_and_none_has_two_holders() {
    let rounds = env::var("LOCKGATE_CURATOR_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    for _ in 0..rounds {
        round().await;
    }
}

async fn round() {
    let (told, tells) = mpsc::unbounded_channel();
    let mut chaos = Chaos {
        server: Server::start(),
        folder: tempfile::tempdir().unwrap(),
        told,
        tells,
        taken: BTreeMap::new(),
        starts: 0,
    };
    let queue = open(&chaos.server.url).await;
    let mut items = BTreeSet::new();
    let mut rust = [chaos.rust(), chaos.rust()];
    let mut java = [chaos.java(NEWEST), chaos.java(OLD)];
    chaos.until(|chaos| chaos.starts == 4).await;
    // Faults last longer than it takes to take them all, so some are due late.
    let begin = now();
    for number in 0..ITEMS {
        let due = begin + i64::try_from(number).unwrap() * 100;
        queue
            .put(Place::At(due), &[format!("{number}")])
            .await
            .unwrap();
        items.insert(number.to_string());
    }
    let mut in_hand = 0;

    chaos.until_taken(10).await;
    rust[0] = chaos.rust();
    chaos.until_taken(20).await;
    java[0] = chaos.java(NEWEST);
    in_hand += 2;

    chaos.until_taken(30).await;
    rust[1].signal(Signal::STOP);
    java[1].signal(Signal::STOP);
    tokio::time::sleep(STOPPED).await;
    rust[1].signal(Signal::CONT);
    java[1].signal(Signal::CONT);
    in_hand += 2;

    chaos.until_taken(60).await;
    chaos.server.crash();
    chaos.server.restart();
    in_hand += 4;

    chaos.until_taken(80).await;
    chaos.server.signal(Signal::STOP);
    tokio::time::sleep(STOPPED).await;
    chaos.server.signal(Signal::CONT);
    in_hand += 4;

    chaos.until_taken(100).await;
    // What was in hand at the last fault may still come again.
    let client = zookeeper_client::Client::connect(chaos.server.address())
        .await
        .unwrap();
    while !client.list_children("/chaos").await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    drop((rust, java));
    while let Ok(line) = chaos.tells.try_recv() {
        chaos.hears(&line);
    }
    assert!(chaos.taken.keys().eq(&items));
    let again: usize = chaos.taken.values().map(|times| times - 1).sum();
    assert!(again <= in_hand, "{again} of {in_hand}: {:?}", chaos.taken);
}
