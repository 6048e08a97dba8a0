//! Exchanges: lists of bindings, each of which is looked at. What a pattern and a filter match is said again here, in other
//! words than the machine's.

use lockgate_core::{ExchangeId, ExchangeName, NameError};

use super::*;

/// The most exchanges that there may be.
pub(crate) const EXCHANGES_MAX: u32 = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct Exchanges {
    pub(crate) kept: BTreeMap<ExchangeName, Exchange>,
    /// How many were made.
    made: u32,
    /// The last record of the log that a command has changed one with.
    at: Option<Position>,
}

#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    id: ExchangeId,
    pub(crate) kind: ExchangeKind,
    unroutable: Unroutable,
    created: WallTime,
    changed: WallTime,
    /// How many bindings it got.
    made: u32,
    pub(crate) bindings: Vec<BindingDescription>,
    counts: ExchangeCounts,
}

/// A filter as it is written, and the same in Rust.
pub(crate) struct Known {
    pub(crate) scope: FilterScope,
    pub(crate) policy: &'static str,
    matches: fn(&Facts<'_>) -> bool,
}

/// What the filters here ask of a message.
struct Facts<'a> {
    kind: Option<&'a str>,
    size: Option<i64>,
    tags: Vec<&'a str>,
    body: &'a str,
    has_any: bool,
}

/// What bodies there are: a filter on the body knows them by heart.
pub(crate) const BODIES: [&str; 4] = [
    "",
    r#"{"total": 120.5, "order": {"state": "paid"}}"#,
    r#"{"order": {"state": "new"}, "total": null}"#,
    r#"{"order": [{"state": "new"}, {"state": "paid"}]}"#,
];

pub(crate) const FILTERS: [Known; 9] = [
    Known {
        scope: FilterScope::Headers,
        policy: r#"{"kind": ["red", "blue"]}"#,
        matches: |facts| matches!(facts.kind, Some("red" | "blue")),
    },
    Known {
        scope: FilterScope::Headers,
        policy: r#"{"kind": [{"exists": false}]}"#,
        // Nothing is missing where there is no header that a filter can read.
        matches: |facts| facts.kind.is_none() && facts.has_any,
    },
    Known {
        scope: FilterScope::Headers,
        policy: r#"{"kind": [{"prefix": "re"}], "size": [{"numeric": [">=", 3]}]}"#,
        matches: |facts| {
            facts.kind.is_some_and(|kind| kind.starts_with("re"))
                && facts.size.is_some_and(|size| size >= 3)
        },
    },
    Known {
        scope: FilterScope::Headers,
        policy: r#"{"$or": [{"kind": ["blue"]}, {"size": [{"numeric": ["<", 3]}, 7]}]}"#,
        matches: |facts| {
            facts.kind == Some("blue") || facts.size.is_some_and(|size| size < 3 || size == 7)
        },
    },
    Known {
        scope: FilterScope::Headers,
        policy: r#"{"kind": [{"anything-but": ["red"]}]}"#,
        matches: |facts| facts.kind.is_some_and(|kind| kind != "red"),
    },
    Known {
        scope: FilterScope::Headers,
        policy: r#"{"tags": [{"wildcard": "b*e"}, {"suffix": "d"}]}"#,
        matches: |facts| {
            let is_met =
                |tag: &&str| tag.starts_with('b') && tag.ends_with('e') || tag.ends_with('d');
            facts.tags.iter().any(is_met)
        },
    },
    Known {
        scope: FilterScope::Body,
        policy: r#"{"order": {"state": ["paid"]}}"#,
        matches: |facts| [BODIES[1], BODIES[3]].contains(&facts.body),
    },
    Known {
        scope: FilterScope::Body,
        policy: r#"{"total": [null, {"numeric": [">", 200]}]}"#,
        matches: |facts| facts.body == BODIES[2],
    },
    Known {
        scope: FilterScope::Body,
        policy: r#"{"total": [{"exists": false}]}"#,
        // Null is as good as nothing.
        matches: |facts| facts.body != BODIES[1],
    },
];

