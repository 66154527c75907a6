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
    /// Check of the row's requirements; the variables, or why it cannot run here.
    vars: fn() -> Result<Vars, String>,
    /// Ranks go to hosts of this many by name, which share memory with no other.
    per_host: Option<usize>,
    /// Words of the first line, for two ranks or more.
    says: &'static str,
    /// A variant of another row: a gate runs every second of these, and the commit says which.
    is_variant: bool,
}

const ROW: Row = Row {
    name: "",
    ranks: &[],
    launch: &[],
    check: &[],
    bench: &[],
    vars: || Ok(Vec::new()),
    per_host: None,
    says: "",
    is_variant: false,
};

/// Ranks of a job in a gate: with 8 on 2 cores it takes a minute.
const MOST: usize = 5;

/// MPI's ranks spin while they wait, so four of them are slow on two cores.
const FEW: &[&str] = &[
    "--ops",
    "all_reduce,all_gather,reduce_scatter,all_to_all,send,split,spawn",
    "--dtypes",
    "bf16,f32,bool,c64",
];

const ROWS: &[Row] = &[
    Row {
        name: "shared memory",
        ranks: &[1, 2, 3, 4, 5, 8],
        vars: || Ok(vec![("COMITY_LINKS", "shm".into())]),
        says: "links shm",
        ..ROW
    },
    Row {
        name: "shared memory, buffers that peers read",
        ranks: &[2, 3, 4],
        bench: &["all", "--shared-buffers", "--sizes", "256K,4M", "--dtype", "bf16", "--iters", "5"],
        vars: || Ok(vec![("COMITY_LINKS", "shm".into())]),
        says: "shared buffers",
        ..ROW
    },
    Row {
        name: "shared memory, lanes",
        ranks: &[2, 3],
        bench: &["all", "--sizes", "256K,4M", "--dtype", "bf16", "--iters", "5"],
        vars: || Ok(vec![("COMITY_LINKS", "shm".into()), ("COMITY_LANES", "3".into())]),
        says: "MiB in lanes",
        ..ROW
    },
    Row {
        name: "shared memory, messages that peers read in the sender's memory",
        ranks: &[2, 3],
        bench: &["all", "--sizes", "256K,4M", "--dtype", "bf16", "--iters", "5"],
        vars: || Ok(vec![("COMITY_LINKS", "shm".into()), ("COMITY_PULL", "65536".into())]),
        says: "where they lay in the memory of other ranks",
        ..ROW
    },
    Row {
        name: "shared memory, exchanges that the system copies",
        ranks: &[2, 3],
        bench: &[
            "all_gather",
            "all_to_all",
            "all_reduce",
            "--sizes",
            "256K,4M",
            "--dtype",
            "bf16",
            "--iters",
            "5",
        ],
        vars: || Ok(vec![("COMITY_LINKS", "shm".into())]),
        says: "where they lay in the memory of other ranks",
        ..ROW
    },
    Row {
        name: "Unix sockets",
        ranks: &[2, 3],
        vars: || Ok(vec![("COMITY_LINKS", "unix".into())]),
        says: "links unix",
        ..ROW
    },
    Row {
        name: "TCP",
        ranks: &[1, 2, 3, 4, 5, 8],
        vars: || Ok(vec![("COMITY_LINKS", "tcp".into())]),
        says: "links tcp",
        ..ROW
    },
    Row {
        name: "TCP, a connection each way",
        ranks: &[3],
        vars: || Ok(vec![("COMITY_LINKS", "tcp".into()), ("COMITY_CONNECTIONS", "2".into())]),
        says: "links tcp",
        is_variant: true,
        ..ROW
    },
    Row {
        name: "TCP, threads that send",
        ranks: &[2, 3],
        vars: || Ok(vec![("COMITY_LINKS", "tcp".into()), ("COMITY_SEND_THREADS", "1".into())]),
        says: "links tcp",
        is_variant: true,
        ..ROW
    },
    Row {
        name: "TCP, threads that send, encrypted",
        ranks: &[3],
        vars: || {
            Ok(vec![
                ("COMITY_LINKS", "tcp".into()),
                ("COMITY_SEND_THREADS", "2".into()),
                ("COMITY_SECURE", "data".into()),
            ])
        },
        says: "links tcp",
        is_variant: true,
        ..ROW
    },
    Row {
        name: "TCP, 3 connections",
        ranks: &[3],
        vars: || Ok(vec![("COMITY_LINKS", "tcp".into()), ("COMITY_CONNECTIONS", "3".into())]),
        says: "links tcp",
        is_variant: true,
        ..ROW
    },
    Row {
        name: "TCP, encrypted",
        ranks: &[2],
        vars: || Ok(vec![("COMITY_LINKS", "tcp".into()), ("COMITY_SECURE", "data".into())]),
        says: "links tcp",
        is_variant: true,
        ..ROW
    },
    Row { name: "two to a host", ranks: &[3, 5, 8], per_host: Some(2), says: "links shm and tcp", ..ROW },
    Row {
        name: "plans by measured costs",
        ranks: &[4],
        per_host: Some(2),
        vars: || Ok(vec![("COMITY_COSTS", "measure".into())]),
        says: "links shm and tcp",
        is_variant: true,
        ..ROW
    },
    Row {
        name: "RDMA in software, RC",
        ranks: &[2, 4],
        vars: || softverbs("rc"),
        says: "links rdma",
        is_variant: true,
        ..ROW
    },
    Row {
        name: "RDMA in software, UC",
        ranks: &[3],
        vars: || softverbs("uc"),
        says: "links rdma",
        is_variant: true,
        ..ROW
    },
    Row {
        name: "Open MPI",
        ranks: &[2],
        launch: &["--backend", "mpi"],
        vars: open_mpi,
        says: "links mpi",
        ..ROW
    },
    Row {
        name: "Open MPI, some of it",
        ranks: &[4],
        launch: &["--backend", "mpi"],
        check: FEW,
        vars: open_mpi,
        says: "links mpi",
        is_variant: true,
        ..ROW
    },
    Row { name: "MPICH", ranks: &[2], launch: &["--backend", "mpi"], vars: mpich, says: "links mpi", ..ROW },
    Row {
        name: "MPICH, some of it",
        ranks: &[4],
        launch: &["--backend", "mpi"],
        check: FEW,
        vars: mpich,
        says: "links mpi",
        is_variant: true,
        ..ROW
    },
    Row {
        name: "NCCL's stand-in",
        ranks: &[2, 4],
        check: &["--device", "cuda"],
        vars: softnccl,
        says: "ranks on 1 host",
        ..ROW
    },
];

