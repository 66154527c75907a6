//! Under Slurm for real: a controller and two nodes on this machine, as network namespaces, from Debian's packages. They are unpacked beside
//! what cargo built: installing them would start them here.
//!
//! ```text
//! n1 10.77.9.1 (munged, slurmctld, slurmd, and where srun is typed) --- cable --- n2 10.77.9.2 (slurmd)
//! ```

use super::{Done, Outcome, launchers::job_key, missing, processes::comity, requirements, scope::Scope};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{
    child::{Running, Task},
    netns::Hosts,
    place::{Scratch, program},
};

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
const NODES: Duration = Duration::from_secs(40);

pub(super) fn check(_: &Scope) -> Outcome {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Done::NotRun("the packages are Debian's for x86_64".into()));
    }
    if program("ip").is_none() || program("apt-get").is_none() || !rustix::process::geteuid().is_root() {
        return missing("this needs root, ip (package iproute2) and Debian's apt-get".into());
    }
    let root = match requirements::unpacked("slurm", &PACKAGES, "usr/sbin/slurmd-wlm") {
        Ok(root) => root,
        Err(e) => return missing(format!("Slurm's packages cannot be had: {e}")),
    };
    let scratch = Scratch::new("slurm").map_err(|e| e.to_string())?;
    let cluster = Cluster::new(&scratch, root)?;
    let comity = comity()?;
    let comity = comity.to_str().ok_or("the program's path is no text")?;
    let (_key_folder, key) = job_key()?;
    let key = key.to_str().ok_or("the key's path is no text")?;
    let cases: [(&str, &Case); 5] = [
        ("srun with COMITY_KEY_FILE", &with_a_key),
        ("srun --mpi=pmi2 without a key file", &over_pmi),
        ("srun without a key", &without_a_key),
        ("a launcher on each node", &launchers),
        ("a rank that is killed", &killed),
    ];
    for (what, case) in cases {
        let begun = Instant::now();
        case(&cluster, comity, key).map_err(|e| format!("{what}: {e}"))?;
        println!("{what}: right, {:.1} s", begun.elapsed().as_secs_f64());
    }
    let version = cluster.client(&["srun", "--version"]).run()?;
    Ok(Done::Passed(format!("{} jobs on 2 nodes under {}", cases.len(), version.trim())))
}

