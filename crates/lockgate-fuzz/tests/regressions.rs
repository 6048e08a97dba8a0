//! Every input that once broke a target, and every seed, without libFuzzer.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use std::thread;

use lockgate_fuzz::{STACK_BYTES, TARGETS, Target, run};

/// Runs a target where the fuzzer does. The thread has the input's name: a stack that overflows leaves
/// nothing else to tell by.
fn try_input(target: &'static Target, name: &str, input: Vec<u8>) -> Result<(), String> {
    let name = format!("{}/{name}", target.name);
    thread::Builder::new()
        .name(name.clone())
        .stack_size(STACK_BYTES)
        .spawn(move || run(target, &input))
        .unwrap()
        .join()
        .unwrap_or_else(|_| panic!("{name} breaks its target again"))
}

/// One after the other, and in one test: what is allocated is counted for the whole process.
#[test]
fn no_input_that_once_broke_a_target_breaks_it_again() {
    for target in TARGETS.iter().filter(|target| !target.is_planted) {
        for (name, input) in target.regressions().unwrap() {
            // Whether it is taken does not matter.
            let _refused = try_input(target, &name, input);
        }
        let seeds = target.seeds();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let mut taken = 0;
        for (number, seed) in seeds.into_iter().enumerate() {
            let len = seed.len();
            assert!(len <= target.bytes_max, "{} {number}: {len}", target.name);
            match try_input(target, &format!("seed-{number}"), seed) {
                Ok(()) => taken += 1,
                Err(why) => println!("{}: seed {number}: {why}", target.name),
            }
        }
        assert!(taken > 0 || target.name == "receipt", "{}", target.name);
    }
}
