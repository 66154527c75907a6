//! Hosts as network namespaces with an sshd each; each has a folder `own` that the others do not see.
use crate::test::sshd::{ip, kill, unpacked};
use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{
    child::{Running, Task},
    place::{Scratch, users_of_sshd},
};

/// From the end of a job, or of its launcher, or of the way to it, until nothing of it is left anywhere.
pub(super) const CLEAN: Duration = Duration::from_secs(5);

/// The namespaces; dropping them removes them with all that runs in them.
pub(super) struct Net<'a> {
    pub(super) folder: &'a Scratch,
    pub(super) cabling: Cabling,
    prefix: String,
    sshd: Vec<Running>,
}

/// Cables between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cabling {
    /// The desk and three hosts at one switch; the ranks run on the hosts.
    Switch,
    /// The same with eight hosts.
    Eight,
    /// The desk and two hosts, a cable between each two, each a network of its own. The desk has a rank, too.
    Triangle,
    /// The desk, a and b in a row. The desk has a rank; a is on ssh's way to b.
    Chain,
}

impl Cabling {
    pub(super) fn hosts(self) -> &'static [&'static str] {
        match self {
            Self::Switch => &["a", "b", "c"],
            Self::Eight => &["a", "b", "c", "d", "e", "f", "g", "h"],
            Self::Triangle | Self::Chain => &["a", "b"],
        }
    }

    /// Cables without a switch: two hosts, and the address of each end.
    fn cables(self) -> &'static [[&'static str; 4]] {
        const TRIANGLE: [[&str; 4]; 3] = [
            ["desk", "a", "10.79.1.1", "10.79.1.2"],
            ["a", "b", "10.79.2.1", "10.79.2.2"],
            ["desk", "b", "10.79.3.1", "10.79.3.2"],
        ];
        match self {
            Self::Switch | Self::Eight => &[],
            Self::Triangle => &TRIANGLE,
            Self::Chain => &TRIANGLE[..2],
        }
    }

    /// Return whether all are at one switch.
    fn is_switched(self) -> bool {
        matches!(self, Self::Switch | Self::Eight)
    }

    /// Lines of ssh's configuration for a host, and its address.
    fn way(self, host: &str) -> (String, String) {
        let at = match (self, host) {
            (Self::Switch | Self::Eight, _) => {
                format!("10.78.0.{}", 2 + self.hosts().iter().position(|h| *h == host).unwrap_or_default())
            }
            (_, "a") => "10.79.1.2".into(),
            (Self::Triangle, _) => "10.79.3.2".into(),
            (Self::Chain, _) => "10.79.2.2".into(),
        };
        let jump = if (self, host) == (Self::Chain, "b") { "  ProxyJump a\n" } else { "" };
        (format!("Host {host}\n  HostName {at}\n{jump}"), at)
    }
}

impl<'a> Net<'a> {
    pub(super) fn new(folder: &'a Scratch, sshd: &Path, cabling: Cabling) -> Result<Self, String> {
        let prefix = format!("comity-ssh-{}", std::process::id());
        let mut net = Self { folder, cabling, prefix, sshd: Vec::new() };
        net.cable()?;
        net.keygen("id")?;
        fs::create_dir(folder.join("own")).map_err(|e| e.to_string())?;
        net.write("passwd", &users_of_sshd(&folder.join("own")).map_err(|e| e.to_string())?)?;
        let mut known = String::new();
        let mut config = String::new();
        for host in cabling.hosts() {
            let key = net.keygen(&format!("host_{host}"))?;
            let (lines, at) = cabling.way(host);
            known += &format!("{at} {key}");
            config += &lines;
            net.serve(host, sshd)?;
        }
        net.write("known", &known)?;
        let path = |file: &str| folder.join(file).display().to_string();
        let id = path("id");
        let known = path("known");
        config +=
            &format!("Host *\n  IdentityFile {id}\n  UserKnownHostsFile {known}\n  IdentitiesOnly yes\n");
        net.write("config", &config)?;
        let here: &[&str] = if cabling.is_switched() { &[] } else { &["localhost"] };
        let lines = here.iter().chain(cabling.hosts()).map(|h| format!("{h} slots=1\n"));
        net.write("hosts", &format!("# the hosts\n{}", lines.collect::<String>()))?;
        net.answer()?;
        Ok(net)
    }

