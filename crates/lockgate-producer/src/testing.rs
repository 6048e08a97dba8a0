//! A sink with faults, for tests of producers and of services that use them.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockgate_core::{
    Accepted, Fate, Level, Message, ProducerIncarnation, ProducerName, ProducerRefused, Sequence,
    Sink, SinkCapabilities, TransportError, UniqueId,
};
use tokio::sync::Notify;

/// What becomes of one message that a [`TestSink`] is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// None: it is taken.
    None,
    /// It is not taken, and its fate is that.
    Fails(Fate),
    /// It is taken, and the answer is lost.
    AnswerLost,
}

type FaultFn = dyn Fn(&Message) -> Fault + Send + Sync;

/// A queue in memory whose faults a test chooses. Clones are the same sink.
///
/// It recognises records of producers and unique ids, unless its capabilities are changed.
#[derive(Clone)]
pub struct TestSink(Arc<Inner>);

struct Inner {
    can: SinkCapabilities,
    state: Mutex<State>,
    /// Wakes calls that wait because the sink is stopped.
    resumed: Notify,
}

/// What a queue has, and by what it knows a record that comes again.
#[derive(Default)]
pub(crate) struct Known {
    messages: Vec<Message>,
    marks: HashMap<(ProducerName, u64, u8), u64>,
    unique_ids: HashSet<UniqueId>,
    /// What each producer was given last, and whether it is known still.
    incarnations: HashMap<ProducerName, (u64, bool)>,
}

struct State {
    known: Known,
    batches: Vec<usize>,
    fault: Arc<FaultFn>,
    delay: Duration,
    is_stopped: bool,
}

impl Default for TestSink {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestSink").finish_non_exhaustive()
    }
}

impl TestSink {
    /// A sink that takes everything.
    #[must_use]
    pub fn new() -> Self {
        let mut can = SinkCapabilities::bodies_only(Level::Memory);
        can.batch_max = 1_000;
        can.keys = true;
        can.groups = true;
        can.unique_ids = true;
        can.tells_duplicates = true;
        can.producers = true;
        can.headers = true;
        can.priority = true;
        Self::with_capabilities(can)
    }

    /// A sink that can do that.
    #[must_use]
    pub fn with_capabilities(can: SinkCapabilities) -> Self {
        Self(Arc::new(Inner {
            can,
            state: Mutex::new(State {
                known: Known::default(),
                batches: Vec::new(),
                fault: Arc::new(|_| Fault::None),
                delay: Duration::ZERO,
                is_stopped: false,
            }),
            resumed: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on messages have these faults.
    pub fn set_fault(&self, fault: impl Fn(&Message) -> Fault + Send + Sync + 'static) {
        self.state().fault = Arc::new(fault);
    }

    /// From now on each batch takes so long.
    pub fn set_delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// From now on calls wait until the sink is [resumed](Self::resume). What they bring is not taken before.
    pub fn stop(&self) {
        self.state().is_stopped = true;
    }

    /// Calls go on.
    pub fn resume(&self) {
        self.state().is_stopped = false;
        self.0.resumed.notify_waiters();
    }

    /// Forgets the producers, as a queue does after a while.
    pub fn forget_producers(&self) {
        self.state().known.forget_producers();
    }

    /// What it has taken, in order.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        self.state().known.messages.clone()
    }

    /// How many messages each batch brought.
    #[must_use]
    pub fn batches(&self) -> Vec<usize> {
        self.state().batches.clone()
    }
}

impl State {
    fn take(&mut self, message: Message) -> Result<Accepted<u64>, TransportError> {
        let fault = self.fault.clone()(&message);
        if let Fault::Fails(fate) = fault {
            return Err(TransportError::new(fate, "a fault of the test"));
        }
        let accepted = self.known.accept(message)?;
        match fault {
            Fault::AnswerLost => Err(TransportError::new(Fate::Unknown, "the answer is lost")),
            _ => Ok(accepted),
        }
    }
}

impl Known {
    pub(crate) fn open(&mut self, producer: ProducerName) -> ProducerIncarnation {
        let (incarnation, is_known) = self.incarnations.entry(producer).or_default();
        (*incarnation, *is_known) = (*incarnation + 1, true);
        ProducerIncarnation(*incarnation)
    }

    pub(crate) fn forget_producers(&mut self) {
        self.marks.clear();
        // Incarnations rise for ever.
        for (_, is_known) in self.incarnations.values_mut() {
            *is_known = false;
        }
    }

    pub(crate) fn accept(&mut self, message: Message) -> Result<Accepted<u64>, TransportError> {
        let known = Accepted {
            id: None,
            sequence: None,
            duplicate: true,
        };
        if let Some(produced) = &message.producer {
            let (mark, incarnation) = (&produced.mark, produced.incarnation);
            let current = self.incarnations.get(mark.producer());
            let current = current.filter(|(_, is_known)| *is_known);
            let (current, _) = *current.ok_or(ProducerRefused::Unknown)?;
            if current != incarnation.0 {
                let current = ProducerIncarnation(current);
                return Err(ProducerRefused::Fenced { current }.into());
            }
            let lane = (mark.producer().clone(), mark.opening(), mark.lane());
            let highest = self.marks.entry(lane).or_default();
            if mark.number() <= *highest {
                return Ok(known);
            }
            if *highest < produced.after {
                return Err(ProducerRefused::Gap.into());
            }
            *highest = mark.number();
        }
        if let Some(id) = &message.unique_id
            && !self.unique_ids.insert(id.clone())
        {
            return Ok(known);
        }
        self.messages.push(message);
        let number = self.messages.len() as u64;
        Ok(Accepted {
            id: Some(number),
            sequence: Some(Sequence(number)),
            duplicate: false,
        })
    }
}

impl Sink for TestSink {
    type Id = u64;

    fn sink_capabilities(&self) -> SinkCapabilities {
        self.0.can.clone()
    }

    async fn open_producer(
        &self,
        producer: ProducerName,
    ) -> Result<ProducerIncarnation, TransportError> {
        let mut state = self.state();
        if state.is_stopped {
            return Err(TransportError::new(Fate::Retry, "the sink is stopped"));
        }
        Ok(state.known.open(producer))
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<u64>, TransportError>> {
        let delay = self.state().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        loop {
            let mut resumed = std::pin::pin!(self.0.resumed.notified());
            resumed.as_mut().enable();
            if !self.state().is_stopped {
                break;
            }
            resumed.await;
        }
        let mut state = self.state();
        state.batches.push(messages.len());
        messages.into_iter().map(|it| state.take(it)).collect()
    }
}
