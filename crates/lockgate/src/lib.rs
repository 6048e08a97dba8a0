//! Durable keyed queues inside a service: the facade over Lockgate's crates.
