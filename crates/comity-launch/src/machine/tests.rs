//! The rules of ending a job, at times that the tests choose.
use super::*;
use std::path::Path;

const INT: StopReason = StopReason::Interrupted { signal: 2 };
const OOM: &str = "out of memory";

fn failed(rank: usize, ending: Ending) -> StopReason {
    StopReason::Failed { rank, ending }
}

/// A machine that has begun, and the time.
struct Bench {
    machine: Machine,
    zero: Instant,
}

fn plan(role: Role, hosts: Vec<usize>) -> JobPlan {
    let world = hosts.len();
    JobPlan { role, first: 0, hosts, world, timeout: None, grace: PATIENCE, restart: 0, elastic: None }
}

impl Bench {
    fn of(plan: JobPlan) -> Self {
        let zero = Instant::now();
        let mut machine = Machine::new(plan, zero);
        machine.on(Event::Begin, zero);
        Self { machine, zero }
    }

    fn new(ranks: usize) -> Self {
        let mut bench = Self::of(plan(Role::Alone, vec![0; ranks]));
        assert_eq!(bench.machine.actions(), [Action::Start(0..ranks)]);
        bench
    }

    fn with_grace(ranks: usize, grace: Duration) -> Self {
        let mut bench = Self::of(JobPlan { grace, ..plan(Role::Alone, vec![0; ranks]) });
        bench.machine.actions();
        bench
    }

    fn on(&mut self, event: Event, after: Duration) -> Vec<StopOrder> {
        self.machine.on(event, self.zero + after);
        self.orders()
    }

    fn orders(&mut self) -> Vec<StopOrder> {
        let order = |action| if let Action::End(order) = action { Some(order) } else { None };
        self.machine.actions().into_iter().filter_map(order).collect()
    }

    fn ends(&mut self, rank: usize, ending: Ending, after: Duration) {
        let orders = self.on(Event::Ended { rank, ending, memory: String::new() }, after);
        assert_eq!(orders, []);
    }

    fn tick(&mut self, after: Duration) -> Vec<StopOrder> {
        self.machine.tick(self.zero + after);
        self.orders()
    }

    fn next(&self) -> Option<Duration> {
        self.machine.next().map(|at| at - self.zero)
    }

    fn stop(&mut self, reason: StopReason, after: Duration) -> Vec<StopOrder> {
        self.on(Event::Stop(reason), after)
    }

    fn cause(&self) -> Option<StopReason> {
        self.machine.root_cause()
    }
}

const NOW: Duration = Duration::ZERO;
const TERM: [StopOrder; 1] = [StopOrder::Term];
const KILL: [StopOrder; 1] = [StopOrder::Kill];
const NOTHING: [StopOrder; 0] = [];

#[test]
fn ranks_that_end_well_stop_nobody() {
    let mut bench = Bench::new(2);
    bench.ends(0, Ending::Exit(0), NOW);
    assert_eq!(bench.tick(PATIENCE), NOTHING);
    assert!(bench.machine.judges());
    bench.ends(1, Ending::Exit(0), NOW);
    assert!(!bench.machine.judges() && bench.cause().is_none());
}

#[test]
fn a_failure_gives_the_others_a_second_then_term_then_kill() {
    let mut bench = Bench::new(3);
    bench.ends(2, Ending::Exit(3), NOW);
    assert_eq!(bench.tick(NOW), NOTHING);
    assert_eq!(bench.next(), Some(GRACE));
    bench.ends(0, Ending::Exit(1), GRACE / 2);
    assert_eq!(bench.tick(GRACE), TERM);
    assert_eq!(bench.tick(GRACE), NOTHING);
    assert_eq!(bench.tick(GRACE + PATIENCE), KILL);
    assert_eq!(bench.machine.awaited().collect::<Vec<_>>(), [1]);
    bench.ends(1, Ending::Signal(9), GRACE + PATIENCE);
    assert_eq!(bench.machine.awaited().count(), 0);
    assert_eq!(bench.cause(), Some(failed(2, Ending::Exit(3))));
}

