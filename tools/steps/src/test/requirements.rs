//! Requirements of steps: systems, rights, programs. Those that can be installed are.

use super::{
    python,
    step::{Outcome, Why},
};
use std::{env, fs, os::unix::fs::PermissionsExt, path::PathBuf};
use tasks::{
    child::Task,
    place::{make, program, target},
};

/// Requirement of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Linux,
    /// Linux on x86_64.
    X86,
    /// Network namespaces.
    Root,
    /// Program, which is installed if it is not there, or file by its whole path; and the Debian package that holds it.
    Program(&'static str, &'static str),
    /// Folder beside what cargo built, with the content of these packages of Debian; and a program that must be in it.
    Unpacked(&'static str, &'static [&'static str], &'static str),
    /// Programs of Debian that the gate's steps use.
    Debian,
    Nextest,
    /// The nightly compiler, with Miri.
    Nightly,
    /// The standard library for a target.
    Target(&'static str),
    /// A subcommand of cargo, and where its authors' build of it is.
    Tool(&'static str, &'static str),
    /// The interpreter with what the tests use.
    Python,
    /// The same with the package of this project, of whatever state.
    Package,
    /// The same with the package as released, and with what this file lists.
    Released(&'static str),
    /// An interpreter of its own, of this name, with what this file lists.
    Apart(&'static str, &'static str),
    /// A checkout of others' sources, which this variable names.
    Checkout(&'static str, &'static str),
}

/// The newest build for Linux.
const NEXTEST: &str = "https://get.nexte.st/latest/linux";

/// Programs of the gate's steps.
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

/// A program and its package, as in [`Ask::Program`].
pub(crate) type Program = (&'static str, &'static str);

/// Meet all of these.
pub(super) fn meet(asks: &[Ask]) -> Outcome<()> {
    let named = |ask: &Ask| if let Ask::Program(name, package) = *ask { Some((name, package)) } else { None };
    for ask in asks {
        match *ask {
            Ask::Linux if !cfg!(target_os = "linux") => Err(Why::NotHere("it is for Linux".into())),
            Ask::X86 if !cfg!(all(target_os = "linux", target_arch = "x86_64")) => {
                Err(Why::NotHere("it is for Linux on x86_64".into()))
            }
            Ask::Root if !rustix::process::geteuid().is_root() => Err(Why::Missing("this needs root".into())),
            Ask::Nextest => cargo_tool("nextest", NEXTEST).map(drop).map_err(Why::Missing),
            Ask::Tool(name, built) => cargo_tool(name, built).map(drop).map_err(Why::Missing),
            Ask::Nightly => nightly().map_err(Why::Missing),
            Ask::Target(name) => Task::new("rustup")
                .args(["target", "add", name])
                .limit(180)
                .run()
                .map(drop)
                .map_err(|e| Why::Missing(format!("the target {name} cannot be added: {e}"))),
            Ask::Unpacked(name, packages, program) => unpacked(name, packages, program).map(drop),
            Ask::Debian => programs(&PROGRAMS),
            Ask::Python => python::prepare(),
            Ask::Package => python::with_package(),
            Ask::Released(file) => python::prepare_released(file),
            Ask::Apart(name, file) => python::apart(name, file, &[]).map(drop),
            Ask::Checkout(variable, of) if env::var_os(variable).is_none() => {
                Err(Why::NotHere(format!("{variable} names no checkout of {of}")))
            }
            _ => Ok(()),
        }?;
    }
    programs(&asks.iter().filter_map(named).collect::<Vec<_>>())
}

/// Make sure of a subcommand of cargo. If it is not there: as its authors built it, else from the registry's source.
fn cargo_tool(name: &str, built: &str) -> Result<(), String> {
    let program = format!("cargo-{name}");
    let version = || Task::new("cargo").args([name, "--version"]).run().map(drop);
    version().or_else(|_| {
        println!("installing {program}");
        let fetch = format!(
            "curl --fail --silent --show-error --location {built} | tar xz -C \"${{CARGO_HOME:-$HOME/.cargo}}/bin\" --wildcards --transform 's|.*/||' '*{program}'"
        );
        let here = cfg!(all(target_os = "linux", target_arch = "x86_64"));
        if !here || Task::sh(&fetch).limit(120).run().and_then(|_| version()).is_err() {
            Task::new("cargo").args(["install", "--locked", &program]).limit(3600).run()?;
        }
        version().map_err(|e| format!("{program} is missing; run cargo install --locked {program}: {e}"))
    })
}

/// Make sure of a nightly compiler with the standard library's source and Miri; nothing else of one that is there changes.
fn nightly() -> Result<(), String> {
    Task::sh("miri() { cargo +nightly miri --version && test -f \"$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock\"; }
if miri; then exit; fi
if rustc +nightly --version; then rustup component add --toolchain nightly rust-src miri
else rustup toolchain install nightly --profile minimal -c rust-src,miri; fi && miri")
    .limit(600).run().map(drop).map_err(|e| format!("there is no nightly compiler with rust-src and miri: {e}"))
}

/// Install what is lacking of these.
pub(crate) fn programs(wanted: &[Program]) -> Outcome<()> {
    let lacking = || wanted.iter().copied().filter(|(name, _)| program(name).is_none());
    let packages: Vec<&str> = lacking().map(|(_, package)| package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !rustix::process::geteuid().is_root() || program("apt-get").is_none() {
        return Err(Why::Missing(format!(
            "these packages are missing, and only root on Debian can install them: {list}"
        )));
    }
    println!("installing {list}");
    let apt = "apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5";
    let script = format!(
        "export DEBIAN_FRONTEND=noninteractive; {apt} update && {apt} install -y --no-install-recommends {list}"
    );
    Task::sh(&script).limit(900).run().map_err(Why::Missing)?;
    match lacking().next() {
        None => Ok(()),
        Some((name, package)) => Err(format!("{package} is installed, but brought no {name}").into()),
    }
}

/// Content of Debian's packages, unpacked beside what cargo built: to install them would start their servers here.
pub(super) fn unpacked(name: &str, packages: &[&str], program: &str) -> Outcome<PathBuf> {
    let folder = target().join(name);
    if folder.join(program).exists() {
        return Ok(folder);
    }
    make(&folder)?;
    // apt-get gives up root's rights for the download.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    println!("unpacking {}", packages.join(", "));
    let script = format!(
        "apt-get download {} && for package in *.deb; do dpkg-deb -x $package .; done",
        packages.join(" ")
    );
    let done = Task::sh(&script).folder(&folder).limit(240).run();
    match folder.join(program).exists() {
        true => Ok(folder),
        false => Err(Why::Missing(format!("the packages brought no {program}: {done:?}"))),
    }
}
