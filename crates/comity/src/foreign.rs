//! Calls as other languages ask for them: memory that they vouch for, the method of [`Group`] that an operation with its buffers means, and
//! the end of work in the background.
#![allow(unsafe_code, reason = "memory that another language vouches for")]

use crate::{
    DType, Error, ErrorKind, Group, Misuse, Op, Place, ReduceOp, Result, View, ViewMut, Wire, cuda,
    sync::lock,
};
use std::{
    fmt, io, mem,
    ops::Range,
    ptr,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Memory of a call: an address, a type and a count of elements.
#[derive(Clone, Copy, Debug)]
pub struct ForeignMemory {
    ptr: usize,
    count: usize,
    dtype: DType,
    place: Place,
}

impl ForeignMemory {
    /// `None` where no memory can be so.
    ///
    /// # Safety
    /// It is memory of that many elements, whose address was exposed. As long as a copy of this is used it stays, and nobody writes to it but
    /// calls that are given this; nobody else reads what those write. No two of its views are given to calls at once, if one of them is to
    /// write.
    #[inline(always)]
    pub unsafe fn new(ptr: usize, count: usize, dtype: DType, place: Place) -> Option<Self> {
        let end = count.checked_mul(dtype.size()).and_then(|n| ptr.checked_add(n));
        if end.is_none_or(|end| end > isize::MAX as usize) || (ptr == 0 && count > 0) {
            return None;
        }
        Some(Self { ptr, count, dtype, place })
    }

    /// The bytes, as addresses.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.ptr..self.ptr + self.count * self.dtype.size()
    }

    /// Returns true if the two have bytes in common.
    #[inline]
    pub fn overlaps(&self, other: &Self) -> bool {
        let a = self.range();
        let b = other.range();
        a.start < b.end && b.start < a.end
    }

    /// To read during one call.
    #[inline]
    pub fn view(&self) -> View<'_> {
        // SAFETY: by the promise of `new`, which has also seen that no address arithmetic overflows.
        unsafe { View::from_raw(ptr::with_exposed_provenance(self.ptr), self.count, self.dtype, self.place) }
    }

    /// To write during one call. Its other buffers do not overlap this one.
    #[inline]
    pub fn view_mut(&self) -> ViewMut<'_> {
        let at = ptr::with_exposed_provenance_mut(self.ptr);
        // SAFETY: as above; `ForeignCall::new` lets only such buffers overlap as a form in place takes as one.
        unsafe { ViewMut::from_raw(at, self.count, self.dtype, self.place) }
    }

    /// Copy these bytes to `other`, which has as many, in the same place.
    ///
    /// # Errors
    /// CUDA's.
    ///
    /// # Panics
    /// If it has another number of bytes.
    pub fn copy_to(&self, other: &Self) -> Result<()> {
        let from = self.range();
        let to = other.range();
        assert_eq!(from.len(), to.len(), "a copy keeps its length");
        match self.place {
            _ if from.is_empty() => Ok(()),
            Place::Cuda { device, stream } => {
                // SAFETY: both are memory of this device, by the promise of `new`, until its stream has come past the call.
                unsafe { cuda::copy(device, to.start, from.start, from.len(), stream) }
            }
            _ => {
                let to = ptr::with_exposed_provenance_mut::<u8>(to.start);
                // SAFETY: both are memory of that many bytes, by the promise of `new`; `copy` allows overlap.
                unsafe { ptr::copy(ptr::with_exposed_provenance::<u8>(from.start), to, from.len()) };
                Ok(())
            }
        }
    }
}

/// Arguments of a call besides its buffers. Those that its operation has not are passed over.
#[derive(Clone, Debug, Default)]
pub struct ForeignArgs {
    /// Reduction.
    pub reduce: Option<ReduceOp>,
    /// Root.
    pub root: Option<usize>,
    /// Rank to send to, or to receive from.
    pub peer: Option<usize>,
    /// Rank from which a sendrecv receives.
    pub source: Option<usize>,
    /// Tag.
    pub tag: u32,
    /// Elements of each rank's part; of the source in an all_to_all.
    pub counts: Option<Vec<usize>>,
    /// Elements from each rank in an all_to_all.
    pub recv_counts: Option<Vec<usize>>,
    /// True for a part of a call that moves objects.
    pub objects: bool,
    /// Form of the elements on the links, if not as they are.
    pub wire: Option<Wire>,
}

/// Overlap of the two buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Apart,
    /// The same bytes, or only one buffer.
    Same,
    /// The smaller one is this rank's part of the larger one.
    Own,
}

/// A call with its buffers.
#[derive(Debug)]
pub struct ForeignCall {
    op: Op,
    src: Option<ForeignMemory>,
    dst: Option<ForeignMemory>,
    args: ForeignArgs,
    shape: Shape,
}

