//! `apple` mode: what TN3205 and reports say of Thunderbolt.

use super::*;
use libc::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};

const APPLE: (&str, &str) = ("MODE", "apple");

#[test]
fn a_send_waits_for_a_receive() {
    let (mut a, mut b) = connected(IBV_QPT_UC, &[APPLE], &[APPLE]);
    a.memory[..8].copy_from_slice(b"patience");
    a.post(1, 0, 4096).unwrap();
    for_a_while(&mut a, &mut b);
    assert_eq!(a.ended(), []);
    b.receive(2, 0, 4096).unwrap();
    until(&mut a, &mut b, |a, b| a.seen.len() + b.seen.len() == 2);
    assert_eq!(&b.memory[..8], b"patience");
}

#[test]
fn frames_have_to_match() {
    let (mut a, mut b) = connected(IBV_QPT_UC, &[APPLE], &[APPLE]);
    b.receive(1, 0, 8192).unwrap();
    b.receive(2, 0, 8192).unwrap();
    a.post(3, 0, 4097).unwrap();
    until(&mut a, &mut b, |_, b| !b.seen.is_empty());
    assert_eq!(b.ended(), [(1, 0)], "two frames each");
    a.post(4, 0, 4096).unwrap();
    until(&mut a, &mut b, |_, b| b.seen.len() == 2);
    assert_eq!(b.ended()[1], (2, IBV_WC_LOC_LEN_ERR), "one frame into two");
}

#[test]
fn limits_are_those_of_a_device() {
    let mut a = End::new(IBV_QPT_UC, &[APPLE, ("DEVICES", "a=127.0.0.1*2")]);
    let make = |a: &mut End, device, kind| {
        let wanted = Shape { device, ..shape(kind, a.domain, a.queue) };
        a.world.create_pair(wanted)
    };
    assert_eq!(make(&mut a, 0, IBV_QPT_RC), Err(Errno(102)));
    let more: Vec<_> = (0..9).map(|_| make(&mut a, 0, IBV_QPT_UC).unwrap()).collect();
    assert_eq!(make(&mut a, 0, IBV_QPT_UC), Err(Errno(EBUSY)));
    assert!(make(&mut a, 1, IBV_QPT_UC).is_ok(), "the other device has its own");
    a.world.destroy_pair(more[0]).unwrap();
    assert!(make(&mut a, 0, IBV_QPT_UC).is_ok());

    let region = |start| Region { device: 0, domain: a.domain, start, length: 8, access: 1 };
    for start in 1..100 {
        a.world.register(region(start)).unwrap();
    }
    assert_eq!(a.world.register(region(100)), Err(Errno(ENOMEM)));
}

#[test]
fn depths_count_frames_and_one_is_not_usable() {
    let (mut a, mut b) = connected(IBV_QPT_UC, &[APPLE], &[APPLE]);
    let mut count = 0;
    while b.receive(count, 0, MEMORY) == Ok(()) {
        count += 1;
    }
    assert_eq!(count, 63, "messages of 16 frames fit a depth rounded up to 1024");
    assert_eq!(b.receive(count, 0, MEMORY), Err(Errno(ENOMEM)));
    let two = Receive { id: 0, list: vec![a.part(0, 8), a.part(8, 8)], length: 16 };
    assert_eq!(a.world.post_recv(a.pair, two), Err(Errno(EINVAL)), "one part for each request");
    let immediate = Send { immediate: Some(1), ..Send::default() };
    assert_eq!(a.world.post_send(a.pair, immediate), Err(Errno(EOPNOTSUPP)));
}

#[test]
fn a_peer_that_died_or_has_no_link_is_silence_for_ever() {
    let down = file();
    let name = down.to_string_lossy().into_owned();
    let with = [APPLE, ("LINK_DOWN_FILE", name.as_str())];
    let (mut a, mut b) = connected(IBV_QPT_UC, &with, &with);
    b.receive(1, 0, 8).unwrap();
    a.post(2, 0, 8).unwrap();
    until(&mut a, &mut b, |a, b| a.seen.len() + b.seen.len() == 2);
    std::fs::write(&down, "").unwrap();
    b.receive(3, 0, 8).unwrap();
    a.post(4, 0, 8).unwrap();
    for_a_while(&mut a, &mut b);
    assert_eq!((a.seen.len(), b.seen.len()), (1, 1));
    assert_eq!(a.world.create_domain(0), Err(Errno(EBUSY)), "no domain without a link");
    assert_eq!(a.ready_to_send(), Err(Errno(EBUSY)));
    std::fs::remove_file(&down).unwrap();
    until(&mut a, &mut b, |a, b| a.seen.len() == 2 && b.seen.len() == 2);
    drop(b);
    let mut nobody = End::new(IBV_QPT_UC, &[APPLE]);
    a.receive(5, 0, 8).unwrap();
    a.post(6, 0, 8).unwrap();
    for_a_while(&mut a, &mut nobody);
    assert_eq!(a.seen.len(), 2);
    a.step(ibv_qp_attr { qp_state: 6, ..ibv_qp_attr::default() }, 0).unwrap();
    until(&mut a, &mut nobody, |a, _| a.seen.len() == 4);
    assert_eq!(a.ended()[2..], [(6, IBV_WC_WR_FLUSH_ERR), (5, IBV_WC_WR_FLUSH_ERR)]);
}

#[test]
fn only_the_cable_of_a_device_leads_somewhere() {
    let cables = ("CABLES", "127.0.0.1-127.0.0.2");
    let mut a = End::new(IBV_QPT_UC, &[APPLE, cables]);
    let mapped = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last];
    a.init().unwrap();
    assert_eq!(a.ready_to_receive(mapped(3), 40_000), Err(Errno(60)));
    assert_eq!(a.ready_to_receive(mapped(2), 40_000), Ok(()));
}
