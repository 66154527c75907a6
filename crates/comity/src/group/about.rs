//! Properties of a group: ranks, links, limit, counters; its algorithm, where the user chooses one, and buffers that the ranks of its host read
//! where they lie.

use super::Group;
use crate::{
    Element, LinkKind, Peer, SharedBuffer, Stats, Wire, settings::MAX_TIMEOUT, sync::lock, sys::SharedMemory,
};
use comity_plan::Algorithm;
use std::time::Duration;

/// Shorter messages are never read where they lie, so shorter buffers need not be shared.
const LEAST: usize = 64 << 10;

impl Group {
    /// This process's (or thread's) place in the group, from 0.
    ///
    /// ```
    /// let group = comity::Group::single();
    /// assert_eq!((group.rank(), group.size()), (0, 1));
    /// ```
    #[inline]
    pub fn rank(&self) -> usize {
        self.core.rank
    }

    /// The number of ranks in the group, at least 1.
    ///
    /// ```
    /// assert_eq!(comity::Group::local(3)?[0].size(), 3);
    /// # Ok::<(), comity::Error>(())
    /// ```
    #[inline]
    pub fn size(&self) -> usize {
        self.core.peers.len()
    }

    /// The same group; calls through the returned handle fail after `limit` (default: 5 minutes).
    ///
    /// A call that runs out of time ends the group, since nobody can know how far the others got. With `Duration::MAX` a call waits as
    /// long as all members live, such as for a rank that prepares a data set. A rank that dies or
    /// [falls silent](crate::Config::detection) ends it all the same.
    ///
    /// ```
    /// # use comity::Group;
    /// # let g = Group::single();
    /// g.with_timeout(std::time::Duration::from_secs(5)).barrier()?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    #[must_use]
    pub fn with_timeout(&self, limit: Duration) -> Self {
        Self { limit: limit.min(MAX_TIMEOUT), ..self.clone() }
    }

    /// The same group; in calls through the returned handle elements cross the links in a smaller form, for slow networks: see [`Wire`] for what
    /// each loses. `None` takes them as they are again.
    ///
    /// It is for [`all_reduce`](Self::all_reduce), [`reduce_scatter`](Self::reduce_scatter), [`all_gather`](Self::all_gather) and their other
    /// forms, for sums and averages of `f32`, `f16` and `bf16` in host memory. Any other call is [`Misuse::Wire`](crate::Misuse::Wire). All ranks
    /// name the same wire, or are told so ([`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch)). A group of one rank rounds nothing.
    ///
    /// Each contribution is rounded once, and the sum of an all_reduce once more. It is a sum of `f32` in the order of ranks, and the same bits on
    /// all ranks. An all_gather rounds this rank's part in its own result too.
    ///
    /// ```
    /// # use comity::{ReduceOp, Wire};
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two:
    /// let mut gradient = [0.1f32; 1000];
    /// group.with_wire(Wire::Bf16).all_reduce(&mut gradient, ReduceOp::Avg)?;
    /// assert!(gradient.iter().all(|x| (x - 0.1).abs() < 0.1 / 128.0));
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    #[must_use]
    pub fn with_wire(&self, wire: impl Into<Option<Wire>>) -> Self {
        Self { wire: wire.into(), ..self.clone() }
    }

    /// A handle whose calls are parts of one that moves objects.
    pub(crate) fn of_objects(&self) -> Self {
        Self { objects: true, ..self.clone() }
    }

    /// Returns the time limit of a call through this handle, `Duration::MAX` where there is no limit; see [`with_timeout`](Self::with_timeout).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let group = comity::Group::single();
    /// assert_eq!(group.timeout(), Duration::from_secs(300));
    /// assert_eq!(group.with_timeout(Duration::from_secs(5)).timeout(), Duration::from_secs(5));
    /// assert_eq!(group.with_timeout(Duration::MAX).timeout(), Duration::MAX);
    /// ```
    pub fn timeout(&self) -> Duration {
        if self.limit < MAX_TIMEOUT { self.limit } else { Duration::MAX }
    }

    /// The members by rank, as errors name them: one [`Peer`] for each rank.
    ///
    /// ```
    /// let group = comity::Group::single();
    /// for member in group.members() {
    ///     println!("{member}"); // rank 0 (host node7, pid 4711)
    /// }
    /// assert_eq!(group.members().len(), group.size());
    /// ```
    pub fn members(&self) -> &[Peer] {
        &self.core.peers
    }

