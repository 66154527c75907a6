//! All ranks of a plan against each other in one thread, with real values: the proof of the plans.
//!
//! Every rank runs its own [`Schedule`], the same code that the engine drives. Between each two ranks lie
//! channels that hold a bounded number of elements. A run fails when a result is wrong, when nothing can
//! move before all have ended, when the two ends of a message disagree about its round or length, when a message is left
//! over, when a step leaves its buffer, when `In` changes, or when an element is not averaged exactly once.

use crate::{Buf, Kind, Plan, ReceiveMode, Schedule, Shape, Step, StepOp};
use channel::Underway;
use memory::RankMemory;
use std::collections::HashMap;

/// An element that remembers how it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Value {
    /// A wrapping sum of random numbers: equal only if the same contributions are in it.
    pub(super) sum: u64,
    /// A hash of the order of additions: equal only if the bits of a float would be.
    pub(super) tree: u64,
    /// Number of averages that were taken.
    pub(super) averaged: u32,
}

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// Elements in flight from one rank to another.
    pub(super) capacity: usize,
    pub(super) in_place: bool,
    /// Elements that may stay are read from the sender's memory when the peer receives them.
    pub(super) lends: bool,
    /// Mixes the order in which ranks and queues get their turn; 0 keeps it.
    pub(super) disorder: u64,
}

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Elements that each rank sent.
    pub(super) sent: Vec<usize>,
    /// Messages that each rank sent.
    pub(super) messages: Vec<usize>,
    /// Output of each rank at the end.
    pub(super) out: Vec<Vec<Value>>,
}

struct Rank {
    me: usize,
    plan: Plan,
    schedule: Schedule,
    memory: RankMemory,
    /// The channel of each queue.
    sends: Vec<usize>,
    recvs: Vec<usize>,
    /// The channels of each n-way reduce, in the order of its senders.
    fan_ins: HashMap<u32, Vec<usize>>,
}

pub(super) fn mix(a: u64, b: u64) -> u64 {
    let x = (a.rotate_left(23) ^ b.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 29)
}

/// Returns element `i` of rank `r`'s contribution.
fn given(r: usize, i: usize) -> Value {
    let sum = mix(r as u64 + 1, i as u64);
    Value { sum, tree: sum, averaged: 0 }
}

/// Adds as floats do: commutative, not associative.
fn add(a: Value, b: Value, last: bool) -> Value {
    let tree = mix(a.tree.min(b.tree), a.tree.max(b.tree));
    Value { sum: a.sum.wrapping_add(b.sum), tree, averaged: a.averaged + b.averaged + u32::from(last) }
}

/// Elements before the part of rank `i`.
fn before(shape: &Shape, i: usize) -> usize {
    (0..i).map(|r| shape.part(r)).sum()
}

/// Lengths of a rank's `In` and `Out`.
fn lengths(s: &Shape) -> (usize, usize) {
    let all = before(s, s.size);
    let at_root = |len| if s.rank == s.root { len } else { 0 };
    match s.kind {
        Kind::AllReduce => (s.count, s.count),
        Kind::Reduce => (s.count, at_root(s.count)),
        Kind::Broadcast => (0, s.count),
        Kind::AllGather => (s.part(s.rank), all),
        Kind::ReduceScatter => (all, s.part(s.rank)),
        Kind::Gather => (s.part(s.rank), at_root(all)),
        Kind::Scatter => (at_root(all), s.part(s.rank)),
        Kind::AllToAll if s.recv_counts.is_empty() => (all, all),
        Kind::AllToAll => (all, s.recv_counts.iter().sum()),
        Kind::Barrier => (0, 0),
    }
}

/// Returns the expected contents of `Out` at the end, as sums.
fn expected(shapes: &[Shape], sums: &[u64], rank: usize) -> Vec<u64> {
    let s = &shapes[rank];
    let out = lengths(s).1;
    match s.kind {
        Kind::AllReduce | Kind::Reduce => sums[..out].to_vec(),
        Kind::Broadcast => (0..out).map(|i| given(s.root, i).sum).collect(),
        Kind::ReduceScatter => sums[before(s, rank)..][..out].to_vec(),
        Kind::Scatter => (0..out).map(|i| given(s.root, before(s, rank) + i).sum).collect(),
        Kind::AllGather | Kind::Gather if out > 0 => {
            (0..s.size).flat_map(|r| (0..s.part(r)).map(move |i| given(r, i).sum)).collect()
        }
        Kind::AllToAll => {
            let part = |r: usize| (before(&shapes[r], rank), shapes[r].part(rank));
            (0..s.size).flat_map(|r| (0..part(r).1).map(move |i| given(r, part(r).0 + i).sum)).collect()
        }
        _ => Vec::new(),
    }
}

