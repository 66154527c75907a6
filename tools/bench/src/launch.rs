//! A launch: the ranks of a contender are started, on this host or in two namespaces of the network, and waited for; the files that
//! they wrote become one line a cell: a call takes as long as on the rank where it took longest.

use super::{
    cell::{Cell, Operation},
    contender::{Contender, Program, Wire},
    machine,
    plan::Launch,
    record::{Distance, Line},
    setup::{Ready, source},
};
use serde_json::Value;
use std::{collections::BTreeSet, ffi::OsStr, fs, net::TcpListener, path::PathBuf, time::Instant};
use tasks::{
    child::Task,
    netns::Hosts,
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
    lines(launch, &texts, Surroundings { took, stolen, distance })
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

/// The interface in either namespace, and a port that nobody uses there.
const CABLE: &str = "cable";
const PORT: u16 = 29_500;
const HOSTS: [&str; 2] = ["a", "b"];

/// Namespaces in which the ranks of a launch run.
#[derive(Debug)]
enum Spaces {
    /// All on this host.
    Here,
    /// A rank in each of two.
    Two(Hosts),
}

impl Spaces {
    fn new(wire: Wire) -> Result<Self, String> {
        match wire {
            Wire::Namespaces => Hosts::pair("bench", HOSTS, "10.79.0").map(Self::Two),
            _ => Ok(Self::Here),
        }
    }

    /// A rank's program, where it belongs.
    fn task(&self, rank: usize, program: impl AsRef<OsStr>) -> Task {
        match self {
            Self::Here => Task::new(program),
            Self::Two(hosts) => hosts.within(HOSTS[rank]).arg(program),
        }
    }

    fn address(&self, rank: usize) -> String {
        match self {
            Self::Here => "127.0.0.1".into(),
            Self::Two(_) => format!("10.79.0.{}", rank + 1),
        }
    }

    fn interface(&self) -> &'static str {
        match self {
            Self::Here => "lo",
            Self::Two(_) => CABLE,
        }
    }

    /// Ports that nobody uses now, all different.
    fn ports(&self, count: usize) -> Result<Vec<u16>, String> {
        if let Self::Two(_) = self {
            return Ok((PORT..).take(count).collect());
        }
        let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>();
        let ports = listeners.and_then(|all| all.iter().map(|l| l.local_addr().map(|a| a.port())).collect());
        ports.map_err(|e| format!("no free port: {e}"))
    }
}

/// Others may use so much of a core during a cell, and so many seconds besides: /proc/stat counts in ticks.
const FOREIGN: f64 = 0.12;
const TICKS: f64 = 0.02;
/// The hypervisor may keep so much of a core.
const STOLEN: f64 = 0.05;

/// Facts about a launch beside its ranks' files.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    /// Seconds of the whole command.
    took: f64,
    /// Seconds that the hypervisor kept meanwhile.
    stolen: f64,
    distance: Distance,
}

/// The lines of a launch, from a text for each rank.
///
/// # Errors
/// The ranks' lines do not fit together.
fn lines(launch: &Launch<'_>, texts: &[String], around: Surroundings) -> Result<Vec<Line>, String> {
    let key = launch.key();
    let mut ranks = Vec::new();
    for text in texts {
        let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
        ranks.push(lines.map_err(|e| format!("{key}: a rank wrote a line that is no JSON: {e}"))?);
    }
    let rows = ranks.first().map_or(0, Vec::len);
    if rows == 0 || ranks.iter().any(|r| r.len() != rows) {
        return Err(format!(
            "{key}: the ranks wrote {:?} lines",
            ranks.iter().map(Vec::len).collect::<Vec<_>>()
        ));
    }
    let loops: f64 = ranks[0].iter().map(|v| v["wall_ns"].as_f64().unwrap_or(0.0) * 1e-9).sum();
    let start = (around.took - loops).max(0.0);
    let mut lines = Vec::new();
    let mut seen = BTreeSet::new();
    for row in 0..rows {
        let each: Vec<&Value> = ranks.iter().map(|r| &r[row]).collect();
        let mut line = merged(launch, &each, around)?;
        line.start_s = Some(start);
        if seen.insert(line.cell) {
            lines.push(line);
        }
    }
    Ok(lines)
}

fn merged(launch: &Launch<'_>, each: &[&Value], around: Surroundings) -> Result<Line, String> {
    let bad = |what: &str| format!("{}: {what} in {}", launch.key(), each[0]["op"]);
    let op = each[0]["op"].as_str().and_then(Operation::from_name).ok_or_else(|| bad("no operation"))?;
    let asked = each[0]["bytes"].as_u64().ok_or_else(|| bad("no bytes"))?;
    let bytes = if op == Operation::Barrier { 0 } else { asked };
    let cell = Cell { op, element: launch.part.element, ranks: launch.part.ranks, bytes };
    let sum = |k: &str| each.iter().filter_map(|v| v[k].as_f64()).sum::<f64>();
    let most = |k: &str| each.iter().filter_map(|v| v[k].as_f64()).fold(0.0, f64::max);
    let times = slowest(each).ok_or_else(|| bad("no times"))?;
    let at = |part: f64| times[((times.len() as f64 * part) as usize).min(times.len() - 1)] / 1e3;
    let calls = each[0]["iters"].as_u64().unwrap_or(0);
    let wall = most("wall_ns") * 1e-9;
    let cpu = sum("user_s") + sum("sys_s");
    let foreign = (most("busy_s") - cpu).max(0.0);
    let gigabytes = calls as f64 * bytes as f64 / 1e9;
    Ok(Line {
        who: launch.who,
        cell,
        round: launch.round,
        ok: each.iter().all(|v| v["ok"] == true),
        calls,
        median: at(0.5),
        min: Some(at(0.0)),
        p99: Some(at(0.99)),
        cpu_per_gb: (gigabytes > 0.0).then(|| cpu / gigabytes),
        peak_kib: Some(most("peak_kib") as u64).filter(|k| *k > 0),
        start_s: None,
        foreign: if wall > 0.0 { foreign / wall } else { 0.0 },
        disturbed: foreign > FOREIGN * wall + TICKS || around.stolen > STOLEN * around.took,
        distance: around.distance,
    })
}

