//! What goes wrong between a candidate and its ZooKeeper.

use std::{sync::Arc, time::Duration};

use lockgate_coordination::{Campaign, CoordinationError, Coordinator, EndReason, Guard, Tenure};
use lockgate_core::ManualClock;
use lockgate_zookeeper::{ZookeeperCoordinator, ZookeeperTenure};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{
    election, long, look, name,
    proxy::{CREATE, DELETE, Lose, MULTI, Proxy},
    server::{self, Server, connect},
    short, until,
};

/// The address of the shared server.
fn address() -> String {
    server::shared().strip_prefix("zk://").unwrap().to_owned()
}

fn stands(coordinator: &ZookeeperCoordinator, campaign: Campaign) -> JoinHandle<ZookeeperTenure> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { coordinator.campaign(campaign).await.unwrap() })
}

/// Somebody who leads, and somebody who waits.
async fn two(
    first: &ZookeeperCoordinator,
    second: &ZookeeperCoordinator,
    [a, b]: [Campaign; 2],
) -> (ZookeeperTenure, JoinHandle<ZookeeperTenure>) {
    let of = a.election.clone();
    let tenure = first.campaign(a).await.unwrap();
    let successor = stands(second, b);
    until(second, &of, |state| state.candidates.len() == 1).await;
    (tenure, successor)
}

/// Whoever is dropped without a word is waited out: nobody leads before it is over by its own clock.
#[tokio::test]
async fn a_crashed_leader_is_waited_out() {
    let of = election("crashed");
    let coordinator = connect().await;
    let campaigns = [short(&of, "a"), short(&of, "b")];
    let (tenure, successor) = two(&coordinator, &coordinator, campaigns).await;
    let (fence, epoch) = (tenure.fence().clone(), tenure.term().epoch);
    drop(tenure);
    let tenure = successor.await.unwrap();
    assert!(fence.check().is_err(), "two lead");
    let before = tenure.term().predecessor.clone().unwrap();
    assert_eq!((before.epoch, before.ended), (epoch, None));
    assert!(tenure.term().epoch > epoch);
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
}

