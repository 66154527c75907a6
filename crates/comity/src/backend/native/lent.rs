//! Calls that go in one piece: those whose messages every rank reads in place.
//!
//! ```text
//!   call      1             2             3                               4
//!   goes      in segments   in segments   in segments                     in one piece
//!   messages  copied        lent          lent                            lent
//!   headers   -             -             "mine were lent in call 2", of each rank: now all know it of all
//! ```
//! Where the peers map a buffer early in its first call, that call's messages are lent already, and call 3 goes in one piece. Where
//! one maps it late, a later call does.
//!
//! A plan's segments keep a message in a core's cache on its way through a ring. Bytes that are read where they lie go no such way, and
//! segments then cost up to half of the speed. But a plan must be the same on all ranks, and a rank knows only of its own buffers
//! whether peers can read them. So each says in its header how it went the last time. This holds for [`Algorithm::TwoPhase`] alone:
//! there each rank hears from every other, so all conclude the same after the same call. It costs no message, and no result changes:
//! segments do not change the order of additions.

use comity_plan::{Algorithm, Choice, Kind};

/// Bytes of a part from which on the system copies it sooner than two ranks do through a ring: with two ranks, and with 4 to 16, of
/// which several read the same pages at once in an all_gather. Measured; `bench/record/2026-11-27-offers.md`, `2026-11-26-pull.md`.
const LEAST_OF_TWO: usize = 32 << 10;
const LEAST_GATHERED: usize = 512 << 10;
const LEAST_DEALT: usize = 256 << 10;

/// Bytes up to which the system copies a message to one rank sooner than both ranks do, of those that may stay; of longer ones both
/// copies overlap in the ring.
pub(super) const MOST_ONE_WAY: usize = 1 << 20;

/// Calls that are remembered.
const MOST: usize = 16;

/// Kind, elements and their size: what all ranks know of a call alike.
pub(super) type AgreedCall = (Kind, usize, usize);

/// Calls that go in one piece: the same on all ranks.
#[derive(Debug, Default)]
pub(super) struct InOnePiece(Vec<AgreedCall>);

impl InOnePiece {
    #[inline]
    pub(super) fn has(&self, call: AgreedCall) -> bool {
        !self.0.is_empty() && self.0.contains(&call)
    }

    /// All ranks lent their messages in the call before this one, or not all did.
    pub(super) fn learn(&mut self, call: AgreedCall, all_lent: bool) {
        let known = self.0.iter().position(|c| *c == call);
        match (known, all_lent) {
            (None, true) => {
                if self.0.len() == MOST {
                    self.0.remove(0);
                }
                self.0.push(call);
            }
            (Some(i), false) => drop(self.0.remove(i)),
            _ => {}
        }
    }

    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

/// Returns true if calls by this choice may go in one piece, subject to the ranks' agreement.
pub(super) fn is_asked(kind: Kind, choice: &Choice) -> bool {
    kind == Kind::AllReduce && choice.algorithm == Algorithm::TwoPhase && choice.segment > 0
}

/// Returns true if a call is quicker when the system copies its long messages out of the sender's memory, where the peers let it.
///
/// Gain of one copy in place of two: it pays where all ranks send and receive at once, so that none waits while another copies, and where nothing
/// is added. Of unequal parts of an all_gather the shortest counts: where a rank sends next to nothing, others wait for it.
pub(super) fn gains_by_pull(call: AgreedCall, size: usize, counts: &[usize]) -> bool {
    let (kind, count, elem) = call;
    let part = elem
        * match (kind, counts) {
            (_, []) => count,
            (Kind::AllGather, _) => counts.iter().copied().min().unwrap_or(0),
            _ => counts.iter().sum::<usize>() / counts.len(),
        };
    match kind {
        Kind::AllGather | Kind::AllToAll if size == 2 => part >= LEAST_OF_TWO,
        Kind::AllGather => part >= LEAST_GATHERED,
        Kind::AllToAll => part >= LEAST_DEALT,
        _ => false,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::tests::ranks, *};
    use crate::{
        CallInfo, DType, Op, ReduceOp, SharedBuffer,
        backend::{Backend, Bufs, Call},
        sys::SharedMemory,
    };
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);
    /// Not whole segments.
    const COUNT: usize = (1 << 18) + 1001;

    /// Calls that went in one piece, equality of each result with the first's bits, and the digest of the calls in the ledger.
    type LentCheck = (Vec<bool>, bool, Option<u64>);

