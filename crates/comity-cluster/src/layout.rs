//! Layout of the cables between the hosts: a mesh, a ring, or less.
use crate::graph::Cluster;
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutKind {
    /// All share one network.
    Switch,
    /// A cable between each two.
    Mesh,
    /// A cable from each to the next.
    Ring,
    /// Each can be reached, through others.
    Sparse,
}

/// The hosts in an order, and what joins them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CableLayout {
    pub kind: LayoutKind,
    /// Places in [`Cluster::hosts`], in the order of ranks; neighbours in a ring.
    pub order: Vec<usize>,
    /// Parallel cables between neighbours, at least.
    pub lanes: usize,
    /// Pairs without a cable, where a mesh lacks them.
    pub missing: Vec<(usize, usize)>,
}

/// Steps of the search for a ring; a cluster of 12 takes far fewer.
const STEPS: usize = 200_000;

/// The layout of these cables; or the sentence that says who is apart. With `switch` a network of all hosts counts.
///
/// # Errors
/// Hosts that no cable joins to the others are named.
pub fn layout(cluster: &Cluster, switch: bool) -> Result<CableLayout, String> {
    let n = cluster.hosts.len();
    let order: Vec<usize> = (0..n).collect();
    if switch && (n == 1 || cluster.common_network().is_some()) {
        return Ok(CableLayout { kind: LayoutKind::Switch, order, lanes: 1, missing: Vec::new() });
    }
    let count = |i: usize, j: usize| cluster.between(i, j).count();
    let pairs = || (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
    let missing: Vec<_> = pairs().filter(|(i, j)| count(*i, *j) == 0).collect();
    if missing.is_empty() {
        let lanes = pairs().map(|(i, j)| count(i, j)).min().unwrap_or(1);
        let order = ring(n, &count).map_or(order, |(order, _)| order);
        return Ok(CableLayout { kind: LayoutKind::Mesh, order, lanes, missing });
    }
    apart(cluster, n, switch)?;
    Ok(match ring(n, &count) {
        Some((order, lanes)) => CableLayout { kind: LayoutKind::Ring, order, lanes, missing },
        None => CableLayout { kind: LayoutKind::Sparse, order, lanes: 0, missing },
    })
}

/// Hosts that the first one cannot reach.
fn apart(cluster: &Cluster, n: usize, switch: bool) -> Result<(), String> {
    let mut seen = BTreeSet::from([0]);
    let mut next = vec![0];
    while let Some(i) = next.pop() {
        let networks = cluster.networks.iter().filter(|w| switch && w.ends.iter().any(|e| e.host == i));
        let together: BTreeSet<_> = networks.flat_map(|w| &w.ends).map(|e| e.host).collect();
        for j in (0..n).filter(|j| cluster.between(i, *j).next().is_some() || together.contains(j)) {
            if seen.insert(j) {
                next.push(j);
            }
        }
    }
    let lone: Vec<_> = (0..n).filter(|i| !seen.contains(i)).map(|i| cluster.name(i)).collect();
    let there: Vec<_> = seen.iter().map(|i| cluster.name(*i)).collect();
    match lone.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "no cable joins {} to {}: plug one in, or leave hosts out of --hosts",
            lone.join(", "),
            there.join(", ")
        )),
    }
}

/// The ring through all with the most parallel cables, and how many it has; the first host first.
fn ring(n: usize, count: &dyn Fn(usize, usize) -> usize) -> Option<(Vec<usize>, usize)> {
    if n < 2 {
        return None;
    }
    let wide = (0..n)
        .flat_map(|i| (0..n).map(move |j| (i, j)))
        .filter(|(i, j)| i != j)
        .map(|(i, j)| count(i, j))
        .max()?;
    (1..=wide).rev().find_map(|lanes| {
        let near = |i: usize, j: usize| count(i, j) >= lanes;
        let mut steps = STEPS;
        let mut path = vec![0];
        walk(n, &near, &mut path, &mut steps).then_some((path, lanes))
    })
}

fn walk(n: usize, near: &dyn Fn(usize, usize) -> bool, path: &mut Vec<usize>, steps: &mut usize) -> bool {
    let last = path.last().copied().unwrap_or_default();
    if path.len() == n {
        return near(last, 0);
    }
    for next in 1..n {
        if *steps == 0 {
            return false;
        }
        *steps -= 1;
        if near(last, next) && !path.contains(&next) {
            path.push(next);
            if walk(n, near, path, steps) {
                return true;
            }
            path.pop();
        }
    }
    false
}
