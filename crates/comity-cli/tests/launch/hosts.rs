//! `--hosts` and `--hostfile` with a stand-in for ssh, which runs here what it is to run there; the step `ssh` has the real one.
use super::harness::*;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A stand-in for ssh: `-G` says where a host is; else the words behind the host's name run, in a home of the host's own.
pub(crate) fn stand_in(dir: &Path) -> PathBuf {
    let path = dir.join("ssh");
    let script = format!(
        "#!/bin/sh\nfor w in \"$@\"; do [ \"$w\" = -G ] && {{ echo hostname 127.0.0.1; exit 0; }}; done\n\
         while [ \"$1\" != -- ]; do shift; done\nmkdir -p {0}/home/$2; cd {0}/home/$2\n\
         export HOME=$PWD PATH=$PWD/bin:$PATH SSH_CONNECTION=\"127.0.0.1 1 127.0.0.1 22\" NAMED=$2\nunset XDG_CACHE_HOME\nexec sh -c \"$3\"\n",
        dir.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

pub(crate) fn fleet(dir: &Path, words: &[&str]) -> Done {
    let ssh = stand_in(dir).display().to_string();
    run(&[&["--ssh", &ssh], words].concat())
}

fn file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

const SAY: [&str; 4] = ["--", "sh", "-c", "echo $NAMED $LOCAL_RANK $LOCAL_WORLD_SIZE"];

#[test]
fn a_hostfile_may_name_a_host_for_each_rank_as_mlx_does() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = file(dir.path(), "mlx.json", r#"[{"ssh": "a"}, {"ssh": "b"}, {"ssh": "a"}, {"ssh": "a"}]"#);
    let done = fleet(dir.path(), &[&["--hostfile", &hosts][..], &SAY].concat()).ends(0);
    assert_eq!(done.sorted(), ["[0@a] a 0 3", "[1@b] b 0 1", "[2@a] a 1 3", "[3@a] a 2 3"]);
    let lines = file(dir.path(), "lines", "a\na\nb slots=1\n");
    let done = fleet(dir.path(), &[&["--hostfile", &lines][..], &SAY].concat());
    assert_eq!(done.sorted(), ["[0@a] a 0 2", "[1@a] a 1 2", "[2@b] b 0 1"], "{}", done.err);
    // On the command line it is a slip.
    let done = fleet(dir.path(), &[&["--hosts", "a,a"][..], &SAY].concat());
    assert!(done.code == 2 && done.err.contains("named twice"), "{}", done.err);
}

#[test]
fn files_are_staged_and_what_differs_is_found_by_content() {
    let dir = tempfile::tempdir().unwrap();
    for (host, text) in [("a", "print(1)"), ("b", "print(2)")] {
        let home = dir.path().join("home").join(host);
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("train.py"), text).unwrap();
        // Plays the interpreter.
        std::fs::write(home.join("python"), "#!/bin/sh\ncat \"$1\"\n").unwrap();
        std::fs::set_permissions(home.join("python"), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("train.py"), "print(3)").unwrap();
    std::fs::create_dir(here.path().join("gone")).unwrap();
    let ssh = stand_in(dir.path()).display().to_string();
    // From a directory that the hosts do not have, so the ranks start at home.
    let launch = |words: &[&str]| {
        let words = [&["--ssh", &ssh, "--hosts", "a,b"], words].concat();
        start_with(&words, |command| command.current_dir(here.path())).finish()
    };
    let at = ["--cwd", "."];
    let done = launch(&[&at[..], &["--", "./python", "train.py"]].concat());
    assert!(done.code == 2 && done.out.is_empty(), "{}", done.err);
    done.says(&["'train.py' is not the same on all hosts: ", " on a; "]);
    assert!(done.err.contains("--stage train.py"), "{}", done.err);
    let done = launch(&[&at[..], &["--mixed-programs", "--", "./python", "train.py"]].concat());
    assert_eq!((done.code, done.sorted()), (0, vec!["[0@a] print(1)", "[1@b] print(2)"]), "{}", done.err);
    let done = launch(&[&at[..], &["--stage", "train.py", "--", "./python", "train.py"]].concat());
    assert_eq!((done.code, done.sorted()), (0, vec!["[0@a] print(3)", "[1@b] print(3)"]), "{}", done.err);
    let left = std::fs::read_dir(dir.path().join("home/a")).unwrap().count();
    assert_eq!(left, 2, "no other file is left");
    let done = launch(&["--stage", "gone", "--stage", "nowhere", "--", "true"]);
    assert!(
        done.code == 2 && done.err.contains("--stage gone: is no file") && done.err.contains("nowhere"),
        "{}",
        done.err
    );
}

#[test]
fn a_large_file_is_staged_piece_by_piece() {
    let dir = tempfile::tempdir().unwrap();
    let here = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..5_000_001u32).map(|i| (i * 7) as u8).collect();
    std::fs::write(here.path().join("tool"), &bytes).unwrap();
    std::fs::set_permissions(here.path().join("tool"), PermissionsExt::from_mode(0o755)).unwrap();
    let ssh = stand_in(dir.path()).display().to_string();
    let words =
        ["--ssh", &ssh, "--hosts", "a,b", "--cwd", ".", "--stage", "tool", "--", "sh", "-c", "test -x tool"];
    start_with(&words, |command| command.current_dir(here.path())).finish().ends(0);
    for host in ["a", "b"] {
        assert!(std::fs::read(dir.path().join("home").join(host).join("tool")).unwrap() == bytes, "{host}");
    }
}

#[test]
fn one_rank_gets_standard_input_and_programs_read_events() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = stand_in(dir.path()).display().to_string();
    let events = dir.path().join("events").display().to_string();
    let line = format!(
        "printf 'word\\n' | \"$COMITY\" launch --ssh {ssh} --hosts a,b --stdin-rank 1 --json-events {events} -- sh -c \
         'printf \"$RANK? \"; read x; echo \"$x.\"; [ $RANK = 0 ] || exit 3'"
    );
    let done = start_line(&line, "sh").finish().ends(3);
    // What rank 1 writes passes as it comes, without a tag; rank 0's line may come between.
    let other = "[0@a] 0? .\n";
    assert!(
        done.out.contains(other) && done.out.replace(other, "").starts_with("1? word.\n"),
        "{}",
        done.out
    );
    let text = std::fs::read_to_string(&events).unwrap();
    let all: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let count = |event: &str| all.iter().filter(|e| e["event"] == event).count();
    assert_eq!(
        ["host", "started", "line", "exit", "failure", "end"].map(count),
        [2, 2, 2, 2, 1, 1],
        "{text}"
    );
    let end = all.iter().find(|e| e["event"] == "exit" && e["rank"] == 1).unwrap();
    assert_eq!((&end["code"], &end["host"]), (&3.into(), &"b".into()));
    done.says(&["how the ranks ended: 0 exited with code 0; 1 exited with code 3"]);
}