fn open_mpi() -> Result<Vars, String> {
    mpi("mpirun.openmpi")
}

fn mpich() -> Result<Vars, String> {
    mpi("mpiexec.mpich")
}

fn mpi(launcher: &str) -> Result<Vars, String> {
    match program(launcher) {
        Some(_) => Ok(vec![("COMITY_MPIRUN", launcher.into())]),
        None => Err(format!("{launcher} is not installed")),
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

/// The jobs of a row that a run takes: all of them, or at most one that the commit chooses.
fn jobs(row: &'static Row, index: usize, scope: &Scope) -> &'static [usize] {
    if scope.deep {
        return row.ranks;
    }
    // Other digits than those that choose the ranks.
    if row.is_variant && (scope.seed >> 8).wrapping_add(index as u64) % 2 == 1 {
        return &[];
    }
    let few = row.ranks.partition_point(|n| *n <= MOST).max(1);
    let chosen = (scope.seed as usize).wrapping_add(index) % few;
    &row.ranks[chosen..=chosen]
}

pub(super) fn run(scope: &Scope) -> Outcome {
    let comity = comity()?;
    let mut ran = Vec::new();
    let mut lacking = BTreeMap::new();
    let taken = ROWS.iter().enumerate().map(|(index, row)| (row, jobs(row, index, scope)));
    for (row, jobs) in taken.filter(|(_, jobs)| !jobs.is_empty()) {
        match (row.vars)() {
            Ok(vars) => {
                for &n in jobs {
                    one(row, n, &vars, &comity)?;
                }
                ran.push(format!("{} on {}", row.name, list(jobs)));
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

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs_somewhere_and_says_how() {
        let mut names: Vec<_> = ROWS.iter().map(|r| r.name).collect();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        assert!(ROWS.iter().all(|r| !r.ranks.is_empty() && !r.says.is_empty()));
        let run = |seed| jobs(&ROWS[0], 0, &Scope::gate(Some(seed)));
        assert_eq!(run(7), run(7));
        let taken = |n: &&usize| (0..5).any(|seed| run(seed) == [**n]);
        assert!(ROWS[0].ranks.iter().filter(taken).eq(&[1, 2, 3, 4, 5]));
        assert_eq!(jobs(&ROWS[0], 0, &Scope::deep(1.0)), ROWS[0].ranks);
        let runs =
            |seed| ROWS.iter().enumerate().map(move |(i, r)| jobs(r, i, &Scope::gate(Some(seed))).len());
        assert!(
            runs(7)
                .zip(runs(7 + 256))
                .zip(ROWS)
                .all(|((a, b), row)| a + b == if row.is_variant { 1 } else { 2 })
        );
    }
}
