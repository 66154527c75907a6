//! The same over ssh: the launcher is on the lane's own network, the ranks on three hosts with an sshd each.
//!
//! ```text
//! lane 10.66.0.100 (the launcher) --- switch --- h0, h1, h2 (sshd, a guard, ranks)
//! ```

use super::{
    super::{
        fault::{Fault, Plan},
        net::{self, Cut},
        processes::{Processes, code, monotonic, signal},
        trial::{Outcome, PATIENT},
    },
    Job, LONG, check, launcher_dies, story,
};
use rustix::process::{Pid, Signal};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};
use tasks::{
    child::Task,
    place::{target, users_of_sshd},
};

/// Hosts of a job.
const HOSTS: usize = 3;
/// Folder of keys and settings: the lane's own, and gone with it.
const FOLDER: &str = "/run/ssh";
/// From a cut until nothing runs on the host: 3 s of silence, and 5 s to end.
const SILENT_END: Duration = Duration::from_secs(8);

/// Things that jobs over ssh need.
#[derive(Debug)]
pub(crate) struct Fleet {
    comity: PathBuf,
    worker: PathBuf,
    pub(crate) processes: Processes,
    /// The servers, until this value goes; or why there are none.
    pub(crate) servers: Result<Vec<Child>, String>,
}

impl Fleet {
    pub(crate) fn new(comity: PathBuf, worker: PathBuf) -> Self {
        Self { comity, worker, processes: Processes::new(), servers: serve() }
    }