impl Rank {
    fn new(s: &Shape, plan: Plan, in_place: bool) -> Self {
        let writes_in = |step: &Step| match &step.op {
            StepOp::Recv { dst, .. } | StepOp::NWayReduce { dst, .. } | StepOp::Copy { dst, .. } => {
                dst.buf == Buf::In
            }
            StepOp::Send { .. } => false,
        };
        // Also where the message has no elements: the engine asks for the place first.
        assert!(!plan.steps.iter().any(writes_in), "In is written");
        let (len_in, len_out) = lengths(s);
        // Where one buffer lies in the other when in place.
        let (at_in, at_out, same) = match s.kind {
            _ if !in_place => (0, len_in, false),
            Kind::AllGather | Kind::Gather if len_out > 0 => (before(s, s.rank), 0, false),
            Kind::ReduceScatter | Kind::Scatter if len_in > 0 => (0, before(s, s.rank), false),
            Kind::AllReduce | Kind::AllToAll => (0, 0, true),
            Kind::Reduce if len_out > 0 => (0, 0, true),
            _ => (0, len_in, false),
        };
        let at_tmp = (at_in + len_in).max(at_out + len_out);
        let mut memory = vec![Value::default(); at_tmp + plan.tmp];
        match s.kind {
            Kind::Broadcast if s.rank == s.root => {
                (0..len_out).for_each(|i| memory[at_out + i] = given(s.rank, i))
            }
            _ => (0..len_in).for_each(|i| memory[at_in + i] = given(s.rank, i)),
        }
        let mut schedule = Schedule::new(&plan, same);
        if in_place && !same {
            schedule.input_lies(at_in as isize - at_out as isize);
        }
        let places = [(at_in, len_in), (at_out, len_out), (at_tmp, plan.tmp)];
        let memory = RankMemory { lent: vec![0; memory.len()], values: memory, places };
        Self {
            me: s.rank,
            plan,
            schedule,
            memory,
            sends: Vec::new(),
            recvs: Vec::new(),
            fan_ins: HashMap::new(),
        }
    }

    fn out(&self) -> &[Value] {
        let (at, len) = self.memory.places[1];
        &self.memory.values[at..at + len]
    }
}

/// Run the plans that `plan` makes of these shapes, one per rank, to the end.
pub(super) fn run(shapes: &[Shape], how: Trial, plan: impl Fn(&Shape) -> Plan) -> Result<Outcome, String> {
    let mut ranks: Vec<_> = shapes.iter().map(|s| Rank::new(s, plan(s), how.in_place)).collect();
    let mut channels: Vec<Underway> = Vec::new();
    let mut between: HashMap<(usize, usize), usize> = HashMap::new();
    for (r, rank) in ranks.iter_mut().enumerate() {
        let mut channel = |pair| {
            *between.entry(pair).or_insert_with(|| {
                channels.push(Underway::default());
                channels.len() - 1
            })
        };
        let s = &rank.schedule;
        rank.sends = (0..s.send_queues()).map(|q| channel((r, s.send_peer(q)))).collect();
        rank.recvs = (0..s.recv_queues()).map(|q| channel((s.recv_peer(q), r))).collect();
        for (id, step) in rank.plan.steps.iter().enumerate() {
            if let StepOp::NWayReduce { from, .. } = &step.op {
                rank.fan_ins.insert(id as u32, from.iter().map(|&f| channel((f, r))).collect());
            }
        }
    }
    let mut done = Outcome { sent: vec![0; ranks.len()], messages: vec![0; ranks.len()], out: Vec::new() };
    let mut seed = how.disorder;
    loop {
        let mut moved = false;
        for turn in 0..ranks.len() {
            seed = if seed == 0 { 0 } else { mix(seed, turn as u64) };
            let r = (turn + seed as usize % ranks.len()) % ranks.len();
            let (sent, messages, back) = send(&mut ranks[r], &mut channels, how, seed);
            done.sent[r] += sent;
            done.messages[r] += messages;
            moved |= sent + messages + back > 0;
            moved |= receive(&mut ranks[r], &mut channels, seed)?;
            moved |= copy(&mut ranks[r]);
        }
        if ranks.iter().all(|r| r.schedule.is_done()) {
            break;
        }
        // With disorder a rank may have been left out of a pass.
        if !moved && seed == 0 {
            let stuck = ranks.iter().enumerate().filter(|(_, r)| !r.schedule.is_done());
            let stuck: Vec<_> = stuck.map(|(i, r)| (i, r.schedule.waiting_for())).collect();
            return Err(format!("nothing moves; ranks and whom they wait for: {stuck:?}"));
        }
        if !moved {
            seed = 0;
        }
    }
    if channels.iter().any(|c| c.ready() > 0 || !c.begun.is_empty()) {
        return Err("a message was not read".into());
    }
    check(shapes, &ranks, how)?;
    done.out = ranks.iter().map(|r| r.out().to_vec()).collect();
    Ok(done)
}

