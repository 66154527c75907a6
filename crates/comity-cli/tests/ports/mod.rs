//! Ports for tests whose processes listen there later.
use std::{
    hash::{BuildHasher, RandomState},
    net::TcpListener,
};

/// A port at which nobody listens, nor at the one behind it, outside the ranges from which systems give ports away: until it is taken, seconds
/// later, no connection of another test gets it. Drawn, so that tests that run at once have different ones.
pub(crate) fn free_port() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let drawn = (0..1000u16).map(|i| 10_000 + (RandomState::new().hash_one(i) % 11_000) as u16 * 2);
    drawn.into_iter().find(|port| is_free(*port) && is_free(port + 1)).expect("a free port")
}
