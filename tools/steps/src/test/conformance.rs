//! Suite over every way that data can travel: `comity check`, a row for each link and backend.
//!
//! A row says how many ranks, by which variables and flags the ranks take that way, and what rank 0's first line then has
//! to say: nothing may fall back to another way in silence. A new link or backend is a new row here. RDMA has the tests of
//! `crates/comity-cli/tests/rdma.rs`, which the step `rdma` runs.

use super::{
    jobs::{QUICK, comity, says},
    scope::Scope,
    step::Outcome,
};
use tasks::{child::Task, place::built};

#[derive(Debug)]
struct Row {
    name: &'static str,
    /// A job for each of these numbers of ranks.
    ranks: &'static [usize],
    /// Flags of `comity launch`.
    launch: &'static [&'static str],
    /// Variables of the ranks. A library's name stands for its file in what cargo built.
    vars: &'static [(&'static str, &'static str)],
    /// Command of the ranks. `comity bench` compares one call of each of its lines.
    command: &'static [&'static str],
    /// Ranks go to hosts of this many by name, which share memory with no other.
    per_host: Option<usize>,
    /// Words of the first line, for two ranks or more.
    says: &'static str,
}

type Vars = &'static [(&'static str, &'static str)];

/// A row of `comity check`: its name, ranks, variables, and the words of its first line.
const fn row(name: &'static str, ranks: &'static [usize], vars: Vars, says: &'static str) -> Row {
    Row { name, ranks, launch: &[], vars, command: &["check", "--quick"], per_host: None, says }
}

/// A row of `comity bench` over shared memory.
const fn bench(name: &'static str, ranks: &'static [usize], vars: Vars, says: &'static str) -> Row {
    const LONG: &[&str] = &["bench", "all", "--sizes", "256K,4M", "--dtype", "bf16", "--iters", "5"];
    Row { command: LONG, ..row(name, ranks, vars, says) }
}

/// A row of an MPI.
const fn mpi(name: &'static str, ranks: &'static [usize], vars: Vars) -> Row {
    Row { launch: &["--backend", "mpi"], ..row(name, ranks, vars, "links mpi") }
}

const SHM: (&str, &str) = ("COMITY_LINKS", "shm");
const TCP: (&str, &str) = ("COMITY_LINKS", "tcp");
const OPENMPI: Vars = &[("COMITY_MPIRUN", "mpirun.openmpi")];
const MPICH: Vars = &[("COMITY_MPIRUN", "mpiexec.mpich")];
const IN_PLACE: &str = "where they lay in the memory of other ranks";

/// Most ranks of a job in a gate: with 8 on 2 cores it takes a minute.
const MOST: usize = 5;
/// Number of hands that share a gate's jobs.
const HANDS: u64 = 2;

/// MPI's ranks spin while they wait, so four of them are slow on two cores.
const SOME: &[&str] = &[
    "check",
    "--quick",
    "--ops",
    "all_reduce,all_gather,reduce_scatter,all_to_all,send,split,spawn",
    "--dtypes",
    "bf16,f32,bool,c64",
];
const BUFFERS: &[&str] =
    &["bench", "all", "--shared-buffers", "--sizes", "256K,4M", "--dtype", "bf16", "--iters", "5"];
const EXCHANGES: &[&str] = &[
    "bench",
    "all_gather",
    "all_to_all",
    "all_reduce",
    "--sizes",
    "256K,4M",
    "--dtype",
    "bf16",
    "--iters",
    "5",
];

