//! "Hosts" on one kernel: network namespaces with cables between them. Clusters as people cable them ([`shapes`]), and cables that are
//! cut ([`cut`]).

mod cut;
mod shapes;

use super::{Done, Outcome, launchers::job_key, missing, processes::comity, scope::Scope};
use shapes::{Lan, TRIANGLE};
use tasks::place::program;

pub(super) fn check(scope: &Scope) -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun("network namespaces are Linux's".into()));
    }
    if program("ip").is_none() || !rustix::process::geteuid().is_root() {
        return missing("network namespaces need root and the program ip (package iproute2)".into());
    }
    if let Err(e) = Lan::new(&TRIANGLE) {
        return missing(format!("network namespaces cannot be made here: {e}"));
    }
    let comity = comity()?;
    let (_scratch, key) = job_key()?;
    let mut shapes = shapes::check(scope, &comity, &key)?;
    shapes.extend(cut::check(scope, &key)?);
    Ok(Done::Passed(shapes.join(", ")))
}
