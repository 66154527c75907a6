//! Ranks that share a host, as one rank sees them. May import `draft`.

use crate::draft::Team;

/// The ranks of each host, hosts in the order of their first rank, and where this rank is.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// By host.
    pub(crate) ranks: Vec<Vec<usize>>,
    /// This rank's host.
    pub(crate) mine: usize,
    /// This rank.
    pub(crate) me: usize,
}

impl Hosts {
    /// `hosts` names the host of each rank; where it ends (it may be empty) all are on one more.
    pub(crate) fn new(hosts: &[usize], rank: usize, size: usize) -> Self {
        let mut names: Vec<Option<usize>> = Vec::new();
        let mut ranks: Vec<Vec<usize>> = Vec::new();
        let mut mine = 0;
        for r in 0..size {
            let name = hosts.get(r).copied();
            let h = names.iter().rposition(|&n| n == name).unwrap_or(names.len());
            if h == names.len() {
                names.push(name);
                ranks.push(Vec::new());
            }
            ranks[h].push(r);
            if r == rank {
                mine = h;
            }
        }
        Self { ranks, mine, me: rank }
    }

    /// All ranks, those of a host side by side.
    pub(crate) fn by_host(&self) -> Vec<usize> {
        self.ranks.concat()
    }

    /// Returns true if all hosts have the same number of ranks.
    pub(crate) fn is_even(&self) -> bool {
        self.ranks.iter().all(|r| r.len() == self.ranks[0].len())
    }

    /// This rank's host, led by `root` if it is there, and the leaders of all hosts if this rank is one, with the root's
    /// position among them.
    pub(crate) fn led_by(&self, root: usize) -> (Team, Option<Team>, usize) {
        let mut local = self.ranks[self.mine].clone();
        if let Some(at) = local.iter().position(|&r| r == root) {
            local.swap(0, at);
        }
        let leader = |r: &Vec<usize>| if r.contains(&root) { root } else { r[0] };
        let leaders: Vec<_> = self.ranks.iter().map(leader).collect();
        let at = leaders.iter().position(|&r| r == root).unwrap_or(0);
        let me = local.iter().position(|&r| r == self.me).unwrap_or(0);
        (Team::at(local, me), Team::of(leaders, self.me), at)
    }

    /// The ranks that stand at this position of their hosts, by host.
    pub(crate) fn peers(&self, at: usize) -> Vec<usize> {
        self.ranks.iter().filter_map(|r| r.get(at).copied()).collect()
    }

    /// The position, on host `h`, of the rank that handles what goes between `h` and rank `l` of another host.
    pub(crate) fn handler(&self, h: usize, l: usize) -> usize {
        l % self.ranks[h].len()
    }

    /// Ranks of other hosts as (host, position there, rank).
    pub(crate) fn foreign(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let hosts = self.ranks.iter().enumerate().filter(|&(h, _)| h != self.mine);
        hosts.flat_map(|(h, ranks)| ranks.iter().enumerate().map(move |(l, &r)| (h, l, r)))
    }

    /// All ranks, and those of this host.
    pub(crate) fn all(&self) -> (Team, Team) {
        let local = self.ranks[self.mine].clone();
        let at = local.iter().position(|&r| r == self.me).unwrap_or(0);
        let size = self.ranks.iter().map(Vec::len).sum();
        (Team::all(self.me, size), Team::at(local, at))
    }
}
