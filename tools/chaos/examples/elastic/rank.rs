//! A rank: it adds up, forms its group again after each failure and for each joiner, and checks every sum.

use chaos::monotonic as now;
use comity::{Config, Detection, Error, ErrorKind, Group, JoinCause, Key, ReduceOp, ReformOptions, Result};
use std::{
    io::Read,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Elements of each sum. The last two tell of joiners, and that the end has come.
const COUNT: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(1);
/// Exit code of a rank that is in no group that follows: the others went on without it, or sent it away as a joiner, or it has too few of them on its side.
pub(super) const LEFT_OUT: u8 = 3;

pub(super) fn key() -> Key {
    Key::from([7; 32])
}

/// Work of the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    /// Sums alone.
    Sums,
    /// Sums that change a state, which joiners get.
    Training,
    /// So many groups, each of which follows a healthy one.
    Healthy(usize),
}

impl Work {
    pub(super) fn word(self) -> String {
        match self {
            Self::Sums => "sums".into(),
            Self::Training => "training".into(),
            Self::Healthy(n) => n.to_string(),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "sums" => Some(Self::Sums),
            "training" => Some(Self::Training),
            n => n.parse().ok().map(Self::Healthy),
        }
    }
}

/// `PLACE SIZE ADDRESS LINKS DETECTION WORK`; the place of a joiner is `join`.
fn parse(orders: &[&str]) -> Option<(Config, Work)> {
    let [place, size, at, links, detection, work] = orders else { return None };
    let config = match *place {
        "join" => Config::joiner(),
        rank => Config::new(rank.parse().ok()?, size.parse().ok()?),
    };
    let limit = Duration::from_secs_f64(detection.parse().ok()?);
    let config = config.store(at).ok()?.job("elastic").key(key()).set("COMITY_LINKS", links).ok()?;
    Some((config.detection(Detection::After(limit)), Work::parse(work)?))
}

pub(super) fn run(orders: &[&str]) -> ExitCode {
    let Some((config, work)) = parse(orders) else {
        eprintln!("not the orders of a rank: {orders:?}");
        return ExitCode::from(2);
    };
    let is_joiner = orders.first() == Some(&"join");
    let mut life = Life { ends: at_the_end(), state: State::new(!is_joiner || work != Work::Training), work };
    match life.run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let is_left_out = match e.kind() {
                ErrorKind::Join(why) => {
                    matches!(why.cause, JoinCause::Ended | JoinCause::Missing | JoinCause::Unreachable)
                }
                _ => false,
            };
            if !is_left_out {
                eprintln!("pid {}: {e}", std::process::id());
            }
            ExitCode::from(if is_left_out { LEFT_OUT } else { 1 })
        }
    }
}

/// True when the input has ended: it is time to stop, or nobody is left to say so.
fn at_the_end() -> Arc<AtomicBool> {
    let ends = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ends);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Release);
        // A rank that never comes to its next sum.
        thread::sleep(Duration::from_secs(60));
        std::process::exit(4);
    });
    ends
}

/// Result of training that goes on: what it is after each step is known beforehand.
#[derive(Debug)]
struct State {
    /// -1: this rank holds nothing yet.
    step: [i64; 1],
    weights: Vec<i64>,
}

impl State {
    fn new(holds: bool) -> Self {
        Self { step: [if holds { 0 } else { -1 }], weights: vec![0; COUNT] }
    }

    fn gradient(step: i64, i: usize) -> i64 {
        (31 * step + i as i64) % 17
    }

    fn add(&mut self) {
        let step = self.step[0];
        self.weights.iter_mut().enumerate().for_each(|(i, w)| *w += Self::gradient(step, i));
        self.step[0] += 1;
    }

    fn check(&self) {
        let step = self.step[0];
        for (i, w) in self.weights.iter().enumerate() {
            // 0 to 16, in some order, in each 17 steps.
            let rest: i64 = (step / 17 * 17..step).map(|s| Self::gradient(s, i)).sum();
            assert_eq!(*w, step / 17 * 136 + rest, "weight {i} after step {step}");
        }
    }
}

/// Reason that a group is given up for another.
enum Turn {
    Joiners,
    Failed(Error),
    Done,
}

