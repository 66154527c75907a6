//! Number of lanes that a rank may have: from the cores that each rank said it may run on, so all ranks come to the same number.

use comity_plan::lanes_of;

/// A rank's announcement of its cores.
#[derive(Clone, Copy, Debug)]
pub struct OwnCores {
    /// Its host.
    pub host: usize,
    /// Those that all ranks of its host share.
    pub shared: usize,
    /// Those that it may run on.
    pub own: usize,
}

/// The most lanes of a rank: those of the rank that owns fewest cores. Ranks that may run on the same cores share them.
pub fn most_lanes(ranks: &[OwnCores]) -> usize {
    let owned = |r: &OwnCores| {
        let mates = || ranks.iter().filter(|m| m.host == r.host);
        let host = mates().map(|m| m.shared).min().unwrap_or(1);
        let all: usize = mates().map(|m| m.own).sum();
        if all <= host { r.own } else { r.own.min(host / mates().count().max(1)) }
    };
    let least = ranks.iter().map(owned).min().unwrap_or(1);
    lanes_of(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(ranks: &[(usize, usize, usize)]) -> usize {
        let rank = |&(host, shared, own)| OwnCores { host, shared, own };
        most_lanes(&ranks.iter().map(rank).collect::<Vec<_>>())
    }

    #[test]
    fn ranks_share_the_cores_that_are_not_their_own() {
        assert_eq!(most(&[(0, 2, 2); 2]), 1, "a core each");
        assert_eq!(most(&[(0, 4, 4); 2]), 1, "two each: one for the call, one for the program");
        assert_eq!(most(&[(0, 8, 8); 2]), 3);
        assert_eq!(most(&[(0, 16, 16); 2]), 5);
        assert_eq!(most(&[(0, 64, 64); 8]), 5);
        assert_eq!(most(&[(0, 64, 64); 2]), 16);
        // Bound to cores of their own, and to one each.
        assert_eq!(most(&[(0, 16, 8), (0, 16, 4), (0, 16, 4)]), 3);
        assert_eq!(most(&[(0, 64, 1); 4]), 1);
        // The host that has least counts.
        assert_eq!(most(&[(0, 64, 64), (1, 8, 8), (1, 8, 8)]), 3);
        assert_eq!(most(&[(0, 2, 2); 5]), 1);
        assert_eq!(most(&[]), 1);
    }
}
