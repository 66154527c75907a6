//! A row of the table under way: its cases, their buffers, and the differences that were found.

use super::{
    Options,
    report::Difference,
    value::{Data, Deal, Give, Sample},
};
use comity::{
    DType, Group, ReduceOp, Result, View, ViewMut,
    tools::cuda::{Buffer, Cuda},
};
use std::fmt;
use std::ops::Range;

/// Elements before and after each buffer that nobody may touch.
const GUARD: usize = 5;
/// Up to this many elements every root is tried; above, one root a case, in turn.
const SMALL: usize = 1000;

/// A row of the table: one method of the group, on every type and size.
pub(super) struct CheckRow<'a> {
    pub(super) group: &'a Group,
    pub(super) options: &'a Options,
    pub(super) name: String,
    /// Calls, the same number on every rank.
    pub(super) cases: u64,
    pub(super) dtypes: Vec<DType>,
    pub(super) sizes: Option<(usize, usize)>,
    /// Calls with a wrong result on this rank.
    pub(super) wrong: u64,
    pub(super) first: Option<Difference>,
}

/// Description of a call, for a difference.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Case {
    pub(super) dtype: Option<DType>,
    pub(super) reduce: Option<ReduceOp>,
    pub(super) count: usize,
    pub(super) root: Option<usize>,
    /// Further facts, such as the kind of data.
    pub(super) note: &'static str,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(dtype) = self.dtype {
            write!(f, " {dtype}[{}]", self.count)?;
        }
        if let Some(reduce) = self.reduce {
            write!(f, " {reduce}")?;
        }
        if let Some(root) = self.root {
            write!(f, " root {root}")?;
        }
        if self.note.is_empty() { Ok(()) } else { write!(f, " ({})", self.note) }
    }
}

impl<'a> CheckRow<'a> {
    pub(super) fn new(group: &'a Group, options: &'a Options, name: impl Into<String>) -> Self {
        Self {
            group,
            options,
            name: name.into(),
            cases: 0,
            dtypes: Vec::new(),
            sizes: None,
            wrong: 0,
            first: None,
        }
    }

    pub(super) fn n(&self) -> usize {
        self.group.size()
    }

    pub(super) fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The numbers of a case: of the next call, so that no two calls move the same.
    pub(super) fn deal(&self) -> Deal {
        let name = self.name.bytes().fold(0u64, |h, b| h.wrapping_mul(257).wrapping_add(b.into()));
        Deal::new(self.options.seed ^ name << 20, self.cases)
    }

    /// A call on `count` elements of `T` is about to be made.
    pub(super) fn case<T: Sample>(&mut self, count: usize) -> Case {
        self.cases += 1;
        if !self.dtypes.contains(&T::DTYPE) {
            self.dtypes.push(T::DTYPE);
        }
        let (least, most) = self.sizes.unwrap_or((count, count));
        self.sizes = Some((least.min(count), most.max(count)));
        Case { dtype: Some(T::DTYPE), count, ..Case::default() }
    }

    /// The roots to try with `count` elements.
    pub(super) fn roots(&self, count: usize) -> Range<usize> {
        let n = self.n();
        if count <= SMALL && n <= 64 {
            return 0..n;
        }
        // Whatever the seed: ranks must agree on the calls they make.
        let root = Deal::new(0, self.cases).draw(0, count) as usize % n;
        root..root + 1
    }

    /// Elements to try: none, fewer than ranks, what does not divide, and more.
    pub(super) fn sizes(&self) -> Vec<usize> {
        let n = self.n();
        let mut sizes = vec![0, 1, n - 1, n + 1, 67, 4099];
        if !self.options.quick {
            sizes.extend([2, 3, 7, n, 64, 255, 1000, 65_537]);
        }
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Elements of large buffers of a type: more than 1 MiB, where plans work in segments, by odd numbers.
    pub(super) fn large(&self, dtype: DType) -> &'static [usize] {
        match dtype {
            DType::F32 if self.options.quick => &[263_001],
            _ if self.options.quick => &[],
            DType::U8 => &[1_500_007],
            DType::BF16 => &[700_001],
            DType::F32 => &[270_001, 1_400_003],
            DType::F64 => &[150_001],
            _ => &[],
        }
    }

