//! `comity launch --backend mpi`: MPI's own launcher starts the ranks, with the flags that its version has.
//!
//! This process becomes that launcher (exec), so signals, output and the exit code are the launcher's.
use crate::host::rank::{ThreadShare, variables};
use crate::machine::Problem;
use crate::request::{JobRequest, TagWish};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Looked for on the path, in this order, unless `COMITY_MPIRUN` names one.
const NAMES: [&str; 4] = ["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.mpich"];

/// Library that the launcher belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Open MPI of this major version.
    OpenMpi(u32),
    /// MPICH, Intel MPI and others whose launcher is Hydra.
    Hydra,
}

/// Becomes the launcher; returns only when it cannot.
pub(crate) fn launch(args: &JobRequest, more: &[String]) -> Result<u8, Problem> {
    let mut command = prepare(args, more)?;
    let e = command.exec();
    Err(Problem::machine(format!("cannot start {}: {e}", command.get_program().to_string_lossy())))
}

/// The launcher that this would be.
///
/// # Errors
/// There is none; the sentence says where it was looked for.
pub fn launcher() -> Result<OsString, String> {
    find().map(|(program, _)| program)
}

fn prepare(args: &JobRequest, more: &[String]) -> Result<Command, Problem> {
    let (program, family) = find().map_err(Problem::usage)?;
    let mut command = Command::new(&program);
    command.args(flags(family, args, more, rustix::process::geteuid().is_root()));
    command.env("COMITY_BACKEND", "mpi");
    // What the shell says was said to another job.
    for (name, value) in args.terms.variables() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(limit) = args.timeout {
        // Both families read it; seconds, not less than one.
        command.env("MPIEXEC_TIMEOUT", limit.as_secs().max(1).to_string());
    }
    let share = ThreadShare::new(&args.env, None, args.size());
    command.envs(variables(&args.env, share));
    for set in &args.env {
        command.env(&set.name, &set.value);
    }
    if args.verbose {
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        eprintln!("comity launch: {} {}", program.to_string_lossy(), words.join(" "));
    }
    Ok(command)
}

/// The launcher's arguments, up to and with the command of the ranks.
fn flags(family: Family, args: &JobRequest, more: &[String], root: bool) -> Vec<OsString> {
    let mut flags: Vec<OsString> = vec!["-n".into(), args.size().to_string().into()];
    let mut add = |more: &[&str]| flags.extend(more.iter().map(OsString::from));
    match family {
        Family::OpenMpi(major) => {
            // More ranks than cores is no mistake here.
            match major {
                ..5 => add(&["--oversubscribe", "--bind-to", "none"]),
                _ => add(&["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]),
            }
            if root {
                add(&["--allow-run-as-root"]);
            }
            if args.tag_output == TagWish::Always {
                add(&["--tag-output"]);
            }
            add(&["-x", "COMITY_BACKEND"]);
            let variables = args.terms.variables();
            variables.iter().filter(|(_, value)| value.is_some()).for_each(|(name, _)| add(&["-x", name]));
        }
        Family::Hydra => {
            if args.tag_output == TagWish::Always {
                add(&["-l"]);
            }
        }
    }
    for set in &args.env {
        match family {
            // It takes the value from its own environment, where it is in no argument list.
            Family::OpenMpi(_) => flags.extend(["-x".into(), set.name.clone()]),
            Family::Hydra => {}
        }
    }
    let more = more.iter().flat_map(|words| words.split_whitespace());
    flags.extend(more.map(OsString::from));
    if let Some(dir) = &args.cwd {
        flags.extend(["-wdir".into(), dir.clone().into_os_string()]);
    }
    flags.extend(args.command.iter().cloned());
    flags
}

/// The first launcher that answers, and whose it is.
fn find() -> Result<(OsString, Family), String> {
    let named = std::env::var_os("COMITY_MPIRUN").filter(|n| !n.is_empty());
    let names: Vec<OsString> = named.map_or_else(|| NAMES.map(OsString::from).to_vec(), |n| vec![n]);
    for name in &names {
        let asked = Command::new(name).arg("--version").stdin(Stdio::null()).output();
        let Ok(said) = asked else { continue };
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        return match family(&text) {
            Some(family) => Ok((name.clone(), family)),
            None => Err(format!(
                "{} is neither Open MPI's launcher nor MPICH's: --version said {:?}; COMITY_MPIRUN names another",
                name.to_string_lossy(),
                text.lines().next().unwrap_or_default()
            )),
        };
    }
    let tried: Vec<_> = names.iter().map(|n| n.to_string_lossy()).collect();
    Err(format!(
        "--backend mpi needs MPI's launcher, and none was found: tried {}. Install Open MPI or MPICH, or name it in COMITY_MPIRUN",
        tried.join(", ")
    ))
}

/// From what `--version` prints.
fn family(text: &str) -> Option<Family> {
    let first = text.lines().find(|l| !l.trim().is_empty())?;
    if first.contains("Open MPI") || first.contains("OpenRTE") || first.contains("PRRTE") {
        let version = first.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()))?;
        return version.split('.').next()?.parse().ok().map(Family::OpenMpi);
    }
    let hydra = ["HYDRA", "Intel(R) MPI", "MPICH", "MVAPICH"];
    hydra.iter().any(|w| text.contains(w)).then_some(Family::Hydra)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Setting;

    #[test]
    fn the_family_is_read_from_the_version() {
        assert_eq!(family("mpirun (Open MPI) 5.0.5\n\nReport bugs"), Some(Family::OpenMpi(5)));
        assert_eq!(family("mpirun.openmpi (OpenRTE) 4.1.4\n"), Some(Family::OpenMpi(4)));
        assert_eq!(family("HYDRA build details:\n    Version:  4.0.2\n"), Some(Family::Hydra));
        assert_eq!(family("Intel(R) MPI Library for Linux* OS, Version 2021.10"), Some(Family::Hydra));
        assert_eq!(family("srun 23.02"), None);
        assert_eq!(family(""), None);
    }

    #[test]
    fn each_version_gets_the_flags_it_has() {
        let job = JobRequest {
            env: vec![Setting::parse("A=b c".into()).unwrap()],
            ..JobRequest::of_command(3, &["prog", "-x", "1"])
        };
        let words = |family, root| {
            let flags = flags(family, &job, &[], root);
            flags.iter().map(|f| f.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            words(Family::OpenMpi(4), true),
            "-n 3 --oversubscribe --bind-to none --allow-run-as-root -x COMITY_BACKEND -x A prog -x 1"
        );
        assert_eq!(
            words(Family::OpenMpi(5), false),
            "-n 3 --map-by :OVERSUBSCRIBE --bind-to none -x COMITY_BACKEND -x A prog -x 1"
        );
        assert_eq!(words(Family::Hydra, true), "-n 3 prog -x 1");
    }
}
