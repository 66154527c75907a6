//! UC as the specification has it.

use super::*;
use crate::queue::{Armed, Channel, Events};
use libc::{EINVAL, ENOMEM};
use std::sync::Arc;

#[test]
fn memory_is_checked_when_it_is_used() {
    let (mut a, mut b) = connected(IBV_QPT_UC, &[], &[]);
    b.receive(1, 0, 8).unwrap();
    a.key ^= 0x40;
    a.post(2, 0, 8).unwrap();
    until(&mut a, &mut b, |a, _| !a.seen.is_empty());
    assert_eq!(a.ended(), [(2, IBV_WC_LOC_PROT_ERR)]);
    assert_eq!(a.post(3, 0, 8), Ok(()), "an ended pair takes requests, and flushes them");
    until(&mut a, &mut b, |a, _| a.seen.len() == 2);
    assert_eq!(a.ended()[1], (3, IBV_WC_WR_FLUSH_ERR));
}

#[test]
fn steps_have_their_order_and_their_attributes() {
    let mut a = End::new(IBV_QPT_UC, &[]);
    assert_eq!(a.receive(1, 0, 8), Err(Errno(EINVAL)), "a pair that was just made takes nothing");
    assert_eq!(a.ready_to_send(), Err(Errno(EINVAL)));
    a.init().unwrap();
    assert_eq!(a.receive(1, 0, 8), Ok(()));
    assert_eq!(a.post(1, 0, 8), Err(Errno(EINVAL)));
    assert_eq!(a.ready_to_receive([0; 16], 5), Err(Errno(EINVAL)), "not an IPv4-mapped GID");
    let attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, path_mtu: IBV_MTU_1024, ..ibv_qp_attr::default() };
    assert_eq!(a.step(attr, IBV_QP_PATH_MTU), Err(Errno(EINVAL)), "attributes are missing");
}

#[test]
fn depths_are_kept_until_completions_are_polled() {
    let (mut a, mut b) = connected(IBV_QPT_UC, &[], &[]);
    for id in 0..64 {
        a.post(id, 0, 8).unwrap();
        a.world.progress(a.pair);
    }
    assert_eq!(a.post(64, 0, 8), Err(Errno(ENOMEM)));
    until(&mut a, &mut b, |a, _| !a.seen.is_empty());
    assert_eq!(a.post(64, 0, 8), Ok(()));
}

/// A channel of `end`'s queue whose descriptor does not block.
fn hear(end: &mut End) -> Arc<Events> {
    let events = Arc::new(Events::new().unwrap());
    rustix::io::ioctl_fionbio(events.fd(), true).unwrap();
    let channel = Channel { events: Arc::clone(&events), cookie: 77 };
    end.world.with_queue(end.queue, |q| q.channel = Some(channel));
    events
}

#[test]
fn a_queue_takes_the_events_that_nobody_read_with_it() {
    let (mut a, mut b) = connected(IBV_QPT_UC, &[], &[]);
    let events = hear(&mut b);
    b.world.with_queue(b.queue, |q| q.armed = Some(Armed::Any));
    b.receive(1, 0, 8).unwrap();
    a.post(3, 0, 8).unwrap();
    until(&mut a, &mut b, |_, b| !b.seen.is_empty());
    b.world.destroy_pair(b.pair).unwrap();
    b.world.destroy_queue(b.queue).unwrap();
    assert_eq!(events.next(), None);
    assert!(events.wait().is_err(), "the descriptor is not readable for nothing");
}

#[test]
fn a_channel_tells_of_completions_once_for_each_arming() {
    let (mut a, mut b) = connected(IBV_QPT_UC, &[], &[]);
    let events = hear(&mut b);
    b.world.with_queue(b.queue, |q| q.armed = Some(Armed::Any));
    b.receive(1, 0, 8).unwrap();
    b.receive(2, 0, 8).unwrap();
    a.post(3, 0, 8).unwrap();
    a.post(4, 0, 8).unwrap();
    until(&mut a, &mut b, |_, b| b.seen.len() == 2);
    events.wait().unwrap();
    assert_eq!(events.next(), Some(77));
    b.world.with_queue(b.queue, |q| q.unacked_events += 1);
    assert!(events.wait().is_err(), "the second completion found the queue not armed");
    b.world.destroy_pair(b.pair).unwrap();
    assert!(b.world.destroy_queue(b.queue).is_err(), "an event was not acknowledged");
    b.world.with_queue(b.queue, |q| q.unacked_events -= 1);
    b.world.destroy_queue(b.queue).unwrap();
}

#[test]
fn a_queue_that_nobody_polls_is_left_to_the_thread() {
    let mut a = End::new(IBV_QPT_UC, &[]);
    let domain = a.domain;
    let other = a.world.create_queue(16);
    let lately = Duration::from_secs(60);
    assert!(!a.world.is_polled(lately), "nobody has looked yet");
    a.poll();
    assert!(a.world.is_polled(lately), "no pair uses the other queue");
    a.world.create_pair(shape(IBV_QPT_UC, domain, other)).unwrap();
    a.poll();
    assert!(!a.world.is_polled(lately), "the other queue is not looked at");
    a.world.poll(other, 1, |_| {}).unwrap();
    a.poll();
    assert!(a.world.is_polled(lately));
    a.world.with_queue(other, |q| q.armed = Some(Armed::Any));
    assert!(!a.world.is_polled(lately), "who armed a queue may sleep");
}

#[test]
fn quirks_strike() {
    let mut a = End::new(IBV_QPT_UC, &[("QUIRKS", "recv_needs_rts")]);
    a.init().unwrap();
    assert_eq!(a.receive(1, 0, 8), Err(Errno(EINVAL)));
    a.ready_to_receive(a.gid(), 9).unwrap();
    a.ready_to_send().unwrap();
    assert_eq!(a.receive(1, 0, 8), Ok(()));

    let mut world = World::new(config(&[("QUIRKS", "mr_needs_remote")]));
    let domain = world.create_domain(0).unwrap();
    let region = |access| Region { device: 0, domain, start: 4096, length: 8, access };
    assert_eq!(world.register(region(1)), Err(Errno(EINVAL)));
    assert!(world.register(region(7)).is_ok());

    let (mut a, mut b) = connected(IBV_QPT_UC, &[], &[("QUIRKS", "wc_err=3")]);
    for id in 0..4 {
        b.receive(id, 0, 8).unwrap();
        a.post(id, 0, 8).unwrap();
    }
    until(&mut a, &mut b, |_, b| b.seen.len() == 4);
    assert_eq!(b.ended(), [(0, 0), (1, 0), (2, IBV_WC_GENERAL_ERR), (3, 0)]);
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let mut a = End::new(IBV_QPT_UC, &[]);
    assert!(a.world.destroy_domain(a.domain).is_err() && a.world.destroy_queue(a.queue).is_err());
    a.world.destroy_pair(a.pair).unwrap();
    assert!(a.world.destroy_domain(a.domain).is_err(), "a region is left");
    a.world.deregister(a.key).unwrap();
    a.world.destroy_queue(a.queue).unwrap();
    a.world.destroy_domain(a.domain).unwrap();
    assert!(a.world.destroy_domain(a.domain).is_err() && a.world.destroy_pair(a.pair).is_err());
}
