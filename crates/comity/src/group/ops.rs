//! The operations: each checks its arguments, then makes one call. Here are those that reduce, and the barrier.
//!
//! `n` stands for the group's size and `r` for a rank. Counts are in elements; buffers may have any length, also 0.

mod all_to_all;
mod checks;
mod gather;
mod holders;
mod pair;

use super::{Group, misuse};
use crate::{
    Misuse, Op, ReduceOp, Result, View, ViewMut,
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
}

fn length(op: Op, buffer: &'static str, got: usize, expected: usize, why: &'static str) -> Result<()> {
    if got == expected { Ok(()) } else { Err(misuse(op, Misuse::Length { buffer, expected, got, why })) }
}