/// What becomes of a message.
pub(crate) struct Way {
    /// Each binding that was looked at and whose pattern matches.
    pub(crate) steps: Vec<(ExchangeName, u32, Step)>,
    /// Each queue, with the binding that leads there first.
    queues: Vec<(QueueName, BindingOptions)>,
    pub(crate) alternates: Vec<ExchangeName>,
    /// What the last exchange does if there is no queue.
    pub(crate) last: Unroutable,
}

/// What becomes of it at a binding whose pattern matches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Routes,
    Again,
    Filtered,
}

impl Way {
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }
}

/// Whether the words of a routing key are those of a pattern: every way to share them out is tried.
fn has_words(pattern: &[&str], words: &[&str]) -> bool {
    match pattern.split_first() {
        None => words.is_empty(),
        Some((&"#", rest)) => (0..=words.len()).any(|taken| has_words(rest, &words[taken..])),
        Some((first, rest)) => words.split_first().is_some_and(|(word, words)| {
            (*first == "*" || first == word) && has_words(rest, words)
        }),
    }
}

fn words(text: &str) -> Vec<&str> {
    match text {
        "" => Vec::new(),
        text => text.split('.').collect(),
    }
}

fn is_matched(pattern: &Pattern, publish: &Publish) -> bool {
    let routing = publish.routing_key.as_str();
    match pattern {
        Pattern::RoutingKey(key) => key.as_str() == routing,
        Pattern::Topic(topic) => has_words(&words(topic.as_str()), &words(routing)),
        Pattern::Everything => true,
        Pattern::Headers(wanted) => {
            let has = |pair: &HeaderPair| {
                let mut headers = publish.message.headers.iter();
                headers.any(|header| match &pair.value {
                    Some(value) => header.name == pair.name && header.value == value.as_bytes(),
                    None => header.name == pair.name,
                })
            };
            let having = wanted.pairs().iter().filter(|pair| has(pair)).count();
            having
                >= if wanted.is_any() {
                    1
                } else {
                    wanted.pairs().len()
                }
        }
        other => panic!("the model does not know {other:?}"),
    }
}

fn is_let_through(options: &BindingOptions, publish: &Publish) -> bool {
    let Some(filter) = &options.filter else {
        return true;
    };
    let text = |name: &str| {
        let mut headers = publish.message.headers.iter();
        let header = headers.find(|header| &*header.name == name)?;
        str::from_utf8(&header.value).ok()
    };
    let tags = text("tags").unwrap_or("[]").trim_matches(['[', ']']);
    let facts = Facts {
        kind: text("kind"),
        size: text("size").map(|size| size.parse().unwrap()),
        tags: tags.split(',').map(|tag| tag.trim_matches('"')).collect(),
        body: str::from_utf8(&publish.message.body).unwrap(),
        has_any: (publish.message.headers.iter()).any(|it| str::from_utf8(&it.value).is_ok()),
    };
    let known = FILTERS.iter().find(|known| known.policy == filter.text());
    let known = known.expect("a filter of this list");
    // What is no JSON object has nothing for a filter.
    let is_readable = known.scope == FilterScope::Headers || !facts.body.is_empty();
    is_readable && (known.matches)(&facts)
}

/// The key that a binding takes from the message, if it takes one and it is there.
fn taken_key(options: &BindingOptions, publish: &Publish) -> Result<Option<Key>, NameError> {
    let value = match &options.key_from {
        None => return Ok(None),
        Some(KeyFrom::RoutingKey) => publish.routing_key.as_str().as_bytes(),
        Some(KeyFrom::Header(name)) => {
            let mut headers = publish.message.headers.iter();
            match headers.find(|header| header.name == *name) {
                Some(header) => &header.value[..],
                None => return Ok(None),
            }
        }
    };
    match str::from_utf8(value) {
        Ok("") => Ok(None),
        Ok(text) => Key::new(text).map(Some),
        Err(error) => Err(NameError::Character {
            what: "key",
            found: char::REPLACEMENT_CHARACTER,
            at: error.valid_up_to(),
            allowed: "UTF-8 without control characters",
        }),
    }
}

