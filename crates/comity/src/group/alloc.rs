//! Buffers that the ranks of this host read where they lie.

use super::Group;
use crate::{Element, LinkKind, SharedBuffer, sys::SharedMemory};

/// Shorter messages are never read where they lie, so shorter buffers need not be shared.
const LEAST: usize = 64 << 10;

impl Group {
    /// `count` elements of zeros in memory that the other ranks of this host map, to read only.
    ///
    /// Operations on it, or on a part of it, need no copy within the host: a rank reads what it needs straight from the sender's buffer,
    /// adds it up or puts it in its place, and gives it back. Results have the same bits as with any other buffer. Use it for large
    /// buffers that live long; the peers map each of them once.
    ///
    /// It is ordinary memory where nobody could read it (the group has no other rank on this host, the buffer is short), where the limit
    /// `COMITY_SHARED_BUFFERS` is reached, and where the system gives none; [`SharedBuffer::why_not`] says so.
    ///
    /// ```
    /// # use comity::ReduceOp;
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut gradients = group.alloc::<f32>(1 << 16);
    /// gradients.fill(1.0);
    /// group.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// assert_eq!(gradients[0], 2.0);
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the buffer is longer than memory can be, as a vector does.
    pub fn alloc<T: Element>(&self, count: usize) -> SharedBuffer<T> {
        let bytes = count.saturating_mul(size_of::<T>());
        let reads = |k: &Option<LinkKind>| k.and_then(LinkKind::about).is_some_and(|a| a.reads_buffers);
        if bytes < LEAST {
            return SharedBuffer::private(count, format!("it is shorter than {} KiB", LEAST >> 10));
        }
        if !self.link_kinds().iter().any(reads) {
            let why = "this group has no link over shared memory: it has no other rank on this host, or may not use it";
            return SharedBuffer::private(count, why.into());
        }
        match SharedMemory::new(bytes) {
            Ok(memory) => SharedBuffer::shared(count, memory),
            Err(e) => SharedBuffer::private(count, format!("no more memory can be shared: {e}")),
        }
    }
}
