//! A job that the user asked for, checked against this machine before anything is started.
use crate::host::bind::RankBinding;
use crate::host::rank::ThreadShare;
use crate::host::terminal::RankTerminal;
use crate::machine::{ElasticTerms, Problem};
use crate::protocol::Restarts;
use crate::request::AskedBackend;
use crate::request::{JobRequest, Setting};
use crate::{flights, journal};
use rustix::fs::{Access, CWD};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A job that can be started as far as can be known now.
#[derive(Debug)]
pub(crate) struct Job {
    /// Wishes of the user.
    pub(crate) request: JobRequest,
    /// Ranks on this host.
    pub(crate) size: usize,
    /// The first of them.
    pub(crate) first: usize,
    /// Ranks on all hosts.
    pub(crate) world: usize,
    /// Path of the program.
    pub(crate) program: PathBuf,
    /// Per rank, for its output and its errors.
    pub(crate) logs: Option<Vec<[File; 2]>>,
    /// For programs: what happens.
    pub(crate) events: Option<Arc<File>>,
    /// It has a terminal.
    pub(crate) tty: Option<RankTerminal>,
    /// The output of all passes as it comes: a launcher elsewhere cuts it into lines.
    pub(crate) straight: bool,
    /// The first rank's number among those of this host, and how many those are.
    pub(crate) local: (usize, usize),
    /// Processors that the ranks may use, if the launcher is to bind them.
    pub(crate) binding: Option<RankBinding>,
    /// Number of threads for each rank; none where the user chose.
    pub(crate) threads: Option<ThreadShare>,
    /// Directory in which ranks leave their flight records.
    pub(crate) flights: Option<PathBuf>,
    pub(crate) restarts: Restarts,
    /// Terms on which it goes on without ranks.
    pub(crate) elastic: Option<ElasticTerms>,
    /// The most processes that join beside the ranks.
    pub(crate) guests: usize,
    /// Number of times that each rank was started again, alone.
    pub(crate) restarted: Vec<u32>,
    /// Listener for requests of the ranks' counters.
    pub(crate) metrics: Option<TcpListener>,
}

/// Variables that say who a rank is: a job in which they are set by hand cannot meet.
pub const OURS: [&str; 19] = [
    "COMITY_RANK",
    "COMITY_SIZE",
    "COMITY_LOCAL_RANK",
    "COMITY_LOCAL_SIZE",
    "COMITY_STORE",
    "COMITY_JOB",
    "COMITY_JOIN",
    "COMITY_KEY_FD",
    "COMITY_ROOT_CAUSE_FD",
    "COMITY_KEY_FILE",
    "COMITY_STATS_FD",
    "COMITY_INSECURE",
    "COMITY_HOST_CORES",
    "COMITY_RESTART",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MLX_RANK",
];

impl Job {
    /// Checks a request against this host, which has `local_size` ranks of the job. `is_whole`: these are all.
    pub(crate) fn check(mut request: JobRequest, is_whole: bool, local_size: usize) -> Result<Self, Problem> {
        let size = request.size();
        if let Some(set) = request.env.iter().find(|s| OURS.iter().any(|o| s.name == *o)) {
            let name = set.name.display();
            return Err(Problem::usage(format!(
                "--env {name}: comity launch sets {name} itself for each rank"
            )));
        }
        if let Some(dir) = &request.cwd {
            directory(dir).map_err(|e| Problem::usage(format!("--cwd '{}': {e}", dir.display())))?;
        }
        let program = find_of(&request).map_err(Problem::usage)?;
        let binding = RankBinding::check(request.terms.bind_to, local_size).map_err(Problem::usage)?;
        let threads = ThreadShare::new(&request.env, binding.as_ref(), local_size);
        let metrics = request.metrics.map(listen).transpose()?;
        let logs = request.log_dir.as_deref().map(|dir| open_logs(dir, 0..size)).transpose()?;
        if let Some(input) = request.input().filter(|input| is_whole && input.rank() >= size) {
            let text = format!("{} {}: there are {size} ranks, from 0", input.flag(), input.rank());
            return Err(Problem::usage(text));
        }
        let elastic = request.elastic().map(|(e, restarts)| e.terms(size, restarts)).transpose();
        let (elastic, guests) = elastic.map_err(Problem::usage)?.unzip();
        if let Some((name, value)) = request.backend.and_then(|b| AskedBackend::variable(b.name)) {
            request.env.insert(0, Setting { name: name.into(), value: value.into() });
        }
        Ok(Self {
            size,
            first: 0,
            world: size,
            program,
            logs,
            events: request.json_events.as_deref().map(events).transpose()?,
            tty: request.tty.map(RankTerminal::of),
            straight: false,
            local: (0, local_size),
            binding,
            threads,
            flights: request.log_dir.as_deref().map(clear_flights).transpose()?,
            restarts: Restarts { number: 0, most: elastic.map_or(0, |terms| terms.restarts) },
            elastic,
            guests: guests.unwrap_or(0),
            restarted: vec![0; size],
            metrics,
            request,
        })
    }
}

