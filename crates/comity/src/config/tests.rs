//! Every launcher's variables, good and bad.

use super::{hostfile::Hostfile, *};
use proptest::prelude::*;
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Instant};

type Vars<'a> = &'a [(&'a str, &'a str)];
/// Variables, and what the error about them shows.
type Bad<'a> = (Vec<(&'a str, &'a str)>, &'a [&'a str]);
/// Sets of variables; launcher, rank, size, local place, job and part of the meeting place.
type Good<'a> = (Vec<Vars<'a>>, Launcher, usize, usize, Option<(usize, usize)>, &'a str, &'a str);

fn from(vars: Vars<'_>) -> Result<Config> {
    Config::from_vars(|name| vars.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
}

/// What `f` comes to, within 100 ms: the best of some tries counts, for the machine may be busy.
fn at_once<T>(f: impl Fn() -> T) -> T {
    for _ in 0..20 {
        let (start, out) = (Instant::now(), f());
        if start.elapsed() < Duration::from_millis(100) {
            return out;
        }
    }
    panic!("never within 100 ms")
}

/// A file that is gone with the value.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("comity-config-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const HOSTS: &[u8] = br#"[["10.0.0.1:5000", "10.1.0.1:5000"], ["node7:5000"], ["[fe80::1%4]:5000"]]"#;

#[test]
fn alone_without_variables() {
    let c = from(&[("PATH", "/bin")]).unwrap();
    assert_eq!((c.rank, c.size, c.local), (0, 1, Some((0, 1))));
    assert!(matches!(c.meet, Meet::Alone));
    assert_eq!(c.found.launcher, Launcher::Alone);
    assert!(c.found.seen.is_empty());
    assert_eq!((c.timeout, c.join_timeout), (Duration::from_secs(300), Duration::from_secs(60)));
}

#[test]
fn each_launcher() {
    let hosts = Temp::new("each", HOSTS);
    let torch = [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
    let master = [("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
    let agent = [
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RUN_ID", "run"),
        ("TORCHELASTIC_RESTART_COUNT", "2"),
    ];
    let ompi = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_NAMESPACE", "877395969"),
    ];
    let pmi = [
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "3"),
        ("PMI_FD", "6"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "3"),
    ];
    let slurm = [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "64"),
        ("SLURM_STEP_NUM_TASKS", "9"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "4(x2),1"),
        ("SLURM_STEP_NODELIST", "gpu[03-04],login"),
    ];
    let comity = [
        ("COMITY_RANK", "1"),
        ("COMITY_SIZE", "4"),
        ("COMITY_LOCAL_RANK", "1"),
        ("COMITY_LOCAL_SIZE", "4"),
        ("COMITY_STORE", "127.0.0.1:4000"),
        ("COMITY_JOB", "beef"),
    ];
    let mlx = [("MLX_RANK", "2"), ("MLX_HOSTFILE", hosts.path())];
    let job = format!("mlx-{:x}", fnv(HOSTS));
    let port = 20_000 + fnv(b"77.0") % 20_000;
    let first = format!("at rank 0's store at gpu03:{port}");
    let cases: Vec<Good<'_>> = vec![
        (vec![&comity], Launcher::Comity, 1, 4, Some((1, 4)), "beef", "at the store at 127.0.0.1:4000"),
        (vec![&comity[..2], &master], Launcher::Comity, 1, 4, None, "-", "at rank 0's store at node1:29500"),
        (
            vec![&mlx],
            Launcher::Mlx,
            2,
            3,
            None,
            &job,
            "at rank 0's store at 10.0.0.1:5000, from the hostfile",
        ),
        (vec![&torch, &master], Launcher::Torch, 3, 8, Some((1, 2)), "-", "at rank 0's store at node1:29500"),
        (
            vec![&torch, &master, &agent],
            Launcher::Torch,
            3,
            8,
            Some((1, 2)),
            "run.2",
            "torchrun's store at node1:29500",
        ),
        (vec![&ompi], Launcher::OpenMpi, 1, 4, Some((1, 4)), "877395969", "a Unix socket"),
        (
            vec![&ompi, &master],
            Launcher::OpenMpi,
            1,
            4,
            Some((1, 4)),
            "877395969",
            "at rank 0's store at node1:29500",
        ),
        (vec![&pmi], Launcher::Mpich, 1, 3, Some((1, 3)), "-", "process manager (PMI_FD=6)"),
        (vec![&slurm], Launcher::Slurm, 5, 9, Some((1, 4)), "77.0", &first),
        (vec![&slurm, &master], Launcher::Slurm, 5, 9, Some((1, 4)), "77.0", "node1:29500"),
        // The order, and COMITY_STORE under another launcher.
        (
            vec![&slurm, &pmi, &ompi, &torch, &master, &mlx, &comity],
            Launcher::Comity,
            1,
            4,
            Some((1, 4)),
            "beef",
            "store",
        ),
        (vec![&slurm, &pmi, &ompi, &torch, &master, &mlx], Launcher::Mlx, 2, 3, None, &job, "hostfile"),
        (vec![&slurm, &pmi, &ompi, &torch, &master], Launcher::Torch, 3, 8, Some((1, 2)), "-", "node1"),
        (vec![&slurm, &pmi, &ompi], Launcher::OpenMpi, 1, 4, Some((1, 4)), "877395969", "Unix"),
        (vec![&slurm, &pmi], Launcher::Mpich, 1, 3, Some((1, 3)), "-", "PMI_FD"),
        (
            vec![&torch, &comity[4..5]],
            Launcher::Torch,
            3,
            8,
            Some((1, 2)),
            "-",
            "at the store at 127.0.0.1:4000",
        ),
    ];
    for (sets, launcher, rank, size, local, job, meet) in cases {
        let vars = sets.concat();
        let c = from(&vars).unwrap_or_else(|e| panic!("{vars:?}: {e}"));
        assert_eq!(c.found.launcher, launcher, "{vars:?}");
        assert_eq!((c.rank, c.size, c.local), (rank, size, local), "{vars:?}");
        assert_eq!(c.job, job, "{vars:?}");
        assert!(c.meet.to_string().contains(meet), "{vars:?}: {}", c.meet);
        assert!(c.found.why.contains(&launcher.to_string()), "{}", c.found.why);
        for (name, value) in &c.found.seen {
            assert!(vars.contains(&(name, value)), "{name}");
        }
    }
}

