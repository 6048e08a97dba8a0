//! The cases.

use std::{
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{
    ElectionName, Epoch, HolderName,
    coordination::{
        AskToResign, CHECKPOINT_BYTES_MAX, Call, Campaign, CoordinationError, Coordinator,
        ElectionState, EndReason, FenceError, Guard, Observe, Tenure,
    },
};

use super::Fixture;

/// Long enough for any answer, so that nobody's lease ends by itself where time passes by itself.
const LEASE: Duration = Duration::from_secs(60);
const MARGIN: Duration = Duration::from_secs(6);

/// Longer than a case takes.
const LONG: Duration = Duration::from_secs(600);

pub(super) async fn run<F: Fixture>(fixture: &mut F) -> Vec<&'static str> {
    let mut not_run = Vec::new();
    macro_rules! cases {
        ($($case:ident),+ $(,)?) => {$(
            println!("coordination: {}", stringify!($case));
            if !$case(fixture, &election(stringify!($case))).await {
                not_run.push(stringify!($case));
            }
        )+};
    }
    cases!(
        one_leads_at_a_time_and_epochs_rise,
        candidates_lead_in_their_order,
        a_leader_leaves_its_checkpoint,
        observers_see_who_leads,
        a_leader_can_be_asked_to_resign,
        a_crashed_leader_is_waited_out,
        a_leader_that_renews_stays,
        a_frozen_leader_is_replaced_and_told,
        whoever_gives_up_blocks_nobody,
        whoever_does_not_wait_is_told,
        a_lock_leaves_nothing,
        what_is_out_of_bounds_is_refused,
        epochs_and_history_survive_a_restart,
    );
    not_run
}

fn election(text: &str) -> ElectionName {
    ElectionName::new(text).unwrap()
}

fn name(text: &str) -> HolderName {
    HolderName::new(text).unwrap()
}

fn campaign(election: &ElectionName, candidate: &str) -> Campaign {
    Campaign {
        lease: LEASE,
        margin: MARGIN,
        notice: Duration::ZERO,
        ..Campaign::new(election.clone(), name(candidate))
    }
}

async fn look<C: Coordinator>(coordinator: &C, election: &ElectionName) -> ElectionState {
    let observe = Observe {
        election: election.clone(),
        seen: None,
        wait: Duration::ZERO,
    };
    coordinator.observe(observe).await.unwrap()
}

/// Waits until the election is as the case wants it.
async fn until<C: Coordinator>(
    coordinator: &C,
    election: &ElectionName,
    is_so: impl Fn(&ElectionState) -> bool,
) -> ElectionState {
    loop {
        let state = look(coordinator, election).await;
        if is_so(&state) {
            return state;
        }
        tokio::task::yield_now().await;
    }
}

/// Stands in a task of its own. The task ends when it leads.
fn stands<C: Coordinator>(
    coordinator: C,
    campaign: Campaign,
) -> tokio::task::JoinHandle<C::Tenure> {
    tokio::spawn(async move { coordinator.campaign(campaign).await.unwrap() })
}