impl ForeignCall {
    /// A call of `rank`; `None` where its buffers share bytes in a way that no form of the operation has.
    pub fn new(
        rank: usize,
        op: Op,
        src: Option<ForeignMemory>,
        dst: Option<ForeignMemory>,
        args: ForeignArgs,
    ) -> Option<Self> {
        let shape = shape(rank, op, src.as_ref(), dst.as_ref(), args.counts.is_some())?;
        Some(Self { op, src, dst, args, shape })
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Make the call and wait for it; on a device, until its work is on the stream.
    ///
    /// # Errors
    /// Those of the method of [`Group`]; [`ErrorKind::Misuse`] where an operation lacks a buffer.
    pub fn run(&self, group: &Group) -> Result<()> {
        match (self.args.objects, self.args.wire) {
            (true, _) => self.run_on(&group.of_objects()),
            (false, None) => self.run_on(group),
            (false, wire) => self.run_on(&group.with_wire(wire)),
        }
    }

    fn run_on(&self, g: &Group) -> Result<()> {
        let a = &self.args;
        let root = a.root.unwrap_or(0);
        let peer = a.peer.unwrap_or(0);
        let reduce = a.reduce.unwrap_or(ReduceOp::Sum);
        let src = self.src.as_ref().map(ForeignMemory::view);
        let dst = self.dst.as_ref().map(ForeignMemory::view_mut);
        match (self.op, src, dst, self.shape) {
            (Op::Barrier, ..) => g.barrier(),
            (Op::AllReduce, Some(s), Some(d), Shape::Apart) => g.all_reduce_into(s, d, reduce),
            (Op::AllReduce, _, Some(d), _) => g.all_reduce(d, reduce),
            (Op::Reduce | Op::Broadcast, ..) => self.rooted(g, root, reduce),
            (Op::AllGather, Some(s), Some(d), Shape::Apart) => match &a.counts {
                Some(counts) => g.all_gather_v(s, d, counts),
                None => g.all_gather(s, d),
            },
            (Op::AllGather, _, Some(d), _) => g.all_gather_in_place(d),
            (Op::ReduceScatter, Some(s), Some(d), Shape::Apart) => match &a.counts {
                Some(counts) => g.reduce_scatter_v(s, d, counts, reduce),
                None => g.reduce_scatter(s, d, reduce),
            },
            (Op::ReduceScatter, Some(_), Some(_), _) => match &self.src {
                // The destination is a part of it, and so it may be written.
                Some(whole) => g.reduce_scatter_in_place(whole.view_mut(), reduce),
                None => Err(self.lacking()),
            },
            (Op::ReduceScatter, None, Some(d), _) => g.reduce_scatter_in_place(d, reduce),
            (Op::Gather, Some(s), d, _) => g.gather(s, d.unwrap_or_else(|| (&mut [0u8; 0]).into()), root),
            (Op::Scatter, s, Some(d), _) => g.scatter(s.unwrap_or_else(|| (&[0u8; 0]).into()), d, root),
            (Op::AllToAll, Some(s), Some(d), Shape::Apart) => match (&a.counts, &a.recv_counts) {
                (Some(out), Some(back)) => g.all_to_all_v(s, out, d, back),
                _ => g.all_to_all(s, d),
            },
            (Op::AllToAll, _, Some(d), _) => g.all_to_all_in_place(d),
            (Op::Send, Some(s), ..) => g.send(s, peer, a.tag),
            (Op::Recv, _, Some(d), _) => g.recv(d, peer, a.tag),
            (Op::SendRecv, Some(s), Some(d), _) => g.sendrecv(s, peer, d, a.source.unwrap_or(0), a.tag),
            _ => Err(self.lacking()),
        }
    }

    /// A reduce or broadcast, which works in place: on the destination, or on the source of a rank that only reads.
    fn rooted(&self, g: &Group, root: usize, reduce: ReduceOp) -> Result<()> {
        let reduces = self.op == Op::Reduce;
        let buffer = match (&self.src, &self.dst) {
            (Some(src), Some(dst)) if self.shape == Shape::Apart => {
                // Nothing is done where the call is a mistake.
                let is_sound = !reduces || src.dtype.supports(reduce);
                if is_sound && (reduces || root == g.rank()) {
                    src.copy_to(dst)?;
                }
                dst
            }
            // The source alone is not written: a reduce writes the root's only, a broadcast the others'.
            (_, Some(buffer)) | (Some(buffer), None) => buffer,
            (None, None) => return Err(self.lacking()),
        };
        match reduces {
            true => g.reduce(buffer.view_mut(), reduce, root),
            false => g.broadcast(buffer.view_mut(), root),
        }
    }

    fn lacking(&self) -> Error {
        let misuse = Misuse::Length { buffer: "buffer", expected: 1, got: 0, why: "; none was given" };
        ErrorKind::Misuse { op: self.op, misuse }.into()
    }
}

/// Overlap of the buffers, if some form of the operation takes them so.
fn shape(
    rank: usize,
    op: Op,
    src: Option<&ForeignMemory>,
    dst: Option<&ForeignMemory>,
    is_uneven: bool,
) -> Option<Shape> {
    let (Some(src), Some(dst)) = (src, dst) else { return Some(Shape::Same) };
    // Where both are empty, one form is as good as the other; all ranks must make the same.
    if !src.overlaps(dst) {
        return Some(Shape::Apart);
    }
    let s = src.range();
    let d = dst.range();
    let is_own = |whole: &Range<usize>, part: &Range<usize>| {
        !is_uneven && part.start == whole.start + rank * part.len() && part.end <= whole.end
    };
    match op {
        Op::AllReduce | Op::Reduce | Op::Broadcast => (s == d).then_some(Shape::Same),
        Op::AllToAll => (s == d && !is_uneven).then_some(Shape::Same),
        Op::AllGather => is_own(&d, &s).then_some(Shape::Own),
        Op::ReduceScatter => is_own(&s, &d).then_some(Shape::Own),
        _ => None,
    }
}

/// Work in the background: its end, those who wait for that, and what is called then.
#[derive(Default)]
pub struct ForeignRequest(Mutex<Underway>);

#[derive(Default)]
struct Underway {
    out: Option<Result<()>>,
    waiting: Vec<Bell>,
    then: Vec<EndCallback>,
}

type EndCallback = Box<dyn FnOnce(&Result<()>) + Send>;

/// Time that a wait without a limit takes between two looks.
const SLICE: Duration = Duration::from_secs(3600);

/// Rings when one of the requests that somebody waits for has ended.
type Bell = Arc<(Mutex<()>, Condvar)>;

impl fmt::Debug for ForeignRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForeignRequest").field(&self.out()).finish()
    }
}