#[test]
fn a_crash_is_the_root_cause_of_its_consequence_and_only_then() {
    let soon = CONSEQUENCE / 2;
    let mut bench = Bench::new(4);
    bench.ends(0, Ending::Exit(1), NOW);
    bench.ends(1, Ending::Signal(libc::SIGABRT), soon);
    bench.ends(2, Ending::Signal(9), soon);
    bench.ends(3, Ending::Signal(11), soon);
    assert_eq!(bench.cause(), Some(failed(2, Ending::Signal(9))));

    let mut bench = Bench::new(2);
    bench.ends(0, Ending::Exit(1), NOW);
    bench.ends(1, Ending::Signal(9), CONSEQUENCE * 2);
    assert_eq!(bench.cause(), Some(failed(0, Ending::Exit(1))));
}

#[test]
fn what_ranks_say_of_each_other_finds_the_cause() {
    let found = |root_causes: [Option<usize>; 4]| {
        let mut bench = Bench::new(4);
        bench.ends(0, Ending::Exit(1), NOW);
        bench.ends(1, Ending::Signal(libc::SIGABRT), NOW);
        bench.ends(2, Ending::Exit(37), CONSEQUENCE * 2);
        for (by, named) in root_causes.into_iter().enumerate() {
            named.into_iter().for_each(|rank| drop(bench.on(Event::Blames { by, rank }, NOW)));
        }
        bench.cause()
    };
    assert_eq!(found([None; 4]), Some(failed(0, Ending::Exit(1))));
    assert_eq!(found([Some(2), Some(2), None, None]), Some(failed(2, Ending::Exit(37))));
    assert_eq!(found([Some(1), None, Some(1), None]), Some(failed(1, Ending::Signal(libc::SIGABRT))));
    // A circle leaves it with the first, and so does the name of a rank that does not exist.
    assert_eq!(found([Some(2), None, Some(0), None]), Some(failed(0, Ending::Exit(1))));
    assert_eq!(found([Some(9), None, None, None]), Some(failed(0, Ending::Exit(1))));
}

#[test]
fn ranks_that_name_each_other_are_named_together() {
    let last_line = |order: [usize; 3]| {
        let mut bench = Bench::new(3);
        for rank in order {
            bench.on(Event::Blames { by: rank, rank: [2, 2, 0][rank] }, NOW);
            bench.ends(rank, Ending::Exit(1), NOW);
        }
        let verdict = Verdict::of(&bench.machine, &|rank| format!("rank {rank}"), None);
        (verdict.text.unwrap(), verdict.code)
    };
    let both = "rank 0 and rank 2 name each other as the cause; their errors have the call of each; the first failure exited with code 1";
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        assert_eq!(last_line(order), (both.into(), 1), "{order:?}");
    }
}

#[test]
fn ranks_that_all_fail_alike_are_told_as_one() {
    let told = |codes: [i32; 3], blames: Option<usize>, logs: Option<&Path>| {
        let mut bench = Bench::new(3);
        for rank in [1, 0, 2] {
            bench.ends(rank, Ending::Exit(codes[rank]), NOW);
        }
        blames.into_iter().for_each(|rank| drop(bench.on(Event::Blames { by: 1, rank }, NOW)));
        let verdict = Verdict::of(&bench.machine, &|rank| format!("rank {rank}"), logs);
        (verdict.text.unwrap(), verdict.code, verdict.summary)
    };
    let all = "all 3 ranks exited with code 2, rank 1 first".to_owned();
    assert_eq!(told([2; 3], None, None), (all.clone(), 2, None));
    let (text, _, summary) = told([2; 3], None, Some(Path::new("/logs")));
    assert!(text == all && summary.is_some_and(|s| s.contains("/logs/rank-")));
    for (codes, blames) in [([2, 2, 3], None), ([2; 3], Some(0))] {
        let (text, _, summary) = told(codes, blames, None);
        assert!(!text.contains("all 3") && summary.is_some(), "{text}");
    }
}