#[tokio::test]
async fn a_leader_that_renews_stays() {
    let of = election("renews");
    let proxy = Proxy::start(&address()).await;
    let first = ZookeeperCoordinator::connect(&proxy.url).await.unwrap();
    let second = connect().await;
    let campaigns = ["a", "b"].map(|candidate| Campaign {
        lease: Duration::from_secs(3),
        margin: Duration::from_millis(300),
        ..short(&of, candidate)
    });
    let (tenure, successor) = two(&first, &second, campaigns).await;
    // One each 0.9 s.
    proxy.sees(4, MULTI).await;
    tenure.fence().check().unwrap();
    assert!(!successor.is_finished());
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let tenure = successor.await.unwrap();
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// A leader that is cut off is over by its own clock before its successor leads, and can stand again later.
#[tokio::test]
async fn a_leader_that_is_cut_off_limits_itself() {
    let of = election("cut");
    let proxy = Proxy::start(&address()).await;
    let first = ZookeeperCoordinator::connect(&proxy.url).await.unwrap();
    let second = connect().await;
    let (tenure, successor) = two(&first, &second, [short(&of, "a"), short(&of, "b")]).await;
    let (fence, epoch) = (tenure.fence().clone(), tenure.term().epoch);
    proxy.cut();
    tenure.over().await;
    let next = successor.await.unwrap();
    assert!(fence.check().is_err(), "two lead");
    assert!(next.term().epoch > epoch);

    proxy.mend();
    let saved = tenure.save("late".into()).await;
    assert!(
        matches!(saved, Err(CoordinationError::Over { .. })),
        "{saved:?}"
    );
    let again = stands(&first, short(&of, "a"));
    until(&second, &of, |state| state.candidates == [name("a")]).await;
    next.resign(EndReason::EndOfTerm, None).await.unwrap();
    let again = again.await.unwrap();
    assert_eq!(again.term().last_checkpoint, None);
    again.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// A candidate whose session has ended stands again.
#[tokio::test]
async fn a_candidate_that_was_cut_off_stands_again() {
    let of = election("cut-candidate");
    let proxy = Proxy::start(&address()).await;
    let first = ZookeeperCoordinator::connect(&proxy.url).await.unwrap();
    let second = connect().await;
    let tenure = second.campaign(long(&of, "a")).await.unwrap();
    let waits = short(&of, "b");
    let waits = tokio::spawn(async move {
        loop {
            match first.campaign(waits.clone()).await {
                // It has been silent for a lease.
                Err(CoordinationError::Unknown { .. } | CoordinationError::Unavailable { .. }) => {}
                other => break other.unwrap(),
            }
        }
    });
    until(&second, &of, |state| state.candidates.len() == 1).await;
    proxy.cut();
    until(&second, &of, |state| state.candidates.is_empty()).await;
    proxy.mend();
    until(&second, &of, |state| state.candidates.len() == 1).await;
    assert!(!waits.is_finished());
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let tenure = waits.await.unwrap();
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// A runtime that stands still is a process that is frozen: what it says when it goes on comes too late.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_is_replaced_and_told() {
    let of = election("frozen");
    let (plain, url) = (short(&of, "a"), server::shared());
    let (leads, led) = tokio::sync::oneshot::channel();
    let (thaw, thawed) = std::sync::mpsc::channel::<()>();
    let frozen = std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let tenure = runtime.block_on(async {
            let coordinator = ZookeeperCoordinator::connect(&url).await.unwrap();
            coordinator.campaign(plain).await.unwrap()
        });
        leads.send(tenure.fence().clone()).unwrap();
        thawed.recv().unwrap();
        let over = tenure.fence().check();
        runtime.block_on(async {
            tenure.lost().await;
            let saved = tenure.save("late".into()).await;
            let resigned = tenure.resign(EndReason::Error, Some("late".into()));
            (over, saved, resigned.await)
        })
    });
    let old = led.await.unwrap();
    let coordinator = connect().await;
    let next = coordinator.campaign(long(&of, "b")).await.unwrap();
    let mut guard = Guard::default();
    guard.admit(next.fence()).unwrap();
    assert!(guard.admit(&old).is_err());
    thaw.send(()).unwrap();
    let (over, saved, resigned) = tokio::task::spawn_blocking(move || frozen.join().unwrap())
        .await
        .unwrap();
    assert!(over.is_err());
    for told in [saved, resigned] {
        assert!(
            matches!(told, Err(CoordinationError::Over { .. })),
            "{told:?}"
        );
    }
    next.fence().check().unwrap();
    assert_eq!(look(&coordinator, &of).await.last_checkpoint, None);
    next.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// A connection that comes back in time costs nothing, whatever its server was meanwhile.
#[tokio::test]
async fn a_leader_stays_when_its_connection_comes_back_in_time() {
    let of = election("back");
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let first = ZookeeperCoordinator::connect(&proxy.url).await.unwrap();
    let second = ZookeeperCoordinator::connect(&server.url).await.unwrap();
    let (tenure, successor) = two(&first, &second, [long(&of, "a"), long(&of, "b")]).await;
    for way in ["cut", "restart"] {
        match way {
            "cut" => proxy.cut(),
            _ => server.crash(),
        }
        match way {
            "cut" => proxy.mend(),
            _ => server.restart(),
        }
        // Its node is still there.
        loop {
            match tenure.save("page 7".into()).await {
                Err(CoordinationError::Unknown { .. } | CoordinationError::Unavailable { .. }) => {}
                other => break other.unwrap(),
            }
        }
        tenure.fence().check().unwrap();
        assert!(!successor.is_finished(), "{way}");
    }
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let tenure = successor.await.unwrap();
    assert_eq!(
        tenure.term().last_checkpoint.as_ref().unwrap().value,
        "page 7"
    );
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// A server that stops cannot tell that the lease is lost: the leader's clock does.
#[tokio::test]
async fn a_server_that_is_frozen_ends_the_term() {
    let of = election("frozen-server");
    let server = Server::start();
    let coordinator = ZookeeperCoordinator::connect(&server.url).await.unwrap();
    let campaigns = [short(&of, "a"), short(&of, "b")];
    let (tenure, successor) = two(&coordinator, &coordinator, campaigns).await;
    let (fence, epoch) = (tenure.fence().clone(), tenure.term().epoch);
    server.signal(Signal::STOP);
    tenure.over().await;
    assert!(fence.check().is_err());
    assert!(!successor.is_finished());
    server.signal(Signal::CONT);
    let next = successor.await.unwrap();
    assert!(next.term().epoch > epoch);
    next.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// Whichever answer is lost, a term is led once, ends once, and leaves no node.
#[tokio::test]
async fn a_lost_answer_is_looked_up() {
    let proxy = Proxy::start(&address()).await;
    let coordinator = ZookeeperCoordinator::connect(&proxy.url).await.unwrap();
    for of in [CREATE, MULTI, DELETE] {
        for lose in [Lose::Answer(of), Lose::Request(of)] {
            let election = election(&format!("lost {lose:?}"));
            // Its path is there from now on, and the next creation is a candidate's.
            let tenure = coordinator.campaign(long(&election, "a")).await.unwrap();
            let before = tenure.term().epoch;
            tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
            if of != DELETE {
                proxy.lose(lose);
            }
            let tenure = coordinator.campaign(long(&election, "a")).await.unwrap();
            let epoch = tenure.term().epoch;
            let state = look(&coordinator, &election).await;
            assert_eq!(state.leader.unwrap().epoch, epoch);
            assert!(state.candidates.is_empty(), "{lose:?}");
            assert!(of == DELETE || proxy.has_lost());
            if of != CREATE {
                proxy.lose(lose);
            }
            let resigned = tenure.resign(EndReason::EndOfTerm, Some("done".into()));
            resigned.await.unwrap();
            assert!(proxy.has_lost());
            let state = look(&coordinator, &election).await;
            assert_eq!(state.leader, None, "{lose:?}");
            let terms: Vec<_> = state.history.iter().map(|term| term.epoch).collect();
            assert_eq!(terms, [epoch, before]);
            assert!(state.history[0].ended.is_some());
            assert_eq!(state.last_checkpoint.unwrap().value, "done");
        }
    }
    // A lock whose end was lost was still given back by its holder.
    proxy.lose(Lose::Answer(DELETE));
    let lock = coordinator
        .lock(long(&election("lost"), "a"))
        .await
        .unwrap();
    lock.resign(EndReason::EndOfTerm, None).await.unwrap();
    assert!(proxy.has_lost());
}

/// Whoever gives up while it does not know whether it has a node leaves none.
#[tokio::test]
async fn a_candidate_that_gives_up_without_an_answer_leaves_no_node() {
    let of = election("gives-up");
    let proxy = Proxy::start(&address()).await;
    let first = ZookeeperCoordinator::connect(&proxy.url).await.unwrap();
    let second = connect().await;
    let tenure = second.campaign(long(&of, "a")).await.unwrap();
    proxy.lose(Lose::Answer(CREATE));
    let gives_up = stands(&first, long(&of, "b"));
    // Its node is there, and it has not been told.
    until(&second, &of, |state| state.candidates.len() == 1).await;
    gives_up.abort();
    until(&second, &of, |state| state.candidates.is_empty()).await;
    // It was not the end of its session, which has more than a minute.
    assert!(proxy.count(DELETE) > 0);
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
}

pub(crate) async fn client() -> Client {
    Client::connect(&address()).await.unwrap()
}

/// Also the node of a leader can be deleted by somebody, as Curator does not notice.
#[tokio::test]
async fn a_leader_whose_node_is_deleted_is_told() {
    let of = election("deleted");
    let proxy = Proxy::start(&address()).await;
    let coordinator = ZookeeperCoordinator::connect(&proxy.url).await.unwrap();
    let tenure = coordinator.campaign(long(&of, "a")).await.unwrap();
    client().await.delete(tenure.node(), None).await.unwrap();
    let written = proxy.count(MULTI);
    tenure.lost().await;
    assert!(tenure.fence().check().is_err());
    // At once: it was not a renewal that has told it.
    assert_eq!(proxy.count(MULTI), written);
    let told = tenure.resign(EndReason::LeaseLost, None).await;
    assert!(
        matches!(told, Err(CoordinationError::Over { .. })),
        "{told:?}"
    );
}

/// Epochs rise, though all that was kept of the election was deleted.
#[tokio::test]
async fn epochs_rise_after_all_was_deleted() {
    let (of, coordinator, client) = (election("anew"), connect().await, client().await);
    let mut last = None;
    for _ in 0..3 {
        let tenure = coordinator.campaign(long(&of, "a")).await.unwrap();
        assert_eq!(tenure.term().predecessor, None);
        // The number by which it stands begins anew.
        assert!(tenure.node().ends_with("-latch-0000000000"), "{tenure:?}");
        let epoch = Some(tenure.term().epoch);
        assert!(epoch > last);
        last = epoch;
        tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
        client.delete("/anew", None).await.unwrap();
        client.delete("/_lockgate_/term/anew", None).await.unwrap();
    }
    // A record that knows a later term comes from another ensemble.
    let tenure = coordinator.campaign(long(&of, "a")).await.unwrap();
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let term =
        "{\"format\":1,\"term\":{\"epoch\":9000000000000000000,\"leader\":\"a\",\"began_ms\":0}}";
    let written = client.set_data("/_lockgate_/term/anew", term.as_bytes(), None);
    written.await.unwrap();
    let told = coordinator.campaign(long(&of, "a")).await.unwrap_err();
    assert!(told.to_string().contains("made anew"), "{told}");
}

/// What is no candidate stands in nobody's way; a candidate of another recipe is told.
#[tokio::test]
async fn foreign_nodes_are_passed_over_and_those_of_another_recipe_told() {
    let (of, coordinator, client) = (election("foreign"), connect().await, client().await);
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/foreign", b"", &persistent).await.unwrap();
    let made = client.create("/foreign/000-foreign", b"", &persistent);
    made.await.unwrap();
    let tenure = coordinator.campaign(long(&of, "a")).await.unwrap();
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let url = format!("{}?style=mutex", server::shared());
    let other = ZookeeperCoordinator::connect(&url).await.unwrap();
    let tenure = coordinator.campaign(long(&of, "a")).await.unwrap();
    let told = other.campaign(long(&of, "b")).await.unwrap_err();
    assert!(told.to_string().contains("another recipe"), "{told}");
    // It has made no node, which would be told to the others.
    assert!(look(&coordinator, &of).await.candidates.is_empty());
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// A lease that no session can have is refused; a session that is longer than asked for makes nobody lead longer.
#[tokio::test]
async fn a_lease_that_the_server_does_not_grant_is_refused() {
    let of = election("granted");
    let coordinator = connect().await;
    let too_long = Campaign {
        lease: Duration::from_secs(600),
        margin: Duration::from_secs(6),
        ..long(&of, "a")
    };
    let told = coordinator
        .campaign(too_long)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        told.contains("grants 120000 ms") && told.contains("maxSessionTimeout"),
        "{told}"
    );
    let state = look(&coordinator, &of).await;
    assert!(state.leader.is_none());
}

/// One of several servers is enough.
#[tokio::test]
async fn a_server_that_is_away_is_passed_over() {
    let of = election("several");
    let url = format!("zk://127.0.0.1:1,{},127.0.0.1:2/hosts", address());
    let coordinator = ZookeeperCoordinator::connect(&url).await.unwrap();
    let tenure = coordinator.campaign(long(&of, "a")).await.unwrap();
    assert!(tenure.node().starts_with("/hosts/several/_c_"));
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    assert_eq!(coordinator.elections().await.unwrap(), [of]);
}

/// Nodes of a user are that user's.
#[tokio::test]
async fn nodes_belong_to_whom_the_url_names() {
    let of = election("secrets");
    let with = |login: &str| format!("zk://{login}{}/{}", address(), "guarded");
    let coordinator = ZookeeperCoordinator::connect(&with("me:s3cret@"))
        .await
        .unwrap();
    let shown = format!("{coordinator:?}");
    assert!(shown.contains("me") && !shown.contains("s3cret"), "{shown}");
    let tenure = coordinator.campaign(long(&of, "a")).await.unwrap();
    for login in ["", "me:other@", "you:s3cret@"] {
        let other = ZookeeperCoordinator::connect(&with(login)).await.unwrap();
        let told = other.campaign(long(&of, "b")).await.unwrap_err();
        assert!(matches!(told, CoordinationError::Invalid { .. }), "{told}");
    }
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// A clock that has jumped, as after a computer was suspended, ends the term at once; and whoever is over and does not
/// resign stands in nobody's way when its lease has ended.
#[tokio::test]
async fn a_clock_that_jumps_ends_the_term() {
    let of = election("jumps");
    let clock = ManualClock::default();
    let second = connect().await;
    let first = connect().await.clock(Arc::new(clock.clone()));
    let (tenure, successor) = two(&first, &second, [long(&of, "a"), long(&of, "b")]).await;
    clock.advance(55_000);
    assert!(tenure.fence().check().is_err());
    first.clock_changed();
    tenure.over().await;
    assert!(!successor.is_finished());
    clock.advance(20_000);
    first.clock_changed();
    let next = successor.await.unwrap();
    assert!(next.term().epoch > tenure.term().epoch);
    next.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// The end of a term wakes one candidate: a switch costs as many requests however many stand.
#[tokio::test]
async fn a_switch_costs_the_same_however_many_stand() {
    for candidates in [1_u64, 100] {
        let of = election(&format!("herd-{candidates}"));
        let proxy = Proxy::start(&address()).await;
        let coordinator = ZookeeperCoordinator::connect(&proxy.url).await.unwrap();
        let direct = connect().await;
        let tenure = coordinator.campaign(long(&of, "first")).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for candidate in 0..candidates {
            let (coordinator, of) = (coordinator.clone(), of.clone());
            tasks.spawn(async move {
                let campaign = long(&of, &format!("host-{candidate}"));
                let tenure = coordinator.campaign(campaign).await.unwrap();
                tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
            });
        }
        let count = usize::try_from(candidates).unwrap();
        until(&direct, &of, |state| state.candidates.len() == count).await;
        // All stand, and have asked what there is to ask.
        let mut before = u64::MAX;
        while std::mem::replace(&mut before, proxy.requests()) != before {
            look(&direct, &of).await;
        }
        tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        let each = (proxy.requests() - before) / candidates;
        println!("{candidates} candidates: {each} requests a term");
        assert!(each <= 15, "{each} requests a term of {candidates}");
    }
}