fn send(rank: &mut Rank, channels: &mut [Underway], how: Trial, seed: u64) -> (usize, usize, usize) {
    let mut sent = 0;
    let mut messages = 0;
    let mut back = 0;
    let queues = rank.sends.len();
    for turn in 0..queues {
        let q = (turn + seed as usize) % queues;
        let returned = channels[rank.sends[q]].settle(&mut rank.memory.lent);
        rank.schedule.returned(q, returned);
        back += returned;
        while let Some(want) = rank.schedule.next_send(q) {
            let channel = &mut channels[rank.sends[q]];
            let len = rank.schedule.len(want.id);
            let lends = how.lends && rank.schedule.stays(want.id);
            let room = if lends { usize::MAX } else { how.capacity.saturating_sub(channel.held()) };
            let n = room.min(want.allowed - want.done);
            if n == 0 && len > 0 {
                break;
            }
            if want.done == 0 {
                channel.begun.push_back((rank.plan.steps[want.id as usize].round, len));
                messages += 1;
            }
            if let &StepOp::Send { src, .. } = rank.schedule.op(want.id) {
                for i in want.done..want.done + n {
                    let v = rank.memory.read(src, i);
                    let at = lends.then(|| rank.memory.at(src, i));
                    channel.put(v, at, &mut rank.memory.lent);
                }
            }
            rank.schedule.lend(q, n);
            rank.schedule.returned(q, channel.settle(&mut rank.memory.lent));
            sent += n;
        }
    }
    (sent, messages, back)
}

/// The message begun next on a channel must be the one that is awaited.
fn agree(channel: &mut Underway, round: u32, len: usize) -> Result<(), String> {
    match channel.begun.pop_front() {
        Some(m) if m == (round, len) => Ok(()),
        Some(m) => Err(format!("sent (round, length) {m:?}, awaited {:?}", (round, len))),
        None => Err("elements without a message".into()),
    }
}

