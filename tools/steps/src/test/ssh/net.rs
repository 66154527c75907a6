//! Jobs on hosts that ssh reaches; each has a folder `own` that the others do not see.
pub(super) use crate::test::sshd::{Cabling, SshNet as Net};
use std::{
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{child::Running, place::Scratch};

/// From the end of a job, or of its launcher, or of the way to it, until nothing of it is left anywhere.
pub(super) const CLEAN: Duration = Duration::from_secs(5);

/// The hosts, each with a home of its own.
pub(super) fn hosts<'a>(folder: &'a Scratch, sshd: &Path, cabling: Cabling) -> Result<Net<'a>, String> {
    Net::new("ssh", folder, sshd, cabling, true)
}

impl Net<'_> {
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

    pub(super) fn ranks_of(&self, host: &str) -> Result<Vec<u32>, String> {
        let is_rank = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(12).any(|w| w == b"COMITY_RANK=")
        };
        Ok(self.hosts.pids(host)?.into_iter().filter(is_rank).collect())
    }

    /// Nothing but the servers is left.
    pub(super) fn clean(&self) -> Result<(), String> {
        let until = Instant::now() + CLEAN;
        loop {
            let mut left = Vec::new();
            for host in ["desk"].iter().chain(self.cabling.hosts()) {
                let others =
                    self.hosts.pids(host)?.into_iter().filter(|p| !matches!(&*comm(*p), "sshd" | ""));
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

/// A process's name; empty when it has ended.
pub(super) fn comm(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match stat.rsplit_once(") ") {
        Some((front, state)) if !state.starts_with(['Z', 'X']) => {
            front.split_once('(').map(|(_, name)| name.to_owned()).unwrap_or_default()
        }
        _ => String::new(),
    }
}
