//! `comity selftest`: its table, exit code and report, with stand-ins for Python, ssh and the programs of a Mac. What the Mac says is written
//! from the documented formats; not run on Apple hardware.
#![allow(missing_docs)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MAC: &str = include_str!("../../comity-cluster/macs/m0.txt");

/// A program of these lines in a folder.
fn program(dir: &Path, name: &str, lines: &str) {
    let path = dir.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
    report: String,
}

/// `comity selftest` where these programs come first; its report goes to the folder.
fn selftest(dir: &Path, words: &[&str], vars: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("COMITY_") {
            command.env_remove(&name);
        }
    }
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    command.args(["selftest", "--report", "report.txt"]).args(words).current_dir(dir);
    command.env("PATH", path).env("USER", "lena").env("HOME", dir).envs(vars.iter().copied());
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let report = std::fs::read_to_string(dir.join("report.txt")).unwrap_or_default();
    Ended { code: status.code(), out, err, report }
}

impl Ended {
    #[track_caller]
    fn row(&self, name: &str) -> &str {
        let row = self.out.lines().find(|line| line.starts_with(name));
        row.unwrap_or_else(|| panic!("no row {name}: {}{}", self.out, self.err))
    }
}

#[test]
fn a_row_that_fails_says_so_and_the_report_names_nobody() {
    let dir = tempfile::tempdir().unwrap();
    program(dir.path(), "python3", "exit 1");
    // No rank can listen there.
    let vars = [("COMITY_ADDRS", "192.0.2.7"), ("MY_API_TOKEN", "hush-hush-hush")];
    let ended = selftest(dir.path(), &["--only", "link tcp, 2"], &vars);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    let row = ended.row("link tcp, 2 ranks");
    assert!(row.contains("FAILED") && row.contains("192.0.2.7"), "{row}");
    assert!(ended.err.contains("comity selftest: link tcp, 2 ranks: "), "{}", ended.err);
    assert!(ended.out.contains("# 0 passed, 1 failed, 0 not there"), "{}", ended.out);
    let report = &ended.report;
    assert!(report.contains("\n== link tcp, 2 ranks\n$ COMITY_LINKS=tcp "), "{report}");
    assert!(report.contains(" check --quick\n") && report.contains("exit"), "{report}");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let home = dir.path().display().to_string();
    for secret in ["192.0.2.7", "hush-hush-hush", "lena", &home, &format!("host {host}")] {
        assert!(!report.contains(secret), "{secret}: {report}");
    }
}

#[test]
fn a_killed_rank_is_named_and_what_is_missing_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let ended = selftest(dir.path(), &["--only", "killed", "--python", "/nowhere/python"], &[]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(ended.row("a killed rank is named").contains("passed"), "{}", ended.out);
    let ended = selftest(dir.path(), &["--only", "Python", "--python", "/nowhere/python"], &[]);
    let row = ended.row("Python: NumPy, torch, MLX");
    assert!(ended.code == Some(0) && row.contains("not there"), "{row}");
    assert!(row.contains("/nowhere/python cannot be started"), "{row}");
    let ended = selftest(dir.path(), &["--report", "no/such/folder"], &[]);
    assert!(ended.code == Some(2) && ended.err.contains("--report"), "{}", ended.err);
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
    program(dir.path(), "python", PYTHON);
    let ended = selftest(dir.path(), &["--only", "orch, ", "--python", "python"], &[]);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    assert!(ended.row("torch, Apple GPU, 2 ranks").contains("passed"), "{}", ended.out);
    assert!(ended.row("torch, CUDA").contains("not there"), "{}", ended.out);
    // It ended well and did not say that it had compared anything.
    assert!(ended.row("torch, CPU, 2 ranks").contains("FAILED"), "{}", ended.out);
    let ended = selftest(dir.path(), &["--only", "NumPy", "--python", "python"], &[]);
    let row = ended.row("NumPy, 2 ranks");
    assert!(row.contains("FAILED") && row.contains("the result is wrong (exit code 1)"), "{row}");
}

#[test]
fn a_mac_is_described_by_its_own_programs_and_its_hosts_have_no_names() {
    let dir = tempfile::tempdir().unwrap();
    // Each of the survey's questions has a section.
    let section = |name: &str| {
        let text = MAC.split_once(&format!("@@ {name}\n")).unwrap().1.split("\n\n@@").next().unwrap();
        format!("cat <<'END'\n{text}\nEND")
    };
    let of = |arg: &str, name: &str| format!("{arg}) {} ;;\n", section(name).replace("\nEND", "\nEND\n"));
    let uname = [of("-srm", "system"), of("-n", "hostname"), "*) echo Darwin ;;\n".into()].concat();
    program(dir.path(), "uname", &format!("case $1 in\n{uname}esac"));
    let sysctl =
        [of("hw.ncpu", "cores"), of("hw.memsize", "memory"), of("machdep*", "chip"), of("*", "boot")];
    program(dir.path(), "sysctl", &format!("case $2 in\n{}esac", sysctl.concat()));
    for (name, part) in [
        ("system_profiler", "thunderbolt"),
        ("networksetup", "ports"),
        ("ifconfig", "ifconfig"),
        ("netstat", "netstat"),
        ("rdma_ctl", "rdma_ctl"),
        ("ibv_devices", "ibv_devices"),
    ] {
        program(dir.path(), name, &section(part));
    }
    program(dir.path(), "python3", "exit 1");
    program(dir.path(), "ssh", "echo 'lena@m7.example.org: Permission denied (publickey).' >&2; exit 255");
    let words = ["--only", "hosts", "--hosts", "m7.example.org:2,10.9.8.7"];
    let ended = selftest(dir.path(), &words, &[]);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    let head = ended.out.lines().next().unwrap();
    assert!(head.contains("16 cores, 128 GiB, GPU of Apple M4 Max, Darwin 25.2.0 arm64"), "{head}");
    for name in ["hosts, doctor", "hosts, a rank on each"] {
        let row = ended.row(name);
        assert!(row.contains("FAILED"), "{row}");
    }
    let report = &ended.report;
    for part in
        ["Thunderbolt 1 (en2): 80 Gb/s, a peer", "RDMA: enabled", "RDMA device rdma_en2: ", "[host 1]"]
    {
        assert!(report.contains(part), "{part}: {report}");
    }
    for name in ["m7", "10.9.8.7", "lena", "m0.local", "192.168.1.10", "36:00:00"] {
        assert!(!report.contains(name), "{name}: {report}");
    }
}
