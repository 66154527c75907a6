//! Three hosts with an sshd each, and a desk from which `comity launch --hostfile` starts jobs on them.
//!
//! ```text
//! desk 10.78.0.1 --+-- a 10.78.0.2   (network namespaces; the bridge is in one of its own)
//!                  +-- b 10.78.0.3
//!                  +-- c 10.78.0.4
//! ```
//!
//! What is checked: a job runs; a rank is killed, a cable is cut, the launcher is killed, a program fails or is missing. Each time
//! the last line and the exit code are right, and nothing is left on any host.

use super::{Done, Outcome, missing, processes::comity, scope::Scope};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{
    child::{Running, Task},
    place::{Scratch, program, target},
};

/// From the end of a job, or of its launcher, or of the way to it, until nothing of it is left anywhere.
const CLEAN: Duration = Duration::from_secs(5);
/// Packages that are unpacked where they are not installed.
const PACKAGES: [&str; 2] = ["openssh-server", "libwrap0"];

/// Runs jobs of this program on these hosts; what went wrong.
type Case = fn(&Net, &str) -> Result<(), String>;

pub(super) fn check(_: &Scope) -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun("network namespaces are Linux's".into()));
    }
    if program("ip").is_none() || program("ssh").is_none() || !rustix::process::geteuid().is_root() {
        return missing("this needs root, ip (package iproute2) and ssh (package openssh-client)".into());
    }
    let sshd = match sshd() {
        Ok(sshd) => sshd,
        Err(e) => return missing(format!("there is no sshd (package openssh-server): {e}")),
    };
    let scratch = Scratch::new("ssh").map_err(|e| e.to_string())?;
    let net = match Net::new(&scratch, &sshd) {
        Ok(net) => net,
        Err(e) => return missing(format!("hosts cannot be made here: {e}")),
    };
    let comity = comity()?;
    let cases: [(&str, Case); 6] = [
        ("a job on three hosts", runs),
        ("a failing program", fails),
        ("a missing program", lacks),
        ("a rank that is killed", loses_a_rank),
        ("a launcher that is killed", loses_the_launcher),
        ("a cable that is cut", loses_a_cable),
    ];
    for (what, case) in cases {
        let begun = Instant::now();
        let comity = comity.to_str().ok_or("the program's path is no text")?;
        case(&net, comity).and_then(|()| net.clean()).map_err(|e| format!("{what}: {e}"))?;
        println!("{what}: right, {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(Done::Passed(format!("{} jobs over ssh on 3 hosts", cases.len())))
}

fn runs(net: &Net, comity: &str) -> Result<(), String> {
    let said = net.launch(comity, &[comity, "check", "--quick", "--ops", "all_reduce"])?.wait()?;
    match said.contains("cases on each rank") && said.contains("[0@a]") {
        true => Ok(()),
        false => Err(format!("it did not say that all cases are right, with rank and host:\n{said}")),
    }
}

fn fails(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.launch(comity, &["sh", "-c", "[ $RANK = 1 ] && exit 7; setsid sleep 100 & sleep 100"])?;
    ended(job, "exit status: 7", &["rank 1 (pid ", "host b) exited with code 7"])
}

fn lacks(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.launch(comity, &["no-such-program"])?;
    ended(job, "exit status: 2", &["host a: command 'no-such-program'", "host c: command", "nothing was run"])
}

fn loses_a_rank(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let rank = net.ranks_of("c")?.first().copied().ok_or("no rank runs on c")?;
    kill(rank)?;
    ended(job, "exit status: 137", &["host c) was killed by signal 9 (SIGKILL)"])
}

fn loses_the_launcher(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let named = |pid: &i32| comm(*pid) == "comity";
    let launcher = net.pids("desk")?.into_iter().find(named).ok_or("no launcher runs")?;
    kill(launcher)?;
    ended(job, "signal: 9", &[])
}

fn loses_a_cable(net: &Net, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let begun = Instant::now();
    ip(&format!("-n {} link set eth0 down", net.name("c")))?;
    let told = ended(job, "exit status: 1", &["host c was lost", "its rank 2 is ended there"]);
    let clean = net.clean();
    ip(&format!("-n {} link set eth0 up", net.name("c")))?;
    told.and(clean)?;
    // The launcher's 3 s of silence, the ranks' second, and 5 s to be gone.
    match begun.elapsed() < CLEAN * 2 {
        true => Ok(()),
        false => Err(format!("it took {:?} until all had noticed", begun.elapsed())),
    }
}

/// The job fails like this, and says so.
fn ended(job: Running, status: &str, parts: &[&str]) -> Result<(), String> {
    let Err(said) = job.wait() else { return Err("the job succeeded".into()) };
    match [&[status], parts].concat().iter().find(|p| !said.contains(**p)) {
        None => Ok(()),
        Some(part) => Err(format!("{part:?} is not in what it said:\n{said}")),
    }
}

/// The namespaces; dropping them removes them with all that runs in them.
struct Net<'a> {
    folder: &'a Scratch,
    prefix: String,
    sshd: Vec<Running>,
}