#[test]
fn one_that_did_not_fail_is_named_when_others_failed_for_it() {
    let missed = |root_causes: [Option<usize>; 4]| {
        let mut bench = Bench::new(4);
        bench.ends(2, Ending::Exit(0), NOW);
        bench.ends(0, Ending::Exit(1), NOW);
        bench.ends(1, Ending::Exit(5), NOW);
        for (by, named) in root_causes.into_iter().enumerate() {
            named.into_iter().for_each(|rank| drop(bench.on(Event::Blames { by, rank }, NOW)));
        }
        bench.cause()
    };
    let by = |rank, ended, by, code| Some(StopReason::Missed { rank, ended, by, ending: Ending::Exit(code) });
    assert_eq!(missed([Some(2), Some(2), None, None]), by(2, true, 0, 1));
    assert_eq!(missed([Some(3), Some(3), None, None]), by(3, false, 0, 1));
    assert_eq!(missed([Some(1), Some(3), None, None]), by(3, false, 1, 5));
    // What a rank says after it was given up is not followed.
    assert_eq!(missed([Some(3), Some(3), None, Some(0)]), by(3, false, 0, 1));
}

#[test]
fn a_second_interrupt_kills_and_no_later_end_is_the_cause() {
    let mut bench = Bench::new(1);
    assert_eq!(bench.stop(INT, NOW), TERM);
    assert_eq!(bench.stop(INT, TWICE / 2), NOTHING);
    assert_eq!(bench.stop(StopReason::Interrupted { signal: libc::SIGHUP }, TWICE), NOTHING);
    assert_eq!(bench.stop(INT, TWICE), KILL);
    assert_eq!(bench.stop(INT, TWICE), NOTHING);
    bench.ends(0, Ending::Signal(9), NOW);
    assert_eq!(bench.cause(), Some(INT));
}

#[test]
fn an_interrupt_during_the_grace_keeps_the_culprit() {
    let mut bench = Bench::new(2);
    bench.ends(1, Ending::Exit(7), NOW);
    assert_eq!(bench.stop(INT, NOW), TERM);
    assert_eq!(bench.cause(), Some(failed(1, Ending::Exit(7))));
}

#[test]
fn who_was_silent_for_long_leaves_the_others_less_time() {
    let killed_after = |silent: u64| {
        let mut bench = Bench::of(plan(Role::Fleet, vec![0, 1]));
        bench.on(Event::HostReady { host: 0 }, NOW);
        bench.on(Event::HostReady { host: 1 }, NOW);
        bench.on(Event::Compared { problems: Vec::new() }, NOW);
        let silent = Duration::from_secs(silent);
        bench.on(Event::HostLost { host: 1, silent, why: "host b was lost".into() }, NOW);
        assert_eq!(bench.cause(), Some(StopReason::HostLost { host: 1 }));
        let term = bench.next().unwrap();
        assert_eq!(bench.tick(term), TERM);
        let kill = bench.next().unwrap();
        assert_eq!(bench.tick(kill), KILL);
        (term, kill)
    };
    assert_eq!(killed_after(0), (GRACE, GRACE + PATIENCE));
    assert_eq!(killed_after(3), (Duration::ZERO, PATIENCE_ORPHANED));
}

#[test]
fn a_grace_of_the_users_holds_and_says_who_was_cut_off() {
    let grace = Duration::from_secs(60);
    let job = || Bench::with_grace(2, grace);
    let after = |bench: &Bench| bench.machine.cut_off.as_ref().map(|cut| cut.after);
    let mut bench = job();
    assert_eq!(bench.stop(INT, NOW), TERM);
    assert_eq!((bench.tick(grace - TWICE), after(&bench)), (vec![], None));
    assert_eq!(bench.tick(grace), KILL);
    assert_eq!(after(&bench), Some(grace));
    let mut bench = job();
    bench.ends(0, Ending::Exit(3), NOW);
    assert_eq!(bench.tick(GRACE), TERM);
    assert_eq!(bench.next(), Some(GRACE + grace));
    // Who asks again does not wait.
    let mut bench = job();
    assert_eq!(bench.stop(INT, NOW), TERM);
    assert_eq!(bench.stop(INT, TWICE), KILL);
    assert_eq!(after(&bench), None);
    let mut bench = job();
    bench.stop(StopReason::Orphaned, NOW);
    assert_eq!(bench.next(), Some(PATIENCE_ORPHANED));
}

