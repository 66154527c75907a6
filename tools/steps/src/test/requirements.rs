//! Programs that the tests use and cargo does not bring.

use super::{Done, Outcome, missing, nightly};
use std::{env, fs, os::unix::fs::PermissionsExt, path::PathBuf};
use tasks::{
    child::Task,
    place::{program, target},
};

/// A program, or a file by its whole path, and the Debian package that holds it.
pub(crate) type Program = (&'static str, &'static str);

/// The newest build for Linux.
const NEXTEST: &str = "https://get.nexte.st/latest/linux";

const PROGRAMS: [Program; 9] = [
    ("ip", "iproute2"),
    ("mpirun.openmpi", "openmpi-bin"),
    ("mpiexec.mpich", "mpich"),
    ("c++", "g++"),
    ("cmake", "cmake"),
    ("make", "make"),
    ("pkg-config", "pkg-config"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
];

/// The test runner, by name and version, installed if it is not there.
pub(super) fn nextest() -> Result<String, String> {
    cargo_tool("nextest", NEXTEST)
}

/// A subcommand of cargo, by name and version. If it is not there: as its authors built it, else from the registry's source.
pub(super) fn cargo_tool(name: &str, built: &str) -> Result<String, String> {
    let program = format!("cargo-{name}");
    let version = || Task::new("cargo").args([name, "--version"]).run();
    let said = version().or_else(|_| {
        println!("installing {program}");
        let bin = cargo_bin().ok_or("there is no folder for cargo's programs")?;
        let fetch = format!(
            "curl --fail --silent --show-error --location {built} | tar xz -C \"$0\" --wildcards --transform 's|.*/||' '*{program}'"
        );
        let here = cfg!(all(target_os = "linux", target_arch = "x86_64"));
        let fetched = here && Task::new("sh").args(["-c", &fetch]).args([bin]).limit(120).run().is_ok();
        if !fetched || version().is_err() {
            let args = ["install", "--locked", &program];
            Task::new("cargo").args(args).limit(3600).run()?;
        }
        version().map_err(|e| format!("{program} is missing; run cargo install --locked {program}: {e}"))
    })?;
    Ok(said.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

/// Folder in which cargo looks for programs of users.
fn cargo_bin() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    Some(home.join("bin"))
}

pub(super) fn install() -> Outcome {
    if let Err(e) = nextest() {
        return missing(e);
    }
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun(
            "only Debian's packages are known here; steps that lack a program say so".into(),
        ));
    }
    // Without it three steps cannot run, and say so.
    if let Err(e) = nightly::install() {
        return missing(format!("the nightly compiler cannot be installed: {e}"));
    }
    programs(&PROGRAMS)
}

/// Install what is lacking of these.
pub(super) fn programs(wanted: &[Program]) -> Outcome {
    let lacking = || wanted.iter().copied().filter(|(name, _)| program(name).is_none());
    let packages: Vec<&str> = lacking().map(|(_, package)| package).collect();
    if packages.is_empty() {
        return Ok(Done::Passed("all there".into()));
    }
    let list = packages.join(" ");
    if !rustix::process::geteuid().is_root() || program("apt-get").is_none() {
        return missing(format!(
            "these packages are missing, and only root on Debian can install them: {list}"
        ));
    }
    println!("installing {list}");
    let apt = |args: &[&str]| {
        Task::new("apt-get")
            .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=5"])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .limit(600)
            .run()
    };
    let installed = apt(&["update"])
        .and_then(|_| apt(&[&["install", "-y", "--no-install-recommends"], &packages[..]].concat()));
    match (installed, lacking().next()) {
        (Ok(_), None) => Ok(Done::Passed(format!("installed {list}"))),
        (Ok(_), Some((name, package))) => Err(format!("{package} is installed, but brought no {name}")),
        (Err(e), _) => missing(e),
    }
}

/// Content of Debian's packages, unpacked beside what cargo built: to install them would start their servers here.
pub(super) fn unpacked(name: &str, packages: &[&str], program: &str) -> Result<PathBuf, String> {
    let folder = target().join(name);
    let fail = |e| format!("cannot make {}: {e}", folder.display());
    if folder.join(program).exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&folder).map_err(fail)?;
    // apt-get gives up root's rights for the download.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).map_err(fail)?;
    println!("unpacking {}", packages.join(", "));
    Task::new("apt-get").args(["download"]).args(packages).folder(&folder).limit(180).run()?;
    let script = "for package in *.deb; do dpkg-deb -x $package .; done";
    Task::new("sh").args(["-c", script]).folder(&folder).run()?;
    match folder.join(program).exists() {
        true => Ok(folder),
        false => Err(format!("the packages brought no {program}")),
    }
}
