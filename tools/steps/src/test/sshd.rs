//! Hosts as network namespaces, with an sshd each, and a desk from which they are reached: at a switch, or by cables.
//!
//! ```text
//! desk 10.78.0.1 --+-- a 10.78.0.2   (the switch is a bridge in a namespace of its own)
//!                  +-- b 10.78.0.3
//!                  +-- c 10.78.0.4
//! ```
//!
//! They share the file system. What one host is to see otherwise, its sshd mounts for itself. The desk's `ssh` is one that knows them.

use super::{
    jobs::{comity, script, until},
    step::{Outcome, Why},
};
use scope::Rng;
use std::{env, fs, thread::sleep, time::Duration};
use tasks::{
    child::{Running, Task},
    netns::Hosts,
    place::{Scratch, make, read, target, users_of_sshd, write},
};

/// Seconds from the end of a job, or of its launcher, or of the way to it, until nothing of it is left anywhere.
const CLEAN: u64 = 5;

/// End of a cable: a host, its adapter, and that one's address, if it gets one.
pub(super) type End = (&'static str, &'static str, &'static str);

/// Cables between the desk and hosts.
pub(super) struct Cabling {
    /// Each host with its address for the desk, and the host that is on ssh's way to it.
    hosts: &'static [(&'static str, &'static str, Option<&'static str>)],
    cables: &'static [[End; 2]],
    /// The desk has a rank, too.
    desk_works: bool,
}

/// The desk and three hosts at one switch.
pub(super) const SWITCH: Cabling = Cabling {
    hosts: &[("a", "10.78.0.2", None), ("b", "10.78.0.3", None), ("c", "10.78.0.4", None)],
    cables: &[
        [("desk", "eth0", "10.78.0.1/24"), ("switch", "p0", "")],
        [("a", "eth0", "10.78.0.2/24"), ("switch", "p1", "")],
        [("b", "eth0", "10.78.0.3/24"), ("switch", "p2", "")],
        [("c", "eth0", "10.78.0.4/24"), ("switch", "p3", "")],
    ],
    desk_works: false,
};

/// The desk and two hosts, a cable between each two, each a network of its own.
pub(super) const TRIANGLE: Cabling = Cabling {
    hosts: &[("a", "10.79.1.2", None), ("b", "10.79.3.2", None)],
    cables: &[
        CHAIN.cables[0],
        CHAIN.cables[1],
        [("desk", "c2", "10.79.3.1/30"), ("b", "c2", "10.79.3.2/30")],
    ],
    desk_works: true,
};

/// The desk, a and b in a row.
pub(super) const CHAIN: Cabling = Cabling {
    hosts: &[("a", "10.79.1.2", None), ("b", "10.79.2.2", Some("a"))],
    cables: &[
        [("desk", "c0", "10.79.1.1/30"), ("a", "c0", "10.79.1.2/30")],
        [("a", "c1", "10.79.2.1/30"), ("b", "c1", "10.79.2.2/30")],
    ],
    desk_works: true,
};

/// Hosts with their servers. The home of logins, the folder `own`, is another one on each.
pub(super) struct SshNet<'a> {
    pub(super) folder: &'a Scratch,
    pub(super) hosts: Hosts,
    cabling: &'static Cabling,
    sshd: Vec<Running>,
}

impl<'a> SshNet<'a> {
    /// The hosts, or what is missing for them.
    pub(super) fn new(kind: &str, folder: &'a Scratch, cabling: &'static Cabling) -> Outcome<Self> {
        let all: Vec<_> = ["desk", "switch"].into_iter().chain(cabling.hosts.iter().map(|h| h.0)).collect();
        let hosts = Hosts::new(kind, &all).map_err(Why::Missing)?;
        hosts.ip("switch", "link add name br0 type bridge")?;
        hosts.ip("switch", "link set br0 up")?;
        let mut net = Self { folder, hosts, cabling, sshd: Vec::new() };
        cabling.cables.iter().try_for_each(|ends| net.cable(*ends))?;
        net.keygen("id")?;
        make(&folder.join("own"))?;
        make(&folder.join("bin"))?;
        let config = folder.text("config");
        script(&folder.join("bin/ssh"), &format!("#!/bin/sh\nexec /usr/bin/ssh -F {config} \"$@\"\n"))?;
        net.write("passwd", &users_of_sshd(&folder.join("own"))?)?;
        let [id, known] = ["id", "known"].map(|file| folder.text(file));
        let all =
            format!("Host *\n  IdentityFile {id}\n  UserKnownHostsFile {known}\n  IdentitiesOnly yes\n");
        net.write("config", &all)?;
        net.write("known", &format!("* {}", net.keygen("host")?))?;
        net.serve(&Vec::from_iter(net.names().map(|host| (host, host, ""))))?;
        let lines = net.ranks().map(|h| format!("{h} slots=1\n"));
        net.write("hosts", &lines.collect::<String>())?;
        Ok(net)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.cabling.hosts.iter().map(|host| host.0)
    }

    /// Hosts with a rank, in their order.
    pub(super) fn ranks(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.cabling.desk_works.then_some("localhost").into_iter().chain(self.names())
    }

    pub(super) fn cable(&self, ends: [End; 2]) -> Result<(), String> {
        self.hosts.cable(ends.map(|(host, device, _)| (host, device)))?;
        for (host, device, at) in ends {
            match (host, at) {
                ("switch", _) => self.hosts.ip(host, &format!("link set {device} master br0"))?,
                (_, "") => {}
                _ => self.hosts.ip(host, &format!("addr add {at} dev {device}"))?,
            }
            self.hosts.ip(host, &format!("link set {device} up"))?;
        }
        Ok(())
    }

