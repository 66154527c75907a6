//! A launch: the ranks of a contender are started, waited for, and the files that they wrote are read.

use super::{
    contender::{Contender, Program, Wire},
    line::Line,
    machine,
    merge::{self, Surroundings},
    plan::Launch,
    setup::{Ready, source},
    spaces::Spaces,
};
use std::{fs, path::PathBuf, time::Instant};
use tasks::{
    child::Task,
    place::{Scratch, write},
};

/// The name of the ranks' files.
const TAG: &str = "samples";

/// Start it and wait for it. What it leaves behind goes with `Scratch`.
///
/// # Errors
/// A rank failed, took too long, or wrote what makes no sense.
pub(crate) fn carry_out(launch: &Launch<'_>, ready: &Ready) -> Result<Vec<Line>, String> {
    let cores = machine::cores().len();
    let scratch = Scratch::new("bench")?;
    let tag = scratch.join(TAG);
    let spaces = Spaces::new(launch.who.wire)?;
    let before = machine::flag_ns();
    let begun = Instant::now();
    let stolen = machine::stolen();
    // Dropped, and so ended, where another one failed.
    let limit = launch.limit(cores);
    let ranks = tasks(launch, ready, (&scratch, &spaces), cores)?;
    let running = ranks.into_iter().map(|t| t.limit(limit).start()).collect::<Result<Vec<_>, _>>()?;
    for rank in running {
        rank.wait().map_err(|e| format!("{}: {e}", launch.key()))?;
    }
    let took = begun.elapsed().as_secs_f64();
    let stolen = machine::stolen() - stolen;
    let distance = machine::distance(before, machine::flag_ns());
    let files = if launch.who.is_limit() { 1 } else { launch.part.ranks };
    let read = |rank: usize| {
        let file = PathBuf::from(format!("{}.r{rank}.jsonl", tag.display()));
        fs::read_to_string(&file).map_err(|e| format!("{}: rank {rank} wrote nothing: {e}", launch.key()))
    };
    let texts = (0..files).map(read).collect::<Result<Vec<_>, _>>()?;
    merge::lines(launch, &texts, Surroundings { took, stolen, distance })
}

/// Arguments of a program: operations, sizes, seconds.
struct Told {
    ops: Vec<&'static str>,
    sizes: String,
    budget: String,
    tag: PathBuf,
}