pub(crate) fn executable(path: &Path, script: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Under another name the launcher's own program is not looked for there.
#[test]
fn hosts_that_lack_the_program_get_a_copy_and_keep_it() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = stand_in(dir.path()).display().to_string();
    let home = dir.path().join("home");
    let launcher = dir.path().join("launcher");
    std::fs::copy(env!("CARGO_BIN_EXE_comity"), &launcher).unwrap();
    let launch = |words: &str| {
        let line = format!(
            "{} launch --ssh {ssh} --python sh {words} -- -c 'echo $NAMED $(umask)'",
            launcher.display()
        );
        start_line(&line, "sh").finish()
    };
    let mask = Command::new("sh").args(["-c", "umask"]).output().unwrap();
    let mask = String::from_utf8(mask.stdout).unwrap();
    let wanted =
        [("[0@a] a", &mask), ("[1@b] b", &mask)].map(|(rank, mask)| format!("{rank} {}", mask.trim()));
    executable(&home.join("b/bin/comity"), "#!/bin/sh\necho comity 0.0.9\n");
    let done = launch("--hosts a,b");
    assert!(done.code == 0 && done.sorted() == wanted, "{} {}", done.out, done.err);
    for host in ["a", "b"] {
        assert!(done.err.contains(&format!("host {host}: has no comity ")), "{}", done.err);
        let kept =
            std::fs::read_dir(home.join(host).join(".cache/comity")).unwrap().next().unwrap().unwrap().path();
        let files: Vec<_> = std::fs::read_dir(&kept).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(files, ["comity"], "{}", kept.display());
    }
    let again = launch("--hosts a,b");
    assert!(again.code == 0 && !again.err.contains("gets a copy"), "{}", again.err);
    assert_eq!(again.sorted(), wanted);
    let refused = launch("--hosts a --no-stage-comity");
    assert!(
        refused.code == 2 && refused.err.contains("host a: comity is not installed there"),
        "{}",
        refused.err
    );
    executable(&home.join("c/bin/uname"), "#!/bin/sh\n[ $1 = -s ] && echo Plan9 || echo mips\n");
    std::fs::create_dir_all(home.join("d")).unwrap();
    std::fs::write(home.join("d/.cache"), "no folder").unwrap();
    let refused = launch("--hosts a,c,d");
    assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{}", refused.err);
    refused.says(&[
        "host c: comity is not installed there",
        "it is Plan9 mips",
        "host d: this program could not be copied there",
    ]);
}

