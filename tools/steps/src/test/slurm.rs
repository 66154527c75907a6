//! Under Slurm for real: a controller and two nodes on this machine, as network namespaces, from Debian's packages. They are unpacked beside
//! what cargo built: installing them would start them here.
//!
//! ```text
//! n1 10.77.9.1 (munged, slurmctld, slurmd, and where srun is typed) --- cable --- n2 10.77.9.2 (slurmd)
//! ```

use super::{
    jobs::{comity_word, fails, has, job_key, timed, until},
    requirements::{self, Ask},
    scope::Scope,
    step::Outcome,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tasks::{
    child::{Running, Task},
    netns::Hosts,
    place::{Scratch, make, write},
};

pub(super) const ASKS: &[Ask] =
    &[Ask::X86, Ask::Root, Ask::Program("ip", "iproute2"), Ask::Program("apt-get", "apt")];

/// Slurm itself, and what of its libraries a plain Debian lacks.
const PACKAGES: [&str; 8] = [
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "libmunge2",
    "liblua5.1-0",
    "libhwloc15",
];
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/slurm-wlm"];
/// Seconds for a job, and for the nodes to be there.
const JOB: u64 = 180;
const NODES: u64 = 40;

pub(super) fn check(_: &Scope) -> Outcome {
    let root = requirements::unpacked("slurm", &PACKAGES, "usr/sbin/slurmd-wlm")?;
    let scratch = Scratch::new("slurm")?;
    let cluster = Cluster::new(&scratch, root)?;
    let (_key_folder, key) = job_key()?;
    let cases: [(&str, Case); 5] = [
        ("srun with COMITY_KEY_FILE", with_a_key),
        ("srun --mpi=pmi2 without a key file", over_pmi),
        ("srun without a key", without_a_key),
        ("a launcher on each node", launchers),
        ("a rank that is killed", killed),
    ];
    for (what, case) in cases {
        timed(what, || case(&cluster, &comity_word(), &key))?;
    }
    let version = cluster.client(&["srun", "--version"]).run()?;
    Ok(format!("{} jobs on 2 nodes under {}", cases.len(), version.trim()))
}

type Case = fn(&Cluster<'_>, &str, &Path) -> Result<(), String>;

const CHECK: [&str; 4] = ["check", "--quick", "--ops", "all_reduce,all_gather"];

fn with_a_key(cluster: &Cluster<'_>, comity: &str, key: &Path) -> Result<(), String> {
    let job = cluster.client(&["srun", "-N", "2", "-n", "4", comity]).args(CHECK);
    four_ranks(&job.env("COMITY_KEY_FILE", key).limit(JOB).run()?)
}

fn over_pmi(cluster: &Cluster<'_>, comity: &str, _: &Path) -> Result<(), String> {
    let job = cluster.client(&["srun", "--mpi=pmi2", "-N", "2", "-n", "4", comity]).args(CHECK);
    four_ranks(&job.limit(JOB).run()?)
}

fn without_a_key(cluster: &Cluster<'_>, comity: &str, _: &Path) -> Result<(), String> {
    let job = cluster.client(&["srun", "-N", "2", "-n", "2", comity]).args(CHECK).limit(JOB);
    fails(job.run(), &["COMITY_KEY_FILE", "--mpi=pmi2"]).map(drop)
}

/// The controller is reached at the first node; each node has two ranks.
fn launchers(cluster: &Cluster<'_>, comity: &str, key: &Path) -> Result<(), String> {
    let line = format!(
        "exec {comity} launch --nnodes 2 --node-rank $SLURM_NODEID --rendezvous 10.77.9.1:29511 -n 2 -- {comity} {}",
        CHECK.join(" ")
    );
    let job = cluster.client(&["srun", "-N", "2", "--ntasks-per-node=1", "sh", "-c", &line]);
    four_ranks(&job.env("COMITY_KEY_FILE", key).limit(JOB).run()?)
}

/// The others name it and its host, and srun ends with their failure.
fn killed(cluster: &Cluster<'_>, comity: &str, key: &Path) -> Result<(), String> {
    let script = "if [ $SLURM_PROCID = 3 ]; then \"$0\" bench all_reduce --sizes 64K --budget 60 & sleep 4; kill -9 $!; wait $!; \
         sleep 5; exit 3; fi; exec \"$0\" bench all_reduce --sizes 64K --budget 60";
    let job = cluster.client(&["srun", "-N", "2", "-n", "4", "sh", "-c", script, comity]);
    fails(job.env("COMITY_KEY_FILE", key).limit(JOB).run(), &["rank 3", "n2"]).map(drop)
}

fn four_ranks(said: &str) -> Result<(), String> {
    has(said, &["4 ranks", "cases on each rank"])
}

/// The nodes, with what runs in them.
struct Cluster<'a> {
    folder: &'a Scratch,
    root: PathBuf,
    hosts: Hosts,
    /// Munge's daemon first.
    running: Vec<Running>,
}

impl<'a> Cluster<'a> {
    fn new(folder: &'a Scratch, root: PathBuf) -> Result<Self, String> {
        let hosts = Hosts::pair("slurm", ["n1", "n2"], "10.77.9")?;
        let mut cluster = Self { folder, root, hosts, running: Vec::new() };
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.join("."), open).map_err(|e| e.to_string())?;
        for node in ["n1", "n2", "ctld"] {
            make(&folder.join(node))?;
        }
        write(folder.join("hosts"), "127.0.0.1 localhost\n10.77.9.1 n1\n10.77.9.2 n2\n")?;
        write(folder.join("slurm.conf"), cluster.settings())?;
        cluster.start()?;
        until("a node that takes jobs", NODES, || {
            let said = cluster.client(&["sinfo", "--noheader", "--Node", "--format=%N %T"]).limit(20).run();
            Ok(said.ok().filter(|said| said.lines().filter(|l| l.contains("idle")).count() == 2))
        })
        .map_err(|e| format!("{e}: {}", fs::read_to_string(folder.join("ctld.log")).unwrap_or_default()))?;
        Ok(cluster)
    }

    fn settings(&self) -> String {
        let at = |file: &str| self.folder.text(file);
        let [_, plugins] = LIBRARIES.map(|l| self.root.join(l).display().to_string());
        format!(
            "ClusterName=t\nSlurmctldHost=n1(10.77.9.1)\nAuthType=auth/munge\nAuthInfo=socket={}\nPluginDir={plugins}\n\
             SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={}\nSlurmdSpoolDir={}\nSlurmctldPidFile={}\nSlurmdPidFile={}\n\
             SlurmctldLogFile={}\nSlurmdLogFile={}\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/linear\nMpiDefault=none\nReturnToService=2\n\
             NodeName=n1 NodeAddr=10.77.9.1 CPUs=2 State=UNKNOWN\nNodeName=n2 NodeAddr=10.77.9.2 CPUs=2 State=UNKNOWN\n\
             PartitionName=p Nodes=n1,n2 Default=YES State=UP\n",
            at("munge.sock"),
            at("ctld"),
            at("%n"),
            at("ctld.pid"),
            at("%n.pid"),
            at("ctld.log"),
            at("%n.log"),
        )
    }

    /// The daemons, in the foreground of their nodes.
    fn start(&mut self) -> Result<(), String> {
        let at = |file: &str| self.folder.text(file);
        let key = at("munge.key");
        Task::sh(&format!("umask 077; head -c 1024 /dev/urandom > {key}")).run()?;
        let sbin = |name: &str| self.root.join("usr/sbin").join(name).display().to_string();
        let munged = format!(
            "{} --foreground --force --socket={} --key-file={key} --pid-file={} --log-file={} --seed-file={}",
            sbin("munged"),
            at("munge.sock"),
            at("munged.pid"),
            at("munged.log"),
            at("munge.seed")
        );
        let socket = self.folder.join("munge.sock");
        let conf = at("slurm.conf");
        let slurmd =
            |node| format!("{} -D -N {node} -f {conf} -d {}", sbin("slurmd-wlm"), sbin("slurmstepd-wlm"));
        let daemons = [
            ("n1", munged),
            ("n1", format!("{} -D -f {conf}", sbin("slurmctld-wlm"))),
            ("n1", slurmd("n1")),
            ("n2", slurmd("n2")),
        ];
        for (node, line) in daemons {
            let words: Vec<&str> = line.split(' ').collect();
            let daemon = self.on(node, &words).limit(900).start()?;
            self.running.push(daemon);
            until("munged's socket", NODES, || Ok(socket.exists().then_some(())))?;
        }
        Ok(())
    }

    /// A command that runs on a node, under its name.
    fn on(&self, node: &str, words: &[impl AsRef<std::ffi::OsStr>]) -> Task {
        let net = format!("--net=/run/netns/{}", self.hosts.name(node));
        let hosts = self.folder.join("hosts");
        let script = format!("hostname {node} && mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
        let libraries = LIBRARIES.map(|l| self.root.join(l).display().to_string());
        Task::new("nsenter")
            .args([&net, "unshare", "--uts", "--mount", "sh", "-c", &script, "sh"])
            .args(words)
            .env("LD_LIBRARY_PATH", libraries.join(":"))
            .env("SLURM_CONF", self.folder.join("slurm.conf"))
            .folder(&self.folder.join("."))
    }

    /// A command of a user, on the first node.
    fn client(&self, words: &[&str]) -> Task {
        let program = self.root.join("usr/bin").join(words[0]).display().to_string();
        let words: Vec<&str> = std::iter::once(program.as_str()).chain(words[1..].iter().copied()).collect();
        self.on("n1", &words)
    }
}
