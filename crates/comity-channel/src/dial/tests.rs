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
fn all_connections_of_a_link_come_each_once_also_where_some_are_told_to_come_again() {
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    listener.listen().unwrap();
    let targets = vec![Target::Tcp(listener.local_addr().unwrap()); 20];
    let secret = || Secret::new(&Key::from([7; 32]), "job", 0);
    let until = Instant::now() + Duration::from_secs(60);
    let waker = Waker::new().unwrap();
    thread::scope(|s| {
        let listening = s.spawn(|| {
            let mut acceptor = Acceptor::new(vec![listener], secret());
            let mut asked = 0;
            let mut come = Vec::new();
            while come.len() < 20 && Instant::now() < until {
                come.extend(acceptor.step(&mut |_: &Hello, _: &Stream| {
                    asked += 1;
                    if asked % 3 == 1 { HelloVerdict::Busy } else { HelloVerdict::Yes }
                }));
                thread::sleep(Duration::from_millis(1));
            }
            come
        });
        let patience = DialLimits { until, wakers: vec![waker.fd()], check: &|| Ok(()) };
        let channel = Channel::Link { transport: 2, index: 0, of: 21 };
        let hello = Hello { from: 3, to: 1, world: 5, group_id: 6, channel, sealed: true };
        let made = dial_all(&targets, 1, &secret(), &hello, &patience).unwrap();
        let come = listening.join().unwrap();
        let at = |stream: &Stream| match stream {
            Stream::Tcp(s) => [s.local_addr().unwrap(), s.peer_addr().unwrap()],
            Stream::Unix(_) => panic!("not over TCP"),
        };
        for (number, (ours, seals)) in (1u16..).zip(&made) {
            let [here, there] = at(ours);
            let theirs = come.iter().find(|c| at(&c.stream) == [there, here]).unwrap();
            assert_eq!(theirs.hello.channel, Channel::Link { transport: 2, index: number, of: 21 });
            assert!(seals.is_some());
        }
        assert_eq!((made.len(), come.len()), (20, 20));
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

#[test]
fn a_missing_route_is_known_by_its_kind_also_where_another_address_got_further() {
    let targets = [1, 2].map(|n| Target::Tcp(([127, 0, 0, n], 1).into()));
    let sum = |kinds: [ErrorKind; 2]| {
        let tries = kinds.map(|kind| TryFailure { from: None, miss: Miss::Nobody(kind.into()) });
        summary(&targets, tries.into_iter().enumerate().collect())
    };
    let miss = sum([ErrorKind::ConnectionRefused, ErrorKind::NetworkUnreachable]);
    assert!(miss.reached() == TryProgress::Host && miss.lacks_a_route(), "{miss:?}");
    assert!(!sum([ErrorKind::ConnectionRefused, ErrorKind::TimedOut]).lacks_a_route());
}
