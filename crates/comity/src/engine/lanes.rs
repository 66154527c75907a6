//! Calls that lanes carry: the headers go over the links as in every call, then the bytes through memory that all ranks map.

use super::{
    CallProgress, Engine, Members, OutstandingMessages, Progress, StepResult, Stop, Waiting,
    run::{Direction, Task},
};
use crate::{
    Error, Result,
    lanes::{
        Carriage, Collective, LaneCall, LaneMemory, LaneStep, Threads, YIELDS, count_carried, hold_threads,
    },
    status::Header,
    sys::Mapping,
    view::Memory,
};
use comity_plan::{LanePhase, Plan, Schedule};
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
    Ready(Stages),
}

/// Memory that the ranks of a host move their lanes through.
#[derive(Debug)]
pub(super) struct Stages {
    memory: Arc<LaneMemory>,
    /// The ranks that share it, in the order in which it counts them.
    mates: Vec<usize>,
    #[expect(dead_code, reason = "kept as long as lanes are used")]
    threads: Threads,
}

/// Part of a call over several hosts, in bytes: over links, or by lanes, of which all ranks of the host know by then.
#[derive(Debug)]
pub(crate) struct CallPhase {
    schedule: Schedule,
    lanes: Option<LanePhase>,
}

impl CallPhase {
    pub(crate) fn lanes(phase: LanePhase) -> Self {
        Self { schedule: Schedule::new(&Plan { steps: Vec::new(), tmp: 0 }, false), lanes: Some(phase) }
    }

    pub(crate) fn links(schedule: Schedule) -> Self {
        Self { schedule, lanes: None }
    }

    pub(crate) fn tmp(&self) -> usize {
        self.schedule.tmp()
    }
}

/// `call` with what its lanes do in a phase.
fn in_phase(call: LaneCall, phase: &LanePhase) -> LaneCall {
    let LanePhase { adds, input, output, part } = *phase;
    let collective = if adds { Collective::ReduceScatter } else { Collective::AllGather };
    LaneCall { collective, bytes: part, whole: (input.len == output.len).then_some(input.len), ..call }
}

struct LaneRun<'a, 'm> {
    members: &'a Members,
    carriage: Carriage<'m>,
    /// The ranks that carry it together.
    mates: &'a [usize],
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
    /// `schedule` brings a header of `task` from each of the `mates`, which share memory, and from one rank of every other host. It goes four
    /// times: with the first all links stand, with the second the memory has come, the third says whether all of a host is mapped, and
    /// the fourth whether that of all hosts is. A header's hint says whether its sender could do its part.
    pub(crate) fn open_lanes(
        &mut self,
        (lanes, mates): (usize, &[usize]),
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
            let mut heard = (0..schedule.recv_queues()).map(|q| schedule.recv_peer(q));
            Ok::<_, Error>(lends && heard.all(|peer| engine.rx[peer].lends))
        };
        say(self, true, begun)?;
        let own = self.pass_stage(lanes, mates);
        let is_passed = say(self, own.is_some(), &mut || ())?;
        let stage = own.filter(|_| is_passed).and_then(|own| self.take_stages(own, lanes, mates));
        let here = say(self, stage.is_some(), &mut || ())?;
        let all = say(self, here, &mut || ())?;
        self.staging = match stage.filter(|_| all) {
            Some(stage) => Staging::Ready(Stages {
                memory: Arc::new(stage),
                mates: mates.to_vec(),
                threads: hold_threads(),
            }),
            None => Staging::Refused,
        };
        Ok(())
    }

    /// Make this rank's memory for lanes and pass it to the others; none if that was not possible.
    fn pass_stage(&mut self, lanes: usize, mates: &[usize]) -> Option<Mapping> {
        let made = LaneMemory::create(lanes).inspect_err(|e| tracing::info!(%e, "no memory for lanes"));
        let (own, fd) = made.ok()?;
        let passed = mates.iter().all(|&m| self.links[m].as_mut().is_none_or(|l| l.pass_stage(fd.as_fd())));
        passed.then_some(own)
    }

    /// Map what the others have passed.
    fn take_stages(&mut self, own: Mapping, lanes: usize, mates: &[usize]) -> Option<LaneMemory> {
        let me = mates.iter().position(|&m| m == self.members.rank)?;
        let peers = mates.iter().map(|&m| self.links[m].as_mut().and_then(|l| l.take_stage())).collect();
        LaneMemory::new(own, peers, me, lanes)
    }

    /// Carry `call` by lanes: all ranks have said that they make it, and this one began with that at `since`.
    pub(super) fn carry(
        &mut self,
        call: LaneCall,
        memory: &mut Memory<'_>,
        task: &Task<'_>,
        since: Instant,
    ) -> StepResult<()> {
        let Staging::Ready(stages) = &self.staging else { return Ok(()) };
        let carriage = Carriage::start(&stages.memory, call, memory);
        let mates = &stages.mates;
        let limit = task.limit.saturating_sub(since.elapsed());
        let mut waiting = Waiting::new(self.patience.yielding(YIELDS), limit, task.call.copied());
        let members = &self.members;
        let mut run = LaneRun { members, carriage, mates, task, leaver: None };
        super::complete(&mut run, &mut waiting)?;
        self.members.counters.add_sent(call.sent() as u64);
        count_carried(call.sent());
        Ok(())
    }

    /// Make the phases of a call that all ranks which this one depends on have announced. An error as from [`run`](Self::run).
    pub(crate) fn run_phases(
        &mut self,
        phases: &mut [CallPhase],
        memory: &mut Memory<'_>,
        task: &Task<'_>,
        since: Instant,
    ) -> Result<()> {
        for CallPhase { schedule, lanes } in phases {
            let limit = task.limit.saturating_sub(since.elapsed());
            let mut next = Task { lanes: None, short: None, limit, ..*task };
            match lanes {
                None => self.run(schedule, memory, &next, &mut || ())?,
                Some(phase) => {
                    next.lanes = task.lanes.map(|call| in_phase(call, phase));
                    let mut part = memory.part(phase.input, phase.output);
                    self.run(schedule, &mut part, &next, &mut || ())?;
                }
            }
            schedule.reset();
        }
        Ok(())
    }
}

impl LaneRun<'_, '_> {
    fn awaited(&self) -> Option<usize> {
        self.carriage.awaited().and_then(|at| self.mates.get(at).copied())
    }
}

impl Progress for LaneRun<'_, '_> {
    fn members(&self) -> &Members {
        self.members
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
        let Some(peer) = self.awaited().filter(|&p| self.members.status.has_left(p)) else {
            return Ok(false);
        };
        // What it did before it left may not have been seen at the last look.
        if self.leaver.replace(peer) == Some(peer) { Err(Stop::Left(peer)) } else { Ok(true) }
    }

    fn lacking(&self, idle: Duration) -> OutstandingMessages {
        let first = self.awaited().map(|p| (p, idle));
        OutstandingMessages { tell: self.task.call.copied(), first, pair: None }
    }

    fn waits_for(&self) -> Vec<usize> {
        self.awaited().into_iter().collect()
    }

    fn sleep(&mut self, limit: Duration, _: Duration) {
        // WAIT(limit): a part of another rank or thread, to the limit of who calls; the waker wakes for a failure
        self.members.sleep(Vec::new(), limit.min(LANE_NAP));
    }
}
