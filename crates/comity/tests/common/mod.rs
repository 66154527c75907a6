//! Jobs of threads that join as processes do, for all programs of tests.
#![allow(dead_code, reason = "each program of tests needs some of it")]

use comity::{Config, Group, Key, tools::Store};
pub(crate) use scope::each;
use socket2::{Domain, Socket, Type};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

/// Longer than anything takes that is to succeed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn key() -> Key {
    Key::from([7; 32])
}

/// A store for `n` ranks, of which the least patient decides how long all wait.
pub(crate) fn store(n: usize) -> Store {
    Store::start((Ipv4Addr::LOCALHOST, 0).into(), n, &key(), "job", 10 * LONG).unwrap()
}

/// Rank `rank` of the `n` that meet at a store.
pub(crate) fn config(rank: usize, n: usize, store: &Store) -> Config {
    let config = Config::new(rank, n).store(&store.addr().to_string()).unwrap();
    config.job("job").key(key()).join_timeout(LONG)
}

/// `n` ranks, each with what `adapt` makes of its configuration.
pub(crate) fn job(n: usize, adapt: impl Fn(Config) -> Config + Sync) -> Vec<Group> {
    let store = store(n);
    each(0..n, |r| adapt(config(r, n, &store)).connect().unwrap())
}

/// A port that stays this test's, and at which a store may listen, as it allows its reuse; elsewhere than on Linux it may not, so there the
/// port is only free.
pub(crate) fn reserved() -> (Option<Socket>, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    (cfg!(target_os = "linux").then_some(socket), at)
}
