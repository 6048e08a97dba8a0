//! A worker of the library over a server that is killed.

use std::{collections::BTreeMap, time::Duration};

use lockgate_client::Client;
use lockgate_consumer::{Job, Worker};
use lockgate_core::QueueName;
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::mpsc;

use crate::{messages::Town, support::Server};

const KEYS: u32 = 8;
const COUNT: u32 = 480;

/// Each message is handled at least once, those of a key for the first time in their order, and what was
/// handled leaves the queue.
#[test]
fn a_worker_goes_on_over_a_server_that_is_killed() {
    for profile in ["sqs", "strict"] {
        let mut town = Town::new();
        town.run("queue create jobs.fifo").ok();
        town.run(&format!("queue set jobs.fifo --key-profile {profile}"))
            .ok();
        let lines: String = (0..COUNT)
            .map(|number| format!("{{\"body\":\"{number}\",\"key\":\"k{}\"}}\n", number % KEYS))
            .collect();
        town.send_lines("jobs.fifo", &lines).ok();

        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (tell, mut told) = mpsc::unbounded_channel::<u32>();
        let endpoint = town.server.url.parse().unwrap();
        let worker = runtime.block_on(async {
            let client = Client::builder(endpoint).build().await.unwrap();
            let name = QueueName::new("jobs.fifo").unwrap();
            let jobs = client.queue(&name).await.unwrap();
            let builder = Worker::over(jobs).lease(Duration::from_secs(2)).run_max(3);
            builder.start(move |job: Job| {
                let number = std::str::from_utf8(job.body()).unwrap().parse().unwrap();
                let _ = tell.send(number);
                async { Ok(()) }
            })
        });
        let worker = worker.unwrap();

        let mut firsts = BTreeMap::<u32, Vec<u32>>::new();
        let mut seen = 0;
        while seen < COUNT {
            let number = told.blocking_recv().unwrap();
            let of_key = firsts.entry(number % KEYS).or_default();
            if of_key.contains(&number) {
                continue;
            }
            of_key.push(number);
            seen += 1;
            if [100, 300].contains(&seen) {
                town.server.signal(Signal::KILL);
                let address = town.server.url.trim_start_matches("http://").to_owned();
                town.server = Server::restart(town.server, &town.sandbox, &address);
            }
        }
        for (key, numbers) in &firsts {
            let expected: Vec<u32> = (*key..COUNT).step_by(KEYS as usize).collect();
            assert_eq!(numbers, &expected, "{profile}");
        }
        let ended = runtime.block_on(worker.drain(Duration::from_secs(60)));
        assert_eq!(ended.left, 0, "{ended:?}");
        // What was acknowledged while the server was away comes once more, when its lease ends.
        town.run("receive jobs.fifo --exec true --wait 3s");
        let nothing = json!({"ready": 0, "in_flight": 0, "delayed": 0});
        assert_eq!(town.counts("jobs.fifo"), nothing, "{profile}");
    }
}