#[test]
fn ranks_are_left_only_when_all_that_run_were_given_up() {
    let look = Role::Alone.look();
    let mut bench = Bench::new(4);
    bench.ends(0, Ending::Exit(0), NOW);
    bench.on(Event::Blames { by: 0, rank: 2 }, NOW);
    bench.machine.tick(bench.zero + look);
    // Rank 1 was not given up.
    assert_eq!(bench.machine.actions(), []);
    bench.on(Event::Blames { by: 1, rank: 3 }, NOW);
    bench.ends(1, Ending::Exit(0), NOW);
    bench.machine.tick(bench.zero + look * 2);
    assert_eq!(bench.machine.actions(), [Action::FindStopped]);
    bench.on(Event::Stopped { rank: 2 }, look * 2);
    assert_eq!(bench.cause(), None);
    bench.on(Event::Stopped { rank: 3 }, look * 2);
    let missed = StopReason::Missed { rank: 2, ended: false, by: 0, ending: Ending::Exit(0) };
    assert_eq!(bench.cause(), Some(missed));
    assert_eq!(bench.tick(look * 2 + GRACE), TERM);
    assert_eq!(bench.machine.given_up_here().count(), 0);
}

#[test]
fn a_node_whose_ranks_have_all_ended_still_says_whom_they_gave_up() {
    let mut bench = Bench::of(JobPlan { world: 2, ..plan(Role::Node, vec![0]) });
    bench.on(Event::Blames { by: 0, rank: 1 }, NOW);
    bench.ends(0, Ending::Exit(0), NOW);
    assert_eq!(bench.machine.given_up_here().collect::<Vec<_>>(), [(1, 0)]);
}

#[test]
fn an_orphaned_job_hurries() {
    let mut bench = Bench::new(1);
    assert_eq!(bench.stop(INT, NOW), TERM);
    assert_eq!(bench.stop(StopReason::Orphaned, NOW), NOTHING);
    assert_eq!(bench.tick(PATIENCE_ORPHANED), KILL);
}

#[test]
fn time_runs_out_once_and_what_does_not_die_is_left() {
    let limit = Duration::from_secs(60);
    let mut bench = Bench::of(JobPlan { timeout: Some(limit), ..plan(Role::Alone, vec![0]) });
    bench.orders();
    assert_eq!(bench.next(), Some(limit));
    assert_eq!(bench.tick(limit), TERM);
    assert_eq!(bench.cause(), Some(StopReason::TimedOut));
    assert_eq!(bench.tick(limit + PATIENCE), KILL);
    assert_eq!(bench.tick(limit + PATIENCE + VANISH), [StopOrder::Abandon]);
    let verdict = Verdict::of(&bench.machine, &|rank| rank.to_string(), None);
    assert_eq!(verdict.text.unwrap(), "ended because the job took longer than --timeout 60 s");
    assert_eq!(verdict.code, 124);
}

#[test]
fn a_host_that_cannot_begin_leaves_all_unstarted() {
    let mut bench = Bench::of(plan(Role::Fleet, vec![0, 1, 1]));
    let problem = |why: &str, code| Problem { why: why.into(), code };
    bench.machine.on(Event::HostReady { host: 1 }, bench.zero);
    assert_eq!(bench.machine.actions(), []);
    bench.machine.on(Event::HostRefused { host: 0, problem: problem("a", USAGE) }, bench.zero);
    assert_eq!(bench.machine.actions(), [Action::Compare]);
    bench.machine.on(Event::Compared { problems: vec![problem("b", REFUSED)] }, bench.zero);
    assert_eq!(bench.machine.actions(), [Action::SayProblems, Action::AskForCauses]);
    // The connections are closed, and that is nobody's problem.
    bench.machine.on(Event::HostRefused { host: 1, problem: problem("closed", 77) }, bench.zero);
    let verdict = Verdict::of(&bench.machine, &|rank| rank.to_string(), None);
    assert_eq!((verdict.text, verdict.code), (None, REFUSED));
    assert_eq!(bench.machine.problems.len(), 2);
    assert!(!bench.machine.begun && bench.machine.awaited().count() == 0);
    assert_eq!(AttemptEnd::of(&bench.machine, USAGE), AttemptEnd::Final);
}

