//! A message of an item of Curator.

use bytes::Bytes;
use lockgate_core::{Header, Key, Message, PRIORITY_MAX, UniqueId, WallTime};
use lockgate_zookeeper::queue::{Kind, drain::Held, names};
use sha2::{Digest as _, Sha256};

/// The message of the item at that place of a node, from 0.
pub(super) fn message(
    kind: Kind,
    path: &str,
    node: &Held,
    place: usize,
    item: &[u8],
    is_keyed: bool,
) -> Result<Message, String> {
    let id = unique_id(path, &node.name, node.created, place);
    let mut message = Message {
        body: Bytes::copy_from_slice(item),
        unique_id: Some(UniqueId::new(&id).map_err(|error| error.to_string())?),
        ..Message::default()
    };
    let mut key = path;
    match kind {
        Kind::Plain => {}
        Kind::Delay => {
            let due = u64::try_from(names::due(&node.name)).unwrap_or(0);
            message.due = (due > 0).then_some(WallTime(due));
        }
        Kind::Priority => {
            // What Curator has put again comes ahead of all others.
            message.priority = PRIORITY_MAX;
            if let Some(priority) = names::priority(&node.name) {
                message.priority -=
                    u8::try_from(priority.clamp(0, PRIORITY_MAX.into())).unwrap_or(0);
                message
                    .headers
                    .push(header("curator_priority", "Number", &priority.to_string()));
            }
        }
        Kind::Id => {
            if let Some(id) = names::id(&node.name).filter(|id| !id.is_empty()) {
                message.headers.push(header("curator_id", "String", id));
                key = id;
            }
        }
    }
    if is_keyed {
        message.key = Some(Key::new(key).map_err(|error| error.to_string())?);
    }
    Ok(message)
}

fn header(name: &str, kind: &str, value: &str) -> Header {
    Header {
        name: name.into(),
        kind: kind.into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
    }
}

/// The same for the same item, and for no other one: a node that is made later under the same name was made by another
/// transaction. One that is too long for a queue is hashed.
fn unique_id(path: &str, name: &str, created: i64, place: usize) -> String {
    let id = format!("curator:{path}/{name}:{created:x}:{place}");
    // What SQS takes.
    if id.len() <= 128 {
        return id;
    }
    let hash = Sha256::digest(id.as_bytes());
    let mut hashed = "curator:".to_owned();
    hash.iter()
        .for_each(|byte| hashed.push_str(&format!("{byte:02x}")));
    hashed
}

#[cfg(test)]
mod tests {
    use super::unique_id;

    #[test]
    fn an_item_has_one_unique_id_and_no_other_item_has_it() {
        let id = unique_id("/orders", "queue-|1A1FADE1F51|0000000003", 0x1f, 2);
        assert_eq!(id, "curator:/orders/queue-|1A1FADE1F51|0000000003:1f:2");
        let long = "x".repeat(2_000);
        let ids = [("/a", 1, 0), ("/a", 1, 1), ("/a", 2, 0), ("/b", 1, 0)];
        for name in ["queue-0000000001", &long] {
            let mut ids = ids.map(|(path, created, place)| unique_id(path, name, created, place));
            assert!(ids.iter().all(|id| id.len() <= 128));
            ids.sort_unstable();
            assert!(ids.is_sorted_by(|one, other| one < other));
        }
    }
}
