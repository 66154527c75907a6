//! Trial with `comity launch`: a death, the reports of it, and the things left behind.

pub(super) mod fleet;

use super::{
    fault::{Fault, Plan},
    processes::{Processes, Said, Started, code, monotonic, signal},
    trial::{Outcome, PATIENT, SLACK, is_error, judge},
};
use rustix::process::{Pid, Signal, WaitStatus};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Nothing of a job lives longer after its launcher, in milliseconds.
const ORPHANS: f64 = 2000.0;
const LONG: Duration = Duration::from_secs(20);
/// For the ranks of one job, in bytes.
const MEMORY: &str = "201326592";

#[derive(Debug)]
pub(super) struct Launcher {
    comity: PathBuf,
    worker: PathBuf,
    pub(super) processes: Processes,
    /// A memory control group, or why there is none.
    pub(super) group: Result<Group, String>,
}

/// State of a job under way.
struct Job<'a> {
    processes: &'a mut Processes,
    launcher: Started,
    heard: Vec<Said>,
}

impl Launcher {
    pub(super) fn new(comity: PathBuf, worker: PathBuf, group: &str) -> Self {
        Self { comity, worker, processes: Processes::new(), group: Group::make(group) }
    }

    pub(super) fn run(&mut self, plan: &Plan) -> Result<Outcome, String> {
        let mut outcome = Outcome::default();
        while self.processes.hear(Instant::now()).is_some() {}
        let begun = monotonic();
        let launcher = self.start(plan)?;
        let mut job = Job { processes: &mut self.processes, launcher, heard: Vec::new() };
        match plan.fault {
            Fault::RankKilled => rank_killed(&mut job, plan, &mut outcome),
            Fault::RankExits | Fault::OutOfMemory => rank_fails(&mut job, plan, &mut outcome),
            Fault::SupervisorKill => supervisor_killed(&mut job, plan, &mut outcome),
            Fault::LauncherKill => launcher_dies(&mut job, plan, Signal::KILL, &mut outcome),
            Fault::LauncherTerm => launcher_dies(&mut job, plan, Signal::TERM, &mut outcome),
            Fault::LauncherInt => launcher_dies(&mut job, plan, Signal::INT, &mut outcome),
            Fault::LauncherHup => launcher_dies(&mut job, plan, Signal::HUP, &mut outcome),
            other => return Err(format!("{other:?} is no trial of this lane")),
        }
        for said in &job.heard {
            if said.event == "wrong" || said.field(0).contains("panicked") {
                outcome.broke(format!("a wrong result or a panic: {}", said.fields.join(" ")));
            }
        }
        if !outcome.broken.is_empty() {
            outcome.story = story(&job.heard, begun);
        }
        for (pid, _) in self.processes.alive(&[]) {
            signal(pid, Signal::KILL);
        }
        Ok(outcome)
    }

    fn start(&mut self, plan: &Plan) -> Result<Started, String> {
        let mut random = plan.random.clone();
        let role = match plan.fault {
            Fault::RankExits => format!("exit:{}:{}", random.between(1, 99), plan.victim),
            Fault::OutOfMemory => format!("eat:{}", plan.victim),
            _ => "family".into(),
        };
        let size = plan.size.to_string();
        let seed = plan.seed.to_string();
        let mut command = match (&self.group, plan.fault) {
            (Ok(group), Fault::OutOfMemory) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo 0 > \"$0\" && exec \"$@\""]).arg(group.members()).arg(&self.comity);
                command
            }
            _ => Command::new(&self.comity),
        };
        command.args(["launch", "-n", &size, "--timeout", "60", "--"]).arg(&self.worker);
        command.args(["launched", &role, &seed]).env("RUST_BACKTRACE", "0");
        command.env("COMITY_DETECTION", PATIENT.to_string()).env("COMITY_JOIN_TIMEOUT", "20");
        if plan.links != "mixed" {
            command.env("COMITY_LINKS", plan.links);
        }
        self.processes.start(command)
    }
}