#[test]
fn memory_is_told_of_the_rank_at_fault() {
    let mut bench = Bench::new(2);
    bench.on(Event::Ended { rank: 1, ending: Ending::Signal(9), memory: OOM.into() }, NOW);
    bench.ends(0, Ending::Exit(1), NOW);
    let verdict = Verdict::of(&bench.machine, &|rank| format!("rank {rank}"), None);
    assert_eq!(verdict.text.unwrap(), "rank 1 was killed by signal 9 (SIGKILL): out of memory");
    assert_eq!(verdict.code, 137);
}

/// A reader that takes nothing is waited for, but not against the user's wish.
#[test]
fn ctrl_c_ends_the_wait_for_a_reader() {
    let mut bench = Bench::new(1);
    bench.ends(0, Ending::Exit(3), NOW);
    bench.on(Event::Strays { left: false }, NOW);
    let stuck = || Event::Output { open: true, pending: true, written: 7 };
    let long = Duration::from_secs(1000);
    bench.on(stuck(), NOW);
    bench.on(stuck(), long);
    assert!(!bench.machine.is_over());
    bench.stop(INT, long);
    bench.machine.on(stuck(), bench.zero + long);
    assert_eq!(bench.machine.actions(), [Action::CloseOutput, Action::SayVerdict, Action::LookAtOutput]);
    assert_eq!(bench.cause(), Some(failed(0, Ending::Exit(3))));
    bench.on(stuck(), long);
    assert!(!bench.machine.is_over());
    bench.on(stuck(), long * 2);
    assert!(bench.machine.is_over());
}

/// A job of so many ranks that goes on with two.
fn elastic(ranks: usize, restarts: u32) -> Bench {
    let terms = ElasticTerms { fewest: 2, restarts };
    let mut bench = Bench::of(JobPlan { elastic: Some(terms), ..plan(Role::Alone, vec![0; ranks]) });
    bench.machine.actions();
    bench
}

impl Bench {
    fn dies(&mut self, rank: usize, after: Duration) -> Vec<Action> {
        let ending = Ending::Signal(9);
        self.machine.on(Event::Ended { rank, ending, memory: String::new() }, self.zero + after);
        self.machine.actions()
    }

    fn acts(&mut self, after: Duration) -> Vec<Action> {
        self.machine.tick(self.zero + after);
        self.machine.actions()
    }
}

#[test]
fn a_rank_that_died_is_started_again_and_ends_nobody() {
    let mut bench = elastic(3, 2);
    let second = Duration::from_secs(1);
    let lost = |number| Action::SayLost { rank: 0, again: Some((number, restart::pause(number))) };
    assert_eq!(bench.dies(0, NOW), [lost(1)]);
    assert_eq!((bench.acts(second / 2), bench.next()), (vec![], Some(second)));
    assert_eq!(bench.acts(second), [Action::Start(0..1)]);
    assert_eq!(bench.dies(0, second * 2), [lost(2)]);
    assert_eq!(bench.acts(second * 4), [Action::Start(0..1)]);
    assert_eq!(bench.dies(0, second * 5), [Action::SayLost { rank: 0, again: None }]);
    bench.ends(1, Ending::Exit(0), second * 6);
    bench.ends(2, Ending::Exit(0), second * 6);
    assert!(bench.machine.awaited().next().is_none() && bench.cause().is_none());
}

/// Two are asked for. One that waits to be taken in does not count.
#[test]
fn a_job_fails_where_too_few_are_left() {
    let second = Duration::from_secs(1);
    let too_few = |joins: bool| {
        let mut bench = elastic(3, 9);
        bench.dies(2, NOW);
        bench.acts(second);
        if joins {
            bench.on(Event::Joined { rank: 2 }, second * 2);
        }
        bench.dies(1, second * 3);
        let verdict = Verdict::of(&bench.machine, &|rank| format!("rank {rank}"), None);
        (bench.acts(second * 4).contains(&Action::End(StopOrder::Term)), verdict)
    };
    assert_eq!(too_few(true), (false, Verdict::default()));
    let (ends, verdict) = too_few(false);
    let text =
        "rank 1 was killed by signal 9 (SIGKILL); 1 rank was left then, and --elastic asks for 2 at least";
    assert_eq!((ends, verdict.text.as_deref(), verdict.code), (true, Some(text), 137));
    assert!(verdict.summary.unwrap().ends_with("; started again: 2 once"));
}

