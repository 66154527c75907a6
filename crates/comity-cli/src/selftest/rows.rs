//! The rows: what each runs, and what has to come of it; or why it is not there.
use crate::child::{self, CommandEnd};
use comity::{BackendKind, Config, LinkKind, tools};
use comity_cluster::commands::typed;
use serde_json::Value;
use std::{
    ffi::{OsStr, OsString},
    process::Command,
    time::{Duration, Instant},
};

#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// The reason where it is not there.
    pub(super) plan: Result<Plan, String>,
}

/// A command, and what has to come of it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The words before the job's limit in seconds, if it takes one, and those behind it.
    words: Vec<OsString>,
    behind: Option<Vec<OsString>>,
    vars: Vec<(&'static str, OsString)>,
    /// Each of them has to stand in its output.
    says: Vec<String>,
    /// It has to end with another code than 0: a rank dies.
    breaks: bool,
}

/// A rank that dies one and a half seconds after it was started, among others that measure for longer.
const DEATH: &str = r#"[ "$COMITY_RANK" = 1 ] || exec "$@"; "$@" & sleep 1.5; kill -9 $!; wait $!"#;

impl Row {
    fn new(name: impl Into<String>, plan: Plan) -> Self {
        Self { name: name.into(), plan: Ok(plan) }
    }

    fn not_there(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), plan: Err(why.into()) }
    }
}

impl Plan {
    fn of(own: &[OsString], words: &[&str]) -> Self {
        let words = own.iter().cloned().chain(words.iter().map(OsString::from)).collect();
        Self { words, says: vec!["all ok".into()], ..Self::default() }
    }

    /// A job of these ranks, with these flags of `comity launch`.
    fn job(own: &[OsString], ranks: usize, flags: &[&str], ranks_run: Vec<OsString>) -> Self {
        let mut plan = Self::of(own, &["launch", "-n", &ranks.to_string()]);
        plan.words.extend(flags.iter().map(OsString::from));
        plan.words.push("--timeout".into());
        plan.behind = Some([vec!["--".into()], ranks_run].concat());
        plan
    }

    /// A job of `comity check`, with these flags of `comity launch`.
    fn check(own: &[OsString], ranks: usize, flags: &[&str]) -> Self {
        let check = own.iter().cloned().chain(["check".into(), "--quick".into()]).collect();
        Self::job(own, ranks, flags, check)
    }

    fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.vars.push((name, value.into()));
        self
    }

    fn says(mut self, words: impl Into<String>) -> Self {
        self.says.push(words.into());
        self
    }

    fn all_words(&self, limit: Duration) -> Vec<OsString> {
        let mut words = self.words.clone();
        if let Some(behind) = &self.behind {
            words.push(limit.as_secs().max(1).to_string().into());
            words.extend(behind.iter().cloned());
        }
        words
    }

    /// The command, whose job ends after `limit`.
    pub(super) fn command(&self, limit: Duration) -> Command {
        let words = self.all_words(limit);
        let mut command =
            Command::new(words.first().map_or_else(|| OsStr::new("comity"), OsString::as_os_str));
        command.args(words.iter().skip(1)).envs(self.vars.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The command as one would type it.
    pub(super) fn shown(&self, limit: Duration) -> String {
        let vars = self.vars.iter().map(|(name, value)| format!("{name}={}", value.to_string_lossy()));
        let words: Vec<_> = self.all_words(limit).iter().map(|w| w.to_string_lossy().into_owned()).collect();
        vars.chain([typed(&words, false)]).collect::<Vec<_>>().join(" ")
    }

    /// The text of its failure, if it failed.
    pub(super) fn lacks(&self, ended: &CommandEnd) -> Option<String> {
        if let Some(limit) = ended.late {
            return Some(format!("it did not end within {} s; {}", limit.as_secs(), last_words(ended)));
        }
        if self.breaks == (ended.code == 0) {
            let what = if self.breaks { "the job ended as if nothing had happened; " } else { "" };
            return Some(format!("{what}{} (exit code {})", last_words(ended), ended.code));
        }
        let text = ended.text();
        let missing = self.says.iter().find(|words| !self.breaks && !text.contains(words.as_str()));
        if let Some(words) = missing {
            return Some(format!("it did not say \"{words}\"; {}", last_words(ended)));
        }
        let named = !self.breaks || ended.err.contains("rank 1");
        (!named).then(|| format!("nobody named rank 1, which was killed; {}", last_words(ended)))
    }
}

/// The line that says most: a comparison that failed; else the last error of a rank, which the launcher's come behind; else the last line of all.
fn last_words(ended: &CommandEnd) -> String {
    let lines = |text: &'_ str| -> Vec<String> {
        let plain = |line: &str| {
            let tag = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
            let untagged = tag.filter(|(rank, _)| rank.bytes().all(|b| b.is_ascii_digit()));
            untagged.map_or(line, |(_, rest)| rest).trim().to_owned()
        };
        text.lines().map(plain).filter(|line| !line.is_empty()).collect()
    };
    let errors = lines(&ended.err);
    let wrong =
        errors.iter().find(|line| line.starts_with("comity selftest:") || line.contains("first difference"));
    let of_rank = errors.iter().rev().find(|line| !line.starts_with("comity launch:"));
    let last = wrong.or(of_rank).or_else(|| errors.last()).cloned().or_else(|| lines(&ended.out).pop());
    last.unwrap_or_else(|| "it said nothing".into())
}