    pub(super) fn write(&self, file: &str, text: &str) -> Result<String, String> {
        write(self.folder.join(file), text).map(|()| self.folder.text(file))
    }

    /// A new key pair; the public half.
    pub(super) fn keygen(&self, file: &str) -> Result<String, String> {
        let path = self.folder.join(file);
        Task::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path).run()?;
        read(path.with_extension("pub"))
    }

    /// Servers with these names on these hosts, with lines for `sh` before each starts in a mount namespace of its own; once they answer.
    pub(super) fn serve(&mut self, all: &[(&str, &str, &str)]) -> Result<(), String> {
        all.iter().try_for_each(|(name, host, before)| self.serve_one(name, host, before))?;
        all.iter().try_for_each(|(name, ..)| {
            until(&format!("the sshd of {name}"), 20, || Ok(self.on(name, "true").ok())).map(drop)
        })
    }

    /// Server of these, known to the desk's ssh by its name, whether it lets the desk in or not.
    pub(super) fn serve_one(&mut self, name: &str, host: &str, before: &str) -> Result<(), String> {
        let (_, at, over) = self.cabling.hosts.iter().find(|h| h.0 == host).ok_or("no such host")?;
        // The first of a host is where others look for one.
        let port = if name == host { 22 } else { 2200 + self.sshd.len() };
        let jump = over.map_or_else(String::new, |over| format!("  ProxyJump {over}\n"));
        let entry = format!("Host {name}\n  HostName {at}\n  Port {port}\n{jump}");
        self.write("config", &(entry + &read(self.folder.join("config"))?))?;
        let path = |file: &str| self.folder.text(file);
        let own = path("own");
        let settings = format!(
            "Port {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nSetEnv XDG_CACHE_HOME={own}/.cache XDG_RUNTIME_DIR={own}\n",
            path("host"),
            path("id.pub")
        );
        let settings = self.write(&format!("sshd_{name}"), &settings)?;
        let server = target().join("sshd").display().to_string();
        // The server wants a user and a folder of its own, which others need not see.
        let script = format!(
            "set -e\nhostname {host}\nmkdir -p /run/sshd\nmount --bind {} /etc/passwd\nmount -t tmpfs -o mode=700 none {own}\n{before}\n\
             export LD_LIBRARY_PATH={server}/usr/lib/x86_64-linux-gnu:{server}/lib/x86_64-linux-gnu\nexec {server}/usr/sbin/sshd -D -e -f {settings}",
            path("passwd")
        );
        let task = self.hosts.within(host).args(["unshare", "--uts", "sh", "-c", &script]);
        self.sshd.push(task.limit(600).start()?);
        Ok(())
    }

    pub(super) fn desk(&self, words: &[&str]) -> Task {
        let path = env::var("PATH").unwrap_or_default();
        self.hosts.within("desk").args(words).env("PATH", format!("{}:{path}", self.folder.text("bin")))
    }

    /// Output of a line of shell on a host.
    pub(super) fn on(&self, host: &str, line: &str) -> Result<String, String> {
        self.desk(&["ssh", host, line]).run()
    }

    /// A job with these flags, of this command.
    pub(super) fn launch(&self, flags: &[&str], words: &[&str]) -> Result<Running, String> {
        self.launch_by(&comity(), flags, words)
    }

    /// The same, started by this program.
    pub(super) fn launch_by(
        &self,
        launcher: &str,
        flags: &[&str],
        words: &[&str],
    ) -> Result<Running, String> {
        let task = self.desk(&[launcher, "launch", "--hostfile", &self.folder.text("hosts")]);
        task.args(flags).arg("--").args(words).folder(&self.folder.join("own")).limit(300).start()
    }

    /// A job that runs this on each rank, at some moment of it. Each rank has a child that has left its session.
    pub(super) fn busy(&self, random: &mut Rng, program: &str, words: &[&str]) -> Result<Running, String> {
        let rank = ["sh", "-c", "setsid sleep 1000 & exec \"$0\" \"$@\"", program];
        let job = self.launch(&[], &[&rank, words].concat())?;
        let name = program.rsplit('/').next().unwrap_or_default();
        self.names().try_for_each(|host| self.at(host, name, words[0]).map(drop))?;
        sleep(Duration::from_millis(random.between(0, 1500)));
        Ok(job)
    }

    /// Processes of a host but its servers: number and name.
    pub(super) fn running(&self, host: &str) -> Result<Vec<(u32, String)>, String> {
        let named = self.hosts.pids(host)?.into_iter().filter_map(|pid| Some((pid, name(pid)?)));
        Ok(named.filter(|(_, name)| name != "sshd").collect())
    }

    /// A process of a host with this name, and this word in its command, as soon as there is one.
    pub(super) fn at(&self, host: &str, name: &str, word: &str) -> Result<u32, String> {
        let has = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|b| *b == 0).any(|w| w == word.as_bytes())
        };
        until(&format!("{name} with {word} on {host}"), 20, || {
            let all = self.running(host)?.into_iter().filter(|(_, of)| of == name);
            Ok(all.map(|(pid, _)| pid).find(has))
        })
    }

    /// Nothing but the servers is left.
    pub(super) fn clean(&self) -> Result<(), String> {
        let mut left = Vec::new();
        let gone = until("an end of all", CLEAN, || {
            let hosts = ["desk"].into_iter().chain(self.names());
            left = hosts.map(|host| self.running(host)).collect::<Result<Vec<_>, _>>()?.concat();
            Ok(left.is_empty().then_some(()))
        });
        gone.map_err(|e| format!("{e}; there is left {left:?}"))
    }
}

/// Name of a process that lives.
fn name(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (front, state) = stat.rsplit_once(") ")?;
    (!state.starts_with(['Z', 'X'])).then(|| front.split_once('(').map(|(_, name)| name.to_owned()))?
}