impl ForeignRequest {
    /// A request, and the half of it that the work has.
    pub fn begin() -> (Arc<Self>, RequestEnd) {
        let request = Arc::<Self>::default();
        (Arc::clone(&request), RequestEnd(request))
    }

    /// Result of the work; `None` while it is under way.
    pub fn out(&self) -> Option<Result<()>> {
        lock(&self.0).out.clone()
    }

    /// Call this when it has ended, on the thread that ends it; now, if it has.
    pub fn then(&self, tell: impl FnOnce(&Result<()>) + Send + 'static) {
        let mut underway = lock(&self.0);
        let Some(out) = underway.out.clone() else { return underway.then.push(Box::new(tell)) };
        drop(underway);
        tell(&out);
    }

    /// Wait until one of these has ended; which, or none by `until`. `None` waits as long as the work takes.
    pub fn wait_any(all: &[&Self], until: Option<Instant>) -> Option<usize> {
        let bell = Bell::default();
        all.iter().for_each(|request| lock(&request.0).waiting.push(Arc::clone(&bell)));
        // An end that is not seen below rings only when this thread waits.
        let mut held = lock(&bell.0);
        let ended = loop {
            let ended = all.iter().position(|request| lock(&request.0).out.is_some());
            let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
            if ended.is_some() || left.is_zero() {
                break ended;
            }
            // WAIT(left): background work, to the caller's limit; without one, calls with deadlines
            held = bell.1.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(held);
        all.iter().for_each(|request| lock(&request.0).waiting.retain(|other| !Arc::ptr_eq(other, &bell)));
        ended
    }

    /// The first word counts.
    fn end(&self, out: Result<()>) {
        let mut underway = lock(&self.0);
        if underway.out.is_some() {
            return;
        }
        let ended = Underway { out: Some(out.clone()), ..Underway::default() };
        let Underway { waiting, then, .. } = mem::replace(&mut *underway, ended);
        drop(underway);
        for bell in waiting {
            drop(lock(&bell.0));
            bell.1.notify_all();
        }
        then.into_iter().for_each(|tell| tell(&out));
    }
}

/// The end of a [`ForeignRequest`], also where its work never runs.
#[derive(Debug)]
pub struct RequestEnd(Arc<ForeignRequest>);

impl RequestEnd {
    /// The work has ended so.
    pub fn set(self, out: Result<()>) {
        self.0.end(out);
    }
}

impl Drop for RequestEnd {
    fn drop(&mut self) {
        let never = io::Error::other("it could not be run: no thread, or a panic");
        self.0.end(Err(Error::os("background work", never)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};

    #[test]
    fn an_end_is_heard_by_who_waits_and_by_who_asked_before_or_after() {
        let (first, first_end) = ForeignRequest::begin();
        let (second, second_end) = ForeignRequest::begin();
        let (tell, told) = mpsc::channel();
        let before = tell.clone();
        second.then(move |out| before.send(out.clone()).unwrap());
        assert_eq!(ForeignRequest::wait_any(&[&first, &second], Some(Instant::now())), None);
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
        thread::scope(|s| {
            let waits = s.spawn(|| ForeignRequest::wait_any(&[&first, &second], None));
            second_end.set(Ok(()));
            assert_eq!(waits.join().unwrap(), Some(1));
        });
        assert_eq!((told.try_recv(), second.out()), (Ok(Ok(())), Some(Ok(()))));
        second.then(move |out| tell.send(out.clone()).unwrap());
        assert_eq!(told.try_recv(), Ok(Ok(())));
        // Nobody is left who would be rung.
        assert!(lock(&first.0).waiting.is_empty());
        // Work that never ran has an end, too.
        assert!(first.out().is_none());
        drop(first_end);
        assert!(first.out().unwrap().unwrap_err().to_string().contains("could not be run"));
    }
}
