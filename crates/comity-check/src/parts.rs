//! Unequal parts, which every rank makes up alike.

/// Elements of each rank's part, a few times: with gaps, all at one rank, none at all. About `size` each.
pub(super) fn unequal(n: usize, size: usize) -> Vec<Vec<usize>> {
    let gaps = (0..n).map(|r| if r % 3 == 1 { 0 } else { (size + r * 37) % (size + 5) }).collect();
    let one = (0..n).map(|r| if r == size % n { size + 1 } else { 0 }).collect();
    let mut all = vec![gaps, one];
    if size == 0 {
        all.push(vec![0; n]);
    }
    all
}

pub(super) fn gives(from: usize, to: usize, size: usize) -> usize {
    match (from + 2 * to) % 4 {
        0 => 0,
        k => (size + 7 * from + 3 * to) % (size + k),
    }
}
