//! A gateway: sends orders, cancels and transfers of its users to the queue, until its standard input ends.
//!
//! Its journal says what it has sent and what was answered. A transfer without an answer is sent again, also after a crash:
//! its unique id makes it one event. An order has no unique id, and one without an answer is not sent again.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use lockgate::{
    Header, Key, Message, QueueName, Sink as _,
    client::{Client, RemoteQueue},
};

use crate::{
    Random,
    market::{Asset, BANK, Command},
};

/// The users of one gateway.
pub(crate) const USERS: u32 = 20;

/// Commands of a batch, and the pause behind one.
const BATCH: usize = 8;
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Options {
    pub(crate) endpoint: String,
    pub(crate) queue: String,
    /// Which gateway it is, from 1.
    pub(crate) number: u32,
    pub(crate) seed: u64,
    pub(crate) journal: PathBuf,
}

/// What a journal tells.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Transfers, and whether each was answered.
    pub(crate) transfers: BTreeMap<String, (Command, bool)>,
    /// Orders and cancels that were answered.
    pub(crate) orders: Vec<String>,
    /// How often it was started.
    pub(crate) starts: u32,
}

impl Journal {
    /// Reads a journal. A crash may have cut its last line.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).context("reading a journal"),
        };
        let mut journal = Self::default();
        for line in text.split_inclusive('\n') {
            match line.split_once(' ') {
                _ if !line.ends_with('\n') => {}
                Some(("start", _)) => journal.starts += 1,
                Some(("sends", rest)) => {
                    let command: Command = serde_json::from_str(rest)?;
                    if let Command::Transfer { id, .. } = &command {
                        let id = id.clone();
                        journal.transfers.insert(id, (command, false));
                    }
                }
                Some(("answered", id)) => {
                    let id = id.trim_end();
                    match journal.transfers.get_mut(id) {
                        Some((_, answered)) => *answered = true,
                        None => journal.orders.push(id.to_owned()),
                    }
                }
                _ => anyhow::bail!("a journal has the line {line:?}"),
            }
        }
        Ok(journal)
    }
}

