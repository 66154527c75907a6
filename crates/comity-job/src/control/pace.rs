//! Detection limit of this job, from the table that all ranks have.

use crate::rendezvous::Facts;
use comity_membership::{Pace, overlay_neighbours};
use std::{collections::HashMap, time::Duration};

/// The pace of a job. The most patient of its ranks decides, since it knows why it asked.
pub fn of(facts: &[Facts], sparse: bool) -> Pace {
    let most = facts.iter().map(|f| f.silence.wrapping_sub(1)).max().and_then(|ms| ms.checked_add(1));
    let mut hosts = HashMap::<u64, (usize, u16)>::new();
    for f in facts {
        let (ranks, cores) = hosts.entry(f.card.host_id).or_insert((0, f.card.cores));
        *ranks += 1;
        *cores = f.card.cores.min(*cores);
    }
    let hosts: Vec<_> = hosts.into_values().collect();
    let others = match facts.len() {
        n if sparse => overlay_neighbours(0, n).len(),
        n => n.saturating_sub(1),
    };
    Pace::of(most.map(|ms| Duration::from_millis(ms.into())), &hosts, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::facts_of;

    /// `n` ranks of each host, which has so many cores.
    fn pace(hosts: &[(usize, u16)], silence: u32) -> Pace {
        let fact = |(host, (n, cores)): (usize, &(usize, u16))| {
            let mut one = Facts { silence, ..facts_of("h", host as u32, Vec::new()) };
            one.card.cores = *cores;
            std::iter::repeat_n(one, *n)
        };
        of(&hosts.iter().enumerate().flat_map(fact).collect::<Vec<_>>(), false)
    }

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_crowded_host_is_given_time() {
        let usual = Pace { limit: Some(ms(5000)), beat: ms(500), rest: ms(0) };
        for hosts in [&[(2, 2)][..], &[(32, 2)], &[(256, 64)], &[(64, 64); 16]] {
            assert_eq!(pace(hosts, 5000), usual, "{hosts:?}");
        }
        assert_eq!(pace(&[(128, 2)], 5000), Pace { limit: Some(ms(6400)), rest: ms(100), ..usual });
        assert_eq!(pace(&[(256, 2)], 5000), Pace { limit: Some(ms(16_320)), beat: ms(1632), rest: ms(100) });
        // One such host slows all down.
        assert_eq!(
            pace(&[(64, 64), (192, 1)], 5000),
            Pace { limit: Some(ms(24_480)), beat: ms(2448), rest: ms(100) }
        );
        // Who is patient beats no more often for it.
        assert_eq!(
            pace(&[(256, 2)], 30_000),
            Pace { limit: Some(ms(30_000)), beat: ms(1632), rest: ms(100) }
        );
        assert_eq!(pace(&[(4, 2)], 200), Pace { limit: Some(ms(200)), beat: ms(20), rest: ms(0) });
        assert_eq!(pace(&[(256, 2)], 0).limit, None);
    }

    #[test]
    fn the_most_patient_decides() {
        let fact = |silence| Facts { silence, ..facts_of("h", 1, Vec::new()) };
        assert_eq!(of(&[fact(1000), fact(5000)], false).limit, Some(ms(5000)));
        assert_eq!(of(&[fact(1000), fact(0)], false).limit, None);
        assert_eq!(of(&[], false).limit, None);
    }
}
