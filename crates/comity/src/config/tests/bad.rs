//! Variables that make no sense: each is named in the error.

use super::*;

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
        (vec![("COMITY_SEND_THREADS", "65")], &["COMITY_SEND_THREADS", "0 to 64"]),
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
