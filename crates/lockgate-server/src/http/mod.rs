//! Everything between the socket and an action: listener, connections, limits, host checks, routing,
//! health, metrics and shutdown. Knows HTTP and nothing of queues.

pub(crate) mod drain;