impl Exchanges {
    fn found(&self, name: &ExchangeName) -> Result<&Exchange, Rejection> {
        let exchange = name.clone();
        let missing = ExchangeError::NotFound { exchange };
        self.kept.get(name).ok_or(missing.into())
    }

    fn found_mut(&mut self, name: &ExchangeName) -> &mut Exchange {
        self.kept.get_mut(name).unwrap()
    }

    /// Where an exchange leads, by bindings or as to an alternate.
    fn behind(&self, name: &ExchangeName) -> Vec<ExchangeName> {
        let exchange = &self.kept[name];
        let bindings = exchange.bindings.iter();
        let bound = bindings.filter_map(|binding| match &binding.to {
            BindTo::Exchange(to) => Some(to.clone()),
            BindTo::Queue(_) => None,
        });
        let alternate = match &exchange.unroutable {
            Unroutable::Alternate(alternate) => Some(alternate.clone()),
            _ => None,
        };
        bound.chain(alternate).collect()
    }

    fn leads_to(&self, from: &ExchangeName, to: &ExchangeName) -> bool {
        let mut reached = vec![from.clone()];
        let mut next = 0;
        while next < reached.len() {
            for name in self.behind(&reached[next]) {
                if !reached.contains(&name) {
                    reached.push(name);
                }
            }
            next += 1;
        }
        reached.contains(to)
    }

    fn check_alternate(
        &self,
        name: &ExchangeName,
        unroutable: &Unroutable,
    ) -> Result<(), Rejection> {
        let Unroutable::Alternate(alternate) = unroutable else {
            return Ok(());
        };
        let (exchange, to) = (name.clone(), alternate.clone());
        let cycle = ExchangeError::Cycle { exchange, to };
        if alternate == name {
            return Err(cycle.into());
        }
        self.found(alternate)?;
        match self.kept.contains_key(name) && self.leads_to(alternate, name) {
            true => Err(cycle.into()),
            false => Ok(()),
        }
    }

    fn create(&mut self, create: &CreateExchange, now: WallTime) -> Result<bool, Rejection> {
        let CreateExchange {
            name,
            kind,
            unroutable,
            notes: _,
        } = create;
        if let Some(kept) = self.kept.get(name) {
            let what = match () {
                () if kept.kind != *kind => "kind",
                () if kept.unroutable != *unroutable => "rule for messages that it cannot route",
                () => return Ok(true),
            };
            let exchange = name.clone();
            return Err(ExchangeError::Conflict { exchange, what }.into());
        }
        self.check_alternate(name, unroutable)?;
        if self.kept.len() >= EXCHANGES_MAX as usize {
            return Err(Rejection::ShardFull {
                what: "exchanges",
                max: EXCHANGES_MAX.into(),
            });
        }
        self.made += 1;
        let exchange = Exchange {
            id: ExchangeId(self.made),
            kind: *kind,
            unroutable: unroutable.clone(),
            created: now,
            changed: now,
            made: 0,
            bindings: Vec::new(),
            counts: ExchangeCounts::default(),
        };
        self.kept.insert(name.clone(), exchange);
        Ok(false)
    }

    fn update(&mut self, update: &UpdateExchange, now: WallTime) -> Result<(), Rejection> {
        self.found(&update.exchange)?;
        let Some(unroutable) = &update.unroutable else {
            return Ok(());
        };
        self.check_alternate(&update.exchange, unroutable)?;
        let exchange = self.found_mut(&update.exchange);
        if exchange.unroutable != *unroutable {
            exchange.unroutable = unroutable.clone();
            exchange.changed = now;
        }
        Ok(())
    }

