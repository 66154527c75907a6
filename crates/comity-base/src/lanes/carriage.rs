//! Lanes of a call under way: the memory they move, and the thread that carries each.

use super::{
    MOST_MATES,
    lane::{Act, Flag, LaneProgress, Next, Phases},
    pool::{POOL, SPIN, Worker},
    stage::{Block, Collective, LaneCall, LaneMemory},
};
use crate::{DType, sync::lock, view::Memory};
use comity_kernel as kernel;
use std::{
    cell::Cell,
    hint,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes reduced before they are copied to the stage: they are in the nearest cache then.
const PIECE: usize = 16 << 10;
/// Threads that a thread wakes. Measured with 15 that sleep, on 32 cores: the last one runs after 68 us with two, 42 with four, and 37 where
/// one thread wakes all, which takes it 19.
const WOKEN: usize = 4;
/// Looks of the calling thread at its own lane before it goes on with others: a thread that has just been woken should find its own.
const LOOKS: u32 = 1000;
/// Time for which a thread whose lane waits yields before it sleeps: all ranks are in the call, so what it waits for is under way. Two
/// lanes of which each sleeps while the other works would take a sleep for each window.
pub const YIELDS: Duration = Duration::from_millis(10);
/// The sleep of a thread whose lane waits after that.
const NAP: Duration = Duration::from_micros(500);

/// Progress of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneStep {
    Moved,
    /// It waits for another rank, or for a thread of this one.
    Waits,
    Done,
}

thread_local! {
    /// True if this thread carries all lanes of its calls.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread carries its calls' lanes without others: it makes calls in the background, and the program computes meanwhile on the
/// cores that those would take.
pub fn carry_alone() {
    ALONE.set(true);
}

/// State that all threads of a call share.
#[derive(Debug)]
struct Load {
    stage: Arc<LaneMemory>,
    call: LaneCall,
    input: *const u8,
    output: *mut u8,
    /// Each is locked by the thread that works on it, and for no longer than it does; none: it has ended.
    lanes: Vec<Mutex<Option<LaneProgress>>>,
    /// Lanes that have not ended.
    left: AtomicUsize,
    /// By lane, what its flags come to in this call.
    ends: Vec<u64>,
    /// The call has failed: nothing more is written.
    stopped: AtomicBool,
    /// A thread panicked.
    broken: AtomicBool,
    /// Workers of lane 1 and the lanes after it.
    workers: Vec<Arc<Worker>>,
}

// SAFETY: `input` and `output` are read and written at places of a lane by the thread that has locked it, while the `Carriage` borrows
// them: dropped, it leaves no lane to lock. The rest is shared by its type.
unsafe impl Send for Load {}
// SAFETY: as above.
unsafe impl Sync for Load {}

/// A lane for another thread to begin with.
#[derive(Debug)]
pub(super) struct LaneJob {
    load: Arc<Load>,
    lane: usize,
}

/// Lanes of a call. Dropped, no thread touches the call's memory any more.
#[derive(Debug)]
pub struct Carriage<'a> {
    load: Arc<Load>,
    /// The lane that the calling thread is at; at first its own.
    at: usize,
    /// Looks at its own that found nothing to do.
    looks: u32,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Carriage<'a> {
    /// Have threads begin with `call` over `memory`. All ranks have said that they make the same call.
    pub fn start(stage: &Arc<LaneMemory>, call: LaneCall, memory: &'a mut Memory<'_>) -> Self {
        let ((input, in_len), (output, out_len)) = memory.bounds();
        assert!(call.fits() && call.lanes <= stage.lanes() && call.lengths() == (in_len, out_len));
        let workers = if ALONE.get() { Vec::new() } else { POOL.claim(call.lanes - 1) };
        let lanes: Vec<_> = (0..call.lanes).map(|i| call.lane(i, stage)).collect();
        let load = Arc::new(Load {
            stage: Arc::clone(stage),
            call,
            input,
            output,
            left: AtomicUsize::new(call.lanes),
            ends: lanes.iter().map(LaneProgress::end).collect(),
            lanes: lanes.into_iter().map(|lane| Mutex::new(Some(lane))).collect(),
            stopped: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            workers,
        });
        for (i, worker) in load.workers.iter().enumerate() {
            worker.give(LaneJob { load: Arc::clone(&load), lane: i + 1 });
        }
        load.wake_after(0);
        Self { load, at: 0, looks: 0, memory: PhantomData }
    }

    /// Go on with a lane: this thread's own, or when that has ended or has waited for a while any that no other thread works on.
    pub fn step(&mut self) -> LaneStep {
        let load = &*self.load;
        for _ in 0..load.call.lanes {
            match load.advance(self.at) {
                LaneStep::Moved => {
                    if self.at == 0 {
                        self.looks = 0;
                    }
                    return LaneStep::Moved;
                }
                LaneStep::Waits if self.at == 0 && self.looks < LOOKS && !load.workers.is_empty() => {
                    self.looks += 1;
                    return LaneStep::Waits;
                }
                LaneStep::Waits | LaneStep::Done => self.at = (self.at + 1) % load.call.lanes,
            }
        }
        let ended = load.left.load(Ordering::Acquire) == 0 || self.is_broken();
        if ended { LaneStep::Done } else { LaneStep::Waits }
    }

    /// Another rank that a lane waits for; none if only threads of this rank are at work.
    #[inline]
    pub fn awaited(&self) -> Option<usize> {
        self.load.behind()
    }

    /// Returns true if a thread that carried a lane has panicked.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.load.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Carriage<'_> {
    fn drop(&mut self) {
        let load = &*self.load;
        load.stopped.store(true, Ordering::Release);
        for lane in &load.lanes {
            // WAIT(lane): a thread in the middle of a window, which ends within a millisecond if it has a core
            *lock(lane) = None;
        }
        load.workers.iter().for_each(|w| w.take_back());
        POOL.give_back(load.workers.clone());
    }
}

