//! Tests that an input of any depth costs little stack.

use std::thread;

/// Runs a test with little stack.
pub(crate) fn with_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let small = thread::Builder::new().stack_size(128 << 10);
    small.spawn(test).unwrap().join().unwrap();
}

/// Parses JSON of many depths on a small stack: each of `nests` repeated within itself, with and
/// without its closing ends, and in place of the `$` of each of `around`.
pub(crate) fn read_nested(
    nests: &'static [(&str, &str)],
    around: &'static [&str],
    read: impl Fn(&str) + Send + 'static,
) {
    with_a_small_stack(move || {
        for (open, close) in nests {
            for depth in [1, 2, 5, 126, 127, 128, 100_000] {
                let (open, close) = (open.repeat(depth), close.repeat(depth));
                read(&open);
                let nested = format!("{open}1{close}");
                read(&nested);
                for around in around {
                    read(&around.replace('$', &nested));
                }
            }
        }
    });
}
