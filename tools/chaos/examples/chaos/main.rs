//! A rank that `cargo xtask chaos` breaks: checked calls without end, and a word on each thing that it sees, with the time.
//!
//! `chaos crew` joins the jobs that it reads from its input, one after the other; `chaos soak SECONDS` is a rank of
//! `comity launch`. What it says is one line an event: `@chaos`, the event, the rank, the time, and more, between tabs.
mod calls;

use calls::Calls;
use comity::{Config, Detection, Error, ErrorKind, Group, Key, LinkKind};
use std::{
    fmt::Display,
    fs,
    io::{BufRead, Write},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["crew"] => crew(),
        ["soak", seconds] => soak(seconds.parse().expect("seconds are a number")),
        _ => {
            eprintln!("usage: chaos crew | chaos soak SECONDS");
            std::process::exit(2);
        }
    }
}

/// Lines of the input. At its end the process ends, so that no rank outlives the program that breaks it.
fn input() -> Receiver<String> {
    let (send, lines) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    lines
}

/// Joins every job that it is told of. `left` counts what this process holds afterwards.
fn crew() {
    let lines = input();
    let words = Words::new(0);
    words.say("up", &[&std::process::id()]);
    while let Ok(line) = lines.recv() {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[..] {
            ["play", role, seed, rank, size, ref rest @ ..] => {
                let rank = rank.parse().expect("a rank is a number");
                let words = Words::new(rank);
                let size = size.parse().expect("a size is a number");
                let config = config(rank, size, rest);
                let seed = seed.parse().expect("a seed is a number");
                match config.connect() {
                    Ok(group) => play(role, seed, group, &words, &lines),
                    Err(e) => {
                        words.failed("out", &e);
                        words.say("closed", &[&0]);
                    }
                }
                words.left();
            }
            // Of a job that has ended before it was read.
            ["end" | "call"] => {}
            _ => panic!("unknown order {line:?}"),
        }
    }
}

/// `HOST:PORT JOB LINKS DETECTION JOIN_SECONDS HOST_NAME ADDR`; `-` leaves the last two out.
fn config(rank: usize, size: usize, rest: &[&str]) -> Config {
    let [at, job, links, detection, join, host, addr] = rest else {
        panic!("seven fields, not {rest:?}");
    };
    let seconds = |text: &str| Duration::from_secs_f64(text.parse().expect("seconds are a number"));
    let kinds: Vec<LinkKind> =
        links.split(',').map(|l| LinkKind::from_name(l).unwrap_or_else(|| panic!("no link {l:?}"))).collect();
    let mut config = Config::new(rank, size)
        .rendezvous(at)
        .expect("an address")
        .job(*job)
        .key(Key::from([7; 32]))
        .links(kinds)
        // The higher of a pair's counts: some pairs have a connection for each direction.
        .connections(1 + rank % 2)
        .send_threads(rank % 2)
        // Another number in each job, the same on all its ranks.
        .lanes(1 + job.bytes().map(usize::from).sum::<usize>() % 4)
        .detection(Detection::After(seconds(detection)))
        .join_timeout(seconds(join))
        .timeout(Duration::from_secs(30));
    if *host != "-" {
        config = config.host_name(*host);
    }
    if *addr != "-" {
        config = config.addrs(addr.split(',').map(|a| a.parse().expect("an address")));
    }
    config
}

/// A rank under `comity launch`, for so long.
fn soak(seconds: f64) {
    let rank: usize = std::env::var("COMITY_RANK").ok().and_then(|r| r.parse().ok()).unwrap_or(0);
    let words = Words::new(rank);
    let mut calls = Calls::new(1);
    let begun = Instant::now();
    let ended = comity::init().and_then(|group| {
        loop {
            // As a training step does: every rank wants its core all the time.
            let busy = Instant::now();
            while busy.elapsed() < Duration::from_millis(5) {
                std::hint::spin_loop();
            }
            if calls.step(&group, begun.elapsed().as_secs_f64() > seconds, &words)? {
                return Ok(group.stats().longest_silence);
            }
        }
    });
    match ended {
        Ok(silence) => {
            words.say("silence", &[&silence.as_millis()]);
            words.say("out", &[&"ok", &calls.made()]);
        }
        Err(e) => {
            words.failed("out", &e);
            std::process::exit(1);
        }
    }
}

