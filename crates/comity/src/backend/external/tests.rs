//! Errors of calls that a library carries.

use super::*;
use crate::{DType, interrupt_with, links::LocalWorld, status::Failure};
use std::thread;

/// Two ranks without a library, whose calls never end by themselves.
fn pair() -> [Members; 2] {
    let worlds = LocalWorld::all(2);
    let mut all = worlds.into_iter().map(|w| {
        let (world, counters): (Arc<dyn World>, Arc<Counters>) = (Arc::new(w), Arc::default());
        attend(world, vec![0, 1], 7, counters).unwrap()
    });
    [all.next().unwrap(), all.next().unwrap()]
}

#[test]
fn what_is_kept_has_a_bound() {
    let theirs = CallInfo::new(Op::Send).with(|c| {
        c.tag = Some(7);
        c.count = 1;
        c.dtype = Some(DType::U8);
    });
    assert!(room(STASH - 1, 1, 3, theirs).is_ok() && room(0, STASH, 3, theirs).is_ok());
    for (kept, len) in [(STASH, 1), (0, STASH + 1), (1, usize::MAX)] {
        let Err(Stop::Peer(3, words)) = room(kept, len, 3, theirs) else {
            panic!("{kept} and {len} are kept")
        };
        assert!(words.contains("no more than 256 MiB are kept") && words.contains("tag 7"), "{words}");
    }
}

fn call(seq: u64, count: usize) -> Header {
    let info = CallInfo::new(Op::AllReduce).with(|c| {
        c.seq = seq;
        c.count = count;
        c.dtype = Some(DType::F32);
    });
    Header { info, shape: 0, group_id: 7, lends: false }
}

/// A call that waits for ever, and the error that ends it.
fn waits(members: &Members, call: Option<Header>, limit: Duration) -> Error {
    let mut waiting = Waiting::new(members.patience(), limit, None);
    if let Some(call) = call {
        announce(members, call, &mut waiting);
    }
    let stop = wait(members, &mut waiting, || Ok(false)).unwrap_err();
    members.explain(stop, call.map_or_else(|| CallInfo::new(Op::Recv), |c| c.info), limit)
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_library_that_fails_for_a_member_that_is_gone_does_not_hide_it() {
    let failed = || ErrorKind::Library { library: "MPI", code: 9, message: "no such communicator".into() };
    let info = CallInfo::new(Op::AllReduce);
    let [a, b] = pair();
    thread::scope(|s| {
        s.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            b.abort(Failure::lost(1, 1, "its control connection closed"));
        });
        let e = a.explain(Stop::Own(failed().into()), info, LONG);
        assert!(matches!(e.kind(), ErrorKind::PeerLost { peer, .. } if peer.rank == 1), "{e}");
    });
    let [a, b] = pair();
    let e = a.explain(Stop::Own(failed().into()), info, LONG);
    assert!(matches!(e.kind(), ErrorKind::Library { code: 9, .. }), "nobody is gone: {e}");
    let told = waits(&b, Some(call(1, 5)), LONG).to_string();
    assert!(told.contains("no such communicator"), "{told}");
}

#[test]
fn a_wait_for_a_library_is_given_up_when_the_program_is_interrupted() {
    let [a, b] = pair();
    let took = thread::scope(|s| {
        let asked = s.spawn(|| {
            interrupt_with(Some(|| Some("interrupted by a test".into())));
            let start = Instant::now();
            (waits(&a, Some(call(1, 5)), LONG), start.elapsed())
        });
        let e = waits(&b, Some(call(1, 5)), LONG);
        let told = |e: &Error| matches!(e.kind(), ErrorKind::Aborted { by, reason, .. } if by.rank == 0 && reason == "interrupted by a test");
        assert!(told(&e), "{e}");
        let (e, took) = asked.join().unwrap();
        assert!(told(&e), "{e}");
        took
    });
    assert!(took < LONG / 2, "asked ten times a second: {took:?}");
}

#[test]
fn ranks_that_wait_in_different_calls_are_told() {
    let [a, b] = pair();
    for e in scope::each([(a, 5), (b, 6)], |(members, count)| waits(&members, Some(call(1, count)), LONG)) {
        assert!(matches!(e.kind(), ErrorKind::Mismatch { differs: "count", .. }), "{e}");
    }
}

#[test]
fn a_limit_names_who_has_not_made_the_call() {
    let [a, b] = pair();
    // It is in another call, of two ranks alone, while `a` waits in one of all.
    let e = thread::scope(|s| {
        let other = s.spawn(|| waits(&b, None, LONG));
        let e = waits(&a, Some(call(1, 5)), Duration::from_millis(300));
        let told = other.join().unwrap();
        let words = "timed out after 300ms: not called by this rank";
        assert!(
            matches!(told.kind(), ErrorKind::Aborted { by, reason, .. } if by.rank == 0 && reason.contains(words)),
            "{told}"
        );
        e
    });
    assert!(
        matches!(e.kind(), ErrorKind::Timeout { rank: 0, waiting_for, .. } if waiting_for.len() == 1 && waiting_for[0].rank == 1),
        "{e}"
    );
}

#[test]
fn a_message_between_two_names_the_other_one() {
    let worlds = LocalWorld::all(3).into_iter().map(|w| {
        let (world, counters): (Arc<dyn World>, Arc<Counters>) = (Arc::new(w), Arc::default());
        attend(world, vec![0, 1, 2], 7, counters).unwrap()
    });
    let all: Vec<Members> = worlds.collect();
    let recv = CallInfo::new(Op::Recv).with(|c| {
        c.root = Some(2);
        c.tag = Some(4);
    });
    let e = all[0].explain(Stop::Late(OutstandingMessages::default()), recv, Duration::from_millis(1));
    assert!(matches!(e.kind(), ErrorKind::Timeout { waiting_for, .. } if waiting_for.len() == 1), "{e}");
    assert!(e.to_string().contains("timed out after 1ms on rank 0: it was waiting for rank 2 "), "{e}");
}
