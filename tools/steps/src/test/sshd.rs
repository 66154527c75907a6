//! Hosts as network namespaces, with an sshd each, and a desk from which they are reached: at a switch, or by cables.
//!
//! ```text
//! desk 10.78.0.1 --+-- a 10.78.0.2   (network namespaces; the bridge is in one of its own)
//!                  +-- b 10.78.0.3
//!                  +-- c 10.78.0.4
//! ```
//!
//! They share the file system. What one host is to see otherwise, its sshd mounts for itself.

use super::{
    jobs::until,
    requirements,
    step::{Outcome, Why},
};
use std::path::PathBuf;
use tasks::{
    child::{Running, Task},
    netns::Hosts,
    place::{Scratch, make, read, target, users_of_sshd, write},
};

/// Packages that are unpacked where they are not installed.
const PACKAGES: [&str; 2] = ["openssh-server", "libwrap0"];
/// Their folder beside what cargo built, and the server in it.
const FOLDER: &str = "sshd";
const SERVER: &str = "usr/sbin/sshd";

/// Hosts with their servers.
pub(super) struct SshNet<'a> {
    pub(super) folder: &'a Scratch,
    pub(super) cabling: Cabling,
    pub(super) hosts: Hosts,
    server: PathBuf,
    /// The home of logins, the folder `own`, is another one on each host.
    is_apart: bool,
    sshd: Vec<Running>,
}

/// Cables between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cabling {
    /// The desk and three hosts at one switch; the ranks run on the hosts.
    Switch,
    /// The desk and two hosts, a cable between each two, each a network of its own. The desk has a rank, too.
    Triangle,
    /// The desk, a and b in a row. The desk has a rank; a is on ssh's way to b.
    Chain,
}

