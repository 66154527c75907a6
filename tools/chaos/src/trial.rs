//! A trial with a crew: the fault, some of which leave ranks that say nothing (stopped, cut off, or never there), and whether every rank got the promised error, in time.

use super::{
    crew::{Crew, LONG, Play, pause},
    fault::{Fault, Phase, Plan},
    net::{self, Listeners, Strangers, Way},
    processes::{Said, monotonic},
};
use rustix::process::{Resource, Signal};
use scope::Rng;
use std::{
    fs,
    net::TcpListener,
    time::{Duration, Instant},
};

/// Limit on a rank's silence, in seconds: the default. A process that ends is found long before.
const PATIENT: f64 = 5.0;
/// The same in trials of silence: `fast`.
const SILENCE: f64 = 1.0;
/// No call blocks past the limit and this much, in milliseconds.
const SLACK: f64 = 1000.0;
/// Time in which a group must close, in milliseconds.
const CLOSED: f64 = 5000.0;
/// Time for the call after an error, in microseconds.
const AGAIN: f64 = 250_000.0;

/// Work of ranks that have time to join.
const WORK: Play<'_> = Play { role: "ops", detection: PATIENT, join: 20.0 };

/// Outcome of a trial.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Promises that were broken.
    pub(super) broken: Vec<String>,
    /// Number of those that were broken in time alone.
    untimely: usize,
    /// Milliseconds until each rank was told.
    pub(super) times: Vec<f64>,
    /// Another row of the table than its plan's.
    pub(super) row: Option<&'static str>,
    /// A death was told later than it is to be in 99 of 100 cases: worth a look, but no broken promise.
    pub(super) slow: bool,
    /// Lines of the trial, each with its process and time.
    pub(super) story: String,
}

impl Outcome {
    pub(super) fn broke(&mut self, why: impl Into<String>) {
        self.broken.push(why.into());
    }

    /// Notes what had to happen and happened too late.
    pub(super) fn late(&mut self, why: impl Into<String>) {
        self.untimely += 1;
        self.broke(why);
    }

    /// Notes a rank's words, if they are wrong, or right and came too late.
    fn hold(&mut self, is_right: bool, is_late: bool, words: String) {
        if !is_right {
            self.broke(words);
        } else if is_late {
            self.late(words);
        }
    }

    /// Return whether nothing else was wrong than times.
    pub(super) fn is_only_late(&self) -> bool {
        self.untimely > 0 && self.untimely == self.broken.len()
    }
}

pub(super) fn run(crew: &mut Crew, plan: &Plan) -> Result<Outcome, String> {
    crew.ready(plan.members())?;
    let mut outcome = Outcome::default();
    let begun = monotonic();
    match plan.fault {
        Fault::Kill(phase) => kill(crew, plan, phase, Signal::KILL, &mut outcome),
        Fault::Crash => {
            let signal = plan.random.clone().pick(&[Signal::TERM, Signal::ILL, Signal::ABORT]);
            kill(crew, plan, Phase::Call, *signal, &mut outcome);
        }
        Fault::Files | Fault::Memory | Fault::FileSize => starve(crew, plan, &mut outcome)?,
        Fault::FullShm => full(crew, plan, &mut outcome)?,
        Fault::HostileJoin | Fault::HostileCall => strangers(crew, plan, &mut outcome),
        Fault::PortTaken => port_taken(crew, plan, &mut outcome)?,
        Fault::StopCall => stop(crew, plan, "ops", &mut outcome),
        Fault::StopIdle => stop(crew, plan, "idle", &mut outcome),
        Fault::Blip => blips(crew, plan, &mut outcome),
        Fault::CutBoth => cut(crew, plan, Way::Both, &mut outcome)?,
        Fault::CutOut => cut(crew, plan, Way::Outward, &mut outcome)?,
        Fault::CutIn => cut(crew, plan, Way::Inward, &mut outcome)?,
        Fault::CutPair => cut_pair(crew, plan, &mut outcome)?,
        Fault::CableBlip | Fault::LongCableBlip => cable_blip(crew, plan, &mut outcome)?,
        Fault::Delay => delay(crew, plan, &mut outcome)?,
        Fault::Absent => absent(crew, plan, &mut outcome),
    }
    look_after(crew, plan, &mut outcome);
    outcome.slow &= plan.row().starts_with("kill");
    if outcome.slow {
        outcome.story = crew.story(begun);
    }
    if !outcome.broken.is_empty() {
        outcome.story = crew.story(begun);
        plan.members().for_each(|member| crew.end(member));
    }
    Ok(outcome)
}