fn receive(rank: &mut Rank, channels: &mut [Underway], seed: u64) -> Result<bool, String> {
    let mut moved = false;
    let queues = rank.recvs.len();
    for turn in 0..queues {
        let q = (turn + seed as usize) % queues;
        while let Some(want) = rank.schedule.next_recv(q) {
            let round = rank.plan.steps[want.id as usize].round;
            match &rank.plan.steps[want.id as usize].op {
                &StepOp::Recv { dst, mode, .. } => {
                    let channel = &mut channels[rank.recvs[q]];
                    let n = channel.ready().min(want.allowed - want.done);
                    if n == 0 && (dst.len > 0 || channel.begun.is_empty()) {
                        break;
                    }
                    if want.done == 0 {
                        agree(channel, round, dst.len)?;
                    }
                    for i in want.done..want.done + n {
                        let Some(v) = channels[rank.recvs[q]].take() else { break };
                        let v = match mode {
                            ReceiveMode::Copy => v,
                            ReceiveMode::Reduce { with, last } => add(rank.memory.read(with, i), v, last),
                        };
                        rank.memory.write(dst, i, v);
                    }
                    rank.schedule.received(q, n);
                }
                StepOp::NWayReduce { from, own, dst, last } => {
                    // Once is enough: the first sender's queue speaks for all.
                    if rank.schedule.recv_peer(q) != from[0] || !rank.schedule.n_way_is_ready(want.id) {
                        break;
                    }
                    let senders = &rank.fan_ins[&want.id];
                    let ready = senders.iter().map(|&c| channels[c].ready()).min().unwrap_or(0);
                    let n = ready.min(want.allowed - want.done);
                    if n == 0 {
                        break;
                    }
                    if want.done == 0 {
                        senders.iter().try_for_each(|&c| agree(&mut channels[c], round, dst.len))?;
                    }
                    for i in want.done..want.done + n {
                        let own = rank.memory.read(*own, i);
                        let received = senders.iter().filter_map(|&c| channels[c].take());
                        rank.memory.write(*dst, i, total(from, received, own, rank.me, *last));
                    }
                    rank.schedule.n_way_reduced(want.id, n);
                }
                op => return Err(format!("{op:?} in a receive queue")),
            }
            moved = true;
        }
    }
    Ok(moved)
}

/// All operands in rank order, `own` in its place among them.
fn total(from: &[usize], received: impl Iterator<Item = Value>, own: Value, me: usize, last: bool) -> Value {
    let mut all: Vec<_> = received.collect();
    all.insert(from.partition_point(|&f| f < me), own);
    let sum = all.iter().fold(0u64, |s, v| s.wrapping_add(v.sum));
    let tree = all.iter().fold(0, |t, v| mix(t, v.tree));
    Value { sum, tree, averaged: all.iter().map(|v| v.averaged).sum::<u32>() + u32::from(last) }
}

fn copy(rank: &mut Rank) -> bool {
    let mut moved = false;
    while let Some((src, dst)) = rank.schedule.next_copy(4, 3) {
        for i in 0..src.len {
            let v = rank.memory.read(src, i);
            rank.memory.write(dst, i, v);
        }
        moved = true;
    }
    moved
}

fn check(shapes: &[Shape], ranks: &[Rank], how: Trial) -> Result<(), String> {
    let reduces = matches!(shapes[0].kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter);
    let longest = lengths(&Shape { rank: shapes[0].root, ..shapes[0] });
    let sums: Vec<u64> = match reduces {
        true => (0..longest.0.max(longest.1))
            .map(|i| (0..shapes.len()).fold(0, |s: u64, r| s.wrapping_add(given(r, i).sum)))
            .collect(),
        false => Vec::new(),
    };
    for (r, rank) in ranks.iter().enumerate() {
        let [(at_in, len_in), (at_out, len_out), _] = rank.memory.places;
        let out = rank.out();
        let wrong = expected(shapes, &sums, r).iter().zip(out).position(|(e, v)| *e != v.sum);
        if let Some(i) = wrong {
            let of = (0..shapes.len())
                .find_map(|q| (0..longest.0).find(|&j| given(q, j).sum == out[i].sum).map(|j| (q, j)));
            let there = of.map_or(String::new(), |(q, j)| format!(", where element {j} of rank {q} lies"));
            return Err(format!("rank {r}: wrong result at {i} of {len_out}{there}"));
        }
        let times = u32::from(reduces && shapes.len() > 1);
        if let Some(i) = out.iter().position(|v| v.averaged != times) {
            return Err(format!("rank {r}: element {i} averaged {} times", out[i].averaged));
        }
        let untouched = |at: usize| !how.in_place || !(at_out..at_out + len_out).contains(&at);
        let spoilt = |&i: &usize| rank.memory.values[at_in + i] != given(r, i);
        if let Some(i) = (0..len_in).filter(|i| untouched(at_in + i)).find(spoilt) {
            return Err(format!("rank {r}: In changed at {i}"));
        }
        if shapes[0].kind == Kind::AllReduce && out != ranks[0].out() {
            return Err(format!("rank {r} and rank 0 would differ in bits"));
        }
    }
    Ok(())
}

mod channel;
mod memory;
mod tests;
