//! `comity launch` with real processes. Every wait has a deadline, and what a test starts is ended with it.

#[path = "../common/mod.rs"]
mod common;
mod harness;

mod bind;
mod claims;
mod defaults;
mod elastic;
mod endings;
mod environment;
mod fleet_ends;
mod given_up;
mod hosts;
mod meeting;
mod memory;
mod metrics;
mod nodes;
mod orphans;
mod output;
mod passed;
mod secrets;
mod stdin;
mod suspend;
mod terminal;
