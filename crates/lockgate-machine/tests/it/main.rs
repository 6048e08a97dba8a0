//! The machine as its users see it, against a model and at scale.

mod histories;
mod model;
mod world;
