//! Jobs over ssh that need real hosts, beside those that end a job; and programs of frameworks, under the launchers that the hosts have
//! already too.
use super::Net;
use crate::test::{
    jobs::{has, script, timed},
    python,
    step::Why,
};
use std::{thread::sleep, time::Duration};
use tasks::{
    child::Task,
    place::{copy, make, read, root},
};

/// The cable of a host is cut and mended: the others go on, and the host's rank is started again.
pub(super) fn comes_back(net: &Net<'_>) -> Result<(), String> {
    let marker = net.folder.text("back");
    let script = format!(
        "[ -z \"$COMITY_JOIN\" ] || {{ touch {marker}; sleep 100; }}; while [ ! -e {marker} ]; do sleep 0.1; done"
    );
    let job = net.launch(&["--elastic", "1"], &["sh", "-c", &script])?;
    net.await_rank("c")?;
    net.hosts.ip("c", "link set eth0 down")?;
    // The launcher misses the host after 3 s of silence.
    sleep(Duration::from_secs(4));
    net.hosts.ip("c", "link set eth0 up")?;
    has(&job.wait()?, &["host c was lost", "; the job goes on, and the host is tried again in 1 s"])
}

/// Hosts without the program keep a copy of it, and a rank there has a terminal.
pub(super) fn copies_itself(net: &Net<'_>) -> Result<(), String> {
    // Under another name the launcher's own program is not looked for there.
    let launcher = net.folder.text("launcher");
    copy(net.comity().as_ref(), launcher.as_ref())?;
    let flags = ["--python", "sh", "--tty", "2"];
    let script = "[ $RANK = 2 ] || exit 0; test -t 0 && test -t 1 && echo $TERM on $(tty)";
    let said = net.launch_by(&launcher, &flags, &["-c", script])?.wait()?;
    has(&said, &["host a: has no comity", "host c: has no comity", " on /dev/pts/"])?;
    let said = net.launch_by(&launcher, &flags, &["-c", script])?.wait()?;
    match said.contains("gets a copy") {
        true => Err(format!("it was copied a second time:\n{said}")),
        false => Ok(()),
    }
}

pub(super) fn copies_a_key(net: &Net<'_>) -> Result<(), String> {
    let key = net.folder.text("own/job.key");
    let comity = net.comity();
    net.desk(&[&comity, "key", "new", &key]).run()?;
    let config = format!("--ssh-arg={}", net.folder.text("config"));
    net.desk(&[&comity, "key", "copy", "a", "c", "--file", &key, "--ssh-arg=-F", &config]).run()?;
    let here = net.desk(&["sha256sum", &key]).run()?;
    let here = here.split_whitespace().next().unwrap_or("no sum");
    for host in ["a", "c"] {
        has(&net.on(host, &format!("stat -c %a {key} && sha256sum {key}"))?, &["600", here])?;
    }
    match net.on("b", &format!("cat {key}")) {
        Ok(_) => Err("host b has a key that it was not given".into()),
        Err(_) => Ok(()),
    }
}

/// The selftest's rows of these hosts pass, and its report does not name them.
pub(super) fn tests_itself(net: &Net<'_>) -> Result<(), String> {
    // It takes ssh as its user has set it up.
    let bin = net.folder.join("bin");
    let ssh = format!("#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n", net.folder.text("config"));
    make(&bin)?;
    script(&bin.join("ssh"), &ssh)?;
    let old = std::env::var("PATH").unwrap_or_default();
    let report = net.folder.text("report");
    let words = [&net.comity(), "selftest", "--only", "hosts, ", "--hosts", "a,b", "--report", &report];
    let said = net.desk(&words).env("PATH", format!("{}:{old}", bin.display())).limit(300).run()?;
    has(&said, &["# 2 passed, 0 failed, 0 not there"])?;
    let report = read(report)?;
    has(&report, &["hosts, doctor", "hosts, a rank on each"])?;
    match report.contains("10.78.0.") {
        true => Err(format!("the report has an address:\n{report}")),
        false => Ok(()),
    }
}

/// A program of MLX that knows nothing of Comity.
const OF_MLX: &str = "
import mlx.core as mx

world = mx.distributed.init(strict=True, backend='any')
total = mx.distributed.all_sum(mx.full((3,), world.rank() + 1.0))
print('rank', world.rank(), 'of', world.size(), 'has', total.tolist())
";

/// The hostfile that checked the hosts drives a program of torch, and one of MLX: over MLX's own ring, and over Comity.
pub(super) fn runs_frameworks(net: &Net<'_>) -> Result<(), String> {
    python::with_package().map_err(Why::text)?;
    let python = python::interpreter().display().to_string();
    let of_mlx = net.write("of_mlx.py", OF_MLX)?.display().to_string();
    let of_torch = root().join("examples/ddp_train.py").display().to_string();
    let all = "rank 2 of 3 has [6.0, 6.0, 6.0]";
    let jobs: [(&str, &[&str], &[&str], &str); 3] = [
        ("torch", &[], &[&of_torch, "--steps", "7"], "3 ranks: loss"),
        ("MLX over its ring", &["--backend", "ring"], &[&of_mlx], all),
        ("MLX over Comity", &[], &["-m", "comity.mlx", &of_mlx], all),
    ];
    for (what, flags, words, part) in jobs {
        timed(what, || {
            let said = net.launch(flags, &[&[python.as_str()], words].concat())?.wait()?;
            has(&said, &[part])
        })?;
    }
    Ok(())
}

/// Open MPI and MPICH start the same program on two of the hosts, from hostfiles of theirs, with a key that the one carries in
/// its file and the other over PMI.
pub(super) fn under_mpi(net: &Net<'_>) -> Result<(), String> {
    let path = |file: &str| net.folder.text(file);
    let ssh = format!("#!/bin/sh\nexec ssh -F {} \"$@\"\n", path("config"));
    let ssh = script(&net.folder.join("ssh-of-mpi"), &ssh)?;
    let key = path("mpi.key");
    let comity = net.comity();
    Task::new(&comity).args(["key", "new", &key]).run()?;
    net.write("hosts-of-openmpi", "a slots=1\nb slots=1\n")?;
    net.write("hosts-of-mpich", "a\nb\n")?;
    let openmpi = path("hosts-of-openmpi");
    let mpich = path("hosts-of-mpich");
    let bench = [&comity, "bench", "all_reduce", "--sizes", "8:64K", "--factor", "8192", "--iters", "5"];
    let file = format!("COMITY_KEY_FILE={key}");
    let first = ["mpirun.openmpi", "--allow-run-as-root", "--hostfile", &openmpi, "-n", "2"];
    let ways = ["--mca", "plm_rsh_agent", &ssh, "--mca", "oob_tcp_if_include", "eth0"];
    let vars = ["-x", "MASTER_ADDR=10.78.0.2", "-x", "MASTER_PORT=29500", "-x", &file];
    let second = ["mpiexec.mpich", "-launcher", "ssh", "-launcher-exec", &ssh, "-localhost", "10.78.0.1"];
    let more = ["-f", &mpich, "-n", "2"];
    for words in [[&first[..], &ways, &vars, &bench].concat(), [&second[..], &more, &bench].concat()] {
        has(&net.desk(&words).limit(300).run()?, &["2 ranks on 2 hosts (a, b), links tcp"])?;
    }
    Ok(())
}
