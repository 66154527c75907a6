//! Suite over every way that data can travel: `comity check`, a row for each link and backend.
//!
//! A row says how many ranks, by which variables and flags the ranks take that way, and what rank 0's first line then has
//! to say: nothing may fall back to another way in silence. A new link or backend is a new row here.

use super::{
    Done, Outcome, missing,
    processes::{QUICK, comity, timed},
    scope::Scope,
};
use std::{collections::BTreeMap, path::Path};
use tasks::{
    child::Task,
    place::{built, program},
};

/// Variables for the ranks.
type Vars = Vec<(&'static str, String)>;

#[derive(Debug)]
struct Row {
    name: &'static str,
    /// A job for each of these numbers of ranks.
    ranks: &'static [usize],
    /// Flags of `comity launch`; `check` has those of `comity check`.
    launch: &'static [&'static str],
    check: &'static [&'static str],
    /// Flags of `comity bench`, which runs in place of `comity check` then: it compares one call of each row.
    bench: &'static [&'static str],
    /// Variables of the ranks.
    vars: &'static [(&'static str, &'static str)],
    /// Check of the row's requirements; further variables, or why it cannot run here.
    needs: fn() -> Result<Vars, String>,
    /// Ranks go to hosts of this many by name, which share memory with no other.
    per_host: Option<usize>,
    /// Words of the first line, for two ranks or more.
    says: &'static str,
}

/// A row of `comity check`: its name, ranks, variables, and the words of its first line.
const fn row(
    name: &'static str,
    ranks: &'static [usize],
    vars: &'static [(&'static str, &'static str)],
    says: &'static str,
) -> Row {
    let needs: fn() -> Result<Vars, String> = || Ok(Vec::new());
    Row { name, ranks, launch: &[], check: &[], bench: &[], vars, needs, per_host: None, says }
}

/// A row of an MPI.
const fn mpi(name: &'static str, ranks: &'static [usize], needs: fn() -> Result<Vars, String>) -> Row {
    Row { launch: &["--backend", "mpi"], needs, ..row(name, ranks, &[], "links mpi") }
}

const SHM: (&str, &str) = ("COMITY_LINKS", "shm");
const TCP: (&str, &str) = ("COMITY_LINKS", "tcp");
/// Flags of `comity bench` for long messages.
const LONG: &[&str] = &["all", "--sizes", "256K,4M", "--dtype", "bf16", "--iters", "5"];
const BUFFERS: &[&str] =
    &["all", "--shared-buffers", "--sizes", "256K,4M", "--dtype", "bf16", "--iters", "5"];
const EXCHANGES: &[&str] =
    &["all_gather", "all_to_all", "all_reduce", "--sizes", "256K,4M", "--dtype", "bf16", "--iters", "5"];

/// Most ranks of a job in a gate: with 8 on 2 cores it takes a minute.
const MOST: usize = 5;
/// Number of hands that share a gate's jobs.
const HANDS: u64 = 2;

/// MPI's ranks spin while they wait, so four of them are slow on two cores.
const FEW: &[&str] = &[
    "--ops",
    "all_reduce,all_gather,reduce_scatter,all_to_all,send,split,spawn",
    "--dtypes",
    "bf16,f32,bool,c64",
];

const ROWS: &[Row] = &[
    row("shared memory", &[1, 2, 3, 4, 5, 8], &[SHM], "links shm"),
    Row {
        bench: BUFFERS,
        ..row("shared memory, buffers that peers read", &[2, 3, 4], &[SHM], "shared buffers")
    },
    Row {
        bench: LONG,
        ..row("shared memory, lanes", &[2, 3], &[SHM, ("COMITY_LANES", "3")], "MiB in lanes")
    },
    Row {
        bench: LONG,
        ..row(
            "shared memory, messages that peers read in the sender's memory",
            &[2, 3],
            &[SHM, ("COMITY_PULL", "65536")],
            "where they lay in the memory of other ranks",
        )
    },
    Row {
        bench: EXCHANGES,
        ..row(
            "shared memory, exchanges that the system copies",
            &[2, 3],
            &[SHM],
            "where they lay in the memory of other ranks",
        )
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
        bench: LONG,
        per_host: Some(2),
        ..row("two to a host, lanes", &[4], &[("COMITY_LANES", "3")], "MiB in lanes")
    },
    Row {
        per_host: Some(2),
        ..row("plans by measured costs", &[4], &[("COMITY_COSTS", "measure")], "links shm and tcp")
    },
    Row { needs: || softverbs("rc"), ..row("RDMA in software, RC", &[2, 4], &[], "links rdma") },
    Row { needs: || softverbs("uc"), ..row("RDMA in software, UC", &[3], &[], "links rdma") },
    mpi("Open MPI", &[2], open_mpi),
    Row { check: FEW, ..mpi("Open MPI, some of it", &[4], open_mpi) },
    mpi("MPICH", &[2], mpich),
    Row { check: FEW, ..mpi("MPICH, some of it", &[4], mpich) },
    Row {
        check: &["--device", "cuda"],
        needs: softnccl,
        ..row("NCCL's stand-in", &[2, 4], &[], "ranks on 1 host")
    },
];