    pub(crate) fn run(&mut self, plan: &Plan) -> Result<Outcome, String> {
        let mut outcome = Outcome::default();
        while self.processes.hear(Instant::now()).is_some() {}
        let begun = monotonic();
        let command = self.command(plan);
        let launcher = self.processes.start(command)?;
        let mut job = Job { processes: &mut self.processes, launcher, heard: Vec::new() };
        match plan.fault {
            Fault::FarLauncherKill => launcher_dies(&mut job, plan, Signal::KILL, &mut outcome),
            _ if !job.hear("ready", 0..plan.size, Instant::now() + LONG) => {
                outcome.broke("the ranks do not start");
            }
            Fault::FarRankKilled => rank_killed(&mut job, plan, &mut outcome),
            Fault::HostCut => host_cut(&mut job, plan, &mut outcome)?,
            Fault::HostKilled => host_killed(&mut job, plan, &mut outcome)?,
            Fault::SshKilled => ssh_killed(&mut job, plan, &mut outcome),
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

    fn command(&self, plan: &Plan) -> Command {
        let hosts: Vec<String> = (0..hosts(plan)).map(|h| format!("h{h}:{}", ranks_of(plan, h))).collect();
        let mut command = Command::new(&self.comity);
        let config = format!("--ssh-arg={FOLDER}/config");
        command.args(["launch", "--ssh-arg=-F", &config, "--timeout", "60", "--hosts", &hosts.join(",")]);
        for (name, value) in [
            ("COMITY_DETECTION", PATIENT.to_string().as_str()),
            ("COMITY_JOIN_TIMEOUT", "20"),
            ("RUST_BACKTRACE", "0"),
        ] {
            command.args(["--env", &format!("{name}={value}")]);
        }
        command.arg("--").arg(&self.worker).args(["launched", "family", &plan.seed.to_string()]);
        command
    }
}

fn hosts(plan: &Plan) -> usize {
    plan.size.min(HOSTS)
}

/// The first hosts have one more where they cannot have the same.
fn ranks_of(plan: &Plan, host: usize) -> usize {
    plan.size / hosts(plan) + usize::from(host < plan.size % hosts(plan))
}

fn host_of(plan: &Plan, rank: usize) -> usize {
    let mut last = 0;
    (0..hosts(plan))
        .find(|host| {
            last += ranks_of(plan, *host);
            rank < last
        })
        .unwrap_or_default()
}

/// A random moment of the work.
fn moment(plan: &Plan) {
    thread::sleep(Duration::from_micros(plan.random.clone().between(0, 200_000)));
}

fn rank_killed(job: &mut Job<'_>, plan: &Plan, outcome: &mut Outcome) {
    moment(plan);
    let Some(pid) = job.pid(plan.victim) else { return outcome.broke("a rank has no process") };
    signal(pid, Signal::KILL);
    let blamed =
        format!(" rank {} (pid {}, host h{})", plan.victim, pid.as_raw_pid(), host_of(plan, plan.victim));
    check(job, 137, &[&blamed, "signal 9 "], outcome);
}

/// The host falls silent, and its cable is put back when the job has ended.
fn host_cut(job: &mut Job<'_>, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    let host = host_of(plan, plan.victim);
    moment(plan);
    let cut = Instant::now();
    net::cut(host, Cut::Both)?;
    ended_as_lost(job, host, outcome);
    while !on_host(job, host)?.is_empty() {
        if cut.elapsed() > SILENT_END {
            outcome.broke(format!("on the host that was cut off something runs after {SILENT_END:?}"));
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    outcome.times.push(cut.elapsed().as_secs_f64() * 1000.0);
    net::mend(host, Cut::Both)?;
    job.orphans(monotonic(), outcome);
    Ok(())
}

/// All that runs there ends at once.
fn host_killed(job: &mut Job<'_>, plan: &Plan, outcome: &mut Outcome) -> Result<(), String> {
    let host = host_of(plan, plan.victim);
    moment(plan);
    let killed = monotonic();
    let all = on_host(job, host)?;
    // At once, as where the power goes: who could say something is stopped first.
    for what in [Signal::STOP, Signal::KILL] {
        let (speakers, others): (Vec<_>, Vec<_>) =
            all.iter().partition(|(_, name)| name == "rank-supervisor");
        speakers.into_iter().chain(others).for_each(|(pid, _)| signal(*pid, what));
    }
    ended_as_lost(job, host, outcome);
    job.orphans(monotonic(), outcome);
    outcome.times.push((monotonic() - killed) as f64 / 1e6);
    // What `comity top` looks for: nobody was left there to remove it.
    let _ = fs::remove_dir_all("/tmp/comity-0");
    Ok(())
}

fn ssh_killed(job: &mut Job<'_>, plan: &Plan, outcome: &mut Outcome) {
    let host = host_of(plan, plan.victim);
    moment(plan);
    let word = format!("\0h{host}\0");
    let is_ours = |(pid, name): &(Pid, String)| {
        let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
        name == "ssh" && String::from_utf8_lossy(&words).contains(&word)
    };
    let Some((ssh, _)) = job.processes.alive(&[]).into_iter().find(is_ours) else {
        return outcome.broke("the launcher has no ssh");
    };
    let killed = monotonic();
    signal(ssh, Signal::KILL);
    ended_as_lost(job, host, outcome);
    job.orphans(monotonic(), outcome);
    outcome.times.push((monotonic() - killed) as f64 / 1e6);
}

/// The launcher ends and names the host.
fn ended_as_lost(job: &mut Job<'_>, host: usize, outcome: &mut Outcome) {
    let Some(status) = job.finish(outcome) else { return };
    if code(status) != 1 {
        outcome.broke(format!("the exit code is {}, not 1", code(status)));
    }
    if let Err(e) = job.verdict(&[&format!("host h{host} was lost"), "ended there"]) {
        outcome.broke(e);
    }
}

/// Processes on a host but its servers.
fn on_host(job: &mut Job<'_>, host: usize) -> Result<Vec<(Pid, String)>, String> {
    let said = Task::new("ip").args(["netns", "pids", &format!("h{host}")]).run()?;
    let there: Vec<Pid> = said.split_whitespace().filter_map(|w| Pid::from_raw(w.parse().ok()?)).collect();
    let alive = job.processes.alive(&[]);
    Ok(alive.into_iter().filter(|(pid, _)| there.contains(pid)).collect())
}

/// A server on each host, one key for all of them, and one for the user.
fn serve() -> Result<Vec<Child>, String> {
    let own = target().join("sshd");
    let sshd =
        ["/usr/sbin/sshd".into(), own.join("usr/sbin/sshd")].into_iter().find(|p: &PathBuf| p.exists());
    let sshd = sshd.ok_or("there is no sshd (package openssh-server)")?;
    if !rustix::process::geteuid().is_root() || is_mapped() {
        return Err("sshd needs root, and not only in a user namespace".into());
    }
    net::ip("addr add 10.66.0.100/24 dev switch")?;
    let fail = |e: std::io::Error| format!("{FOLDER}: {e}");
    for folder in [FOLDER, "/run/sshd"] {
        fs::create_dir_all(folder).map_err(fail)?;
    }
    for key in ["id", "host"] {
        let file = format!("{FOLDER}/{key}");
        Task::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &file]).run()?;
    }
    let users = users_of_sshd(Path::new(FOLDER))?;
    fs::write(format!("{FOLDER}/passwd"), users).map_err(fail)?;
    Task::new("mount").args(["--bind", &format!("{FOLDER}/passwd"), "/etc/passwd"]).run()?;
    let settings = format!(
        "HostKey {FOLDER}/host\nAuthorizedKeysFile {FOLDER}/id.pub\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nMaxStartups 100\n"
    );
    fs::write(format!("{FOLDER}/sshd"), settings).map_err(fail)?;
    let host = |h: usize| format!("Host h{h}\n  HostName {}\n", net::address(h));
    let config: String = (0..HOSTS).map(host).collect();
    let all = format!(
        "{config}Host *\n  IdentityFile {FOLDER}/id\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    );
    fs::write(format!("{FOLDER}/config"), all).map_err(fail)?;
    let libraries =
        ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|l| own.join(l).display().to_string());
    let start = |h: usize| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("h{h}")]).arg(&sshd).args([
            "-D",
            "-f",
            &format!("{FOLDER}/sshd"),
        ]);
        command.env("LD_LIBRARY_PATH", libraries.join(":")).spawn().map_err(fail)
    };
    let servers = (0..HOSTS).map(start).collect::<Result<Vec<_>, _>>()?;
    answered().map(|()| servers)
}

/// Return whether root is so only here.
fn is_mapped() -> bool {
    let map = fs::read_to_string(Path::new("/proc/self/uid_map")).unwrap_or_default();
    map.split_whitespace().nth(2).is_none_or(|n| n != "4294967295")
}

fn answered() -> Result<(), String> {
    let until = Instant::now() + LONG;
    for h in 0..HOSTS {
        let ask =
            || Task::new("ssh").args(["-F", &format!("{FOLDER}/config"), &format!("h{h}"), "true"]).run();
        while let Err(e) = ask() {
            if Instant::now() > until {
                return Err(e);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}
