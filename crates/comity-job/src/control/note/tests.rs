//! Notes read back, and bytes that are no notes.

use super::*;
use crate::{channel::MAX_TEXT, rendezvous::MAX_LIST};
use comity_membership::{Action, DIED, Heard, Membership, Message};
use proptest::prelude::*;
use std::time::{Duration, Instant};

prop_compose! {
    fn call()(
        op in 0usize..13, seq: u64, count: usize, dtype in prop::option::of(0usize..14), reduce in prop::option::of(0usize..4),
        root in prop::option::of(0usize..9999), tag in prop::option::of(0u32..9999), objects: bool, wire in 0u8..4,
    ) -> CallInfo {
        let dtype = dtype.map(|d| DType::ALL[d]);
        let reduce = reduce.map(|r| ReduceOp::ALL[r]);
        CallInfo::new(Op::ALL[op]).with(|c| { c.seq = seq; c.count = count; c.dtype = dtype; c.reduce = reduce; c.root = root; c.tag = tag; c.objects = objects; c.wire = Wire::from_number(wire); })
    }
}

proptest! {
    #[test]
    fn notes_round_trip(
        group_id: u64, culprit: u32, by: u32, seen: bool, cause in "\\PC{0,99}", ours in call(), theirs in call(),
        what in 0usize..9, why in 0u8..6, missing in prop::collection::vec(0usize..99, 0..5), nanos: u64,
    ) {
        let stalled = seen.then_some((1, 2));
        let why = match why {
            0 => FailureKind::Lost { because_of: missing },
            1 => FailureKind::Reported,
            4 => FailureKind::Left,
            5 => FailureKind::Disagreed,
            2 => FailureKind::Differs(Box::new(Differs { ours, theirs, what: Header::DIFFERENCES[what] })),
            _ => FailureKind::Late(Box::new(Late { call: ours, after: Duration::from_nanos(nanos), missing, stalled })),
        };
        let failure = Failure { culprit: culprit as usize, by: by as usize, cause: cause.clone(), why };
        let reached = Reached { made: nanos, digest: seen.then_some(group_id), lacks: stalled.map(|_| (7, nanos)), elsewhere: stalled.is_some(), standing: None };
        let told = ours.with(|c| { c.op = Op::Gather; c.tag = None; c.seq = 7; });
        let told = Header { info: told, shape: group_id, group_id: 2, lends: false };
        let stands = Header { info: told.info.with(|c| c.seq = nanos), ..told };
        let standing = Reached { standing: Some(Standing { call: stands, sent: group_id }), ..reached };
        let lost = ControlNote::Lost { by: what, rank: 7, cause: cause.clone(), silence: seen.then_some(nanos) };
        for m in [
            ControlNote::Leave { group_id },
            ControlNote::Abort { group_id, failure }, ControlNote::Census { group_id, at: nanos, digest: group_id }, ControlNote::Reached { group_id, reached },
            ControlNote::Reached { group_id, reached: standing },
            ControlNote::Waits { group_id, call: told },
            ControlNote::Heartbeat { progress: group_id }, ControlNote::Goodbye { words: cause, because_of: vec![what] },
            ControlNote::GivenUp { silence: group_id }, ControlNote::Entered { group_id }, ControlNote::Connect { group_id },
            ControlNote::NoWay { ranks: vec![what, 70_000] },
            ControlNote::Reform { group_id, message: Box::new(Message::Call { missing: vec![what, 70_000] }) },
            ControlNote::Spread { origin: what, number: nanos, note: Box::new(lost.clone()) }, lost,
            ControlNote::Passed { from: what, to: vec![what, 70_000], hops: 3, note: Box::new(ControlNote::Connect { group_id }) },
        ] {
            let bytes = m.encode();
            prop_assert_eq!(ControlNote::decode(bytes.get(..bytes.len() - 1).unwrap()), Err(Malformed));
            prop_assert_eq!(ControlNote::decode(&[&bytes[..], &[0]].concat()), Err(Malformed));
            prop_assert_eq!(ControlNote::decode(&bytes), Ok(m));
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..17) {
        let bytes = [&[kind], &bytes[..]].concat();
        if let Ok(m) = ControlNote::decode(&bytes) { prop_assert_eq!(m.encode(), bytes); }
    }
}

/// The simulator of failures passes notes on as they are. Here they go over the connection.
#[test]
fn what_membership_tells_can_be_read() {
    let size = 80;
    let limit = Duration::from_secs(5);
    let now = Instant::now();
    let everyone: Vec<usize> = (0..size).collect();
    let mut m = Membership::<Failure>::new(0, size, Some(limit));
    (1..size).for_each(|r| assert!(m.attach(r, now)));
    (1..=4).for_each(|group_id| assert!(m.enter(group_id, &everyone, 0)));
    let beat = |r| (r, Heard::Note(ControlNote::Heartbeat { progress: 0 }));
    m.hear((1..size).map(beat).collect(), now);
    let info = CallInfo::new(Op::AllGather).with(|c| {
        c.seq = 1;
        c.count = 1;
        c.dtype = Some(DType::F32);
    });
    let call = Header { info, shape: 1, group_id: 1, lends: false };
    m.say(&[1], ControlNote::Waits { group_id: 1, call });
    m.say(&(1..size).collect::<Vec<_>>(), ControlNote::Census { group_id: 1, at: 1, digest: 2 });
    let reached = Reached { made: 1, digest: Some(2), lacks: Some((3, 4)), elsewhere: false, standing: None };
    m.say(&[1], ControlNote::Reached { group_id: 1, reached });
    m.hear(vec![(1, Heard::Note(ControlNote::Census { group_id: 9, at: 1, digest: 2 }))], now);
    let late = Late { call: info, after: limit, missing: vec![1, 2], stalled: None };
    m.abort(1, Failure::late(0, late));
    m.abort(2, Failure::reported(0, "gives up"));
    m.hear(vec![(2, Heard::End(DIED)), (3, Heard::Note(ControlNote::GivenUp { silence: 5000 }))], now);
    m.enter(5, &everyone, 0);
    m.leave(5, true);
    m.enter(6, &[0, 1], 0);
    m.leave(6, true);
    // All others but one are silent for the whole limit.
    for now in (1..=10).map(|i| now + limit * i / 4) {
        m.hear(vec![beat(9)], now);
        m.tick(now, now, 0);
    }
    m.end("no way to rank 9", &[9]);
    let mut kinds = [0; 9];
    for action in m.actions() {
        let Action::Tell { note, .. } = action else { continue };
        let bytes = note.encode();
        kinds[usize::from(bytes[0])] += 1;
        assert_eq!(ControlNote::decode(&bytes), Ok(note));
    }
    // Beats are made when they are sent.
    kinds[3] += 1;
    assert!(kinds[1..].iter().all(|n| *n > 0), "{kinds:?}");
}

#[test]
fn long_fields_are_cut() {
    let words = "é".repeat(MAX_TEXT);
    let because_of = vec![7; 3000];
    let bytes = ControlNote::Goodbye { words: words.clone(), because_of: because_of.clone() }.encode();
    let Ok(ControlNote::Goodbye { words: got, because_of: named }) = ControlNote::decode(&bytes) else {
        panic!("not a goodbye")
    };
    assert!(got.len() == MAX_TEXT && words.starts_with(&got));
    assert!(named.len() == MAX_LIST && because_of.starts_with(&named));
}

/// A seed that is no message any more leads the fuzzer nowhere.
#[test]
fn the_fuzzers_seeds_are_notes() {
    macro_rules! seed {
        ($name:literal) => {
            include_bytes!(concat!("../../../../../fuzz/seeds/messages/", $name)).as_slice()
        };
    }
    for seed in [seed!("abort"), seed!("heartbeat")] {
        assert!(ControlNote::decode(seed).is_ok(), "{seed:x?}");
    }
}
