//! Wheel of a target: built, held to what PyPI asks, and installed where there is no Rust.

use crate::{
    artefact::{Artefact, Kind, hold, size},
    kit::Kit,
    target::Target,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use tasks::{
    child::Task,
    place::{Scratch, program},
};

/// Seconds from the file to a first result.
const PROMISED: u64 = 30;
/// Line of the demonstration that it writes where all is well.
const RESULT: &str = "every rank has the same plane";

/// Build the wheel, and with it the command and libcomity of the target.
pub(crate) fn build(kit: &Kit, target: &Target, out: &Path) -> Result<PathBuf, String> {
    let wheels = Scratch::within(out, "wheel")?;
    let mut task = kit.maturin(target).args(["build", "--profile", "dist", "--strip", "false"]);
    task = task.args(["--target", target.triple, "--out"]).args([wheels.join("")]);
    if !target.policy.is_empty() {
        task = task.args(["--compatibility", target.policy, "--auditwheel", "check"]);
    }
    task.limit(7200).echo().run()?;
    let made = fs::read_dir(wheels.join("")).map_err(|e| format!("cannot read the wheels: {e}"))?;
    let made: Vec<PathBuf> = made.filter_map(|f| Some(f.ok()?.path())).collect();
    let [made] = &made[..] else { return Err(format!("maturin made {} wheels", made.len())) };
    let name = made.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let wanted = format!("-cp311-abi3-{}.whl", target.tag);
    if !name.ends_with(&wanted) {
        return Err(format!("the wheel is {name}, and should end in {wanted}"));
    }
    let file = out.join(name);
    fs::rename(made, &file).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(file)
}

/// Check it, and run it where it can run.
pub(crate) fn check(kit: &Kit, target: &Target, file: PathBuf) -> Result<Artefact, String> {
    kit.program("twine").args(["check", "--strict"]).args([&file]).run()?;
    kit.program("abi3audit").args(["--strict", "--assume-minimum-abi3", "3.11"]).args([&file]).run()?;
    let mut checks = "twine, abi3audit 3.11".to_owned();
    if !target.policy.is_empty() {
        let said = kit.program("auditwheel").args(["show"]).args([&file]).run()?;
        let tags = said.split('"').skip(1).step_by(2);
        let Some(tag) = tags.into_iter().find(|tag| is_covered(tag, target.tag)) else {
            return Err(format!("auditwheel does not call it {}:\n{said}", target.tag));
        };
        checks += &format!(", auditwheel: {tag}");
    }
    if target.runs_here() {
        checks += &install(&file)?;
    }
    // Last, so that a wheel that is too large has been tried.
    hold(Kind::Wheel, size(&file)?)?;
    let inner = Some(size(&target.built(target.extension()))?);
    Ok(Artefact { file, inner, ran: target.runs_here(), checks })
}

/// Returns whether a wheel of the first tag runs wherever one of the second does: it needs an equal or older system library.
fn is_covered(tag: &str, promised: &str) -> bool {
    let split = |tag: &str| {
        let mut words = tag.splitn(4, '_');
        let kind = words.next()?.to_owned();
        let major = words.next()?;
        let minor = words.next()?;
        let version: (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        Some((kind, version, words.next()?.to_owned()))
    };
    match (split(tag), split(promised)) {
        (Some(tag), Some(promised)) => tag.0 == promised.0 && tag.1 <= promised.1 && tag.2 == promised.2,
        _ => false,
    }
}

/// Install it into an empty environment, with a PATH that has no Rust, and start the demonstration there.
fn install(file: &Path) -> Result<String, String> {
    let scratch = Scratch::new("wheel")?;
    let venv = scratch.join("venv");
    let path = format!("{}:/usr/bin:/bin", venv.join("bin").display());
    let found = |name: &str| path.split(':').any(|dir| Path::new(dir).join(name).exists());
    if found("cargo") || found("rustc") {
        return Err("/usr/bin or /bin has Rust: nothing would show that the wheel needs none".into());
    }
    let python = program("python3").ok_or("there is no python3")?;
    Task::new(python).args(["-m", "venv"]).args([&venv]).limit(600).run()?;
    let here = |program: &str| {
        let task = Task::new(venv.join("bin").join(program)).env("PATH", &path).env("PYTHONPATH", "");
        task.folder(&venv)
    };
    let start = Instant::now();
    here("pip").args(["install", "--quiet", "--no-index"]).args([file]).run()?;
    let demo = ["launch", "-n", "4", "--", "python", "-m", "comity.demo"];
    let said = here("comity").args(demo).limit(120).run()?;
    let seconds = start.elapsed().as_secs();
    if !said.contains(RESULT) {
        return Err(format!("the demonstration gave no result:\n{said}"));
    }
    if seconds >= PROMISED {
        return Err(format!("from the file to a result it took {seconds} s, more than {PROMISED} s"));
    }
    here("comity").args(["launch", "-n", "2", "--", "comity", "check", "--quick"]).limit(300).run()?;
    Ok(format!(
        ", installed without Rust: `comity.demo` on 4 ranks after {seconds} s, `comity check --quick` on 2"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_may_need_an_older_system_library_and_no_newer_one() {
        let promised = "manylinux_2_28_x86_64";
        assert!(is_covered(promised, promised) && is_covered("manylinux_2_17_x86_64", promised));
        for other in
            ["manylinux_2_35_x86_64", "manylinux_2_28_aarch64", "musllinux_1_2_x86_64", "linux_x86_64", ""]
        {
            assert!(!is_covered(other, promised), "{other}");
        }
    }
}
