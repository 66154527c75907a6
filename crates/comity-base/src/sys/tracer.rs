//! Processes that Linux's Yama lets read this one: its ancestors, and one process more that it names, with all that descends from that one.
//!
//! ```text
//!   launcher 40 --- rank 41        scope 1: 40 may read 41, but 42 may not
//!            \----- rank 42        41 names 40, the nearest ancestor of all ranks: then 42 may, and every other child of 40
//! ```
//! Where Yama's scope is 0, or this system has no Yama, nothing needs to be named. In scope 2 and 3 naming does not help.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::atomic::{AtomicI64, Ordering},
};

/// Process to name once a peer was refused.
static NAMED: AtomicI64 = AtomicI64::new(NOBODY);
const NOBODY: i64 = 0;
const ANYBODY: i64 = -1;
/// Ancestors looked at.
const MOST: usize = 13;

/// Position of a process among the processes of its host: its PID namespace, and its own and its ancestors' numbers there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    namespace: u64,
    pids: Vec<u32>,
}

impl Lineage {
    /// Reads this process's lineage; none where nothing has to be named, or naming does not help.
    pub fn own() -> Option<Self> {
        (yama_scope()? == 1).then(Self::read).flatten()
    }

    fn read() -> Option<Self> {
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let mut pids = vec![std::process::id()];
        while pids.len() <= MOST {
            let Some(parent) = pids.last().and_then(|pid| parent_of(*pid)).filter(|p| *p > 0) else { break };
            pids.push(parent);
        }
        Some(Self { namespace, pids })
    }

    /// Encodes it for the announcement.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.namespace
            .to_le_bytes()
            .into_iter()
            .chain(self.pids.iter().flat_map(|p| p.to_le_bytes()))
            .collect()
    }

    /// Decodes a peer's announcement; none if it is empty.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (namespace, pids) = bytes.split_first_chunk()?;
        let pids = pids.as_chunks().0.iter().map(|p| u32::from_le_bytes(*p)).collect();
        Some(Self { namespace: u64::from_le_bytes(*namespace), pids })
    }

    /// The nearest process from which this one and all of `others` descend. Not the first process: everything descends from that.
    pub fn nearest<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Option<u32> {
        let mut left = self.pids.clone();
        for other in others.into_iter().filter(|o| o.namespace == self.namespace) {
            left.retain(|pid| other.pids.contains(pid));
        }
        left.first().copied().filter(|pid| *pid > 1)
    }
}

/// Yama's scope, where this system has it.
pub fn yama_scope() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

fn parent_of(pid: u32) -> Option<u32> {
    parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The parent that a line of `stat` names. The name of the program stands in brackets and may hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Process that this process lets read it.
#[derive(Debug)]
pub enum Tracer {}

impl Tracer {
    /// Name this process, once that is needed.
    pub fn plan(pid: u32) {
        NAMED.store(pid.into(), Ordering::Relaxed);
    }

    /// Name no one in particular: every process of this user may read this one.
    pub fn plan_any() {
        NAMED.store(ANYBODY, Ordering::Relaxed);
    }

    /// A peer was refused: name whom was planned. Whether that was done. What the program named itself is lost then, so this is for the
    /// case that a peer was refused under that.
    pub fn allow() -> bool {
        let pid = NAMED.load(Ordering::Relaxed);
        pid != NOBODY && yama_scope() == Some(1) && name(pid)
    }
}

#[cfg(target_os = "linux")]
fn name(pid: i64) -> bool {
    // SAFETY: this operation takes a number and touches no memory; -1 is its word for any process.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn name(_: i64) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(namespace: u64, pids: &[u32]) -> Lineage {
        Lineage { namespace, pids: pids.to_vec() }
    }

    #[test]
    fn the_nearest_common_ancestor_is_named() {
        let me = of(7, &[41, 40, 20, 1]);
        assert_eq!(me.nearest(&[of(7, &[42, 40, 20, 1])]), Some(40));
        assert_eq!(me.nearest(&[of(7, &[42, 40, 20, 1]), of(7, &[43, 39, 20, 1])]), Some(20));
        assert_eq!(me.nearest(&[of(7, &[44, 41, 40, 20, 1])]), Some(41), "a rank that this one started");
        assert_eq!(me.nearest(&[of(7, &[50, 1])]), None, "everything descends from the first process");
        assert_eq!(me.nearest(&[of(8, &[42, 1])]), Some(41), "a number of another namespace says nothing");
    }

    #[test]
    fn a_lineage_survives_its_bytes_and_nonsense_is_none() {
        let me = of(u64::MAX - 1, &[41, 40, 1]);
        assert_eq!(Lineage::from_bytes(&me.to_bytes()), Some(me));
        assert_eq!(Lineage::from_bytes(&[]), None);
        assert_eq!(Lineage::from_bytes(&[1; 7]), None);
        assert!(of(0, &[1; MOST + 1]).to_bytes().len() <= 64, "what a rank may announce");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_a_parent() {
        let own = Lineage::read().unwrap();
        assert_eq!(own.pids[0], std::process::id());
        assert_eq!(own.pids[1], std::os::unix::process::parent_id());
        assert_eq!(parent_in("12 (a) b) (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("12"), None);
    }
}
