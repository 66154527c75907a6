//! Requirements of steps: systems, rights, programs. Those that can be installed are.

use super::{
    python,
    step::{Outcome, Why},
};
use std::{env, fs, os::unix::fs::PermissionsExt};
use tasks::{
    child::Task,
    place::{make, program, target},
};

/// The newest build for Linux.
const NEXTEST: &str = "https://get.nexte.st/latest/linux";

/// A program, or a file by its whole path, and the Debian package that holds it.
pub(crate) type Program<'a> = (&'a str, &'a str);

type MakeSure = fn(&str) -> Outcome<()>;

/// Requirements by their words in `steps.sh`, each with what makes sure of it. That gets what stands after `=`.
const KNOWN: [(&str, MakeSure); 16] = [
    ("linux", |_| here(cfg!(target_os = "linux"), "it is for Linux")),
    ("x86", |_| here(cfg!(all(target_os = "linux", target_arch = "x86_64")), "it is for Linux on x86_64")),
    ("root", |_| match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Why::Missing("this needs root".into())),
    }),
    ("namespaces", |_| chaos::unable().map_or(Ok(()), |why| Err(Why::Missing(why)))),
    // PROGRAM:PACKAGE,... of Debian. A program is installed if it is not there; it may be a file by its whole path.
    ("programs", |pairs| programs(&pairs.split(',').map(two).collect::<Vec<_>>())),
    ("guest", |_| programs(&guest::NEEDED)),
    // FOLDER:PROGRAM:PACKAGE,...: content of Debian's packages beside what cargo built, and a program that must be in it.
    ("unpacked", |what| {
        let (folder, rest) = two(what);
        let (program, packages) = two(rest);
        unpacked(folder, &packages.split(',').collect::<Vec<_>>(), program)
    }),
    ("nextest", |_| cargo_tool("nextest", NEXTEST)),
    // NAME:URL of a subcommand of cargo, and of its authors' build of it.
    ("tool", |what| cargo_tool(two(what).0, two(what).1)),
    ("nightly", |_| nightly().map_err(Why::Missing)),
    // The standard library for a target.
    ("target", |name| {
        let added = Task::new("rustup").args(["target", "add", name]).limit(180).run();
        added.map(drop).map_err(|e| Why::Missing(format!("the target {name} cannot be added: {e}")))
    }),
    // The interpreter with what the tests use; with the package of this project, of whatever state; with that as released, and what a file
    // lists.
    ("python", |_| python::prepare()),
    ("package", |_| python::with_package()),
    ("released", python::prepare_released),
    // NAME:FILE: an interpreter of its own, with what a file lists.
    ("apart", |what| python::apart(two(what).0, two(what).1)),
    // VARIABLE:OF: a checkout of others' sources, which a variable names.
    ("checkout", |what| {
        let (variable, of) = two(what);
        here(env::var_os(variable).is_some(), &format!("{variable} names no checkout of {of}"))
    }),
];

/// Parts of a requirement.
fn two(what: &str) -> (&str, &str) {
    what.split_once(':').unwrap_or((what, ""))
}

fn here(is_here: bool, why: &str) -> Outcome<()> {
    if is_here { Ok(()) } else { Err(Why::NotHere(why.into())) }
}

/// Way to make sure of a requirement.
pub(super) fn known(ask: &str) -> Option<impl Fn() -> Outcome<()>> {
    let (word, what) = ask.split_once('=').unwrap_or((ask, ""));
    let (_, make_sure) = KNOWN.iter().find(|(known, _)| *known == word)?;
    Some(move || make_sure(what))
}

/// Make sure of all of these.
pub(super) fn meet(asks: &[&str]) -> Outcome<()> {
    asks.iter().try_for_each(|ask| match known(ask) {
        Some(make_sure) => make_sure(),
        None => Err(format!("tools/steps/src/test/requirements.rs does not know {ask:?}").into()),
    })
}

/// Make sure of a subcommand of cargo. If it is not there: as its authors built it, else from the registry's source.
fn cargo_tool(name: &str, built: &str) -> Outcome<()> {
    let program = format!("cargo-{name}");
    let version = || Task::new("cargo").args([name, "--version"]).run().map(drop);
    if version().is_ok() {
        return Ok(());
    }
    println!("installing {program}");
    let fetch = format!(
        "curl --fail --silent --show-error --location {built} | tar xz -C \"${{CARGO_HOME:-$HOME/.cargo}}/bin\" --wildcards --transform 's|.*/||' '*{program}'"
    );
    let here = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    if !here || Task::sh(&fetch).limit(120).run().and_then(|_| version()).is_err() {
        Task::new("cargo").args(["install", "--locked", &program]).limit(3600).run().map_err(Why::Missing)?;
    }
    version()
        .map_err(|e| Why::Missing(format!("{program} is missing; run cargo install --locked {program}: {e}")))
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
pub(crate) fn programs(wanted: &[Program<'_>]) -> Outcome<()> {
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
fn unpacked(name: &str, packages: &[&str], program: &str) -> Outcome<()> {
    let folder = target().join(name);
    if folder.join(program).exists() {
        return Ok(());
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
        true => Ok(()),
        false => Err(Why::Missing(format!("the packages brought no {program}: {done:?}"))),
    }
}