/// A Python with the package stands for the command, and another version in it is refused.
#[test]
fn a_python_package_stands_for_the_command_unless_it_is_of_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = stand_in(dir.path()).display().to_string();
    let launcher = dir.path().join("launcher");
    std::fs::copy(env!("CARGO_BIN_EXE_comity"), &launcher).unwrap();
    let hello = br#"{"protocol":1,"version":"0.0.9","host":"b"}"#;
    let length = u32::try_from(hello.len()).unwrap().to_le_bytes();
    let old = dir.path().join("hello");
    std::fs::write(&old, [b"\0comity-guard\0h".as_slice(), &length, hello].concat()).unwrap();
    let python = dir.path().join("python");
    let script = format!(
        "#!/bin/sh\ncase \"$1 $2\" in\n\"-c import comity\") exit 0;;\n\"-m comity\") shift 2\n\
         [ $NAMED != b ] || {{ cat {}; exec cat > /dev/null; }}; exec {} \"$@\";;\nesac\nexec sh \"$@\"\n",
        old.display(),
        env!("CARGO_BIN_EXE_comity")
    );
    executable(&python, &script);
    let launch = |hosts: &str| {
        let flags = format!("--python {} --no-stage-comity --hosts {hosts}", python.display());
        let line = format!("{} launch --ssh {ssh} {flags} -- -c 'echo ran'", launcher.display());
        start_line(&line, "sh").finish()
    };
    let done = launch("a,c");
    assert_eq!((done.code, done.sorted()), (0, vec!["[0@a] ran", "[1@c] ran"]), "{}", done.err);
    let done = launch("a,b");
    assert_eq!((done.code, done.out.as_str()), (2, ""), "{}", done.err);
    done.says(&["host b: has comity 0.0.9, and this is ", "nothing was run"]);
}

#[test]
fn ctrl_z_while_a_host_gets_its_copy_leaves_that_whole() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = stand_in(dir.path()).display().to_string();
    let home = dir.path().join("home/a");
    let launcher = dir.path().join("launcher");
    std::fs::copy(env!("CARGO_BIN_EXE_comity"), &launcher).unwrap();
    // It takes the copy when it is told to.
    let head =
        "#!/bin/sh\n: > asked; until [ -e go ]; do sleep 0.02; done\nPATH=${PATH#*:} exec head \"$@\"\n";
    executable(&home.join("bin/head"), head);
    let words = ["--ssh", &ssh, "--python", "sh", "--hosts", "a", "--", "-c", "echo $NAMED"];
    let job = start_with(&words, |command| {
        let mut renamed = Command::new(&launcher);
        renamed.args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        renamed.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        own_group(&mut renamed);
        *command = renamed;
        command
    });
    wait_for("the copy to begin", || home.join("asked").exists().then_some(()));
    job.signal(Signal::TSTP);
    wait_for("the launcher to be stopped", || {
        waitpid(Some(Pid::from_child(&job.child)), WaitOptions::UNTRACED | WaitOptions::NOHANG).unwrap()
    });
    job.signal(Signal::CONT);
    std::fs::write(home.join("go"), "").unwrap();
    let done = job.finish();
    assert_eq!((done.code, done.sorted()), (0, vec!["a"]), "{}", done.err);
    let kept = std::fs::read_dir(home.join(".cache/comity")).unwrap().next().unwrap().unwrap().path();
    let same = std::fs::read(kept.join("comity")).unwrap() == std::fs::read(&launcher).unwrap();
    assert!(same, "what is kept is not this program");
}

