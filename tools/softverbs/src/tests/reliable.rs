//! RC: nothing is lost silently, and no wait is longer than the attributes say.

use super::*;

#[test]
fn a_send_completes_when_it_has_arrived() {
    let (mut a, mut b) = connected(IBV_QPT_RC, &[], &[]);
    a.memory[0] = 5;
    a.post(1, 0, 8).unwrap();
    for_a_while(&mut a, &mut b);
    assert_eq!(a.ended(), [], "there is no receive, and it is waited for");
    b.receive(2, 0, 8).unwrap();
    until(&mut a, &mut b, |a, b| a.seen.len() + b.seen.len() == 2);
    assert_eq!((a.ended(), b.ended(), b.memory[0]), (vec![(1, 0)], vec![(2, 0)], 5));
}

#[test]
fn a_receiver_that_is_not_ready_is_given_up() {
    let (mut a, mut b) = connected(IBV_QPT_RC, &[], &[]);
    a.world.pairs.get_mut(&a.pair).unwrap().attr.rnr_retry = 1;
    a.post(1, 0, 8).unwrap();
    a.post(2, 0, 8).unwrap();
    until(&mut a, &mut b, |a, _| a.seen.len() == 2);
    assert_eq!(a.ended(), [(1, IBV_WC_RNR_RETRY_EXC_ERR), (2, IBV_WC_WR_FLUSH_ERR)]);
}

#[test]
fn a_peer_that_died_is_an_error_for_sends() {
    let (mut a, mut b) = connected(IBV_QPT_RC, &[], &[]);
    b.receive(1, 0, 8).unwrap();
    a.post(2, 0, 8).unwrap();
    until(&mut a, &mut b, |a, b| a.seen.len() + b.seen.len() == 2);
    drop(b);
    let mut nobody = End::new(IBV_QPT_RC, &[]);
    a.receive(3, 0, 8).unwrap();
    for_a_while(&mut a, &mut nobody);
    assert_eq!(a.ended(), [(2, 0)], "a receive alone does not notice");
    a.post(4, 0, 8).unwrap();
    a.post(5, 0, 8).unwrap();
    until(&mut a, &mut nobody, |a, _| a.seen.len() == 4);
    assert_eq!(
        a.ended()[1..],
        [(4, IBV_WC_RETRY_EXC_ERR), (5, IBV_WC_WR_FLUSH_ERR), (3, IBV_WC_WR_FLUSH_ERR)]
    );
}

#[test]
fn a_message_too_long_is_an_error_at_both_ends() {
    let (mut a, mut b) = connected(IBV_QPT_RC, &[], &[]);
    b.receive(1, 0, 8).unwrap();
    a.post(2, 0, 9).unwrap();
    until(&mut a, &mut b, |a, b| a.seen.len() + b.seen.len() == 2);
    assert_eq!((a.ended(), b.ended()), (vec![(2, IBV_WC_REM_INV_REQ_ERR)], vec![(1, IBV_WC_LOC_LEN_ERR)]));
}

#[test]
fn faults_of_uc_leave_rc_alone() {
    let faulty = [("DROP", "0.5"), ("CORRUPT", "0.5"), ("DUPLICATE", "0.5"), ("REORDER", "0.5")];
    let (mut a, mut b) = connected(IBV_QPT_RC, &faulty, &faulty);
    for id in 0..40u8 {
        a.memory[id as usize] = id;
        b.receive(id.into(), id as usize, 1).unwrap();
        a.post(id.into(), id as usize, 1).unwrap();
    }
    until(&mut a, &mut b, |a, b| a.seen.len() == 40 && b.seen.len() == 40);
    assert!((0..40).all(|id| b.memory[id as usize] == id));
}