/// The processes that this program starts for it.
fn tasks(
    launch: &Launch<'_>,
    ready: &Ready,
    (scratch, spaces): (&Scratch, &Spaces),
    cores: usize,
) -> Result<Vec<Task>, String> {
    let who = launch.who;
    let part = launch.part;
    let sizes: Vec<String> = part.sizes.iter().map(u64::to_string).collect();
    let told = Told {
        ops: part.of(who).iter().map(|op| op.name()).collect(),
        sizes: sizes.join(","),
        budget: part.budget.to_string(),
        tag: scratch.join(TAG),
    };
    let n = part.ranks.to_string();
    let element = part.element.name();
    let tasks = match who.program {
        Program::Limit(kind) => {
            let words = ["bench-limit", kind, &n, &told.ops.join(","), &told.sizes, &told.budget];
            vec![Task::new(&ready.own).args(words).args([&told.tag])]
        }
        Program::Comity => {
            let bench = |task: Task| {
                let task = task.args(["bench"]).args(&told.ops).args(["--sizes", &told.sizes]);
                let task = task.args(["--dtype", element, "--budget", &told.budget]).args(who.flags);
                task.args(["--raw"]).args([&told.tag])
            };
            if let Spaces::Two(_) = spaces {
                (0..part.ranks).map(|r| by_hand(bench(spaces.task(r, &ready.comity)), r, spaces)).collect()
            } else {
                let task = Task::new(&ready.comity).args(["launch", "-n", &n, "--"]).args([&ready.comity]);
                vec![bench(task)]
            }
        }
        Program::Mpi(name) => {
            let over: &[&str] = match name {
                "openmpi" if part.ranks > cores => {
                    &["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
                }
                "openmpi" => &["--allow-run-as-root"],
                _ => &[],
            };
            let task = Task::new(format!("mpirun.{name}")).args(over).args(who.flags).args(["-n", &n]);
            let task =
                task.args([ready.mpi_program(name)]).args([&told.ops.join(","), &told.sizes, &told.budget]);
            vec![task.args([&told.tag])]
        }
        Program::Python(library) => {
            let own = [library, &told.ops.join(","), &told.sizes, &told.budget, element];
            let words = |task: Task| {
                let task = task.args([source("peers.py")]).args(own).args([&told.tag]);
                task.env("OMP_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1")
            };
            python(launch, ready, (scratch, spaces), words)?
        }
    };
    Ok(tasks.into_iter().map(|t| who.env.iter().fold(t, |t, (name, value)| t.env(name, value))).collect())
}

/// The ranks in Python: under `comity launch`, or each by itself as its library wants it. `mlx.launch` and `torchrun` would use
/// cores beside the ranks.
fn python(
    launch: &Launch<'_>,
    ready: &Ready,
    (scratch, spaces): (&Scratch, &Spaces),
    words: impl Fn(Task) -> Task,
) -> Result<Vec<Task>, String> {
    let ranks = launch.part.ranks;
    match launch.who.program {
        Program::Python("gloo") => {
            let port = spaces.ports(1)?[0].to_string();
            let rank = |r: usize| {
                let task = words(spaces.task(r, &ready.python)).env("RANK", r.to_string());
                let task = task.env("WORLD_SIZE", ranks.to_string()).env("MASTER_ADDR", spaces.address(0));
                task.env("MASTER_PORT", &port).env("GLOO_SOCKET_IFNAME", spaces.interface())
            };
            Ok((0..ranks).map(rank).collect())
        }
        Program::Python("mlx") => {
            let hosts = scratch.join("hosts.json");
            let of = |(r, port): (usize, &u16)| format!("[\"{}:{port}\"]", spaces.address(r));
            let list: Vec<String> = spaces.ports(ranks)?.iter().enumerate().map(of).collect();
            write(&hosts, format!("[{}]", list.join(",")))?;
            let rank = |r: usize| words(spaces.task(r, &ready.python)).env("MLX_RANK", r.to_string());
            Ok((0..ranks).map(|r| rank(r).env("MLX_HOSTFILE", &hosts)).collect())
        }
        _ => {
            let task = Task::new(&ready.comity).args(["launch", "-n", &ranks.to_string(), "--"]);
            Ok(vec![words(task.args([&ready.python]))])
        }
    }
}

/// A rank of Comity that no launcher starts, on a host of its own. Nobody else is in these namespaces.
fn by_hand(task: Task, rank: usize, spaces: &Spaces) -> Task {
    let task = task.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("COMITY_INSECURE", "1");
    let task = task.env("MASTER_ADDR", spaces.address(0)).env("MASTER_PORT", "29500");
    task.env("COMITY_HOST", format!("host-{rank}"))
}

/// Command by which a user starts it, for the page.
pub(crate) fn typed(who: &Contender) -> String {
    let env: String = who.env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    let flags: String = who.flags.iter().map(|f| format!(" {f}")).collect();
    match (who.program, who.wire) {
        (Program::Limit(kind), _) => format!("threads of this tool: {kind}"),
        (Program::Comity, Wire::Namespaces) => format!("{env}comity bench, a rank in each namespace"),
        (Program::Comity, _) => format!("{env}comity launch -n N -- comity bench{flags}"),
        (Program::Mpi(name), _) => format!("{env}mpirun.{name}{flags} -n N mpi"),
        (Program::Python(library @ ("gloo" | "mlx")), _) => format!("N times: python peers.py {library}"),
        (Program::Python(library), _) => format!("{env}comity launch -n N -- python peers.py {library}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    #[test]
    fn every_contender_can_be_typed_and_started() {
        let ready =
            Ready { comity: "comity".into(), python: "python".into(), own: "own".into(), ..Ready::default() };
        let scratch = Scratch::new("bench-test").unwrap();
        let parts = plan::sample();
        for part in &parts {
            for who in part.contenders(&crate::contender::Peer::ALL) {
                let launch = Launch { part, round: 0, who };
                let tasks = tasks(&launch, &ready, (&scratch, &Spaces::Here), 2).unwrap();
                let alone = matches!(who.program, Program::Python("gloo" | "mlx"));
                assert_eq!(tasks.len(), if alone { part.ranks } else { 1 }, "{}", launch.key());
                let shown = tasks[0].to_string();
                assert!(shown.contains(&part.sizes[0].to_string()) && !typed(who).is_empty(), "{shown}");
                let crowded = part.ranks > 2 && who.name.starts_with("openmpi");
                assert_eq!(shown.contains("--oversubscribe"), crowded, "{shown}");
            }
        }
    }
}
