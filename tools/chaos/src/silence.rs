//! Trials in which ranks say nothing: stopped, cut off, or never there.

use super::{
    crew::{Crew, Play, pause},
    fault::{Fault, Plan},
    net::{self, Way},
    processes::monotonic,
    trial::{Outcome, PATIENT, SILENCE, SLACK, all_join, all_well, judge, outs},
};
use rustix::process::Signal;
use std::net::TcpListener;

/// Longest time for which a host is cut off without being given up by a limit of `PATIENT`, in microseconds.
const LONG_BLIP: u64 = 4_000_000;

pub(super) fn run(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    match plan.fault {
        Fault::StopCall => stop(crew, plan, "ops", outcome),
        Fault::StopIdle => stop(crew, plan, "idle", outcome),
        Fault::Blip => blips(crew, plan, outcome),
        Fault::CutBoth => cut(crew, plan, Way::Both, outcome)?,
        Fault::CutOut => cut(crew, plan, Way::Outward, outcome)?,
        Fault::CutIn => cut(crew, plan, Way::Inward, outcome)?,
        Fault::CutPair => cut_pair(crew, plan, outcome)?,
        Fault::CableBlip | Fault::LongCableBlip => cable_blip(crew, plan, outcome)?,
        Fault::Delay => delay(crew, plan, outcome)?,
        Fault::Absent => absent(crew, plan, outcome),
        other => return Err(format!("{other:?} is no trial of this lane")),
    }
    Ok(())
}

/// Time until the first beats have come on a busy machine, in microseconds.
const FIRST_BEATS: u64 = 150_000;

fn start(crew: &mut Crew, plan: &Plan, role: &str, outcome: &mut Outcome) {
    let port = crew.next_port();
    let patient = matches!(plan.fault, Fault::LongCableBlip | Fault::Delay);
    let detection = if patient { PATIENT } else { SILENCE };
    crew.play(plan, port, Play { role, detection, join: 20.0 }, plan.members());
    all_join(crew, plan, outcome);
    // Before all have beaten once nobody is judged: docs/decisions.md.
    pause(FIRST_BEATS);
}

/// All others are told within the limit and a second, and the rank itself when it wakes.
fn stop(crew: &mut Crew, plan: &Plan, role: &str, outcome: &mut Outcome) {
    let mut random = plan.random.clone();
    let victim = plan.victim;
    start(crew, plan, role, outcome);
    pause(random.between(0, 60_000));
    let stopped = crew.signal(victim, Signal::STOP);
    if role == "idle" {
        pause(random.between(0, 1_500_000));
        (0..plan.size).for_each(|r| crew.tell(r, "call"));
    }
    let told = outs(crew, plan.others(), SILENCE + 1.0, outcome);
    for out in told {
        if out.is_error() {
            // It may have been idle until it was told.
            judge(&out, plan, stopped, SILENCE * 1000.0 + SLACK, outcome);
        } else {
            outcome.broke(format!("rank {} did not notice that rank {victim} stopped", out.rank));
        }
    }
    let woken = crew.signal(victim, Signal::CONT);
    for out in outs(crew, [victim].into_iter(), SILENCE + 1.0, outcome) {
        let took = out.took(woken);
        let words = format!("rank {victim} woke and got after {took:.0} ms: {}", out.fields.join(" "));
        outcome.hold(out.is_error() && out.names(victim), took > SILENCE * 1000.0 + SLACK, words);
    }
}

/// Short pauses of any ranks cost nothing but time.
fn blips(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) {
    let mut random = plan.random.clone();
    start(crew, plan, "ops", outcome);
    for _ in 0..random.between(1, 4) {
        let stopped: Vec<usize> = (0..random.between(1, 3)).map(|_| random.below(plan.size)).collect();
        for r in &stopped {
            crew.signal(*r, Signal::STOP);
        }
        pause(random.between(5_000, 500_000));
        for r in &stopped {
            crew.signal(*r, Signal::CONT);
        }
        // Else a rank that is stopped again had no time to say that it lives, and was silent for longer than one stop.
        pause(random.between(200_000, 300_000));
    }
    all_well(crew, plan, outcome);
}

/// Ranks on both sides are told in time, and of somebody on the other side, or of who saw it.
fn cut(crew: &mut Crew, plan: &Plan, how: Way, outcome: &mut Outcome) -> Result<(), String> {
    let mut random = plan.random.clone();
    let host = Crew::host(plan.victim);
    start(crew, plan, "ops", outcome);
    pause(random.between(0, 60_000));
    let since = monotonic();
    net::cut(host, how)?;
    let told = outs(crew, 0..plan.size, SILENCE + 1.0, outcome);
    net::mend(host, how)?;
    for out in told {
        let took = out.took(since);
        outcome.times.push(took);
        let words = format!("rank {} got after {took:.0} ms: {}", out.rank, out.fields.join(" "));
        outcome.hold(out.is_error(), took > SILENCE * 1000.0 + SLACK, words);
        if !out.is_error() {
            continue;
        }
        let inside = |rank: usize| Crew::host(rank) == host;
        let blamed = out.blamed().first().copied();
        // One way, both ends of a link are right to blame the other.
        let seen_inside = out.seen_by().is_some_and(inside);
        let right = match how {
            Way::Both => blamed.is_some_and(|b| inside(b) != inside(out.rank)),
            Way::Outward | Way::Inward => blamed.is_some_and(inside) || inside(out.rank) || seen_inside,
        };
        if !right {
            outcome.broke(format!("rank {}: host {host} was cut off: {}", out.rank, out.field(2)));
        }
    }
    Ok(())
}

