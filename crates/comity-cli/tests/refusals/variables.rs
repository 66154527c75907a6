//! Bad variables: a good set for some launcher, and one value in it that makes no sense.
use super::Case;
use super::dice;
use scope::Rng;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

const NO_NUMBER: [&str; 12] =
    ["", " ", "x", "-1", "+1", "1.0", " 1", "1 ", "0x1", "99999999999999999999", "\u{661}", "1\u{1b}[31m"];
const NO_PLACE: [&str; 14] = [
    "",
    "a",
    ":1",
    "a:",
    "a:0",
    "a:65536",
    "a:x",
    "-oProxyCommand=id:1",
    "a b:1",
    "[::1:1",
    "::1:1",
    "1.2.3.256:1",
    "a\n:1",
    "$(id):1",
];
const NO_TIME: [&str; 9] = ["", "0", "-1", "x", "nan", "inf", "1e9", "1s", "99999999999999999999"];
const NO_FLAG: [&str; 5] = ["", "yes", "2", "TRUE", "-1"];

const COMITY: &[(&str, &str)] =
    &[("COMITY_RANK", "0"), ("COMITY_SIZE", "2"), ("COMITY_STORE", "127.0.0.1:9")];
const TORCH: &[(&str, &str)] =
    &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "9")];
const OPEN_MPI: &[(&str, &str)] = &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
const MPICH: &[(&str, &str)] = &[("PMI_RANK", "0"), ("PMI_SIZE", "2")];
const SLURM: &[(&str, &str)] = &[
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "0"),
    ("SLURM_NTASKS", "2"),
    ("SLURM_JOB_ID", "7"),
    ("SLURM_JOB_NODELIST", "a"),
];

/// The variable, the set that it belongs to, and values that it cannot have.
type Row = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const TABLE: [Row; 47] = [
    ("COMITY_RANK", COMITY, &NO_NUMBER),
    ("COMITY_RANK", COMITY, &["2", "3", "65536"]),
    ("COMITY_SIZE", COMITY, &NO_NUMBER),
    ("COMITY_SIZE", COMITY, &["0", "65537"]),
    ("COMITY_LOCAL_RANK", COMITY, &["0", "x", ""]),
    ("COMITY_LOCAL_SIZE", COMITY, &["1", "x", ""]),
    ("COMITY_STORE", COMITY, &NO_PLACE),
    ("COMITY_STORE", COMITY, &["a:1,", "a:1,b", "a:1,,b:1", ",a:1", "fe80::1%en0:1", "a:1;b:1"]),
    ("COMITY_STORE", &[], &["127.0.0.1:9"]),
    ("COMITY_JOB", COMITY, &["", "a\nb"]),
    ("COMITY_TIMEOUT", COMITY, &NO_TIME),
    ("COMITY_JOIN_TIMEOUT", COMITY, &NO_TIME),
    ("COMITY_DETECTION", COMITY, &["", "slow", "-1", "0", "0.001", "nan", "1e9"]),
    ("COMITY_LINKS", COMITY, &["", "roce", "shm,shm", ",", "shm tcp", "SHM"]),
    (
        "COMITY_ADDRS",
        COMITY,
        &["", "a", "0.0.0.0", "::", "224.0.0.1", "10.0.0.1,10.0.0.1", "10.0.0.1:x", "-oX", ","],
    ),
    (
        "COMITY_INTERFACES",
        COMITY,
        &["", ",", "en,", "^", "=", "!", "a b", "10.0.0.0/33", "fd00::/0", "10.0.0/8"],
    ),
    (
        "COMITY_PORTS",
        COMITY,
        &["", "0", "x", "7-6", "1-", "-1", "65536", "1-65536", "0-9", "7000:7010", "+1-2"],
    ),
    ("COMITY_RELAY", COMITY, &NO_FLAG),
    ("COMITY_CONNECTIONS", COMITY, &NO_NUMBER),
    ("COMITY_CONNECTIONS", COMITY, &["0", "65"]),
    ("COMITY_SEND_THREADS", COMITY, &NO_NUMBER),
    ("COMITY_SEND_THREADS", COMITY, &["65"]),
    ("COMITY_SHARED_BUFFERS", COMITY, &NO_NUMBER),
    ("COMITY_PULL", COMITY, &NO_NUMBER),
    ("COMITY_PTRACER", COMITY, &["", "all", "Any", "1"]),
    ("COMITY_DEVICE", COMITY, &NO_NUMBER),
    ("COMITY_DEVICE", COMITY, &["1024"]),
    ("COMITY_HOST", COMITY, &["", "a\u{7}"]),
    ("COMITY_INSECURE", COMITY, &NO_FLAG),
    ("COMITY_KEY_FD", COMITY, &NO_NUMBER),
    ("COMITY_KEY_FD", COMITY, &["999"]),
    ("COMITY_KEY_FILE", COMITY, &["", "missing.key", "tmp", "open.key", "short.key"]),
    ("COMITY_STATS_FD", COMITY, &NO_NUMBER),
    ("COMITY_HOST_CORES", COMITY, &NO_NUMBER),
    ("COMITY_LOG_DIR", COMITY, &[""]),
    ("RANK", TORCH, &NO_NUMBER),
    ("WORLD_SIZE", TORCH, &NO_NUMBER),
    ("LOCAL_RANK", TORCH, &["x", "", "-1"]),
    ("MASTER_PORT", TORCH, &["", "0", "x", "-1", "65536"]),
    ("MASTER_ADDR", TORCH, &["", "-oX", "a b", "1.2.3.256", "a;id", "a,", "a,,b"]),
    ("OMPI_COMM_WORLD_RANK", OPEN_MPI, &NO_NUMBER),
    ("OMPI_COMM_WORLD_SIZE", OPEN_MPI, &NO_NUMBER),
    ("PMI_RANK", MPICH, &NO_NUMBER),
    ("PMI_SIZE", MPICH, &NO_NUMBER),
    ("SLURM_PROCID", SLURM, &NO_NUMBER),
    ("SLURM_NTASKS", SLURM, &NO_NUMBER),
    ("SLURM_JOB_NODELIST", SLURM, &["", "a[", "a[1-", "-oX", "[]"]),
];

