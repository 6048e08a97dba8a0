//! The fuzz target for bytes of a connection.

use std::net::{IpAddr, Ipv4Addr};

use super::{
    framing::{Framing, Part},
    hosts::Hosts,
};

/// Checks that the framing of requests does not depend on the pieces in which they arrive. Also
/// parses each line as a host name.
pub fn heads(bytes: &[u8]) -> Result<(), String> {
    let mut whole = Framing::default();
    whole.observe(bytes);
    for piece in [1, 7] {
        let mut pieces = Framing::default();
        for piece in bytes.chunks(piece) {
            pieces.observe(piece);
        }
        assert_eq!(state(&pieces), state(&whole), "in pieces of {piece}");
    }
    let hosts = Hosts::new(["example.org".to_owned()]);
    for line in String::from_utf8_lossy(bytes).lines() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let host = line.split_once(": ").map_or(line, |(_, value)| value);
        hosts.serves(host, local);
        hosts.serves_origin(host, local);
    }
    match whole.part() {
        Part::Lost => Err("the framing is violated".to_owned()),
        _ => Ok(()),
    }
}

fn state(framing: &Framing) -> impl PartialEq + std::fmt::Debug {
    let finished = framing.finished();
    (finished, framing.part(), framing.violation(finished))
}
