//! Bad flags: of each command, each flag with values that it cannot have.
use super::Case;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

const NO_NUMBER: &[&str] = &["", " ", "x", "-1", "1.5", "0x1", "1 ", "99999999999999999999", "1\u{1b}[31m"];
const NO_SIZE: &[&str] = &["", "x", "-1", "1.5", "1Q", "99999999999999999999", "64T", "8 K", "\u{661}"];
const NO_TIME: &[&str] = &["", "0", "-1", "x", "nan", "inf", "1e300"];
const NO_NAME: &[&str] = &["", " ", "x", "F32", "sum ", "--", "../x", "a\nb"];

/// A command with what it needs, the flag, and values that it cannot have.
type Row = (&'static [&'static str], &'static str, &'static [&'static str]);

const TABLE: &[Row] = &[
    (&["launch", "true"], "--ranks", NO_NUMBER),
    (&["launch", "true"], "--ranks", &["0", "4097"]),
    (&["launch", "true"], "--env", &["", "A", "=", "COMITY_STATS_FD=3"]),
    (&["launch", "true"], "--cwd", &["", "missing", "/dev/null"]),
    (&["launch", "true"], "--timeout", NO_TIME),
    (&["launch", "true"], "--grace", NO_TIME),
    (&["launch", "true"], "--log-dir", &["", "file", "file/logs", "/proc/none"]),
    (&["launch", "true"], "--metrics", &["", "x", "a:1", "1.2.3.4", "127.0.0.1:65536", ":1"]),
    (&["launch", "true"], "--bind-to", &["", "x", "core ", "CORE", "socket"]),
    (&["launch", "true"], "--meet-at", &["", "x", "core", "1.2.3", "127.0.0.1:0", "127.0.0.1:70000", ":0"]),
    (&["check"], "--ops", NO_NAME),
    (&["check"], "--dtypes", NO_NAME),
    (&["check"], "--seed", NO_NUMBER),
    (&["bench"], "--sizes", NO_SIZE),
    (&["bench"], "--sizes", &["8:4", "1M:1K", ":", "8:", ":8", "8:16:32"]),
    (&["bench"], "--factor", NO_NUMBER),
    (&["bench"], "--factor", &["0", "1"]),
    (&["bench"], "--dtype", NO_NAME),
    (&["bench"], "--op", NO_NAME),
    (&["bench"], "--budget", NO_TIME),
    (&["bench"], "--iters", NO_NUMBER),
    (&["bench"], "--iters", &["0", "100000001"]),
    (&["bench"], "--warmup", NO_NUMBER),
    (&["plan", "all_reduce"], "--ranks", NO_NUMBER),
    (&["plan", "all_reduce"], "--ranks", &["0", "4097"]),
    (&["plan", "all_reduce"], "--bytes", NO_SIZE),
    (&["plan", "all_reduce"], "--hosts", NO_NUMBER),
    (&["plan", "all_reduce"], "--hosts", &["0"]),
    (&["plan", "all_reduce"], "--dtype", NO_NAME),
    (&["plan", "all_reduce"], "--algorithm", NO_NAME),
    (&["bench"], "--compare", &["", "missing", "/dev/null", "file"]),
    (&["top"], "--http", &["", "x", "80", "0.0.0.0:0", "localhost:0", "127.0.0.1:65536"]),
    (&["top"], "--every", NO_TIME),
    (&["report", "records"], "--trace", &["", "missing/trace", "/proc/none"]),
];

/// A flag that would do nothing beside others is no wish of the user's. Words behind `launch`, and of the error.
const LAUNCH: &[(&[&str], &[&str])] = &[
    (&["--ssh-arg", "-v"], &["--ssh-arg is for ranks on other hosts"]),
    (&["--no-stage-comity"], &["--no-stage-comity is for ranks on other hosts"]),
    (&["--mixed-programs"], &["--mixed-programs is for ranks on other hosts"]),
    (&["--wait-for-hosts", "9"], &["--wait-for-hosts is for jobs that are started again"]),
    (
        &["--hosts", "localhost", "--wait-for-hosts", "9"],
        &["--wait-for-hosts is for jobs that are started again"],
    ),
    (&["--hosts", "localhost", "--metrics", "127.0.0.1:0"], &["--metrics is for one host"]),
    (
        &["--max-restarts", "1", "--metrics", "127.0.0.1:0"],
        &["--metrics is not for --max-restarts without --elastic"],
    ),
    (&["-n", "2", "--repeat-hosts", "3"], &["cannot be used multiple times"]),
    (&["--backend", "mpi", "--json-events", "1"], &["--json-events is not for --backend mpi"]),
    (&["--backend", "mpi", "--stdin-rank", "0"], &["--stdin-rank is not for --backend mpi"]),
    (&["--backend", "mpi", "--grace", "9"], &["--grace is not for --backend mpi"]),
    (&["--backend", "mpi", "--bind-to", "core"], &["--bind-to is not for --backend mpi"]),
    (&["-n", "1", "--elastic", "1"], &["-n 2"]),
    (&["-n", "2", "--elastic", "3"], &["needs 3"]),
    (&["-n", "2", "--elastic", "two"], &["2:8"]),
    (&["-n", "2", "--elastic", "1", "--wait-for-hosts", "9"], &["--wait-for-hosts"]),
    (&["-n", "2", "--elastic", "1", "--backend", "mpi"], &["--backend mpi"]),
    (&["--elastic", "1", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "localhost"], &["--nnodes"]),
    (
        &["--nnodes", "2", "--node-rank", "2", "--rendezvous", "127.0.0.1"],
        &["--node-rank 2: there are 2 nodes"],
    ),
    (&["--nnodes", "2", "--node-rank", "2"], &["--rendezvous"]),
    (&["--node-rank", "0"], &["--nnodes"]),
    (
        &["--nnodes", "2", "--node-rank", "0", "--rendezvous", "x:0", "--insecure"],
        &["is not HOST or HOST:PORT"],
    ),
    (&["--nnodes", "2", "--node-rank", "0", "--rendezvous", "x:1"], &["COMITY_KEY_FILE"]),
    (&["--nnodes", "2", "--node-rank", "0", "--rendezvous", "x:1", "--hosts", "a"], &["cannot be used with"]),
    (&["-n", "4096", "--bind-to", "core"], &["4096 ranks"]),
    (&["-n", "2", "--tty", "2"], &["--tty 2: there are 2 ranks"]),
    (&["-n", "2", "--secure", "data", "--insecure"], &["--insecure"]),
    (&["-n", "2", "--log-dir", "room"], &["--log-dir", "rank-1.err"]),
    (&["--metrics", "192.0.2.1:9400", "--log-dir", "logs"], &["--metrics 192.0.2.1:9400"]),
    (&["--metrics", "9400"], &["--metrics", "'9400'", "127.0.0.1:9400"]),
    (&["--metrics", "localhost:9400"], &["--metrics", "127.0.0.1:9400"]),
    (&["--env", "FOO"], &["--env", "FOO", "NAME=VALUE"]),
    (&["--env", "=x"], &["--env", "no name"]),
    (&["--env", "COMITY_RANK=3"], &["--env COMITY_RANK", "itself"]),
    (&["--env", "COMITY_RESTART=3"], &["sets COMITY_RESTART itself"]),
    (&["--env", "WORLD_SIZE=3"], &["--env WORLD_SIZE"]),
    (&["--cwd", "/no/such/dir"], &["--cwd", "/no/such/dir", "no such directory"]),
    (&["--cwd", "/etc/passwd"], &["--cwd", "/etc/passwd", "not a directory"]),
    (&["--log-dir", "/etc/passwd/logs"], &["--log-dir", "/etc/passwd/logs"]),
    (&["--timeout", "soon"], &["--timeout", "seconds"]),
    (&["--grace", "soon"], &["--grace", "seconds"]),
];

/// Flags that a launcher of several does not take.
const NODE: &[(&[&str], &str)] = &[
    (&["--python", "python3"], "--python is not for --nnodes"),
    (&["--env-file", "vars"], "--env-file is not for --nnodes"),
    (&["--stage", "x.py"], "--stage is not for --nnodes"),
    (&["--dry-run"], "--dry-run is not for --nnodes"),
    (&["--ssh-arg", "-v"], "--ssh-arg is not for --nnodes"),
    (&["--wait-for-hosts", "9"], "--wait-for-hosts is not for --nnodes"),
    (&["--backend", "mpi"], "--backend mpi is not for --nnodes"),
    (&["--tty", "0"], "--tty is for one host, or for --hosts"),
];

/// The same of the other commands, and values that one alone has.
const OTHERS: &[(&[&str], &[&str])] = &[
    (&["join", "10.0.0.1", "--insecure", "--", "true"], &["10.0.0.1:7100"]),
    (&["join", "10.0.0.1:7100", "--", "true"], &["--key-file"]),
    (&["join", "10.0.0.1:7100", "--key-file", "/nowhere/key", "--", "true"], &["/nowhere/key"]),
    (&["join", "10.0.0.1:7100", "--insecure", "--", "no-such-program"], &["PATH was searched"]),
    (&["bench", "--sizes", "8:x"], &["--sizes"]),
    (&["plan", "all_reduce", "--hosts=9"], &["hosts"]),
    (&["bench", "--iters", "5", "--budget", "1"], &["--iters", "--budget"]),
    (&["check", "--links", "--algorithm", "ring"], &["--links", "--algorithm"]),
    (&["check", "--links", "--seed", "1"], &["--links", "--seed"]),
    (&["top", "--once", "--every", "2"], &["--once", "--every"]),
    (&["cluster", "find", "--hosts", "a", "--listen", "5"], &["--hosts", "--listen"]),
    (&["cluster", "config", "--hosts", "a", "--undo", "x"], &["--auto-setup", "--undo"]),
    (&["cluster", "config", "--hosts", "a", "--dot", "--output", "x"], &["--dot", "--output"]),
    (&["cluster", "config", "--hosts", "a", "--dot", "--auto-setup"], &["--dot", "--auto-setup"]),
];

/// Each of the table, and those below.
pub(crate) fn all(dir: &Path) -> Vec<Case> {
    std::fs::write(dir.join("file"), "").unwrap();
    std::fs::create_dir_all(dir.join("room/rank-1.err")).unwrap();
    for folder in ["none", "records", "garbage", "deep", "odd", "odd/rank-1.group-0.flight.json"] {
        std::fs::create_dir(dir.join(folder)).unwrap();
    }
    std::fs::write(dir.join("records/rank-0.group-0.flight.json"), RECORD).unwrap();
    std::fs::write(dir.join("deep/rank-0.group-0.flight.json"), "[".repeat(1 << 20)).unwrap();
    std::fs::File::create(dir.join("odd/rank-0.group-0.flight.json")).unwrap().set_len(1 << 40).unwrap();
    std::fs::write(dir.join("garbage/rank-7.group-1f.flight.json"), b"\xff\x00{").unwrap();
    // In one word, so that a value which begins with a dash is none of its own.
    let case = |command: &[&str], flag: &str, value: &str| {
        Case::new(&[&[command[0], &format!("{flag}={value}")], &command[1..]].concat()).says(&[flag])
    };
    let all = TABLE.iter().flat_map(|(command, flag, values)| values.iter().map(|v| case(command, flag, v)));
    let mut cases: Vec<Case> = all.collect();
    let mut add = |args: &[&str], says: &[&str]| cases.push(Case::new(args).says(says));
    add(&[], &["Usage"]);
    add(&["lunch"], &["lunch"]);
    add(&["--frobnicate"], &["--frobnicate"]);
    add(&["launch"], &["COMMAND"]);
    add(&["launch", "-n"], &["--ranks"]);
    add(&["launch", "--frobnicate", "true"], &["--frobnicate"]);
    add(&["launch", "-n", "2"], &["COMMAND"]);
    add(&["launch", "-n", "2", "--"], &["COMMAND"]);
    add(&["launch", "no-such-command"], &["'no-such-command'", "PATH was searched", "/bin"]);
    add(&["launch", "--", "./no-such-file"], &["./no-such-file", "no file"]);
    add(&["launch", ""], &["empty"]);
    add(&["launch", "./file"], &["file", "not executable", "chmod"]);
    add(&["launch", "/"], &["'/'", "directory"]);
    add(&["launch", "-n", "2", "-n", "3", "true"], &["--ranks"]);
    add(&["launch", "--env", "PATH=/none", "ls"], &["ls", "/none"]);
    add(&["check", "extra"], &["extra"]);
    add(&["check", "--quick=1"], &["--quick"]);
    add(&["bench", "all_reduc"], &["all_reduc"]);
    add(&["bench", "--dtype", "f32", "--op", "xor"], &["--op", "--dtype"]);
    add(&["bench", "--raw", "file/tag", "--iters", "1"], &["--raw", "file/tag"]);
    add(&["info", "extra"], &["extra"]);
    add(&["info", "--jsn"], &["--jsn"]);
    add(&["plan"], &["OP"]);
    add(&["plan", "all-reduce"], &["all-reduce"]);
    add(&["plan", "send"], &["send"]);
    add(&["plan", "barrier", "--dot=1"], &["--dot"]);
    add(&["report"], &["DIR"]);
    add(&["report", "missing"], &["missing"]);
    add(&["report", "file"], &["file"]);
    add(&["report", "none"], &["none", "holds no flight records", "--log-dir"]);
    add(&["report", "garbage"], &["rank-7.group-1f.flight.json' is no JSON"]);
    add(&["report", "deep"], &["rank-0.group-0.flight.json' is no JSON"]);
    add(
        &["report", "odd"],
        &["rank-0.group-0.flight.json' is longer", "rank-1.group-0.flight.json' is not a file"],
    );
    LAUNCH.iter().for_each(|(flags, says)| add(&[&["launch"], *flags, &["--", "true"]].concat(), says));
    let node = ["launch", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:9"];
    NODE.iter().for_each(|(flags, says)| add(&[&node, *flags, &["--", "true"]].concat(), &[says]));
    OTHERS.iter().for_each(|(args, says)| add(args, says));
    let bytes = || OsString::from_vec(b"\xff\xfe".to_vec());
    for command in ["bench", "plan"] {
        let mut case = Case::new(&[command]);
        case.args.push(bytes());
        cases.push(case);
    }
    cases
}

const RECORD: &str = r#"{"comity_flight":1,"rank":0,"members":[0,1],"host":null,"pid":7,"clock_ns":9,"unix_ns":1009,
"error":"x","culprit":1,"made":0,"calls":[]}"#;
