use super::*;
use crate::{
    choose::{choose, price},
    shape::Shape,
    topology::Topology,
};
use std::sync::Arc;

fn table(ratio: impl Fn(Kind, Algorithm, usize, usize) -> f64) -> RatioTable {
    let (ranks, bytes) = (vec![2, 4, 8], vec![8, 1024, 1 << 20]);
    let pairs = Kind::ALL.into_iter().flat_map(|k| k.algorithms().map(move |a| (k, a)));
    let rows = pairs.map(|(k, a)| {
        let places = (0..3).flat_map(|i| (0..3).map(move |j| (i, j)));
        RatioRow::new(k, a, places.map(|(i, j)| ratio(k, a, i, j)))
    });
    RatioTable::new(ranks, bytes, rows.collect()).unwrap()
}

fn tuned(ratio: impl Fn(Kind, Algorithm, usize, usize) -> f64) -> TunedCosts {
    let slow = LinkClass { cost: Cost { alpha: 2e-6, beta: 1e-9 }, ..LinkClass::SHM };
    TunedCosts::new([slow, LinkClass::TCP], 1e-10, [table(ratio), table(|_, _, _, _| 1.0)]).unwrap()
}

#[test]
fn between_knots_lies_a_line_and_beyond_them_the_last() {
    let t = table(|_, a, i, j| if a == Algorithm::Ring { (1 + i) as f64 + j as f64 / 4.0 } else { 1.0 });
    let at = |n: f64, bytes: f64| t.ratio(Kind::AllReduce, Algorithm::Ring, n, bytes);
    assert_eq!((at(2.0, 8.0), at(4.0, 1024.0), at(8.0, 1048576.0)), (1.0, 2.25, 3.5));
    assert_eq!((at(2.0, 0.0), at(1.0, 4.0), at(64.0, 1e12)), (1.0, 1.0, 3.5));
    // Half way by the logarithm, and half way between two powers of two.
    assert_eq!((at(2.0, 32768.0), at(3.0, 8.0)), (1.375, 1.5));
    assert_eq!(t.ratio(Kind::AllReduce, Algorithm::Direct, 3.0, 100.0), 1.0);
}

#[test]
fn a_ratio_changes_the_choice_on_one_host_alone() {
    let shape = |n: usize| Shape::new(Kind::AllReduce, 0, n, 1 << 20, 4);
    let usual = Topology::new(vec![0; 4], 4);
    let first = choose(&shape(4).common(), &usual, None).algorithm;
    let costs = Arc::new(tuned(|_, a, _, _| if a == first { 40.0 } else { 1.0 }));
    let here = usual.clone().tuned(Arc::clone(&costs), HostLink::Shm);
    let other = choose(&shape(4).common(), &here, None);
    assert_ne!(other.algorithm, first);
    assert!(price(&shape(4).common(), &here, first).predicted > other.predicted);
    // Over TCP the other table holds; between hosts and on crowded cores none, but the fitted numbers do.
    let tcp = usual.tuned(Arc::clone(&costs), HostLink::Tcp);
    assert_eq!(tcp.local, LinkClass::TCP);
    let plain = |w: &Topology| Topology { tuned: None, ..w.clone() };
    for world in [Topology::new(vec![0, 0, 1, 1], 4), Topology::new(vec![0; 4], 2)] {
        let world = world.tuned(Arc::clone(&costs), HostLink::Shm);
        let call = shape(4);
        assert_eq!(choose(&call.common(), &world, None), choose(&call.common(), &plain(&world), None));
    }
}

#[test]
fn parts_count_as_the_whole_buffer() {
    let costs = Arc::new(tuned(|k, _, _, j| if k == Kind::AllGather && j == 1 { 2.0 } else { 1.0 }));
    let world = Topology::new(vec![0; 4], 4).tuned(costs, HostLink::Shm);
    let plain = Topology { tuned: None, ..world.clone() };
    let at = |kind, count, world: &Topology| {
        price(&Shape::new(kind, 0, 4, count, 4).common(), world, Algorithm::Direct).predicted
    };
    // A part of 256 bytes of a buffer of 1024.
    assert_eq!(at(Kind::AllGather, 64, &world) / at(Kind::AllGather, 64, &plain), 2.0);
    assert_eq!(at(Kind::AllReduce, 256, &world), at(Kind::AllReduce, 256, &plain));
}

#[test]
fn bytes_hold_the_same_and_damaged_ones_are_none() {
    let costs = tuned(|_, a, i, j| 0.3 + 0.77 * (a as usize * 9 + i * 3 + j) as f64 / 10.0);
    let bytes = costs.to_bytes();
    assert_eq!((bytes.len(), TunedCosts::from_bytes(&bytes)), (costs.len(), Some(costs)));
    for cut in [0, 1, 40, 90, 100, bytes.len() - 1] {
        assert_eq!(TunedCosts::from_bytes(&bytes[..cut]), None, "{cut}");
    }
    assert_eq!(TunedCosts::from_bytes(&[&bytes[..], &[0]].concat()), None);
    // Whatever stands there, it is no panic; and what is read is sound enough to choose by.
    let shape = Shape::new(Kind::AllReduce, 0, 4, 1000, 4);
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if let Some(costs) = TunedCosts::from_bytes(&damaged) {
                let world = Topology::new(vec![0; 4], 4).tuned(Arc::new(costs), HostLink::Shm);
                assert!(choose(&shape.common(), &world, None).predicted >= 0.0);
            }
        }
    }
}

#[test]
fn the_logarithm_is_exact_at_powers_of_two() {
    for i in 0..60 {
        assert_eq!(about_log2((1u64 << i) as f64), f64::from(i));
    }
    assert_eq!((about_log2(0.0), about_log2(3.0), about_log2(6.0)), (0.0, 1.5, 2.5));
}