fn listen(at: SocketAddr) -> Result<TcpListener, Problem> {
    TcpListener::bind(at).map_err(|e| Problem::usage(format!("--metrics {at}: cannot listen there: {e}")))
}

pub(crate) fn directory(dir: &Path) -> Result<(), String> {
    match std::fs::metadata(dir) {
        Ok(meta) if !meta.is_dir() => Err("is not a directory".into()),
        Ok(_) => rustix::fs::access(dir, Access::EXEC_OK)
            .map_err(|e| format!("cannot be entered: {}", io::Error::from(e))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err("there is no such directory".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// The program of a request.
pub(crate) fn find_of(request: &JobRequest) -> Result<PathBuf, String> {
    let given = request.env.iter().rev().find(|s| s.name == "PATH").map(|s| s.value.clone());
    let path = given.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    find(request.name(), request.cwd.as_deref(), &path)
}

/// The file that a command's name means, by the rules of a shell.
pub fn find(name: &OsStr, cwd: Option<&Path>, path: &OsStr) -> Result<PathBuf, String> {
    let from = cwd.unwrap_or_else(|| Path::new(""));
    let shown = name.display();
    if name.is_empty() {
        return Err("the command is an empty word".into());
    }
    if name.as_bytes().contains(&b'/') {
        let file = from.join(name);
        // The rank enters --cwd first, and a relative name counts from there.
        return runnable(&file).map(|()| name.into()).map_err(|fault| fault.told(name, &file));
    }
    let mut almost = None;
    // `comity launch -- comity check` means this program, installed or not.
    if name == "comity"
        && let Ok(own) = std::env::current_exe()
        && own.file_name() == Some(name)
    {
        return Ok(own);
    }
    for dir in std::env::split_paths(path) {
        let file = if dir.as_os_str().is_empty() { Path::new(".").join(name) } else { dir.join(name) };
        match runnable(&from.join(&file)) {
            Ok(()) => return Ok(file),
            // In a directory that this user cannot read there may be nothing of that name.
            Err(FileFault::Absent | FileFault::Directory) => {}
            Err(FileFault::Unreadable(_)) if !file.is_symlink() => {}
            Err(fault) => almost = almost.or_else(|| Some(fault.told(name, &file))),
        }
    }
    if let Some(why) = almost {
        return Err(why);
    }
    let is_here = !matches!(runnable(&from.join(name)), Err(FileFault::Absent | FileFault::Directory));
    let step = if is_here && Path::new(name).extension().is_some_and(|e| e == "py") {
        format!("a file of that name is in the directory itself: write `python {shown}`")
    } else if is_here {
        format!(
            "a file of that name is in the directory itself: write `./{shown}`, or its interpreter before it"
        )
    } else if name == "python" && find(OsStr::new("python3"), cwd, path).is_ok() {
        "python3 is there".into()
    } else {
        "install it, or give its path".into()
    };
    Err(format!("command '{shown}': not found; {step}; PATH was searched: {}", path.display()))
}

enum FileFault {
    Absent,
    Directory,
    NotExecutable,
    /// It cannot be reached, or leads nowhere, as a sentence.
    Unreadable(String),
    /// It is a program for this processor.
    Foreign(&'static str),
}

impl FileFault {
    /// The sentence on a command that is this file.
    fn told(self, name: &OsStr, file: &Path) -> String {
        let name = name.display();
        let file = file.display();
        match self {
            Self::Absent => format!("command '{name}': there is no file '{file}'"),
            Self::Directory => format!("command '{name}': is a directory"),
            Self::Unreadable(why) => format!("command '{name}': {why}"),
            Self::NotExecutable => format!(
                "command '{file}': the file is not executable; put its interpreter before it (as in `python {file}`) or run \
                 `chmod +x {file}`"
            ),
            Self::Foreign(processor) => {
                let own = std::env::consts::ARCH;
                format!(
                    "command '{file}': a program for {processor}, and this machine is {own}; install the one for {own}"
                )
            }
        }
    }
}

fn runnable(file: &Path) -> Result<(), FileFault> {
    let meta = std::fs::metadata(file).map_err(|e| unfit(file, &e))?;
    if meta.is_dir() {
        return Err(FileFault::Directory);
    }
    rustix::fs::accessat(CWD, file, Access::EXEC_OK, rustix::fs::AtFlags::empty())
        .map_err(|_| FileFault::NotExecutable)?;
    // To open a pipe would wait for its other end.
    let processor = if meta.is_file() { foreign(file) } else { None };
    processor.map(FileFault::Foreign).map_or(Ok(()), Err)
}

/// Processor of a program that Linux does not run here. The system's library would give it to a shell as a script, whose words help nobody.
fn foreign(file: &Path) -> Option<&'static str> {
    let own = match std::env::consts::ARCH {
        "x86_64" => [62, 3],
        "aarch64" => [183, 40],
        _ => return None,
    };
    let mut head = [0; 20];
    File::open(file).ok()?.read_exact(&mut head).ok()?;
    let machine = u16::from_le_bytes([head[18], head[19]]);
    // Little-endian; 64 bits or 32.
    if !head.starts_with(b"\x7fELF") || head[5] != 1 || own.contains(&machine) || emulates() {
        return None;
    }
    Some(match machine {
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv",
        _ => "another processor",
    })
}

/// Returns whether the system has emulators or the like, which run what its processor does not; they have files beside these two.
fn emulates() -> bool {
    std::fs::read_dir("/proc/sys/fs/binfmt_misc")
        .is_ok_and(|files| files.flatten().any(|f| f.file_name() != "register" && f.file_name() != "status"))
}

/// Reason for which a file cannot be looked at. A link is followed as far as it can be: the interpreter of a virtual environment is one.
fn unfit(file: &Path, e: &io::Error) -> FileFault {
    let mut end = file.to_path_buf();
    // As many links as Linux follows; they may form a circle.
    for _ in 0..40 {
        let Ok(next) = std::fs::read_link(&end) else { break };
        end = end.parent().unwrap_or_else(|| Path::new("")).join(next);
    }
    let absent = e.kind() == io::ErrorKind::NotFound;
    let file = file.display();
    let to = end.display();
    match (file.to_string() == to.to_string(), absent) {
        (true, true) => FileFault::Absent,
        (true, false) => FileFault::Unreadable(format!("'{file}' cannot be looked at: {e}")),
        (false, true) => FileFault::Unreadable(format!(
            "'{file}' is a link to '{to}', which is not there; put that file there, or make the link anew"
        )),
        (false, false) => FileFault::Unreadable(format!(
            "'{file}' is a link to '{to}', which this user cannot run: {e}; make that path readable, or the link anew"
        )),
    }
}

/// `--json-events`
pub(crate) fn events(at: &OsStr) -> Result<Arc<File>, Problem> {
    let fail = |e: io::Error| {
        format!("--json-events {}: {e}; give a file, or the number of an open descriptor", at.display())
    };
    journal::open(at).map_err(|e| Problem::usage(fail(e)))
}

pub(crate) fn open_logs(dir: &Path, ranks: Range<usize>) -> Result<Vec<[File; 2]>, Problem> {
    let bad = |place: &Path, e: io::Error| Problem::usage(format!("--log-dir '{}': {e}", place.display()));
    std::fs::create_dir_all(dir).map_err(|e| bad(dir, e))?;
    let open = |name: String| {
        let file = dir.join(name);
        File::create(&file).map_err(|e| bad(&file, e))
    };
    ranks.map(|rank| Ok([open(format!("rank-{rank}.out"))?, open(format!("rank-{rank}.err"))?])).collect()
}

/// The directory as ranks that start elsewhere find it, without the records of an earlier job.
pub(crate) fn clear_flights(dir: &Path) -> Result<PathBuf, Problem> {
    let bad = |e: io::Error| Problem::usage(format!("--log-dir '{}': {e}", dir.display()));
    flights::clear(dir).map_err(bad)?;
    std::path::absolute(dir).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_name_is_found_as_a_shell_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tool");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let path = dir.path().as_os_str();
        assert_eq!(find("/bin/sh".as_ref(), None, path), Ok("/bin/sh".into()));
        assert!(find("tool".as_ref(), None, path).unwrap_err().contains("chmod +x"));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(find("tool".as_ref(), None, path), Ok(file));
        assert_eq!(find("./tool".as_ref(), Some(dir.path()), "".as_ref()), Ok("./tool".into()));
        let lost = find("trian".as_ref(), None, path).unwrap_err();
        assert!(lost.contains("'trian'") && lost.contains("PATH was searched"), "{lost}");
        assert!(lost.contains("not found; install it, or give its path; PATH"), "{lost}");
        // What helps stands before a long PATH.
        std::fs::write(dir.path().join("train.py"), "").unwrap();
        for (name, step) in [("tool", "write `./tool`"), ("train.py", "write `python train.py`")] {
            let lost = find(name.as_ref(), Some(dir.path()), "/nowhere".as_ref()).unwrap_err();
            let at = |what| lost.find(what).unwrap_or_else(|| panic!("no {what} in: {lost}"));
            assert!(at(step) < at("/nowhere") && !lost.contains("install"), "{lost}");
        }
        assert!(find("/bin".as_ref(), None, path).unwrap_err().contains("directory"));
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
        link("python3", "python");
        link("/nowhere/python3.13", "python3");
        for python in ["python".into(), dir.path().join("python")] {
            let lost = find(python.as_os_str(), None, path).unwrap_err();
            assert!(lost.contains("a link to '/nowhere/python3.13', which is not there"), "{lost}");
        }
        link("tool/python", "bent");
        let lost = find("bent".as_ref(), None, path).unwrap_err();
        assert!(lost.contains("/tool/python', which this user cannot run: Not a directory"), "{lost}");
        let lost = find(dir.path().join("tool/python").as_os_str(), None, path).unwrap_err();
        assert!(lost.contains("cannot be looked at: Not a directory"), "{lost}");
        assert!(find("".as_ref(), None, path).is_err());
    }

    #[test]
    fn a_program_for_another_processor_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tool");
        let mut head = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        head.truncate(64);
        let write = |head: &[u8]| {
            std::fs::write(&file, head).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        };
        write(&head);
        assert_eq!(foreign(&file), None);
        if head.starts_with(b"\x7fELF") && !emulates() {
            head[18..20].copy_from_slice(&243_u16.to_le_bytes());
            write(&head);
            for name in [OsStr::new("tool"), file.as_os_str()] {
                let e = find(name, None, dir.path().as_os_str()).unwrap_err();
                assert!(e.contains("a program for riscv, and this machine is"), "{e}");
            }
        }
    }
}
