//! Programs that have to be there: Comity as released, the peers, the program in C compiled by each MPI.

use super::contender::{CONTENDERS, Contender, Peer};
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};
use tasks::{
    child::Task,
    place::{built, make, own, program, root, target},
};

pub(crate) const PROGRAMS: &str = "tools/bench/programs";

/// Path of a library on Debian, by architecture.
macro_rules! library {
    ($file:literal) => {
        if cfg!(target_arch = "aarch64") {
            concat!("/usr/lib/aarch64-linux-gnu/", $file)
        } else {
            concat!("/usr/lib/x86_64-linux-gnu/", $file)
        }
    };
}

/// Programs and files, and the Debian packages that hold them.
const OPEN_MPI: [(&str, &str); 3] =
    [("mpirun.openmpi", "openmpi-bin"), (library!("openmpi/include/mpi.h"), "libopenmpi-dev"), ("cc", "gcc")];
const MPICH: [(&str, &str); 3] =
    [("mpirun.mpich", "mpich"), (library!("mpich/include/mpi.h"), "libmpich-dev"), ("cc", "gcc")];

/// Paths of the programs that are started.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub(crate) comity: PathBuf,
    pub(crate) python: PathBuf,
    pub(crate) own: PathBuf,
    /// The folder of the program in C, as each MPI's compiler made it.
    pub(crate) programs: PathBuf,
    /// Contenders that cannot take part, and why: what to install.
    pub(crate) missing: Vec<(&'static str, String)>,
}

/// The folder of this tool, beside what cargo built.
pub(crate) fn folder() -> PathBuf {
    target().join("bench")
}

/// Build and install what these peers need. What cannot be had is said, and left out.
///
/// # Errors
/// Comity itself cannot be built.
pub(crate) fn prepare(against: &[Peer]) -> Result<Ready, String> {
    make(&folder())?;
    println!("building the command as released ...");
    Task::cargo().args(["build", "--release", "-p", "comity-cli"]).limit(3600).echo().run()?;
    let mut ready = Ready {
        comity: built("release", "comity"),
        python: built("python", "bin/python"),
        own: own()?,
        programs: folder(),
        missing: Vec::new(),
    };
    println!("preparing Python, with the package as released ...");
    if let Err(why) = steps::prepare_python() {
        let why = format!("{why}; it needs python3 with venv, of version 3.11 or newer");
        ready.lacks(Contender::is_python, &why);
    } else if let Err(why) = steps::released_python() {
        ready.lacks(|c| c.is_python() && c.is_ours(), &format!("the package cannot be built: {why}"));
    }
    for (peer, wanted) in [(Peer::OpenMpi, OPEN_MPI), (Peer::Mpich, MPICH)] {
        if against.contains(&peer)
            && let Err(why) = steps::install_programs(&wanted)
                .and_then(|()| compile(&ready.mpi_program(peer.name()), peer.name()))
        {
            let packages: Vec<_> = wanted.iter().map(|(_, package)| *package).collect();
            let why = format!("{why}; it needs: apt-get install {}", packages.join(" "));
            ready.lacks(|c| c.peer() == Some(peer), &why);
        }
    }
    for remark in ready.remarks() {
        println!("!!! {remark}");
    }
    Ok(ready)
}

/// Take what lies in `folder`, for a machine that has neither cargo nor packages: `comity`, the program in C as `mpi-NAME`, whose
/// `mpirun.NAME` is on the PATH, and the Python that is there. What is not there is said, and left out.
///
/// # Errors
/// Comity itself is not there.
pub(crate) fn built_before(folder: &Path, against: &[Peer]) -> Result<Ready, String> {
    let folder = folder.canonicalize().map_err(|e| format!("--built {}: {e}", folder.display()))?;
    let mut ready = Ready {
        comity: folder.join("comity"),
        python: "python3".into(),
        own: own()?,
        programs: folder,
        missing: Vec::new(),
    };
    Task::new(&ready.comity).args(["--version"]).limit(10).run()?;
    for peer in [Peer::OpenMpi, Peer::Mpich].into_iter().filter(|p| against.contains(p)) {
        let launcher = format!("mpirun.{}", peer.name());
        let program_in_c = ready.mpi_program(peer.name());
        if !program_in_c.is_file() || program(&launcher).is_none() {
            let why = format!("it needs {} and {launcher} on the PATH", program_in_c.display());
            ready.lacks(|c| c.peer() == Some(peer), &why);
        }
    }
    for module in ["comity", "torch", "mlx"] {
        let task = Task::new(&ready.python).args(["-c", &format!("import {module}")]).limit(60);
        if let Err(why) = task.run() {
            ready.lacks(|c| c.is_python() && c.imports(module), &why);
        }
    }
    Ok(ready)
}

impl Ready {
    pub(crate) fn mpi_program(&self, mpi: &str) -> PathBuf {
        self.programs.join(format!("mpi-{mpi}"))
    }

    fn lacks(&mut self, who: impl Fn(&Contender) -> bool, why: &str) {
        self.missing.extend(CONTENDERS.iter().filter(|c| who(c)).map(|c| (c.name, why.to_owned())));
    }

