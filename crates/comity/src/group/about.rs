//! Properties of a group: ranks, links, limit, counters.

use super::Group;
use crate::{LinkKind, Peer, Stats, config::MAX_TIMEOUT};
use std::time::Duration;

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
}
