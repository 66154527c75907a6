//! Bad variables, and bad files of hosts that one names, as each command tells them. Which values are bad is what `comity-settings` tests.
use super::Case;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Commands that read them, with what each error begins with.
const COMMANDS: [(&[&str], &str); 4] = [
    (&["info"], "comity info: "),
    (&["check", "--quick"], "comity check: "),
    (&["bench", "--iters", "5"], "comity bench: "),
    (&["info", "--json"], "comity info: "),
];

/// Variables of a launcher, of which one makes no sense, and words of the error.
type Row = (&'static [(&'static str, &'static str)], &'static [&'static str]);

const VARIABLES: &[Row] = &[
    (&[("COMITY_RANK", "7"), ("COMITY_SIZE", "2")], &["COMITY_RANK"]),
    (&[("COMITY_RANK", "1\u{1b}[31m"), ("COMITY_SIZE", "2")], &["COMITY_RANK"]),
    (&[("COMITY_RANK", "0"), ("COMITY_SIZE", "2")], &["COMITY_STORE=host:port"]),
    (&[("COMITY_RANK", "0"), ("COMITY_SIZE", "2"), ("COMITY_STORE", "a\n:1")], &["COMITY_STORE"]),
    (&[("COMITY_KEY_FD", "999")], &["COMITY_KEY_FD"]),
    (&[("COMITY_KEY_FILE", "missing.key")], &["COMITY_KEY_FILE", "missing.key"]),
    (&[("COMITY_KEY_FILE", "tmp")], &["COMITY_KEY_FILE", "tmp"]),
    (&[("COMITY_KEY_FILE", "open.key")], &["COMITY_KEY_FILE", "open.key"]),
    (&[("COMITY_KEY_FILE", "short.key")], &["COMITY_KEY_FILE", "short.key"]),
    (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")], &["MASTER_PORT is not"]),
    (&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "x")], &["OMPI_COMM_WORLD_SIZE"]),
    (&[("PMI_RANK", "0"), ("PMI_SIZE", "2")], &["PMI_FD is not"]),
    (&[("SLURM_STEP_ID", "0")], &["SLURM_PROCID"]),
    (&[("MLX_RANK", "2"), ("MLX_HOSTFILE", "right.json")], &["MLX_RANK=2", "right.json", "0 to 1"]),
];

pub(crate) fn variables(dir: &Path) -> Vec<Case> {
    use std::os::unix::fs::PermissionsExt;
    for (name, text, mode) in [
        ("open.key", "a".repeat(64), 0o644),
        ("short.key", "ab".into(), 0o600),
        ("right.json", RIGHT.into(), 0o644),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut cases = Vec::new();
    for (command, begin) in COMMANDS {
        let case = Case::new(command).says(&[begin]);
        cases.extend(VARIABLES.iter().map(|(env, says)| {
            env.iter().fold(case.clone().says(says), |case, (name, value)| case.env(name, *value))
        }));
        let bytes = OsString::from_vec(b"\xff\xfe".to_vec());
        cases.push(case.env("COMITY_RANK", bytes).says(&["COMITY_RANK", "UTF-8"]));
    }
    cases
}

const RIGHT: &str = r#"[["a:1"],["b:1"]]"#;

pub(crate) fn hostfiles(dir: &Path) -> Vec<Case> {
    let named = |file: &OsStr| Case::new(&["info"]).env("MLX_RANK", "0").env("MLX_HOSTFILE", file);
    let long = format!("[[\"{}:1\"]]", "a".repeat(1 << 19));
    let mut cases = Vec::new();
    // What would fill a terminal, or change it.
    for (name, bytes, says) in [
        ("empty.json", b"".to_vec(), "empty"),
        ("escape.json", br#"[["a:1"],["b\u001b[2J\n:1"]]"#.to_vec(), "entry 1 (rank 1), address 0"),
        ("cut.json", RIGHT.as_bytes()[..9].to_vec(), "not JSON"),
        ("bytes.json", b"[[\"a\x9b:1\"]]".to_vec(), "not JSON"),
        ("deep.json", b"[".repeat(100_000), "not JSON"),
        ("number.json", b"1".repeat(100_000), "not JSON"),
        ("long.json", long.into_bytes(), "entry 0 (rank 0), address 0"),
        ("large.json", b" ".repeat((1 << 20) + 1), "larger than"),
        ("path\u{1b}[31m\n.json", b"{}".to_vec(), "one entry per rank"),
    ] {
        std::fs::write(dir.join(name), bytes).unwrap();
        let name_said = if name.contains('\n') { "hostfile" } else { name };
        cases.push(named(name.as_ref()).says(&["hostfile", name_said, says]));
    }
    // Files that cannot be read, or hold no text; of one of them 100 MB that nobody may read to their end.
    std::fs::File::create(dir.join("huge.json")).unwrap().set_len(100 << 20).unwrap();
    std::fs::create_dir(dir.join("folder.json")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("fifo.json"), rustix::fs::Mode::RUSR).unwrap();
    for (file, says) in [
        ("huge.json", ["huge.json", "larger than"]),
        ("folder.json", ["folder.json", "not a regular file"]),
        ("fifo.json", ["fifo.json", "not a regular file"]),
        ("/dev/zero", ["/dev/zero", "not a regular file"]),
        ("missing.json", ["missing.json", "cannot be read"]),
        ("", ["MLX_HOSTFILE", "empty"]),
    ] {
        cases.push(named(file.as_ref()).says(&says));
    }
    cases.push(named(OsStr::from_bytes(b"\xff.json")).says(&["MLX_HOSTFILE", "UTF-8"]));
    cases
}