#[test]
fn one_rank_needs_no_place_to_meet() {
    for vars in [
        &[("COMITY_RANK", "0"), ("COMITY_SIZE", "1")][..],
        &[("RANK", "0"), ("WORLD_SIZE", "1")],
        &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")],
        &[("PMI_RANK", "0"), ("PMI_SIZE", "1")],
        &[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")],
    ] {
        let c = from(vars).unwrap();
        assert!(matches!(c.meet, Meet::Alone) && c.size == 1, "{vars:?}");
        assert_ne!(c.found.launcher, Launcher::Alone);
    }
}

#[test]
fn a_slurm_shell_is_no_step() {
    let shell = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "0")];
    for step in [None, Some("4294967290"), Some("4294967291"), Some("4294967292")] {
        let mut vars = shell.to_vec();
        vars.extend(step.map(|s| ("SLURM_STEP_ID", s)));
        let c = from(&vars).unwrap();
        assert_eq!((c.size, c.found.launcher), (1, Launcher::Alone), "{step:?}");
        assert!(c.found.why.contains("srun"), "{}", c.found.why);
    }
}

#[test]
fn settings_hold_everywhere() {
    let key = Temp::new("settings-key", &[7; 32]);
    let c = from(&[
        ("COMITY_KEY_FILE", key.path()),
        ("COMITY_TIMEOUT", "2.5"),
        ("COMITY_JOIN_TIMEOUT", "10"),
        ("COMITY_LINKS", "tcp"),
        ("COMITY_ADDRS", "10.0.0.1, 10.0.0.2:7000,[fe80::1%4]:7000,::1,[::2]"),
        ("COMITY_CONNECTIONS", "4"),
        ("COMITY_DEVICE", "3"),
        ("COMITY_DETECTION", "2.5"),
        ("COMITY_HOST", "desk"),
        ("COMITY_JOB", "my job"),
    ])
    .unwrap();
    assert_eq!(c.key.as_ref().map(Key::bytes), Some(&[7; 32]));
    assert_eq!((c.timeout, c.join_timeout), (Duration::from_millis(2500), Duration::from_secs(10)));
    assert_eq!(c.links, Links { shm: false, tcp: true, rdma: false });
    let addrs: Vec<_> = c.addrs.iter().map(ToString::to_string).collect();
    assert_eq!(addrs, ["10.0.0.1:0", "10.0.0.2:7000", "[fe80::1%4]:7000", "[::1]:0", "[::2]:0"]);
    assert_eq!((c.connections, c.host.as_deref(), c.job.as_str()), (4, Some("desk"), "my job"));
    assert_eq!((c.device, from(&[]).unwrap().device), (Some(3), None));
    assert_eq!(c.detection, Detection::After(Duration::from_millis(2500)));
    for (text, detection) in [
        ("fast", Detection::Fast),
        ("normal", Detection::Normal),
        ("patient", Detection::Patient),
        ("off", Detection::Off),
        ("1", Detection::After(Duration::from_secs(1))),
    ] {
        assert_eq!(from(&[("COMITY_DETECTION", text)]).unwrap().detection, detection);
    }
    assert_eq!(from(&[]).unwrap().detection.limit(), Some(Duration::from_secs(5)));
    for (text, insecure) in [("1", Insecure::Private), ("0", Insecure::No), ("public", Insecure::Public)] {
        assert_eq!(from(&[("COMITY_INSECURE", text)]).unwrap().insecure, insecure);
    }
    for (text, secure) in [("data", Secure::Data), ("handshake", Secure::Handshake)] {
        assert_eq!(from(&[("COMITY_SECURE", text)]).unwrap().secure, secure);
    }
}

const TWO: &str = r#"[[null, "a"], ["b", null]]"#;

