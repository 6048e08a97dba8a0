//! What the examples and the tests at scale share.

use lockgate_core::{BootId, Epoch, Incarnation, QueueName, ShardId, Term};
use lockgate_machine::EngineCommand;

/// The first command of a new machine.
pub(crate) fn start_term() -> EngineCommand {
    EngineCommand::StartTerm {
        term: Term {
            shard: ShardId::default(),
            epoch: Epoch(1),
            incarnation: Incarnation(1),
        },
        boot_id: BootId([1; 16]),
        clock_offset: 0,
        secret: [1; 32],
    }
}

/// The queue that everything happens in.
pub(crate) fn queue() -> QueueName {
    QueueName::new("orders").expect("a valid name")
}