/// Threads, processes, each link, the backends, and a rank that dies.
pub(super) fn of_this_machine(own: &[OsString]) -> Vec<Row> {
    let mut rows = vec![
        Row::new("threads, 3 ranks", Plan::of(own, &["selftest", "--threads", "3"])),
        Row::new("processes, 3 ranks", Plan::check(own, 3, &[])),
    ];
    rows.extend(links(own));
    rows.push(mpi(own));
    rows.push(nccl(own));
    let long = ["bench", "all_reduce", "--sizes", "8", "--budget", "20"].map(OsString::from);
    let calls = own.iter().cloned().chain(long);
    let dies = ["sh", "-c", DEATH, "sh"].map(OsString::from).into_iter().chain(calls).collect();
    let death = Plan { breaks: true, ..Plan::job(own, 3, &[], dies) };
    rows.push(Row::new("a killed rank is named", death));
    rows.push(Row::new("doctor", Plan { says: vec![" 0 failed".into()], ..Plan::of(own, &["doctor"]) }));
    rows
}

/// A job over each link alone.
fn links(own: &[OsString]) -> Vec<Row> {
    let mut rows = Vec::new();
    // What the shell says of links is for jobs; here each is tried.
    let notes = match Config::from_env() {
        Ok(config) => tools::settings(&config).link_notes(),
        Err(e) => return vec![Row { name: "links".into(), plan: Err(format!("settings: {e}")) }],
    };
    for note in notes.iter().filter(|note| note.kind != LinkKind::Local) {
        let kind = note.kind.to_string();
        let name = format!("link {kind}, 2 ranks");
        if !note.works {
            rows.push(Row::not_there(name, note.why.rsplit("; ").next().unwrap_or_default()));
            continue;
        }
        let plan = Plan::check(own, 2, &[]).with("COMITY_LINKS", kind.clone());
        rows.push(Row::new(name, plan.says(format!("links {kind}"))));
    }
    let plan = Plan::check(own, 2, &["--secure", "data"]).with("COMITY_LINKS", "tcp");
    rows.push(Row::new("link tcp, encrypted, 2 ranks", plan.says("links tcp")));
    rows
}

fn mpi(own: &[OsString]) -> Row {
    let name = "MPI, 2 ranks";
    match comity_launch::mpi_launcher() {
        Err(why) => Row::not_there(name, why),
        Ok(_) if !BackendKind::Mpi.is_available() => Row::not_there(name, "MPI's library cannot be loaded"),
        Ok(_) => Row::new(name, Plan::check(own, 2, &["--backend", "mpi"]).says("links mpi")),
    }
}