async fn one_leads_at_a_time_and_epochs_rise<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    const CANDIDATES: usize = 8;
    let terms_each = match env::var("LOCKGATE_TERMS") {
        Ok(given) => given.parse().unwrap(),
        Err(_) => f.terms(),
    };
    let leads = Arc::new(AtomicUsize::new(0));
    let sink = Arc::new(Mutex::new((Guard::default(), Vec::<Epoch>::new())));
    let (end, is_over) = tokio::sync::oneshot::channel();
    let observer = tokio::spawn(watches(f.process().await, of.clone(), is_over));
    let mut tasks = tokio::task::JoinSet::new();
    for candidate in 0..CANDIDATES {
        let (coordinator, leads, sink) = (f.process().await, leads.clone(), sink.clone());
        let campaign = campaign(of, &format!("host-{candidate}"));
        tasks.spawn(async move {
            for _ in 0..terms_each {
                let tenure = coordinator.campaign(campaign.clone()).await.unwrap();
                assert_eq!(leads.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                let epoch = tenure.term().epoch;
                assert_eq!(tenure.fence().epoch(), epoch);
                assert_eq!(tenure.term().leader, campaign.candidate);
                tenure.fence().check().unwrap();
                {
                    let mut sink = sink.lock().unwrap();
                    sink.0.admit(tenure.fence()).unwrap();
                    assert!(sink.1.last() < Some(&epoch), "an epoch does not rise");
                    sink.1.push(epoch);
                }
                tokio::task::yield_now().await;
                leads.fetch_sub(1, Ordering::SeqCst);
                tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let terms = sink.lock().unwrap().1.len();
    assert_eq!(terms, CANDIDATES * terms_each);
    end.send(()).unwrap();
    let seen = observer.await.unwrap();
    assert!(seen > 1, "the observer has seen {seen} leaders");
    true
}

/// Sees one leader after the other until it is over: how many. What it sees never goes back, and is of one instant.
async fn watches<C: Coordinator>(
    observer: C,
    of: ElectionName,
    mut is_over: tokio::sync::oneshot::Receiver<()>,
) -> usize {
    let (mut last, mut leaders, mut seen) = (None, 0, None);
    loop {
        let observe = Observe {
            election: of.clone(),
            seen,
            wait: LONG,
        };
        let state = tokio::select! {
            state = observer.observe(observe) => state.unwrap(),
            _ = &mut is_over => return leaders,
        };
        let epochs = state.history.iter().map(|term| term.epoch);
        let epochs = Vec::from_iter(epochs);
        assert!(
            epochs.is_sorted_by(|newer, older| newer > older),
            "the history does not fall: {epochs:?}"
        );
        seen = state.leader.as_ref().map(|leader| leader.epoch);
        let newest = match seen {
            Some(epoch) => {
                assert!(
                    epochs.first() < Some(&epoch),
                    "{epoch:?} leads behind {epochs:?}"
                );
                leaders += usize::from(last < Some(epoch));
                Some(epoch)
            }
            None => epochs.first().copied(),
        };
        // What keeps no history shows nothing between two leaders.
        if newest.is_some() {
            assert!(last <= newest, "{newest:?} is seen behind {last:?}");
            last = newest;
        }
        tokio::task::yield_now().await;
    }
}

async fn candidates_lead_in_their_order<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let first = f.process().await;
    if !first.capabilities().is_fair {
        return false;
    }
    let names = ["b", "c", "d"].map(name);
    let tenure = first.campaign(campaign(of, "a")).await.unwrap();
    let mut stand = Vec::new();
    for (at, candidate) in names.iter().enumerate() {
        stand.push(stands(f.process().await, campaign(of, candidate.as_str())));
        let state = until(&first, of, |state| state.candidates.len() == at + 1).await;
        assert_eq!(state.candidates, names[..=at]);
    }
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    for (stands, name) in stand.into_iter().zip(&names) {
        let tenure = stands.await.unwrap();
        assert_eq!(&tenure.term().leader, name);
        let state = until(&first, of, |state| {
            state
                .leader
                .as_ref()
                .is_some_and(|leader| leader.name == *name)
        });
        assert!(!state.await.candidates.contains(name));
        tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    }
    true
}

async fn a_leader_leaves_its_checkpoint<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (first, second) = (f.process().await, f.process().await);
    let capabilities = first.capabilities();
    if capabilities.checkpoint_bytes_max == 0 || capabilities.history_max == 0 {
        return false;
    }
    let tenure = first.campaign(campaign(of, "a")).await.unwrap();
    assert_eq!(tenure.term().last_checkpoint, None);
    assert_eq!(tenure.term().predecessor, None);
    let epoch = tenure.term().epoch;
    for page in ["page 7", "page 8"] {
        tenure.save(page.into()).await.unwrap();
    }
    tenure.resign(EndReason::Error, None).await.unwrap();

    let tenure = second.campaign(campaign(of, "b")).await.unwrap();
    let left = tenure.term().last_checkpoint.clone().unwrap();
    assert_eq!((left.epoch, left.value), (epoch, "page 8".into()));
    let before = tenure.term().predecessor.clone().unwrap();
    assert_eq!((before.epoch, before.leader), (epoch, name("a")));
    assert_eq!(before.ended.unwrap().reason, EndReason::Error);
    let largest = Bytes::from(vec![
        7;
        CHECKPOINT_BYTES_MAX
            .min(capabilities.checkpoint_bytes_max)
    ]);
    let epoch = tenure.term().epoch;
    tenure
        .resign(EndReason::EndOfTerm, Some(largest.clone()))
        .await
        .unwrap();

    // Terms without a checkpoint keep it.
    for _ in 0..2 {
        let tenure = first.campaign(campaign(of, "a")).await.unwrap();
        let left = tenure.term().last_checkpoint.clone().unwrap();
        assert_eq!((left.epoch, &left.value), (epoch, &largest));
        tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    }
    true
}

async fn observers_see_who_leads<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (leads, observer) = (f.process().await, f.process().await);
    let nobody = look(&observer, of).await;
    assert_eq!((nobody.leader, nobody.candidates), (None, Vec::new()));
    let is_listed =
        async |observer: &F::Coordinator| observer.elections().await.unwrap().contains(of);
    assert!(!is_listed(&observer).await);
    let observe = |seen| Observe {
        election: of.clone(),
        seen,
        wait: LONG,
    };
    let (seen, tenure) = tokio::join!(
        observer.observe(observe(None)),
        leads.campaign(campaign(of, "a"))
    );
    let (seen, tenure) = (seen.unwrap().leader.unwrap(), tenure.unwrap());
    let epoch = tenure.term().epoch;
    assert_eq!((seen.name, seen.epoch), (name("a"), epoch));
    assert!(seen.remaining <= LEASE + Duration::from_secs(1));
    let state = look(&observer, of).await;
    assert!(state.leader.unwrap().began.is_some());
    assert!(is_listed(&observer).await);

    let (seen, resigned) = tokio::join!(
        observer.observe(observe(Some(epoch))),
        tenure.resign(EndReason::EndOfTerm, Some("done".into()))
    );
    resigned.unwrap();
    let seen = seen.unwrap();
    assert_eq!(seen.leader, None);
    let past = seen.history.first().unwrap();
    assert_eq!((past.epoch, &past.leader), (epoch, &name("a")));
    assert_eq!(past.ended.unwrap().reason, EndReason::EndOfTerm);
    assert_eq!(seen.last_checkpoint.unwrap().value, "done");
    true
}

async fn a_leader_can_be_asked_to_resign<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (first, second, asker) = (f.process().await, f.process().await, f.process().await);
    if !first.capabilities().can_ask {
        return false;
    }
    let tenure = first.campaign(campaign(of, "a")).await.unwrap();
    let ask = AskToResign {
        election: of.clone(),
        epoch: tenure.term().epoch,
        by: name("operator"),
        even_if_alone: false,
    };
    until(&asker, of, |state| state.candidates.is_empty()).await;
    let alone = asker.ask_to_resign(ask.clone()).await;
    assert!(
        matches!(alone, Err(CoordinationError::NoSuccessor { .. })),
        "{alone:?}"
    );

    let successor = stands(second, campaign(of, "b"));
    until(&asker, of, |state| state.candidates.len() == 1).await;
    asker.ask_to_resign(ask.clone()).await.unwrap();
    let by = name("operator");
    assert_eq!(tenure.called().await, Call::Asked { by });
    // It leads until it does.
    tenure.fence().check().unwrap();
    tenure
        .resign(EndReason::Asked, Some("page 7".into()))
        .await
        .unwrap();

    let tenure = successor.await.unwrap();
    let term = tenure.term().clone();
    assert_eq!(
        term.predecessor.unwrap().ended.unwrap().reason,
        EndReason::Asked
    );
    assert_eq!(term.last_checkpoint.unwrap().value, "page 7");
    // A request to the leader before is none to this one.
    let late = asker.ask_to_resign(ask.clone()).await;
    assert!(
        matches!(late, Err(CoordinationError::Over { .. })),
        "{late:?}"
    );
    let ask = AskToResign {
        epoch: term.epoch,
        even_if_alone: true,
        ..ask
    };
    asker.ask_to_resign(ask).await.unwrap();
    tenure.called().await;
    tenure.resign(EndReason::Asked, None).await.unwrap();
    true
}

