//! Operations in which every rank has a part for every other.

use super::{Group, length};
use crate::{
    Op, Result, View, ViewMut,
    backend::{Bufs, Call},
};

impl Group {
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
        (call.counts, call.recv_counts) = (send_counts, recv_counts);
        self.checked(&mut call)
    }
}