const ROWS: &[Row] = &[
    row("shared memory", &[1, 2, 3, 4, 5, 8], &[SHM], "links shm"),
    Row {
        command: BUFFERS,
        ..row("shared memory, buffers that peers read", &[2, 3, 4], &[SHM], "shared buffers")
    },
    bench("shared memory, lanes", &[2, 3], &[SHM, ("COMITY_LANES", "3")], "MiB in lanes"),
    bench("shared memory, messages that peers read", &[2, 3], &[SHM, ("COMITY_PULL", "65536")], IN_PLACE),
    Row {
        command: EXCHANGES,
        ..row("shared memory, exchanges that the system copies", &[2, 3], &[SHM], IN_PLACE)
    },
    row("Unix sockets", &[2, 3], &[("COMITY_LINKS", "unix")], "links unix"),
    row("TCP", &[1, 2, 3, 4, 5, 8], &[TCP], "links tcp"),
    row("TCP, a connection each way", &[3], &[TCP, ("COMITY_CONNECTIONS", "2")], "links tcp"),
    row("TCP, threads that send", &[2, 3], &[TCP, ("COMITY_SEND_THREADS", "1")], "links tcp"),
    row(
        "TCP, threads that send, encrypted",
        &[3],
        &[TCP, ("COMITY_SEND_THREADS", "2"), ("COMITY_SECURE", "data")],
        "links tcp",
    ),
    row("TCP, 3 connections", &[3], &[TCP, ("COMITY_CONNECTIONS", "3")], "links tcp"),
    row("TCP, encrypted", &[2], &[TCP, ("COMITY_SECURE", "data")], "links tcp"),
    Row { per_host: Some(2), ..row("two to a host", &[3, 5, 8], &[], "links shm and tcp") },
    Row {
        per_host: Some(2),
        ..bench("two to a host, lanes", &[4], &[("COMITY_LANES", "3")], "MiB in lanes")
    },
    Row {
        per_host: Some(2),
        ..row("plans by measured costs", &[4], &[("COMITY_COSTS", "measure")], "links shm and tcp")
    },
    mpi("Open MPI", &[2], OPENMPI),
    Row { command: SOME, ..mpi("Open MPI, some of it", &[4], OPENMPI) },
    mpi("MPICH", &[2], MPICH),
    Row { command: SOME, ..mpi("MPICH, some of it", &[4], MPICH) },
    Row {
        command: &["check", "--quick", "--device", "cuda"],
        ..row(
            "NCCL's stand-in",
            &[2, 4],
            &[("COMITY_NCCL", "libsoftnccl.so"), ("COMITY_CUDA", "libsoftnccl.so")],
            "ranks on 1 host",
        )
    },
];

pub(super) fn run(scope: &Scope) -> Outcome {
    let all = ROWS.iter().flat_map(|row| row.ranks.iter().map(move |n| (row, *n)));
    let jobs = scope.share(all.filter(|(_, n)| scope.deep || *n <= MOST).collect(), HANDS);
    let ran = jobs.into_iter().map(|(row, n)| one(row, n)).collect::<Result<Vec<_>, _>>()?;
    Ok(ran.join("; "))
}

fn one(row: &Row, n: usize) -> Result<String, String> {
    let task = Task::new(comity()).args(["launch", "-n", &n.to_string()]).args(row.launch);
    // An MPI job ends by the launcher of its MPI.
    let task = if row.launch.is_empty() { task.args(["--timeout", &QUICK.to_string()]) } else { task };
    let task = match row.per_host {
        None => task.arg("--"),
        Some(k) => {
            task.args(["--", "sh", "-c", &format!("COMITY_HOST=h$((COMITY_RANK / {k})) exec \"$0\" \"$@\"")])
        }
    };
    let task = task.arg(comity()).args(row.command).limit(QUICK + 30);
    let task = row.vars.iter().fold(task, |task, (name, value)| match value.ends_with(".so") {
        true => task.env(name, built("debug", value)),
        false => task.env(name, value),
    });
    let what = format!("{} on {n}", row.name);
    let is_check = row.command[0] == "check";
    let said = says(&what, task, if is_check { &["all ok"] } else { &[] })?;
    match n == 1 || said.lines().any(|l| l.contains("comity") && l.contains(row.says)) {
        true => Ok(what),
        false => Err(format!("{what}: did not say `{}`:\n{said}", row.says)),
    }
}
