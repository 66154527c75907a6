//! The operations of the benchmark: one call, whether it was right, and what its speed counts as.

use comity::{
    Element, Group, ReduceOp, Result, SharedBuffer, View, ViewMut, Wire,
    tools::cuda::{Buffer, Cuda},
};
use comity_check::value::{Data, Deal, Give, Sample};
use comity_kernel::named;
use std::ops::{Deref, DerefMut, Range};

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum BenchOp: "operation" {
        AllReduce => "all_reduce",
        AllGather => "all_gather",
        ReduceScatter => "reduce_scatter",
        Broadcast => "broadcast",
        Reduce => "reduce",
        AllToAll => "all_to_all",
        Gather => "gather",
        Scatter => "scatter",
        SendRecv => "sendrecv",
        PingPong => "pingpong",
        Barrier => "barrier",
    }
}

impl BenchOp {
    /// Meaning of the numbers in the table.
    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::AllReduce => "in place",
            Self::AllGather => "bytes: of the result",
            Self::ReduceScatter => "bytes: of the source",
            Self::Broadcast | Self::Reduce => "roots 0 and 1 in turn",
            Self::AllToAll => "bytes: that a rank holds",
            Self::Gather | Self::Scatter => "bytes: at the root; roots 0 and 1 in turn",
            Self::SendRecv => "every rank to the next, at once",
            Self::PingPong => "half a round trip of ranks 0 and 1",
            Self::Barrier => "",
        }
    }

    /// Returns whether the operation reduces, so that the reduction asked for counts.
    pub(super) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Returns whether the buffer holds a part for each rank.
    pub(super) const fn has_parts(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter)
    }

    /// Calls in one timed step. A root that is always the same would run ahead of the others.
    pub(super) const fn calls(self) -> usize {
        match self {
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter | Self::PingPong => 2,
            _ => 1,
        }
    }

    /// Factor from bytes per second of the buffer to those on each link, as nccl-tests count it.
    pub(super) fn bus(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            _ if self.has_parts() => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

/// The buffers of one operation at one size.
pub(super) struct Cell<'a, T: Element> {
    pub(super) op: BenchOp,
    reduce: ReduceOp,
    wire: Option<Wire>,
    group: &'a Group,
    /// The full buffer.
    full: Twin<T>,
    /// The other one: a part, or of the same size.
    other: Twin<T>,
    device: Option<&'a Cuda>,
}

/// A buffer, and the one in a device's memory that the calls use instead where there is a device.
struct Twin<T: Element> {
    here: HostBuffer<T>,
    there: Option<Buffer>,
}

impl<T: Element> Twin<T> {
    fn new(here: HostBuffer<T>, device: Option<&Cuda>) -> Result<Self> {
        let there = device.map(|cuda| cuda.buffer(size_of_val(&here[..]))).transpose()?;
        let mut twin = Self { here, there };
        twin.up()?;
        Ok(twin)
    }

    fn up(&mut self) -> Result<()> {
        self.there.as_mut().map_or(Ok(()), |there| there.write(&self.here))
    }

    fn down(&mut self) -> Result<()> {
        self.there.as_ref().map_or(Ok(()), |there| there.read(&mut self.here))
    }

    fn view(&self, count: usize) -> View<'_> {
        match &self.there {
            Some(there) => there.view(T::DTYPE, count),
            None => (&self.here[..count]).into(),
        }
    }

    fn view_mut(&mut self, count: usize) -> ViewMut<'_> {
        match &mut self.there {
            Some(there) => there.view_mut(T::DTYPE, count),
            None => (&mut self.here[..count]).into(),
        }
    }
}