const HOSTS: [&str; 3] = ["a", "b", "c"];

impl<'a> Net<'a> {
    fn new(folder: &'a Scratch, sshd: &Path) -> Result<Self, String> {
        let mut net = Self { folder, prefix: format!("comity-ssh-{}", std::process::id()), sshd: Vec::new() };
        let switch = net.name("switch");
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add name br0 type bridge"))?;
        ip(&format!("-n {switch} link set br0 up"))?;
        net.keygen("id")?;
        let users = fs::read_to_string("/etc/passwd").map_err(|e| e.to_string())?;
        net.write("passwd", &format!("{users}sshd:x:109:65534::/run/sshd:/usr/sbin/nologin\n"))?;
        let (mut known, mut config) = (String::new(), String::new());
        for (number, host) in ["desk"].iter().chain(&HOSTS).enumerate() {
            let (name, at) = (net.name(host), format!("10.78.0.{}", number + 1));
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add eth0 netns {name} type veth peer name p{number} netns {switch}"))?;
            ip(&format!("-n {switch} link set p{number} master br0 up"))?;
            ip(&format!("-n {name} addr add {at}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            if *host != "desk" {
                let key = net.keygen(&format!("host_{host}"))?;
                known += &format!("{at} {key}");
                config += &format!("Host {host}\n  HostName {at}\n");
                net.serve(host, sshd)?;
            }
        }
        net.write("known", &known)?;
        let path = |file: &str| folder.join(file).display().to_string();
        let (id, known) = (path("id"), path("known"));
        config +=
            &format!("Host *\n  IdentityFile {id}\n  UserKnownHostsFile {known}\n  IdentitiesOnly yes\n");
        net.write("config", &config)?;
        net.write("hosts", "# three hosts\na slots=1\nb slots=1\nc slots=1\n")?;
        net.answer()?;
        Ok(net)
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    fn write(&self, file: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// A new key pair; the public half.
    fn keygen(&self, file: &str) -> Result<String, String> {
        let path = self.folder.join(file);
        Task::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).args([&path]).run()?;
        fs::read_to_string(path.with_extension("pub")).map_err(|e| e.to_string())
    }

    fn serve(&mut self, host: &str, sshd: &Path) -> Result<(), String> {
        let path = |file: &str| self.folder.join(file).display().to_string();
        let settings = format!(
            "Port 22\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n",
            path(&format!("host_{host}")),
            path("id.pub")
        );
        let settings = self.write(&format!("sshd_{host}"), &settings)?;
        // The server wants a user and a folder of its own, which others need not see.
        let script = format!(
            "hostname {host} && mkdir -p /run/sshd && mount --bind {} /etc/passwd && exec {} -D -e -f {}",
            path("passwd"),
            sshd.display(),
            settings.display()
        );
        let task = Task::new("ip").args([
            "netns",
            "exec",
            &self.name(host),
            "unshare",
            "--uts",
            "sh",
            "-c",
            &script,
        ]);
        let libraries = unpacked();
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|l| libraries.join(l));
        let list: Vec<_> = libraries.iter().map(|l| l.display().to_string()).collect();
        self.sshd.push(task.env("LD_LIBRARY_PATH", list.join(":")).limit(600).start()?);
        Ok(())
    }

    /// Until every sshd does.
    fn answer(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(20);
        for host in HOSTS {
            loop {
                match self.desk(&["ssh", "-F"]).args([self.folder.join("config")]).args([host, "true"]).run()
                {
                    Ok(_) => break,
                    Err(e) if Instant::now() > until => return Err(e),
                    Err(_) => sleep(Duration::from_millis(100)),
                }
            }
        }
        Ok(())
    }

    fn desk(&self, words: &[&str]) -> Task {
        Task::new("ip").args(["netns", "exec", &self.name("desk")]).args(words)
    }

    fn launch(&self, comity: &str, words: &[&str]) -> Result<Running, String> {
        let path = |file: &str| self.folder.join(file).display().to_string();
        let (config, hosts) = (format!("--ssh-arg={}", path("config")), path("hosts"));
        let task = self.desk(&[comity, "launch", "--ssh-arg=-F", &config, "--hostfile", &hosts, "--"]);
        task.args(words).limit(90).start()
    }

    /// A job whose ranks are in the middle of calls.
    fn busy(&self, comity: &str) -> Result<Running, String> {
        let job =
            self.launch(comity, &[comity, "bench", "all_reduce", "--sizes", "64K", "--budget", "60"])?;
        let until = Instant::now() + Duration::from_secs(20);
        while HOSTS.iter().any(|h| self.ranks_of(h).is_ok_and(|r| r.is_empty())) {
            if Instant::now() > until {
                return Err("no rank runs after 20 s".into());
            }
            sleep(Duration::from_millis(50));
        }
        sleep(Duration::from_millis(700));
        Ok(job)
    }

    fn pids(&self, host: &str) -> Result<Vec<i32>, String> {
        let said = Task::new("ip").args(["netns", "pids", &self.name(host)]).run()?;
        Ok(said.split_whitespace().filter_map(|w| w.parse().ok()).collect())
    }

    fn ranks_of(&self, host: &str) -> Result<Vec<i32>, String> {
        let is_rank = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(12).any(|w| w == b"COMITY_RANK=")
        };
        Ok(self.pids(host)?.into_iter().filter(is_rank).collect())
    }

