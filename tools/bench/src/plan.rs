//! Launches of a run, their order, and how long they take.
//!
//! A part is some operations at some sizes on some ranks. In each round of a part every contender is started once, one after
//! the other, so that what changes on the machine meets all of them. Rounds go over all parts before the next one begins.

use super::{
    cell::{Element, Operation},
    contender::{CONTENDERS, Contender, Peer, Program, Wire},
};
use std::time::Duration;

/// Time for the measuring of the default run; it starts nothing after that.
pub(crate) const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Operations at sizes on ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) ops: Vec<Operation>,
    pub(crate) element: Element,
    pub(crate) ranks: usize,
    pub(crate) sizes: Vec<u64>,
    pub(crate) rounds: u32,
    /// Seconds for each cell.
    pub(crate) budget: f64,
    pub(crate) who: Who,
}

/// Contenders that take part in a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Who {
    /// All on this host.
    All,
    /// Without Comity through Python and what is not a default: the same cells again would say little.
    Defaults,
    /// Contenders that cross namespaces.
    Namespaces,
}

/// Launch of one contender in one round of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) part: &'a Part,
    pub(crate) round: u32,
    pub(crate) who: &'static Contender,
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// The sample that fits [`LIMIT`] on two cores.
pub(crate) fn sample() -> Vec<Part> {
    use Element::{Bf16, F32};
    use Operation::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, PingPong, ReduceScatter};
    let part = |name: &str, ops: &[Operation], element, ranks, sizes: &[u64], rounds, who| Part {
        name: name.into(),
        ops: ops.to_vec(),
        element,
        ranks,
        sizes: sizes.to_vec(),
        rounds,
        budget: 0.15,
        who,
    };
    let all = [8, K, 16 * K, 256 * K, M, 4 * M, 16 * M, 64 * M];
    let others = [AllGather, ReduceScatter, Broadcast, AllToAll, PingPong];
    vec![
        part("all_reduce-2", &[AllReduce], F32, 2, &all, 4, Who::All),
        part("start-2", &[Barrier], F32, 2, &[8], 3, Who::All),
        part("others-2", &others, F32, 2, &[64, 64 * K, M, 64 * M], 3, Who::Defaults),
        part("bf16-2", &[AllReduce], Bf16, 2, &[K, M, 64 * M], 2, Who::Defaults),
        part("all_reduce-4", &[AllReduce], F32, 4, &[8, 16 * K, M, 64 * M], 2, Who::Defaults),
        part("all_reduce-8", &[AllReduce], F32, 8, &[8, M, 16 * M], 1, Who::Defaults),
    ]
}

/// all_reduce on the numbers of ranks that so many cores can carry.
pub(crate) fn many(cores: usize) -> Vec<Part> {
    let part = |ranks: usize| Part {
        name: format!("many-{ranks}"),
        ops: vec![Operation::AllReduce],
        element: Element::F32,
        ranks,
        sizes: vec![8, K, 64 * K, M, 4 * M, 16 * M, 64 * M],
        rounds: 3,
        budget: 0.1,
        who: Who::All,
    };
    [2, 4, 8, 16, 28].into_iter().filter(|&ranks| ranks <= cores).map(part).collect()
}

/// Everything.
pub(crate) fn full() -> Vec<Part> {
    let sizes: Vec<u64> = vec![8, 64, K, 4 * K, 16 * K, 64 * K, 256 * K, M, 4 * M, 16 * M, 64 * M, 256 * M];
    let mut parts = Vec::new();
    for ranks in [2, 4, 8] {
        for element in [Element::F32, Element::Bf16] {
            for op in Operation::ALL {
                let once = op == Operation::PingPong && ranks > 2 || op == Operation::Barrier;
                if once && (ranks > 2 && op == Operation::PingPong || element == Element::Bf16) {
                    continue;
                }
                parts.push(Part {
                    name: format!("{}-{}-{ranks}", op.name(), element.name()),
                    ops: vec![op],
                    element,
                    ranks,
                    // A part of each rank has an element at least.
                    sizes: match op {
                        Operation::Barrier => vec![8],
                        _ => sizes.iter().copied().filter(|s| !op.has_parts() || *s >= 64).collect(),
                    },
                    rounds: 5,
                    budget: 0.3,
                    who: Who::All,
                });
            }
        }
    }
    // Open MPI would want a shell on the other host.
    parts.push(Part {
        name: "namespaces-all_reduce-f32-2".into(),
        ops: vec![Operation::AllReduce],
        element: Element::F32,
        ranks: 2,
        sizes,
        rounds: 5,
        budget: 0.3,
        who: Who::Namespaces,
    });
    parts
}

