//! A rank that dies in training.

use super::{layers, ranks};
use comity::ErrorKind;
use comity_candle::{Error, Result, all_sum};
use std::time::{Duration, Instant};

/// A step, and its loss summed over the ranks.
fn step(group: &comity::Group, device: &candle_core::Device) -> Result<f32> {
    Ok(all_sum(group, &layers(group, device)?["loss"])?.to_scalar()?)
}

#[test]
fn who_dies_in_training_is_named() {
    let group = ranks();
    let device = comity_candle::device(&group).unwrap();
    for _ in 0..3 {
        step(&group, &device).unwrap();
    }
    if group.rank() == 1 {
        std::process::abort();
    }
    let start = Instant::now();
    let Error::Group(e) = (0..1_000_000).find_map(|_| step(&group, &device).err()).unwrap() else {
        panic!("another error");
    };
    let e = if let ErrorKind::Broken(cause) = e.kind() { cause } else { &e };
    assert!(matches!(e.kind(), ErrorKind::PeerLost { peer, .. } if peer.rank == 1), "{e}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    println!("rank {}: {:?} after rank 1 died: {e}", group.rank(), start.elapsed());
}