impl Job<'_> {
    /// Wait until all of these ranks have said it.
    fn hear(&mut self, event: &str, ranks: impl Iterator<Item = usize> + Clone, until: Instant) -> bool {
        loop {
            if ranks.clone().all(|r| self.said(r, event).is_some()) {
                return true;
            }
            match self.processes.hear(until) {
                Some(said) => self.heard.push(said),
                None => return false,
            }
        }
    }

    fn said(&self, rank: usize, event: &str) -> Option<&Said> {
        let by = self.launcher.by;
        self.heard.iter().find(|s| s.by == by && s.rank == rank && s.event == event)
    }

    fn pid(&self, rank: usize) -> Option<Pid> {
        Pid::from_raw(self.said(rank, "started")?.field(0).parse().ok()?)
    }

    /// The launcher's exit, and everything that it said.
    fn finish(&mut self, outcome: &mut Outcome) -> Option<WaitStatus> {
        let status = self.processes.wait(self.launcher.pid, Instant::now() + LONG);
        if status.is_none() {
            outcome.broke("the launcher does not end");
        }
        status
    }

    /// When the last process of the job was gone, in milliseconds since.
    fn orphans(&mut self, since: u64, outcome: &mut Outcome) -> f64 {
        loop {
            let took = (monotonic() - since) as f64 / 1e6;
            let left = self.processes.alive(&[]);
            if left.is_empty() {
                return took;
            }
            if took > ORPHANS {
                let names: Vec<_> = left.iter().map(|(_, name)| name.as_str()).collect();
                outcome.late(format!("still there after {took:.0} ms: {}", names.join(", ")));
                return took;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The launcher's words; its pipes may be read a little later than it ends.
    fn verdict(&mut self, wanted: &[&str]) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(5);
        let by = self.launcher.by;
        while self.heard.iter().filter(|s| s.by == by && s.event == "eof").count() < 2
            && let Some(said) = self.processes.hear(until)
        {
            self.heard.push(said);
        }
        let told = |s: &Said| s.event == "noise" && wanted.iter().all(|w| s.field(0).contains(w));
        match self.heard.iter().any(told) {
            true => Ok(()),
            false => Err(format!("the launcher did not say {}", wanted.join(" ... "))),
        }
    }
}

/// The exit code, the words, and nothing left when the launcher has ended.
fn check(job: &mut Job<'_>, expected: i32, words: &[&str], outcome: &mut Outcome) {
    let Some(status) = job.finish(outcome) else { return };
    let since = monotonic();
    job.orphans(since, outcome);
    if code(status) != expected {
        outcome.broke(format!("the exit code is {}, not {expected}", code(status)));
    }
    if let Err(e) = job.verdict(words) {
        outcome.broke(e);
    }
}

fn rank_killed(job: &mut Job<'_>, plan: &Plan, outcome: &mut Outcome) {
    let mut random = plan.random.clone();
    let fatal = *random.pick(&[
        Signal::KILL,
        Signal::KILL,
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::ILL,
        Signal::ABORT,
    ]);
    let early = random.below(4) == 0;
    if !job.hear(if early { "started" } else { "ready" }, 0..plan.size, Instant::now() + LONG) {
        return outcome.broke("the ranks do not start");
    }
    thread::sleep(Duration::from_micros(random.between(0, 30_000)));
    let Some(pid) = job.pid(plan.victim) else { return outcome.broke("a rank has no process") };
    let killed = monotonic();
    signal(pid, fatal);
    let number = fatal.as_raw();
    let blamed = format!(" rank {} (pid {},", plan.victim, pid.as_raw_pid());
    check(job, 128 + number, &[&blamed, &format!("signal {number} ")], outcome);
    for rank in plan.others() {
        // One that had not joined yet may have been ended before it could say anything.
        match job.said(rank, "out").cloned() {
            Some(out) if is_error(&out) => judge(&out, plan, killed, PATIENT * 1000.0 + SLACK, outcome),
            Some(_) => outcome.broke(format!("rank {rank} did not notice")),
            None if early => {}
            None => outcome.broke(format!("rank {rank} was told nothing")),
        }
    }
}

/// A rank that ends by itself.
fn rank_fails(job: &mut Job<'_>, plan: &Plan, outcome: &mut Outcome) {
    let (code, why) = match plan.fault {
        Fault::OutOfMemory => (137, "out of memory".to_owned()),
        _ => {
            let code = plan.random.clone().between(1, 99) as i32;
            (code, format!("exited with code {code}"))
        }
    };
    if !job.hear("started", 0..plan.size, Instant::now() + LONG) {
        return outcome.broke("the ranks do not start");
    }
    let Some(pid) = job.pid(plan.victim) else { return outcome.broke("a rank has no process") };
    let blamed = format!(" rank {} (pid {},", plan.victim, pid.as_raw_pid());
    check(job, code, &[&blamed, &why], outcome);
}

fn supervisor_killed(job: &mut Job<'_>, plan: &Plan, outcome: &mut Outcome) {
    if !job.hear("started", 0..plan.size, Instant::now() + LONG) {
        return outcome.broke("the ranks do not start");
    }
    thread::sleep(Duration::from_micros(plan.random.clone().between(0, 60_000)));
    let all = job.processes.alive(&[]);
    let Some((supervisor, _)) = all.iter().find(|(_, name)| name == "rank-supervisor") else {
        return outcome.broke("the launcher has no second process");
    };
    let killed = monotonic();
    signal(*supervisor, Signal::KILL);
    let took = job.orphans(killed, outcome);
    outcome.times.push(took);
    check(job, 137, &["was killed by signal 9 (SIGKILL)"], outcome);
}

fn launcher_dies(job: &mut Job<'_>, plan: &Plan, how: Signal, outcome: &mut Outcome) {
    let mut random = plan.random.clone();
    match random.below(4) {
        // At any moment of the start.
        0 => thread::sleep(Duration::from_micros(random.between(0, 60_000))),
        1 if job.hear("started", 0..plan.size, Instant::now() + LONG) => {}
        _ if job.hear("ready", 0..plan.size, Instant::now() + LONG) => {
            thread::sleep(Duration::from_micros(random.between(0, 30_000)));
        }
        _ => return outcome.broke("the ranks do not start"),
    }
    let at = monotonic();
    signal(job.launcher.pid, how);
    let took = job.orphans(at, outcome);
    outcome.times.push(took);
    let Some(status) = job.finish(outcome) else { return };
    if code(status) != 128 + how.as_raw() {
        outcome.broke(format!("the exit code is {}", code(status)));
    }
    // One that was hit before it could take the signal says nothing.
    if status.exit_status().is_some() {
        let name = match how {
            Signal::TERM => "SIGTERM",
            Signal::INT => "SIGINT",
            _ => "SIGHUP",
        };
        if let Err(e) = job.verdict(&["ended by", name]) {
            outcome.broke(e);
        }
    }
}

fn story(heard: &[Said], from: u64) -> String {
    let line = |s: &Said| {
        let ms = (s.at as f64 - from as f64) / 1e6;
        format!("    {ms:9.1} ms  {} {}", s.event, s.fields.join(" | "))
    };
    heard.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Directories in which control groups are made, of version 1 and 2, and the files that limit their memory.
const ROOTS: [(&str, &[(&str, &str)]); 2] = [
    ("/sys/fs/cgroup/memory", &[("memory.limit_in_bytes", MEMORY)]),
    ("/sys/fs/cgroup", &[("memory.max", MEMORY), ("memory.swap.max", "0")]),
];

/// Remove what a lane that was killed has left.
pub(super) fn remove_group(name: &str) {
    for (root, _) in ROOTS {
        let dir = Path::new(root).join(name);
        if dir.exists() {
            drop(Group(dir));
        }
    }
}

/// A memory control group of version 1 or 2. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Group(PathBuf);

impl Group {
    fn make(name: &str) -> Result<Self, String> {
        let mut why = Vec::new();
        for (root, limits) in ROOTS {
            if !Path::new(root).join("cgroup.procs").exists() {
                continue;
            }
            let dir = Path::new(root).join(name);
            if let Err(e) = fs::create_dir(&dir) {
                why.push(format!("{}: {e}", dir.display()));
                continue;
            }
            let group = Self(dir);
            let limited = limits.iter().try_for_each(|(file, limit)| fs::write(group.0.join(file), limit));
            match limited {
                Ok(()) => return Ok(group),
                Err(e) => why.push(format!("{}: {e}", group.0.display())),
            }
        }
        why.push("no memory control group can be made here".into());
        Err(why.join("; "))
    }

    fn members(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begun = Instant::now();
        while let Err(e) = fs::remove_dir(&self.0) {
            if e.kind() == std::io::ErrorKind::NotFound {
                return;
            }
            if begun.elapsed() > Duration::from_secs(5) {
                eprintln!("xtask: cannot remove {}: {e}", self.0.display());
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
