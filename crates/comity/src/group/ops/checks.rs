//! Rules for the arguments of a call, and the call itself.

use super::{Group, length, misuse};
use crate::{
    CallInfo, MAX_TAG, Misuse, Op, Place, ReduceOp, Result, Wire,
    backend::{Bufs, Call},
};

/// Checks that a call can use a wire, with a buffer outside of host memory if there is one.
fn fits(wire: Wire, info: &CallInfo, place: Option<Place>) -> Result<(), Misuse> {
    let unfit = |fits, got: String| Err(Misuse::Wire { wire, fits, got });
    match (info.op, info.dtype, info.reduce, place) {
        (Op::AllReduce | Op::ReduceScatter | Op::AllGather, Some(dtype), reduce, place) => {
            if !Wire::carries(dtype) {
                return unfit("elements of f32, f16 and bf16", dtype.to_string());
            }
            if let Some(reduce) = reduce.filter(|reduce| !Wire::reduces(*reduce)) {
                return unfit("sums and averages", reduce.to_string());
            }
            place.map_or(Ok(()), |place| unfit("host memory", format!("{place:?}")))
        }
        _ => unfit("all_reduce, reduce_scatter and all_gather", info.op.to_string()),
    }
}

impl Group {
    pub(super) fn moving(&self, op: Op, bufs: Bufs<'_>, root: Option<usize>) -> Result<()> {
        let mut call = Call::new(op, bufs);
        call.info.root = root;
        self.checked(&mut call)
    }

    pub(super) fn reducing(
        &self,
        op: Op,
        bufs: Bufs<'_>,
        reduce: ReduceOp,
        root: Option<usize>,
    ) -> Result<()> {
        let mut call = Call::new(op, bufs);
        (call.info.reduce, call.info.root) = (Some(reduce), root);
        self.checked(&mut call)
    }

    pub(super) fn reducing_parts(
        &self,
        bufs: Bufs<'_>,
        reduce: ReduceOp,
        count: usize,
        counts: &[usize],
    ) -> Result<()> {
        let mut call = Call::new(Op::ReduceScatter, bufs);
        (call.info.reduce, call.info.count, call.counts) = (Some(reduce), count, counts);
        self.checked(&mut call)
    }

    /// Checks the rules of every call, then makes it.
    pub(super) fn checked(&self, call: &mut Call<'_>) -> Result<()> {
        let op = call.info.op;
        call.info.wire = self.wire;
        if let Bufs::Both(src, dst) = &call.bufs
            && op != Op::SendRecv
            && src.dtype() != dst.dtype()
        {
            return Err(misuse(op, Misuse::DTypes { src: src.dtype(), dst: dst.dtype() }));
        }
        if let (Some(dtype), Some(reduce)) = (call.info.dtype, call.info.reduce)
            && !dtype.supports(reduce)
        {
            return Err(misuse(op, Misuse::Reduction { reduce, dtype }));
        }
        let places = match &call.bufs {
            Bufs::None => [None, None],
            Bufs::In(v) => [Some(v.place()), None],
            Bufs::Out(v) | Bufs::InPlace(v) | Bufs::OwnIn(v) | Bufs::OwnOut(v) => [Some(v.place()), None],
            Bufs::Both(s, d) => [Some(s.place()), Some(d.place())],
        };
        if let Some(p) = places.into_iter().flatten().find(|&p| !self.reaches(p)) {
            return Err(misuse(op, Misuse::Place(format!("{p:?}"))));
        }
        if let Some(wire) = self.wire {
            let place = places.into_iter().flatten().find(|place| *place != Place::Host);
            fits(wire, &call.info, place).map_err(|unfit| misuse(op, unfit))?;
        }
        if let [Some(a), Some(b)] = places
            && a != b
        {
            return Err(misuse(op, Misuse::Places(format!("{a:?}"), format!("{b:?}"))));
        }
        self.call(call)
    }

    fn reaches(&self, place: Place) -> bool {
        place.device().is_none_or(|(device, _)| self.device() == Some(device))
    }

    pub(super) fn has(&self, op: Op, what: &'static str, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(misuse(op, Misuse::Rank { what, rank, size: self.size() }))
    }

    pub(super) fn other(
        &self,
        op: Op,
        what: &'static str,
        rank: usize,
        tag: u32,
        verb: &'static str,
    ) -> Result<()> {
        self.has(op, what, rank)?;
        if rank == self.rank() {
            return Err(misuse(op, Misuse::Oneself(rank, verb)));
        }
        if tag > MAX_TAG {
            return Err(misuse(op, Misuse::Tag(tag)));
        }
        Ok(())
    }

    pub(super) fn parts(&self, op: Op, buffer: &'static str, got: usize, part: usize) -> Result<()> {
        let expected = part.saturating_mul(self.size());
        length(op, buffer, got, expected, ", one part for each rank")
    }

    pub(super) fn part_of(&self, op: Op, buffer: &'static str, got: usize) -> Result<usize> {
        let part = got / self.size();
        length(op, buffer, got, part * self.size(), " or another multiple of the group's size")?;
        Ok(part)
    }

    pub(super) fn total(&self, op: Op, counts: &[usize]) -> Result<usize> {
        if counts.len() != self.size() {
            return Err(misuse(op, Misuse::Counts { got: counts.len(), size: self.size() }));
        }
        Ok(counts.iter().fold(0usize, |a, &b| a.saturating_add(b)))
    }
}