impl<'a, T: Sample> Cell<'a, T> {
    /// `count` elements in all; a multiple of the group's size where there are parts. The calls of `group` go by `wire`.
    pub(super) fn new(
        op: BenchOp,
        (reduce, wire): (ReduceOp, Option<Wire>),
        group: &'a Group,
        count: usize,
        device: Option<&'a Cuda>,
        shared: bool,
    ) -> Result<Self> {
        let other = match op {
            BenchOp::AllToAll | BenchOp::SendRecv | BenchOp::PingPong => count,
            _ if op.has_parts() => count / group.size(),
            _ => 0,
        };
        let touched = |n: usize| Twin::new(HostBuffer::new(group, n, shared, T::any), device);
        let mut cell =
            Self { op, reduce, wire, group, full: touched(count)?, other: touched(other)?, device };
        // The first message out of such a buffer is copied: the peers have yet to map it.
        for _ in 0..if shared { 2 } else { 0 } {
            cell.step()?;
        }
        Ok(cell)
    }

    /// Wait until what the calls put on the device's stream is done.
    pub(super) fn finish(&self) -> Result<()> {
        self.device.map_or(Ok(()), Cuda::finish)
    }

    /// Makes the calls that are timed.
    pub(super) fn step(&mut self) -> Result<()> {
        self.call(0)?;
        if self.op.calls() == 2 && self.op != BenchOp::PingPong {
            self.call(1 % self.group.size())?;
        }
        Ok(())
    }

    fn call(&mut self, root: usize) -> Result<()> {
        let Self { group: g, full, other, reduce, .. } = self;
        let reduce = *reduce;
        let len = full.here.len();
        let part = other.here.len();
        let me = g.rank();
        let n = g.size();
        let at_root = if me == root { len } else { 0 };
        match self.op {
            BenchOp::AllReduce => g.all_reduce(full.view_mut(len), reduce),
            BenchOp::AllGather => g.all_gather(other.view(part), full.view_mut(len)),
            BenchOp::ReduceScatter => g.reduce_scatter(full.view(len), other.view_mut(part), reduce),
            BenchOp::Broadcast => g.broadcast(full.view_mut(len), root),
            BenchOp::Reduce => g.reduce(full.view_mut(len), reduce, root),
            BenchOp::AllToAll => g.all_to_all(full.view(len), other.view_mut(part)),
            BenchOp::Gather => g.gather(other.view(part), full.view_mut(at_root), root),
            BenchOp::Scatter => g.scatter(full.view(at_root), other.view_mut(part), root),
            BenchOp::SendRecv if n > 1 => {
                g.sendrecv(full.view(len), (me + 1) % n, other.view_mut(part), (me + n - 1) % n, 0)
            }
            BenchOp::PingPong if n > 1 && me == 0 => {
                g.send(full.view(len), 1, 0)?;
                g.recv(other.view_mut(part), 1, 0)
            }
            BenchOp::PingPong if me == 1 => {
                g.recv(other.view_mut(part), 0, 0)?;
                g.send(full.view(len), 0, 0)
            }
            BenchOp::SendRecv | BenchOp::PingPong => Ok(()),
            BenchOp::Barrier => g.barrier(),
        }
    }

