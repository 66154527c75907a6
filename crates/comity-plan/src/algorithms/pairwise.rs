//! Every rank has a part for every rank.
//!
//! ```text
//!   round k: ranks whose numbers add up to k (around) swap      k = 0 of 4:   1 <──> 3   (0, 2 copy their own)
//!                                                               k = 1:        0 <──> 1   2 <──> 3
//! ```
//!
//! Cost per rank: n-1 messages each way, all parts but the own. As partners swap, a rank whose `In` is its `Out` takes
//! each element into the place that it has just sent from: nothing is overwritten, no memory is needed, and
//! neither waits for more than the other's next element.

use super::{Cuts, Definition, Order, PartLengths, Service, of_all};
use crate::{
    Slice,
    draft::{Draft, Parts, Team},
    shape::Kind,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "pairwise",
    order: Order::ByRank,
    parts: PartLengths::Private,
    adds_at_once: false,
    serves: &[Service {
        kind: Kind::AllToAll,
        steps: |d, s| all_to_all(d, s.team, s.src, &s.parts, s.dst, &s.incoming),
        seconds: |m| m.exchange(m.bytes),
        cuts: Cuts::Asked { steps: of_all },
        sends: |e| (e.n - 1) * e.count,
    }],
};

fn all_to_all(d: &mut Draft, team: &Team, src: Slice, send: &Parts, dst: Slice, recv: &Parts) {
    let n = team.len();
    for round in 0..n {
        let other = (round + n - team.me) % n;
        if other != team.me {
            d.send(team, other, src.part(send[other]));
            d.recv(team, other, dst.part(recv[other]));
        }
        d.round += 1;
    }
    d.copy(src.part(send[team.me]), dst.part(recv[team.me]));
}
