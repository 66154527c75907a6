//! Operations between two ranks.

use super::Group;
use crate::{
    Op, Result, View, ViewMut,
    backend::{Bufs, Call},
};

impl Group {
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
        (call.info.root, call.info.tag, call.counts) = (Some(to[0]), Some(tag), &to);
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
    /// The errors of [`send`](Self::send); [`Error::Mismatch`](crate::Error::Mismatch) when what was sent has another type or length.
    pub fn recv<'a>(&self, dst: impl Into<ViewMut<'a>>, from: usize, tag: u32) -> Result<()> {
        let dst = dst.into();
        self.other(Op::Recv, "source", from, tag, "receive from")?;
        let from = [from];
        let mut call = Call::new(Op::Recv, Bufs::Out(dst));
        (call.info.root, call.info.tag, call.recv_counts) = (Some(from[0]), Some(tag), &from);
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
        (call.info.root, call.info.tag) = (Some(from[0]), Some(tag));
        (call.counts, call.recv_counts) = (&to, &from);
        self.checked(&mut call)
    }
}