    fn delete(&mut self, delete: &DeleteExchange) -> Result<(), Rejection> {
        let name = &delete.exchange;
        self.found(name)?;
        let others = || self.kept.iter().filter(|_| !delete.force);
        let binds = |other: &Exchange| {
            let mut bindings = other.bindings.iter();
            bindings.any(|binding| binding.to == BindTo::Exchange(name.clone()))
        };
        let alternate = Unroutable::Alternate(name.clone());
        let by_binding = others().filter(|(_, other)| binds(other));
        let as_alternate = others().filter(|(_, other)| other.unroutable == alternate);
        let first = by_binding.min_by_key(|(_, other)| other.id);
        if let Some((by, _)) = first.or(as_alternate.min_by_key(|(_, other)| other.id)) {
            let (exchange, by) = (name.clone(), by.clone());
            return Err(ExchangeError::Used { exchange, by }.into());
        }
        self.kept.remove(name);
        self.forget(&BindTo::Exchange(name.clone()));
        for other in self.kept.values_mut() {
            if other.unroutable == alternate {
                other.unroutable = Unroutable::Reject;
            }
        }
        Ok(())
    }

    /// Nothing leads to it any more. Returns whether anything did.
    fn forget(&mut self, to: &BindTo) -> bool {
        let mut is_known = false;
        for exchange in self.kept.values_mut() {
            is_known |= exchange.bindings.iter().any(|binding| binding.to == *to);
            exchange.bindings.retain(|binding| binding.to != *to);
        }
        is_known
    }

    fn check_bind(&self, bind: &Bind, is_queue_there: bool) -> Result<(), Rejection> {
        let exchange = || bind.exchange.clone();
        let kept = self.found(&bind.exchange)?;
        if bind.pattern.kind() != kept.kind {
            return Err(ExchangeError::Pattern {
                exchange: exchange(),
                kind: kept.kind.name(),
                pattern: bind.pattern.to_string(),
            }
            .into());
        }
        if let Some(KeyFrom::Header(name)) = &bind.options.key_from
            && name.is_empty()
        {
            return Err(ExchangeError::KeyHeader { len: 0, max: 256 }.into());
        }
        match &bind.to {
            BindTo::Queue(queue) if !is_queue_there => return Err(not_found(queue)),
            BindTo::Queue(_) => {}
            BindTo::Exchange(to) => {
                self.found(to)?;
                let what = match &bind.options {
                    options if options.key_from.is_some() => Some("a key"),
                    options if options.skip_when_full => Some("skip_when_full"),
                    _ => None,
                };
                if let Some(what) = what {
                    return Err(ExchangeError::OnlyToQueue { what }.into());
                }
                if self.leads_to(to, &bind.exchange) {
                    let (exchange, to) = (exchange(), to.clone());
                    return Err(ExchangeError::Cycle { exchange, to }.into());
                }
            }
        }
        Ok(())
    }

    fn bind(&mut self, bind: &Bind) -> Bound {
        let exchange = self.found_mut(&bind.exchange);
        let mut bindings = exchange.bindings.iter_mut();
        let same = bindings.find(|it| it.to == bind.to && it.pattern == bind.pattern);
        if let Some(same) = same {
            let changed = same.options != bind.options;
            same.options = bind.options.clone();
            return Bound {
                binding: same.number,
                existed: true,
                changed,
            };
        }
        exchange.made += 1;
        exchange.bindings.push(BindingDescription {
            number: exchange.made,
            to: bind.to.clone(),
            pattern: bind.pattern.clone(),
            options: bind.options.clone(),
        });
        Bound {
            binding: exchange.made,
            existed: false,
            changed: true,
        }
    }

    fn unbind(&mut self, unbind: &Unbind, is_queue_there: bool) -> Result<bool, Rejection> {
        self.found(&unbind.exchange)?;
        match &unbind.to {
            BindTo::Queue(queue) if !is_queue_there => return Err(not_found(queue)),
            BindTo::Queue(_) => {}
            BindTo::Exchange(to) => {
                self.found(to)?;
            }
        }
        let bindings = &mut self.found_mut(&unbind.exchange).bindings;
        let before = bindings.len();
        bindings.retain(|it| it.to != unbind.to || it.pattern != unbind.pattern);
        Ok(bindings.len() < before)
    }

