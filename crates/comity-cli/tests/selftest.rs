//! `comity selftest`: its table, exit code and report, with stand-ins for Python, ssh and the programs of a Mac. What the Mac says is written
//! from the documented formats; not run on Apple hardware.

mod common;

use common::{Ended, comity, holds, lacks, write_program};
use std::{fs, path::Path};

const MAC: &str = include_str!("../../comity-cluster/macs/m0.txt");

struct Tested {
    ended: Ended,
    report: String,
}

/// `comity selftest` where the programs of this folder come first; its report goes there.
fn selftest(dir: &Path, words: &[&str], vars: &[(&str, &str)]) -> Tested {
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let mut command = comity();
    command.args(["selftest", "--report", "report.txt"]).args(words).current_dir(dir);
    command.env("PATH", path).env("USER", "lena").env("HOME", dir).envs(vars.iter().copied());
    let ended = Ended::of(&mut command);
    Tested { ended, report: fs::read_to_string(dir.join("report.txt")).unwrap_or_default() }
}

impl Tested {
    #[track_caller]
    fn ends(self, code: i32) -> Self {
        Self { ended: self.ended.ends(code), ..self }
    }

    /// Checks that the row of this name has these words.
    #[track_caller]
    fn row(&self, name: &str, words: &[&str]) {
        let row = self.ended.out.lines().find(|line| line.starts_with(name));
        holds(row.unwrap_or_else(|| panic!("no row {name}: {}", self.ended.text())), words);
    }
}

#[test]
fn a_row_that_fails_says_so_and_the_report_names_nobody() {
    let dir = tempfile::tempdir().unwrap();
    write_program(&dir.path().join("python3"), "exit 1");
    // No rank can listen there.
    let vars = [("COMITY_ADDRS", "192.0.2.7"), ("MY_API_TOKEN", "hush-hush-hush")];
    let tested = selftest(dir.path(), &["--only", "link tcp, 2"], &vars).ends(1);
    tested.row("link tcp, 2 ranks", &["FAILED", "192.0.2.7"]);
    tested.ended.says(&["comity selftest: link tcp, 2 ranks: "]);
    tested.ended.shows(&["# 0 passed, 1 failed, 0 not there"]);
    holds(&tested.report, &["\n== link tcp, 2 ranks\n$ COMITY_LINKS=tcp ", " check --quick\n", "exit"]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let home = dir.path().display().to_string();
    lacks(&tested.report, &["192.0.2.7", "hush-hush-hush", "lena", &home, &format!("host {host}")]);
}

#[test]
fn a_killed_rank_is_named_and_what_is_missing_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = ["--python", "/nowhere/python"];
    let tested = selftest(dir.path(), &[&["--only", "killed"], &nowhere[..]].concat(), &[]).ends(0);
    tested.row("a killed rank is named", &["passed"]);
    let tested = selftest(dir.path(), &[&["--only", "Python"], &nowhere[..]].concat(), &[]).ends(0);
    tested.row("Python: NumPy, torch, MLX", &["not there", "/nowhere/python cannot be started"]);
    selftest(dir.path(), &["--report", "no/such/folder"], &[]).ends(2).ended.says(&["--report"]);
}

/// A Python that has torch on an Apple GPU and a NumPy that computes something else.
const PYTHON: &str = r#"case "$3" in
'') echo '{"numpy": "2.4.6", "torch": "2.15.0", "mlx": null, "mps": true, "cuda": 0}' ;;
numpy) echo 'ValueError: all_reduce of float32[1]: the result is wrong' >&2; exit 1 ;;
torch-mps) echo "torch-mps on 2 ranks: all ok" ;;
*) exit 0 ;;
esac"#;

#[test]
fn each_package_has_a_row() {
    let dir = tempfile::tempdir().unwrap();
    write_program(&dir.path().join("python"), PYTHON);
    let tested = selftest(dir.path(), &["--only", "orch, ", "--python", "python"], &[]).ends(1);
    tested.row("torch, Apple GPU, 2 ranks", &["passed"]);
    tested.row("torch, CUDA", &["not there"]);
    // It ended well and did not say that it had compared anything.
    tested.row("torch, CPU, 2 ranks", &["FAILED"]);
    let tested = selftest(dir.path(), &["--only", "NumPy", "--python", "python"], &[]);
    tested.row("NumPy, 2 ranks", &["FAILED", "the result is wrong (exit code 1)"]);
}

#[test]
fn a_mac_is_described_by_its_own_programs_and_its_hosts_have_no_names() {
    let dir = tempfile::tempdir().unwrap();
    let program = |name: &str, lines: &str| write_program(&dir.path().join(name), lines);
    // Each of the survey's questions has a section.
    let section = |name: &str| {
        let text = MAC.split_once(&format!("@@ {name}\n")).unwrap().1.split("\n\n@@").next().unwrap();
        format!("cat <<'END'\n{text}\nEND")
    };
    let of = |arg: &str, name: &str| format!("{arg}) {} ;;\n", section(name).replace("\nEND", "\nEND\n"));
    let uname = [of("-srm", "system"), of("-n", "hostname"), "*) echo Darwin ;;\n".into()].concat();
    program("uname", &format!("case $1 in\n{uname}esac"));
    let sysctl =
        [of("hw.ncpu", "cores"), of("hw.memsize", "memory"), of("machdep*", "chip"), of("*", "boot")];
    program("sysctl", &format!("case $2 in\n{}esac", sysctl.concat()));
    for (name, part) in [
        ("system_profiler", "thunderbolt"),
        ("networksetup", "ports"),
        ("ifconfig", "ifconfig"),
        ("netstat", "netstat"),
        ("rdma_ctl", "rdma_ctl"),
        ("ibv_devices", "ibv_devices"),
    ] {
        program(name, &section(part));
    }
    program("python3", "exit 1");
    program("ssh", "echo 'lena@m7.example.org: Permission denied (publickey).' >&2; exit 255");
    let words = ["--only", "hosts", "--hosts", "m7.example.org:2,10.9.8.7"];
    let tested = selftest(dir.path(), &words, &[]).ends(1);
    let head = tested.ended.out.lines().next().unwrap();
    holds(head, &["16 cores, 128 GiB, GPU of Apple M4 Max, Darwin 25.2.0 arm64"]);
    tested.row("hosts, doctor", &["FAILED"]);
    tested.row("hosts, a rank on each", &["FAILED"]);
    let cables = "Thunderbolt 1 (en2): 80 Gb/s, a peer";
    holds(&tested.report, &[cables, "RDMA: enabled", "RDMA device rdma_en2: ", "[host 1]"]);
    lacks(&tested.report, &["m7", "10.9.8.7", "lena", "m0.local", "192.168.1.10", "36:00:00"]);
}
