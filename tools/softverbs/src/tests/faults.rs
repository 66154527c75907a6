//! Faults of the configuration do happen, the same way for the same seed.

use super::*;

const COUNT: u8 = 40;

/// Send numbered messages; the first bytes that arrive, in order.
fn arrived(faults: &[(&str, &str)]) -> Vec<u8> {
    let (mut a, mut b) = connected(IBV_QPT_UC, faults, &[]);
    for id in 0..60 {
        b.receive(id, 8 * id as usize, 8).unwrap();
    }
    for id in 0..COUNT {
        a.memory[8 * id as usize..][..8].fill(id);
        a.post(id.into(), 8 * id as usize, 8).unwrap();
        a.poll();
    }
    until(&mut a, &mut b, |a, _| a.seen.len() == COUNT as usize);
    for_a_while(&mut a, &mut b);
    assert!(a.seen.iter().all(|wc| wc.status == 0), "UC says nothing of it");
    b.seen.iter().map(|wc| b.memory[8 * wc.wr_id as usize]).collect()
}

#[test]
fn without_faults_all_arrive_in_order() {
    assert!(arrived(&[]).into_iter().eq(0..COUNT));
}

#[test]
fn lost_messages_are_missing() {
    let some = arrived(&[("DROP", "0.3"), ("SEED", "4")]);
    assert!((10..38).contains(&some.len()) && some.is_sorted(), "{some:?}");
    assert_eq!(some, arrived(&[("DROP", "0.3"), ("SEED", "4")]));
    assert_ne!(some, arrived(&[("DROP", "0.3"), ("SEED", "5")]));
    assert!(arrived(&[("DROP", "1")]).is_empty());
}

#[test]
fn duplicates_come_twice() {
    let some = arrived(&[("DUPLICATE", "0.2"), ("SEED", "3")]);
    let mut once = some.clone();
    once.dedup();
    assert!(once.into_iter().eq(0..COUNT) && some.len() > COUNT as usize, "{some:?}");
}

#[test]
fn overtaken_messages_come_later() {
    let mut some = arrived(&[("REORDER", "0.3")]);
    assert!(!some.is_sorted(), "{some:?}");
    some.sort_unstable();
    assert!(some.into_iter().eq(0..COUNT));
}

#[test]
fn corrupted_messages_differ() {
    let (mut a, mut b) = connected(IBV_QPT_UC, &[("CORRUPT", "1")], &[]);
    b.receive(1, 0, 4096).unwrap();
    a.post(2, 0, 4096).unwrap();
    until(&mut a, &mut b, |_, b| !b.seen.is_empty());
    assert_eq!(b.ended(), [(1, 0)]);
    assert_eq!(b.memory.iter().filter(|x| **x != 0).count(), 1);
}

#[test]
fn a_link_that_is_down_loses_uc_and_fails_rc() {
    let down = file();
    let name = down.to_string_lossy().into_owned();
    let with = [("LINK_DOWN_FILE", name.as_str())];
    std::fs::write(&down, "127.0.0.1").unwrap();
    let (mut a, mut b) = connected(IBV_QPT_UC, &with, &with);
    b.receive(1, 0, 8).unwrap();
    a.post(2, 0, 8).unwrap();
    for_a_while(&mut a, &mut b);
    assert_eq!((a.ended(), b.ended()), (vec![(2, 0)], vec![]));
    let (mut c, mut d) = connected(IBV_QPT_RC, &with, &with);
    d.receive(1, 0, 8).unwrap();
    c.post(2, 0, 8).unwrap();
    until(&mut c, &mut d, |c, _| !c.seen.is_empty());
    assert_eq!((c.ended(), d.ended()), (vec![(2, IBV_WC_RETRY_EXC_ERR)], vec![]));
    std::fs::write(&down, "127.0.0.9 other").unwrap();
    a.post(3, 0, 8).unwrap();
    until(&mut a, &mut b, |_, b| !b.seen.is_empty());
    std::fs::remove_file(&down).unwrap();
}

#[test]
fn without_a_cable_rc_fails() {
    let cables = [("CABLES", "127.0.0.1-127.0.0.2")];
    let (mut a, mut b) = connected(IBV_QPT_RC, &cables, &cables);
    a.post(1, 0, 8).unwrap();
    until(&mut a, &mut b, |a, _| !a.seen.is_empty());
    assert_eq!(a.ended(), [(1, IBV_WC_RETRY_EXC_ERR)]);
}