    /// Where a message goes. Exchanges look one after the other, each once.
    pub(crate) fn way(&self, publish: &Publish) -> Way {
        let mut way = Way {
            steps: Vec::new(),
            queues: Vec::new(),
            alternates: Vec::new(),
            last: Unroutable::Reject,
        };
        let mut at = publish.exchange.clone();
        let (mut line, mut next) = (vec![at.clone()], 0);
        loop {
            while next < line.len() {
                let name = line[next].clone();
                next += 1;
                let exchange = &self.kept[&name];
                let mut has_none = true;
                for binding in &exchange.bindings {
                    if !is_matched(&binding.pattern, publish) {
                        continue;
                    }
                    let mut step = Step::Filtered;
                    if is_let_through(&binding.options, publish) {
                        has_none = false;
                        let known = match &binding.to {
                            BindTo::Queue(queue) => way.queues.iter().any(|it| it.0 == *queue),
                            BindTo::Exchange(to) => line.contains(to),
                        };
                        step = if known { Step::Again } else { Step::Routes };
                        match &binding.to {
                            _ if known => {}
                            BindTo::Queue(queue) => {
                                way.queues.push((queue.clone(), binding.options.clone()));
                            }
                            BindTo::Exchange(to) => line.push(to.clone()),
                        }
                    }
                    way.steps.push((name.clone(), binding.number, step));
                }
                if let Unroutable::Alternate(alternate) = &exchange.unroutable
                    && has_none
                    && name != at
                    && !line.contains(alternate)
                {
                    line.push(alternate.clone());
                }
            }
            way.last = self.kept[&at].unroutable.clone();
            match &way.last {
                Unroutable::Alternate(alternate) if way.queues.is_empty() => {
                    at = alternate.clone();
                    way.alternates.push(at.clone());
                    if !line.contains(&at) {
                        line.push(at.clone());
                    }
                }
                _ => return way,
            }
        }
    }

    /// All about an exchange.
    pub(crate) fn describe(&self, name: &ExchangeName) -> Option<ExchangeDescription> {
        let exchange = self.kept.get(name)?;
        Some(ExchangeDescription {
            id: exchange.id,
            name: name.clone(),
            kind: exchange.kind,
            unroutable: exchange.unroutable.clone(),
            created: exchange.created,
            changed: exchange.changed,
            bindings: exchange.bindings.len() as u64,
            counts: exchange.counts,
            notes: Default::default(),
        })
    }
}

impl Model {
    /// What a command does that is for exchanges, for records, or deletes a queue.
    pub(super) fn take_other(
        &mut self,
        command: &Command,
        decision: &Decision,
    ) -> Result<Reply, Rejection> {
        if let Command::DeleteQueue(DeleteQueue { queue }) = command {
            self.queues.remove(queue).ok_or(not_found(queue))?;
            if self.exchanges.forget(&BindTo::Queue(queue.clone())) {
                self.exchanges.at = Some(self.at);
            }
            return Ok(Reply::Done);
        }
        let now = self.now.wall;
        let is_there = |to: &BindTo| match to {
            BindTo::Queue(queue) => self.queues.contains_key(queue),
            BindTo::Exchange(_) => true,
        };
        let reply = match command {
            Command::CreateExchange(create) => {
                let existed = self.exchanges.create(create, now)?;
                let description = self.exchanges.describe(&create.name).unwrap();
                Reply::Exchange(Box::new(CreatedExchange {
                    existed,
                    description,
                }))
            }
            Command::UpdateExchange(update) => {
                self.exchanges.update(update, now)?;
                Reply::Done
            }
            Command::DeleteExchange(delete) => {
                self.exchanges.delete(delete)?;
                Reply::Done
            }
            Command::Bind(bind) => {
                self.exchanges.check_bind(bind, is_there(&bind.to))?;
                Reply::Bound(self.exchanges.bind(bind))
            }
            Command::Unbind(unbind) => {
                let is_there = is_there(&unbind.to);
                Reply::Unbound(self.exchanges.unbind(unbind, is_there)?)
            }
            Command::Publish(publish) => {
                self.check_rest(decision);
                return self.publish(publish, decision);
            }
            command => return self.take_record(command, decision),
        };
        self.check_rest(decision);
        if !decision.effects.is_empty() {
            assert!(decision.level >= Level::Disk, "a change is not synced");
            self.exchanges.at = Some(self.at);
        }
        Ok(reply)
    }

