//! The Amazon SQS HTTP API, health and metrics over a Lockgate engine.