    /// Nothing but the servers is left.
    fn clean(&self) -> Result<(), String> {
        let until = Instant::now() + CLEAN;
        loop {
            let mut left = Vec::new();
            for host in ["desk"].iter().chain(&HOSTS) {
                let others = self.pids(host)?.into_iter().filter(|p| !matches!(&*comm(*p), "sshd" | ""));
                left.extend(others.map(|p| format!("{host}: {p} {}", comm(p))));
            }
            match (left.is_empty(), Instant::now() > until) {
                (true, _) => return Ok(()),
                (_, true) => return Err(format!("after {CLEAN:?} there is left {}", left.join(", "))),
                _ => sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for Net<'_> {
    fn drop(&mut self) {
        for host in ["desk", "switch"].iter().chain(&HOSTS) {
            for pid in self.pids(host).unwrap_or_default() {
                let _ = kill(pid);
            }
            if Path::new("/run/netns").join(self.name(host)).exists()
                && let Err(e) =
                    Task::new("ip").args(["netns", "del", &self.name(host)]).regardless_of_signals().run()
            {
                eprintln!("xtask: a network namespace is left: {e}");
            }
        }
    }
}

fn ip(line: &str) -> Result<(), String> {
    Task::new("ip").args(line.split_whitespace()).limit(20).run().map(drop)
}

fn kill(pid: i32) -> Result<(), String> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or("no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).map_err(|e| e.to_string())
}

/// A process's name; empty when it has ended.
fn comm(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match stat.rsplit_once(") ") {
        Some((front, state)) if !state.starts_with(['Z', 'X']) => {
            front.split_once('(').map(|(_, name)| name.to_owned()).unwrap_or_default()
        }
        _ => String::new(),
    }
}

fn unpacked() -> PathBuf {
    target().join("sshd")
}

/// The installed server, or the one of Debian's packages, unpacked: installing it would start it on this machine.
fn sshd() -> Result<PathBuf, String> {
    let installed = PathBuf::from("/usr/sbin/sshd");
    let own = unpacked().join("usr/sbin/sshd");
    if installed.exists() || own.exists() {
        return Ok(if installed.exists() { installed } else { own });
    }
    fs::create_dir_all(unpacked()).map_err(|e| e.to_string())?;
    // apt-get gives up root's rights for the download.
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(unpacked(), open).map_err(|e| e.to_string())?;
    println!("unpacking {}", PACKAGES.join(" and "));
    Task::new("apt-get").args(["download"]).args(PACKAGES).folder(&unpacked()).limit(120).run()?;
    let script = "for package in *.deb; do dpkg-deb -x $package .; done";
    Task::new("sh").args(["-c", script]).folder(&unpacked()).run()?;
    if own.exists() { Ok(own) } else { Err("the package brought no usr/sbin/sshd".into()) }
}
