//! softverbs: a software device behind libibverbs' C interface, so that programs with RDMA run where there is no such device.
//!
//! For tests only: never published, never part of a package. It is a shared library with the symbols and versions of rdma-core's:
//!
//!     cargo build -p softverbs
//!     cargo xtask softverbs target/softverbs      lays it out there as libibverbs.so.1 and librdma.dylib
//!     LD_LIBRARY_PATH=target/softverbs SOFTVERBS_DEVICES=soft=127.0.0.1*2 ibv_devinfo -v
//!
//! A queue pair is a TCP listener on its device's address and its number is the port. On loopback addresses processes of one host reach each
//! other; on private ones hosts do, such as network namespaces.
//! SEND and RECV with immediate data, inline data and several parts work, over RC and UC, with completion channels. Nothing else does:
//! no RDMA READ or WRITE, no UD, no shared receive queues, no asynchronous events; their functions are not there.
//!
//! | variable `SOFTVERBS_` | meaning | default |
//! |---|---|---|
//! | `MODE` | `ib`: RC and UC as specified; `apple`: Thunderbolt as Apple's TN3205 and reports have it | `ib` |
//! | `DEVICES` | `name=address,...`; `name=address*3` makes name0, name1, name2 at three addresses in a row | one |
//! | `CABLES` | `address-address,...`: which devices are joined; without it all are, as by a switch | |
//! | `LINK_DOWN_FILE` | while it is there, the addresses and names in it have no link; all, when it is empty | |
//! | `DROP`, `DUPLICATE`, `CORRUPT`, `REORDER` | for UC, as a share: of packets (a message is lost with any), then of messages | 0 |
//! | `SEED` | which of them it strikes | 1 |
//! | `QUIRKS` | with commas: see below | |
//! | `MAX_QP`, `MAX_MR` | for each device of a process | 1024, 65536; `apple` 10, 100 |
//! | `MAX_WR`, `MIN_DEPTH`, `MAX_MSG` | depth of a queue, the least it is rounded up to, bytes of a message | 16384, 1, 2^31; `apple` 4095, 1024, 16773120 |
//!
//! Quirks: `recv_needs_rts` (no receive is taken before the pair is ready to send), `mr_needs_remote` (regions without remote access are
//! refused), `wc_err=N` (every Nth receive ends with status 21), `no_channel` (no completion channels), `gid_index=N` (where the
//! IPv4-mapped GID stands; 1 by default).
//!
//! # What `apple` mode does, and who says so
//! - UC only; RC is errno 102. One part for each request, SEND only, no inline data (TN3205, and reports for the number).
//! - A SEND waits until the peer has posted a receive; for ever if need be (TN3205).
//! - SEND and RECV of different numbers of 4 KiB frames end the pair with status 1 (TN3205 says that the receive fails).
//! - Depths count frames, up to 4095, of which one cannot be used (TN3205; reported). 10 queue pairs and 100 regions for a device (TN3205; reported).
//! - Errors of posting are negative and name no request (reported). Without a link there is no protection domain (reported), and no step of a
//!   pair (errno 16). A GID that no cable leads to is errno 60 at the step to RTR (reported).
//! - A peer that dies is silence (reported).
//!
//! Nothing here is evidence of what Apple's provider or a network card does; it is a model for tests.
//!
//! # Peers that die
//! RC: requests end with status 12 after 4.096 us x 2^timeout x (retries + 1) without the peer, with 13 when it had no receive for as long as
//! `rnr_retry` allows. A process that is stopped keeps its connections and is waited for, as a network card would answer for it.
//! UC in `ib` mode: requests complete and reach nobody. In both: receives stay posted.

mod abi;
mod config;
mod exports;
mod memory;
mod pair;
mod queue;
mod receive;
mod send;
mod thread;
mod wire;
mod world;

#[cfg(test)]
mod tests;
