//! A newcomer's path: a hostfile, a check, programs of torch and MLX, Ctrl-C; and the same program under the launchers that
//! the hosts have already.
use super::{Net, ended, net::comm, python, signal};
use rustix::process::Signal;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{child::Task, place::root};

/// A program of MLX that knows nothing of Comity.
const OF_MLX: &str = "
import mlx.core as mx

world = mx.distributed.init(strict=True, backend='any')
total = mx.distributed.all_sum(mx.full((3,), world.rank() + 1.0))
print('rank', world.rank(), 'of', world.size(), 'has', total.tolist())
";

/// The hostfile that checked the hosts drives a program of torch, and one of MLX: over MLX's own ring, and over Comity.
pub(super) fn runs_frameworks(net: &Net<'_>, comity: &str) -> Result<(), String> {
    let python = python::with_package()?.display().to_string();
    let of_mlx = net.write("of_mlx.py", OF_MLX)?.display().to_string();
    let of_torch = root().join("examples/ddp_train.py").display().to_string();
    let all = "rank 2 of 3 has [6.0, 6.0, 6.0]";
    let jobs: [(&str, &[&str], &[&str], &str); 3] = [
        ("torch", &[], &[&of_torch, "--steps", "7"], "3 ranks: loss"),
        ("MLX over its ring", &["--backend", "ring"], &[&of_mlx], all),
        ("MLX over Comity", &[], &["-m", "comity.mlx", &of_mlx], all),
    ];
    for (what, flags, words, part) in jobs {
        let begun = Instant::now();
        let job = net.launch_with(comity, flags, &[&[python.as_str()], words].concat())?;
        let said = job.wait().map_err(|e| format!("{what}: {e}"))?;
        if !said.contains(part) {
            return Err(format!("{what}: it did not say {part:?}:\n{said}"));
        }
        println!("  {what}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

pub(super) fn is_interrupted(net: &Net<'_>, comity: &str) -> Result<(), String> {
    let job = net.busy(comity)?;
    let named = |pid: &u32| comm(*pid) == "comity";
    let launcher = net.hosts.pids("desk")?.into_iter().find(named).ok_or("no launcher runs")?;
    // Stopped and continued first, as by Ctrl-Z and fg: the ranks stop with it.
    signal(launcher, Signal::TSTP)?;
    sleep(Duration::from_millis(500));
    signal(launcher, Signal::CONT)?;
    sleep(Duration::from_millis(300));
    signal(launcher, Signal::INT)?;
    ended(job, "exit status: 130", &[])
}

/// Open MPI and MPICH start the same program on two of the hosts, from hostfiles of theirs, with a key that the one carries in
/// its file and the other over PMI.
pub(super) fn under_mpi(net: &Net<'_>, comity: &str) -> Result<(), String> {
    let path = |file: &str| net.folder.join(file).display().to_string();
    let ssh = net.write("ssh-of-mpi", &format!("#!/bin/sh\nexec ssh -F {} \"$@\"\n", path("config")))?;
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    let ssh = ssh.display().to_string();
    let key = path("mpi.key");
    Task::new(comity).args(["key", "new", &key]).run()?;
    net.write("hosts-of-openmpi", "a slots=1\nb slots=1\n")?;
    net.write("hosts-of-mpich", "a\nb\n")?;
    let openmpi = path("hosts-of-openmpi");
    let mpich = path("hosts-of-mpich");
    let bench = [comity, "bench", "all_reduce", "--sizes", "8:64K", "--factor", "8192", "--iters", "5"];
    let file = format!("COMITY_KEY_FILE={key}");
    let first = ["mpirun.openmpi", "--allow-run-as-root", "--hostfile", &openmpi, "-n", "2"];
    let ways = ["--mca", "plm_rsh_agent", &ssh, "--mca", "oob_tcp_if_include", "eth0"];
    let vars = ["-x", "MASTER_ADDR=10.78.0.2", "-x", "MASTER_PORT=29500", "-x", &file];
    let second = ["mpiexec.mpich", "-launcher", "ssh", "-launcher-exec", &ssh, "-localhost", "10.78.0.1"];
    let more = ["-f", &mpich, "-n", "2"];
    for words in [[&first[..], &ways, &vars, &bench].concat(), [&second[..], &more, &bench].concat()] {
        let said = net.desk(&words).limit(300).run()?;
        if !said.contains("2 ranks on 2 hosts (a, b), links tcp") {
            return Err(format!("{} did not start a job on two hosts:\n{said}", words[0]));
        }
    }
    Ok(())
}