/// 140 made from the seed, and those below.
pub(crate) fn all(dir: &Path) -> Vec<Case> {
    use std::os::unix::fs::PermissionsExt;
    for (name, text, mode) in [("open.key", "a".repeat(64), 0o644), ("short.key", "ab".into(), 0o600)] {
        std::fs::write(dir.join(name), text).unwrap();
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut dice = dice(2);
    let mut cases: Vec<Case> = (0..140)
        .map(|i| {
            let (name, base, values) = TABLE[i % TABLE.len()];
            let case = command(&mut dice).says(&[name]);
            let case = base.iter().filter(|(n, _)| *n != name).fold(case, |c, (n, v)| c.env(n, *v));
            case.env(name, *dice.pick(values))
        })
        .collect();
    let mut add = |env: &[(&str, &str)], says: &[&str]| {
        let case = env.iter().fold(command(&mut dice), |case, (name, value)| case.env(name, *value));
        cases.push(case.says(says));
    };
    add(&[("COMITY_RANK", "0")], &["COMITY_RANK=0", "COMITY_SIZE is not"]);
    add(&[("COMITY_SIZE", "2")], &["COMITY_SIZE=2", "COMITY_RANK is not"]);
    add(&[("COMITY_RANK", "0"), ("COMITY_SIZE", "2")], &["COMITY_STORE=host:port"]);
    add(&[("COMITY_LOCAL_RANK", "0")], &["COMITY_LOCAL_RANK=0"]);
    add(&[("MLX_RANK", "0")], &["MLX_RANK=0", "MLX_HOSTFILE is not"]);
    add(&[("RANK", "0"), ("WORLD_SIZE", "2")], &["MASTER_ADDR"]);
    add(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")], &["MASTER_PORT is not"]);
    add(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")], &["PMI_FD is not"]);
    add(&[("SLURM_STEP_ID", "0")], &["SLURM_PROCID"]);
    let bytes = OsString::from_vec(b"\xff\xfe".to_vec());
    cases.push(Case::new(&["info"]).env("COMITY_RANK", bytes).says(&["COMITY_RANK", "UTF-8"]));
    cases
}

/// A command that reads them.
fn command(dice: &mut Rng) -> Case {
    let all = [&["info"][..], &["check", "--quick"], &["bench", "--iters", "5"], &["info", "--json"]];
    Case::new(all[dice.below(all.len())])
}