    /// Makes one call, with root 0, on data that every rank knows; returns the number of wrong elements on this rank. Zeros are
    /// left behind.
    pub(super) fn check(&mut self) -> Result<u64> {
        let me = self.group.rank();
        let n = self.group.size();
        let reduce = self.reduce;
        let len = self.full.here.len();
        let part = self.other.here.len();
        // A few numbers for each rank, over and over: many gigabytes may be checked.
        let deal = Deal::new(0, len as u64);
        let give = |r, i| Give { data: Data::Exact, op: reduce, n, draw: deal.draw(r, i), turn: r + i };
        // Hundreds of ranks need no more of them than there are elements.
        let period = PERIOD.min(len.max(part));
        let table: Vec<T> = (0..n * period).map(|k| T::give(give(k / period, k % period))).collect();
        let of = |r: usize, i: usize| table[r * period + i % period];
        let fold = |i| T::fold(reduce, &Vec::from_iter((0..n).map(|r| of(r, i))));
        let folds = if self.op.reduces() { period } else { 0 };
        let folded: Vec<T> = (0..folds).map(fold).collect();
        let sum = |i: usize| folded[i % period];

        let gives_part = matches!(self.op, BenchOp::AllGather | BenchOp::Gather);
        let source = if gives_part { &mut self.other } else { &mut self.full };
        let source = &mut source.here;
        source.iter_mut().enumerate().for_each(|(i, x)| *x = of(me, i));
        self.full.up()?;
        self.other.up()?;
        self.call(0)?;
        self.full.down()?;
        self.other.down()?;
        let full = &self.full.here;
        let other = &self.other.here;
        let each = len / n;
        let prev = (me + n - 1) % n;
        let zero = T::any(0);
        let largest = table.iter().map(|x| x.off(zero)).fold(0.0, f64::max);
        // Each contribution and the sum lose up to 1/124 of the largest of a block of `int8`, and half as much where elements are bf16.
        let most = self.wire.map_or(0.0, |_| n as f64 * largest / 60.0);
        let differ = |got: &[T], op, want: &dyn Fn(usize) -> T| differ(got, op, most, want);
        let wrong = match self.op {
            BenchOp::AllReduce => differ(full, reduce, &sum),
            BenchOp::ReduceScatter => differ(other, reduce, &|i| sum(me * part + i)),
            BenchOp::Reduce => differ(full, reduce, &|i| if me == 0 { sum(i) } else { of(me, i) }),
            BenchOp::AllGather => differ(full, reduce, &|i| of(i / part, i % part)),
            BenchOp::Gather if me == 0 => differ(full, reduce, &|i| of(i / part, i % part)),
            BenchOp::Broadcast => differ(full, reduce, &|i| of(0, i)),
            BenchOp::AllToAll => differ(other, reduce, &|i| of(i / each, me * each + i % each)),
            BenchOp::Scatter => differ(other, reduce, &|i| of(0, me * part + i)),
            BenchOp::SendRecv if n > 1 => differ(other, reduce, &|i| of(prev, i)),
            BenchOp::PingPong if n > 1 && me < 2 => differ(other, reduce, &|i| of(1 - me, i)),
            BenchOp::Gather | BenchOp::SendRecv | BenchOp::PingPong | BenchOp::Barrier => 0,
        };
        self.full.here.fill(T::any(0));
        self.other.here.fill(T::any(0));
        self.full.up()?;
        self.other.up()?;
        Ok(wrong)
    }
}

/// A prime, so that no segment or part begins as another one does.
const PERIOD: usize = 1021;

/// Number of elements of `got` that differ from what is wanted, by more than `most`.
pub(super) fn differ<T: Sample>(got: &[T], op: ReduceOp, most: f64, want: &dyn Fn(usize) -> T) -> u64 {
    let is_wrong = |x: T, y: T| x.bits() != y.bits() && (most == 0.0 || x.off(y) > most);
    got.iter().enumerate().filter(|&(i, &x)| is_wrong(x.settle(op), want(i).settle(op))).count() as u64
}

/// Ordinary memory begins at a multiple of so many bytes, as that of [`Group::alloc`] and of other libraries' benchmarks does.
const PAGE: usize = 4096;

/// A buffer in host memory: ordinary, or such as peers read where it lies.
#[derive(Debug)]
enum HostBuffer<T: Element> {
    /// The elements in the range.
    Private(Vec<T>, Range<usize>),
    Shared(SharedBuffer<T>),
}

impl<T: Element> HostBuffer<T> {
    /// `count` elements, each written: the first touch of a page is no part of a call.
    fn new(group: &Group, count: usize, shared: bool, value: impl Fn(u64) -> T) -> Self {
        if !shared {
            let mut room = Vec::<T>::with_capacity(count + PAGE / size_of::<T>());
            let begin = room.as_ptr().align_offset(PAGE).min(room.capacity() - count);
            room.resize(begin, value(0));
            room.extend((0..count).map(|i| value(i as u64)));
            return Self::Private(room, begin..begin + count);
        }
        let mut buffer = group.alloc(count);
        buffer.iter_mut().enumerate().for_each(|(i, x)| *x = value(i as u64));
        Self::Shared(buffer)
    }
}

impl<T: Element> Deref for HostBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Private(b, range) => &b[range.clone()],
            Self::Shared(b) => b,
        }
    }
}

impl<T: Element> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Private(b, range) => &mut b[range.clone()],
            Self::Shared(b) => b,
        }
    }
}
