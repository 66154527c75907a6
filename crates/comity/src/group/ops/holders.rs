//! State that some ranks hold and others lack: sent where it differs. And a reduction that keeps its input where it fails.

use super::{Group, misuse};
use crate::{Misuse, Op, ReduceOp, Result, ViewMut};
use aws_lc_rs::digest::{SHA256, digest};

/// Numbers that stand for a tensor's bytes.
const WORDS: usize = 4;

impl Group {
    /// Give all ranks the tensors of those that hold them, with the same bits on all. Only what differs is sent.
    ///
    /// Every rank calls this with tensors of the same types and lengths in the same order. `holds` says that this rank's are right: true on
    /// those that went on training, false on those that have just joined. The lowest rank that holds them decides; of the others each tensor
    /// with other bytes is overwritten. Ranks compare SHA-256 digests, then each rank that lacks a tensor gets it from one of those that have it.
    ///
    /// Returns the number of bytes that this rank received.
    ///
    /// ```
    /// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity::Result<()> {
    /// // On each rank of a group of two, of which rank 0 has trained:
    /// let (mut weights, mut step) = ([group.rank() as f32; 100], [7u64]);
    /// let received = group.sync(&mut [(&mut weights).into(), (&mut step).into()], group.rank() == 0)?;
    /// assert_eq!((weights, step), ([0.0; 100], [7]));
    /// assert_eq!(received, if group.rank() == 0 { 0 } else { 400 });
    /// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_gather`](Self::all_gather), [`broadcast`](Self::broadcast) and [`send`](Self::send); [`Misuse::Place`] for tensors
    /// that are not in host memory; [`ErrorKind::Config`](crate::ErrorKind::Config) on all ranks where none holds them.
    pub fn sync(&self, tensors: &mut [ViewMut<'_>], holds: bool) -> Result<usize> {
        let stride = 1 + WORDS * tensors.len();
        let mut mine = vec![u64::from(holds)];
        for tensor in tensors.iter() {
            let place = || misuse(Op::AllGather, Misuse::Place(format!("{:?}", tensor.place())));
            mine.extend(words_of(tensor.bytes().ok_or_else(place)?));
        }
        let mut all = vec![0u64; stride * self.size()];
        self.all_gather(&mine, &mut all)?;
        let of = |rank: usize| &all[stride * rank..stride * (rank + 1)];
        let Some(holder) = (0..self.size()).find(|r| of(*r)[0] != 0) else {
            return Err(crate::Error::config(
                "sync: no rank says that it holds the tensors; pass holds = true on those whose tensors are right",
            ));
        };
        let mut received = 0;
        for (i, tensor) in tensors.iter_mut().enumerate() {
            let digest = |rank: usize| &of(rank)[1 + WORDS * i..1 + WORDS * (i + 1)];
            let (has, lacks): (Vec<usize>, Vec<usize>) =
                (0..self.size()).partition(|r| digest(*r) == digest(holder));
            if lacks.contains(&self.rank()) {
                received += tensor.len_bytes();
            }
            // Each of those that have it serves some; a tree serves many sooner.
            if lacks.len() > has.len() {
                self.broadcast(tensor.reborrow(), has[i % has.len()])?;
                continue;
            }
            for (n, to) in lacks.into_iter().enumerate() {
                let from = has[(i + n) % has.len()];
                if self.rank() == from {
                    self.send(tensor.as_view(), to, i as u32)?;
                } else if self.rank() == to {
                    self.recv(tensor.reborrow(), from, i as u32)?;
                }
            }
        }
        Ok(received)
    }

    /// Combine `buf` as [`all_reduce`](Self::all_reduce), and leave it as it was where the call fails: then it can be repeated in the group that
    /// follows ([`reform`](Self::reform)). This takes a copy of `buf`.
    ///
    /// ```
    /// use comity::{Group, ReduceOp};
    ///
    /// let group = Group::single();
    /// group.abort("no more data");
    /// let mut x = [1f32, 2.0];
    /// assert!(group.all_reduce_or_keep(&mut x, ReduceOp::Sum).is_err());
    /// assert_eq!(x, [1.0, 2.0]);
    /// ```
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce); [`Misuse::Place`] for a buffer that is not in host memory.
    pub fn all_reduce_or_keep<'a>(&self, buf: impl Into<ViewMut<'a>>, op: ReduceOp) -> Result<()> {
        let mut buf = buf.into();
        let place = || misuse(Op::AllReduce, Misuse::Place(format!("{:?}", buf.place())));
        let kept = buf.bytes().ok_or_else(place)?.to_vec();
        let out = self.all_reduce(buf.reborrow(), op);
        if out.is_err() {
            buf.restore(&kept);
        }
        out
    }
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
