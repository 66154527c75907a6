//! Connecting to those who say "not now", and reading an answer too late.

use super::*;
use crate::{Acceptor, Channel, HelloVerdict, Key, Listener, STORE, accept::PROOF, sys::Waker};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

#[test]
fn who_is_told_to_come_again_does_so_while_another_address_says_nothing() {
    let (good, silent) = [(), ()].map(|()| Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap()).into();
    let targets = [&good, &silent].map(|l: &Listener| {
        l.listen().unwrap();
        Target::Tcp(l.local_addr().unwrap())
    });
    let secret = || Secret::new(&Key::from([7; 32]), "job", 0);
    let until = Instant::now() + Duration::from_secs(60);
    let waker = Waker::new().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let mut acceptor = Acceptor::new(vec![good], secret());
            let mut asked = 0;
            while !done.load(Ordering::Relaxed) && Instant::now() < until {
                drop(acceptor.step(&mut |_: &Hello, _: &Stream| {
                    asked += 1;
                    if asked > 3 { HelloVerdict::Yes } else { HelloVerdict::Busy }
                }));
                thread::sleep(Duration::from_millis(1));
            }
        });
        let patience = DialLimits { until, wakers: vec![waker.fd()], check: &|| Ok(()) };
        let channel = Channel::Join;
        let hello = Hello { from: 3, to: STORE, world: 0, group_id: 0, channel, sealed: false };
        let begun = Instant::now();
        let won = dial_any(&targets, &secret(), &hello, &patience, false);
        done.store(true, Ordering::Relaxed);
        assert_eq!(won.unwrap().index, 0);
        assert!(begun.elapsed() < TRY / 2, "{:?}", begun.elapsed());
    });
}

#[test]
fn who_reads_the_answer_too_late_tries_again() {
    const LONG: Duration = Duration::from_secs(60);
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    listener.listen().unwrap();
    let at = listener.local_addr().unwrap();
    let secret = || Secret::new(&Key::from([7; 32]), "job", 0);
    let waker = Waker::new().unwrap();
    let slept = AtomicBool::new(false);
    let until = Instant::now() + LONG;
    thread::scope(|s| {
        let listening = s.spawn(|| {
            let mut acceptor = Acceptor::new(vec![listener], secret());
            loop {
                // Before the answer is on its way.
                let judge = &mut |_: &Hello, _: &Stream| {
                    waker.wake();
                    HelloVerdict::Yes
                };
                if let Some(accepted) = acceptor.step(judge).pop() {
                    return accepted;
                }
                assert!(Instant::now() < until, "nobody has come");
                let mut fds = Vec::new();
                let next = acceptor.interest(&mut fds);
                crate::sys::poll_until(&mut fds, next.into_iter().chain([until]).min()).unwrap();
            }
        });
        // As if the process were stopped when the answer comes.
        let check = || {
            waker.drain();
            if !slept.swap(true, Ordering::Relaxed) {
                thread::sleep(PROOF + Duration::from_millis(500));
            }
            Ok(())
        };
        let patience = DialLimits { until, wakers: vec![waker.fd()], check: &check };
        let channel = Channel::Join;
        let hello = Hello { from: 3, to: STORE, world: 0, group_id: 0, channel, sealed: false };
        let (stream, _) = dial(&[Target::Tcp(at)], &secret(), &hello, &patience).unwrap();
        let Stream::Tcp(theirs) = listening.join().unwrap().stream else { panic!("not over TCP") };
        let Stream::Tcp(ours) = stream else { panic!("not over TCP") };
        assert_eq!(ours.peer_addr().unwrap(), theirs.local_addr().unwrap());
        assert_eq!(ours.local_addr().unwrap(), theirs.peer_addr().unwrap());
    });
}
