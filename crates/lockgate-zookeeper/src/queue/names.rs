//! What Curator calls the nodes of its queues, and the order in which it takes them.
//!
//! ```text
//! queue-0000000007                   DistributedQueue, and whatever Curator has put again
//! queue-|1A1FADE1F51|0000000007      DistributedDelayQueue: when it is due, in ms since 1970
//! queue-1000000050000000007          DistributedPriorityQueue: 1 or 0 for the sign, and 8 digits
//! queue-|ID|0000000007               DistributedIdQueue
//! ```
//! Curator's delay queue ignores what is between `queue-` and the first `|`. There a delayed item that has failed has the
//! number of its attempts: `queue-a2|1A1FADE1F51|0000000007`.

use std::cmp::Ordering;

/// What every item's name begins with. Others are not items.
pub const PREFIX: &str = "queue-";

const SEPARATOR: char = '|';

/// Whose nodes a queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Those of Curator's `DistributedQueue`.
    Plain,
    /// Those of its `DistributedDelayQueue`.
    Delay,
    /// Those of its `DistributedPriorityQueue`.
    Priority,
    /// Those of its `DistributedIdQueue`.
    Id,
}

/// Where an item goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// To the end of a plain queue.
    End,
    /// Into a delay queue, due at that time in milliseconds since 1970.
    At(i64),
    /// Into a priority queue; the lowest number is taken first.
    Priority(i32),
    /// To the end of an id queue. Curator writes `_` for `/` and `|` of an id.
    Id(&'a str),
}

impl Place<'_> {
    /// The kind of queue that has such places.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::End => Kind::Plain,
            Self::At(_) => Kind::Delay,
            Self::Priority(_) => Kind::Priority,
            Self::Id(_) => Kind::Id,
        }
    }

    /// The name of a new node, in front of the number that ZooKeeper gives it. `None`: Curator takes neither a due
    /// time that is not behind 1970 nor an empty id.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        Some(match *self {
            Self::End => PREFIX.to_owned(),
            Self::At(due) if due <= 0 => return None,
            Self::At(due) => format!("{PREFIX}|{due:08X}|"),
            // The bits of a negative number rise with it.
            Self::Priority(priority) => {
                format!("{PREFIX}{}{priority:08X}", u8::from(priority >= 0))
            }
            Self::Id("") => return None,
            Self::Id(id) => format!("{PREFIX}|{}|", clean(id)),
        })
    }
}

/// An id as names have it.
#[must_use]
pub fn clean(id: &str) -> String {
    id.replace(['/', SEPARATOR], "_")
}

/// Whether a child of a queue's node is an item.
#[must_use]
pub fn is_item(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// When an item of a delay queue is due: what is between the last two `|`. One without a time is due since 1970, as those
/// that Curator has put again.
#[must_use]
pub fn due(name: &str) -> i64 {
    let Some((front, _)) = name.rsplit_once(SEPARATOR) else {
        return 0;
    };
    match front.rsplit_once(SEPARATOR) {
        Some((before, due)) if !before.is_empty() => i64::from_str_radix(due, 16).unwrap_or(0),
        _ => 0,
    }
}

/// The id of an item of an id queue: what is between the first two `|`.
#[must_use]
pub fn id(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once(SEPARATOR)?;
    Some(rest.split_once(SEPARATOR)?.0)
}

/// The number that ZooKeeper gave a node. It is the last of a name, and may be negative when 2^31 nodes were made.
fn number(name: &str) -> Option<i32> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let sign = usize::from(name[..digits].ends_with("|-"));
    name[digits - sign..].parse().ok()
}