fn nccl(own: &[OsString]) -> Row {
    let name = "NCCL, CUDA buffers, 2 ranks";
    let devices = tools::cuda::devices().unwrap_or(0);
    match devices {
        0 => Row::not_there(name, "no CUDA device"),
        _ if !BackendKind::Nccl.is_available() => Row::not_there(name, "NCCL's library cannot be loaded"),
        1 => Row::not_there(name, "one CUDA device: NCCL needs one for each rank"),
        _ => {
            let mut plan = Plan::check(own, 2, &["--backend", "nccl"]);
            if let Some(behind) = &mut plan.behind {
                behind.extend(["--device".into(), "cuda".into()]);
            }
            Row::new(name, plan)
        }
    }
}

/// Ranks over ssh, and what is wrong with those hosts.
pub(super) fn of_hosts(own: &[OsString], hosts: Option<&str>) -> Vec<Row> {
    let Some(hosts) = hosts else {
        return vec![Row::not_there("other hosts", "none were named: --hosts a,b")];
    };
    let check = ["comity", "check", "--quick"].map(OsString::from).to_vec();
    let doctor = Plan::of(own, &["doctor", "--hosts", hosts]);
    vec![
        Row::new("hosts, doctor", Plan { says: vec![" 0 failed".into()], ..doctor }),
        Row::new("hosts, a rank on each", Plan::job(own, 1, &["--hosts", hosts], check)),
    ]
}

/// Time for an interpreter to say what it has: it imports torch.
const ASKED: Duration = Duration::from_secs(60);
const MODULE: &str = "comity.selftest";

/// A part of `comity.selftest`: its row, its word, and the reason where this interpreter cannot run it.
type Part = (&'static str, &'static str, fn(&Value) -> Option<String>);

const PARTS: [Part; 6] = [
    ("Python arrays", "array", |_| None),
    ("NumPy", "numpy", |found| lacks(found, "numpy")),
    ("torch, CPU", "torch", |found| lacks(found, "torch")),
    ("torch, Apple GPU", "torch-mps", |found| {
        let seen = found["mps"] == true;
        lacks(found, "torch").or_else(|| (!seen).then(|| "torch sees no Apple GPU".into()))
    }),
    ("torch, CUDA", "torch-cuda", |found| {
        let seen = devices(found) > 0;
        lacks(found, "torch").or_else(|| (!seen).then(|| "torch sees no CUDA device".into()))
    }),
    ("MLX", "mlx", |found| lacks(found, "mlx")),
];

fn devices(found: &Value) -> u64 {
    found["cuda"].as_u64().unwrap_or(0)
}

fn lacks(found: &Value, package: &str) -> Option<String> {
    found[package].is_null().then(|| "not installed in this Python".into())
}

/// A job for each package that the interpreter has.
pub(super) fn of_python(own: &[OsString], python: Option<&OsStr>, until: Instant) -> Vec<Row> {
    let program = python.unwrap_or_else(|| OsStr::new("python3"));
    let found = match found(program, until) {
        Ok(found) => found,
        Err(why) => return vec![Row::not_there("Python: NumPy, torch, MLX", why)],
    };
    let row = |(name, word, lacks): Part| {
        if let Some(why) = lacks(&found) {
            return Row::not_there(name, why);
        }
        let ranks = if word == "torch-cuda" { devices(&found).min(2) as usize } else { 2 };
        let s = if ranks == 1 { "" } else { "s" };
        let words = ["-m", MODULE, word].map(OsString::from);
        let words = [program.to_owned()].into_iter().chain(words).collect();
        Row { name: format!("{name}, {ranks} rank{s}"), plan: Ok(Plan::job(own, ranks, &[], words)) }
    };
    PARTS.into_iter().map(row).collect()
}

