//! Mistakes of a user: an answer that names the place, and exit code 2.
use super::harness::*;

fn refused(args: &[&str], says: &[&str]) {
    let done = run(args);
    assert_eq!(done.code, 2, "{args:?}: {}", done.err);
    assert_eq!(done.out, "", "{args:?}");
    for word in says {
        assert!(done.err.contains(word), "{args:?}: no '{word}' in: {}", done.err);
    }
    assert!(!done.err.contains("panicked"), "{}", done.err);
}

#[test]
fn counts_of_ranks() {
    for bad in ["0", "-1", "two", "1.5", "", "4097", "99999999999999999999"] {
        refused(&["-n", bad, "true"], &["--ranks"]);
    }
    refused(&["-n"], &["--ranks"]);
}

#[test]
fn flags_and_commands() {
    refused(&["--frobnicate", "true"], &["--frobnicate"]);
    refused(&["-n", "2"], &["COMMAND"]);
    refused(&["-n", "2", "--"], &["COMMAND"]);
    refused(&["no-such-command-here"], &["'no-such-command-here'", "PATH was searched", "/bin"]);
    refused(&["--", "./no-such-file"], &["./no-such-file", "no file"]);
    refused(&["/"], &["'/'", "directory"]);
    refused(&[""], &["empty"]);
    refused(&["/etc/passwd"], &["/etc/passwd", "not executable", "chmod"]);
}

#[test]
fn variables() {
    refused(&["--env", "FOO", "true"], &["--env", "FOO", "NAME=VALUE"]);
    refused(&["--env", "=x", "true"], &["--env", "no name"]);
    refused(&["--env", "COMITY_RANK=3", "true"], &["--env COMITY_RANK", "itself"]);
    refused(&["--env", "WORLD_SIZE=3", "true"], &["--env WORLD_SIZE"]);
    refused(&["--env", "PATH=/nowhere", "ls"], &["'ls'", "/nowhere"]);
}

/// A flag that would do nothing is no wish of the user's.
#[test]
fn flags_that_do_nothing_beside_others() {
    let node = ["--nnodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:9"];
    for (flags, says) in [
        (&["--python", "python3"][..], "--python is not for --nnodes"),
        (&["--env-file", "vars"], "--env-file is not for --nnodes"),
        (&["--stage", "x.py"], "--stage is not for --nnodes"),
        (&["--dry-run"], "--dry-run is not for --nnodes"),
        (&["--ssh-arg", "-v"], "--ssh-arg is not for --nnodes"),
        (&["--wait-for-hosts", "9"], "--wait-for-hosts is not for --nnodes"),
        (&["--backend", "mpi"], "--backend mpi is not for --nnodes"),
        (&["--tty", "0"], "--tty is for one host, or for --hosts"),
    ] {
        refused(&[&node, flags, &["--", "true"]].concat(), &[says]);
    }
    for (flags, says) in [
        (&["--ssh-arg", "-v"][..], "--ssh-arg is for ranks on other hosts"),
        (&["--no-stage-comity"], "--no-stage-comity is for ranks on other hosts"),
        (&["--mixed-programs"], "--mixed-programs is for ranks on other hosts"),
        (&["--wait-for-hosts", "9"], "--wait-for-hosts is for jobs that are started again"),
        (
            &["--hosts", "localhost", "--wait-for-hosts", "9"],
            "--wait-for-hosts is for jobs that are started again",
        ),
        (&["--hosts", "localhost", "--metrics", "127.0.0.1:0"], "--metrics is for one host"),
        (
            &["--max-restarts", "1", "--metrics", "127.0.0.1:0"],
            "--metrics is not for --max-restarts without --elastic",
        ),
        (&["-n", "2", "--repeat-hosts", "3"], "cannot be used multiple times"),
        (&["--backend", "mpi", "--json-events", "1"], "--json-events is not for --backend mpi"),
        (&["--backend", "mpi", "--stdin-rank", "0"], "--stdin-rank is not for --backend mpi"),
        (&["--backend", "mpi", "--grace", "9"], "--grace is not for --backend mpi"),
        (&["--backend", "mpi", "--bind-to", "core"], "--bind-to is not for --backend mpi"),
    ] {
        refused(&[flags, &["--", "true"]].concat(), &[says]);
    }
}

#[test]
fn flags_of_mlx_do_nothing_and_say_so() {
    for (flags, says) in [
        (&["--mpi-arg", "-v"][..], "--mpi-arg is for --backend mpi"),
        (&["--connections-per-ip", "2"], "--connections-per-ip is for ranks on other hosts"),
        (&["--hosts", "localhost", "--nccl-port", "99"], "--nccl-port is for --backend nccl"),
        (
            &["--hosts", "localhost", "--backend", "jaccl", "--starting-port", "9000"],
            "--starting-port is for MLX's ring",
        ),
    ] {
        let done = run(&[flags, &["--", "true"]].concat());
        assert!(done.code == 0 && done.err.contains(says), "{flags:?}: {} {}", done.code, done.err);
    }
}

#[test]
fn directories() {
    refused(&["--cwd", "/no/such/dir", "true"], &["--cwd", "/no/such/dir", "no such directory"]);
    refused(&["--cwd", "/etc/passwd", "true"], &["--cwd", "/etc/passwd", "not a directory"]);
    refused(&["--log-dir", "/etc/passwd/logs", "true"], &["--log-dir", "/etc/passwd/logs"]);
    refused(&["--log-dir", "/proc/nothing", "true"], &["--log-dir", "/proc/nothing"]);
}

#[test]
fn a_log_directory_without_room_for_a_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("rank-1.err")).unwrap();
    refused(&["-n", "2", "--log-dir", dir.path().to_str().unwrap(), "true"], &["--log-dir", "rank-1.err"]);
}

#[test]
fn times() {
    for bad in ["0", "-3", "soon", "nan", "inf", "1e30"] {
        refused(&["--timeout", bad, "true"], &["--timeout", "seconds"]);
        refused(&["--grace", bad, "true"], &["--grace", "seconds"]);
    }
}

#[test]
fn a_file_that_is_no_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tool");
    std::fs::write(&file, b"\x7fELF nonsense").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let done = run(&["-n", "2", file.to_str().unwrap()]);
    assert_ne!(done.code, 0);
    // Both fail; which one is first is chance.
    assert!(done.last().contains(" exited with code "), "{}", done.err);
}