struct Gateway {
    options: Options,
    random: Random,
    queue: RemoteQueue,
    file: File,
    session: u32,
    count: u64,
    /// Transfers without an answer.
    unanswered: BTreeMap<String, Command>,
    /// The last orders, which may be cancelled, and the last transfers, which may be sent again.
    orders: Vec<(String, u32)>,
    sent: Vec<Command>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let journal = Journal::read(&options.journal)?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&options.journal)?;
    // A line that was cut goes.
    let written = fs::read(&options.journal)?;
    let end = written.iter().rposition(|byte| *byte == b'\n');
    file.set_len(end.map_or(0, |at| at + 1) as u64)?;
    let client = Client::builder(options.endpoint.parse()?).build().await?;
    let name = QueueName::new(&options.queue)?;
    let queue = loop {
        match client.queue(&name).await {
            Ok(queue) => break queue,
            Err(error) if error.may_pass() => tokio::time::sleep(PAUSE * 5).await,
            Err(error) => return Err(error.into()),
        }
    };
    let seed = options.seed + u64::from(journal.starts);
    let unanswered = journal.transfers.into_iter();
    let unanswered = unanswered.filter(|(_, (_, answered))| !answered);
    let mut gateway = Gateway {
        random: Random(seed),
        session: journal.starts,
        queue,
        file,
        count: 0,
        unanswered: unanswered.map(|(id, (command, _))| (id, command)).collect(),
        orders: Vec::new(),
        sent: Vec::new(),
        options,
    };
    gateway.note(&format!("start {}", gateway.session))?;
    let ends = Arc::new(AtomicBool::new(false));
    let told = ends.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Release);
    });
    if gateway.session == 0 {
        gateway.fund().await?;
    }
    while !ends.load(Ordering::Acquire) {
        let commands = (0..BATCH).map(|_| gateway.command()).collect();
        gateway.send(commands).await?;
        tokio::time::sleep(PAUSE).await;
    }
    while !gateway.unanswered.is_empty() {
        gateway.send(Vec::new()).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

impl Gateway {
    fn note(&mut self, line: &str) -> anyhow::Result<()> {
        // A process that is killed loses nothing of what it has written.
        Ok(self.file.write_all(format!("{line}\n").as_bytes())?)
    }

    fn id(&mut self, kind: &str) -> String {
        self.count += 1;
        let number = self.options.number;
        format!("{kind}-{number}-{}-{}", self.session, self.count)
    }

    fn user(&mut self) -> u32 {
        // Of this gateway; the other side of a transfer may be of another.
        let user = self.random.below(u64::from(USERS));
        (self.options.number - 1) * USERS + 1 + u32::try_from(user).unwrap_or_default()
    }

    /// Each user begins with money and shares.
    async fn fund(&mut self) -> anyhow::Result<()> {
        let first = (self.options.number - 1) * USERS + 1;
        for to in first..first + USERS {
            let mut both = Vec::new();
            for (asset, amount) in [(Asset::Money, 1_000_000), (Asset::Shares, 10_000)] {
                let id = self.id("transfer");
                both.push(Command::Transfer {
                    id,
                    from: BANK,
                    to,
                    asset,
                    amount,
                });
            }
            self.send(both).await?;
        }
        Ok(())
    }

    fn command(&mut self) -> Command {
        let user = self.user();
        match self.random.below(10) {
            0..=1 => {
                let id = self.id("transfer");
                let (asset, most) = match self.random.below(2) {
                    0 => (Asset::Money, 2_000),
                    _ => (Asset::Shares, 20),
                };
                Command::Transfer {
                    id,
                    from: user,
                    to: 1 + u32::try_from(self.random.below(40)).unwrap_or_default(),
                    asset,
                    amount: 1 + self.random.amount(most),
                }
            }
            2..=3 if !self.orders.is_empty() => {
                let at = self.random.below(self.orders.len() as u64);
                let at = usize::try_from(at).unwrap_or_default();
                let (order, user) = self.orders.swap_remove(at);
                Command::Cancel { order, user }
            }
            _ => {
                let id = self.id("order");
                self.orders.push((id.clone(), user));
                if self.orders.len() > 200 {
                    self.orders.remove(0);
                }
                Command::Order {
                    id,
                    user,
                    buys: self.random.below(2) == 0,
                    price: 90 + self.random.amount(20),
                    quantity: 1 + self.random.amount(10),
                }
            }
        }
    }

    /// Sends commands, and transfers that have no answer; some transfers twice, on purpose.
    async fn send(&mut self, mut commands: Vec<Command>) -> anyhow::Result<()> {
        for command in &commands {
            if let Command::Transfer { id, .. } = command {
                self.unanswered.insert(id.clone(), command.clone());
                let line = format!("sends {}", serde_json::to_string(command)?);
                self.note(&line)?;
            }
        }
        let transfers = commands
            .iter()
            .filter(|it| matches!(it, Command::Transfer { .. }));
        self.sent.extend(transfers.cloned());
        self.sent.drain(..self.sent.len().saturating_sub(1_000));
        let mut again: Vec<Command> = self.unanswered.values().take(50).cloned().collect();
        if self.random.below(4) == 0 && !self.sent.is_empty() {
            let at = self.random.below(self.sent.len() as u64);
            again.push(self.sent[usize::try_from(at).unwrap_or_default()].clone());
        }
        // Those that are new are among them once more.
        commands.extend(again);
        let messages = commands
            .iter()
            .map(message)
            .collect::<anyhow::Result<Vec<_>>>()?;
        let results = self.queue.send_batch(messages).await;
        for (command, result) in commands.iter().zip(results) {
            if result.is_err() {
                continue;
            }
            match command {
                Command::Transfer { id, .. } => {
                    if self.unanswered.remove(id).is_some() {
                        self.note(&format!("answered {id}"))?;
                    }
                }
                Command::Order { id, .. } => self.note(&format!("answered {id}"))?,
                Command::Cancel { .. } => {}
            }
        }
        Ok(())
    }
}

fn message(command: &Command) -> anyhow::Result<Message> {
    let (user, id) = match command {
        Command::Order { user, .. } | Command::Cancel { user, .. } => (user, None),
        Command::Transfer { from, id, .. } => (from, Some(id)),
    };
    let mut message = Message::new(serde_json::to_vec(command)?);
    message.key = Some(Key::new(&format!("user-{user}"))?);
    message.headers.extend(id.map(|id| Header {
        name: "unique_id".into(),
        kind: "String".into(),
        value: id.clone().into(),
    }));
    Ok(message)
}
