//! What Java programs write with Curator: the bytes of a queue's nodes, and their names.

use std::cmp::Ordering;

use lockgate_zookeeper::queue::{
    Kind, Place,
    names::{self, due, id, order},
    payload,
    schedule::{Next, Schedule},
};

const KINDS: [Kind; 4] = [Kind::Plain, Kind::Delay, Kind::Priority, Kind::Id];

/// Items that are read are written as they were.
pub(crate) fn payload(bytes: &[u8]) -> Result<(), String> {
    let items = payload::decode(bytes).map_err(|error| error.to_string())?;
    let again = payload::encode(&items).ok_or("too long")?;
    assert!(bytes.starts_with(&again));
    Ok(())
}

/// The children of a node, a line each.
pub(crate) fn names(bytes: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let children: Vec<&str> = text.split('\n').collect();
    for kind in KINDS {
        for window in children.windows(3) {
            let [a, b, c] = window else { continue };
            let to = |one, other| order(kind, one, other);
            assert_eq!(to(a, b), to(b, a).reverse());
            assert_eq!(to(a, b).is_eq(), a == b);
            if to(a, b) != Ordering::Greater && to(b, c) != Ordering::Greater {
                assert_ne!(to(a, c), Ordering::Greater, "{window:?}");
            }
        }
        given_once_and_never_early(kind, &children);
    }
    for name in children {
        let again = names::again(Kind::Delay, name, 7, 1_795_210_223_441);
        assert_eq!(
            (names::attempts(&again), due(&again)),
            (7, 1_795_210_223_441)
        );
        let of_id = names::again(Kind::Id, name, 7, 1);
        assert_eq!(id(&of_id), id(name));
        if let Some(put) = Place::Id(name).name() {
            assert_eq!(id(&put), Some(names::clean(name).as_str()));
        }
        if let Some(put) = Place::At(due(name)).name() {
            assert_eq!(due(&format!("{put}0000000007")), due(name));
        }
        // Other children are nobody's to put again.
        for kind in KINDS.into_iter().filter(|_| names::is_item(name)) {
            assert!(names::is_item(&names::again(kind, name, 7, 1)));
        }
    }
    Ok(())
}

/// Time goes on as the schedule says, until nothing is left.
fn given_once_and_never_early(kind: Kind, children: &[&str]) {
    let mut schedule = Schedule::new(kind);
    schedule.listed(children.iter().map(|name| (*name).to_owned()));
    let mut now = i64::MIN;
    let mut last: Option<String> = None;
    for _ in 0..=2 * schedule.len() {
        match schedule.next(now) {
            Next::Claim(name) => {
                assert!(names::is_item(&name));
                assert!(kind != Kind::Delay || due(&name) <= now, "{name} at {now}");
                if let Some(last) = &last {
                    assert_eq!(order(kind, last, &name), Ordering::Less);
                }
                last = Some(name);
            }
            Next::WaitUntil(time) => {
                assert!(time > now);
                now = time;
            }
            Next::Wait => return assert_eq!(schedule.in_hand(), schedule.len()),
        }
    }
    panic!("a schedule that never ends");
}
