//! The operations: each checks its arguments, then makes one call.
//!
//! `n` stands for the group's size and `r` for a rank. Counts are in elements; buffers may have any length, also 0.

mod checks;

use super::{Group, misuse};
use crate::{
    Misuse, Op, ReduceOp, Result, View, ViewMut,
    backend::{Bufs, Call},
};

impl Group {
    /// Combine `buf` across ranks; every rank ends with the result in `buf`.
    ///
    /// ```
    /// # use comity::{Group, ReduceOp};
    /// # let g = Group::single();
    /// let mut x = vec![1f32, 2.0];
    /// g.all_reduce(&mut x, ReduceOp::Sum)?;
    /// g.all_reduce(&mut x[1..], ReduceOp::Max)?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Reduction`] when `op` is not defined on the type.
    pub fn all_reduce<'a>(&self, buf: impl Into<ViewMut<'a>>, op: ReduceOp) -> Result<()> {
        let buf = buf.into();
        self.reducing(Op::AllReduce, Bufs::InPlace(buf), op, None)
    }

    /// Combine `src` across ranks into `dst`, of the same length.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_into<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        op: ReduceOp,
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        length(Op::AllReduce, "destination", dst.count(), src.count(), " as in the source")?;
        self.reducing(Op::AllReduce, Bufs::Both(src, dst), op, None)
    }

    /// Combine `buf` across ranks into `root`'s `buf`; the others' stay as they are.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Misuse::Rank`] for a root outside the group.
    pub fn reduce<'a>(&self, buf: impl Into<ViewMut<'a>>, op: ReduceOp, root: usize) -> Result<()> {
        let buf = buf.into();
        self.has(Op::Reduce, "root", root)?;
        self.reducing(Op::Reduce, Bufs::InPlace(buf), op, Some(root))
    }

    /// Copy `root`'s `buf` to every rank.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Rank`] for a root outside the group.
    pub fn broadcast<'a>(&self, buf: impl Into<ViewMut<'a>>, root: usize) -> Result<()> {
        self.has(Op::Broadcast, "root", root)?;
        self.moving(Op::Broadcast, Bufs::InPlace(buf.into()), Some(root))
    }

    /// Concatenate every rank's `src` in `dst`, by rank: `dst[r * src.len()..]` holds what rank `r` gave.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Length`] unless `dst` has `n` times the length of `src`.
    pub fn all_gather<'a>(&self, src: impl Into<View<'a>>, dst: impl Into<ViewMut<'a>>) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        self.parts(Op::AllGather, "destination", dst.count(), src.count())?;
        self.moving(Op::AllGather, Bufs::Both(src, dst), None)
    }

    /// As [`all_gather`](Self::all_gather), with this rank's part in its place in `buf` already.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Length`] unless the length of `buf` is a multiple of `n`.
    pub fn all_gather_in_place<'a>(&self, buf: impl Into<ViewMut<'a>>) -> Result<()> {
        let buf = buf.into();
        let part = self.part_of(Op::AllGather, "buffer", buf.count())?;
        let mut call = Call::new(Op::AllGather, Bufs::OwnIn(buf));
        call.info.count = part;
        self.checked(call)
    }

    /// As [`all_gather`](Self::all_gather), where rank `r` gives `counts[r]` elements. `counts` is the same on every rank.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Counts`] and [`Misuse::Length`] when lengths do not fit.
    pub fn all_gather_v<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        counts: &[usize],
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        let total = self.total(Op::AllGather, counts)?;
        length(Op::AllGather, "source", src.count(), counts[self.rank()], ", this rank's entry of counts")?;
        length(Op::AllGather, "destination", dst.count(), total, ", the sum of counts")?;
        let mut call = Call::new(Op::AllGather, Bufs::Both(src, dst));
        call.info.count = total;
        call.counts = counts;
        self.checked(call)
    }

    /// Combine `src` across ranks; rank `r` ends with part `r` of the result in `dst`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Misuse::Length`] unless `src` has `n` times the length of `dst`.
    pub fn reduce_scatter<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        op: ReduceOp,
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        self.parts(Op::ReduceScatter, "source", src.count(), dst.count())?;
        let part = dst.count();
        self.reducing_parts(Bufs::Both(src, dst), op, part, &[])
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), with the result in part `r` of `buf`; the rest of it stays as it is.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Misuse::Length`] unless the length of `buf` is a multiple of `n`.
    pub fn reduce_scatter_in_place<'a>(&self, buf: impl Into<ViewMut<'a>>, op: ReduceOp) -> Result<()> {
        let buf = buf.into();
        let part = self.part_of(Op::ReduceScatter, "buffer", buf.count())?;
        self.reducing_parts(Bufs::OwnOut(buf), op, part, &[])
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), where part `r` has `counts[r]` elements. `counts` is the same on every rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Misuse::Counts`] and [`Misuse::Length`] when lengths do not fit.
    pub fn reduce_scatter_v<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        let total = self.total(Op::ReduceScatter, counts)?;
        length(Op::ReduceScatter, "source", src.count(), total, ", the sum of counts")?;
        length(
            Op::ReduceScatter,
            "destination",
            dst.count(),
            counts[self.rank()],
            ", this rank's entry of counts",
        )?;
        self.reducing_parts(Bufs::Both(src, dst), op, total, counts)
    }

    /// Concatenate every rank's `src` in `root`'s `dst`, by rank. Elsewhere `dst` is not used and should be empty.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Rank`], and [`Misuse::Length`] at the root unless `dst` has `n` times the length of `src`.
    pub fn gather<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        root: usize,
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        self.has(Op::Gather, "root", root)?;
        if root != self.rank() {
            return self.moving(Op::Gather, Bufs::In(src), Some(root));
        }
        self.parts(Op::Gather, "destination", dst.count(), src.count())?;
        self.moving(Op::Gather, Bufs::Both(src, dst), Some(root))
    }

    /// Give part `r` of `root`'s `src` to rank `r`, in `dst`. Elsewhere `src` is not used and should be empty.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Rank`], and [`Misuse::Length`] at the root unless `src` has `n` times the length of `dst`.
    pub fn scatter<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        root: usize,
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        self.has(Op::Scatter, "root", root)?;
        let part = dst.count();
        let bufs = if root == self.rank() {
            self.parts(Op::Scatter, "source", src.count(), part)?;
            Bufs::Both(src, dst)
        } else {
            Bufs::Out(dst)
        };
        let mut call = Call::new(Op::Scatter, bufs);
        (call.info.count, call.info.root) = (part, Some(root));
        self.checked(call)
    }

    /// Give part `r` of `src` to rank `r`; `dst` ends with one part from each rank, by rank.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Length`] unless both have the same length, a multiple of `n`.
    pub fn all_to_all<'a>(&self, src: impl Into<View<'a>>, dst: impl Into<ViewMut<'a>>) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        length(Op::AllToAll, "destination", dst.count(), src.count(), " as in the source")?;
        let part = self.part_of(Op::AllToAll, "source", src.count())?;
        let mut call = Call::new(Op::AllToAll, Bufs::Both(src, dst));
        call.info.count = part;
        self.checked(call)
    }

    /// As [`all_to_all`](Self::all_to_all), where the parts that arrive replace those that leave.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Length`] unless the length of `buf` is a multiple of `n`.
    pub fn all_to_all_in_place<'a>(&self, buf: impl Into<ViewMut<'a>>) -> Result<()> {
        let buf = buf.into();
        let part = self.part_of(Op::AllToAll, "buffer", buf.count())?;
        let mut call = Call::new(Op::AllToAll, Bufs::InPlace(buf));
        call.info.count = part;
        self.checked(call)
    }

    /// As [`all_to_all`](Self::all_to_all), where this rank gives `send_counts[r]` elements to rank `r` and gets
    /// `recv_counts[r]` from it, each side's parts one after the other.
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Counts`] and [`Misuse::Length`] when lengths do not fit.
    pub fn all_to_all_v<'a>(
        &self,
        src: impl Into<View<'a>>,
        send_counts: &[usize],
        dst: impl Into<ViewMut<'a>>,
        recv_counts: &[usize],
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        let out = self.total(Op::AllToAll, send_counts)?;
        let into = self.total(Op::AllToAll, recv_counts)?;
        length(Op::AllToAll, "source", src.count(), out, ", the sum of send_counts")?;
        length(Op::AllToAll, "destination", dst.count(), into, ", the sum of recv_counts")?;
        let (me, own) = (self.rank(), send_counts[self.rank()]);
        length(
            Op::AllToAll,
            "destination",
            recv_counts[me],
            own,
            " of this rank's own: its two entries must agree",
        )?;
        let mut call = Call::new(Op::AllToAll, Bufs::Both(src, dst));
        (call.counts, call.recv_counts) = (send_counts, recv_counts);
        self.checked(call)
    }

    /// Send `src` to rank `to`, which calls [`recv`](Self::recv) with the same tag, type and length.
    ///
    /// Returns when `src` may be used again, which may be before it is received. Sends of one tag arrive in order;
    /// a receive may ask for a later tag first. Two ranks that both send long buffers before they receive wait for
    /// each other until the deadline: use [`sendrecv`](Self::sendrecv).
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Rank`], [`Misuse::Oneself`], [`Misuse::Tag`].
    pub fn send<'a>(&self, src: impl Into<View<'a>>, to: usize, tag: u32) -> Result<()> {
        let src = src.into();
        self.other(Op::Send, "destination", to, tag, "send to")?;
        let to = [to];
        let mut call = Call::new(Op::Send, Bufs::In(src));
        (call.info.root, call.info.tag, call.counts) = (Some(to[0]), Some(tag), &to);
        self.checked(call)
    }

    /// Receive into `dst` what rank `from` [`send`](Self::send)s with `tag`.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`crate::Error::Mismatch`] when what was sent has another type or length.
    pub fn recv<'a>(&self, dst: impl Into<ViewMut<'a>>, from: usize, tag: u32) -> Result<()> {
        let dst = dst.into();
        self.other(Op::Recv, "source", from, tag, "receive from")?;
        let from = [from];
        let mut call = Call::new(Op::Recv, Bufs::Out(dst));
        (call.info.root, call.info.tag, call.recv_counts) = (Some(from[0]), Some(tag), &from);
        self.checked(call)
    }

    /// Send `src` to rank `to` and receive `dst` from rank `from` at once, which may be the same rank: the step of a
    /// ring, with no order to get wrong.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn sendrecv<'a>(
        &self,
        src: impl Into<View<'a>>,
        to: usize,
        dst: impl Into<ViewMut<'a>>,
        from: usize,
        tag: u32,
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        self.other(Op::SendRecv, "destination", to, tag, "send to")?;
        self.other(Op::SendRecv, "source", from, tag, "receive from")?;
        let (to, from) = ([to], [from]);
        let mut call = Call::new(Op::SendRecv, Bufs::Both(src, dst));
        (call.info.root, call.info.tag) = (Some(from[0]), Some(tag));
        (call.counts, call.recv_counts) = (&to, &from);
        self.checked(call)
    }

    /// Return once every rank has called this.
    ///
    /// # Errors
    /// See [`Group`].
    pub fn barrier(&self) -> Result<()> {
        self.checked(Call::new(Op::Barrier, Bufs::None))
    }
}

fn length(op: Op, buffer: &'static str, got: usize, expected: usize, why: &'static str) -> Result<()> {
    if got == expected { Ok(()) } else { Err(misuse(op, Misuse::Length { buffer, expected, got, why })) }
}
