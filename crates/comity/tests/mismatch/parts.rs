//! all_to_all with parts of which two ranks think otherwise: both numbers are told, on every rank.

use comity::{ErrorKind, Group, Result};

#[test]
fn the_pair_and_both_numbers_are_told() {
    let groups = Group::local(3).unwrap();
    let call = |g: &Group| -> Result<()> {
        let src = [1f32; 16];
        let mut dst = [0f32; 16];
        // Rank 0 sends 3 to rank 1, which expects 5.
        let (out, into) = match g.rank() {
            0 => ([1, 3, 1], [1, 1, 1]),
            1 => ([1, 1, 1], [5, 1, 1]),
            _ => ([1, 1, 1], [1, 1, 1]),
        };
        let total = |parts: &[usize]| parts.iter().sum::<usize>();
        g.all_to_all_v(&src[..total(&out)], &out, &mut dst[..total(&into)], &into)
    };
    let errors = scope::each(&groups, |g| call(g).and_then(|()| g.barrier()).unwrap_err());
    for (r, e) in errors.iter().enumerate() {
        let ErrorKind::Mismatch { rank: 1, ours, peer, theirs, .. } = e.root().kind() else {
            panic!("rank {r}: {e}")
        };
        assert_eq!((peer.rank, theirs.count, ours.count), (0, 3, 5), "{e}");
        let text = e.to_string();
        assert!(text.contains("sends 3 elements to rank 1, which expects 5"), "{text}");
    }
}
