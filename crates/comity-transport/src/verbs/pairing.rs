//! Pairing of the devices of two ends that share a cable: guessed from addresses, proven by trying.

use crate::sys::verbs::Address;

/// The paths to try in this round, as places in the two lists, of those not `tried` yet between devices that are in none of `made`.
/// Both ends see the same lists and so choose alike: those with most of their addresses in common come first, and each device is in
/// one path at most.
pub(super) fn round(
    lower: &[Address],
    higher: &[Address],
    made: &[(usize, usize)],
    tried: &[(usize, usize)],
) -> Vec<(usize, usize)> {
    let free = |a: usize, b: usize| !made.iter().any(|(x, y)| *x == a || *y == b) && !tried.contains(&(a, b));
    let mut all: Vec<(usize, usize)> = (0..lower.len())
        .flat_map(|a| (0..higher.len()).map(move |b| (a, b)))
        .filter(|(a, b)| free(*a, *b))
        .collect();
    all.sort_by_key(|&(a, b)| (std::cmp::Reverse(common(&lower[a], &higher[b])), a, b));
    let mut out: Vec<(usize, usize)> = Vec::new();
    for (a, b) in all {
        if !out.iter().any(|(x, y)| *x == a || *y == b) {
            out.push((a, b));
        }
    }
    out
}

/// Leading bits in common.
fn common(a: &Address, b: &Address) -> u32 {
    (u128::from_be_bytes(a.gid) ^ u128::from_be_bytes(b.gid)).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: [u8; 4]) -> Address {
        let mut gid = [0; 16];
        (gid[10], gid[11]) = (0xff, 0xff);
        gid[12..].copy_from_slice(&ip);
        Address { gid, ..Address::default() }
    }

    #[test]
    fn cables_are_guessed_from_their_networks_and_the_rest_is_tried() {
        let lower = [at([10, 0, 1, 1]), at([10, 0, 2, 1])];
        // Listed the other way round: by place both paths would be wrong.
        let higher = [at([10, 0, 2, 2]), at([10, 0, 1, 2])];
        assert_eq!(round(&lower, &higher, &[], &[]), [(0, 1), (1, 0)]);
        // One of the guesses was right; nothing is left for the others but each other.
        assert_eq!(round(&lower, &higher, &[(0, 1)], &[(0, 1), (1, 0)]), []);
        // Both were wrong.
        assert_eq!(round(&lower, &higher, &[], &[(0, 1), (1, 0)]), [(0, 0), (1, 1)]);
    }

    #[test]
    fn a_device_is_in_one_path() {
        let one = [at([10, 0, 0, 1])];
        let three = [at([10, 0, 0, 2]), at([10, 0, 0, 3]), at([10, 0, 0, 0])];
        assert_eq!(round(&one, &three, &[], &[]), [(0, 2)]);
        assert_eq!(round(&one, &three, &[(0, 2)], &[(0, 2)]), []);
        assert_eq!(round(&one, &[], &[], &[]), []);
    }
}