/// Packages and devices of the interpreter, as it says.
fn found(program: &OsStr, until: Instant) -> Result<Value, String> {
    let shown = program.to_string_lossy();
    let mut command = Command::new(program);
    command.args(["-m", MODULE]);
    let left = until.saturating_duration_since(Instant::now()).min(ASKED);
    let ended = child::run(command, left, Duration::from_secs(1))
        .map_err(|e| format!("{shown} cannot be started: {e}; --python names another"))?;
    if ended.late.is_some() {
        return Err(format!("{shown} did not say within {} s what it has", left.as_secs()));
    }
    if ended.code != 0 {
        let last = ended.err.trim_end().lines().last().unwrap_or_default();
        return Err(match last.contains("No module named") {
            true => format!("{shown} has no package comity of this version; --python names another"),
            false => format!("{shown} -m {MODULE}: {last}"),
        });
    }
    let line = ended.out.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|e| format!("{shown} -m {MODULE} said {line:?}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ended(code: i32, out: &str, err: &str) -> CommandEnd {
        CommandEnd { code, out: out.into(), err: err.into(), late: None }
    }

    #[test]
    fn a_row_that_fell_back_or_failed_says_so() {
        let own = [OsString::from("comity")];
        let plan = Plan::check(&own, 2, &[]).with("COMITY_LINKS", "shm").says("links shm");
        assert_eq!(
            plan.shown(Duration::from_secs(60)),
            "COMITY_LINKS=shm comity launch -n 2 --timeout 60 -- comity check --quick"
        );
        assert_eq!(plan.lacks(&ended(0, "[0] # 2 ranks, links shm\n[0] # all ok\n", "")), None);
        let fell_back = plan.lacks(&ended(0, "[0] # 2 ranks, links tcp\n[0] # all ok\n", "")).unwrap();
        assert_eq!(fell_back, "it did not say \"links shm\"; [0] # all ok".replace("[0] ", ""));
        let err = "[1] Traceback\n[1] comity check: first difference: x\ncomity launch: rank 1 failed\n";
        assert_eq!(
            plan.lacks(&ended(1, "", err)).unwrap(),
            "comity check: first difference: x (exit code 1)"
        );
        let err = "[0] comity selftest: all_reduce: the result is wrong\n[1] PeerLostError: rank 0 left\n";
        assert!(plan.lacks(&ended(1, "", err)).unwrap().starts_with("comity selftest: all_reduce"));
        let late = CommandEnd { late: Some(Duration::from_secs(60)), ..ended(143, "", "") };
        assert_eq!(plan.lacks(&late).unwrap(), "it did not end within 60 s; it said nothing");
    }

    #[test]
    fn a_death_has_to_be_named() {
        let plan = Plan { breaks: true, ..Plan::check(&[OsString::from("comity")], 3, &[]) };
        assert_eq!(plan.lacks(&ended(137, "", "comity launch: rank 1 (pid 4) was killed\n")), None);
        assert!(plan.lacks(&ended(0, "all ok", "rank 1")).unwrap().contains("as if nothing had happened"));
        assert!(plan.lacks(&ended(1, "", "rank 2 is gone\n")).unwrap().contains("nobody named rank 1"));
    }

    #[test]
    fn each_part_says_why_it_is_not_there() {
        let reasons = |found: &Value| PARTS.map(|(_, word, lacks)| (word, lacks(found)));
        let all = json!({ "numpy": "2.4", "torch": "2.15", "mlx": "0.32", "mps": true, "cuda": 2 });
        assert!(reasons(&all).iter().all(|(_, why)| why.is_none()));
        let bare = json!({ "numpy": null, "torch": "2.15", "mlx": null, "mps": false, "cuda": 0 });
        let there: Vec<_> = reasons(&bare).into_iter().filter(|r| r.1.is_none()).map(|r| r.0).collect();
        assert_eq!(there, ["array", "torch"]);
        assert_eq!(reasons(&bare)[3].1.as_deref(), Some("torch sees no Apple GPU"));
    }

    #[test]
    fn an_interpreter_that_is_not_there_is_a_reason() {
        let rows = of_python(&["comity".into()], Some(OsStr::new("no-python")), Instant::now() + ASKED);
        let why = rows[0].plan.as_ref().unwrap_err();
        assert!(rows.len() == 1 && why.starts_with("no-python cannot be started"), "{why}");
    }
}