impl LaneJob {
    /// Carry the lane to its end, or until the call has failed.
    pub(super) fn carry(self) {
        let Self { load, lane } = self;
        load.wake_after(lane);
        let carried = catch_unwind(AssertUnwindSafe(|| load.carry(lane)));
        load.broken.fetch_or(carried.is_err(), Ordering::Relaxed);
    }
}

impl Load {
    /// Wake some of the threads, which wake the next ones: those of a lane's place in a tree.
    fn wake_after(&self, lane: usize) {
        self.workers.iter().skip(WOKEN * lane).take(WOKEN).for_each(|w| w.wake());
    }

    /// A rank that has not come to the end of a lane.
    fn behind(&self) -> Option<usize> {
        let Phases { reduces, takes } = self.call.phases();
        let flags: &[Flag] = if reduces && takes { &[Flag::Staged, Flag::Reduced] } else { &[Flag::Staged] };
        let lanes =
            flags.iter().flat_map(|&flag| self.ends.iter().enumerate().map(move |(i, &n)| (i, flag, n)));
        lanes.filter_map(|(i, flag, number)| self.stage.behind(i, flag, number)).next()
    }

    /// Carry a lane until it has ended or the call has failed.
    fn carry(&self, lane: usize) {
        let mut since = None;
        while !self.stopped.load(Ordering::Acquire) {
            match self.advance(lane) {
                LaneStep::Done => return,
                LaneStep::Moved => since = None,
                LaneStep::Waits => {
                    let waited = since.get_or_insert_with(Instant::now).elapsed();
                    if waited < SPIN {
                        // WAIT(stopped): another rank's lane; the calling thread has the deadline
                        hint::spin_loop();
                    } else if waited < YIELDS {
                        // WAIT(stopped): the same, while others may have its core
                        thread::yield_now();
                    } else {
                        // WAIT(stopped): the same, without its core
                        thread::sleep(NAP);
                    }
                }
            }
        }
    }

