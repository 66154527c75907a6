//! send, recv and sendrecv: two ranks' messages, each under its tag.

use super::{KEPT, NativeBackend, lent::MOST_ONE_WAY};
use crate::{
    CallInfo, DType, ErrorKind, Result,
    backend::{Bufs, Call},
    engine::{Direction, ShortHeaders, Task, is_short},
    status::{HEADER, Header},
    view::Memory,
};
use comity_kernel as kernel;
use comity_plan::{Buf, Plan, ReceiveMode, Schedule, Slice, Step, StepOp};
use std::time::Duration;

impl NativeBackend {
    pub(super) fn pair(
        &mut self,
        call: &mut Call<'_>,
        limit: Duration,
        begun: &mut dyn FnMut(),
    ) -> Result<()> {
        // By reference: a copy of what was written word by word a moment ago would wait for it.
        let info = &call.info;
        let group_id = self.members().group_id as u32;
        let to = call.counts.first().copied();
        let from = call.recv_counts.first().copied();
        let (src, dst) = match call.bufs.take() {
            Bufs::In(s) => (Some(s), None),
            Bufs::Out(d) => (None, Some(d)),
            Bufs::Both(s, d) => (Some(s), Some(d)),
            _ => (None, None),
        };
        let message =
            |count: usize, dtype: DType, other: usize| CallInfo::sent(count, dtype, other, info.tag);
        let out = src.zip(to).map(|(s, to)| message(s.count(), s.dtype(), to));
        let mut into = dst.as_ref().zip(from).map(|(d, from)| message(d.count(), d.dtype(), from));
        let mut route = Route {
            out: src.zip(to).map(|(s, to)| (to, s.len_bytes())),
            into: dst.as_ref().zip(from).map(|(d, from)| (from, d.len_bytes())),
        };
        let mut memory = Memory::new(src, dst, &mut []);
        if let (Some(m), Some(from)) = (&into, route.into)
            && self.take_kept(info, from, m, &mut memory)?
        {
            into = None;
            route.into = None;
        }
        let header = |direction: Direction, _: usize| {
            let of = if direction == Direction::Out { &out } else { &into };
            Header { info: of.unwrap_or(*info), shape: 0, group_id, lends: false }
        };
        let at = self.come_near(route);
        let Some((_, kept)) = self.routes.get_mut(at) else { return Err(ErrorKind::Closed.into()) };
        let encoded =
            |there: bool, direction| if there { header(direction, 0).encode() } else { [0; HEADER] };
        let short = kept.short.then(|| ShortHeaders {
            out: encoded(out.is_some(), Direction::Out),
            into: encoded(into.is_some(), Direction::In),
        });
        let pulls = route.out.is_some_and(|(_, len)| len <= MOST_ONE_WAY);
        let dtype = info.dtype.unwrap_or(DType::U8);
        let short = short.as_ref();
        let task = Task { dtype, pulls, short, ..Task::of(info, &header, None, limit) };
        if let Err(e) = self.engine.run(&mut kept.schedule, &mut memory, &task, begun) {
            // In the middle of a call that failed: of no use for another.
            self.routes.remove(at);
            return Err(e);
        }
        kept.schedule.reset();
        Ok(())
    }

    /// Take the message that is expected if it came before its call and was kept; whether it was.
    fn take_kept(
        &mut self,
        info: &CallInfo,
        (from, len): (usize, usize),
        m: &CallInfo,
        memory: &mut Memory<'_>,
    ) -> Result<bool> {
        let Some((h, bytes)) = self.engine.unstash(from, |h| h.info.tag == m.tag) else { return Ok(false) };
        if (h.info.count, h.info.dtype) != (m.count, m.dtype) {
            let differs = if h.info.dtype == m.dtype { "count" } else { "dtype" };
            return Err(self.engine.refuse(from, *info, h, differs));
        }
        let dst = memory.write(Slice::new(Buf::Out, 0, len));
        dst.copy_from_slice(&bytes);
        if m.dtype == Some(DType::Bool) {
            kernel::normalise_bool(dst);
        }
        Ok(true)
    }

    /// Returns the index of this route's schedule among those kept, not in the oldest quarter. So nearly those used least lately go first,
    /// and a rank that sends and receives in turn moves nothing.
    fn come_near(&mut self, route: Route) -> usize {
        let routes = &mut self.routes;
        match routes.iter().rposition(|(r, _)| *r == route) {
            Some(i) if i >= routes.len() / 4 => return i,
            Some(i) => routes[i..].rotate_left(1),
            None => {
                if routes.len() == KEPT {
                    routes.remove(0);
                }
                routes.push((route, PairSchedule::new(&route)));
            }
        }
        routes.len() - 1
    }
}

#[derive(Debug)]
pub(super) struct PairSchedule {
    schedule: Schedule,
    /// True if its calls can be made step by step.
    short: bool,
}

impl PairSchedule {
    fn new(route: &Route) -> Self {
        let schedule = Schedule::new(&route.plan(), false);
        Self { short: is_short(2, &schedule), schedule }
    }
}

/// Peer and length of each direction of a send, recv or sendrecv.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    out: Option<(usize, usize)>,
    into: Option<(usize, usize)>,
}

impl Route {
    fn plan(&self) -> Plan {
        let send = self.out.map(|(to, len)| StepOp::Send { to, src: Slice::new(Buf::In, 0, len) });
        let dst = |len| Slice::new(Buf::Out, 0, len);
        let recv = self.into.map(|(from, len)| StepOp::Recv { from, dst: dst(len), mode: ReceiveMode::Copy });
        let steps = send.into_iter().chain(recv).map(|op| Step { round: 0, op }).collect();
        Plan { steps, tmp: 0 }
    }
}