    /// Does all_reduces by two-phase on threads: with buffers that peers read in those calls that `lends` (rank, call) says.
    fn run(size: usize, calls: usize, lends: impl Fn(usize, usize) -> bool + Sync) -> Vec<LentCheck> {
        ranks(size, Some(Algorithm::TwoPhase), |rank, mut native| {
            let memory = SharedMemory::new(COUNT * 4).unwrap();
            let mut shared = SharedBuffer::<f32>::shared(COUNT, memory);
            let mut private = vec![0.0; COUNT];
            let mut pieces = Vec::new();
            let mut first = Vec::new();
            let mut same = true;
            for seq in 1..=calls {
                let x = if lends(rank, seq) { &mut shared[..] } else { &mut private[..] };
                x.iter_mut().enumerate().for_each(|(i, x)| *x = 1.1_f32.powi((i % 50 + rank) as i32));
                let info = CallInfo::new(Op::AllReduce).with(|c| {
                    c.seq = seq as u64;
                    c.count = COUNT;
                    c.dtype = Some(DType::F32);
                    c.reduce = Some(ReduceOp::Sum);
                });
                let bufs = Bufs::InPlace((&mut *x).into());
                native.run(Call { info, bufs, counts: &[], recv_counts: &[], whole: None }, LONG).unwrap();
                let bits: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
                if seq == 1 {
                    first.clone_from(&bits);
                }
                same &= bits == first;
                pieces.push(native.kept.last().unwrap().key.in_one_piece);
            }
            let digest = native.members().status.ledger().digest(calls as u64).1;
            assert!(digest.is_some());
            (pieces, same, digest)
        })
    }

    #[test]
    fn calls_whose_messages_all_ranks_lend_go_in_one_piece_with_the_same_bits() {
        for size in 2..=4 {
            let mut seen = run(size, 12, |_, _| true);
            seen.dedup();
            let [(pieces, true, _)] = &seen[..] else { panic!("not alike on all ranks: {seen:?}") };
            // The peers may have mapped the buffers before most of the first call's messages were sent.
            assert!(!pieces[..2].contains(&true) && pieces[11], "{size}: {pieces:?}");
        }
    }

    #[test]
    fn one_rank_that_does_not_lend_keeps_all_from_it() {
        for size in [2, 3] {
            let never = run(size, 8, |rank, _| rank != 1);
            assert!(
                never
                    .iter()
                    .all(|(pieces, same, digest)| *same && !pieces.contains(&true) && *digest == never[0].2),
                "{never:?}"
            );
            // In call 10 alone it does not: from some calls later on all go in one piece, and stay so.
            let mut once = run(size, 40, |rank, seq| rank != 1 || seq != 10);
            once.dedup();
            let [(pieces, true, _)] = &once[..] else { panic!("not alike on all ranks: {once:?}") };
            assert!(
                pieces[8] && !pieces[11] && pieces[20..].iter().all(|whole| *whole),
                "{size}: {pieces:?}"
            );
            // From call 10 on it does not.
            let mut ended = run(size, 14, |rank, seq| rank != 1 || seq < 10);
            ended.dedup();
            let [(pieces, true, _)] = &ended[..] else { panic!("not alike on all ranks: {ended:?}") };
            assert!(pieces[8] && !pieces[11..].contains(&true), "{pieces:?}");
        }
    }

    #[test]
    fn exchanges_of_long_parts_gain_by_pull_and_nothing_else() {
        let gains = |kind, bytes: usize, size| gains_by_pull((kind, bytes / 4, 4), size, &[]);
        for kind in Kind::ALL {
            let gathers = matches!(kind, Kind::AllGather | Kind::AllToAll);
            assert!([32 << 10, 1 << 30].iter().all(|bytes| gains(kind, *bytes, 2) == gathers), "{kind:?}");
            assert!(!gains(kind, 31 << 10, 2) && !gains(kind, 128 << 10, 4));
            assert_eq!(gains(kind, 16 << 20, 2), gathers);
            assert_eq!(gains(kind, 16 << 20, 3), gathers);
        }
        assert!(gains_by_pull((Kind::AllToAll, 0, 4), 3, &[0, 1 << 18, 0]));
        assert!(!gains_by_pull((Kind::AllToAll, 1 << 30, 4), 3, &[0, 1 << 10, 0]));
        assert!(!gains_by_pull((Kind::AllGather, 1 << 30, 4), 2, &[0, 1 << 20]));
    }

    #[test]
    fn as_many_as_fit_are_remembered_and_the_first_goes() {
        let mut calls = InOnePiece::default();
        for count in 0..=MOST {
            calls.learn((Kind::AllReduce, count, 4), true);
            calls.learn((Kind::AllReduce, count, 4), true);
        }
        assert!(!calls.has((Kind::AllReduce, 0, 4)) && calls.has((Kind::AllReduce, 1, 4)));
        calls.learn((Kind::AllReduce, 1, 4), false);
        calls.learn((Kind::AllReduce, 77, 4), false);
        assert!(!calls.has((Kind::AllReduce, 1, 4)) && calls.has((Kind::AllReduce, MOST, 4)));
        assert!(!calls.has((Kind::AllReduce, MOST, 8)) && !calls.has((Kind::Reduce, MOST, 4)));
        calls.forget();
        assert!(!calls.has((Kind::AllReduce, MOST, 4)));
    }
}
