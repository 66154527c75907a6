//! Operations that copy parts from rank to rank: broadcast, gather, scatter.

use super::{Group, length};
use crate::{
    Op, Result, View, ViewMut,
    backend::{Bufs, Call},
};

impl Group {
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
        (call.info.count, call.info.root) = (part, Some(root));
        self.checked(&mut call)
    }
}
