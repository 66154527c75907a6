//! Every launcher's variables, good and bad.

mod bad;
mod devices;
mod hostfiles;
mod set;

use super::*;
use crate::{ErrorKind, LinkKind};
use proptest::prelude::*;
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Instant};

type Vars<'a> = &'a [(&'a str, &'a str)];
/// Variables, and what the error about them shows.
type Bad = (&'static [(&'static str, &'static str)], &'static [&'static str]);
/// Sets of variables; launcher, rank, size, local place, job and part of the meeting place.
type Good<'a> = (Vec<Vars<'a>>, Launcher, usize, usize, Option<(usize, usize)>, &'a str, &'a str);

fn from(vars: Vars<'_>) -> Result<Settings> {
    Settings::from_vars(&|name| vars.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
}

/// Returns the result of `f` within 100 ms: the best of some tries counts, for the machine may be busy.
fn at_once<T>(f: impl Fn() -> T) -> T {
    for _ in 0..20 {
        let start = Instant::now();
        let out = f();
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
    assert!(matches!(c.meeting_point, MeetingPoint::Alone));
    assert_eq!(c.evidence.launcher, Launcher::Alone);
    assert!(c.evidence.seen.is_empty());
    assert_eq!((c.timeout, c.join_timeout), (Duration::from_secs(300), Duration::from_secs(60)));
}

const TORCH: [(&str, &str); 4] =
    [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
const MASTER: [(&str, &str); 2] = [("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
const AGENT: [(&str, &str); 3] = [
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("TORCHELASTIC_RUN_ID", "run"),
    ("TORCHELASTIC_RESTART_COUNT", "2"),
];
const OMPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("PMIX_NAMESPACE", "877395969"),
];
const PMI: [(&str, &str); 5] = [
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "3"),
    ("PMI_FD", "6"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "3"),
];
const SLURM: [(&str, &str); 9] = [
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
const COMITY: [(&str, &str); 6] = [
    ("COMITY_RANK", "1"),
    ("COMITY_SIZE", "4"),
    ("COMITY_LOCAL_RANK", "1"),
    ("COMITY_LOCAL_SIZE", "4"),
    ("COMITY_STORE", "127.0.0.1:4000"),
    ("COMITY_JOB", "beef"),
];

#[test]
fn each_launcher() {
    let hosts = Temp::new("each", HOSTS);
    let mlx = [("MLX_RANK", "2"), ("MLX_HOSTFILE", hosts.path())];
    let job = format!("mlx-{:x}", fnv(HOSTS));
    let port = 20_000 + fnv(b"77.0") % 20_000;
    let first = format!("at rank 0's store at gpu03:{port}");
    found(vec![
        (vec![&COMITY], Launcher::Comity, 1, 4, Some((1, 4)), "beef", "at the store at 127.0.0.1:4000"),
        (vec![&COMITY[..2], &MASTER], Launcher::Comity, 1, 4, None, "-", "at rank 0's store at node1:29500"),
        (
            vec![&mlx],
            Launcher::Mlx,
            2,
            3,
            None,
            &job,
            "at rank 0's store at 10.0.0.1:5000, from the hostfile",
        ),
        (vec![&TORCH, &MASTER], Launcher::Torch, 3, 8, Some((1, 2)), "-", "at rank 0's store at node1:29500"),
        (
            vec![&TORCH, &MASTER, &AGENT],
            Launcher::Torch,
            3,
            8,
            Some((1, 2)),
            "run.2",
            "torchrun's store at node1:29500",
        ),
        (vec![&OMPI], Launcher::OpenMpi, 1, 4, Some((1, 4)), "877395969", "a Unix socket"),
        (
            vec![&OMPI, &MASTER],
            Launcher::OpenMpi,
            1,
            4,
            Some((1, 4)),
            "877395969",
            "at rank 0's store at node1:29500",
        ),
        (vec![&PMI], Launcher::Mpich, 1, 3, Some((1, 3)), "-", "process manager (PMI_FD=6)"),
        (vec![&SLURM], Launcher::Slurm, 5, 9, Some((1, 4)), "77.0", &first),
        (vec![&SLURM, &MASTER], Launcher::Slurm, 5, 9, Some((1, 4)), "77.0", "node1:29500"),
    ]);
}

#[test]
fn the_order_of_launchers() {
    let hosts = Temp::new("order", HOSTS);
    let mlx = [("MLX_RANK", "2"), ("MLX_HOSTFILE", hosts.path())];
    let job = format!("mlx-{:x}", fnv(HOSTS));
    found(vec![
        // The order, and COMITY_STORE under another launcher.
        (
            vec![&SLURM, &PMI, &OMPI, &TORCH, &MASTER, &mlx, &COMITY],
            Launcher::Comity,
            1,
            4,
            Some((1, 4)),
            "beef",
            "store",
        ),
        (vec![&SLURM, &PMI, &OMPI, &TORCH, &MASTER, &mlx], Launcher::Mlx, 2, 3, None, &job, "hostfile"),
        (vec![&SLURM, &PMI, &OMPI, &TORCH, &MASTER], Launcher::Torch, 3, 8, Some((1, 2)), "-", "node1"),
        (vec![&SLURM, &PMI, &OMPI], Launcher::OpenMpi, 1, 4, Some((1, 4)), "877395969", "Unix"),
        (vec![&SLURM, &PMI], Launcher::Mpich, 1, 3, Some((1, 3)), "-", "PMI_FD"),
        (
            vec![&TORCH, &COMITY[4..5]],
            Launcher::Torch,
            3,
            8,
            Some((1, 2)),
            "-",
            "at the store at 127.0.0.1:4000",
        ),
    ]);
}

fn found(cases: Vec<Good<'_>>) {
    for (sets, launcher, rank, size, local, job, meet) in cases {
        let vars = sets.concat();
        let c = from(&vars).unwrap_or_else(|e| panic!("{vars:?}: {e}"));
        assert_eq!(c.evidence.launcher, launcher, "{vars:?}");
        assert_eq!((c.rank, c.size, c.local), (rank, size, local), "{vars:?}");
        assert_eq!(c.job, job, "{vars:?}");
        assert!(c.meeting_point.to_string().contains(meet), "{vars:?}: {}", c.meeting_point);
        assert!(c.evidence.why.contains(&launcher.to_string()), "{}", c.evidence.why);
        for (name, value) in &c.evidence.seen {
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
        assert!(matches!(c.meeting_point, MeetingPoint::Alone) && c.size == 1, "{vars:?}");
        assert_ne!(c.evidence.launcher, Launcher::Alone);
    }
}

#[test]
fn a_slurm_shell_is_no_step() {
    let shell = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "0")];
    for step in [None, Some("4294967290"), Some("4294967291"), Some("4294967292")] {
        let mut vars = shell.to_vec();
        vars.extend(step.map(|s| ("SLURM_STEP_ID", s)));
        let c = from(&vars).unwrap();
        assert_eq!((c.size, c.evidence.launcher), (1, Launcher::Alone), "{step:?}");
        assert!(c.evidence.why.contains("srun"), "{}", c.evidence.why);
    }
}

#[test]
fn a_call_need_have_no_limit() {
    let none = from(&[("COMITY_TIMEOUT", "none")]).unwrap();
    assert_eq!(none.timeout, MAX_TIMEOUT);
    assert!(none.check().is_ok());
    // Ranks that never come are given up.
    assert!(from(&[("COMITY_JOIN_TIMEOUT", "none")]).is_err());
    let e = from(&[("COMITY_TIMEOUT", "inf")]).unwrap_err().to_string();
    assert!(
        e.contains("COMITY_TIMEOUT=\"inf\" is neither a number of seconds such as 300 or 2.5 nor none"),
        "{e}"
    );
}

/// A launcher starts the program again in the place of a rank that died.
#[test]
fn a_process_joins_where_its_launcher_says_so() {
    let place = [
        ("COMITY_RANK", "3"),
        ("COMITY_SIZE", "4"),
        ("COMITY_STORE", "10.0.0.1:5000"),
        ("COMITY_JOB", "train"),
    ];
    let c = from(&[&place[..], &[("COMITY_JOIN", "1")]].concat()).unwrap();
    assert_eq!(
        (c.joins, c.rank, c.size, c.job.as_str(), c.meeting_point.to_string()),
        (true, 0, 1, "train", "at the store at 10.0.0.1:5000".into())
    );
    let c = from(&[&place[..], &[("COMITY_JOIN", "0")]].concat()).unwrap();
    assert_eq!((c.joins, c.rank, c.size), (false, 3, 4));
    let mut c = Settings::new(0, 1);
    c.set("COMITY_STORE", "10.0.0.1:5000").and_then(|()| c.set("COMITY_JOIN", "1")).unwrap();
    assert!(c.joins && c.check().is_ok());
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
        ("COMITY_SEND_THREADS", "0"),
        ("COMITY_SHARED_BUFFERS", "512"),
        ("COMITY_PULL", "1048576"),
        ("COMITY_PTRACER", "keep"),
        ("COMITY_DEVICE", "3"),
        ("COMITY_DETECTION", "2.5"),
        ("COMITY_HOST", "desk"),
        ("COMITY_JOB", "my job"),
    ])
    .unwrap();
    assert_eq!(c.key.as_ref().map(Key::bytes), Some(&[7; 32]));
    assert_eq!((c.timeout, c.join_timeout), (Duration::from_millis(2500), Duration::from_secs(10)));
    assert_eq!(c.links, Kinds::from_iter([LinkKind::Tcp]));
    let addrs: Vec<_> = c.addrs.iter().map(ToString::to_string).collect();
    assert_eq!(addrs, ["10.0.0.1:0", "10.0.0.2:7000", "[fe80::1%4]:7000", "[::1]:0", "[::2]:0"]);
    assert_eq!((c.host.as_deref(), c.job.as_str()), (Some("desk"), "my job"));
    let links = format!("{:?}", c.transports);
    assert!(links.contains("connections: Some(4), send_threads: Some(0)"), "{links}");
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
    for (text, secure) in [("data", Protection::Data), ("handshake", Protection::Handshake)] {
        assert_eq!(from(&[("COMITY_SECURE", text)]).unwrap().secure, secure);
    }
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
    fn environments_never_panic(
        vars in proptest::collection::hash_map(
            proptest::sample::select(vec![
                "COMITY_RANK", "COMITY_SIZE", "COMITY_STORE", "COMITY_LOCAL_RANK", "COMITY_LOCAL_SIZE", "COMITY_JOB",
                "COMITY_TIMEOUT", "COMITY_DETECTION", "COMITY_LINKS", "COMITY_ADDRS", "COMITY_CONNECTIONS", "COMITY_SEND_THREADS", "COMITY_SHARED_BUFFERS", "COMITY_PULL", "COMITY_PTRACER", "COMITY_HOST", "COMITY_LOG_DIR", "MLX_RANK", "RANK",
                "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMI_FD", "SLURM_JOB_ID",
                "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID",
                "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST",
            ]),
            "[0-9]{1,2}|[0-9]{0,12}|[a-z0-9.:,()\\[\\]x-]{0,12}|\\PC{0,8}",
            0..12,
        )
    ) {
        if let Ok(c) = Settings::from_vars(&|n| vars.get(n).map(OsString::from)) {
            prop_assert!(c.rank < c.size && c.check().is_ok());
            prop_assert!(c.size == 1 || !matches!(c.meeting_point, MeetingPoint::Alone));
        }
    }
}
