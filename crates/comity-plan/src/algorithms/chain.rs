//! From neighbour to neighbour, streaming: a tree of one branch.
//!
//! ```text
//!   broadcast from 0:   0 ──> 1 ──> 2 ──> 3
//! ```
//!
//! Cost, n ranks, B bytes: n-1 rounds, B per rank. Elements travel on while more arrive, so the time is that of one message and
//! of n-2 first pieces.

use super::{Cuts, Definition, Order, PartLengths, Service};
use crate::{
    Slice,
    draft::{Draft, Team},
    model::Model,
    shape::Kind,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "chain",
    order: Order::ByHost,
    parts: PartLengths::Listed,
    adds_at_once: false,
    serves: &[Service {
        kind: Kind::Broadcast,
        steps: |d, s| broadcast(d, s.team, s.root_at(), s.dst),
        seconds,
        cuts: Cuts::Asked { steps: |_| 2 },
        sends: |e| e.count,
    }],
};

/// All hops at once, after the first bytes have come through.
fn seconds(m: &Model<'_>) -> f64 {
    let first = m.bytes.min(65536.0);
    m.walk(first) + m.shift(m.bytes - first)
}

fn broadcast(d: &mut Draft, team: &Team, root: usize, buf: Slice) {
    let n = team.len();
    let first = d.round;
    // How far from the root.
    let far = team.before(root);
    if far > 0 {
        d.round = first + far as u32 - 1;
        d.recv(team, team.before(1), buf);
    }
    if far + 1 < n {
        d.round = first + far as u32;
        d.send(team, team.after(1), buf);
    }
    d.round = first + n as u32 - 1;
}