    /// Make the next act of a lane, if it can be made now and no other thread works on it. A thread that waits has no lane, so one that has
    /// lost its core meanwhile holds up nobody.
    fn advance(&self, lane: usize) -> LaneStep {
        let Ok(mut turn) = self.lanes[lane].try_lock() else { return LaneStep::Waits };
        let Some(progress) = &mut *turn else { return LaneStep::Done };
        let step = self.step(progress);
        if step == LaneStep::Done {
            *turn = None;
            self.left.fetch_sub(1, Ordering::Release);
        }
        step
    }

    /// Make the next act of a lane, if it can be made now.
    fn step(&self, lane: &mut LaneProgress) -> LaneStep {
        let phases = self.call.phases();
        let act = match lane.next(phases) {
            Next::End => return LaneStep::Done,
            Next::After(flag, then) => match self.stage.behind(lane.index, flag, lane.number()) {
                Some(_) => return LaneStep::Waits,
                None => then,
            },
            Next::Now(act) => act,
        };
        match act {
            Act::Stage => self.put(lane),
            Act::Reduce => self.reduce(lane),
            Act::Take => self.take(lane),
        }
        let number = lane.number();
        if let Some(flag) = lane.did(act, phases) {
            self.stage.raise(lane.index, flag, number);
        }
        LaneStep::Moved
    }

    /// Copy what the others need to this rank's stage.
    fn put(&self, lane: &LaneProgress) {
        let w = self.call.window_of(lane);
        let to = self.own(lane);
        let me = self.call.rank;
        let put = |i| {
            let Block { at, slot, len } = self.call.block(w, i);
            // SAFETY: inside `In` and inside this lane's window, which no rank reads before the flag is raised, and none still reads
            // from before (see `lane`); another thread writes neither.
            unsafe { ptr::copy_nonoverlapping(self.input.add(at), to.add(slot), len) };
        };
        match self.call.collective {
            Collective::Broadcast(root) if root != me => {}
            Collective::Broadcast(_) | Collective::AllGather => put(me),
            _ => self.call.others().for_each(put),
        }
    }

    /// Reduce this rank's part of all, to its place and, if others take it, to this rank's stage.
    fn reduce(&self, lane: &LaneProgress) {
        let call = &self.call;
        let w = call.window_of(lane);
        let own = self.own(lane);
        let size = call.size;
        let Block { at, slot, len } = call.block(w, call.rank);
        let result = call.result(w, at);
        let mut from = [ptr::null(); MOST_MATES];
        for (rank, from) in from.iter_mut().enumerate().take(size).filter(|(r, _)| *r != call.rank) {
            // SAFETY: inside a window of that rank's stage.
            *from = unsafe { self.stage.window(rank, lane.index, lane.half()).add(slot) }.cast_const();
        }
        let mut done = 0;
        while done < len {
            let n = PIECE.min(len - done);
            let mut operands: [&[u8]; MOST_MATES] = [&[]; MOST_MATES];
            let others = (0..size).filter(|&r| r != call.rank);
            for (operand, rank) in operands.iter_mut().zip(others) {
                // SAFETY: inside that window; that rank writes there no more before this one has raised its flag for a later window.
                *operand = unsafe { slice::from_raw_parts(from[rank].add(done), n) };
            }
            let (before, after) = operands[..size - 1].split_at(call.rank);
            // SAFETY: inside `In` and inside `Out`, in this lane's part of them, which no other thread has.
            let (input, out) = unsafe { (self.input.add(at + done), self.output.add(result + done)) };
            let in_place = input == out.cast_const();
            // SAFETY: as above. Where they are not the same bytes, `In` and `Out` do not overlap, or do as whole parts.
            let (own_in, dst) = unsafe {
                ((!in_place).then(|| slice::from_raw_parts(input, n)), slice::from_raw_parts_mut(out, n))
            };
            kernel::n_way_reduce(call.dtype, call.reduce, size, dst, own_in, before, after);
            if call.collective == Collective::AllReduce {
                // SAFETY: inside this lane's window, at the part that no other rank reads before the flag is raised.
                unsafe { ptr::copy_nonoverlapping(out.cast_const(), own.add(slot + done), n) };
            }
            done += n;
        }
    }

