//! What a receive looks at does not grow with what it cannot have.

use super::harness::{Run, check, name};

/// How many keys a receive would walk over.
fn ready_keys(run: &Run, queue: &str) -> usize {
    run.machine.ready_keys(&name(queue))
}

#[test]
fn locked_keys_are_in_no_list_that_a_receive_walks() {
    let mut script = String::from("queue q keyed\n");
    for key in 0..1000 {
        script += &format!("send q key=k{key}\nsend q key=k{key}\n");
    }
    script += "receive q 1000\nreceive q 1000\n";
    let run = check(&script);
    assert_eq!(ready_keys(&run, "q"), 0);
    let run = check(&(script + "send q key=free"));
    assert_eq!(ready_keys(&run, "q"), 1);
}

#[test]
fn a_long_key_counts_as_one() {
    let mut script = String::from("queue q keyed\n");
    for _ in 0..2000 {
        script += "send q key=long\n";
    }
    script += "send q key=other\n";
    let run = check(&script);
    assert_eq!(ready_keys(&run, "q"), 2);
    let run = check(&(script + "receive q 1 => 1\nreceive q 1 => 2001"));
    assert_eq!(ready_keys(&run, "q"), 0);
}