impl Cabling {
    pub(super) fn hosts(self) -> &'static [&'static str] {
        match self {
            Self::Switch => &["a", "b", "c"],
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
            Self::Switch => &[],
            Self::Triangle => &TRIANGLE,
            Self::Chain => &TRIANGLE[..2],
        }
    }

    /// Return whether all are at one switch.
    fn is_switched(self) -> bool {
        self == Self::Switch
    }

    /// Lines of ssh's configuration for a host, and its address.
    fn way(self, host: &str) -> (String, String) {
        let at = match (self, host) {
            (Self::Switch, _) => {
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

impl<'a> SshNet<'a> {
    /// The hosts, or what is missing for them.
    pub(super) fn new(kind: &str, folder: &'a Scratch, cabling: Cabling, is_apart: bool) -> Outcome<Self> {
        let switch: &[&str] = if cabling.is_switched() { &["switch"] } else { &[] };
        let hosts = Hosts::new(kind, &[&["desk"], switch, cabling.hosts()].concat()).map_err(Why::Missing)?;
        let mut net = Self { folder, cabling, hosts, server: sshd()?, is_apart, sshd: Vec::new() };
        net.cable()?;
        net.keygen("id")?;
        make(&folder.join("own"))?;
        net.write("passwd", &users_of_sshd(&folder.join("own"))?)?;
        let mut known = String::new();
        let mut config = String::new();
        for host in cabling.hosts() {
            let key = net.keygen(&format!("host_{host}"))?;
            let (lines, at) = cabling.way(host);
            known += &format!("{at} {key}");
            config += &lines;
            net.serve(&SshHost { name: host, host, port: 22, before: "", users: "id.pub" })?;
        }
        net.write("known", &known)?;
        config += &format!(
            "Host *\n  IdentityFile {}\n  UserKnownHostsFile {}\n  IdentitiesOnly yes\n",
            folder.text("id"),
            folder.text("known")
        );
        net.write("config", &config)?;
        let here: &[&str] = if cabling.is_switched() { &[] } else { &["localhost"] };
        let lines = here.iter().chain(cabling.hosts()).map(|h| format!("{h} slots=1\n"));
        net.write("hosts", &format!("# the hosts\n{}", lines.collect::<String>()))?;
        net.answer(cabling.hosts())?;
        Ok(net)
    }

    /// Makes the cables.
    fn cable(&self) -> Result<(), String> {
        for (number, [one, other, at_one, at_other]) in self.cabling.cables().iter().enumerate() {
            let device = format!("c{number}");
            self.hosts.cable([(one, &device), (other, &device)])?;
            for (host, at) in [(one, at_one), (other, at_other)] {
                self.hosts.ip(host, &format!("addr add {at}/30 dev {device}"))?;
                self.hosts.ip(host, &format!("link set {device} up"))?;
            }
        }
        if !self.cabling.is_switched() {
            return Ok(());
        }
        self.hosts.ip("switch", "link add name br0 type bridge")?;
        self.hosts.ip("switch", "link set br0 up")?;
        for (number, host) in ["desk"].iter().chain(self.cabling.hosts()).enumerate() {
            self.hosts.cable([(host, "eth0"), ("switch", &format!("p{number}"))])?;
            self.hosts.ip("switch", &format!("link set p{number} master br0 up"))?;
            self.hosts.ip(host, &format!("addr add 10.78.0.{}/24 dev eth0", number + 1))?;
            self.hosts.ip(host, "link set eth0 up")?;
        }
        Ok(())
    }

    pub(super) fn write(&self, file: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.folder.join(file);
        write(&path, text).map(|()| path)
    }

    /// A new key pair; the public half.
    pub(super) fn keygen(&self, file: &str) -> Result<String, String> {
        let path = self.folder.join(file);
        Task::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path).run()?;
        read(path.with_extension("pub"))
    }

    /// Start one more server on a host, known to the desk's ssh by its name.
    pub(super) fn serve_as(&mut self, also: &SshHost<'_>) -> Result<(), String> {
        let (_, at) = self.cabling.way(also.host);
        let entry =
            format!("Host {}\n  HostName {at}\n  Port {}\n  HostKeyAlias {at}\n", also.name, also.port);
        self.write("config", &(entry + &read(self.folder.join("config"))?))?;
        self.serve(also)
    }

    fn serve(&mut self, one: &SshHost<'_>) -> Result<(), String> {
        let path = |file: &str| self.folder.text(file);
        let settings = format!(
            "Port {}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n",
            one.port,
            path(&format!("host_{}", one.host)),
            path(one.users)
        );
        let host = one.host;
        let own = path("own");
        let (settings, before) = match self.is_apart {
            true => (
                format!("{settings}SetEnv XDG_CACHE_HOME={own}/.cache\n"),
                format!("mkdir -p {own}\nmount -t tmpfs none {own}\n{}", one.before),
            ),
            false => (settings, one.before.to_owned()),
        };
        let settings = self.write(&format!("sshd_{}", one.name), &settings)?;
        // The server wants a user and a folder of its own, which others need not see.
        let script = format!(
            "set -e\nhostname {host}\nmkdir -p /run/sshd\nmount --bind {} /etc/passwd\n{}\nexec {} -D -e -f {}",
            path("passwd"),
            before,
            self.server.display(),
            settings.display()
        );
        let task = self.hosts.within(host).args(["unshare", "--uts", "sh", "-c", &script]);
        let libraries = target().join(FOLDER);
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|l| libraries.join(l));
        let list: Vec<_> = libraries.iter().map(|l| l.display().to_string()).collect();
        self.sshd.push(task.env("LD_LIBRARY_PATH", list.join(":")).limit(600).start()?);
        Ok(())
    }

    /// Until every sshd does.
    pub(super) fn answer(&self, names: &[&str]) -> Result<(), String> {
        let ask =
            |host: &str| Ok(self.desk(&["ssh", "-F", &self.folder.text("config"), host, "true"]).run().ok());
        names.iter().try_for_each(|host| until(&format!("the sshd of {host}"), 20, || ask(host)).map(drop))
    }

    pub(super) fn desk(&self, words: &[&str]) -> Task {
        self.hosts.within("desk").args(words)
    }
}

/// The installed server, or the one of Debian's packages, unpacked.
pub(super) fn sshd() -> Outcome<PathBuf> {
    let installed = PathBuf::from("/usr/sbin/sshd");
    if installed.exists() {
        Ok(installed)
    } else {
        Ok(requirements::unpacked(FOLDER, &PACKAGES, SERVER)?.join(SERVER))
    }
}