    /// Copy the others' parts out of their stages.
    fn take(&self, lane: &LaneProgress) {
        let call = &self.call;
        let w = call.window_of(lane);
        for rank in call.sources() {
            let Block { at, slot, len } = call.coming(w, rank);
            let from = self.stage.window(rank, lane.index, lane.half());
            // SAFETY: inside that rank's window, which stays until this rank's next flag, and inside this lane's part of `Out`.
            let dst = unsafe {
                ptr::copy_nonoverlapping(from.add(slot).cast_const(), self.output.add(at), len);
                slice::from_raw_parts_mut(self.output.add(at), len)
            };
            if call.dtype == DType::Bool {
                kernel::normalise_bool(dst);
            }
        }
        if matches!(call.collective, Collective::AllGather | Collective::AllToAll) {
            let own = call.block(w, call.rank);
            let here = call.coming(w, call.rank);
            // SAFETY: inside `In` and `Out`, in this lane's part of them.
            let (from, to) = unsafe { (self.input.add(own.at), self.output.add(here.at)) };
            if from != to.cast_const() {
                // SAFETY: as above; `copy` allows overlap.
                unsafe { ptr::copy(from, to, own.len) };
            }
        }
    }

    /// The window of this rank's stage.
    fn own(&self, lane: &LaneProgress) -> *mut u8 {
        self.stage.window(self.call.rank, lane.index, lane.half())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::tests::stages, *};
    use crate::{ReduceOp, View, ViewMut, lanes::Collective};
    use std::array;

    #[test]
    fn a_thread_that_gets_no_core_any_more_holds_up_no_call_and_the_background_wakes_none() {
        const COUNT: usize = 100_000;
        // A thread of its own: it carries alone from then on.
        let here = || {
            carry_alone();
            let stages = stages(2, 3);
            let inputs: [[f32; 2]; 2] = [[1.0, 2.0], [3.0, 4.0]];
            let bytes = |of: [f32; 2]| -> Vec<u8> {
                of.repeat(COUNT / 2).iter().flat_map(|x| x.to_ne_bytes()).collect()
            };
            let [a, b] = inputs.map(bytes);
            let [mut x, mut y]: [Vec<u8>; 2] = array::from_fn(|_| vec![0; 4 * COUNT]);
            let mut memories = [(&a, &mut x), (&b, &mut y)].map(|(i, o)| {
                Memory::new(Some(View::from(&i[..])), Some(ViewMut::from(&mut o[..])), &mut [])
            });
            let call = |rank| LaneCall {
                collective: Collective::AllReduce,
                dtype: DType::F32,
                reduce: ReduceOp::Sum,
                rank,
                size: 2,
                bytes: 4 * COUNT,
                whole: None,
                lanes: 3,
            };
            let mut ranks: Vec<_> = (0..2)
                .zip(&mut memories)
                .map(|(rank, memory)| Carriage::start(&stages[rank], call(rank), memory))
                .collect();
            assert!(ranks.iter().all(|r| r.load.workers.is_empty()));
            // As threads that have begun with lanes of rank 0, and are never seen again.
            assert_eq!([1, 2].map(|lane| ranks[0].load.advance(lane)), [LaneStep::Moved; 2]);
            let mut steps = 0;
            while ranks.iter_mut().map(Carriage::step).filter(|s| *s == LaneStep::Done).count() < 2 {
                steps += 1;
                assert!(steps < 10_000, "a lane is held");
            }
            drop(ranks);
            assert!(x == bytes([4.0, 6.0]) && x == y);
        };
        thread::spawn(here).join().unwrap();
    }
}
