//! Variables that make no sense: each is named in the error.

use super::*;

const TWO: &str = r#"[[null, "a"], ["b", null]]"#;

const R: (&str, &str) = ("COMITY_RANK", "1");
const S: (&str, &str) = ("COMITY_SIZE", "4");
const ST: (&str, &str) = ("COMITY_STORE", "127.0.0.1:4000");
const TR: (&str, &str) = ("RANK", "1");
const TW: (&str, &str) = ("WORLD_SIZE", "4");
const OR: (&str, &str) = ("OMPI_COMM_WORLD_RANK", "1");
const OS: (&str, &str) = ("OMPI_COMM_WORLD_SIZE", "4");
const PR: (&str, &str) = ("PMI_RANK", "1");
const PS: (&str, &str) = ("PMI_SIZE", "4");
const SJ: (&str, &str) = ("SLURM_JOB_ID", "7");
const SS: (&str, &str) = ("SLURM_STEP_ID", "0");
const SP: (&str, &str) = ("SLURM_PROCID", "1");
const SN: (&str, &str) = ("SLURM_NTASKS", "4");

/// Variables, and what the error says. `{key}`, `{open}` and `{hosts}` stand for files, `{long}` for 300 letters.
const CASES: &[Bad] = &[
    (&[R], &["COMITY_RANK=1", "COMITY_SIZE"]),
    (&[S], &["COMITY_SIZE=4", "COMITY_RANK"]),
    (&[("COMITY_RANK", "one"), S], &["COMITY_RANK", "\"one\"", "0 to"]),
    (&[("COMITY_RANK", "-1"), S], &["COMITY_RANK", "\"-1\""]),
    (&[("COMITY_RANK", "+1"), S], &["COMITY_RANK", "\"+1\""]),
    (&[("COMITY_RANK", " 1"), S], &["COMITY_RANK", "\" 1\""]),
    (&[("COMITY_RANK", "1.0"), S], &["COMITY_RANK", "\"1.0\""]),
    (&[("COMITY_RANK", "0x1"), S], &["COMITY_RANK"]),
    (&[("COMITY_RANK", ""), S], &["COMITY_RANK", "empty"]),
    (&[("COMITY_RANK", "99999999999999999999"), S], &["COMITY_RANK"]),
    (&[("COMITY_RANK", "4"), S, ST], &["COMITY_RANK=4", "COMITY_SIZE=4", "0 to 3"]),
    (&[R, ("COMITY_SIZE", "0")], &["COMITY_SIZE=0"]),
    (&[R, ("COMITY_SIZE", "four")], &["COMITY_SIZE", "\"four\""]),
    (&[R, ("COMITY_SIZE", "-4")], &["COMITY_SIZE", "\"-4\""]),
    (&[R, ("COMITY_SIZE", "65537")], &["COMITY_SIZE", "65536"]),
    (&[R, ("COMITY_SIZE", "")], &["COMITY_SIZE", "empty"]),
    (&[R, S], &["COMITY_STORE", "MASTER_ADDR"]),
    (&[R, S, ("COMITY_STORE", "")], &["COMITY_STORE", "empty"]),
    (&[R, S, ("COMITY_STORE", "host")], &["COMITY_STORE", "\"host\"", "port is missing"]),
    (&[R, S, ("COMITY_STORE", "host:")], &["COMITY_STORE", "\"host:\""]),
    (&[R, S, ("COMITY_STORE", ":1")], &["COMITY_STORE", "host is missing"]),
    (&[R, S, ("COMITY_STORE", "h:0")], &["COMITY_STORE", "port 0"]),
    (&[R, S, ("COMITY_STORE", "h:65536")], &["COMITY_STORE", "\"65536\"", "1 to 65535"]),
    (&[R, S, ("COMITY_STORE", "h:-1")], &["COMITY_STORE", "\"-1\""]),
    (&[R, S, ("COMITY_STORE", "h:http")], &["COMITY_STORE", "\"http\""]),
    (&[R, S, ("COMITY_STORE", "::1:5")], &["COMITY_STORE", "brackets"]),
    (&[R, S, ("COMITY_STORE", "[::1]")], &["COMITY_STORE", "]:port"]),
    (&[R, S, ("COMITY_STORE", "[::1]5")], &["COMITY_STORE"]),
    (&[R, S, ("COMITY_STORE", "[nine]:5")], &["COMITY_STORE", "IPv6"]),
    (&[R, S, ("COMITY_STORE", "1.2.3.4.5:5")], &["COMITY_STORE", "IPv4"]),
    (&[R, S, ("COMITY_STORE", "10.0.0.256:5")], &["COMITY_STORE", "IPv4"]),
    (&[R, S, ("COMITY_STORE", "a b:5")], &["COMITY_STORE", "\"a b\""]),
    (&[R, S, ("COMITY_STORE", "http://h:5")], &["COMITY_STORE"]),
    (&[R, S, ("COMITY_STORE", "0.0.0.0:5")], &["0.0.0.0:5", "nobody can connect"]),
    (&[ST], &["COMITY_STORE=127.0.0.1:4000", "COMITY_RANK"]),
    (&[("COMITY_LOCAL_RANK", "0")], &["COMITY_LOCAL_RANK=0", "COMITY_RANK"]),
    (&[R, S, ST, ("COMITY_LOCAL_RANK", "0")], &["COMITY_LOCAL_RANK", "COMITY_LOCAL_SIZE"]),
    (&[R, S, ST, ("COMITY_LOCAL_SIZE", "2")], &["COMITY_LOCAL_SIZE", "COMITY_LOCAL_RANK"]),
    (&[R, S, ST, ("COMITY_LOCAL_RANK", "2"), ("COMITY_LOCAL_SIZE", "2")], &["COMITY_LOCAL_RANK=2", "0 to 1"]),
    (&[R, S, ST, ("COMITY_LOCAL_RANK", "0"), ("COMITY_LOCAL_SIZE", "5")], &["COMITY_LOCAL_SIZE=5", "1 to 4"]),
    (&[R, S, ST, ("COMITY_LOCAL_RANK", "x"), ("COMITY_LOCAL_SIZE", "5")], &["COMITY_LOCAL_RANK", "\"x\""]),
    (&[R, S, ST, ("COMITY_JOB", "")], &["COMITY_JOB", "empty"]),
    (&[R, S, ST, ("COMITY_JOB", "a\nb")], &["job", "a\\nb"]),
    (&[R, S, ST, ("COMITY_JOB", "{long}")], &["job", "255"]),
    (&[R, S, ("COMITY_JOIN", "1")], &["COMITY_JOIN=1", "COMITY_STORE"]),
    (&[R, S, ST, ("COMITY_JOIN", "soon")], &["COMITY_JOIN", "\"soon\""]),
    (&[("COMITY_KEY_FD", "three")], &["COMITY_KEY_FD", "\"three\""]),
    (&[("COMITY_KEY_FD", "-1")], &["COMITY_KEY_FD", "\"-1\""]),
    (&[("COMITY_KEY_FD", "1000000")], &["COMITY_KEY_FD", "1000000"]),
    (&[("COMITY_KEY_FILE", "/nowhere/key")], &["COMITY_KEY_FILE", "/nowhere/key"]),
    (&[("COMITY_KEY_FILE", "/")], &["COMITY_KEY_FILE", "regular file"]),
    (&[("COMITY_KEY_FILE", "{open}")], &["COMITY_KEY_FILE", "0644", "chmod 600"]),
    (&[("COMITY_KEY_FILE", "{key}"), ("COMITY_KEY_FD", "9")], &["COMITY_KEY_FD=9", "COMITY_KEY_FILE"]),
    (&[("COMITY_KEY_FILE", "{key}"), ("COMITY_INSECURE", "1")], &["COMITY_INSECURE", "key"]),
    (&[("COMITY_INSECURE", "yes please")], &["COMITY_INSECURE", "\"yes please\""]),
    (&[("COMITY_SECURE", "yes")], &["COMITY_SECURE", "\"yes\"", "data"]),
    (&[("COMITY_INSECURE", "1"), ("COMITY_SECURE", "data")], &["COMITY_INSECURE", "COMITY_SECURE=data"]),
    (&[("COMITY_TIMEOUT", "0")], &["COMITY_TIMEOUT", "0ns"]),
    (&[("COMITY_TIMEOUT", "-5")], &["COMITY_TIMEOUT", "\"-5\""]),
    (&[("COMITY_TIMEOUT", "5s")], &["COMITY_TIMEOUT", "\"5s\""]),
    (&[("COMITY_TIMEOUT", "inf")], &["COMITY_TIMEOUT", "\"inf\""]),
    (&[("COMITY_TIMEOUT", "nan")], &["COMITY_TIMEOUT"]),
    (&[("COMITY_TIMEOUT", "1e9")], &["COMITY_TIMEOUT"]),
    (&[("COMITY_TIMEOUT", "99999999999")], &["COMITY_TIMEOUT", "ten years"]),
    (&[("COMITY_TIMEOUT", "999999999999999999999999")], &["COMITY_TIMEOUT"]),
    (&[("COMITY_TIMEOUT", "1.2.3")], &["COMITY_TIMEOUT"]),
    (&[("COMITY_TIMEOUT", ".")], &["COMITY_TIMEOUT"]),
    (&[("COMITY_JOIN_TIMEOUT", "0.0")], &["COMITY_JOIN_TIMEOUT"]),
    (&[("COMITY_JOIN_TIMEOUT", "soon")], &["COMITY_JOIN_TIMEOUT", "\"soon\""]),
    (&[("COMITY_LINKS", "")], &["COMITY_LINKS", "empty"]),
    (&[("COMITY_LINKS", "quic")], &["COMITY_LINKS", "\"quic\"", "allowed are shm, "]),
    (&[("COMITY_RDMA", "ud")], &["COMITY_RDMA", "\"ud\"", "rc nor uc"]),
    (&[("COMITY_DEVICES", "[[]]")], &["COMITY_DEVICES", "row 0 has 0 cells"]),
    (&[("MLX_IBV_DEVICES", "/nowhere")], &["MLX_IBV_DEVICES", "cannot be read"]),
    (
        &[R, S, ("COMITY_STORE", "h:1"), ("COMITY_INSECURE", "1"), ("COMITY_DEVICES", "[[null]]")],
        &["device matrix has 1 rows", "size is 4"],
    ),
    (&[("COMITY_BACKEND", "jaccl"), ("COMITY_LINKS", "tcp")], &["jaccl", "COMITY_LINKS"]),
    (
        &[("JACCL_RANK", "2"), ("JACCL_COORDINATOR", "10.0.0.1:7"), ("MLX_IBV_DEVICES", TWO)],
        &["JACCL_RANK=2", "MLX_IBV_DEVICES has 2 rows", "0 to 1"],
    ),
    (&[("COMITY_LINKS", "shm,")], &["COMITY_LINKS", "\"\""]),
    (&[("COMITY_LINKS", "shm tcp")], &["COMITY_LINKS"]),
    (&[("COMITY_LINKS", "tcp,tcp")], &["COMITY_LINKS", "twice"]),
    (&[("COMITY_ADDRS", "10.0.0.1,")], &["COMITY_ADDRS", "\"\""]),
    (&[("COMITY_ADDRS", "node1")], &["COMITY_ADDRS", "\"node1\""]),
    (&[("COMITY_ADDRS", "10.0.0.1:99999")], &["COMITY_ADDRS"]),
    (&[("COMITY_ADDRS", "0.0.0.0")], &["COMITY_ADDRS", "name the address"]),
    (&[("COMITY_ADDRS", "[::]:5000")], &["COMITY_ADDRS", "name the address"]),
    (&[("COMITY_ADDRS", "224.0.0.1")], &["COMITY_ADDRS", "many hosts"]),
    (&[("COMITY_ADDRS", "255.255.255.255")], &["COMITY_ADDRS", "many hosts"]),
    (&[("COMITY_ADDRS", "10.0.0.1,10.0.0.1")], &["COMITY_ADDRS", "twice"]),
    (&[("COMITY_DETECTION", "slow")], &["COMITY_DETECTION=\"slow\"", "patient (30 s)", "off", "2.5"]),
    (&[("COMITY_DETECTION", "Fast")], &["COMITY_DETECTION", "\"Fast\""]),
    (&[("COMITY_DETECTION", "-1")], &["COMITY_DETECTION", "\"-1\""]),
    (&[("COMITY_DETECTION", "")], &["COMITY_DETECTION", "empty"]),
    (&[("COMITY_DETECTION", "0.05")], &["COMITY_DETECTION", "50ms", "0.1 s to a day"]),
    (&[("COMITY_DETECTION", "100000")], &["COMITY_DETECTION", "0.1 s to a day"]),
    (&[("COMITY_CONNECTIONS", "0")], &["COMITY_CONNECTIONS", "1 to 64"]),
    (&[("COMITY_CONNECTIONS", "65")], &["COMITY_CONNECTIONS", "64"]),
    (&[("COMITY_SHARED_BUFFERS", "1G")], &["COMITY_SHARED_BUFFERS", "\"1G\""]),
    (&[("COMITY_PULL", "64K")], &["COMITY_PULL", "\"64K\""]),
    (&[("COMITY_PTRACER", "all")], &["COMITY_PTRACER", "\"all\"", "ancestor, any, keep"]),
    (&[("COMITY_SEND_THREADS", "65")], &["COMITY_SEND_THREADS", "0 to 64"]),
    (&[("COMITY_CONNECTIONS", "many")], &["COMITY_CONNECTIONS", "\"many\""]),
    (&[("COMITY_DEVICE", "cuda:0")], &["COMITY_DEVICE", "\"cuda:0\"", "0 to 1023"]),
    (&[("COMITY_HOST", "")], &["COMITY_HOST", "empty"]),
    (&[("COMITY_HOST", "{long}")], &["COMITY_HOST", "255"]),
    (&[("MLX_RANK", "0")], &["MLX_RANK=0", "MLX_HOSTFILE"]),
    (&[("MLX_HOSTFILE", "/nowhere")], &["MLX_HOSTFILE=/nowhere", "MLX_RANK"]),
    (&[("MLX_RANK", "0"), ("MLX_HOSTFILE", "/nowhere")], &["hostfile /nowhere"]),
    (&[("MLX_RANK", "abc"), ("MLX_HOSTFILE", "{hosts}")], &["MLX_RANK", "\"abc\""]),
    (&[("MLX_RANK", "-1"), ("MLX_HOSTFILE", "{hosts}")], &["MLX_RANK", "\"-1\""]),
    (&[("MLX_RANK", "3"), ("MLX_HOSTFILE", "{hosts}")], &["MLX_RANK=3", "bad", "0 to 2"]),
    (&[("MLX_RANK", "0"), ("MLX_HOSTFILE", "/")], &["hostfile /", "regular file"]),
    (&[R, S, ("MLX_HOSTFILE", "{hosts}")], &["hostfile", "3 ranks", "size is 4"]),
    (&[TR], &["RANK=1", "WORLD_SIZE"]),
    (&[TW], &["WORLD_SIZE=4", "RANK"]),
    (&[TR, TW], &["MASTER_ADDR", "MASTER_PORT"]),
    (&[TR, TW, ("MASTER_ADDR", "h")], &["MASTER_ADDR=h", "MASTER_PORT"]),
    (&[TR, TW, ("MASTER_PORT", "1")], &["MASTER_PORT=1", "MASTER_ADDR"]),
    (&[TR, TW, ("MASTER_ADDR", "h"), ("MASTER_PORT", "0")], &["MASTER_PORT", "1 to 65535"]),
    (&[TR, TW, ("MASTER_ADDR", "h"), ("MASTER_PORT", "x")], &["MASTER_PORT", "\"x\""]),
    (&[TR, TW, ("MASTER_ADDR", "h/1"), ("MASTER_PORT", "1")], &["MASTER_ADDR", "\"h/1\""]),
    (&[TR, TW, ("MASTER_ADDR", ""), ("MASTER_PORT", "1")], &["MASTER_ADDR", "empty"]),
    (&[("RANK", "4"), TW], &["RANK=4", "WORLD_SIZE=4"]),
    (&[("RANK", "private"), TW], &["RANK", "\"private\""]),
    (&[TR, TW, ("LOCAL_RANK", "x")], &["LOCAL_RANK", "\"x\""]),
    (&[TR, TW, ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")], &["LOCAL_RANK=2"]),
    (&[TR, TW, ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "0")], &["LOCAL_WORLD_SIZE=0"]),
    (
        &[TR, TW, ("MASTER_ADDR", "h"), ("MASTER_PORT", "1"), ("TORCHELASTIC_USE_AGENT_STORE", "maybe")],
        &["TORCHELASTIC_USE_AGENT_STORE", "\"maybe\""],
    ),
    (
        &[TR, TW, ("TORCHELASTIC_RUN_ID", "a"), ("TORCHELASTIC_RESTART_COUNT", "x")],
        &["TORCHELASTIC_RESTART_COUNT", "\"x\""],
    ),
    (&[OR], &["OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE"]),
    (&[OR, OS], &["several hosts", "MASTER_ADDR"]),
    (
        &[OR, OS, ("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")],
        &["several hosts", "-x MASTER_ADDR"],
    ),
    (
        &[OR, OS, ("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")],
        &["PMIX_NAMESPACE", "COMITY_JOB"],
    ),
    (&[OR, ("OMPI_COMM_WORLD_SIZE", "1")], &["OMPI_COMM_WORLD_RANK=1", "0 to 0"]),
    (&[PR], &["PMI_RANK=1", "PMI_SIZE"]),
    (&[PS], &["PMI_SIZE=4", "PMI_RANK"]),
    (&[PR, PS], &["PMI_FD", "MASTER_ADDR"]),
    (&[PR, PS, ("PMI_FD", "six")], &["PMI_FD", "\"six\""]),
    (&[PR, PS, ("PMI_FD", "-1")], &["PMI_FD", "\"-1\""]),
    (&[PR, PS, ("PMI_FD", "6"), ("MPI_LOCALRANKID", "x")], &["MPI_LOCALRANKID", "\"x\""]),
    (&[SJ, ("SLURM_STEP_ID", "batch"), SP, SN], &["SLURM_STEP_ID", "\"batch\""]),
    (&[SJ, SS], &["SLURM_STEP_ID=0", "SLURM_PROCID"]),
    (&[SJ, SS, SP], &["SLURM_PROCID=1", "SLURM_NTASKS"]),
    (&[SJ, SS, SN], &["SLURM_NTASKS=4", "SLURM_PROCID"]),
    (&[SS, SP, SN], &["SLURM_JOB_ID"]),
    (&[SJ, SS, SP, SN], &["SLURM_JOB_NODELIST"]),
    (&[SJ, SS, SP, SN, ("SLURM_STEP_NODELIST", "gpu[1-")], &["SLURM_STEP_NODELIST", "bracket"]),
    (&[SJ, SS, SP, SN, ("SLURM_JOB_NODELIST", ",")], &["SLURM_JOB_NODELIST"]),
    (&[SJ, SS, SP, SN, ("SLURM_JOB_NODELIST", "a b")], &["SLURM_JOB_NODELIST", "\"a b\""]),
    (
        &[SJ, SS, SP, SN, ("SLURM_LOCALID", "0"), ("SLURM_NODEID", "1"), ("SLURM_STEP_TASKS_PER_NODE", "4")],
        &["SLURM_STEP_TASKS_PER_NODE", "node 1"],
    ),
    (
        &[SJ, SS, SP, SN, ("SLURM_LOCALID", "4"), ("SLURM_NODEID", "0"), ("SLURM_STEP_TASKS_PER_NODE", "4")],
        &["SLURM_LOCALID=4"],
    ),
];

const NO_NUMBER: [&str; 10] =
    ["", " ", "x", "-1", "+1", "1.0", " 1", "1 ", "99999999999999999999", "1\u{1b}[31m"];
const NO_FLAG: [&str; 5] = ["", "yes", "2", "TRUE", "-1"];

/// A variable, those that it belongs to, and values that it cannot have.
type Row = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const VALUES: &[Row] = &[
    ("COMITY_RANK", &[S], &NO_NUMBER),
    ("COMITY_SIZE", &[R], &NO_NUMBER),
    (
        "COMITY_STORE",
        &[R, S],
        &["-oX:1", "a\n:1", "$(id):1", "a:1,", "a:1,b", "a:1,,b:1", "a:1;b:1", "fe80::1%en0:1"],
    ),
    ("COMITY_JOIN_TIMEOUT", &[], &["", "0", "-1", "nan", "inf", "1e9", "1s"]),
    (
        "COMITY_INTERFACES",
        &[],
        &["", ",", "en,", "^", "=", "!", "a b", "10.0.0.0/33", "fd00::/0", "10.0.0/8"],
    ),
    ("COMITY_PORTS", &[], &["", "0", "x", "7-6", "1-", "-1", "65536", "1-65536", "0-9", "7:10", "+1-2"]),
    ("COMITY_DETECTION", &[], &["0", "0.001", "nan", "1e9"]),
    ("COMITY_LINKS", &[], &[",", "SHM", "roce", "shm,shm"]),
    ("COMITY_ADDRS", &[], &["", "a", "::", "10.0.0.1:x", "-oX", ","]),
    ("COMITY_RELAY", &[], &NO_FLAG),
    ("COMITY_INSECURE", &[], &NO_FLAG),
    ("COMITY_CONNECTIONS", &[], &NO_NUMBER),
    ("COMITY_SEND_THREADS", &[], &NO_NUMBER),
    ("COMITY_SHARED_BUFFERS", &[], &NO_NUMBER),
    ("COMITY_PULL", &[], &NO_NUMBER),
    ("COMITY_PTRACER", &[], &["", "Any", "1"]),
    ("COMITY_DEVICE", &[], &NO_NUMBER),
    ("COMITY_DEVICE", &[], &["1024"]),
    ("COMITY_HOST", &[], &["a\u{7}"]),
    ("COMITY_KEY_FD", &[], &NO_NUMBER),
    ("COMITY_STATS_FD", &[], &NO_NUMBER),
    ("COMITY_HOST_CORES", &[], &NO_NUMBER),
    ("COMITY_LOG_DIR", &[], &[""]),
    ("RANK", &[TW], &NO_NUMBER),
    ("WORLD_SIZE", &[TR], &NO_NUMBER),
    ("MASTER_ADDR", &[TR, TW, ("MASTER_PORT", "9")], &["-oX", "a b", "1.2.3.256", "a;id", "a,", "a,,b"]),
    ("MASTER_PORT", &[TR, TW, ("MASTER_ADDR", "h")], &["", "-1", "65536"]),
    ("OMPI_COMM_WORLD_RANK", &[OS], &NO_NUMBER),
    ("OMPI_COMM_WORLD_SIZE", &[OR], &NO_NUMBER),
    ("PMI_RANK", &[PS], &NO_NUMBER),
    ("PMI_SIZE", &[PR], &NO_NUMBER),
    ("SLURM_PROCID", &[SJ, SS, SN], &NO_NUMBER),
    ("SLURM_NTASKS", &[SJ, SS, SP], &NO_NUMBER),
    ("SLURM_JOB_NODELIST", &[SJ, SS, SP, SN], &["", "a[", "a[1-", "-oX", "[]"]),
];

#[test]
fn a_value_that_a_variable_cannot_have_is_an_error_that_names_it() {
    for (name, others, values) in VALUES {
        for value in *values {
            let e = from(&[*others, &[(name, value)]].concat()).unwrap_err().to_string();
            assert!(e.contains(name) && !e.chars().any(char::is_control), "{name}={value:?}: {e:?}");
        }
    }
}

#[test]
fn bad_variables_are_named() {
    let key = Temp::new("bad-key", &[7; 32]);
    let open = Temp::new("open-key", &[7; 32]);
    fs::set_permissions(&open.0, fs::Permissions::from_mode(0o644)).unwrap();
    let hosts = Temp::new("bad", HOSTS);
    let long = "x".repeat(300);
    let put = |value: &str| match value {
        "{key}" => key.path().to_owned(),
        "{open}" => open.path().to_owned(),
        "{hosts}" => hosts.path().to_owned(),
        "{long}" => long.clone(),
        other => other.to_owned(),
    };
    assert!(CASES.len() >= 100);
    for (vars, shown) in CASES {
        let vars: Vec<(&str, String)> = vars.iter().map(|(name, value)| (*name, put(value))).collect();
        let vars: Vec<(&str, &str)> = vars.iter().map(|(name, value)| (*name, &value[..])).collect();
        let e = match at_once(|| from(&vars)) {
            Err(e) => {
                let ErrorKind::Config(e) = e.kind() else { panic!("{vars:?}: {e}") };
                // What has a name has it in the sentence, too; the matrix of devices has two variables.
                let named = e.key.iter().all(|key| *key == "devices" || e.to_string().contains(&key[..]));
                assert!(named, "{vars:?}: {e} is about {:?}", e.key);
                e.to_string()
            }
            Ok(found) => panic!("{vars:?}: {found:?}"),
        };
        for part in *shown {
            assert!(e.contains(part), "{vars:?}: {e}");
        }
    }
}

#[test]
fn bytes_that_are_no_text_are_named() {
    use std::os::unix::ffi::OsStringExt;
    let e = Settings::from_vars(&|n| (n == "COMITY_RANK").then(|| OsString::from_vec(vec![b'1', 0xff])))
        .unwrap_err();
    assert!(e.to_string().contains("COMITY_RANK") && e.to_string().contains("UTF-8"), "{e}");
}