/// How often a delayed item has failed, as its name says.
#[must_use]
pub fn attempts(name: &str) -> u32 {
    let front = name
        .strip_prefix("queue-a")
        .and_then(|rest| rest.split_once(SEPARATOR));
    front.and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

/// The name of an item that has failed and is put again, in front of its new number. Curator forgets due times and
/// priorities of those, so that they come ahead of all others; these keep them.
#[must_use]
pub fn again(kind: Kind, name: &str, attempts: u32, due: i64) -> String {
    match kind {
        Kind::Plain => PREFIX.to_owned(),
        Kind::Delay => format!("{PREFIX}a{attempts}|{due:08X}|"),
        // A sign, eight digits, and the number.
        Kind::Priority => match name.get(..PREFIX.len() + 9) {
            Some(front) if name.len() >= front.len() + 10 => front.to_owned(),
            _ => PREFIX.to_owned(),
        },
        Kind::Id => match id(name) {
            Some(id) => format!("{PREFIX}|{id}|"),
            None => PREFIX.to_owned(),
        },
    }
}

/// Whether a queue of that kind has items of such names. Any has those that Curator has put again.
#[must_use]
pub fn is_of(kind: Kind, name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else {
        return false;
    };
    let is_again = rest.len() <= 11 && number(name).is_some() && !rest.contains(SEPARATOR);
    let separators = rest.matches(SEPARATOR).count();
    is_again
        || match kind {
            Kind::Plain => false,
            Kind::Delay => separators >= 2,
            Kind::Priority => priority(name).is_some(),
            Kind::Id => separators == 2,
        }
}

/// The priority of an item of a priority queue; the lowest comes first. `None`: one that Curator has put again.
#[must_use]
pub fn priority(name: &str) -> Option<i32> {
    let rest = name.strip_prefix(PREFIX)?;
    let (sign, digits) = (rest.get(..1)?, rest.get(1..9)?);
    if rest.len() < 19 || rest.contains(SEPARATOR) || digits.contains('+') {
        return None;
    }
    let priority = u32::from_str_radix(digits, 16).ok()?.cast_signed();
    matches!((sign, priority), ("1", 0..) | ("0", ..0)).then_some(priority)
}

/// Which of two items is taken first. Items that are due at one time, which Curator takes in any order, are taken in the
/// order of their numbers.
#[must_use]
pub fn order(kind: Kind, one: &str, other: &str) -> Ordering {
    match kind {
        Kind::Plain | Kind::Priority => one.cmp(other),
        Kind::Delay => (due(one), number(one), one).cmp(&(due(other), number(other), other)),
        Kind::Id => without_id(one).cmp(&without_id(other)).then(one.cmp(other)),
    }
}

/// A name without its id and the `|` around it.
fn without_id(name: &str) -> (&str, &str) {
    let parts = name.split_once(SEPARATOR);
    parts
        .and_then(|(front, rest)| Some((front, rest.split_once(SEPARATOR)?.1)))
        // All of Curator's begin with the same.
        .unwrap_or_else(|| name.split_at(name.find('-').map_or(0, |at| at + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_curator_writes() {
        for (place, name) in [
            (Place::End, "queue-"),
            (Place::At(1_795_210_223_441), "queue-|1A1FADE1F51|"),
            (Place::At(255), "queue-|000000FF|"),
            (Place::Priority(5), "queue-100000005"),
            (Place::Priority(0), "queue-100000000"),
            (Place::Priority(-1), "queue-0FFFFFFFF"),
            (Place::Priority(i32::MIN), "queue-080000000"),
            (Place::Id("my/id|7"), "queue-|my_id_7|"),
        ] {
            assert_eq!(place.name().as_deref(), Some(name));
        }
        assert_eq!(Place::At(0).name(), None);
        assert_eq!(Place::Id("").name(), None);
        assert_eq!(Place::At(i64::MIN).name(), None);
    }

    #[test]
    fn due_times_are_read_as_curator_reads_them() {
        for (name, time) in [
            ("queue-|1A1FADE1F51|0000000000", 1_795_210_223_441),
            ("queue-|1a1fade1f51|", 1_795_210_223_441),
            ("queue-|X|a|FF|x", 255),
            ("queue-00ab|+FF|7", 255),
            ("queue-|-1|7", -1),
            ("queue-0000000001", 0),
            ("queue-|FF", 0),
            ("|FF|7", 0),
            ("queue-||7", 0),
            ("queue-|no|7", 0),
            ("queue-|FFFFFFFFFFFFFFFFF|7", 0),
            ("", 0),
            ("|", 0),
        ] {
            assert_eq!(due(name), time, "{name}");
        }
    }

    #[test]
    fn a_name_says_of_which_kind_it_is_not() {
        use Kind::{Delay, Id, Plain, Priority};
        for (name, kinds) in [
            ("queue-0000000007", &[Plain, Delay, Priority, Id][..]),
            ("queue--0000000007", &[Plain, Delay, Priority, Id]),
            ("queue-|1A1FADE1F51|0000000007", &[Delay, Id]),
            ("queue-a2|1A1FADE1F51|0000000007", &[Delay, Id]),
            ("queue-1000000050000000003", &[Priority]),
            ("queue-0FFFFFFFF0000000003", &[Priority]),
            ("queue-0000000050000000003", &[]),
            ("queue-1+000000500000000003", &[]),
            ("queue-é", &[]),
            ("queue-", &[]),
            ("foo", &[]),
        ] {
            for kind in [Plain, Delay, Priority, Id] {
                assert_eq!(is_of(kind, name), kinds.contains(&kind), "{kind:?} {name}");
            }
        }
        for priority in [i32::MIN, -1, 0, 5, i32::MAX] {
            let name = Place::Priority(priority).name().unwrap() + "0000000003";
            assert_eq!(super::priority(&name), Some(priority));
        }
    }

    fn in_order(kind: Kind, mut names: Vec<&str>) -> Vec<&str> {
        names.reverse();
        names.sort_by(|one, other| order(kind, one, other));
        names
    }

    #[test]
    fn items_are_taken_in_the_order_of_their_kind() {
        let delay = [
            "queue-0000000009",
            "queue-|000000FF|0000000004",
            "queue-|1A1FADE1001|0000000001",
            "queue-a2|1A1FADE1001|0000000002",
            "queue-|1A1FADE1001|0000000010",
            "queue-|1A1FADE1F51|0000000000",
        ];
        assert_eq!(in_order(Kind::Delay, delay.to_vec()), delay);
        let priorities = [i32::MIN, -7, -1, 0, 1, i32::MAX];
        let priorities = priorities.map(|priority| Place::Priority(priority).name().unwrap());
        let priorities: Vec<_> = priorities.iter().map(String::as_str).collect();
        assert_eq!(in_order(Kind::Priority, priorities.clone()), priorities);
        let ids = [
            "queue-|z|0000000001",
            "queue-0000000002",
            "queue-|a|0000000003",
        ];
        assert_eq!(in_order(Kind::Id, ids.to_vec()), ids);
        assert_eq!(["z", "a"].map(Some), [id(ids[0]), id(ids[2])]);
    }

    #[test]
    fn an_item_that_is_put_again_keeps_its_place_and_the_count_of_its_attempts() {
        let delayed = again(Kind::Delay, "queue-|FF|0000000001", 2, 256);
        assert_eq!(delayed, "queue-a2|00000100|");
        assert_eq!((attempts(&delayed), due(&delayed)), (2, 256));
        let next = format!("{delayed}0000000007");
        assert_eq!(again(Kind::Delay, &next, 3, 512), "queue-a3|00000200|");
        for (kind, name, put) in [
            (Kind::Plain, "queue-0000000001", "queue-"),
            (
                Kind::Priority,
                "queue-1000000050000000003",
                "queue-100000005",
            ),
            (Kind::Priority, "queue-0000000003", "queue-"),
            (Kind::Priority, "queue-é", "queue-"),
            (Kind::Id, "queue-|my_id|0000000003", "queue-|my_id|"),
            (Kind::Id, "queue-0000000003", "queue-"),
        ] {
            assert_eq!(again(kind, name, 1, 256), put);
        }
        for none in ["queue-|FF|1", "queue-ab|FF|1", "queue-a1", "queue-"] {
            assert_eq!(attempts(none), 0, "{none}");
        }
    }
}