/// Plays a part in a group, then looks at what the group does after it.
fn play(role: &str, seed: u64, group: Group, words: &Words, lines: &Receiver<String>) {
    words.say("ready", &[]);
    let mut calls = Calls::new(seed);
    let out = match role {
        "ops" => {
            let mut end = false;
            loop {
                end |= lines.try_recv().is_ok_and(|line| line == "end");
                match calls.step(&group, end, words) {
                    Ok(true) => break Ok(()),
                    Ok(false) => {}
                    Err(e) => break Err(e),
                }
            }
        }
        "idle" => {
            let _ = lines.recv();
            words.say("called", &[]);
            calls.step(&group, true, words).and_then(|_| group.barrier())
        }
        "closing" => group.barrier().and_then(|()| group.barrier()),
        other => panic!("no role {other:?}"),
    };
    match &out {
        Ok(()) => words.say("out", &[&"ok", &calls.made()]),
        Err(e) => words.failed("out", e),
    }
    if let Err(first) = &out {
        // The same cause, at once.
        let begun = Instant::now();
        match group.barrier() {
            Ok(()) => words.say("again", &[&"ok", &0, &""]),
            Err(e) => {
                let same = matches!(e.kind(), ErrorKind::Broken(_)) && e.ranks() == first.ranks();
                let what = if same { "same" } else { "other" };
                words.say("again", &[&what, &begun.elapsed().as_micros(), &e]);
            }
        }
    }
    let begun = Instant::now();
    if let Err(e) = group.close() {
        words.say("again", &[&"other", &begun.elapsed().as_micros(), &e]);
    }
    drop(group);
    words.say("closed", &[&begun.elapsed().as_millis()]);
}

/// More threads than ever after a job, for so long, are threads that were left.
const SETTLED: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Words {
    rank: usize,
}

impl Words {
    fn new(rank: usize) -> Self {
        Self { rank }
    }

    fn say(&self, event: &str, more: &[&dyn Display]) {
        let mut line = format!("@chaos\t{event}\t{}\t{}", self.rank, chaos::monotonic());
        for field in more {
            line += "\t";
            line += &field.to_string().replace(['\n', '\t'], " ");
        }
        line += "\n";
        // Whoever listened may be gone.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }

    /// A call or a join that failed: the error's kind, whom it blames, its words, and what only some errors have: why ranks did not
    /// come together, the address that was tried, and who saw a rank go.
    fn failed(&self, event: &str, e: &Error) {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let ranks: Vec<String> = e.ranks().iter().map(usize::to_string).collect();
        let who = or_none((!ranks.is_empty()).then(|| ranks.join(",")));
        let (cause, address) = match e.root().kind() {
            ErrorKind::Join(why) => (Some(why.cause.name().to_owned()), why.address.clone()),
            _ => (None, None),
        };
        let seen_by = match e.root().kind() {
            ErrorKind::PeerLost { seen_by, .. } => seen_by.map(|r| r.to_string()),
            _ => None,
        };
        self.say(event, &[&kind(e.root()), &who, e, &or_none(cause), &or_none(address), &or_none(seen_by)]);
    }

    /// Report the resources that this process still holds: descriptors, threads, shared memory of groups.
    fn left(&self) {
        let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).map_or(0, Iterator::count);
        // A thread that was joined is listed until the system has put it away.
        static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
        let until = Instant::now() + SETTLED;
        let mut threads = count("task");
        while threads > LEAST.load(Ordering::Relaxed) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
            threads = count("task");
        }
        LEAST.fetch_min(threads, Ordering::Relaxed);
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let maps = maps.lines().filter(|l| l.contains("memfd:comity")).count();
        self.say("left", &[&count("fd"), &threads, &maps]);
    }
}

fn kind(e: &Error) -> &'static str {
    match e.kind() {
        ErrorKind::PeerLost { .. } => "lost",
        ErrorKind::Mismatch { .. } => "mismatch",
        ErrorKind::Aborted { .. } => "aborted",
        ErrorKind::Timeout { .. } => "timeout",
        ErrorKind::Join(_) => "join",
        ErrorKind::Config(_) => "config",
        ErrorKind::Unavailable { .. } => "unavailable",
        ErrorKind::Os { .. } => "os",
        ErrorKind::Closed => "closed",
        _ => "other",
    }
}