/// A leader that is gone without a word leads until its lease ends, and no longer.
async fn a_crashed_leader_is_waited_out<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (first, second, observer) = (f.process().await, f.process().await, f.process().await);
    let tenure = first.campaign(campaign(of, "a")).await.unwrap();
    let crashed = tenure.term().epoch;
    let mut successor = stands(second, campaign(of, "b"));
    until(&observer, of, |state| state.candidates.len() == 1).await;
    drop(tenure);
    // In steps, so that who stands keeps its place.
    let step = LEASE / 6;
    for passed in 1..=6 {
        if !f.pass(step) {
            successor.abort();
            return false;
        }
        if passed < 6 {
            let state = look(&observer, of).await;
            assert_eq!(state.leader.unwrap().epoch, crashed);
            assert!(!successor.is_finished());
        }
    }
    // The store may end a lease a little later than it must.
    let tenure = loop {
        f.pass(Duration::from_millis(1));
        tokio::select! {
            biased;
            tenure = &mut successor => break tenure.unwrap(),
            () = tokio::task::yield_now() => {}
        }
    };
    assert!(tenure.term().epoch > crashed);
    if first.capabilities().history_max > 0 {
        let before = tenure.term().predecessor.clone().unwrap();
        assert_eq!((before.epoch, before.ended), (crashed, None));
    }
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    true
}