impl Part {
    /// Contenders that take part, of Comity, the limits and these peers.
    pub(crate) fn contenders(&self, against: &[Peer]) -> Vec<&'static Contender> {
        let fits = |c: &&Contender| {
            let crosses = c.wire == Wire::Namespaces;
            let tuned = c.wire == Wire::Memory && !c.flags.is_empty();
            let wanted = match self.who {
                Who::All => !crosses,
                Who::Defaults => !(crosses || tuned || c.is_ours() && c.is_python()),
                Who::Namespaces => crosses,
            };
            wanted && c.peer().is_none_or(|p| against.contains(&p)) && !self.of(c).is_empty()
        };
        CONTENDERS.iter().filter(fits).collect()
    }

    /// The operations of the part that this contender has.
    pub(crate) fn of(&self, who: &Contender) -> Vec<Operation> {
        self.ops.iter().copied().filter(|&op| who.can(op, self.element)).collect()
    }
}

/// All launches of these parts, in their order.
pub(crate) fn launches<'a>(parts: &'a [Part], against: &[Peer]) -> Vec<Launch<'a>> {
    let rounds = parts.iter().map(|p| p.rounds).max().unwrap_or(0);
    let mut all = Vec::new();
    for round in 0..rounds {
        for part in parts.iter().filter(|p| round < p.rounds) {
            all.extend(part.contenders(against).into_iter().map(|who| Launch { part, round, who }));
        }
    }
    all
}

/// Speed of a contender before it is measured: seconds to start, microseconds of the smallest call, the same
/// where there are more ranks than cores, and GB/s.
fn habits(who: &Contender, ranks: f64, cores: f64) -> (f64, f64, f64, f64) {
    let each = (ranks / cores).max(1.0);
    match (who.program, who.wire) {
        (Program::Limit(_), _) => (0.1, 1.0, 20.0, 5.0),
        (Program::Comity, Wire::Memory) => (0.2, 1.0, 20.0, 4.0),
        (Program::Comity, _) => (0.2, 15.0, 150.0, 2.0),
        (Program::Mpi("mpich"), _) => (0.6, 1.0, 10_000.0, 2.0),
        (Program::Mpi(_), Wire::Memory) => (0.8, 1.0, 10.0, 2.0),
        (Program::Mpi(_), _) => (0.8, 10.0, 100.0, 1.2),
        (Program::Python("numpy"), _) => (0.7 * each, 10.0, 100.0, 3.0),
        (Program::Python("mlx"), _) => (1.5 * each, 2_000.0, 25_000.0, 0.6),
        (Program::Python("gloo"), _) => (3.5 * each, 500.0, 6_000.0, 1.0),
        (Program::Python(_), _) => (3.5 * each, 30.0, 300.0, 3.0),
    }
}

impl Launch<'_> {
    /// Name of its files.
    pub(crate) fn key(&self) -> String {
        format!("{}.{}.{}", self.part.name, self.round, self.who.name)
    }

    /// Seconds that it takes, as far as one can say.
    pub(crate) fn seconds(&self, cores: usize) -> f64 {
        let ranks = self.part.ranks as f64;
        let cores = cores as f64;
        let (start, alone, crowded, rate) = habits(self.who, ranks, cores);
        let least = if ranks > cores { crowded } else { alone };
        // More ranks share the memory's bandwidth.
        let rate = rate * (2.0 / ranks) * 1e3;
        let of = |bytes: u64| {
            let call = (least + bytes as f64 / rate) * 1e-6;
            let budget = self.part.budget;
            // Checked and estimated, warmed up, timed.
            7.0 * call + (20.0 * call).min(budget / 2.0) + budget.max(5.0 * call)
        };
        let cells: f64 = self.part.sizes.iter().map(|&b| of(b)).sum();
        start + self.part.of(self.who).len() as f64 * cells
    }

    /// It is ended after so many seconds.
    pub(crate) fn limit(&self, cores: usize) -> u64 {
        (90.0 + 6.0 * self.seconds(cores)) as u64
    }
}

