//! Jobs on hosts that ssh reaches; each has a folder `own` that the others do not see.
use crate::test::jobs::{comity_word, until};
pub(super) use crate::test::sshd::{Cabling, SshNet as Net};
use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::child::Running;

/// From the end of a job, or of its launcher, or of the way to it, until nothing of it is left anywhere.
pub(super) const CLEAN: Duration = Duration::from_secs(5);

impl Net<'_> {
    pub(super) fn comity(&self) -> String {
        comity_word()
    }

    /// A job with these flags, of this command.
    pub(super) fn launch(&self, flags: &[&str], words: &[&str]) -> Result<Running, String> {
        self.launch_by(&self.comity(), flags, words)
    }

    /// The same, started by this program.
    pub(super) fn launch_by(
        &self,
        launcher: &str,
        flags: &[&str],
        words: &[&str],
    ) -> Result<Running, String> {
        let config = format!("--ssh-arg={}", self.folder.text("config"));
        let hosts = self.folder.text("hosts");
        let task = self.desk(&[launcher, "launch", "--ssh-arg=-F", &config, "--hostfile", &hosts]);
        task.args(flags).arg("--").args(words).folder(&self.folder.join("own")).limit(300).start()
    }

    /// Output of a line of shell on a host.
    pub(super) fn on(&self, host: &str, line: &str) -> Result<String, String> {
        self.desk(&["ssh", "-F", &self.folder.text("config"), host, line]).run()
    }

    /// A job whose ranks are in the middle of calls.
    pub(super) fn busy(&self) -> Result<Running, String> {
        let job =
            self.launch(&[], &[&self.comity(), "bench", "all_reduce", "--sizes", "64K", "--budget", "60"])?;
        self.cabling.hosts().iter().try_for_each(|host| self.await_rank(host))?;
        sleep(Duration::from_millis(700));
        Ok(job)
    }

    /// Wait until a rank runs on a host.
    pub(super) fn await_rank(&self, host: &str) -> Result<(), String> {
        until("a rank", 20, || Ok((!self.ranks_of(host)?.is_empty()).then_some(())))
    }

    pub(super) fn ranks_of(&self, host: &str) -> Result<Vec<u32>, String> {
        let is_rank = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(12).any(|w| w == b"COMITY_RANK=")
        };
        Ok(self.hosts.pids(host)?.into_iter().filter(is_rank).collect())
    }

    /// The launcher at the desk.
    pub(super) fn launcher(&self) -> Result<u32, String> {
        let launcher = self.hosts.pids("desk")?.into_iter().find(|pid| comm(*pid) == "comity");
        launcher.ok_or_else(|| "no launcher runs".into())
    }

    /// Nothing but the servers is left.
    pub(super) fn clean(&self) -> Result<(), String> {
        let end = Instant::now() + CLEAN;
        loop {
            let mut left = Vec::new();
            for host in ["desk"].iter().chain(self.cabling.hosts()) {
                let others =
                    self.hosts.pids(host)?.into_iter().filter(|p| !matches!(&*comm(*p), "sshd" | ""));
                left.extend(others.map(|p| format!("{host}: {p} {}", comm(p))));
            }
            match (left.is_empty(), Instant::now() > end) {
                (true, _) => return Ok(()),
                (_, true) => return Err(format!("after {CLEAN:?} there is left {}", left.join(", "))),
                _ => sleep(Duration::from_millis(50)),
            }
        }
    }
}

/// A process's name; empty when it has ended.
fn comm(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match stat.rsplit_once(") ") {
        Some((front, state)) if !state.starts_with(['Z', 'X']) => {
            front.split_once('(').map(|(_, name)| name.to_owned()).unwrap_or_default()
        }
        _ => String::new(),
    }
}