/// Check the promises that hold whatever happens: results are right, nothing is left.
fn look_after(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) {
    for said in &crew.heard {
        if said.event == "wrong" {
            outcome.broken.push(format!("rank {} got a wrong result in {}", said.rank, said.field(0)));
        }
        // Rust's own end where a new thread gets no memory for its signals: the others name it, as they do one that was killed.
        let is_rusts = plan.fault == Fault::Memory && said.field(0).contains("unix/stack_overflow.rs");
        if said.event == "noise" && said.field(0).contains("panicked") && !is_rusts {
            outcome.broken.push(format!("a rank panicked: {}", said.field(0)));
        }
        if said.event == "closed" && said.field(0).parse().is_ok_and(|ms: f64| ms > CLOSED) {
            outcome.late(format!("rank {} took {} ms to close", said.rank, said.field(0)));
        }
        if said.event == "again" {
            let words = format!("rank {}: the call after an error: {}", said.rank, said.fields.join(" "));
            let is_late = said.field(1).parse().is_ok_and(|us: f64| us > AGAIN);
            outcome.hold(said.field(0) == "same", is_late, words);
        }
    }
    let others = plan.others();
    let left = crew.leaks(others.clone());
    outcome.broken.extend(left);
    // Ranks that have closed everything listen nowhere.
    let quiet = others.clone().filter(|r| crew.said(*r, "left").is_some()).count() == plan.size - 1;
    if quiet && crew.processes.ended(crew.pid(plan.hit())).is_some() {
        for rank in others {
            let listeners = Listeners::of(crew.pid(rank));
            if !listeners.is_empty() {
                outcome.broke(format!("something still listens where rank {rank} runs: {listeners:?}"));
                break;
            }
        }
    }
}

/// Wait for what each of these ranks got of its call, and until they have closed; those that hang are ended.
fn outs(
    crew: &mut Crew,
    ranks: impl Iterator<Item = usize> + Clone,
    within: f64,
    outcome: &mut Outcome,
) -> Vec<Said> {
    let until = Instant::now() + Duration::from_secs_f64(within) + Duration::from_secs(6);
    for rank in crew.hear("left", ranks.clone(), until) {
        let what = if crew.said(rank, "out").is_some() { "closing" } else { "a call" };
        if crew.said(rank, "wrong").is_none() {
            outcome.broke(format!("rank {rank} hangs in {what}"));
        }
        crew.end(rank);
    }
    ranks.filter_map(|r| crew.said(r, "out").cloned()).collect()
}

/// Wait until all ranks have joined.
fn all_join(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) {
    let missing = crew.hear("ready", plan.members(), Instant::now() + LONG);
    if !missing.is_empty() {
        outcome.broke(format!("ranks {missing:?} do not join"));
    }
}

/// Wait until the ranks are where the victim is to be hit, and a moment more.
fn until_phase(crew: &mut Crew, plan: &Plan, phase: Phase, random: &mut Rng, outcome: &mut Outcome) {
    match phase {
        Phase::Join => pause(random.between(0, 40_000)),
        Phase::Close => {
            crew.hear("ready", [plan.victim].into_iter(), Instant::now() + LONG);
            pause(random.between(0, 3000));
        }
        Phase::Idle | Phase::Call => {
            all_join(crew, plan, outcome);
            pause(random.between(0, 60_000));
        }
    }
}

