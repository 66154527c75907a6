//! Calls that lanes carry: the headers go over the links as in every call, then the bytes through memory that all ranks map.

use super::{
    CallProgress, Engine, Members, OutstandingMessages, Progress, StepResult, Stop, Waiting,
    run::{Direction, Task},
};
use crate::{
    Error, Result,
    lanes::{Carriage, LaneCall, LaneMemory, LaneStep, Threads, YIELDS, count_carried, hold_threads},
    status::Header,
    sys::Mapping,
    view::Memory,
};
use comity_plan::Schedule;
use std::{
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// The longest sleep while another rank, or a thread of this one, works on its part.
const LANE_NAP: Duration = Duration::from_millis(1);

/// Knowledge of the use of lanes by the ranks of a group: the same on all of them.
#[derive(Debug, Default)]
pub(super) enum Staging {
    /// Nobody has asked yet.
    #[default]
    Open,
    /// A rank could not make or map the memory.
    Refused,
    Ready(Arc<LaneMemory>, #[expect(dead_code, reason = "kept as long as lanes are used")] Threads),
}

/// A call's lanes under way.
struct LaneRun<'a, 'm> {
    engine: &'a mut Engine,
    carriage: Carriage<'m>,
    task: &'a Task<'a>,
    /// Members that had left at the last look that found nothing.
    leaver: Option<usize>,
}

impl Engine {
    /// True if all ranks can use lanes; none: they have not found out yet.
    pub(crate) fn has_lanes(&self) -> Option<bool> {
        match self.staging {
            Staging::Open => None,
            Staging::Refused => Some(false),
            Staging::Ready(..) => Some(true),
        }
    }

    /// Find out whether all ranks can use so many lanes: each passes its memory to the others, maps theirs, and says how that went.
    ///
    /// `schedule` brings a header of `task` from each rank to each. It goes three times: with the first all links stand, with the second
    /// the memory has come, and the third says whether all of it is mapped. A header's hint says whether its sender could do its part.
    pub(crate) fn open_lanes(
        &mut self,
        lanes: usize,
        schedule: &mut Schedule,
        task: &Task<'_>,
        begun: &mut dyn FnMut(),
    ) -> Result<()> {
        let since = Instant::now();
        let mut say = |engine: &mut Self, lends, begun: &mut dyn FnMut()| {
            let header = |direction: Direction, peer| Header { lends, ..(task.header)(direction, peer) };
            let limit = task.limit.saturating_sub(since.elapsed());
            let task = Task { header: &header, limit, ..*task };
            engine.run(schedule, &mut Memory::new(None, None, &mut []), &task, begun)?;
            schedule.reset();
            Ok::<_, Error>(lends && engine.all_lend())
        };
        say(self, true, begun)?;
        let own = self.pass_stage(lanes);
        let is_passed = say(self, own.is_some(), &mut || ())?;
        let stage = own.filter(|_| is_passed).and_then(|own| self.take_stages(own, lanes));
        let all = say(self, stage.is_some(), &mut || ())?;
        self.staging = match stage.filter(|_| all) {
            Some(stage) => Staging::Ready(Arc::new(stage), hold_threads()),
            None => Staging::Refused,
        };
        Ok(())
    }

    /// Make this rank's memory for lanes and pass it to the others; none if that was not possible.
    fn pass_stage(&mut self, lanes: usize) -> Option<Mapping> {
        let made = LaneMemory::create(lanes).inspect_err(|e| tracing::info!(%e, "no memory for lanes"));
        let (own, fd) = made.ok()?;
        let passed = self.links.iter_mut().flatten().all(|link| link.pass_stage(fd.as_fd()));
        passed.then_some(own)
    }

    /// Map what the others have passed.
    fn take_stages(&mut self, own: Mapping, lanes: usize) -> Option<LaneMemory> {
        let peers = self.links.iter_mut().map(|l| l.as_mut().and_then(|l| l.take_stage())).collect();
        LaneMemory::new(own, peers, self.members.rank, lanes)
    }

    /// Carry `call` by lanes: all ranks have said that they make it, and this one began with that at `since`.
    pub(super) fn carry(
        &mut self,
        call: LaneCall,
        memory: &mut Memory<'_>,
        task: &Task<'_>,
        since: Instant,
    ) -> StepResult<()> {
        let Staging::Ready(stage, _) = &self.staging else { return Ok(()) };
        let carriage = Carriage::start(stage, call, memory);
        let limit = task.limit.saturating_sub(since.elapsed());
        let mut waiting = Waiting::new(self.patience.yielding(YIELDS), limit, task.call.copied());
        let mut run = LaneRun { engine: self, carriage, task, leaver: None };
        super::complete(&mut run, &mut waiting)?;
        self.members.counters.add_sent(call.sent() as u64);
        count_carried(call.sent());
        Ok(())
    }
}

impl Progress for LaneRun<'_, '_> {
    fn members(&self) -> &Members {
        &self.engine.members
    }

    fn step(&mut self) -> StepResult<CallProgress> {
        Ok(match self.carriage.step() {
            LaneStep::Moved => CallProgress::Moved,
            LaneStep::Waits => CallProgress::Stuck,
            LaneStep::Done if self.carriage.is_broken() => {
                let what = "a thread that carried a part of the call panicked";
                return Err(Stop::Own(Error::os("moving a message with lanes", std::io::Error::other(what))));
            }
            LaneStep::Done => CallProgress::Done,
        })
    }

    fn idle(&mut self, _: Duration) -> StepResult<bool> {
        let awaited = self.carriage.awaited();
        let Some(peer) = awaited.filter(|&p| self.engine.members.status.has_left(p)) else {
            return Ok(false);
        };
        // What it did before it left may not have been seen at the last look.
        if self.leaver.replace(peer) == Some(peer) { Err(Stop::Left(peer)) } else { Ok(true) }
    }

    fn lacking(&self, idle: Duration) -> OutstandingMessages {
        let first = self.carriage.awaited().map(|p| (p, idle));
        OutstandingMessages { tell: self.task.call.copied(), first, pair: None }
    }

    fn waits_for(&self) -> Vec<usize> {
        self.carriage.awaited().into_iter().collect()
    }

    fn sleep(&mut self, limit: Duration, _: Duration) {
        // WAIT(limit): a part of another rank or thread, to the limit of who calls; the waker wakes for a failure
        self.engine.members.sleep(Vec::new(), limit.min(LANE_NAP));
    }
}
