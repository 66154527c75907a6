//! Jobs in which one rank takes longer than the others before every call: `comity report` names that one first.
//!
//! An ordinary run makes up to three jobs of each kind and asks for the right rank in two of them: a machine that does other things
//! may hold up any rank for once. `COMITY_TRIALS=1000` makes so many jobs of each kind, also with a rank that is slower by a tenth
//! only, and says in how many of them it was named; the right one in 99 of 100 is asked for. Those run side by side, as many as
//! there are cores.

mod common;

use comity::ReduceOp;
use common::{Ended, launch, run_comity, this_test};
use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

const ROLE: &str = "SLOW_TEST_ROLE";
const TEST: &str = "the_slow_rank_is_named";
/// Time of a step before its call.
const STEP: Duration = Duration::from_millis(30);

/// Time of the slow rank's step, in percent of the others', and the number of steps.
const KINDS: [(u32, u32); 3] = [(200, 12), (1000, 4), (110, 40)];

/// A job: the slow rank, the number of ranks, and their calls.
#[derive(Clone, Copy, Debug)]
struct Trial {
    slow: usize,
    size: usize,
    percent: u32,
    steps: u32,
    count: usize,
}

impl Trial {
    fn new(kind: usize, number: usize) -> Self {
        let (percent, steps) = KINDS[kind];
        let size = 2 + number % 4;
        Self { slow: number / 4 % size, size, percent, steps, count: [1, 1000, 100_000][number % 3] }
    }

    fn encode(&self) -> String {
        format!("{} {} {} {}", self.slow, self.percent, self.steps, self.count)
    }

    /// Plays a rank, whose own part is in the environment.
    fn act(words: &str) -> comity::Error {
        let words: Vec<usize> = words.split(' ').map(|w| w.parse().unwrap()).collect();
        let [slow, percent, steps, count] = words[..] else { panic!("{words:?}") };
        let group = comity::init().unwrap();
        let mut x = vec![1f32; count];
        let mine = if group.rank() == slow { STEP * percent as u32 / 100 } else { STEP };
        group.barrier().unwrap();
        for _ in 0..steps {
            thread::sleep(mine);
            group.all_reduce(&mut x, ReduceOp::Max).unwrap();
        }
        if group.rank() == 0 {
            group.abort("that was enough");
        }
        loop {
            if let Err(e) = group.barrier() {
                return e;
            }
        }
    }

    /// The rank that the report names as the slowest, if any.
    fn run(&self, dir: &Path) -> (Option<usize>, String) {
        let at = dir.to_str().unwrap();
        let size = self.size.to_string();
        let mut job = launch(&["-n", &size, "--timeout", "60", "--log-dir", at], &this_test(TEST));
        let job = Ended::of(job.env(ROLE, self.encode()));
        let told = run_comity(&["report", at]).out;
        let named = told.lines().find_map(|l| l.strip_prefix("rank ")?.split_once(" was waited for"));
        let named = named.map(|(rank, _)| rank.parse().unwrap());
        (named, format!("{told}{}", job.err))
    }
}

#[test]
fn the_slow_rank_is_named() {
    if let Ok(words) = std::env::var(ROLE) {
        eprintln!("{}", Trial::act(&words));
        std::process::exit(1);
    }
    let by_hand: Option<usize> = std::env::var("COMITY_TRIALS").ok().map(|n| n.parse().unwrap());
    // A tenth is less than what a machine that does other things takes from a rank by chance.
    let kinds = if by_hand.is_some() { 3 } else { 2 };
    let each = by_hand.unwrap_or(3);
    // The jobs that may name another rank.
    let allowed = if by_hand.is_some() { each / 100 } else { each / 2 };
    let at_once = if by_hand.is_some() { thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    for (kind, (percent, _)) in KINDS.iter().enumerate().take(kinds) {
        let next = AtomicUsize::new(0);
        let right = AtomicUsize::new(0);
        let wrong = Mutex::new(Vec::new());
        // By hand all are run, for their number is told.
        let is_decided = || {
            let right = right.load(Ordering::Relaxed);
            by_hand.is_none() && (right + allowed >= each || wrong.lock().unwrap().len() > allowed)
        };
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= each || is_decided() {
                    return;
                }
                let trial = Trial::new(kind, number);
                let dir = tempfile::tempdir().unwrap();
                let (named, told) = trial.run(dir.path());
                if named == Some(trial.slow) {
                    right.fetch_add(1, Ordering::Relaxed);
                } else {
                    wrong.lock().unwrap().push(format!("{trial:?} but {named:?} was named:\n{told}"));
                }
            }
        };
        thread::scope(|s| (0..at_once).for_each(|_| drop(s.spawn(work))));
        let right = right.into_inner();
        let wrong = wrong.into_inner().unwrap();
        println!("{percent} % of the others' time: {right} of {} named right", right + wrong.len());
        assert!(wrong.len() <= allowed, "{} of up to {each} wrong: {}", wrong.len(), wrong.join("\n"));
    }
}