fn kill(crew: &mut Crew, plan: &Plan, phase: Phase, signal: Signal, outcome: &mut Outcome) {
    let mut random = plan.random.clone();
    let victim = plan.victim;
    let role = match phase {
        Phase::Idle => "idle",
        Phase::Close => "closing",
        Phase::Join | Phase::Call => "ops",
    };
    let join = if phase == Phase::Join { 1.0 } else { 20.0 };
    let port = crew.next_port();
    let begun = monotonic();
    crew.play(plan, port, Play { role, detection: PATIENT, join }, 0..plan.size);
    until_phase(crew, plan, phase, &mut random, outcome);
    let killed = crew.signal(victim, signal);
    if phase == Phase::Idle {
        pause(random.between(0, 200_000));
        plan.others().for_each(|r| crew.tell(r, "call"));
    }
    crew.processes.wait(crew.pid(victim), Instant::now() + LONG);
    let told = outs(crew, plan.others(), PATIENT + 1.0 + join.min(1.0), outcome);
    // It may have been killed before it was known to anybody.
    let unknown = |out: &Said| phase == Phase::Join && out.is_missing() && out.names(victim);
    // Rank 0, at whose store they meet, may have known of the death and gone before another one was told.
    let gone = told.iter().find(|o| o.rank == 0 && o.is_error() && o.names(victim)).map(|o| o.at);
    let after = |out: &Said| phase == Phase::Join && gone.is_some_and(|gone| out.took(gone) > -SLACK);
    // One that had begun to speak with it says so at once, one that comes later finds nobody until its join deadline.
    let late = |out: &Said| victim != 0 && after(out) && out.is_missing() && out.names(0);
    let excused = |out: &Said| late(out) || after(out) && out.lost_store();
    let unknown = |out: &Said| unknown(out) || late(out);
    if told.iter().any(unknown) {
        outcome.row = Some("kill before it is known");
    }
    for out in told {
        let since = crew.said(out.rank, "called").map_or(killed, |c| c.at.max(killed));
        let since = if unknown(&out) { begun + (join * 1e9) as u64 } else { since };
        if !out.is_error() {
            // Its last call may have ended before.
            if phase != Phase::Close {
                outcome.broke(format!("rank {} did not notice the death of rank {victim}", out.rank));
            }
            continue;
        }
        let within = PATIENT * 1000.0 + SLACK;
        if excused(&out) {
            in_time(&out, since, within, outcome);
        } else {
            judge(&out, plan, since, within, outcome);
        }
    }
}

/// An error in time that names the rank that was hit.
fn judge(out: &Said, plan: &Plan, since: u64, within: f64, outcome: &mut Outcome) {
    in_time(out, since, within, outcome);
    if !out.names(plan.victim) {
        outcome.broke(format!("rank {} blames somebody else: {}", out.rank, out.field(2)));
    }
}

fn in_time(out: &Said, since: u64, within: f64, outcome: &mut Outcome) {
    let took = out.took(since);
    outcome.times.push(took.max(0.0));
    outcome.slow |= took > super::table::KILL_P99;
    if took > within {
        outcome.late(format!("rank {} was told after {took:.0} ms, promised are {within:.0} ms", out.rank));
    }
}

/// All end their work in good order.
fn all_well(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) {
    crew.tell(0, "end");
    let told = outs(crew, 0..plan.size, 20.0, outcome);
    for out in told.iter().filter(|o| o.is_error()) {
        outcome.broke(format!("rank {} failed for nothing: {}", out.rank, out.field(2)));
    }
}