#[test]
fn who_waits_for_a_group_that_is_done_is_ended_without_a_failure() {
    let mut bench = elastic(3, 9);
    let second = Duration::from_secs(1);
    bench.dies(0, NOW);
    bench.acts(second);
    bench.ends(1, Ending::Exit(0), second);
    assert_eq!(
        bench.on(Event::Ended { rank: 2, ending: Ending::Exit(0), memory: String::new() }, second),
        TERM
    );
    bench.ends(0, Ending::Exit(1), second);
    assert_eq!(Verdict::of(&bench.machine, &|rank| rank.to_string(), None), Verdict::default());
}

/// A host of two ranks is lost: it is tried until it is back, and then all of its ranks are started.
#[test]
fn a_host_that_was_lost_is_tried_again() {
    let terms = ElasticTerms { fewest: 1, restarts: 9 };
    let mut bench = Bench::of(JobPlan { elastic: Some(terms), ..plan(Role::Fleet, vec![0, 1, 1]) });
    bench.on(Event::HostReady { host: 0 }, NOW);
    bench.on(Event::HostReady { host: 1 }, NOW);
    bench.on(Event::Compared { problems: Vec::new() }, NOW);
    let second = Duration::from_secs(1);
    let acts = |bench: &mut Bench, event, after| {
        bench.machine.on(event, bench.zero + after);
        bench.machine.actions()
    };
    bench.dies(2, NOW);
    let lost = Event::HostLost { host: 1, silent: NOW, why: "host b was lost".into() };
    assert_eq!(acts(&mut bench, lost, NOW), [Action::SayHostLost { host: 1, pause: second }]);
    assert_eq!(bench.acts(second), [Action::TryHost { host: 1 }]);
    let refused = Event::HostRefused { host: 1, problem: Problem { why: "b".into(), code: 1 } };
    assert_eq!(acts(&mut bench, refused, second), [Action::SayHostLost { host: 1, pause: second * 2 }]);
    assert_eq!(bench.acts(second * 3), [Action::TryHost { host: 1 }]);
    assert_eq!(acts(&mut bench, Event::HostReady { host: 1 }, second * 3), [Action::Start(1..3)]);
    bench.on(Event::Joined { rank: 1 }, second * 4);
    // Then the other host may go.
    let lost = Event::HostLost { host: 0, silent: NOW, why: "host a was lost".into() };
    assert_eq!(acts(&mut bench, lost, second * 4), [Action::SayHostLost { host: 0, pause: second }]);
    // When the work is done nobody is tried, and who waits to be taken in is ended.
    assert_eq!(
        bench.on(Event::Ended { rank: 1, ending: Ending::Exit(0), memory: String::new() }, second * 4),
        TERM
    );
    assert!(bench.acts(second * 5).is_empty() && bench.cause().is_none());
}

/// A host whose ranks have all ended waits for what the launcher wants.
#[test]
fn a_host_starts_ranks_again_when_it_is_told() {
    let terms = ElasticTerms { fewest: 0, restarts: 0 };
    let mut bench = Bench::of(JobPlan { elastic: Some(terms), ..plan(Role::Host, vec![0]) });
    assert_eq!(bench.machine.actions(), [Action::Start(0..1)]);
    assert_eq!(bench.dies(0, NOW), []);
    bench.machine.on(Event::StartAgain { rank: 0 }, bench.zero);
    assert_eq!(bench.machine.actions(), [Action::Start(0..1)]);
    assert_eq!(bench.dies(0, NOW), []);
    bench.machine.on(Event::Ordered(StopOrder::Term), bench.zero);
    assert!(bench.machine.actions().contains(&Action::AskForCauses));
}

/// Others carry the job while no rank of this launcher does.
#[test]
fn processes_that_others_started_count() {
    let mut bench = elastic(2, 1);
    let second = Duration::from_secs(1);
    bench.on(Event::Guests { number: 2 }, NOW);
    bench.dies(0, NOW);
    assert_eq!(bench.dies(1, NOW), [Action::SayLost { rank: 1, again: Some((1, second)) }]);
    bench.acts(second);
    assert!(bench.cause().is_none());
    bench.on(Event::Guests { number: 0 }, second * 2);
    assert_eq!(bench.cause(), Some(failed(1, Ending::Signal(9))));
}