/// Times of the slowest rank in each sample, sorted.
fn slowest(each: &[&Value]) -> Option<Vec<f64>> {
    let times: Option<Vec<&Vec<Value>>> = each.iter().map(|v| v["times_ns"].as_array()).collect();
    let times = times?;
    let samples = times.iter().map(|t| t.len()).min().filter(|n| *n > 0)?;
    let of = |i: usize| times.iter().filter_map(|t| t[i].as_f64()).fold(0.0, f64::max);
    let mut slowest: Vec<f64> = (0..samples).map(of).collect();
    slowest.sort_by(f64::total_cmp);
    Some(slowest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::sample;
    use serde_json::json;

    #[test]
    fn every_contender_can_be_typed_and_started() {
        let ready =
            Ready { comity: "comity".into(), python: "python".into(), own: "own".into(), ..Ready::default() };
        let scratch = Scratch::new("bench-test").unwrap();
        let parts = sample();
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

    #[test]
    fn ports_differ() {
        let mut ports = Spaces::Here.ports(8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
        assert_eq!(Spaces::Here.task(0, "a").to_string(), "a");
    }

    #[test]
    fn namespaces_go_with_the_value() {
        if !rustix::process::geteuid().is_root() {
            return assert!(Spaces::new(Wire::Namespaces).is_err());
        }
        let spaces = Spaces::new(Wire::Namespaces).unwrap();
        let Spaces::Two(hosts) = &spaces else { panic!("none were made") };
        let ping = format!("import socket; socket.create_server(('{}', 0)).close()", spaces.address(1));
        spaces.task(1, "python3").args(["-c", &ping]).run().unwrap();
        let names = HOSTS.map(|host| hosts.name(host));
        drop(spaces);
        let there = Task::new("ip").args(["netns", "list"]).run().unwrap();
        assert!(names.iter().all(|n| !there.contains(n)), "{there}");
    }

    fn rank(op: &str, bytes: u64, busy: f64, times: [u64; 4]) -> String {
        json!({"op": op, "bytes": bytes, "n": 2, "ok": true, "iters": 4, "batch": 1, "busy_s": busy, "wall_ns": 1e9,
            "user_s": 0.5, "sys_s": 0.25, "peak_kib": 100, "times_ns": times})
        .to_string()
    }

    fn merge(texts: &[String], stolen: f64) -> Result<Vec<Line>, String> {
        let parts = sample();
        let launch = Launch { part: &parts[0], round: 1, who: Contender::from_name("comity").unwrap() };
        lines(&launch, texts, Surroundings { took: 3.5, stolen, distance: Distance::Near })
    }

    #[test]
    fn the_slowest_rank_counts() {
        let texts = [
            rank("all_reduce", 1 << 30, 1.5, [1000, 4000, 2000, 3000]),
            rank("all_reduce", 1 << 30, 1.5, [2000, 1000, 9000, 3000]),
        ];
        let lines = merge(&texts, 0.0).unwrap();
        let line = &lines[0];
        assert_eq!((line.min, line.median, line.p99), (Some(2.0), 4.0, Some(9.0)));
        assert_eq!((line.cell.bytes, line.calls, line.peak_kib), (1 << 30, 4, Some(100)));
        assert!((line.cpu_per_gb.unwrap() - 1.5 / 4.295).abs() < 1e-3 && line.start_s == Some(2.5));
        assert!(!line.disturbed && line.foreign == 0.0 && line.round == 1);
    }

    #[test]
    fn a_cell_is_disturbed_by_others_and_by_the_hypervisor() {
        let of = |busy| vec![rank("barrier", 8, busy, [1; 4]), rank("barrier", 8, busy, [1; 4])];
        let line = &merge(&of(1.6), 0.0).unwrap()[0];
        assert!(!line.disturbed && (line.foreign - 0.1).abs() < 1e-9 && line.cell.bytes == 0);
        assert!(merge(&of(1.7), 0.0).unwrap()[0].disturbed);
        assert!(merge(&of(1.5), 0.3).unwrap()[0].disturbed);
    }

    #[test]
    fn ranks_that_do_not_fit_together_are_an_error() {
        let one = rank("barrier", 8, 1.0, [1; 4]);
        assert!(merge(&[one.clone(), String::new()], 0.0).unwrap_err().contains("[1, 0]"));
        assert!(merge(&[], 0.0).is_err() && merge(&["{".into()], 0.0).is_err());
        // A barrier of two sizes is one cell.
        assert_eq!(merge(&[format!("{one}\n{one}")], 0.0).unwrap().len(), 1);
    }
}
