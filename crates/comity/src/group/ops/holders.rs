//! State that some ranks hold and others lack: sent where it differs.

use crate::{
    Misuse, Op, Result, ViewMut,
    group::{Group, misuse},
};
use aws_lc_rs::digest::{SHA256, digest};

/// Numbers that stand for a tensor's bytes.
const WORDS: usize = 4;

/// Give all ranks the tensors of those that hold them; returns the bytes that this rank received.
pub(super) fn sync(group: &Group, tensors: &mut [ViewMut<'_>], holds: bool) -> Result<usize> {
    let stride = 1 + WORDS * tensors.len();
    let mut mine = vec![u64::from(holds)];
    for tensor in tensors.iter() {
        let place = || misuse(Op::AllGather, Misuse::Place(format!("{:?}", tensor.place())));
        mine.extend(words_of(tensor.bytes().ok_or_else(place)?));
    }
    let mut all = vec![0u64; stride * group.size()];
    group.all_gather(&mine, &mut all)?;
    let of = |rank: usize| &all[stride * rank..stride * (rank + 1)];
    let Some(holder) = (0..group.size()).find(|r| of(*r)[0] != 0) else {
        return Err(crate::Error::config(
            "sync: no rank says that it holds the tensors; pass holds = true on those whose tensors are right",
        ));
    };
    let mut received = 0;
    for (i, tensor) in tensors.iter_mut().enumerate() {
        let digest = |rank: usize| &of(rank)[1 + WORDS * i..1 + WORDS * (i + 1)];
        let (has, lacks): (Vec<usize>, Vec<usize>) =
            (0..group.size()).partition(|r| digest(*r) == digest(holder));
        if lacks.contains(&group.rank()) {
            received += tensor.len_bytes();
        }
        // Each of those that have it serves some; a tree serves many sooner.
        if lacks.len() > has.len() {
            group.broadcast(tensor.reborrow(), has[i % has.len()])?;
            continue;
        }
        for (n, to) in lacks.into_iter().enumerate() {
            let from = has[(i + n) % has.len()];
            if group.rank() == from {
                group.send(tensor.as_view(), to, i as u32)?;
            } else if group.rank() == to {
                group.recv(tensor.reborrow(), from, i as u32)?;
            }
        }
    }
    Ok(received)
}

/// SHA-256 of some bytes, as numbers.
fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let digest = digest(&SHA256, bytes);
    let words: Vec<u64> = digest
        .as_ref()
        .chunks_exact(8)
        .map(|b| b.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .collect();
    words.into_iter()
}
