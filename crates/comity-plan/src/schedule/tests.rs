//! A rank's steps, a few at a time.

use super::*;

fn slice(buf: Buf, at: usize, len: usize) -> Slice {
    Slice::new(buf, at, len)
}

fn send(to: usize, src: Slice) -> StepOp {
    StepOp::Send { to, src }
}

fn recv(from: usize, dst: Slice) -> StepOp {
    StepOp::Recv { from, dst, mode: ReceiveMode::Copy }
}

fn reduce(from: usize, with: Slice, dst: Slice) -> StepOp {
    StepOp::Recv { from, dst, mode: ReceiveMode::Reduce { with, last: true } }
}

/// Acts in rounds of their own.
fn schedule(ops: impl IntoIterator<Item = StepOp>, in_place: bool) -> Schedule {
    let steps = ops.into_iter().enumerate().map(|(i, op)| Step { round: i as u32, op }).collect();
    Schedule::new(&Plan { steps, tmp: 16 }, in_place)
}

fn may_send(s: &Schedule, queue: usize) -> Option<usize> {
    s.next_send(queue).map(|w| w.allowed)
}

fn may_recv(s: &Schedule, queue: usize) -> Option<usize> {
    s.next_recv(queue).map(|w| w.allowed)
}

#[test]
fn a_block_travels_on_while_its_tail_arrives() {
    let mut s = schedule([recv(0, slice(Buf::Out, 4, 8)), send(2, slice(Buf::Out, 6, 8))], false);
    assert_eq!(may_send(&s, 0), Some(0));
    s.received(0, 2);
    assert_eq!(may_send(&s, 0), Some(0));
    s.received(0, 3);
    assert_eq!(may_send(&s, 0), Some(3));
    s.received(0, 3);
    assert_eq!(may_recv(&s, 0), None);
    assert_eq!(may_send(&s, 0), Some(8), "what lies beyond the received block is free too");
    s.sent(0, 8);
    assert!(s.is_done());
}

#[test]
fn what_comes_before_an_overlap_is_free() {
    let s = schedule([recv(0, slice(Buf::Out, 5, 8)), send(2, slice(Buf::Out, 0, 8))], false);
    assert_eq!(may_send(&s, 0), Some(5));
}

#[test]
fn a_partner_overwrites_only_what_has_left() {
    let all = slice(Buf::Out, 0, 4);
    let mut s = schedule([send(1, all), reduce(1, all, all)], false);
    assert_eq!((may_send(&s, 0), may_recv(&s, 0)), (Some(4), Some(0)));
    s.sent(0, 3);
    assert_eq!(may_recv(&s, 0), Some(3));
    s.received(0, 3);
    s.sent(0, 1);
    assert_eq!(may_recv(&s, 0), Some(4));
}

#[test]
fn in_and_out_are_one_only_in_place() {
    let ops = || [send(1, slice(Buf::In, 0, 4)), recv(1, slice(Buf::Out, 0, 4))];
    assert_eq!(may_recv(&schedule(ops(), false), 0), Some(4));
    assert_eq!(may_recv(&schedule(ops(), true), 0), Some(0));
}

#[test]
fn several_earlier_steps_all_hold_back() {
    let out = |at, len| slice(Buf::Out, at, len);
    let ops = [recv(0, out(0, 4)), recv(1, out(4, 4)), recv(2, out(2, 4)), send(3, out(0, 8))];
    let mut s = schedule(ops, false);
    assert_eq!(may_recv(&s, 2), Some(0));
    s.received(0, 4);
    assert_eq!(may_recv(&s, 2), Some(2), "the second block holds the rest");
    assert_eq!(may_send(&s, 0), Some(2));
    s.received(1, 1);
    assert_eq!(may_recv(&s, 2), Some(3));
    s.received(2, 3);
    s.received(1, 3);
    assert_eq!(may_send(&s, 0), Some(5));
    s.received(2, 1);
    assert_eq!(may_send(&s, 0), Some(8));
}

#[test]
fn queues_keep_the_order_of_the_plan() {
    let tmp = |at| slice(Buf::Tmp, at, 2);
    let mut s = schedule([send(1, tmp(0)), recv(2, tmp(2)), send(1, tmp(4)), send(3, tmp(6))], false);
    assert_eq!((s.send_queues(), s.recv_queues(), s.tmp()), (2, 1, 16));
    assert_eq!((s.send_peer(0), s.send_peer(1), s.recv_peer(0)), (1, 3, 2));
    assert!(s.is_first_send(0) && s.is_first_recv(0));
    assert_eq!(s.waiting_for(), [2]);
    s.sent(0, 2);
    assert!(!s.is_first_send(0));
    assert_eq!(s.next_send(0).map(|w| w.id), Some(2));
    s.received(0, 2);
    assert_eq!(s.waiting_for(), [1, 3], "with nothing to come, whoever does not mode");
    s.sent(0, 2);
    s.sent(1, 2);
    assert!(s.is_done());
    s.reset();
    assert!(!s.is_done() && s.is_first_send(0));
    assert_eq!(s.next_send(0), Some(Want { id: 0, done: 0, allowed: 2 }));
}

