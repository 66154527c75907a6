//! Share of the large matrices that a run takes: the one that its commit chooses, or all of it. The crate `scope` deals it out.

use scope::{DEEP, SEED};
use tasks::{child::Task, place::root};

/// A share of what is large, or all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scope {
    /// From the commit, or given.
    pub(crate) seed: u64,
    /// Everything, at full size.
    pub(crate) deep: bool,
    /// Hours of the soak.
    pub(crate) hours: f64,
}

impl Scope {
    /// A share, by this number or by the commit's.
    pub(crate) fn gate(seed: Option<u64>) -> Self {
        let seed = seed.or_else(|| commit().map(|c| number(&c))).unwrap_or(0);
        Self { seed, deep: false, hours: 0.0 }
    }

    /// All of it.
    pub(crate) fn deep(hours: f64) -> Self {
        Self { deep: true, hours, ..Self::gate(None) }
    }

    /// Share that this run takes of a matrix that is dealt to so many hands.
    pub(crate) fn share<T>(&self, cases: Vec<T>, hands: u64) -> Vec<T> {
        scope::Scope { seed: self.seed, deep: self.deep }.share(cases, hands)
    }

    /// Share of nextest's tests that this run takes, dealt to so many hands.
    pub(crate) fn part(&self, task: Task, hands: u64) -> Task {
        let hand = format!("hash:{}/{hands}", self.seed % hands + 1);
        if self.deep { task } else { task.args(["--partition", &hand]) }
    }

    /// Tell a program's tests.
    pub(crate) fn tell(&self, task: Task) -> Task {
        let task = task.env(SEED, self.seed.to_string());
        if self.deep { task.env(DEEP, "1") } else { task }
    }
}

/// The commit that is checked out, where there is one.
pub(super) fn commit() -> Option<String> {
    let said = Task::new("git").args(["-C"]).args([root()]).args(["rev-parse", "HEAD"]).run().ok()?;
    let said = said.trim();
    (said.len() >= 40 && said.bytes().all(|b| b.is_ascii_hexdigit())).then(|| said.to_owned())
}

/// The first 16 digits of a commit's name, as a number.
fn number(commit: &str) -> u64 {
    u64::from_str_radix(&commit[..16], 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_chooses_and_deep_takes_all() {
        assert_eq!(number("0123456789abcdef0123456789abcdef01234567"), 0x0123_4567_89ab_cdef);
        let share = Scope::gate(Some(1)).share((0..100).collect::<Vec<_>>(), 4);
        assert_eq!((share.len(), Scope::gate(Some(5)).share((0..100).collect(), 4)), (25, share));
        assert_eq!(Scope::deep(1.0).share((0..100).collect::<Vec<_>>(), 4).len(), 100);
    }
}
