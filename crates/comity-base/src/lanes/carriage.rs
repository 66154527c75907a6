//! Lanes of a call under way: the memory they move, and the thread that carries each.

use super::{
    MOST_MATES,
    lane::{Act, Flag, LaneProgress, Next, Phases},
    layout::{Block, Collective, LaneCall},
    pool::{POOL, SPIN, Worker},
    stage::LaneMemory,
};
use crate::{DType, view::Memory};
use comity_kernel as kernel;
use std::{
    hint,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::{
        Arc,
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
/// Time for which a thread in the middle of a lane yields before it sleeps: all ranks are in the call, so what it waits for is under way. Two
/// lanes of which each sleeps while the other works would take a sleep for each window.
pub const YIELDS: Duration = Duration::from_millis(10);
/// The sleep of a thread in the middle of a lane after that.
const NAP: Duration = Duration::from_micros(500);

/// Progress of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneStep {
    Moved,
    /// It waits for another rank, or for a thread of this one.
    Waits,
    Done,
}

/// State that all threads of a call share.
#[derive(Debug)]
struct Load {
    stage: Arc<LaneMemory>,
    call: LaneCall,
    input: *const u8,
    output: *mut u8,
    /// True for each lane that has a thread.
    taken: Vec<AtomicBool>,
    /// Lanes that have not ended.
    left: AtomicUsize,
    /// By lane, what its flags come to in this call.
    ends: Vec<u64>,
    /// The call has failed: nothing more is written.
    stopped: AtomicBool,
    /// A lane came to an end that it should not have come to.
    broken: AtomicBool,
    /// Workers of lane 1 and the lanes after it.
    workers: Vec<Arc<Worker>>,
}

// SAFETY: `input` and `output` are read and written by the threads of one call at places of their own lane, while the `Carriage` borrows
// them; the rest is shared by its type.
unsafe impl Send for Load {}
// SAFETY: as above.
unsafe impl Sync for Load {}

/// A lane for another thread.
#[derive(Debug)]
pub(super) struct LaneJob {
    load: Arc<Load>,
    lane: usize,
}

/// Lanes of a call, and the lane that the calling thread carries. Dropped, no thread touches the call's memory any more.
#[derive(Debug)]
pub struct Carriage<'a> {
    load: Arc<Load>,
    mine: Option<LaneProgress>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Carriage<'a> {
    /// Have threads begin with `call` over `memory`. All ranks have said that they make the same call.
    pub fn start(stage: &Arc<LaneMemory>, call: LaneCall, memory: &'a mut Memory<'_>) -> Self {
        let ((input, in_len), (output, out_len)) = memory.bounds();
        assert!(call.fits() && call.lanes <= stage.lanes() && call.lengths() == (in_len, out_len));
        let workers = POOL.claim(call.lanes - 1);
        let taken = (0..call.lanes).map(|lane| AtomicBool::new(lane == 0)).collect();
        let load = Arc::new(Load {
            stage: Arc::clone(stage),
            call,
            input,
            output,
            taken,
            left: AtomicUsize::new(call.lanes),
            ends: (0..call.lanes).map(|i| call.lane(i, stage).end()).collect(),
            stopped: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            workers,
        });
        for (i, worker) in load.workers.iter().enumerate() {
            worker.give(LaneJob { load: Arc::clone(&load), lane: i + 1 });
        }
        load.wake_after(0);
        let mine = Some(call.lane(0, stage));
        Self { load, mine, memory: PhantomData }
    }

    /// Go on with what this thread carries.
    pub fn step(&mut self) -> LaneStep {
        let load = &*self.load;
        if let Some(lane) = &mut self.mine {
            match load.step(lane) {
                LaneStep::Done => load.left.fetch_sub(1, Ordering::Release),
                step => return step,
            };
            self.mine = None;
        }
        if let Some(i) = load.take_lane() {
            self.mine = Some(load.call.lane(i, &load.stage));
            return LaneStep::Moved;
        }
        if load.left.load(Ordering::Acquire) == 0 { LaneStep::Done } else { LaneStep::Waits }
    }

    /// Another rank that a lane waits for; none if only threads of this rank are at work.
    #[inline]
    pub fn awaited(&self) -> Option<usize> {
        self.load.behind()
    }

    /// Returns true if a lane ended as none should.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.load.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Carriage<'_> {
    fn drop(&mut self) {
        let load = &*self.load;
        load.stopped.store(true, Ordering::Release);
        let mut mine = usize::from(self.mine.is_some());
        while load.take_lane().is_some() {
            mine += 1;
        }
        load.left.fetch_sub(mine, Ordering::Release);
        let mut looks = 0u32;
        while load.left.load(Ordering::Acquire) > 0 {
            looks = looks.saturating_add(1);
            if looks < 1000 {
                // WAIT(left): threads in the middle of a window, or in a nap: both end within a millisecond
                hint::spin_loop();
            } else {
                // WAIT(left): the same
                thread::yield_now();
            }
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
        if !load.taken[lane].swap(true, Ordering::Relaxed) {
            let carried = catch_unwind(AssertUnwindSafe(|| load.carry(lane)));
            load.broken.fetch_or(carried.is_err(), Ordering::Relaxed);
            load.left.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Load {
    /// A lane that no thread has begun.
    fn take_lane(&self) -> Option<usize> {
        self.taken.iter().position(|t| !t.load(Ordering::Relaxed) && !t.swap(true, Ordering::Relaxed))
    }

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

    /// Carry a lane to its end, or until the call has failed.
    fn carry(&self, lane: usize) {
        let mut lane = self.call.lane(lane, &self.stage);
        let mut since = None;
        while !self.stopped.load(Ordering::Acquire) {
            match self.step(&mut lane) {
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