struct Life {
    ends: Arc<AtomicBool>,
    state: State,
    work: Work,
}

impl Life {
    fn run(&mut self, config: Config) -> Result<()> {
        let options = ReformOptions::new().limit(Duration::from_secs(30));
        let began = now();
        let mut group = config.connect()?;
        if let Work::Healthy(n) = self.work {
            return healthy(group, n, &options);
        }
        let mut times = (began, now());
        loop {
            let turn = self.live(&group, times).unwrap_or_else(Turn::Failed);
            let turned = now();
            match turn {
                Turn::Done => {
                    Line::say("done", group.rank(), group.size(), &[self.state.step[0] as u64]);
                    let _ = group.close();
                    return Ok(());
                }
                Turn::Failed(e) if matches!(e.kind(), ErrorKind::Mismatch { .. } | ErrorKind::Config(_)) => {
                    return Err(e);
                }
                Turn::Joiners | Turn::Failed(_) => {}
            }
            group = group.reform(&options)?.group;
            times = (turned, now());
        }
    }

    /// Live in a group until it fails, takes in others, or is done.
    fn live(&mut self, group: &Group, (turned, formed): (u64, u64)) -> Result<Turn> {
        let rank = group.rank() as i64;
        let size = group.size() as i64;
        let sum = |told: [i64; 2], value: &dyn Fn(usize) -> i64| {
            let mut x: Vec<i64> = (0..COUNT - 2).map(|i| value(i) + rank).chain(told).collect();
            group.all_reduce(&mut x, ReduceOp::Sum)?;
            for (i, x) in x[..COUNT - 2].iter().enumerate() {
                assert_eq!(*x, size * value(i) + size * (size - 1) / 2, "element {i} of {size} ranks");
            }
            Ok::<_, Error>([x[COUNT - 2], x[COUNT - 1]])
        };
        sum([0, 0], &|i| i as i64)?;
        Line::say("sum", group.rank(), group.size(), &[turned, formed, now()]);
        if self.work == Work::Training {
            let mut furthest = self.state.step;
            group.all_reduce(&mut furthest, ReduceOp::Max)?;
            let holds = self.state.step == furthest;
            group.sync(&mut [(&mut self.state.weights).into(), (&mut self.state.step).into()], holds)?;
            assert_eq!(self.state.step, furthest);
            self.state.check();
        }
        loop {
            let told = [group.joiners() as i64, i64::from(self.ends.load(Ordering::Acquire))];
            let step = self.state.step[0];
            let [joiners, ends] = sum(told, &|i| State::gradient(step, i))?;
            if self.work == Work::Training {
                self.state.add();
            }
            if ends > 0 {
                self.state.check();
                return Ok(Turn::Done);
            }
            if joiners > 0 {
                return Ok(Turn::Joiners);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Form a healthy group again, so many times.
fn healthy(mut group: Group, n: usize, options: &ReformOptions) -> Result<()> {
    for _ in 0..n {
        group.barrier()?;
        let began = now();
        let next = group.reform(options)?.group;
        let formed = now();
        let mut x = vec![1i64; COUNT];
        next.all_reduce(&mut x, ReduceOp::Sum)?;
        let summed = now();
        assert!(x.iter().all(|x| *x == next.size() as i64));
        Line::say("sum", next.rank(), next.size(), &[began, formed, summed]);
        group = next;
        thread::sleep(PAUSE * 5);
    }
    group.close()
}

/// Event of a rank, on a line of its own: the words after [`MARK`].
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) event: String,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Times of `chaos::monotonic` and other numbers.
    pub(super) numbers: Vec<u64>,
}

const MARK: &str = "@elastic ";

impl Line {
    /// Print an event.
    pub(super) fn say(event: &str, rank: usize, size: usize, numbers: &[u64]) {
        let numbers: String = numbers.iter().map(|n| format!(" {n}")).collect();
        println!("{MARK}{event} {rank} {size}{numbers}");
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix(MARK)?.split(' ');
        let event = words.next()?.to_owned();
        let rank = words.next()?.parse().ok()?;
        let size = words.next()?.parse().ok()?;
        let numbers = words.map(|w| w.parse().ok()).collect::<Option<_>>()?;
        Some(Self { event, rank, size, numbers })
    }
}