#[test]
fn bad_variables_are_named() {
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
    let key = Temp::new("bad-key", &[7; 32]);
    let open = Temp::new("open-key", &[7; 32]);
    fs::set_permissions(&open.0, fs::Permissions::from_mode(0o644)).unwrap();
    let hosts = Temp::new("bad", HOSTS);
    let long = "x".repeat(300);
    let cases: Vec<Bad<'_>> = vec![
        (vec![R], &["COMITY_RANK=1", "COMITY_SIZE"]),
        (vec![S], &["COMITY_SIZE=4", "COMITY_RANK"]),
        (vec![("COMITY_RANK", "one"), S], &["COMITY_RANK", "\"one\"", "0 to"]),
        (vec![("COMITY_RANK", "-1"), S], &["COMITY_RANK", "\"-1\""]),
        (vec![("COMITY_RANK", "+1"), S], &["COMITY_RANK", "\"+1\""]),
        (vec![("COMITY_RANK", " 1"), S], &["COMITY_RANK", "\" 1\""]),
        (vec![("COMITY_RANK", "1.0"), S], &["COMITY_RANK", "\"1.0\""]),
        (vec![("COMITY_RANK", "0x1"), S], &["COMITY_RANK"]),
        (vec![("COMITY_RANK", ""), S], &["COMITY_RANK", "empty"]),
        (vec![("COMITY_RANK", "99999999999999999999"), S], &["COMITY_RANK"]),
        (vec![("COMITY_RANK", "4"), S, ST], &["COMITY_RANK=4", "COMITY_SIZE=4", "0 to 3"]),
        (vec![R, ("COMITY_SIZE", "0")], &["COMITY_SIZE=0"]),
        (vec![R, ("COMITY_SIZE", "four")], &["COMITY_SIZE", "\"four\""]),
        (vec![R, ("COMITY_SIZE", "-4")], &["COMITY_SIZE", "\"-4\""]),
        (vec![R, ("COMITY_SIZE", "65537")], &["COMITY_SIZE", "65536"]),
        (vec![R, ("COMITY_SIZE", "")], &["COMITY_SIZE", "empty"]),
        (vec![R, S], &["COMITY_STORE", "MASTER_ADDR"]),
        (vec![R, S, ("COMITY_STORE", "")], &["COMITY_STORE", "empty"]),
        (vec![R, S, ("COMITY_STORE", "host")], &["COMITY_STORE", "\"host\"", "port is missing"]),
        (vec![R, S, ("COMITY_STORE", "host:")], &["COMITY_STORE", "\"host:\""]),
        (vec![R, S, ("COMITY_STORE", ":1")], &["COMITY_STORE", "host is missing"]),
        (vec![R, S, ("COMITY_STORE", "h:0")], &["COMITY_STORE", "port 0"]),
        (vec![R, S, ("COMITY_STORE", "h:65536")], &["COMITY_STORE", "\"65536\"", "1 to 65535"]),
        (vec![R, S, ("COMITY_STORE", "h:-1")], &["COMITY_STORE", "\"-1\""]),
        (vec![R, S, ("COMITY_STORE", "h:http")], &["COMITY_STORE", "\"http\""]),
        (vec![R, S, ("COMITY_STORE", "::1:5")], &["COMITY_STORE", "brackets"]),
        (vec![R, S, ("COMITY_STORE", "[::1]")], &["COMITY_STORE", "]:port"]),
        (vec![R, S, ("COMITY_STORE", "[::1]5")], &["COMITY_STORE"]),
        (vec![R, S, ("COMITY_STORE", "[nine]:5")], &["COMITY_STORE", "IPv6"]),
        (vec![R, S, ("COMITY_STORE", "1.2.3.4.5:5")], &["COMITY_STORE", "IPv4"]),
        (vec![R, S, ("COMITY_STORE", "10.0.0.256:5")], &["COMITY_STORE", "IPv4"]),
        (vec![R, S, ("COMITY_STORE", "a b:5")], &["COMITY_STORE", "\"a b\""]),
        (vec![R, S, ("COMITY_STORE", "http://h:5")], &["COMITY_STORE"]),
        (vec![R, S, ("COMITY_STORE", "0.0.0.0:5")], &["0.0.0.0:5", "nobody can connect"]),
        (vec![ST], &["COMITY_STORE=127.0.0.1:4000", "COMITY_RANK"]),
        (vec![("COMITY_LOCAL_RANK", "0")], &["COMITY_LOCAL_RANK=0", "COMITY_RANK"]),
        (vec![R, S, ST, ("COMITY_LOCAL_RANK", "0")], &["COMITY_LOCAL_RANK", "COMITY_LOCAL_SIZE"]),
        (vec![R, S, ST, ("COMITY_LOCAL_SIZE", "2")], &["COMITY_LOCAL_SIZE", "COMITY_LOCAL_RANK"]),
        (
            vec![R, S, ST, ("COMITY_LOCAL_RANK", "2"), ("COMITY_LOCAL_SIZE", "2")],
            &["COMITY_LOCAL_RANK=2", "0 to 1"],
        ),
        (
            vec![R, S, ST, ("COMITY_LOCAL_RANK", "0"), ("COMITY_LOCAL_SIZE", "5")],
            &["COMITY_LOCAL_SIZE=5", "1 to 4"],
        ),
        (
            vec![R, S, ST, ("COMITY_LOCAL_RANK", "x"), ("COMITY_LOCAL_SIZE", "5")],
            &["COMITY_LOCAL_RANK", "\"x\""],
        ),
        (vec![R, S, ST, ("COMITY_JOB", "")], &["COMITY_JOB", "empty"]),
        (vec![R, S, ST, ("COMITY_JOB", "a\nb")], &["job", "a\\nb"]),
        (vec![R, S, ST, ("COMITY_JOB", &long)], &["job", "255"]),
        (vec![("COMITY_KEY_FD", "three")], &["COMITY_KEY_FD", "\"three\""]),
        (vec![("COMITY_KEY_FD", "-1")], &["COMITY_KEY_FD", "\"-1\""]),
        (vec![("COMITY_KEY_FD", "1000000")], &["COMITY_KEY_FD", "1000000"]),
        (vec![("COMITY_KEY_FILE", "/nowhere/key")], &["COMITY_KEY_FILE", "/nowhere/key"]),
        (vec![("COMITY_KEY_FILE", "/")], &["COMITY_KEY_FILE", "regular file"]),
        (vec![("COMITY_KEY_FILE", open.path())], &["COMITY_KEY_FILE", "0644", "chmod 600"]),
        (
            vec![("COMITY_KEY_FILE", key.path()), ("COMITY_KEY_FD", "9")],
            &["COMITY_KEY_FD=9", "COMITY_KEY_FILE"],
        ),
        (vec![("COMITY_KEY_FILE", key.path()), ("COMITY_INSECURE", "1")], &["COMITY_INSECURE", "key"]),
        (vec![("COMITY_INSECURE", "yes please")], &["COMITY_INSECURE", "\"yes please\""]),
        (vec![("COMITY_SECURE", "yes")], &["COMITY_SECURE", "\"yes\"", "data"]),
        (
            vec![("COMITY_INSECURE", "1"), ("COMITY_SECURE", "data")],
            &["COMITY_INSECURE", "COMITY_SECURE=data"],
        ),
        (vec![("COMITY_TIMEOUT", "0")], &["COMITY_TIMEOUT", "0ns"]),
        (vec![("COMITY_TIMEOUT", "-5")], &["COMITY_TIMEOUT", "\"-5\""]),
        (vec![("COMITY_TIMEOUT", "5s")], &["COMITY_TIMEOUT", "\"5s\""]),
        (vec![("COMITY_TIMEOUT", "inf")], &["COMITY_TIMEOUT", "\"inf\""]),
        (vec![("COMITY_TIMEOUT", "nan")], &["COMITY_TIMEOUT"]),
        (vec![("COMITY_TIMEOUT", "1e9")], &["COMITY_TIMEOUT"]),
        (vec![("COMITY_TIMEOUT", "99999999999")], &["COMITY_TIMEOUT", "ten years"]),
        (vec![("COMITY_TIMEOUT", "999999999999999999999999")], &["COMITY_TIMEOUT"]),
        (vec![("COMITY_TIMEOUT", "1.2.3")], &["COMITY_TIMEOUT"]),
        (vec![("COMITY_TIMEOUT", ".")], &["COMITY_TIMEOUT"]),
        (vec![("COMITY_JOIN_TIMEOUT", "0.0")], &["COMITY_JOIN_TIMEOUT"]),
        (vec![("COMITY_JOIN_TIMEOUT", "soon")], &["COMITY_JOIN_TIMEOUT", "\"soon\""]),
        (vec![("COMITY_LINKS", "")], &["COMITY_LINKS", "empty"]),
        (vec![("COMITY_LINKS", "quic")], &["COMITY_LINKS", "\"quic\"", "shm, tcp and rdma"]),
        (vec![("COMITY_RDMA", "ud")], &["COMITY_RDMA", "\"ud\"", "rc nor uc"]),
        (vec![("COMITY_DEVICES", "[[]]")], &["COMITY_DEVICES", "row 0 has 0 cells"]),
        (vec![("MLX_IBV_DEVICES", "/nowhere")], &["MLX_IBV_DEVICES", "cannot be read"]),
        (
            vec![R, S, ("COMITY_STORE", "h:1"), ("COMITY_INSECURE", "1"), ("COMITY_DEVICES", "[[null]]")],
            &["device matrix has 1 rows", "size is 4"],
        ),
        (vec![("COMITY_BACKEND", "jaccl"), ("COMITY_LINKS", "tcp")], &["jaccl", "COMITY_LINKS"]),
        (
            vec![("JACCL_RANK", "2"), ("JACCL_COORDINATOR", "10.0.0.1:7"), ("MLX_IBV_DEVICES", TWO)],
            &["JACCL_RANK=2", "MLX_IBV_DEVICES has 2 rows", "0 to 1"],
        ),
        (vec![("COMITY_LINKS", "shm,")], &["COMITY_LINKS", "\"\""]),
        (vec![("COMITY_LINKS", "shm tcp")], &["COMITY_LINKS"]),
        (vec![("COMITY_LINKS", "tcp,tcp")], &["COMITY_LINKS", "twice"]),
        (vec![("COMITY_ADDRS", "10.0.0.1,")], &["COMITY_ADDRS", "\"\""]),
        (vec![("COMITY_ADDRS", "node1")], &["COMITY_ADDRS", "\"node1\""]),
        (vec![("COMITY_ADDRS", "10.0.0.1:99999")], &["COMITY_ADDRS"]),
        (vec![("COMITY_ADDRS", "0.0.0.0")], &["COMITY_ADDRS", "name the address"]),
        (vec![("COMITY_ADDRS", "[::]:5000")], &["COMITY_ADDRS", "name the address"]),
        (vec![("COMITY_ADDRS", "224.0.0.1")], &["COMITY_ADDRS", "many hosts"]),
        (vec![("COMITY_ADDRS", "255.255.255.255")], &["COMITY_ADDRS", "many hosts"]),
        (vec![("COMITY_ADDRS", "10.0.0.1,10.0.0.1")], &["COMITY_ADDRS", "twice"]),
        (vec![("COMITY_DETECTION", "slow")], &["COMITY_DETECTION=\"slow\"", "patient (30 s)", "off", "2.5"]),
        (vec![("COMITY_DETECTION", "Fast")], &["COMITY_DETECTION", "\"Fast\""]),
        (vec![("COMITY_DETECTION", "-1")], &["COMITY_DETECTION", "\"-1\""]),
        (vec![("COMITY_DETECTION", "")], &["COMITY_DETECTION", "empty"]),
        (vec![("COMITY_DETECTION", "0.05")], &["COMITY_DETECTION", "50ms", "0.1 s to a day"]),
        (vec![("COMITY_DETECTION", "100000")], &["COMITY_DETECTION", "0.1 s to a day"]),
        (vec![("COMITY_CONNECTIONS", "0")], &["COMITY_CONNECTIONS", "1 to 64"]),
        (vec![("COMITY_CONNECTIONS", "65")], &["COMITY_CONNECTIONS", "64"]),
        (vec![("COMITY_CONNECTIONS", "many")], &["COMITY_CONNECTIONS", "\"many\""]),
        (vec![("COMITY_DEVICE", "cuda:0")], &["COMITY_DEVICE", "\"cuda:0\"", "0 to 1023"]),
        (vec![("COMITY_HOST", "")], &["COMITY_HOST", "empty"]),
        (vec![("COMITY_HOST", &long)], &["COMITY_HOST", "255"]),
        (vec![("MLX_RANK", "0")], &["MLX_RANK=0", "MLX_HOSTFILE"]),
        (vec![("MLX_HOSTFILE", "/nowhere")], &["MLX_HOSTFILE=/nowhere", "MLX_RANK"]),
        (vec![("MLX_RANK", "0"), ("MLX_HOSTFILE", "/nowhere")], &["hostfile /nowhere"]),
        (vec![("MLX_RANK", "abc"), ("MLX_HOSTFILE", hosts.path())], &["MLX_RANK", "\"abc\""]),
        (vec![("MLX_RANK", "-1"), ("MLX_HOSTFILE", hosts.path())], &["MLX_RANK", "\"-1\""]),
        (vec![("MLX_RANK", "3"), ("MLX_HOSTFILE", hosts.path())], &["MLX_RANK=3", "bad", "0 to 2"]),
        (vec![("MLX_RANK", "0"), ("MLX_HOSTFILE", "/")], &["hostfile /", "regular file"]),
        (vec![R, S, ("MLX_HOSTFILE", hosts.path())], &["hostfile", "3 ranks", "size is 4"]),
        (vec![TR], &["RANK=1", "WORLD_SIZE"]),
        (vec![TW], &["WORLD_SIZE=4", "RANK"]),
        (vec![TR, TW], &["MASTER_ADDR", "MASTER_PORT"]),
        (vec![TR, TW, ("MASTER_ADDR", "h")], &["MASTER_ADDR=h", "MASTER_PORT"]),
        (vec![TR, TW, ("MASTER_PORT", "1")], &["MASTER_PORT=1", "MASTER_ADDR"]),
        (vec![TR, TW, ("MASTER_ADDR", "h"), ("MASTER_PORT", "0")], &["MASTER_PORT", "1 to 65535"]),
        (vec![TR, TW, ("MASTER_ADDR", "h"), ("MASTER_PORT", "x")], &["MASTER_PORT", "\"x\""]),
        (vec![TR, TW, ("MASTER_ADDR", "h/1"), ("MASTER_PORT", "1")], &["MASTER_ADDR", "\"h/1\""]),
        (vec![TR, TW, ("MASTER_ADDR", ""), ("MASTER_PORT", "1")], &["MASTER_ADDR", "empty"]),
        (vec![("RANK", "4"), TW], &["RANK=4", "WORLD_SIZE=4"]),
        (vec![("RANK", "private"), TW], &["RANK", "\"private\""]),
        (vec![TR, TW, ("LOCAL_RANK", "x")], &["LOCAL_RANK", "\"x\""]),
        (vec![TR, TW, ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")], &["LOCAL_RANK=2"]),
        (vec![TR, TW, ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "0")], &["LOCAL_WORLD_SIZE=0"]),
        (
            vec![
                TR,
                TW,
                ("MASTER_ADDR", "h"),
                ("MASTER_PORT", "1"),
                ("TORCHELASTIC_USE_AGENT_STORE", "maybe"),
            ],
            &["TORCHELASTIC_USE_AGENT_STORE", "\"maybe\""],
        ),
        (
            vec![TR, TW, ("TORCHELASTIC_RUN_ID", "a"), ("TORCHELASTIC_RESTART_COUNT", "x")],
            &["TORCHELASTIC_RESTART_COUNT", "\"x\""],
        ),
        (vec![OR], &["OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE"]),
        (vec![OR, OS], &["several hosts", "MASTER_ADDR"]),
        (
            vec![OR, OS, ("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")],
            &["several hosts", "-x MASTER_ADDR"],
        ),
        (
            vec![OR, OS, ("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")],
            &["PMIX_NAMESPACE", "COMITY_JOB"],
        ),
        (vec![OR, ("OMPI_COMM_WORLD_SIZE", "1")], &["OMPI_COMM_WORLD_RANK=1", "0 to 0"]),
        (vec![PR], &["PMI_RANK=1", "PMI_SIZE"]),
        (vec![PS], &["PMI_SIZE=4", "PMI_RANK"]),
        (vec![PR, PS], &["PMI_FD", "MASTER_ADDR"]),
        (vec![PR, PS, ("PMI_FD", "six")], &["PMI_FD", "\"six\""]),
        (vec![PR, PS, ("PMI_FD", "-1")], &["PMI_FD", "\"-1\""]),
        (vec![PR, PS, ("PMI_FD", "6"), ("MPI_LOCALRANKID", "x")], &["MPI_LOCALRANKID", "\"x\""]),
        (vec![SJ, ("SLURM_STEP_ID", "batch"), SP, SN], &["SLURM_STEP_ID", "\"batch\""]),
        (vec![SJ, SS], &["SLURM_STEP_ID=0", "SLURM_PROCID"]),
        (vec![SJ, SS, SP], &["SLURM_PROCID=1", "SLURM_NTASKS"]),
        (vec![SJ, SS, SN], &["SLURM_NTASKS=4", "SLURM_PROCID"]),
        (vec![SS, SP, SN], &["SLURM_JOB_ID"]),
        (vec![SJ, SS, SP, SN], &["SLURM_JOB_NODELIST"]),
        (vec![SJ, SS, SP, SN, ("SLURM_STEP_NODELIST", "gpu[1-")], &["SLURM_STEP_NODELIST", "bracket"]),
        (vec![SJ, SS, SP, SN, ("SLURM_JOB_NODELIST", ",")], &["SLURM_JOB_NODELIST"]),
        (vec![SJ, SS, SP, SN, ("SLURM_JOB_NODELIST", "a b")], &["SLURM_JOB_NODELIST", "\"a b\""]),
        (
            vec![
                SJ,
                SS,
                SP,
                SN,
                ("SLURM_LOCALID", "0"),
                ("SLURM_NODEID", "1"),
                ("SLURM_STEP_TASKS_PER_NODE", "4"),
            ],
            &["SLURM_STEP_TASKS_PER_NODE", "node 1"],
        ),
        (
            vec![
                SJ,
                SS,
                SP,
                SN,
                ("SLURM_LOCALID", "4"),
                ("SLURM_NODEID", "0"),
                ("SLURM_STEP_TASKS_PER_NODE", "4"),
            ],
            &["SLURM_LOCALID=4"],
        ),
    ];
    assert!(cases.len() >= 100);
    for (vars, shown) in cases {
        let e = match at_once(|| from(&vars)) {
            Err(Error::Config(e)) => e,
            other => panic!("{vars:?}: {other:?}"),
        };
        for part in shown {
            assert!(e.contains(part), "{vars:?}: {e}");
        }
    }
}