    /// Makes the hosts and their cables.
    fn cable(&self) -> Result<(), String> {
        for host in ["desk"].iter().chain(self.cabling.hosts()) {
            ip(&format!("netns add {}", self.name(host)))?;
            ip(&format!("-n {} link set lo up", self.name(host)))?;
        }
        for (number, [one, other, at_one, at_other]) in self.cabling.cables().iter().enumerate() {
            let from = self.name(one);
            let to = self.name(other);
            ip(&format!("link add c{number} netns {from} type veth peer name c{number} netns {to}"))?;
            for (name, at) in [(from, at_one), (to, at_other)] {
                ip(&format!("-n {name} addr add {at}/30 dev c{number}"))?;
                ip(&format!("-n {name} link set c{number} up"))?;
            }
        }
        if !self.cabling.is_switched() {
            return Ok(());
        }
        let switch = self.name("switch");
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add name br0 type bridge"))?;
        ip(&format!("-n {switch} link set br0 up"))?;
        for (number, host) in ["desk"].iter().chain(self.cabling.hosts()).enumerate() {
            let name = self.name(host);
            let at = format!("10.78.0.{}", number + 1);
            ip(&format!("link add eth0 netns {name} type veth peer name p{number} netns {switch}"))?;
            ip(&format!("-n {switch} link set p{number} master br0 up"))?;
            ip(&format!("-n {name} addr add {at}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(())
    }

    pub(super) fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    pub(super) fn write(&self, file: &str, text: &str) -> Result<PathBuf, String> {
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
            "Port 22\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nSetEnv XDG_CACHE_HOME={}\n",
            path(&format!("host_{host}")),
            path("id.pub"),
            path("own/.cache")
        );
        let settings = self.write(&format!("sshd_{host}"), &settings)?;
        // The server wants a user and a folder of its own, which others need not see.
        let script = format!(
            "hostname {host} && mkdir -p /run/sshd {0} && mount -t tmpfs none {0} && mount --bind {1} /etc/passwd && exec {2} -D -e -f {3}",
            path("own"),
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
        for host in self.cabling.hosts() {
            loop {
                match self.desk(&["ssh", "-F"]).args([self.folder.join("config")]).args([*host, "true"]).run()
                {
                    Ok(_) => break,
                    Err(e) if Instant::now() > until => return Err(e),
                    Err(_) => sleep(Duration::from_millis(100)),
                }
            }
        }
        Ok(())
    }

    pub(super) fn desk(&self, words: &[&str]) -> Task {
        Task::new("ip").args(["netns", "exec", &self.name("desk")]).args(words)
    }

    pub(super) fn launch(&self, comity: &str, words: &[&str]) -> Result<Running, String> {
        self.launch_with(comity, &[], words)
    }

    /// The same with flags.
    pub(super) fn launch_with(
        &self,
        comity: &str,
        flags: &[&str],
        words: &[&str],
    ) -> Result<Running, String> {
        let path = |file: &str| self.folder.join(file).display().to_string();
        let config = format!("--ssh-arg={}", path("config"));
        let hosts = path("hosts");
        let task = self.desk(&[comity, "launch", "--ssh-arg=-F", &config, "--hostfile", &hosts]);
        let own = self.folder.join("own");
        task.args(flags).args(["--"]).args(words).folder(&own).limit(300).start()
    }

    /// Output of a line of shell on a host.
    pub(super) fn on(&self, host: &str, line: &str) -> Result<String, String> {
        self.desk(&["ssh", "-F"]).args([self.folder.join("config")]).args([host, line]).run()
    }

    /// A job whose ranks are in the middle of calls.
    pub(super) fn busy(&self, comity: &str) -> Result<Running, String> {
        let job =
            self.launch(comity, &[comity, "bench", "all_reduce", "--sizes", "64K", "--budget", "60"])?;
        let until = Instant::now() + Duration::from_secs(20);
        while self.cabling.hosts().iter().any(|h| self.ranks_of(h).is_ok_and(|r| r.is_empty())) {
            if Instant::now() > until {
                return Err("no rank runs after 20 s".into());
            }
            sleep(Duration::from_millis(50));
        }
        sleep(Duration::from_millis(700));
        Ok(job)
    }

    pub(super) fn pids(&self, host: &str) -> Result<Vec<i32>, String> {
        let said = Task::new("ip").args(["netns", "pids", &self.name(host)]).run()?;
        Ok(said.split_whitespace().filter_map(|w| w.parse().ok()).collect())
    }

    pub(super) fn ranks_of(&self, host: &str) -> Result<Vec<i32>, String> {
        let is_rank = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(12).any(|w| w == b"COMITY_RANK=")
        };
        Ok(self.pids(host)?.into_iter().filter(is_rank).collect())
    }

    /// Nothing but the servers is left.
    pub(super) fn clean(&self) -> Result<(), String> {
        let until = Instant::now() + CLEAN;
        loop {
            let mut left = Vec::new();
            for host in ["desk"].iter().chain(self.cabling.hosts()) {
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
        for host in ["desk", "switch"].iter().chain(self.cabling.hosts()) {
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

/// A process's name; empty when it has ended.
pub(super) fn comm(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match stat.rsplit_once(") ") {
        Some((front, state)) if !state.starts_with(['Z', 'X']) => {
            front.split_once('(').map(|(_, name)| name.to_owned()).unwrap_or_default()
        }
        _ => String::new(),
    }
}