/// A rank that lacks something joins and works, or every rank says that it did not.
fn starve(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    let mut random = plan.random.clone();
    let victim = plan.victim;
    match plan.fault {
        Fault::Files => {
            let fds = format!("/proc/{}/fd", crew.pid(victim).as_raw_pid());
            let open = fs::read_dir(fds).map_or(0, Iterator::count) as u64;
            crew.limit(victim, Resource::Nofile, open + random.between(0, 60))?;
        }
        Fault::Memory => {
            let statm = format!("/proc/{}/statm", crew.pid(victim).as_raw_pid());
            let pages = fs::read_to_string(statm).unwrap_or_default();
            let pages: u64 = pages.split(' ').next().and_then(|p| p.parse().ok()).unwrap_or(0);
            crew.limit(victim, Resource::As, pages * 4096 + random.between(0, 16 << 20))?;
        }
        _ => crew.limit(victim, Resource::Fsize, random.between(0, 1 << 20))?,
    }
    let join = 2.0;
    let port = crew.next_port();
    let begun = monotonic();
    crew.play(plan, port, Play { role: "ops", detection: PATIENT, join }, 0..plan.size);
    crew.hear("ready", [(victim + 1) % plan.size].into_iter(), Instant::now() + Duration::from_secs(3));
    pause(random.between(0, 30_000));
    crew.tell(0, "end");
    crew.tell((victim + 1) % plan.size, "end");
    let told = outs(crew, plan.others(), join + PATIENT + 1.0, outcome);
    let failed = told.iter().filter(|o| o.is_error()).map(|o| o.at).min();
    for out in &told {
        // A store without descriptors cannot know who waits to be let in.
        if victim == 0 && out.is_missing() {
            continue;
        }
        match (out.is_error(), failed) {
            (true, Some(first)) => {
                // Its trouble begins somewhere before the first rank is told; the join deadline bounds that.
                let bound = join * 1000.0 + SLACK;
                judge(out, plan, if out.took(begun) <= bound { begun } else { first }, bound, outcome);
            }
            (false, Some(_)) => outcome.broke(format!("rank {} did not notice what others did", out.rank)),
            _ => {}
        }
    }
    // Times that mean nothing: when the rank began to lack something is not known.
    outcome.times.clear();
    crew.end(victim);
    Ok(())
}

/// Groups need no room in these folders.
fn full(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    let files = ["/dev/shm/filler", "/tmp/filler"];
    for file in files {
        // As much as there is room for; the error is the point.
        let _ = fs::write(file, vec![1; 2 * super::lane::ROOM]);
    }
    let port = crew.next_port();
    crew.play(plan, port, WORK, 0..plan.size);
    all_join(crew, plan, outcome);
    pause(20_000);
    all_well(crew, plan, outcome);
    files.iter().try_for_each(fs::remove_file).map_err(|e| format!("cannot remove the filler: {e}"))
}

/// Processes that do not belong to the job disturb nobody.
fn strangers(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) {
    let mut random = plan.random.clone();
    let port = crew.next_port();
    let early = plan.fault == Fault::HostileJoin;
    let mut strangers = Strangers::new(random.between(0, u64::MAX - 1));
    if early {
        // The first rank waits for the others, among strangers.
        crew.play(plan, port, WORK, [0]);
        pause(random.between(0, 20_000));
        strangers.visit(&Listeners::of(crew.pid(0)), 30);
        crew.play(plan, port, WORK, 1..plan.size);
        pause(random.between(0, 10_000));
        strangers.visit(&Listeners::of(crew.pid(0)), 30);
    } else {
        crew.play(plan, port, WORK, 0..plan.size);
    }
    all_join(crew, plan, outcome);
    for _ in 0..3 {
        strangers.visit(&Listeners::of(crew.pid(0)), 30);
        pause(random.between(0, 10_000));
    }
    all_well(crew, plan, outcome);
}

/// Longest time for which a host is cut off without being given up by a limit of `PATIENT`, in microseconds.
const LONG_BLIP: u64 = 4_000_000;

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
fn port_taken(crew: &mut Crew, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
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