#[test]
fn bytes_that_are_no_text_are_named() {
    use std::os::unix::ffi::OsStringExt;
    let e = Config::from_vars(|n| (n == "COMITY_RANK").then(|| OsString::from_vec(vec![b'1', 0xff])))
        .unwrap_err();
    assert!(e.to_string().contains("COMITY_RANK") && e.to_string().contains("UTF-8"), "{e}");
}

fn parse(text: &str) -> Result<Hostfile> {
    Hostfile::parse("hosts.json", text.as_bytes())
}

#[test]
fn good_hostfiles() {
    for (text, counts) in [
        (r#"[["10.0.0.1:5000"],["10.0.0.2:5000"]]"#, &[1, 1][..]),
        (r#"["10.0.0.1:5000","10.0.0.2:5000"]"#, &[1, 1]),
        (r#"[["a:1","a:2"],"b:1",["[::1]:5000"]]"#, &[2, 1, 1]),
        ("\n[ [\"a_b-c.d:65535\"] ]\n", &[1]),
        (r#"[["a:1"],["0.0.0.0:1"],["198.51.100.1:0"]]"#, &[1, 1, 0]),
        (r#"[["[fe80::1%4]:7"]]"#, &[1]),
    ] {
        let file = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(file.ranks.iter().map(Vec::len).collect::<Vec<_>>(), counts, "{text}");
    }
}

#[test]
fn a_file_of_its_own_per_rank() {
    // As rank 0, 1 and 2 of 4 would get it.
    let zero = parse(r#"["0.0.0.0:5000","10.0.0.2:5001","198.51.100.1:0","10.0.0.4:5003"]"#).unwrap();
    let one = parse(r#"["10.0.0.1:5000","0.0.0.0:5001","10.0.0.3:5002","198.51.100.1:0"]"#).unwrap();
    let two = parse(r#"["198.51.100.1:0","10.0.0.2:5001","0.0.0.0:5002","10.0.0.4:5003"]"#).unwrap();
    zero.check("MLX_RANK", 0, None, true).unwrap();
    one.check("MLX_RANK", 1, None, true).unwrap();
    let e = two.check("MLX_RANK", 2, None, true).unwrap_err().to_string();
    assert!(e.contains("entry 0") && e.contains("COMITY_STORE"), "{e}");
    two.check("MLX_RANK", 2, None, false).unwrap();
    assert!(zero.job() == one.job() && one.job() == two.job());
    for (file, rank, part) in [(&zero, 1, "entry 0 (rank 0)"), (&zero, 2, "rank's own"), (&one, 9, "0 to 3")]
    {
        let e = file.check("MLX_RANK", rank, None, true).unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    }
}

#[test]
fn bad_hostfiles_name_file_entry_and_value() {
    let deep = "[".repeat(100_000);
    let huge = format!("[[\"a:1\"]]{}", " ".repeat(1 << 20));
    let wide = format!("[[{}]]", vec!["\"a:1\""; 65].join(","));
    let name = format!("[[\"{}:1\"]]", "x".repeat(254));
    let cases: &[(&str, &[&str])] = &[
        ("", &["empty"]),
        (" \n", &["empty"]),
        ("x", &["not JSON", "line 1 column 1"]),
        ("[[\"a:1\"],\n[\"b:1\"", &["not JSON", "line 2"]),
        ("[[\"a:1\"]] trailing", &["not JSON", "column 11"]),
        ("[['a:1']]", &["not JSON"]),
        ("[[\"a:1\",]]", &["not JSON", "column 9"]),
        (&deep, &["not JSON", "recursion"]),
        (&huge, &["larger"]),
        ("null", &["found null", "expected"]),
        ("true", &["found true"]),
        ("7", &["found 7"]),
        ("\"a:1\"", &["found \"a:1\""]),
        ("{}", &["found an object"]),
        (r#"{"hosts": []}"#, &["found an object"]),
        ("[]", &["no rank"]),
        ("[null]", &["entry 0", "null"]),
        ("[[\"a:1\"], 5]", &["entry 1", "found 5"]),
        ("[[\"a:1\"], {}]", &["entry 1", "an object"]),
        ("[[]]", &["entry 0", "is empty"]),
        ("[[\"a:1\"], []]", &["entry 1", "is empty"]),
        ("[[\"a:1\", null]]", &["entry 0", "address 1", "null"]),
        ("[[\"a:1\", 5000]]", &["entry 0", "address 1", "5000"]),
        ("[[[\"a:1\"]]]", &["entry 0", "address 0", "a list"]),
        (&wide, &["entry 0", "65 addresses", "64"]),
        (&name, &["entry 0", "neither a host name"]),
        ("[\"a:1\", \"\"]", &["entry 1", "\"\"", "port is missing"]),
        ("[\"a:1\", \"b\"]", &["entry 1", "\"b\""]),
        ("[\"a:1\", \"b:\"]", &["entry 1", "\"b:\""]),
        ("[\"a:1\", \":5\"]", &["entry 1", "host is missing"]),
        ("[\"a:1\", \"b:0\"]", &["entry 1", "b:0", "port 0"]),
        ("[\"a:1\", \"b:65536\"]", &["entry 1", "65536"]),
        ("[\"a:1\", \"b:-1\"]", &["entry 1", "-1"]),
        ("[\"a:1\", \"b:+1\"]", &["entry 1", "+1"]),
        ("[\"a:1\", \"b: 1\"]", &["entry 1"]),
        ("[\"a:1\", \"b:one\"]", &["entry 1", "\"one\""]),
        ("[\"a:1\", \"b:5000.\"]", &["entry 1"]),
        ("[\"a:1\", \"::1:5000\"]", &["entry 1", "brackets"]),
        ("[\"a:1\", \"[::1]\"]", &["entry 1"]),
        ("[\"a:1\", \"[::1:5000\"]", &["entry 1"]),
        ("[\"a:1\", \"[10.0.0.1]:5000\"]", &["entry 1", "IPv6"]),
        ("[\"a:1\", \"10.0.0.300:5000\"]", &["entry 1", "IPv4"]),
        ("[\"a:1\", \"10.0.1:5000\"]", &["entry 1", "IPv4"]),
        ("[\"a:1\", \"a b:5000\"]", &["entry 1"]),
        ("[\"a:1\", \"ssh://a:5000\"]", &["entry 1"]),
        ("[\"a:1\", \"-a:5000\"]", &["entry 1"]),
        ("[\"a:1\", \"\\u0000:5000\"]", &["entry 1"]),
        ("[\"a:1\", \"a:1\"]", &["entry 1", "a:1", "entry 0"]),
        ("[\"a:1\", \"A:1\"]", &["entry 1", "entry 0"]),
        ("[[\"a:1\",\"a:1\"]]", &["entry 0", "a:1"]),
        ("[\"[::1]:1\", \"[0:0:0:0:0:0:0:1]:1\"]", &["entry 1", "entry 0"]),
    ];
    for (text, shown) in cases {
        let e = match at_once(|| parse(text)) {
            Err(Error::Config(e)) => e,
            other => panic!("{text}: {other:?}"),
        };
        assert!(e.contains("hosts.json") && e.len() < 400, "{e}");
        for part in *shown {
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}

#[test]
fn by_value_contradictions_are_errors_before_anything_is_opened() {
    let two = || Config::new(0, 2);
    let at = |c: Config| c.store("10.0.0.1:5000");
    assert!(at(two()).unwrap().check().is_ok());
    assert!(Config::new(0, 1).check().is_ok());
    let cases = [
        (two(), "place to meet"),
        (Config::new(2, 2), "rank is 2"),
        (Config::new(0, 0), "size is 0"),
        (Config::new(0, usize::MAX), "size"),
        (at(two()).unwrap().links([]), "links"),
        (at(two()).unwrap().links([LinkKind::Local]), "links"),
        (at(two()).unwrap().connections(0), "connections"),
        (at(two()).unwrap().timeout(Duration::ZERO), "timeout"),
        (at(two()).unwrap().join_timeout(Duration::MAX), "join_timeout"),
        (at(two()).unwrap().job(""), "job"),
        (at(two()).unwrap().host_name("a\0b"), "host name"),
        (at(two()).unwrap().addrs(["0.0.0.0:1".parse().unwrap()]), "addrs"),
        (at(two()).unwrap().key(Key::from([1; 32])).insecure(), "insecure"),
    ];
    for (config, part) in cases {
        let e = config.check().unwrap_err().to_string();
        assert!(e.contains(part), "{part}: {e}");
    }
    for text in ["", "host", "host:0", "host:x"] {
        assert!(two().store(text).is_err() && two().host(text).is_err(), "{text}");
    }
    let hosts = Temp::new("value", HOSTS);
    assert!(Config::new(1, 3).hostfile(hosts.path()).unwrap().check().is_ok());
    assert!(Config::new(1, 2).hostfile(hosts.path()).unwrap_err().to_string().contains("3 ranks"));
}

#[test]
fn names_are_looked_up_in_time() {
    let soon = Instant::now() + Duration::from_secs(20);
    for (text, addr) in
        [("10.0.0.1:5", "10.0.0.1:5"), ("[::1]:5", "[::1]:5"), ("[fe80::1%4]:5", "[fe80::1%4]:5")]
    {
        let at: HostPort = text.parse().unwrap();
        assert_eq!(at.to_string(), text);
        assert_eq!(at.resolve(soon).unwrap(), [addr.parse().unwrap()]);
        assert_eq!(HostPort::from(addr.parse::<SocketAddr>().unwrap()), at);
    }
    let here = "localhost:5".parse::<HostPort>().unwrap().resolve(soon).unwrap();
    assert!(here.iter().all(|a| a.ip().is_loopback() && a.port() == 5), "{here:?}");
}

proptest! {
    #[test]
    fn host_port_never_panics_and_round_trips(text in "[a-z0-9.:\\[\\]%_-]{0,30}|\\PC{0,40}") {
        if let Ok(at) = text.parse::<HostPort>() {
            prop_assert_eq!(at.to_string().parse::<HostPort>().unwrap(), at);
        }
    }

    #[test]
    fn hostfiles_never_panic(text in proptest::collection::vec(any::<u8>(), 0..200), rank in any::<usize>()) {
        if let Ok(file) = Hostfile::parse("f", &text) {
            let _ = file.check("rank", rank, None, true);
        }
    }

    #[test]
    fn json_never_panics(text in "[\\[\\]{}\",:a0-9 .]{0,60}", rank in 0usize..4) {
        if let Ok(file) = Hostfile::parse("f", text.as_bytes()) {
            let _ = file.check("rank", rank, Some(2), true);
        }
    }

    #[test]
    fn environments_never_panic(
        vars in proptest::collection::hash_map(
            proptest::sample::select(vec![
                "COMITY_RANK", "COMITY_SIZE", "COMITY_STORE", "COMITY_LOCAL_RANK", "COMITY_LOCAL_SIZE", "COMITY_JOB",
                "COMITY_TIMEOUT", "COMITY_DETECTION", "COMITY_LINKS", "COMITY_ADDRS", "COMITY_CONNECTIONS", "COMITY_HOST", "COMITY_LOG_DIR", "MLX_RANK", "RANK",
                "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMI_FD", "SLURM_JOB_ID",
                "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID",
                "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST",
            ]),
            "[0-9]{1,2}|[0-9]{0,12}|[a-z0-9.:,()\\[\\]x-]{0,12}|\\PC{0,8}",
            0..12,
        )
    ) {
        if let Ok(c) = Config::from_vars(|n| vars.get(n).map(OsString::from)) {
            prop_assert!(c.rank < c.size && c.check().is_ok());
            prop_assert!(c.size == 1 || !matches!(c.meet, Meet::Alone));
        }
    }
}