    /// Remark for each reason, of one line.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for (who, why) in &self.missing {
            match reasons.iter_mut().find(|(known, _)| known == why) {
                Some((_, names)) => names.push(who),
                None => reasons.push((why, vec![who])),
            }
        }
        let one = |(why, names): &(&str, Vec<&str>)| {
            let verb = if names.len() == 1 { "does" } else { "do" };
            let why: Vec<&str> = why.lines().map(str::trim).collect();
            format!("{} {verb} not take part: {}", names.join(", "), why.join(" / "))
        };
        reasons.iter().map(one).collect()
    }

    pub(crate) fn has(&self, who: &Contender) -> bool {
        !self.missing.iter().any(|(name, _)| *name == who.name)
    }
}

fn compile(to: &Path, mpi: &str) -> Result<(), String> {
    let source = root().join(PROGRAMS).join("mpi.c");
    let task = Task::new(format!("mpicc.{mpi}")).args(["-std=gnu11", "-O2", "-Wall", "-Werror", "-o"]);
    task.args([to, &source]).limit(120).run().map(drop)
}

/// Versions of what took part, by name.
pub(crate) fn versions(ready: &Ready, against: &[Peer]) -> serde_json::Map<String, serde_json::Value> {
    let mut all = serde_json::Map::new();
    let mut add = |name: &str, said: Result<String, String>| {
        let first = |s: String| s.lines().next().unwrap_or_default().trim().to_owned();
        all.insert(name.into(), said.map_or_else(|_| "unknown".into(), first).into());
    };
    add("comity", commit());
    if against.contains(&Peer::OpenMpi) {
        add("openmpi", Task::new("mpirun.openmpi").args(["--version"]).run());
    }
    if against.contains(&Peer::Mpich) {
        let said = Task::new("mpirun.mpich").args(["--version"]).run();
        let version = |s: String| s.lines().find_map(|l| Some(l.split_once("Version:")?.1.trim().to_owned()));
        add("mpich", said.and_then(|s| version(s).ok_or_else(String::new)));
    }
    let python = |module: &str| {
        let script = format!("import importlib.metadata as m; print(m.version('{module}'))");
        Task::new(&ready.python).args(["-c", &script]).run()
    };
    for module in ["torch", "mlx", "numpy"] {
        add(module, python(module));
    }
    all
}

/// The commit that is built, and whether files differ from it.
pub(crate) fn commit() -> Result<String, String> {
    let git = |args: &[&str]| Task::new("git").args(["-C"]).args([root()]).args(args).run();
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--", "crates", "python", "Cargo.lock"])?.trim().is_empty();
    Ok(format!("{}{}", commit.trim(), if changed { ", changed" } else { "" }))
}

/// Prints the content of the Python package as a number, and versions of what is timed through Python.
const PACKAGE: &str = "
import hashlib, importlib.metadata, pathlib, comity
content = hashlib.sha256()
for path in sorted(pathlib.Path(comity.__file__).parent.rglob('*')):
    if path.suffix in ('.py', '.so'):
        content.update(path.read_bytes())
others = {d.name: d.version for d in importlib.metadata.distributions()}
print(content.hexdigest(), *(others.get(name) for name in ('torch', 'mlx', 'numpy')))";

/// A number that changes with the content of what is measured.
pub(crate) fn fingerprint(ready: &Ready) -> Result<String, String> {
    let mut hash = DefaultHasher::new();
    for file in [ready.comity.clone(), source("mpi.c"), source("peers.py")] {
        fs::read(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?.hash(&mut hash);
    }
    // Where there is no Python, nothing of it is measured.
    Task::new(&ready.python).args(["-c", PACKAGE]).run().unwrap_or_default().hash(&mut hash);
    Ok(format!("{:016x}", hash.finish()))
}

pub(crate) fn source(name: &str) -> PathBuf {
    root().join(PROGRAMS).join(name)
}

/// A file's path as one types it at the root of the workspace.
pub(crate) fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Program;

    #[test]
    fn what_is_missing_is_left_out_by_name() {
        let mut ready = Ready::default();
        ready.lacks(|c| c.peer() == Some(Peer::Mpich), "not here");
        ready.lacks(|c| matches!(c.program, Program::Python("mlx")), "nor this");
        let has = |name| ready.has(Contender::from_name(name).unwrap());
        let remarks =
            ["mpich does not take part: not here", "mlx, mlx-namespaces do not take part: nor this"];
        assert_eq!(ready.remarks(), remarks);
        assert!(!has("mpich") && !has("mlx") && has("comity") && has("openmpi-tuned"));
    }

    #[test]
    fn what_is_built_before_is_taken_and_the_rest_is_left_out() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tasks::place::Scratch::new("bench-built").unwrap();
        let folder = scratch.join("");
        assert!(built_before(&folder, &[]).is_err());
        fs::write(scratch.join("comity"), "#!/bin/sh\necho comity 0\n").unwrap();
        fs::set_permissions(scratch.join("comity"), fs::Permissions::from_mode(0o755)).unwrap();
        let ready = built_before(&folder, &[Peer::OpenMpi]).unwrap();
        let has = |name| ready.has(Contender::from_name(name).unwrap());
        assert!(has("comity") && has("comity-shared") && has("limit") && !has("openmpi"));
        assert!(ready.remarks().iter().any(|r| r.contains("mpi-openmpi and mpirun.openmpi on the PATH")));
    }

    #[test]
    fn other_content_has_another_number() {
        let scratch = tasks::place::Scratch::new("bench-content").unwrap();
        let ready = Ready { comity: scratch.join("comity"), python: "false".into(), ..Ready::default() };
        let number = |content: &str| {
            fs::write(&ready.comity, content).unwrap();
            fingerprint(&ready).unwrap()
        };
        assert!(number("a") != number("b") && number("a") == number("a"));
    }
}
