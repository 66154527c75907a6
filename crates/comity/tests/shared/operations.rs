//! Every operation, and what it gives by its bits.

use comity::{Group, ReduceOp, Result, SharedBuffer};

/// A value whose sums differ by the order of additions.
pub(crate) fn of(rank: usize, i: usize) -> f32 {
    ((rank * 7919 + i * 31) % 1009) as f32 * 0.37 + 1e-3 * rank as f32
}

pub(crate) fn given(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| of(rank, i)).collect()
}

pub(crate) fn shared(g: &Group, data: &[f32]) -> SharedBuffer<f32> {
    let mut b = g.alloc(data.len());
    b.copy_from_slice(data);
    b
}

/// Every operation on `count` elements a rank; what they gave, by their bits. The buffers are used again and again, for the first message
/// out of each goes through the ring.
pub(crate) fn all(g: &Group, count: usize, make: &impl Fn(&Group, &[f32]) -> Buffer) -> Result<Vec<u32>> {
    let n = g.size();
    let r = g.rank();
    let small = given(r, count);
    let large = given(r, n * count);
    let mut a = make(g, &small);
    let mut b = make(g, &large);
    let mut c = make(g, &small);
    let mut d = make(g, &large);
    let mut bits = Vec::new();
    let mut note = |x: &[f32]| bits.extend(x.iter().step_by(97).chain(x.last()).map(|v| v.to_bits()));
    for root in [0, n - 1] {
        g.all_reduce(&mut *a, ReduceOp::Sum)?;
        note(&a);
        g.all_reduce(&mut *b, ReduceOp::Avg)?;
        note(&b);
        g.all_reduce_into(&*a, &mut *c, ReduceOp::Max)?;
        note(&c);
        g.broadcast(&mut *b, root)?;
        note(&b);
        g.reduce(&mut *a, ReduceOp::Sum, root)?;
        note(&a);
        b.copy_from_slice(&large);
        g.reduce_scatter(&*b, &mut *c, ReduceOp::Sum)?;
        note(&c);
        g.all_gather(&*c, &mut *d)?;
        note(&d);
        g.reduce_scatter_in_place(&mut *d, ReduceOp::Sum)?;
        note(&d[r * count..(r + 1) * count]);
        g.all_gather_in_place(&mut *d)?;
        note(&d);
        g.all_to_all(&*b, &mut *d)?;
        note(&d);
        g.all_to_all_in_place(&mut *d)?;
        note(&d);
        g.gather(&*a, if r == root { &mut d[..] } else { &mut [] }, root)?;
        note(&d);
        g.scatter(if r == root { &d[..] } else { &[] }, &mut *a, root)?;
        note(&a);
        if n > 1 {
            let to = (r + 1) % n;
            let from = (r + n - 1) % n;
            g.sendrecv(&*b, to, &mut *d, from, 3)?;
            note(&d);
        }
    }
    Ok(bits)
}

/// Memory of either sort.
pub(crate) enum Buffer {
    Shared(SharedBuffer<f32>),
    Private(Vec<f32>),
}

impl std::ops::Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Shared(b) => b,
            Self::Private(b) => b,
        }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Shared(b) => b,
            Self::Private(b) => b,
        }
    }
}
