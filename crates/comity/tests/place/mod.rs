//! Address for a store of rank 0, which no other process takes meanwhile.

use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};

/// A port that stays this test's, and at which a store may listen, as it allows its reuse; elsewhere than on Linux it may not, so there the
/// port is only free.
pub(crate) fn reserved() -> (Option<Socket>, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    (cfg!(target_os = "linux").then_some(socket), at)
}
