//! The operations: each checks its arguments, then makes one call. Those that reduce, and the barrier; those that
//! copy parts from rank to rank; those in which every rank has a part for every other; those between two ranks.
//!
//! `n` stands for the group's size and `r` for a rank. Counts are in elements; buffers may have any length, also 0.

mod holders;

use super::{Group, misuse};
use crate::{
    CallInfo, MAX_TAG, Misuse, Op, Place, ReduceOp, Result, View, ViewMut, Wire,
    backend::{Bufs, Call},
};

impl Group {
    /// Combine `buf` across ranks; every rank ends with the result in `buf`.
    ///
    /// `buf` has the same type and length on every rank. Element `i` of the result is `op` over the elements `i` of all ranks.
    ///
    /// ```
    /// # use comity::ReduceOp;
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut x = [1f32, group.rank() as f32];
    /// group.all_reduce(&mut x, ReduceOp::Sum)?;
    /// assert_eq!(x, [2.0, 1.0]);
    /// group.all_reduce(&mut x[1..], ReduceOp::Max)?; // a part of a buffer
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Reduction`] when `op` is not defined on the type.
    pub fn all_reduce<'a>(&self, buf: impl Into<ViewMut<'a>>, op: ReduceOp) -> Result<()> {
        let buf = buf.into();
        self.reducing(Op::AllReduce, Bufs::InPlace(buf), op, None)
    }

    /// Combine `src` across ranks into `dst`, and leave `src` as it is.
    ///
    /// Both have the same type and length, on every rank.
    ///
    /// ```
    /// # use comity::ReduceOp;
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let (mine, mut sum) = ([group.rank() as i64 + 1], [0i64]);
    /// group.all_reduce_into(&mine, &mut sum, ReduceOp::Sum)?;
    /// assert_eq!(sum, [3]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce); [`Misuse::Length`] when the lengths differ.
    pub fn all_reduce_into<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        op: ReduceOp,
    ) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        length(Op::AllReduce, "destination", dst.count(), src.count(), " as in the source")?;
        self.reducing(Op::AllReduce, Bufs::Both(src, dst), op, None)
    }

    /// Combine `buf` across ranks into `root`'s `buf`; the others' stay as they are.
    ///
    /// `buf` has the same type and length on every rank.
    ///
    /// ```
    /// # use comity::ReduceOp;
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut x = [1u32, 2];
    /// group.reduce(&mut x, ReduceOp::Sum, 0)?;
    /// assert_eq!(x, if group.rank() == 0 { [2, 4] } else { [1, 2] });
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce); [`Misuse::Rank`] for a root outside the group.
    pub fn reduce<'a>(&self, buf: impl Into<ViewMut<'a>>, op: ReduceOp, root: usize) -> Result<()> {
        let buf = buf.into();
        self.has(Op::Reduce, "root", root)?;
        self.reducing(Op::Reduce, Bufs::InPlace(buf), op, Some(root))
    }

    /// Combine `src` across ranks; rank `r` ends with part `r` of the result in `dst`.
    ///
    /// `src` has `n` parts of the length of `dst`, one after the other.
    ///
    /// ```
    /// # use comity::ReduceOp;
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let (src, mut dst) = ([1f32, 2.0, 3.0, 4.0], [0f32; 2]);
    /// group.reduce_scatter(&src, &mut dst, ReduceOp::Sum)?;
    /// assert_eq!(dst, if group.rank() == 0 { [2.0, 4.0] } else { [6.0, 8.0] });
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce); [`Misuse::Length`] unless `src` has `n` times the length of `dst`.
    pub fn reduce_scatter<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        op: ReduceOp,
    ) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        self.parts(Op::ReduceScatter, "source", src.count(), dst.count())?;
        let part = dst.count();
        self.reducing_parts(Bufs::Both(src, dst), op, part, &[])
    }

    /// Reduces as [`reduce_scatter`](Self::reduce_scatter), with the result in part `r` of `buf`; the rest of it stays as it is.
    ///
    /// ```
    /// # use comity::ReduceOp;
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut buf = [1i32, 2];
    /// group.reduce_scatter_in_place(&mut buf, ReduceOp::Product)?;
    /// assert_eq!(buf, if group.rank() == 0 { [1, 2] } else { [1, 4] });
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce); [`Misuse::Length`] unless the length of `buf` is a multiple of `n`.
    pub fn reduce_scatter_in_place<'a>(&self, buf: impl Into<ViewMut<'a>>, op: ReduceOp) -> Result<()> {
        let buf = buf.into();
        let part = self.part_of(Op::ReduceScatter, "buffer", buf.count())?;
        self.reducing_parts(Bufs::OwnOut(buf), op, part, &[])
    }

    /// Reduces as [`reduce_scatter`](Self::reduce_scatter), where part `r` has `counts[r]` elements.
    ///
    /// `counts` has one entry for each rank and is the same on all. `src` has their sum of elements, `dst` this rank's entry.
    ///
    /// ```
    /// # use comity::ReduceOp;
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let counts = [1, 3];
    /// let mut dst = vec![0u8; counts[group.rank()]];
    /// group.reduce_scatter_v(&[1u8, 2, 3, 4], &mut dst, &counts, ReduceOp::Sum)?;
    /// assert_eq!(dst, if group.rank() == 0 { vec![2] } else { vec![4, 6, 8] });
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce); [`Misuse::Counts`] and [`Misuse::Length`] when lengths do not fit.
    pub fn reduce_scatter_v<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
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

    /// Return once every rank has called this.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// // ... write this rank's part of a checkpoint ...
    /// group.barrier()?;
    /// // ... all parts are written ...
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call: see [`Group`].
    pub fn barrier(&self) -> Result<()> {
        self.checked(&mut Call::new(Op::Barrier, Bufs::None))
    }

    /// Copy `root`'s `buf` to every rank.
    ///
    /// `buf` has the same type and length on every rank.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut x = [group.rank() as u64 + 7];
    /// group.broadcast(&mut x, 1)?;
    /// assert_eq!(x, [8]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Rank`](crate::Misuse::Rank) for a root outside the group.
    pub fn broadcast<'a>(&self, buf: impl Into<ViewMut<'a>>, root: usize) -> Result<()> {
        self.has(Op::Broadcast, "root", root)?;
        self.moving(Op::Broadcast, Bufs::InPlace(buf.into()), Some(root))
    }

    /// Concatenate every rank's `src` in `dst`, by rank: `dst[r * src.len()..]` holds what rank `r` gave.
    ///
    /// `src` has the same type and length on every rank, and `dst` has `n` times that length.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut all = [0u32; 2];
    /// group.all_gather(&[10 * group.rank() as u32], &mut all)?;
    /// assert_eq!(all, [0, 10]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Length`](crate::Misuse::Length) unless `dst` has `n` times the length of `src`.
    pub fn all_gather<'a>(&self, src: impl Into<View<'a>>, dst: impl Into<ViewMut<'a>>) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        self.parts(Op::AllGather, "destination", dst.count(), src.count())?;
        self.moving(Op::AllGather, Bufs::Both(src, dst), None)
    }

    /// Gathers as [`all_gather`](Self::all_gather), with this rank's part in its place in `buf` already.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut all = [0u32; 2];
    /// all[group.rank()] = 5;
    /// group.all_gather_in_place(&mut all)?;
    /// assert_eq!(all, [5, 5]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Length`](crate::Misuse::Length) unless the length of `buf` is a multiple of `n`.
    pub fn all_gather_in_place<'a>(&self, buf: impl Into<ViewMut<'a>>) -> Result<()> {
        let buf = buf.into();
        let part = self.part_of(Op::AllGather, "buffer", buf.count())?;
        let mut call = Call::new(Op::AllGather, Bufs::OwnIn(buf));
        call.info.count = part;
        self.checked(&mut call)
    }

    /// Gathers as [`all_gather`](Self::all_gather), where rank `r` gives `counts[r]` elements.
    ///
    /// `counts` has one entry for each rank and is the same on all. `src` has this rank's entry of elements, `dst` their sum.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let counts = [2, 1];
    /// let mine = vec![group.rank() as f64; counts[group.rank()]];
    /// let mut all = [9f64; 3];
    /// group.all_gather_v(&mine, &mut all, &counts)?;
    /// assert_eq!(all, [0.0, 0.0, 1.0]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Counts`](crate::Misuse::Counts) and [`Misuse::Length`](crate::Misuse::Length) when lengths do not fit.
    pub fn all_gather_v<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        counts: &[usize],
    ) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        let total = self.total(Op::AllGather, counts)?;
        length(Op::AllGather, "source", src.count(), counts[self.rank()], ", this rank's entry of counts")?;
        length(Op::AllGather, "destination", dst.count(), total, ", the sum of counts")?;
        let mut call = Call::new(Op::AllGather, Bufs::Both(src, dst));
        call.info.count = total;
        call.counts = counts;
        self.checked(&mut call)
    }

    /// Concatenate every rank's `src` in `root`'s `dst`, by rank.
    ///
    /// `src` has the same type and length on every rank. At the root `dst` has `n` times that length; elsewhere it is not used and may be empty.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut all = vec![0i32; if group.rank() == 0 { 2 } else { 0 }];
    /// group.gather(&[group.rank() as i32], &mut all, 0)?;
    /// assert_eq!(all, if group.rank() == 0 { vec![0, 1] } else { vec![] });
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Rank`](crate::Misuse::Rank) for a root outside the group; at the root [`Misuse::Length`](crate::Misuse::Length) unless `dst` has `n` times
    /// the length of `src`.
    pub fn gather<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        root: usize,
    ) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        self.has(Op::Gather, "root", root)?;
        if root != self.rank() {
            return self.moving(Op::Gather, Bufs::In(src), Some(root));
        }
        self.parts(Op::Gather, "destination", dst.count(), src.count())?;
        self.moving(Op::Gather, Bufs::Both(src, dst), Some(root))
    }

    /// Give part `r` of `root`'s `src` to rank `r`, in `dst`.
    ///
    /// `dst` has the same type and length on every rank. At the root `src` has `n` times that length; elsewhere it is not used and may be empty.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let src = if group.rank() == 0 { vec![1u16, 2] } else { vec![] };
    /// let mut mine = [0u16];
    /// group.scatter(&src, &mut mine, 0)?;
    /// assert_eq!(mine, [group.rank() as u16 + 1]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Rank`](crate::Misuse::Rank) for a root outside the group; at the root [`Misuse::Length`](crate::Misuse::Length) unless `src` has `n` times
    /// the length of `dst`.
    pub fn scatter<'a>(
        &self,
        src: impl Into<View<'a>>,
        dst: impl Into<ViewMut<'a>>,
        root: usize,
    ) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        self.has(Op::Scatter, "root", root)?;
        let part = dst.count();
        let bufs = if root == self.rank() {
            self.parts(Op::Scatter, "source", src.count(), part)?;
            Bufs::Both(src, dst)
        } else {
            Bufs::Out(dst)
        };
        let mut call = Call::new(Op::Scatter, bufs);
        call.info.count = part;
        call.info.root = Some(root);
        self.checked(&mut call)
    }

    /// Give part `r` of `src` to rank `r`; `dst` ends with one part from each rank, by rank.
    ///
    /// Both have the same type and length on every rank: `n` equal parts.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let r = group.rank() as i32;
    /// let mut dst = [0; 2];
    /// group.all_to_all(&[10 * r, 10 * r + 1], &mut dst)?;
    /// assert_eq!(dst, [r, 10 + r]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Length`](crate::Misuse::Length) unless both have the same length, a multiple of `n`.
    pub fn all_to_all<'a>(&self, src: impl Into<View<'a>>, dst: impl Into<ViewMut<'a>>) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        length(Op::AllToAll, "destination", dst.count(), src.count(), " as in the source")?;
        let part = self.part_of(Op::AllToAll, "source", src.count())?;
        let mut call = Call::new(Op::AllToAll, Bufs::Both(src, dst));
        call.info.count = part;
        self.checked(&mut call)
    }

    /// Exchanges as [`all_to_all`](Self::all_to_all), where the parts that arrive replace those that leave.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let r = group.rank() as i32;
    /// let mut buf = [10 * r, 10 * r + 1];
    /// group.all_to_all_in_place(&mut buf)?;
    /// assert_eq!(buf, [r, 10 + r]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Length`](crate::Misuse::Length) unless the length of `buf` is a multiple of `n`.
    pub fn all_to_all_in_place<'a>(&self, buf: impl Into<ViewMut<'a>>) -> Result<()> {
        let buf = buf.into();
        let part = self.part_of(Op::AllToAll, "buffer", buf.count())?;
        let mut call = Call::new(Op::AllToAll, Bufs::InPlace(buf));
        call.info.count = part;
        self.checked(&mut call)
    }

    /// Exchanges as [`all_to_all`](Self::all_to_all), where this rank gives `send_counts[r]` elements to rank `r` and gets `recv_counts[r]` from it.
    ///
    /// Each buffer has its parts one after the other, and the sum of its counts as length. A rank sends as much as the other expects:
    /// `send_counts[b]` on rank `a` equals `recv_counts[a]` on rank `b`.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// // Each rank keeps one element; rank 0 gives two more to rank 1.
    /// let (send, recv) = if group.rank() == 0 { ([1, 2], [1, 0]) } else { ([0, 1], [2, 1]) };
    /// let src = vec![group.rank() as u8; send.iter().sum()];
    /// let mut dst = vec![9u8; recv.iter().sum()];
    /// group.all_to_all_v(&src, &send, &mut dst, &recv)?;
    /// assert_eq!(dst, if group.rank() == 0 { vec![0] } else { vec![0, 0, 1] });
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Counts`](crate::Misuse::Counts) and [`Misuse::Length`](crate::Misuse::Length) when lengths do not fit.
    pub fn all_to_all_v<'a>(
        &self,
        src: impl Into<View<'a>>,
        send_counts: &[usize],
        dst: impl Into<ViewMut<'a>>,
        recv_counts: &[usize],
    ) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        let out = self.total(Op::AllToAll, send_counts)?;
        let into = self.total(Op::AllToAll, recv_counts)?;
        length(Op::AllToAll, "source", src.count(), out, ", the sum of send_counts")?;
        length(Op::AllToAll, "destination", dst.count(), into, ", the sum of recv_counts")?;
        let me = self.rank();
        let own = send_counts[self.rank()];
        length(
            Op::AllToAll,
            "destination",
            recv_counts[me],
            own,
            " of this rank's own: its two entries must agree",
        )?;
        let mut call = Call::new(Op::AllToAll, Bufs::Both(src, dst));
        call.counts = send_counts;
        call.recv_counts = recv_counts;
        self.checked(&mut call)
    }

    /// Send `src` to rank `to`, which calls [`recv`](Self::recv) with the same tag, type and length.
    ///
    /// It returns when you may use `src` again, which may be before `to` has received it. Sends of one tag arrive in order; a receive may ask
    /// for a later tag first. If two ranks both send long buffers before they receive, each waits for the other until the limit: use
    /// [`sendrecv`](Self::sendrecv).
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// const TAG: u32 = 3;
    /// let mut x = [0f32; 4];
    /// if group.rank() == 0 {
    ///     group.send(&[1f32, 2.0, 3.0, 4.0], 1, TAG)?;
    /// } else {
    ///     group.recv(&mut x, 0, TAG)?;
    ///     assert_eq!(x, [1.0, 2.0, 3.0, 4.0]);
    /// }
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of every call ([`Group`]); [`Misuse::Rank`](crate::Misuse::Rank) for a rank outside the group, [`Misuse::Oneself`](crate::Misuse::Oneself) for this rank, [`Misuse::Tag`](crate::Misuse::Tag) for a tag
    /// above [`MAX_TAG`](crate::MAX_TAG).
    pub fn send<'a>(&self, src: impl Into<View<'a>>, to: usize, tag: u32) -> Result<()> {
        let src = src.into();
        self.other(Op::Send, "destination", to, tag, "send to")?;
        let to = [to];
        let mut call = Call::new(Op::Send, Bufs::In(src));
        call.info.root = Some(to[0]);
        call.info.tag = Some(tag);
        call.counts = &to;
        self.checked(&mut call)
    }

    /// Receive into `dst` what rank `from` [`send`](Self::send)s with `tag`.
    ///
    /// `dst` has the type and length of what is sent.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut x = [0u8; 3];
    /// match group.rank() {
    ///     0 => group.send(b"abc", 1, 7)?,
    ///     _ => {
    ///         group.recv(&mut x, 0, 7)?;
    ///         assert_eq!(&x, b"abc");
    ///     }
    /// }
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`send`](Self::send); [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) when what was sent has another type or length.
    pub fn recv<'a>(&self, dst: impl Into<ViewMut<'a>>, from: usize, tag: u32) -> Result<()> {
        let dst = dst.into();
        self.other(Op::Recv, "source", from, tag, "receive from")?;
        let from = [from];
        let mut call = Call::new(Op::Recv, Bufs::Out(dst));
        call.info.root = Some(from[0]);
        call.info.tag = Some(tag);
        call.recv_counts = &from;
        self.checked(&mut call)
    }

    /// Send `src` to rank `to` and receive `dst` from rank `from` at once: the step of a ring, with no order to get wrong.
    ///
    /// `to` and `from` may be the same rank. `src` has the type and length that `to` expects, `dst` those of what `from` sends.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let (n, r) = (group.size(), group.rank());
    /// let mut left = [9u64];
    /// group.sendrecv(&[r as u64], (r + 1) % n, &mut left, (r + n - 1) % n, 0)?;
    /// assert_eq!(left, [(r as u64 + 1) % 2]);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`recv`](Self::recv).
    pub fn sendrecv<'a>(
        &self,
        src: impl Into<View<'a>>,
        to: usize,
        dst: impl Into<ViewMut<'a>>,
        from: usize,
        tag: u32,
    ) -> Result<()> {
        let src = src.into();
        let dst = dst.into();
        self.other(Op::SendRecv, "destination", to, tag, "send to")?;
        self.other(Op::SendRecv, "source", from, tag, "receive from")?;
        let to = [to];
        let from = [from];
        let mut call = Call::new(Op::SendRecv, Bufs::Both(src, dst));
        call.info.root = Some(from[0]);
        call.info.tag = Some(tag);
        call.counts = &to;
        call.recv_counts = &from;
        self.checked(&mut call)
    }

    /// Give all ranks the tensors of those that hold them, with the same bits on all. Only what differs is sent.
    ///
    /// Every rank calls this with tensors of the same types and lengths in the same order. `holds` says that this rank's are right: true on
    /// those that went on training, false on those that have just joined. The lowest rank that holds them decides; of the others each tensor
    /// with other bytes is overwritten. Ranks compare SHA-256 digests, then each rank that lacks a tensor gets it from one of those that have it.
    ///
    /// Returns the number of bytes that this rank received.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two, of which rank 0 has trained:
    /// let (mut weights, mut step) = ([group.rank() as f32; 100], [7u64]);
    /// let received = group.sync(&mut [(&mut weights).into(), (&mut step).into()], group.rank() == 0)?;
    /// assert_eq!((weights, step), ([0.0; 100], [7]));
    /// assert_eq!(received, if group.rank() == 0 { 0 } else { 400 });
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_gather`](Self::all_gather), [`broadcast`](Self::broadcast) and [`send`](Self::send); [`Misuse::Place`] for tensors
    /// that are not in host memory; [`ErrorKind::Config`](crate::ErrorKind::Config) on all ranks where none holds them.
    pub fn sync(&self, tensors: &mut [ViewMut<'_>], holds: bool) -> Result<usize> {
        holders::sync(self, tensors, holds)
    }

    /// Combine `buf` as [`all_reduce`](Self::all_reduce), and leave it as it was where the call fails: then it can be repeated in the group that
    /// follows ([`reform`](Self::reform)). This takes a copy of `buf`.
    ///
    /// ```
    /// use comity::{Group, ReduceOp};
    ///
    /// let group = Group::single();
    /// group.abort("no more data");
    /// let mut x = [1f32, 2.0];
    /// assert!(group.all_reduce_or_keep(&mut x, ReduceOp::Sum).is_err());
    /// assert_eq!(x, [1.0, 2.0]);
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce); [`Misuse::Place`] for a buffer that is not in host memory.
    pub fn all_reduce_or_keep<'a>(&self, buf: impl Into<ViewMut<'a>>, op: ReduceOp) -> Result<()> {
        let mut buf = buf.into();
        let place = || misuse(Op::AllReduce, Misuse::Place(format!("{:?}", buf.place())));
        let kept = buf.bytes().ok_or_else(place)?.to_vec();
        let out = self.all_reduce(buf.reborrow(), op);
        if out.is_err() {
            buf.restore(&kept);
        }
        out
    }

    fn moving(&self, op: Op, bufs: Bufs<'_>, root: Option<usize>) -> Result<()> {
        let mut call = Call::new(op, bufs);
        call.info.root = root;
        self.checked(&mut call)
    }

    fn reducing(&self, op: Op, bufs: Bufs<'_>, reduce: ReduceOp, root: Option<usize>) -> Result<()> {
        let mut call = Call::new(op, bufs);
        call.info.reduce = Some(reduce);
        call.info.root = root;
        self.checked(&mut call)
    }

    fn reducing_parts(&self, bufs: Bufs<'_>, reduce: ReduceOp, count: usize, counts: &[usize]) -> Result<()> {
        let mut call = Call::new(Op::ReduceScatter, bufs);
        call.info.reduce = Some(reduce);
        call.info.count = count;
        call.counts = counts;
        self.checked(&mut call)
    }

    /// Checks the rules of every call, then makes it.
    fn checked(&self, call: &mut Call<'_>) -> Result<()> {
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
        let (place, other) = match &call.bufs {
            Bufs::None => (None, None),
            Bufs::In(v) => (Some(v.place()), None),
            Bufs::Out(v) | Bufs::InPlace(v) | Bufs::OwnIn(v) | Bufs::OwnOut(v) => (Some(v.place()), None),
            Bufs::Both(s, d) => (Some(s.place()), Some(d.place())),
        };
        let unreached = |place: Option<Place>| place.filter(|place| !self.reaches(*place));
        if let Some(place) = unreached(place).or_else(|| unreached(other)) {
            return Err(misuse(op, Misuse::Place(format!("{place:?}"))));
        }
        if let Some(wire) = self.wire {
            let place = [place, other].into_iter().flatten().find(|place| *place != Place::Host);
            fits(wire, &call.info, place).map_err(|unfit| misuse(op, unfit))?;
        }
        if let (Some(a), Some(b)) = (place, other)
            && a != b
        {
            return Err(misuse(op, Misuse::Places(format!("{a:?}"), format!("{b:?}"))));
        }
        self.call(call)
    }

    fn reaches(&self, place: Place) -> bool {
        place.device().is_none_or(|(device, _)| self.device() == Some(device))
    }

    fn has(&self, op: Op, what: &'static str, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(misuse(op, Misuse::Rank { what, rank, size: self.size() }))
    }

    fn other(&self, op: Op, what: &'static str, rank: usize, tag: u32, verb: &'static str) -> Result<()> {
        self.has(op, what, rank)?;
        if rank == self.rank() {
            return Err(misuse(op, Misuse::Oneself(rank, verb)));
        }
        if tag > MAX_TAG {
            return Err(misuse(op, Misuse::Tag(tag)));
        }
        Ok(())
    }

    fn parts(&self, op: Op, buffer: &'static str, got: usize, part: usize) -> Result<()> {
        let expected = part.saturating_mul(self.size());
        length(op, buffer, got, expected, ", one part for each rank")
    }

    fn part_of(&self, op: Op, buffer: &'static str, got: usize) -> Result<usize> {
        let part = got / self.size();
        length(op, buffer, got, part * self.size(), " or another multiple of the group's size")?;
        Ok(part)
    }

    fn total(&self, op: Op, counts: &[usize]) -> Result<usize> {
        if counts.len() != self.size() {
            return Err(misuse(op, Misuse::Counts { got: counts.len(), size: self.size() }));
        }
        Ok(counts.iter().fold(0usize, |a, &b| a.saturating_add(b)))
    }
}

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

fn length(op: Op, buffer: &'static str, got: usize, expected: usize, why: &'static str) -> Result<()> {
    if got == expected { Ok(()) } else { Err(misuse(op, Misuse::Length { buffer, expected, got, why })) }
}