async fn a_leader_that_renews_stays<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (first, second) = (f.process().await, f.process().await);
    let tenure = first.campaign(campaign(of, "a")).await.unwrap();
    let successor = stands(second, campaign(of, "b"));
    until(&first, of, |state| state.candidates.len() == 1).await;
    // A renewal is due after a third of what the leader may work.
    let step = (LEASE - MARGIN) / 3 + Duration::from_millis(1);
    for _ in 0..12 {
        if !f.pass(step) {
            successor.abort();
            return false;
        }
        while tenure.remaining() < LEASE {
            tenure.fence().check().unwrap();
            tokio::task::yield_now().await;
        }
    }
    assert!(!successor.is_finished());
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let tenure = successor.await.unwrap();
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    true
}

/// A process that is frozen in the middle of a write, and thaws when another one has written.
async fn a_frozen_leader_is_replaced_and_told<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (second, observer) = (f.process().await, f.process().await);
    let (make, plain) = (f.process_maker(), campaign(of, "a"));
    let (leads, led) = tokio::sync::oneshot::channel();
    let (thaw, thawed) = mpsc::channel::<()>();
    let frozen = thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let tenure = runtime.block_on(async { make().await.campaign(plain).await.unwrap() });
        // The fence is looked at, and then nothing of this process runs any more.
        tenure.fence().check().unwrap();
        leads.send(tenure.fence().clone()).unwrap();
        thawed.recv().unwrap();
        let over = tenure.fence().check();
        let (saved, resigned) = runtime.block_on(async {
            tenure.lost().await;
            let saved = tenure.save("late".into()).await;
            (
                saved,
                tenure.resign(EndReason::Error, Some("late".into())).await,
            )
        });
        (over, saved, resigned)
    });
    let old = led.await.unwrap();
    let mut guard = Guard::default();
    guard.admit(&old).unwrap();
    let mut successor = stands(second.clone(), campaign(of, "b"));
    until(&observer, of, |state| state.candidates.len() == 1).await;
    let step = LEASE / 6;
    let mut can_pass = true;
    let tenure = loop {
        can_pass &= f.pass(step);
        if !can_pass {
            break None;
        }
        // Who stands keeps its place meanwhile: nobody passes more than a third of a lease at once.
        let state = look(&observer, of).await;
        if state
            .leader
            .is_none_or(|leader| leader.epoch != old.epoch())
        {
            break Some((&mut successor).await.unwrap());
        }
    };
    let Some(tenure) = tenure else {
        successor.abort();
        thaw.send(()).unwrap();
        return false;
    };
    guard.admit(tenure.fence()).unwrap();
    thaw.send(()).unwrap();
    // A thread of its own waits for it: the frozen one needs the runtime of this one.
    let (over, saved, resigned) = tokio::task::spawn_blocking(move || frozen.join().unwrap())
        .await
        .unwrap();
    // By its own clock, before anybody told it.
    assert!(matches!(over, Err(FenceError::Over { .. })), "{over:?}");
    assert!(
        matches!(saved, Err(CoordinationError::Over { .. })),
        "{saved:?}"
    );
    assert!(
        matches!(resigned, Err(CoordinationError::Over { .. })),
        "{resigned:?}"
    );
    // The write that was under way comes late.
    let late = guard.admit(&old);
    assert!(matches!(late, Err(FenceError::Deposed { .. })), "{late:?}");
    tenure.fence().check().unwrap();
    if second.capabilities().checkpoint_bytes_max > 0 {
        assert_eq!(look(&observer, of).await.last_checkpoint, None);
    }
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    true
}