    /// What an answer says of exchanges must not be taken back.
    fn check_rest(&self, decision: &Decision) {
        if let (Some(at), Some(durable)) = (self.exchanges.at, self.durable)
            && at >= durable
        {
            let waits = decision.rests_on >= Some(at);
            assert!(waits, "does not wait for the change of exchanges before it");
        }
    }

    fn publish(&mut self, publish: &Publish, decision: &Decision) -> Result<Reply, Rejection> {
        let exchange = || publish.exchange.clone();
        self.exchanges.found(&publish.exchange)?;
        let way = self.exchanges.way(publish);
        let no_queue = way.queues.is_empty();
        if no_queue && way.last == Unroutable::Reject {
            self.exchanges.found_mut(&publish.exchange).counts.refused += 1;
            let (exchange, alternates) = (exchange(), way.alternates);
            return Err(ExchangeError::Unroutable {
                exchange,
                alternates,
            }
            .into());
        }
        let (mut copies, mut skipped) = (Vec::new(), 0);
        for (name, options) in way.queues {
            let taken = taken_key(&options, publish).map_err(|source| ExchangeError::Key {
                exchange: exchange(),
                source,
            })?;
            let message = &publish.message;
            let key = taken.or(message.key.clone()).or(message.group.clone());
            let is_keyed = self.queues[&name].settings.keyed;
            let mut copy = lockgate_core::Message {
                key: None,
                group: None,
                ..message.clone()
            };
            match is_keyed {
                true => copy.key = key,
                false => copy.group = key,
            }
            let send = SendMessage {
                queue: name.clone(),
                message: copy,
            };
            match self.send(&send, decision) {
                Ok(sent) => copies.push(Copied { queue: name, sent }),
                Err(Rejection::QuotaExceeded { .. }) if options.skip_when_full => skipped += 1,
                Err(source) => {
                    return Err(Rejection::PublishRefused {
                        exchange: exchange(),
                        queue: name,
                        source: Box::new(source),
                    });
                }
            }
        }
        let counts = &mut self.exchanges.found_mut(&publish.exchange).counts;
        counts.published += 1;
        counts.copies += copies.iter().filter(|it| !it.sent.duplicate).count() as u64;
        counts.skipped += skipped;
        counts.dropped += u64::from(no_queue);
        counts.unroutable += u64::from(no_queue || !way.alternates.is_empty());
        // The model gives no ids.
        let id = match &decision.outcome {
            Ok(Reply::Published(done)) => done.id,
            _ => MessageId::from_bits(0),
        };
        Ok(Reply::Published(Box::new(Publication {
            id,
            number: counts.published,
            copies,
            skipped,
            dropped: no_queue,
        })))
    }

    /// A refused command changes nothing of exchanges but the counts of refused publishes.
    pub(super) fn refused_onto(&self, mut exchanges: Exchanges) -> Exchanges {
        for (name, exchange) in &mut exchanges.kept {
            if let Some(now) = self.exchanges.kept.get(name) {
                exchange.counts.refused = now.counts.refused;
            }
        }
        exchanges
    }

    /// What a restart forgets of exchanges.
    pub(super) fn forget_refused(&mut self) {
        for exchange in self.exchanges.kept.values_mut() {
            exchange.counts.refused = 0;
        }
    }

    /// The keys that messages of the queue have.
    pub(crate) fn keys(&self, name: &QueueName) -> BTreeSet<Key> {
        let queue = self.queues.get(name);
        let messages = queue.into_iter().flat_map(|queue| &queue.messages);
        messages.filter_map(|message| message.key.clone()).collect()
    }
}