type Case = dyn Fn(&Cluster<'_>, &str, &str) -> Result<(), String>;

const CHECK: [&str; 4] = ["check", "--quick", "--ops", "all_reduce,all_gather"];

fn with_a_key(cluster: &Cluster<'_>, comity: &str, key: &str) -> Result<(), String> {
    let job = cluster.client(&["srun", "-N", "2", "-n", "4", comity]).args(CHECK);
    four_ranks(&job.env("COMITY_KEY_FILE", key).limit(JOB).run()?)
}

fn over_pmi(cluster: &Cluster<'_>, comity: &str, _: &str) -> Result<(), String> {
    let job = cluster.client(&["srun", "--mpi=pmi2", "-N", "2", "-n", "4", comity]).args(CHECK);
    four_ranks(&job.limit(JOB).run()?)
}

fn without_a_key(cluster: &Cluster<'_>, comity: &str, _: &str) -> Result<(), String> {
    let job = cluster.client(&["srun", "-N", "2", "-n", "2", comity]).args(CHECK).limit(JOB);
    says(job.run(), &["COMITY_KEY_FILE", "--mpi=pmi2"])
}

/// The controller is reached at the first node; each node has two ranks.
fn launchers(cluster: &Cluster<'_>, comity: &str, key: &str) -> Result<(), String> {
    let line = format!(
        "exec {comity} launch --nnodes 2 --node-rank $SLURM_NODEID --rendezvous 10.77.9.1:29511 -n 2 -- {comity} {}",
        CHECK.join(" ")
    );
    let job = cluster.client(&["srun", "-N", "2", "--ntasks-per-node=1", "sh", "-c", &line]);
    four_ranks(&job.env("COMITY_KEY_FILE", key).limit(JOB).run()?)
}

/// The others name it and its host, and srun ends with their failure.
fn killed(cluster: &Cluster<'_>, comity: &str, key: &str) -> Result<(), String> {
    let script = "if [ $SLURM_PROCID = 3 ]; then \"$0\" bench all_reduce --sizes 64K --budget 60 & sleep 4; kill -9 $!; wait $!; \
         sleep 5; exit 3; fi; exec \"$0\" bench all_reduce --sizes 64K --budget 60";
    let job = cluster.client(&["srun", "-N", "2", "-n", "4", "sh", "-c", script, comity]);
    says(job.env("COMITY_KEY_FILE", key).limit(JOB).run(), &["rank 3", "n2"])
}

fn four_ranks(said: &str) -> Result<(), String> {
    match said.contains("4 ranks") && said.contains("cases on each rank") {
        true => Ok(()),
        false => Err(format!("it did not say that all cases are right:\n{said}")),
    }
}

/// The job fails, and says why.
fn says(ended: Result<String, String>, parts: &[&str]) -> Result<(), String> {
    let Err(said) = ended else { return Err("the job succeeded".into()) };
    match parts.iter().find(|p| !said.contains(**p)) {
        None => Ok(()),
        Some(part) => Err(format!("{part:?} is not in what it said:\n{said}")),
    }
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
        let hosts = Hosts::new("slurm", &["n1", "n2"])?;
        let mut cluster = Self { folder, root, hosts, running: Vec::new() };
        fs::set_permissions(folder.join("."), fs::Permissions::from_mode(0o755))
            .map_err(|e| e.to_string())?;
        for node in ["n1", "n2", "ctld"] {
            fs::create_dir(folder.join(node)).map_err(|e| e.to_string())?;
        }
        cluster.hosts.cable([("n1", "cable"), ("n2", "cable")])?;
        for (node, at) in [("n1", "10.77.9.1"), ("n2", "10.77.9.2")] {
            cluster.hosts.ip(node, &format!("addr add {at}/24 dev cable"))?;
            cluster.hosts.ip(node, "link set cable up")?;
        }
        cluster.write("hosts", "127.0.0.1 localhost\n10.77.9.1 n1\n10.77.9.2 n2\n")?;
        let conf = cluster.settings();
        cluster.write("slurm.conf", &conf)?;
        cluster.start()?;
        cluster.wait()?;
        Ok(cluster)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        fs::write(self.folder.join(file), text).map_err(|e| format!("{file}: {e}"))
    }

    fn settings(&self) -> String {
        let at = |file: &str| self.folder.join(file).display().to_string();
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
        let at = |file: &str| self.folder.join(file).display().to_string();
        let key = at("munge.key");
        let make = format!("umask 077; head -c 1024 /dev/urandom > {key}");
        Task::new("sh").args(["-c", &make]).run()?;
        let sbin = |name: &str| self.root.join("usr/sbin").join(name).display().to_string();
        let munge = [
            sbin("munged"),
            "--foreground".into(),
            "--force".into(),
            format!("--socket={}", at("munge.sock")),
            format!("--key-file={key}"),
            format!("--pid-file={}", at("munged.pid")),
            format!("--log-file={}", at("munged.log")),
            format!("--seed-file={}", at("munge.seed")),
        ];
        let munge = self.on("n1", &munge).limit(900).start()?;
        self.running.push(munge);
        let until = Instant::now() + NODES;
        while !Path::new(&at("munge.sock")).exists() {
            if Instant::now() > until {
                return Err("munged does not start".into());
            }
            sleep(Duration::from_millis(50));
        }
        let conf = at("slurm.conf");
        let step = sbin("slurmstepd-wlm");
        let controller = [sbin("slurmctld-wlm"), "-D".into(), "-f".into(), conf.clone()];
        let controller = self.on("n1", &controller).limit(900).start()?;
        self.running.push(controller);
        for node in ["n1", "n2"] {
            let words = [
                sbin("slurmd-wlm"),
                "-D".into(),
                "-N".into(),
                node.into(),
                "-f".into(),
                conf.clone(),
                "-d".into(),
            ];
            let words = [&words[..], std::slice::from_ref(&step)].concat();
            let slurmd = self.on(node, &words).limit(900).start()?;
            self.running.push(slurmd);
        }
        Ok(())
    }

    /// Until both nodes take jobs.
    fn wait(&self) -> Result<(), String> {
        let until = Instant::now() + NODES;
        loop {
            let said = self.client(&["sinfo", "--noheader", "--Node", "--format=%N %T"]).limit(20).run();
            match said {
                Ok(said) if said.lines().filter(|l| l.contains("idle")).count() == 2 => return Ok(()),
                Ok(said) | Err(said) if Instant::now() > until => {
                    let log = fs::read_to_string(self.folder.join("ctld.log")).unwrap_or_default();
                    return Err(format!("the nodes do not come up: {said}\n{log}"));
                }
                _ => sleep(Duration::from_millis(200)),
            }
        }
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
