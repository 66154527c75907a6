//! Variables that a rank gets unless the user has set them: as many threads as it has cores, and output at once.
use crate::host::bind::{RankBinding, usable_cores};
use crate::request::Setting;
use std::ffi::OsStr;

/// The variables by which OpenMP, and most libraries of linear algebra after it, and those in Rust are told their number of threads.
const THREADS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];
/// Variables by which a user chooses a number of threads.
const THREAD_CHOICES: [&str; 4] = [THREADS[0], THREADS[1], "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
/// Makes Python write each line when it is printed, not when its buffer is full or it ends.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// The number of threads for a rank of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadShare {
    threads: usize,
    /// Cores and ranks that it was computed from; none where ranks are bound.
    of: Option<(usize, usize)>,
}

impl ThreadShare {
    /// The share of each of `ranks` ranks; none where the user chose.
    pub(crate) fn new(env: &[Setting], binding: Option<&RankBinding>, ranks: usize) -> Option<Self> {
        let chosen = THREAD_CHOICES.iter().any(|name| is_set(name, env));
        (!chosen).then(|| match binding {
            Some(binding) => Self { threads: binding.cores_of_each(ranks), of: None },
            None => Self::of(usable_cores(), ranks),
        })
    }

    fn of(cores: usize, ranks: usize) -> Self {
        Self { threads: (cores / ranks.max(1)).max(1), of: Some((cores, ranks)) }
    }
}

impl std::fmt::Display for ThreadShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [all @ .., last] = THREADS.map(|name| format!("{name}={}", self.threads));
        write!(f, "{} and {last} for each rank: ", all.join(", "))?;
        match self.of {
            Some((cores, ranks)) => {
                let word = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
                write!(f, "{} for {}", word(cores, "core"), word(ranks, "rank"))
            }
            None => write!(f, "the cores that it is bound to"),
        }
    }
}

/// The variables, as names and values.
pub(crate) fn variables(env: &[Setting], share: Option<ThreadShare>) -> Vec<(&'static str, String)> {
    let threads = share.iter().flat_map(|share| THREADS.map(|name| (name, share.threads.to_string())));
    let unbuffered = (!is_set(UNBUFFERED, env)).then(|| (UNBUFFERED, "1".to_owned()));
    threads.chain(unbuffered).collect()
}

/// Returns whether the rank would find this variable: from the shell, or by the user's setting for the ranks.
fn is_set(name: &str, env: &[Setting]) -> bool {
    env.iter().any(|s| s.name == OsStr::new(name)) || std::env::var_os(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_has_a_thread_at_least() {
        let threads = |cores, ranks| ThreadShare::of(cores, ranks).threads;
        assert_eq!([(8, 2), (8, 3), (2, 4), (1, 1), (4, 0)].map(|(c, r)| threads(c, r)), [4, 2, 1, 1, 4]);
        let said = ThreadShare::of(8, 1).to_string();
        assert_eq!(said, "OMP_NUM_THREADS=8 and RAYON_NUM_THREADS=8 for each rank: 8 cores for 1 rank");
    }

    #[test]
    fn each_choice_of_the_user_counts() {
        for name in THREAD_CHOICES {
            let env = [Setting::parse(format!("{name}=3").into()).unwrap()];
            assert_eq!(ThreadShare::new(&env, None, 2), None, "{name}");
        }
        let env = [Setting::parse(format!("{UNBUFFERED}=").into()).unwrap()];
        let all = variables(&env, Some(ThreadShare::of(2, 2)));
        assert_eq!(all, THREADS.map(|name| (name, "1".to_owned())));
    }
}