    pub(super) fn whole(&self, dtype: DType) -> Vec<usize> {
        [&self.sizes(), self.large(dtype)].concat()
    }

    /// Elements per rank of buffers that hold a part for each.
    pub(super) fn parts(&self, dtype: DType) -> Vec<usize> {
        let large = self.large(dtype).iter().map(|l| l / self.n() + 1);
        let mut sizes = self.sizes();
        sizes.retain(|&s| s <= 65_537 / self.n().min(8) + 1);
        sizes.extend(large);
        sizes
    }

    /// Makes a call on one buffer: on host memory as it is, or by way of a device's memory and back.
    pub(super) fn in_place<T: Sample>(
        &self,
        buf: &mut GuardedBuffer<T>,
        call: impl FnOnce(&Group, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let buf = buf.get_mut();
        let Some(cuda) = &self.options.device else { return call(self.group, buf.into()) };
        let mut there = up(cuda, buf)?;
        call(self.group, there.view_mut(T::DTYPE, buf.len()))?;
        there.read(buf)
    }

    /// The same of a call on a source and a destination.
    pub(super) fn both<T: Sample>(
        &self,
        src: &GuardedBuffer<T>,
        dst: &mut GuardedBuffer<T>,
        call: impl FnOnce(&Group, View<'_>, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let dst = dst.get_mut();
        let Some(cuda) = &self.options.device else {
            return call(self.group, src.get().into(), dst.into());
        };
        let from = up(cuda, src.get())?;
        let mut to = up(cuda, dst)?;
        call(self.group, from.view(T::DTYPE, src.get().len()), to.view_mut(T::DTYPE, dst.len()))?;
        to.read(dst)
    }

    /// A new buffer of `len` elements, after a call on a source and it.
    pub(super) fn filled<T: Sample>(
        &self,
        src: &GuardedBuffer<T>,
        len: usize,
        call: impl FnOnce(&Group, View<'_>, ViewMut<'_>) -> Result<()>,
    ) -> Result<GuardedBuffer<T>> {
        let mut dst = GuardedBuffer::stale(len);
        self.both(src, &mut dst, call)?;
        Ok(dst)
    }

    pub(super) fn send<T: Sample>(&self, src: &GuardedBuffer<T>, to: usize, tag: u32) -> Result<()> {
        let Some(cuda) = &self.options.device else { return self.group.send(src.get(), to, tag) };
        let from = up(cuda, src.get())?;
        self.group.send(from.view(T::DTYPE, src.get().len()), to, tag)?;
        // The memory is given back here.
        cuda.finish()
    }

    /// Hold `got` against what was expected, bit for bit.
    pub(super) fn expect<T: Sample>(&mut self, case: &Case, got: &[T], want: impl Fn(usize) -> T) {
        self.expect_each(case, got, &want);
    }

    /// Compiled once for each type, and not once more for each place that expects something.
    fn expect_each<T: Sample>(&mut self, case: &Case, got: &[T], want: &dyn Fn(usize) -> T) {
        let wrong = got.iter().enumerate().find(|&(i, x)| x.bits() != want(i).bits());
        if let Some((i, x)) = wrong {
            self.differs(case, Some(i), format!("{x:?}"), format!("{:?}", want(i)));
        }
    }

    /// Like [`expect`](Self::expect), where a complex product's zeros may have either sign.
    pub(super) fn expect_reduced<T: Sample>(&mut self, case: &Case, op: ReduceOp, got: &[T], want: &[T]) {
        let settled = |x: T| x.settle(op).bits();
        let wrong = got.iter().zip(want).position(|(&x, &y)| settled(x) != settled(y));
        if let Some(i) = wrong {
            self.differs(case, Some(i), format!("{:?}", got[i]), format!("{:?}", want[i]));
        }
    }

    /// Hold a buffer against what was expected, and that no memory beside it was written.
    pub(super) fn expect_buffer<T: Sample>(
        &mut self,
        case: &Case,
        buf: &GuardedBuffer<T>,
        want: impl Fn(usize) -> T,
    ) {
        self.expect_each(case, buf.get(), &want);
        self.expect_guarded(case, buf);
    }

    /// Something else than an element.
    pub(super) fn expect_that(&mut self, case: &Case, holds: bool, got: &str, expected: &str) {
        if !holds {
            self.differs(case, None, got.into(), expected.into());
        }
    }

    /// Checks that no memory beside the buffer was written.
    pub(super) fn expect_guarded<T: Sample>(&mut self, case: &Case, buf: &GuardedBuffer<T>) {
        let len = buf.all.len();
        let beside = (0..GUARD).chain(len - GUARD..len);
        for at in beside {
            if buf.all[at].bits() != stale::<T>(at).bits() {
                let got = format!(
                    "{:?} written beside the buffer, at {}",
                    buf.all[at],
                    at as isize - GUARD as isize
                );
                return self.differs(case, None, got, format!("{:?} as before", stale::<T>(at)));
            }
        }
    }

    /// Hold the bits of `got` against those of the other ranks. A call of its own.
    pub(super) fn expect_everywhere<T: Sample>(&mut self, case: &Case, got: &[T]) -> Result<()> {
        let own =
            got.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, x| (h ^ x.bits()).wrapping_mul(0x100_0000_01b3));
        let mut all = vec![0u64; self.n()];
        self.group.all_gather(&[own], &mut all)?;
        if let Some(r) = all.iter().position(|&h| h != own) {
            let got = format!("bits with hash {own:016x}");
            self.differs(case, None, got, format!("the same as rank {r}, {:016x}", all[r]));
        }
        Ok(())
    }

    pub(super) fn differs(&mut self, case: &Case, index: Option<usize>, got: String, expected: String) {
        self.wrong += 1;
        let rank = self.rank();
        self.first.get_or_insert_with(|| {
            let index = index.map_or_else(String::new, |i| format!(", index {i}"));
            let text = format!("{}{case}, rank {rank}{index}: got {got}, expected {expected}", self.name);
            Difference { rank, text }
        });
    }
}

fn up<T: Sample>(cuda: &Cuda, data: &[T]) -> Result<Buffer> {
    let mut buffer = cuda.buffer(size_of_val(data))?;
    buffer.write(data)?;
    Ok(buffer)
}

/// Returns the value that rank `r` gives at `i` in a reduction.
pub(super) fn given<T: Sample>(deal: Deal, data: Data, op: ReduceOp, n: usize) -> impl Fn(usize, usize) -> T {
    move |r, i| T::give(Give { data, op, n, draw: deal.draw(r, i), turn: r + i })
}

/// A buffer between guards, at an odd place in memory where the type allows one.
pub(super) struct GuardedBuffer<T> {
    all: Vec<T>,
}

impl<T: Sample> GuardedBuffer<T> {
    pub(super) fn new(count: usize, of: impl Fn(usize) -> T) -> Self {
        Self::filled(count, &of)
    }

    /// Like [`CheckRow::expect_each`]: compiled once for each type.
    fn filled(count: usize, of: &dyn Fn(usize) -> T) -> Self {
        let total = count + 2 * GUARD;
        let value = |at: usize| if (GUARD..GUARD + count).contains(&at) { of(at - GUARD) } else { stale(at) };
        Self { all: (0..total).map(value).collect() }
    }

    /// For results: what is in it must not matter.
    pub(super) fn stale(count: usize) -> Self {
        Self { all: (0..count + 2 * GUARD).map(stale).collect() }
    }

    pub(super) fn get(&self) -> &[T] {
        &self.all[GUARD..self.all.len() - GUARD]
    }

    pub(super) fn get_mut(&mut self) -> &mut [T] {
        let end = self.all.len() - GUARD;
        &mut self.all[GUARD..end]
    }
}

fn stale<T: Sample>(at: usize) -> T {
    T::any(!(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