#[test]
fn a_dry_run_says_what_each_host_would_run_and_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["--hosts", "a,me@b:2", "--env", "A=x y", "--cwd", "/data", "--python", "py", "--dry-run"];
    let done = fleet(dir.path(), &[&words[..], &["--", "train.py", "--lr", "3"]].concat());
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    for part in [
        "a: rank 0: \"py\" \"train.py\" \"--lr\" \"3\" in \"/data\" with A=\"x y\"",
        "b: ranks 1 to 2: \"py\"",
        "\"me@b\" (a script",
    ] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }
    assert!(!dir.path().join("home").exists() && done.out.lines().all(|l| l.len() < 250), "{}", done.out);
    let whole = fleet(dir.path(), &[&words[..], &["--verbose", "--", "true"]].concat());
    assert!(whole.out.contains("comity-is-not-here"), "{}", whole.out);
}

/// Every flag of mlx.launch has its meaning.
#[test]
fn flags_of_mlx_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = file(
        dir.path(),
        "mlx.json",
        r#"{"backend": "jaccl-ring", "envs": ["A=1"], "hosts": [{"ssh": "a", "ips": ["127.0.0.1"]}, {"ssh": "b", "ips": ["127.0.0.1"]}]}"#,
    );
    let say = "echo $RANK $A $B ${COMITY_BACKEND:-none} ${MLX_JACCL_RING:-none} $(cat $MLX_HOSTFILE)";
    let words = ["--hostfile", &hosts, "--backend", "ring", "--env", "B=2", "--connections-per-ip", "2"];
    let words = [&words[..], &["-p", "40000", "--verbose", "--", "sh", "-c", say]].concat();
    let done = fleet(dir.path(), &words);
    let ring = r#"[["127.0.0.1:40000","127.0.0.1:40001"],["127.0.0.1:40002","127.0.0.1:40003"]]"#;
    let wanted = [0, 1].map(|r| format!("[{r}@{}] {r} 1 2 none none {ring}", ["a", "b"][r]));
    assert_eq!((done.code, done.sorted()), (0, wanted.iter().map(String::as_str).collect()), "{}", done.err);
    let say = "echo $RANK $COMITY_BACKEND $MLX_JACCL_RING";
    let done = fleet(dir.path(), &["--hostfile", &hosts, "--repeat-hosts", "2", "--", "sh", "-c", say]);
    assert_eq!(done.sorted()[3], "[3@b] 3 jaccl 1", "{} {}", done.out, done.err);
    // Without hosts, too.
    let done = run(&["--backend", "jaccl-ring", "--", "sh", "-c", say]);
    assert_eq!(done.out, "0 jaccl 1\n", "{}", done.err);
    let nccl = ["--hosts", "127.0.0.1", "--backend", "nccl", "--nccl-port", "40100", "-n", "2"];
    let done = fleet(
        dir.path(),
        &[&nccl[..], &["--", "sh", "-c", "echo $RANK $NCCL_PORT $MLX_WORLD_SIZE"]].concat(),
    );
    assert_eq!(done.sorted(), ["[0] 0 40100 2", "[1] 1 40100 2"], "{}", done.err);
    let done = run(&["--print-python", "--python", "/opt/py"]);
    assert_eq!(done.out, "/opt/py\n");
}

#[test]
fn a_name_that_no_host_has_is_bad_input() {
    let done = run(&["--hosts", "no..such,nor..this", "--", "true"]).ends(2);
    for host in ["no..such", "nor..this"] {
        assert!(done.err.contains(&format!("host {host}: no host has this name")), "{}", done.err);
    }
}