async fn whoever_gives_up_blocks_nobody<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (first, second, third) = (f.process().await, f.process().await, f.process().await);
    let tenure = first.campaign(campaign(of, "a")).await.unwrap();
    let gives_up = stands(second, campaign(of, "b"));
    until(&first, of, |state| state.candidates.len() == 1).await;
    let successor = stands(third, campaign(of, "c"));
    until(&first, of, |state| state.candidates.len() == 2).await;
    gives_up.abort();
    until(&first, of, |state| state.candidates == [name("c")]).await;
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let tenure = successor.await.unwrap();
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    true
}

async fn whoever_does_not_wait_is_told<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (first, second) = (f.process().await, f.process().await);
    let now_or_never = Campaign {
        wait: Some(Duration::ZERO),
        ..campaign(of, "b")
    };
    let tenure = first.campaign(now_or_never.clone()).await.unwrap();
    let told = second.campaign(now_or_never.clone()).await.map(drop);
    assert!(
        matches!(told, Err(CoordinationError::NotElected { .. })),
        "{told:?}"
    );
    second.left().await;
    assert!(look(&first, of).await.candidates.is_empty());
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let tenure = second.campaign(now_or_never).await.unwrap();
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    true
}

async fn a_lock_leaves_nothing<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let (first, second) = (f.process().await, f.process().await);
    let plain = campaign(of, "a");
    // An election of the same name has nothing to do with it.
    let tenure = first.campaign(plain.clone()).await.unwrap();
    let lock = first.lock(plain.clone()).await.unwrap();
    let epoch = lock.term().epoch;
    let now_or_never = Campaign {
        wait: Some(Duration::ZERO),
        ..plain.clone()
    };
    let told = second.lock(now_or_never).await.map(drop);
    assert!(
        matches!(told, Err(CoordinationError::NotElected { .. })),
        "{told:?}"
    );
    let (next, released) = tokio::join!(
        second.lock(plain.clone()),
        lock.resign(EndReason::EndOfTerm, None)
    );
    released.unwrap();
    let next = next.unwrap();
    assert!(next.term().epoch > epoch);
    assert_eq!(next.term().predecessor, None);
    next.resign(EndReason::EndOfTerm, None).await.unwrap();
    // Also when nothing is left of it.
    let last = first.lock(plain).await.unwrap();
    assert!(last.term().epoch > epoch);
    last.resign(EndReason::EndOfTerm, None).await.unwrap();
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    true
}

async fn what_is_out_of_bounds_is_refused<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let coordinator = f.process().await;
    let short = Campaign {
        lease: Duration::from_millis(10),
        ..campaign(of, "a")
    };
    let refused = coordinator.campaign(short).await.map(drop);
    assert!(
        matches!(refused, Err(CoordinationError::Invalid { .. })),
        "{refused:?}"
    );
    let tenure = coordinator.campaign(campaign(of, "a")).await.unwrap();
    let max = coordinator.capabilities().checkpoint_bytes_max;
    let refused = tenure.save(vec![7; max + 1].into()).await;
    let is_refused = match max {
        0 => matches!(refused, Err(CoordinationError::Unsupported { .. })),
        _ => matches!(refused, Err(CoordinationError::Invalid { .. })),
    };
    assert!(is_refused, "{refused:?}");
    // The term ends all the same.
    let too_much = Some(vec![7; max + 1].into());
    let refused = tenure.resign(EndReason::EndOfTerm, too_much).await;
    assert!(
        matches!(refused, Err(CoordinationError::Invalid { .. })),
        "{refused:?}"
    );
    assert_eq!(look(&coordinator, of).await.leader, None);
    true
}

async fn epochs_and_history_survive_a_restart<F: Fixture>(f: &mut F, of: &ElectionName) -> bool {
    let coordinator = f.process().await;
    let capabilities = coordinator.capabilities();
    let tenure = coordinator.campaign(campaign(of, "a")).await.unwrap();
    let epoch = tenure.term().epoch;
    let resigned = tenure.resign(EndReason::EndOfTerm, Some("page 7".into()));
    resigned.await.unwrap();
    if !f.restart().await {
        return false;
    }
    let coordinator = f.process().await;
    let tenure = coordinator.campaign(campaign(of, "a")).await.unwrap();
    let term = tenure.term();
    assert!(!capabilities.epochs_last || term.epoch > epoch);
    if capabilities.history_max > 0 {
        assert_eq!(term.predecessor.as_ref().unwrap().epoch, epoch);
    }
    if capabilities.checkpoint_bytes_max > 0 {
        assert_eq!(term.last_checkpoint.as_ref().unwrap().value, "page 7");
    }
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    true
}