    /// The host of each rank, numbered in order of first appearance; none where the group's backend does not know.
    pub(crate) fn hosts(&self) -> Option<Vec<usize>> {
        let world = self.core.subgroup_factory.as_ref()?.world.upgrade()?;
        // A group of some members numbers its ranks in its own way.
        Some(world.hosts().to_vec()).filter(|hosts| hosts.len() == self.size())
    }

    /// The kind of link to each rank, by rank; `None` for this rank itself.
    ///
    /// If no call has needed a link yet, it is the kind that is tried first.
    ///
    /// ```
    /// use comity::{Group, LinkKind};
    ///
    /// let groups = Group::local(2)?;
    /// assert_eq!(groups[0].link_kinds(), [None, Some(LinkKind::Local)]);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn link_kinds(&self) -> Vec<Option<LinkKind>> {
        let made = self.core.abort_handle.as_ref().map(|a| a.status.links().kinds()).unwrap_or_default();
        let made = made.into_iter().chain(std::iter::repeat(None));
        self.core.kinds.iter().zip(made).map(|(likely, made)| made.or(*likely)).collect()
    }

    /// The number of connections of the link to each rank, by rank; `None` where none is made.
    pub(crate) fn connections(&self) -> Vec<Option<usize>> {
        self.core.abort_handle.as_ref().map(|a| a.status.links().connections()).unwrap_or_default()
    }

    /// The CUDA device whose buffers this group's calls take besides those in host memory; see
    /// [`BackendKind::Nccl`](crate::BackendKind). `None` with every other backend.
    ///
    /// ```
    /// assert_eq!(comity::Group::single().device(), None);
    /// ```
    pub fn device(&self) -> Option<u32> {
        self.core.device
    }

    /// Returns the counters of this group on this rank: calls, bytes, waiting.
    ///
    /// ```
    /// let group = comity::Group::single();
    /// group.barrier()?;
    /// assert_eq!(group.stats().calls, 1);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.core.counters.read()
    }

    /// [`tools::prefer_algorithm`](crate::tools::prefer_algorithm).
    pub(crate) fn prefer_algorithm(&self, algorithm: Option<Algorithm>) -> bool {
        self.in_turn(|| {
            let mut state = lock(&self.core.state);
            state.backend.as_mut().is_some_and(|b| b.prefer(algorithm))
        })
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, ReduceOp};
    use comity_plan::Kind;
    use std::thread;

    fn together<T: Send>(n: usize, f: impl Fn(&Group) -> T + Sync) -> Vec<T> {
        thread::scope(|s| {
            let ranks: Vec<_> = Group::local(n)
                .unwrap()
                .into_iter()
                .map(|g| {
                    s.spawn({
                        let f = &f;
                        move || f(&g)
                    })
                })
                .collect();
            ranks.into_iter().map(|r| r.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_algorithm_adds_up() {
        for n in [2, 3, 5] {
            for algorithm in Kind::AllReduce.algorithms() {
                let sums = together(n, |group| {
                    assert!(group.prefer_algorithm(Some(algorithm)));
                    let mut x: Vec<u64> = (0..1000).map(|i| i + group.rank() as u64).collect();
                    group.all_reduce(&mut x, ReduceOp::Sum).unwrap();
                    x
                });
                let whole: u64 = (0..n as u64).sum();
                let expected: Vec<u64> = (0..1000).map(|i| i * n as u64 + whole).collect();
                assert!(sums.iter().all(|s| *s == expected), "{algorithm:?} on {n}");
            }
        }
    }

    #[test]
    fn ranks_that_prefer_different_ones_are_told() {
        let errors = together(2, |group| {
            let which = [Algorithm::Ring, Algorithm::TwoPhase][group.rank()];
            group.prefer_algorithm(Some(which));
            group.all_reduce(&mut [1f32; 64], ReduceOp::Sum).unwrap_err()
        });
        assert!(errors.iter().all(|e| matches!(e.kind(), ErrorKind::Mismatch { .. })), "{errors:?}");
        assert!(errors.iter().all(|e| e.to_string().contains("plan")), "{}", errors[0]);
    }
}