#[test]
fn an_n_way_reduce_waits_until_all_its_senders_have_come_to_it() {
    let a = slice(Buf::Out, 0, 2);
    let b = slice(Buf::Out, 2, 2);
    let many = StepOp::NWayReduce { from: vec![1, 2], own: slice(Buf::In, 2, 2), dst: b, last: true };
    let mut s = schedule([recv(1, a), many, send(3, b)], false);
    assert!(!s.n_way_is_ready(1), "rank 1 has another message to bring first");
    s.received(0, 2);
    assert!(s.n_way_is_ready(1));
    s.n_way_reduced(1, 1);
    assert_eq!(may_send(&s, 0), Some(1));
    s.n_way_reduced(1, 1);
    assert_eq!((may_recv(&s, 0), may_recv(&s, 1)), (None, None));
    s.sent(0, 2);
    assert!(s.is_done());
}

#[test]
fn copies_wait_for_all_of_their_source_and_place() {
    let a = slice(Buf::Tmp, 0, 3);
    let b = slice(Buf::Out, 0, 3);
    let mut s = schedule([recv(1, a), send(2, b), StepOp::Copy { src: a, dst: b }, send(2, b)], false);
    assert_eq!(s.next_copy(9, 3), None);
    s.received(0, 3);
    assert_eq!(s.next_copy(9, 3), None, "the old content has not left yet");
    s.sent(0, 3);
    assert_eq!(may_send(&s, 0), Some(0));
    assert_eq!(s.next_copy(9, 3), Some((a, b)));
    assert_eq!((s.next_copy(9, 3), may_send(&s, 0)), (None, Some(3)));
}

#[test]
fn long_copies_come_in_pieces_that_messages_follow_but_whole_where_memory_overlaps() {
    let a = slice(Buf::In, 0, 5);
    let b = slice(Buf::Out, 1, 5);
    let steps = || [StepOp::Copy { src: a, dst: b }, send(1, b)];
    let piece = |at, len| Some((slice(Buf::In, at, len), slice(Buf::Out, at + 1, len)));
    let mut s = schedule(steps(), false);
    assert_eq!((s.next_copy(4, 3), may_send(&s, 0)), (piece(0, 3), Some(3)));
    assert_eq!((s.next_copy(4, 3), may_send(&s, 0)), (piece(3, 2), Some(5)));
    assert_eq!(s.next_copy(4, 3), None);
    s.sent(0, 5);
    assert!(s.is_done());
    let mut in_place = schedule(steps(), true);
    let mut shifted = schedule(steps(), false);
    shifted.input_lies(2);
    let mut short = schedule(steps(), false);
    assert_eq!([in_place.next_copy(4, 3), shifted.next_copy(4, 3), short.next_copy(5, 3)], [piece(0, 5); 3]);
}

#[test]
fn a_message_without_elements_waits_for_those_of_earlier_rounds() {
    let none = slice(Buf::Tmp, 0, 0);
    let mut s = schedule([send(1, none), recv(3, none), send(2, none)], false);
    assert_eq!((may_send(&s, 0), may_send(&s, 1)), (Some(0), None));
    s.sent(0, 0);
    assert!(!s.is_done());
    s.received(0, 0);
    assert_eq!(may_send(&s, 1), Some(0));
    s.sent(1, 0);
    assert!(s.is_done());
    s.reset();
    assert_eq!(may_send(&s, 1), None, "a second run waits again");
}

#[test]
fn what_a_step_covers_need_not_be_asked_again() {
    let all = slice(Buf::Out, 0, 4);
    let s = schedule((0..4).map(|r| recv(r, all)), false);
    let deps: Vec<_> = s.items.iter().map(|i| i.deps.1 - i.deps.0).collect();
    assert_eq!(deps, [0, 1, 1, 1]);
}

#[test]
fn what_is_lent_is_kept_until_it_comes_back_and_the_queue_goes_on() {
    let a = slice(Buf::Out, 0, 4);
    let b = slice(Buf::Out, 4, 2);
    let mut s = schedule([send(1, a), send(1, b), recv(2, slice(Buf::Out, 0, 6))], false);
    s.lend(0, 3);
    assert_eq!(s.next_send(0), Some(Want { id: 0, done: 3, allowed: 4 }));
    s.lend(0, 1);
    assert_eq!(s.next_send(0), Some(Want { id: 1, done: 0, allowed: 2 }), "the next message");
    assert_eq!(may_recv(&s, 0), Some(0), "all of it is lent");
    s.returned(0, 3);
    assert_eq!(may_recv(&s, 0), Some(3));
    s.sent(0, 2);
    assert!(s.next_send(0).is_none() && s.send_is_open(0));
    s.returned(0, 1);
    assert_eq!(may_recv(&s, 0), Some(6));
    assert!(!s.send_is_open(0));
    s.received(0, 6);
    assert!(s.is_done());
}

#[test]
fn partners_that_exchange_in_place_lend_nothing() {
    let all = slice(Buf::Out, 0, 4);
    let step = |round, op| Step { round, op };
    let tied = Plan { steps: vec![step(0, send(1, all)), step(0, recv(1, all))], tmp: 0 };
    assert!(!Schedule::new(&tied, false).stays(0));
    let later = Plan { steps: vec![step(0, send(1, all)), step(1, recv(1, all))], tmp: 0 };
    assert!(Schedule::new(&later, false).stays(0));
}

#[test]
fn what_is_written_later_in_place_does_not_stay() {
    let own = slice(Buf::In, 0, 4);
    let kept = slice(Buf::Out, 4, 4);
    let mut s =
        schedule([send(1, own), StepOp::Copy { src: own, dst: kept }, recv(1, slice(Buf::Out, 0, 4))], false);
    s.input_lies(4);
    assert!(s.stays(0), "the copy changes nothing, and the rest lies elsewhere");
    s.input_lies(3);
    assert!(!s.stays(0));
}
