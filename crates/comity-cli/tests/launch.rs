//! `comity launch` with real processes. Every wait has a deadline, and what a test starts is ended with it.
#![allow(missing_docs)]

#[path = "launch/harness.rs"]
mod harness;

#[path = "launch/bad_input.rs"]
mod bad_input;
#[path = "launch/bind.rs"]
mod bind;
#[path = "launch/claims.rs"]
mod claims;
#[path = "launch/defaults.rs"]
mod defaults;
#[path = "launch/elastic.rs"]
mod elastic;
#[path = "launch/endings.rs"]
mod endings;
#[path = "launch/environment.rs"]
mod environment;
#[path = "launch/fleet_ends.rs"]
mod fleet_ends;
#[path = "launch/given_up.rs"]
mod given_up;
#[path = "launch/hosts.rs"]
mod hosts;
#[path = "launch/meeting.rs"]
mod meeting;
#[path = "launch/memory.rs"]
mod memory;
#[path = "launch/metrics.rs"]
mod metrics;
#[path = "launch/nodes.rs"]
mod nodes;
#[path = "launch/orphans.rs"]
mod orphans;
#[path = "launch/output.rs"]
mod output;
#[path = "launch/passed.rs"]
mod passed;
#[path = "launch/secrets.rs"]
mod secrets;
#[path = "launch/stdin.rs"]
mod stdin;

#[path = "launch/suspend.rs"]
mod suspend;
#[path = "launch/terminal.rs"]
mod terminal;

mod patience;
mod ports;
