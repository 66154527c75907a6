//! Jobs that `comity launch --hostfile` starts at a desk, on hosts with an sshd each.
//!
//! Ends of jobs, at random moments, are all in the gate, and half of the rest; the deep part ends jobs over and over. Then one of two shapes
//! without a switch (deep: both), in which the desk has a rank: a triangle, where each two of the desk, a and b have a cable of their own, and a
//! chain, where a is on the way to b. Each time the last line and the exit code are right, and nothing is left on any host. What needs no host of
//! its own is in `crates/comity-cli/tests/launch`, with a stand-in for ssh.

pub(super) mod shells;

use super::{
    jobs::{comity, fails, has, lacks, timed},
    python,
    scope::Scope,
    sshd::{CHAIN, Cabling, SWITCH, SshNet as Net, TRIANGLE},
    step::{Outcome, Why},
};
use rustix::process::Signal;
use scope::Rng;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{
    child::Task,
    place::{Scratch, built, copy, read, root},
    signal,
};

/// Runs jobs on these hosts; what went wrong.
type Case = fn(&Net<'_>, &mut Rng) -> Result<(), String>;

const ENDS: [(&str, Case); 6] = [
    ("a rank that is killed", loses_a_rank),
    ("a launcher that is killed", loses_the_launcher),
    ("ssh that is killed", |net, random| {
        loses_a_host(net, random, |net| net.at("desk", "ssh", last(net)).map(|pid| signal(pid, Signal::KILL)))
    }),
    ("a host that goes out", |net, random| loses_a_host(net, random, goes_out)),
    ("a cable that is cut", |net, random| {
        loses_a_host(net, random, |net| net.hosts.ip("c", "link set eth0 down"))
    }),
    ("Ctrl-Z, fg and Ctrl-C", is_interrupted),
];
/// Times that the deep part ends jobs in each way.
const ROUNDS: usize = 10;
const OTHERS: [(&str, Case); 6] = [
    ("a host that is lost and comes back", comes_back),
    ("a copy of the program, and a terminal", copies_itself),
    ("a key that is copied", copies_a_key),
    ("the selftest of two hosts", tests_itself),
    ("programs of torch and MLX", runs_frameworks),
    ("Open MPI and MPICH, by hostfiles", under_mpi),
];
const WITHOUT_A_SWITCH: [(&str, Case); 4] = [
    ("a job", runs),
    ("a program that meets at MASTER_ADDR", meets_at_rank_0),
    ("a rank that is killed", loses_a_rank),
    ("a launcher that is killed", loses_the_launcher),
];

pub(super) fn check(scope: &Scope) -> Outcome {
    let rounds = if scope.deep { ROUNDS } else { 1 };
    let cases =
        [&[("a job", runs as Case)], &ENDS.repeat(rounds)[..], &scope.share(OTHERS.to_vec(), 2)].concat();
    let mut note = format!("{} jobs over ssh on 3 hosts", cases.len());
    each(scope, &SWITCH, "a switch", &cases)?;
    if scope.deep {
        note += &released()?;
    }
    for (cabling, name) in scope.share(vec![(&TRIANGLE, "a triangle"), (&CHAIN, "a chain")], 2) {
        each(scope, cabling, name, &WITHOUT_A_SWITCH)?;
        note += &format!("; {name}");
    }
    Ok(note)
}

/// All of these on new hosts.
fn each(scope: &Scope, cabling: &'static Cabling, name: &str, cases: &[(&str, Case)]) -> Outcome<()> {
    let scratch = Scratch::new("ssh")?;
    let net = Net::new("ssh", &scratch, cabling)?;
    let mut random = Rng::new(scope.seed);
    for (what, case) in cases {
        timed(&format!("{name}: {what}"), || {
            case(&net, &mut random)?;
            net.clean()
        })?;
    }
    Ok(())
}

/// Time from the command to its end of five calls on three hosts, by the released program. It is told, and judged by nobody.
fn released() -> Outcome {
    Task::cargo().args(["build", "--release", "-p", "comity-cli"]).limit(3600).run()?;
    let comity = built("release", "comity").display().to_string();
    let scratch = Scratch::new("ssh")?;
    let net = Net::new("ssh", &scratch, &SWITCH)?;
    let job = [&*comity, "bench", "all_reduce", "--sizes", "8", "--iters", "5", "--warmup", "0"];
    let begun = Instant::now();
    net.launch_by(&comity, &[], &job)?.wait()?;
    Ok(format!("; five calls on three hosts: {:.2} s", begun.elapsed().as_secs_f64()))
}

fn last(net: &Net<'_>) -> &'static str {
    net.names().last().unwrap_or_default()
}

fn runs(net: &Net<'_>, _: &mut Rng) -> Result<(), String> {
    let flags = ["--log-dir", &net.folder.text("logs")];
    let said = net.launch(&flags, &[&comity(), "check", "--quick", "--ops", "all_reduce"])?.wait()?;
    let tag = format!("[0@{}]", net.ranks().next().unwrap_or_default());
    has(&said, &["cases on each rank", &tag])?;
    read(net.folder.join("logs/rank-2.err"))?;
    let log = read(net.folder.join("logs/rank-0.out"))?;
    has(&log, &["cases on each rank"])?;
    lacks(&log, &tag)
}

/// Program like torch's store: rank 0 listens at all addresses, sooner or later, and the others connect to the one that they were given.
const LIKE_TORCH: &str = r#"
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert all(at.endswith(":7403") for at in os.environ["COMITY_STORE"].split(",")), os.environ["COMITY_STORE"]
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    time.sleep(0.2)
    server = socket.create_server(("", port))
    ends = [server.accept()[0] for _ in range(size - 1)]
    said = sorted(end.recv(1)[0] for end in ends)
    for end in ends:
        end.sendall(bytes(said))
else:
    end = socket.create_connection((host, port), 10)
    end.settimeout(10)
    end.sendall(bytes([rank]))
    said = list(end.recv(size - 1, socket.MSG_WAITALL))
assert said == list(range(1, size)), said
print("met at rank 0:", said, flush=True)
"#;

/// Each rank reaches rank 0 at its `MASTER_ADDR`, also where its host does not; and the ranks meet at the port that was asked for.
fn meets_at_rank_0(net: &Net<'_>, _: &mut Rng) -> Result<(), String> {
    let said = net.launch(&["--meet-at", ":7403"], &["python3", "-c", LIKE_TORCH])?.wait()?;
    match said.matches("met at rank 0: [1, 2]").count() {
        3 => Ok(()),
        n => Err(format!("{n} of 3 ranks have met:\n{said}")),
    }
}

/// Calls for a minute, on each rank.
const CALLS: [&str; 6] = ["bench", "all_reduce", "--sizes", "64K", "--budget", "60"];

fn loses_a_rank(net: &Net<'_>, random: &mut Rng) -> Result<(), String> {
    let job = net.busy(random, &comity(), &CALLS)?;
    signal(net.at(last(net), "comity", "bench")?, Signal::KILL);
    let said = format!("host {}) was killed by signal 9 (SIGKILL)", last(net));
    fails(job.wait(), &["exit status: 137", &said]).map(drop)
}

fn loses_the_launcher(net: &Net<'_>, random: &mut Rng) -> Result<(), String> {
    let job = net.busy(random, &comity(), &CALLS)?;
    signal(net.at("desk", "comity", "launch")?, Signal::KILL);
    fails(job.wait(), &["signal: 9"]).map(drop)
}

/// The way to the last host ends, or all that runs there: the launcher names it, and nothing is left while it is away. Once with ranks that notice
/// by themselves, once with others.
fn loses_a_host(
    net: &Net<'_>,
    random: &mut Rng,
    end: fn(&Net<'_>) -> Result<(), String>,
) -> Result<(), String> {
    for (program, words) in [(&*comity(), &CALLS[..]), ("sleep", &["60"])] {
        let job = net.busy(random, program, words)?;
        end(net)?;
        let told = fails(job.wait(), &["exit status: 1", "host c was lost", "its rank 2 is ended there"]);
        let clean = net.clean();
        net.hosts.ip("c", "link set eth0 up")?;
        told.and(clean)?;
    }
    Ok(())
}

/// All that runs there ends at once, as where the power goes: who could say something is stopped first.
fn goes_out(net: &Net<'_>) -> Result<(), String> {
    let mut all = net.running(last(net))?;
    all.sort_by_key(|(_, name)| name != "rank-supervisor");
    for what in [Signal::STOP, Signal::KILL] {
        all.iter().for_each(|(pid, _)| signal(*pid, what));
    }
    Ok(())
}

/// Stopped and continued first: the ranks stop with the launcher.
fn is_interrupted(net: &Net<'_>, random: &mut Rng) -> Result<(), String> {
    let job = net.busy(random, &comity(), &CALLS)?;
    let launcher = net.at("desk", "comity", "launch")?;
    for (name, pause) in [(Signal::TSTP, 500), (Signal::CONT, 300), (Signal::INT, 0)] {
        signal(launcher, name);
        sleep(Duration::from_millis(pause));
    }
    fails(job.wait(), &["exit status: 130"]).map(drop)
}

/// The cable of a host is cut and mended: the others go on, and the host's rank is started again.
fn comes_back(net: &Net<'_>, _: &mut Rng) -> Result<(), String> {
    let marker = net.folder.text("back");
    let script = format!(
        "[ -z \"$COMITY_JOIN\" ] || {{ touch {marker}; sleep 100; }}; while [ ! -e {marker} ]; do sleep 0.1; done"
    );
    let job = net.launch(&["--elastic", "1"], &["sh", "-c", &script])?;
    net.at("c", "sh", &script)?;
    net.hosts.ip("c", "link set eth0 down")?;
    // The launcher misses the host after 3 s of silence.
    sleep(Duration::from_secs(4));
    net.hosts.ip("c", "link set eth0 up")?;
    has(&job.wait()?, &["host c was lost", "; the job goes on, and the host is tried again in 1 s"])
}

/// Hosts without the program keep a copy of it, and a rank there has a terminal.
fn copies_itself(net: &Net<'_>, _: &mut Rng) -> Result<(), String> {
    // Under another name the launcher's own program is not looked for there.
    let launcher = net.folder.text("launcher");
    copy(comity().as_ref(), launcher.as_ref())?;
    let script = "[ $RANK = 2 ] || exit 0; test -t 0 && test -t 1 && echo $TERM on $(tty)";
    let run = || net.launch_by(&launcher, &["--python", "sh", "--tty", "2"], &["-c", script])?.wait();
    has(&run()?, &["host a: has no comity", "host c: has no comity", " on /dev/pts/"])?;
    lacks(&run()?, "gets a copy")
}

fn copies_a_key(net: &Net<'_>, _: &mut Rng) -> Result<(), String> {
    let key = net.folder.text("own/job.key");
    let comity = comity();
    net.desk(&[&comity, "key", "new", &key]).run()?;
    net.desk(&[&comity, "key", "copy", "a", "c", "--file", &key]).run()?;
    let here = net.desk(&["sha256sum", &key]).run()?;
    for host in ["a", "c"] {
        has(&net.on(host, &format!("stat -c %a {key} && sha256sum {key}"))?, &["600", &here])?;
    }
    // It was not given one.
    fails(net.on("b", &format!("cat {key}")), &["No such file"]).map(drop)
}

/// The selftest's rows of these hosts pass, and its report does not name them.
fn tests_itself(net: &Net<'_>, _: &mut Rng) -> Result<(), String> {
    let report = net.folder.text("report");
    let words = ["selftest", "--only", "hosts, ", "--hosts", "a,b", "--report", &report];
    let said = net.desk(&[&comity()]).args(words).limit(300).run()?;
    has(&said, &["# 2 passed, 0 failed, 0 not there"])?;
    let report = read(report)?;
    has(&report, &["hosts, doctor", "hosts, a rank on each"])?;
    lacks(&report, "10.78.0.")
}

/// A program of MLX that knows nothing of Comity.
const OF_MLX: &str = "
import mlx.core as mx

world = mx.distributed.init(strict=True, backend='any')
total = mx.distributed.all_sum(mx.full((3,), world.rank() + 1.0))
print('rank', world.rank(), 'of', world.size(), 'has', total.tolist())
";

/// The hostfile that checked the hosts drives a program of torch, and one of MLX: over MLX's own ring, and over Comity.
fn runs_frameworks(net: &Net<'_>, _: &mut Rng) -> Result<(), String> {
    python::with_package().map_err(Why::text)?;
    let python = python::interpreter().display().to_string();
    let of_mlx = net.write("of_mlx.py", OF_MLX)?;
    let of_torch = root().join("examples/ddp_train.py").display().to_string();
    let all = "rank 2 of 3 has [6.0, 6.0, 6.0]";
    let jobs: [(&str, &[&str], &[&str], &str); 3] = [
        ("torch", &[], &[&of_torch, "--steps", "7"], "3 ranks: loss"),
        ("MLX over its ring", &["--backend", "ring"], &[&of_mlx], all),
        ("MLX over Comity", &[], &["-m", "comity.mlx", &of_mlx], all),
    ];
    for (what, flags, words, part) in jobs {
        timed(what, || has(&net.launch(flags, &[&[&*python], words].concat())?.wait()?, &[part]))?;
    }
    Ok(())
}

/// Open MPI and MPICH start the same program on two of the hosts, from hostfiles of theirs, with a key that the one carries in
/// its file and the other over PMI.
fn under_mpi(net: &Net<'_>, _: &mut Rng) -> Result<(), String> {
    let ssh = net.folder.text("bin/ssh");
    let key = net.folder.text("mpi.key");
    let comity = comity();
    Task::new(&comity).args(["key", "new", &key]).run()?;
    let openmpi = net.write("hosts-of-openmpi", "a slots=1\nb slots=1\n")?;
    let mpich = net.write("hosts-of-mpich", "a\nb\n")?;
    let bench = format!("{comity} bench all_reduce --sizes 8:64K --factor 8192 --iters 5");
    let ways = format!("--mca plm_rsh_agent {ssh} --mca oob_tcp_if_include eth0");
    let vars = format!("-x MASTER_ADDR=10.78.0.2 -x MASTER_PORT=29500 -x COMITY_KEY_FILE={key}");
    for line in [
        format!("mpirun.openmpi --allow-run-as-root --hostfile {openmpi} -n 2 {ways} {vars} {bench}"),
        format!(
            "mpiexec.mpich -launcher ssh -launcher-exec {ssh} -localhost 10.78.0.1 -f {mpich} -n 2 {bench}"
        ),
    ] {
        let said = net.desk(&[]).args(line.split_whitespace()).limit(300).run()?;
        has(&said, &["2 ranks on 2 hosts (a, b), links tcp"])?;
    }
    Ok(())
}
