//! Schedules of a server.

use std::time::Duration;

use lockgate_client::{
    CallError, Client,
    schedule::{CatchUp, Overlap, RemoteSchedule, ScheduleSpec, ScheduleTo, Timing},
};
use lockgate_core::{Header, Key, Message, ScheduleName, WallTime};

use crate::support::{TestServer, create, take};

fn schedule(client: &Client, name: &str) -> RemoteSchedule {
    client.schedule(ScheduleName::new(name).unwrap())
}

#[track_caller]
fn refused(result: Result<impl Sized, CallError>) -> String {
    match result {
        Err(CallError::Refused { code, .. }) => code,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[tokio::test]
async fn a_schedule_is_made_shown_changed_run_and_deleted() {
    let (server, _folder) = TestServer::plain().await;
    let client = server.client();
    let queue = create(&client, "orders.fifo").await;
    let to = ScheduleTo::Queue(queue.name().clone());
    let mut message = Message::new(vec![0, 255]).with_key(Key::new("k").unwrap());
    message.headers.push(Header {
        name: "n".into(),
        kind: "Number".into(),
        value: "7".to_owned().into(),
    });
    message.priority = 3;
    let now = server.engine.now().wall;
    let timing = Timing::Every {
        period: 60_000,
        from: Some(WallTime(now.0 + 60_000)),
    };
    let spec = ScheduleSpec {
        catch_up: CatchUp::All,
        overlap: Overlap::Skip,
        late_max: 5_000,
        ..ScheduleSpec::new(timing, to, message)
    };
    let report = schedule(&client, "report.1");
    assert_eq!(refused(report.describe().await), "schedule_not_found");
    let put = report.of_generation(0).put(spec.clone()).await.unwrap();
    assert!(put.created && put.changed);
    // Everything comes back as it was sent.
    let there = report.describe().await.unwrap();
    assert_eq!((&there.spec, &there), (&spec, &put.schedule));
    assert_eq!(there.next_times.len(), 5);
    assert_eq!(there.next_times[0].0, now.0 + 60_000);
    assert!(!report.put(spec.clone()).await.unwrap().changed);
    let again = report.of_generation(0).put(spec.clone()).await;
    assert_eq!(refused(again), "schedule_changed");

    let id = report.run().await.unwrap();
    let ran = report.describe().await.unwrap();
    assert_eq!(ran.counts.by_hand, 1);
    assert!(ran.unsettled);
    let last = ran.last.unwrap();
    assert_eq!((last.message, last.scheduled), (Some(id), None));
    let taken = take(&queue, 10, Duration::ZERO).await;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].message.body, spec.message.body);

    assert!(report.pause().await.unwrap().paused);
    assert_eq!(report.describe().await.unwrap().next_times, []);
    let resumed = report.resume().await.unwrap();
    assert!(!resumed.paused);
    let moved = report.move_to(WallTime(now.0 + 90_000)).await.unwrap();
    assert_eq!(moved.next.map(|at| at.0), Some(now.0 + 90_000));
    assert_eq!(moved.planned.map(|at| at.0), Some(now.0 + 60_000));
    let stale = report.of_generation(there.generation);
    assert_eq!(refused(stale.delete().await), "schedule_changed");
    assert_eq!(refused(stale.pause().await), "schedule_changed");
    let current = report.of_generation(moved.generation);
    current.delete().await.unwrap();
    assert_eq!(refused(report.run().await), "schedule_not_found");
    server.stop().await;
}

#[tokio::test]
async fn schedules_are_listed_by_pages() {
    let (server, _folder) = TestServer::plain().await;
    let client = server.client();
    let queue = create(&client, "q").await;
    let timings = [
        Timing::At(WallTime(server.engine.now().wall.0 + 1_000_000)),
        Timing::Every {
            period: 60_000,
            from: None,
        },
        Timing::Cron {
            expression: "0 9 * * mon-fri".into(),
            zone: "Europe/Berlin".into(),
        },
    ];
    for (number, timing) in (1..).zip(&timings) {
        let to = ScheduleTo::Queue(queue.name().clone());
        let spec = ScheduleSpec::new(timing.clone(), to, Message::new("x"));
        let put = schedule(&client, &format!("s-{number}")).put(spec).await;
        assert_eq!(put.unwrap().schedule.spec.timing, *timing);
    }
    let first = client.list_schedules("s-", None, 2).await.unwrap();
    let names = |page: &[lockgate_client::schedule::Description]| {
        Vec::from_iter(page.iter().map(|it| it.name.to_string()))
    };
    assert_eq!(names(&first.schedules), ["s-1", "s-2"]);
    let after = first.next.unwrap();
    let rest = client.list_schedules("s-", Some(&after), 2).await.unwrap();
    assert_eq!(names(&rest.schedules), ["s-3"]);
    assert_eq!(rest.next, None);
    assert!(
        client
            .list_schedules("t", None, 2)
            .await
            .unwrap()
            .schedules
            .is_empty()
    );
    server.stop().await;
}

#[tokio::test]
async fn what_json_cannot_say_is_not_sent() {
    let (server, _folder) = TestServer::plain().await;
    let client = server.client();
    let queue = create(&client, "q").await;
    let to = ScheduleTo::Queue(queue.name().clone());
    let spec = ScheduleSpec::new(Timing::At(WallTime(u64::MAX)), to, Message::new("x"));
    let it = schedule(&client, "s");
    for error in [
        it.put(spec).await.unwrap_err(),
        it.move_to(WallTime(u64::MAX)).await.unwrap_err(),
    ] {
        assert!(matches!(error, CallError::Request { .. }), "{error}");
    }
    server.stop().await;
}