/// All ranks, the two between which packets are lost as well, name the same one of the two, and nobody says that a rank died.
fn cut_pair(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    let mut random = plan.random.clone();
    let from = plan.victim;
    let to = (plan.victim + 1 + random.below(plan.size - 1)) % plan.size;
    let role = *random.pick(&["ops", "idle"]);
    start(crew, plan, role, outcome);
    pause(random.between(0, 600_000));
    let since = monotonic();
    net::lose(from, to)?;
    if role == "idle" {
        // Earlier the others may still end their call and leave in good order.
        pause(random.between(1_400_000, 1_800_000));
        plan.members().for_each(|m| crew.tell(m, "call"));
    }
    let told = outs(crew, plan.members(), SILENCE + 1.0, outcome);
    net::find(from, to)?;
    let mut all_blamed = Vec::new();
    for out in told {
        let took = out.took(since);
        outcome.times.push(took);
        let by = out.blamed().first().copied();
        let right = out.is_error() && by.is_some_and(|b| b == from || b == to);
        let words = format!("rank {} got after {took:.0} ms: {}", out.rank, out.fields.join(" "));
        let is_late = took > SILENCE * 1000.0 + SLACK;
        outcome.hold(right && !out.field(2).contains(" died"), is_late, words);
        all_blamed.extend(by.filter(|_| out.is_error()));
    }
    all_blamed.dedup();
    if all_blamed.len() > 1 {
        outcome.broke(format!("packets of rank {from} to {to} were lost, and blamed are {all_blamed:?}"));
    }
    Ok(())
}

/// Whoever was out of reach for less than the limit is given up by nobody.
fn cable_blip(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    let mut random = plan.random.clone();
    let host = Crew::host(plan.victim);
    start(crew, plan, "ops", outcome);
    pause(random.between(0, 60_000));
    net::cut(host, Way::Both)?;
    pause(if plan.fault == Fault::LongCableBlip { LONG_BLIP } else { random.between(20_000, 250_000) });
    net::mend(host, Way::Both)?;
    pause(random.between(0, 100_000));
    all_well(crew, plan, outcome);
    Ok(())
}

/// A host that is only slow is given up by nobody, also while the ranks join.
fn delay(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    let mut random = plan.random.clone();
    let host = Crew::host(plan.victim);
    let early = random.below(2) == 0;
    let slow = *random.pick(&[Way::Both, Way::Outward, Way::Inward]);
    if early {
        net::slow(host, slow)?;
    }
    start(crew, plan, "ops", outcome);
    if !early {
        pause(random.between(0, 60_000));
        net::slow(host, slow)?;
    }
    pause(random.between(300_000, 1_500_000));
    all_well(crew, plan, outcome);
    net::hasten(host, slow)
}

/// At the join deadline every rank names the one that is not there.
fn absent(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) {
    let join = 1.0;
    let port = crew.next_port();
    let begun = monotonic();
    crew.play(plan, port, Play { role: "ops", detection: SILENCE, join }, plan.others());
    for out in outs(crew, plan.others(), join + 1.0, outcome) {
        let deadline = begun + (join * 1e9) as u64;
        if out.is_error() {
            judge(&out, plan, deadline, SLACK, outcome);
        } else {
            outcome.broke(format!("rank {} did not notice that rank {} is not there", out.rank, plan.victim));
        }
    }
}

/// Rank 0 says that its port is taken; the others, at the join deadline, that rank 0 does not answer there.
pub(super) fn port_taken(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    let join = 0.5;
    let port = crew.next_port();
    // The system accepts connections to it, and nothing ever answers.
    let other =
        TcpListener::bind(("127.0.0.1", port)).map_err(|e| format!("cannot take port {port}: {e}"))?;
    let begun = monotonic();
    crew.play(plan, port, Play { role: "ops", detection: SILENCE, join }, 0..plan.size);
    for out in outs(crew, 0..plan.size, join + 1.0, outcome) {
        let took = out.took(begun) - join * 1000.0;
        outcome.times.push(took.max(0.0));
        let words = out.field(2);
        let right = if out.rank == 0 {
            out.field(0) == "config"
                && words.contains(&format!("the store cannot listen at 127.0.0.1:{port} "))
                && words.ends_with("another process listens there; end it, or give another port")
        } else {
            out.field(0) == "join" && out.names(0) && words.contains(&format!(" store at 127.0.0.1:{port} "))
        };
        let words =
            format!("rank {} got {took:.0} ms after the deadline: {}", out.rank, out.fields.join(" "));
        outcome.hold(out.is_error() && right, took > SLACK, words);
    }
    drop(other);
    Ok(())
}
