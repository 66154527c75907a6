//! The contract over a software device, which `COMITY_VERBS` names: run with `--ignored` (`cargo xtask test --only rdma`).

use super::{
    driver::Slots,
    reach::{Devices, Rdma},
};
use crate::{
    conformance::{LinkEnds, conformance, eventually, fill},
    sys::{
        poll_until,
        verbs::{Depth, QueueService, Verbs},
    },
};
use rustix::event::{PollFd, PollFlags};
use std::{
    net::{TcpListener, TcpStream},
    os::fd::BorrowedFd,
    thread,
    time::{Duration, Instant},
};

/// Small, so that they run out.
const SLOTS: Slots = Slots { qps: [Depth { slots: 8, bytes: 4096 }, Depth { slots: 4, bytes: 32 << 10 }] };

fn wait(fd: BorrowedFd<'_>, until: Instant) -> crate::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(poll_until(&mut fds, Some(until)).is_ok_and(|n| n > 0))
}

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (a, listener.accept().unwrap().0)
}

fn devices() -> Vec<String> {
    Verbs::find().expect("COMITY_VERBS names a library").devices()
}

/// Both ends' peer connections, with these devices; an error in words from both.
fn established(
    slots: Slots,
    only: Option<QueueService>,
    names: [&[String]; 2],
) -> Result<[Rdma; 2], [String; 2]> {
    let (a, b) = streams();
    let row =
        |me: usize| (0..2).map(|peer| if peer == me { Vec::new() } else { names[me].to_vec() }).collect();
    let ends = [0, 1].map(|me| Rdma::new(me, 2, Devices::Named(row(me)), only).with_slots(slots));
    let until = Instant::now() + Duration::from_secs(20);
    let (x, y) = thread::scope(|s| {
        let other = s.spawn(|| ends[1].establish(0, b, until, &wait).unwrap());
        (ends[0].establish(1, a, until, &wait).unwrap(), other.join().unwrap())
    });
    match (x, y) {
        (Ok(()), Ok(())) => Ok(ends),
        (Err(x), Err(y)) => Err([x, y]),
        other => panic!("the ends do not agree: {other:?}"),
    }
}

fn links(ends: &[Rdma; 2], group_id: u64) -> LinkEnds {
    (ends[0].link(1, group_id).unwrap().unwrap(), ends[1].link(0, group_id).unwrap().unwrap())
}

/// The peer connections end with the links.
fn pair(only: Option<QueueService>) -> LinkEnds {
    let all = devices();
    links(&established(SLOTS, only, [&all[..1], &all[..1]]).unwrap(), 7)
}

mod found {
    use super::*;
    conformance!(|| pair(None), ignore = "needs COMITY_VERBS");
}

mod unreliable {
    use super::*;
    conformance!(|| pair(Some(QueueService::Unreliable)), ignore = "needs COMITY_VERBS");
}

mod several {
    use super::*;
    // Every device that there is, as paths of one pair.
    conformance!(
        || {
            let all = devices();
            assert!(all.len() > 1, "{all:?}");
            links(&established(SLOTS, None, [&all, &all]).unwrap(), 7)
        },
        ignore = "needs COMITY_VERBS with several devices"
    );
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn groups_do_not_wait_for_each_other() {
    let all = devices();
    let ends = established(SLOTS, None, [&all[..1], &all[..1]]).unwrap();
    let (mut a, mut b) = links(&ends, 1);
    let (mut c, mut d) = links(&ends, 2);
    // Nobody takes what the first group gets.
    let put = fill(a.as_mut(), &vec![1; 1 << 20]);
    for i in 0..200u8 {
        assert_eq!(eventually("room", || Some(c.put(&[i], &[i; 999]).unwrap()).filter(|n| *n > 0)), 1000);
        let mut place = [0; 1000];
        let mut got = 0;
        eventually("bytes", || {
            got += d.take(&mut place[got..]).unwrap();
            (got == 1000).then_some(())
        });
        assert_eq!(place, [i; 1000]);
    }
    let mut place = vec![0; 1 << 20];
    let mut got = 0;
    eventually("the bytes that waited", || {
        got += b.take(&mut place).unwrap();
        (got == put).then_some(())
    });
}

#[test]
#[ignore = "needs COMITY_VERBS"]
fn both_ends_know_why_there_is_no_path() {
    let all = devices();
    let none = "no-such-device".to_owned();
    let why = established(SLOTS, None, [&all[..1], std::slice::from_ref(&none)]).unwrap_err();
    for words in &why {
        assert!(words.contains("no-such-device") && words.contains(&all[0]), "{words}");
    }
    assert!(why[0].starts_with("there: ") && why[1].starts_with("here: "), "{why:?}");
}