fn open_mpi() -> Result<Vars, String> {
    launcher("mpirun.openmpi")
}

fn mpich() -> Result<Vars, String> {
    launcher("mpiexec.mpich")
}

fn launcher(name: &str) -> Result<Vars, String> {
    match program(name) {
        Some(_) => Ok(vec![("COMITY_MPIRUN", name.into())]),
        None => Err(format!("{name} is not installed")),
    }
}

/// The software RDMA device, with this service.
fn softverbs(service: &str) -> Result<Vars, String> {
    if !cfg!(target_os = "linux") {
        return Err("the software RDMA device is for Linux".into());
    }
    let library = built("debug", "libsoftverbs.so").display().to_string();
    Ok(vec![
        ("COMITY_VERBS", library),
        ("COMITY_RDMA", service.into()),
        ("COMITY_LINKS", "rdma".into()),
        ("SOFTVERBS_DEVICES", "soft0=127.0.0.1,soft1=127.0.0.2,soft2=127.0.0.3".into()),
    ])
}

/// The library that stands in for NCCL and the driver.
fn softnccl() -> Result<Vars, String> {
    if !cfg!(target_os = "linux") {
        return Err("NCCL's stand-in is for Linux".into());
    }
    let library = built("debug", "libsoftnccl.so").display().to_string();
    Ok(vec![("COMITY_NCCL", library.clone()), ("COMITY_CUDA", library)])
}

pub(super) fn run(scope: &Scope) -> Outcome {
    let comity = comity()?;
    let all = ROWS.iter().flat_map(|row| row.ranks.iter().map(move |n| (row, *n)));
    let jobs = scope.share(all.filter(|(_, n)| scope.deep || *n <= MOST).collect(), HANDS);
    let mut ran = Vec::new();
    let mut lacking = BTreeMap::new();
    for (row, n) in jobs {
        match (row.needs)() {
            Ok(vars) => {
                one(row, n, &vars, &comity)?;
                ran.push(format!("{} on {n}", row.name));
            }
            Err(why) => {
                println!("{}: not run: {why}", row.name);
                lacking.insert(row.name, why);
            }
        }
    }
    if lacking.is_empty() {
        return Ok(Done::Passed(ran.join("; ")));
    }
    let lacking: Vec<_> = lacking.into_iter().map(|(name, why)| format!("{name} ({why})")).collect();
    missing(format!("right: {}; not run: {}", ran.join("; "), lacking.join("; ")))
}

fn one(row: &Row, n: usize, vars: &Vars, comity: &Path) -> Result<(), String> {
    let seconds = QUICK.to_string();
    let task = Task::new(comity).args(["launch", "-n", &n.to_string()]).args(row.launch);
    // An MPI job ends by the launcher of its MPI.
    let task = if row.launch.is_empty() { task.args(["--timeout", &seconds]) } else { task };
    let task = match row.per_host {
        None => task.args(["--"]).args([comity]),
        Some(k) => {
            let script = format!("COMITY_HOST=h$((COMITY_RANK / {k})) exec \"$0\" \"$@\"");
            task.args(["--", "sh", "-c", &script]).args([comity])
        }
    };
    let task = match row.bench {
        [] => task.args(["check", "--quick"]).args(row.check),
        bench => task.args(["bench"]).args(bench),
    };
    let task = task.limit(QUICK + 30);
    let task = row.vars.iter().fold(task, |t, (name, value)| t.env(name, value));
    let task = vars.iter().fold(task, |t, (name, value)| t.env(name, value));
    let out = timed(&format!("{}, {n} ranks", row.name), task)?;
    if n > 1 && !out.lines().any(|l| l.contains("comity") && l.contains(row.says)) {
        return Err(format!("{}, {n} ranks: did not say `{}`:\n{out}", row.name, row.says));
    }
    if row.bench.is_empty() && !out.contains("all ok") {
        return Err(format!("{}, {n} ranks: did not say that all is right:\n{out}", row.name));
    }
    Ok(())
}
