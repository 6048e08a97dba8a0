//! The target for pages of a ledger's events: what a client believes of a server.

use lockgate_client::fuzz_page;
use lockgate_core::{WallTime, ledger::SequenceId};
use lockgate_server::fuzzing::page as written;

/// Read by the client, written by the server and read again it is the same.
pub(crate) fn read(bytes: &[u8]) -> Result<(), String> {
    let mut page = fuzz_page(bytes)?;
    if page.head.sequence_id == SequenceId::START {
        // A ledger without events has no time of the last one, and the server shows none.
        page.head.time = WallTime(0);
    }
    assert_eq!(fuzz_page(&written(&page)), Ok(page));
    Ok(())
}
