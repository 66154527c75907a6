//! "Hosts" on one kernel: network namespaces with cables between them. Clusters as people cable them ([`shapes`]), and cables that are
//! cut ([`cut`]).

mod cut;
mod shapes;

use super::{jobs::job_key, scope::Scope, step::Outcome};

pub(super) fn check(scope: &Scope) -> Outcome {
    let (_scratch, key) = job_key()?;
    let ran = [shapes::check(scope, &key)?, cut::check(scope, &key)?].concat();
    Ok(ran.join(", "))
}
