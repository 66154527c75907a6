//! Hosts as network namespaces, with an sshd each, and a desk from which they are reached.
//!
//! ```text
//! desk 10.78.0.1 --+-- a 10.78.0.2   (network namespaces; the bridge is in one of its own)
//!                  +-- b 10.78.0.3
//!                  +-- c 10.78.0.4
//! ```
//!
//! They share the file system. What one host is to see otherwise, its sshd mounts for itself.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{
    child::{Running, Task},
    place::{Scratch, target, users_of_sshd},
};

/// Packages that are unpacked where they are not installed.
const PACKAGES: [&str; 2] = ["openssh-server", "libwrap0"];

/// The namespaces; dropping them removes them with all that runs in them.
pub(super) struct SshNet<'a> {
    pub(super) folder: &'a Scratch,
    prefix: String,
    server: PathBuf,
    sshd: Vec<Running>,
}

/// A server on a host, and what its logins find otherwise than others.
pub(super) struct SshHost<'a> {
    /// The name by which it is reached.
    pub(super) name: &'a str,
    pub(super) host: &'a str,
    pub(super) port: u16,
    /// Lines for `sh` before it starts, in a mount namespace of its own.
    pub(super) before: &'a str,
    /// The file of keys that it lets in.
    pub(super) users: &'a str,
}

pub(super) const HOSTS: [&str; 3] = ["a", "b", "c"];

impl<'a> SshNet<'a> {
    pub(super) fn new(kind: &str, folder: &'a Scratch, sshd: &Path) -> Result<Self, String> {
        let prefix = format!("comity-{kind}-{}", std::process::id());
        let mut net = Self { folder, prefix, server: sshd.into(), sshd: Vec::new() };
        let switch = net.name("switch");
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add name br0 type bridge"))?;
        ip(&format!("-n {switch} link set br0 up"))?;
        net.keygen("id")?;
        fs::create_dir(folder.join("home")).map_err(|e| e.to_string())?;
        net.write("passwd", &users_of_sshd(&folder.join("home")).map_err(|e| e.to_string())?)?;
        let mut known = String::new();
        let mut config = String::new();
        for (number, host) in ["desk"].iter().chain(&HOSTS).enumerate() {
            let name = net.name(host);
            let at = format!("10.78.0.{}", number + 1);
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
                net.serve(&SshHost { name: host, host, port: 22, before: "", users: "id.pub" })?;
            }
        }
        net.write("known", &known)?;
        let path = |file: &str| folder.join(file).display().to_string();
        let id = path("id");
        let known = path("known");
        config +=
            &format!("Host *\n  IdentityFile {id}\n  UserKnownHostsFile {known}\n  IdentitiesOnly yes\n");
        net.write("config", &config)?;
        net.write("hosts", "# three hosts\na slots=1\nb slots=1\nc slots=1\n")?;
        net.answer(&HOSTS)?;
        Ok(net)
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
    pub(super) fn keygen(&self, file: &str) -> Result<String, String> {
        let path = self.folder.join(file);
        Task::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).args([&path]).run()?;
        fs::read_to_string(path.with_extension("pub")).map_err(|e| e.to_string())
    }

    /// Start one more server on a host, known to the desk's ssh by its name.
    pub(super) fn serve_as(&mut self, also: &SshHost<'_>) -> Result<(), String> {
        let number = HOSTS.iter().position(|h| *h == also.host).ok_or("no such host")? + 2;
        let at = format!("10.78.0.{number}");
        let old = fs::read_to_string(self.folder.join("config")).map_err(|e| e.to_string())?;
        let entry =
            format!("Host {}\n  HostName {at}\n  Port {}\n  HostKeyAlias {at}\n", also.name, also.port);
        self.write("config", &(entry + &old))?;
        self.serve(also)
    }

    fn serve(&mut self, one: &SshHost<'_>) -> Result<(), String> {
        let path = |file: &str| self.folder.join(file).display().to_string();
        let settings = format!(
            "Port {}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n",
            one.port,
            path(&format!("host_{}", one.host)),
            path(one.users)
        );
        let host = one.host;
        let settings = self.write(&format!("sshd_{}", one.name), &settings)?;
        // The server wants a user and a folder of its own, which others need not see.
        let script = format!(
            "set -e\nhostname {host}\nmkdir -p /run/sshd\nmount --bind {} /etc/passwd\n{}\nexec {} -D -e -f {}",
            path("passwd"),
            one.before,
            self.server.display(),
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
    pub(super) fn answer(&self, names: &[&str]) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(20);
        for host in names {
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

    pub(super) fn pids(&self, host: &str) -> Result<Vec<i32>, String> {
        let said = Task::new("ip").args(["netns", "pids", &self.name(host)]).run()?;
        Ok(said.split_whitespace().filter_map(|w| w.parse().ok()).collect())
    }
}

impl Drop for SshNet<'_> {
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

pub(super) fn ip(line: &str) -> Result<(), String> {
    Task::new("ip").args(line.split_whitespace()).limit(20).run().map(drop)
}

pub(super) fn kill(pid: i32) -> Result<(), String> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or("no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).map_err(|e| e.to_string())
}

pub(super) fn unpacked() -> PathBuf {
    target().join("sshd")
}

/// The installed server, or the one of Debian's packages, unpacked: installing it would start it on this machine.
pub(super) fn sshd() -> Result<PathBuf, String> {
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