/// The launches with their seconds, one line a part and round, and how long all take.
pub(crate) fn words(launches: &[Launch<'_>], cores: usize) -> String {
    let mut text = String::new();
    let mut at = 0;
    while let Some(first) = launches.get(at) {
        let same = |l: &&Launch<'_>| l.part.name == first.part.name && l.round == first.round;
        let these: Vec<_> = launches[at..].iter().take_while(same).collect();
        let seconds: f64 = these.iter().map(|l| l.seconds(cores)).sum();
        let names: Vec<_> = these.iter().map(|l| l.who.name).collect();
        text += &format!(
            "{:>5.0} s  {} round {}: {}\n",
            seconds,
            first.part.name,
            first.round + 1,
            names.join(" ")
        );
        at += these.len();
    }
    let all: f64 = launches.iter().map(|l| l.seconds(cores)).sum();
    text + &format!("{all:>5.0} s  {} launches in all, on {cores} cores\n", launches.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_run_fits_its_limit_on_two_cores() {
        let parts = sample();
        let launches = launches(&parts, &Peer::ALL);
        let seconds: f64 = launches.iter().map(|l| l.seconds(2)).sum();
        // A fifth is left for launches whose cells were disturbed.
        assert!(seconds < 0.8 * LIMIT.as_secs_f64(), "{}", words(&launches, 2));
        assert!(launches.iter().all(|l| l.limit(2) < 300), "{}", words(&launches, 2));
    }

    #[test]
    fn contenders_take_turns_in_every_round() {
        let parts = sample();
        let all = launches(&parts, &[Peer::Gloo]);
        assert!(all.iter().all(|l| l.who.peer().is_none_or(|p| p == Peer::Gloo)));
        let first: Vec<_> = all.iter().take_while(|l| l.part.name == "all_reduce-2").collect();
        assert!(first.iter().all(|l| l.round == 0) && first.iter().any(|l| l.who.name == "gloo"));
        let names: Vec<_> = first.iter().map(|l| l.who.name).collect();
        assert!(["limit", "limit-tcp", "comity", "comity-tcp"].iter().all(|n| names.contains(n)));
        let none = launches(&parts, &[]);
        assert!(none.iter().all(|l| l.who.peer().is_none()) && !none.is_empty());
    }

    #[test]
    fn no_core_has_two_of_many_ranks() {
        let ranks = |cores| many(cores).iter().map(|p| p.ranks).collect::<Vec<_>>();
        assert_eq!((ranks(16), ranks(3), ranks(1)), (vec![2, 4, 8, 16], vec![2], vec![]));
        let parts = many(16);
        let seconds: f64 = launches(&parts, &[Peer::OpenMpi]).iter().map(|l| l.seconds(16)).sum();
        assert!(seconds < 420.0, "{seconds}");
    }

    #[test]
    fn everything_has_every_operation_type_and_number_of_ranks() {
        let parts = full();
        for op in Operation::ALL {
            assert!(parts.iter().any(|p| p.ops.contains(&op)), "{op:?}");
        }
        for ranks in [2, 4, 8] {
            assert!(parts.iter().any(|p| p.ranks == ranks && p.element == Element::Bf16));
        }
        let mut names: Vec<_> = parts.iter().map(|p| &p.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), parts.len());
        assert!(parts.iter().filter(|p| p.ops[0].has_parts()).all(|p| p.sizes[0] >= 64));
    }
}
