//! Messages read back, and bytes that are no messages.

use super::*;
use crate::{
    CallInfo, DType, ReduceOp,
    channel::{Conn, MAX_TEXT, Stream},
    status::{Differs, Late, Reached, Why},
};
use comity_membership::{Action, DIED, Heard, Membership};
use proptest::prelude::*;
use std::{
    io::Write,
    net::SocketAddrV6,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

prop_compose! {
    fn facts()(
        host_id: u64, host in "\\PC{0,40}", pid: u32, cores: u16, shm: bool, tcp: bool, sealed: bool, rdma: bool, ring: bool, silence: u32, senders: u16, connections: u16,
        unix in "[a-z]{0,20}", addrs in prop::collection::vec(any::<SocketAddr>(), 0..=MAX_ADDRS),
    ) -> Facts {
        // Flow labels do not travel.
        let addrs = addrs.into_iter().map(|a| match a {
            SocketAddr::V6(a) => SocketAddrV6::new(*a.ip(), a.port(), 0, a.scope_id()).into(),
            a => a,
        }).collect();
        Facts { host_id, host, pid, cores, shm, tcp, rdma, ring, sealed, silence, senders, connections, unix, addrs }
    }
}

prop_compose! {
    fn call()(
        op in 0usize..13, seq: u64, count: usize, dtype in prop::option::of(0usize..14), reduce in prop::option::of(0usize..4),
        root in prop::option::of(0usize..9999), tag in prop::option::of(0u32..9999),
    ) -> CallInfo {
        let (dtype, reduce) = (dtype.map(|d| DType::ALL[d]), reduce.map(|r| ReduceOp::ALL[r]));
        CallInfo { op: Op::ALL[op], seq, count, dtype, reduce, root, tag }
    }
}

proptest! {
    #[test]
    fn store_messages_round_trip(rank: u32, size: u32, patience: u64, facts in facts(), words in "\\PC{0,99}") {
        for m in [
            ToStore::Join { rank, size, patience, facts: facts.clone() }, ToStore::Ready,
            ToStore::Failed { words: words.clone() },
        ] {
            prop_assert_eq!(ToStore::decode(&m.encode()), Ok(m));
        }
        for m in [
            FromStore::Welcome { world: patience, size }, FromStore::Entry { rank, facts },
            FromStore::Refused { words },
        ] {
            prop_assert_eq!(FromStore::decode(&m.encode()), Ok(m));
        }
    }

    #[test]
    fn notes_round_trip(
        context: u64, culprit: u32, by: u32, seen: bool, cause in "\\PC{0,99}", ours in call(), theirs in call(),
        what in 0usize..9, why in 0u8..4, missing in prop::collection::vec(0usize..99, 0..5), nanos: u64,
    ) {
        let stalled = seen.then_some((1, 2));
        let why = match why {
            0 => Why::Lost,
            1 => Why::Reported,
            2 => Why::Differs(Differs { ours, theirs, what: Header::DIFFERENCES[what] }),
            _ => Why::Late(Late { call: ours, after: Duration::from_nanos(nanos), missing, stalled }),
        };
        let failure = Failure { culprit: culprit as usize, by: by as usize, cause: cause.clone(), why };
        let reached = Reached { made: nanos, digest: seen.then_some(context), lacks: stalled.map(|_| (7, nanos)) };
        let told = CallInfo { op: Op::Gather, tag: None, seq: 7, ..ours };
        let told = Header { info: told, shape: context, epoch: 1, context: 2 };
        for m in [
            Note::Leave { context },
            Note::Abort { context, failure }, Note::Census { context, at: nanos, digest: context }, Note::Reached { context, reached },
            Note::Waits { context, call: told },
            Note::Heartbeat { progress: context }, Note::Goodbye { words: cause },
            Note::GivenUp { silence: context },
        ] {
            let bytes = m.encode();
            prop_assert_eq!(Note::decode(bytes.get(..bytes.len() - 1).unwrap()), Err(Malformed));
            prop_assert_eq!(Note::decode(&[&bytes[..], &[0]].concat()), Err(Malformed));
            prop_assert_eq!(Note::decode(&bytes), Ok(m));
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..10) {
        let bytes = [&[kind], &bytes[..]].concat();
        if let Ok(m) = ToStore::decode(&bytes) { prop_assert_eq!(m.encode(), bytes.clone()); }
        if let Ok(m) = FromStore::decode(&bytes) { prop_assert_eq!(m.encode(), bytes.clone()); }
        if let Ok(m) = Note::decode(&bytes) { prop_assert_eq!(m.encode(), bytes); }
    }
}

/// The simulator of failures passes notes on as they are. Here they go over the connection.
#[test]
fn what_membership_tells_can_be_read() {
    let (size, limit, now) = (80, Duration::from_secs(5), Instant::now());
    let everyone: Vec<usize> = (0..size).collect();
    let mut m = Membership::<Failure>::new(0, size, Some(limit));
    (1..size).for_each(|r| assert!(m.attach(r, now)));
    (1..=4).for_each(|context| assert!(m.enter(context, &everyone, 0)));
    let beat = |r| (r, Heard::Note(Note::Heartbeat { progress: 0 }));
    m.hear((1..size).map(beat).collect(), now);
    let info = CallInfo { seq: 1, count: 1, dtype: Some(DType::F32), ..CallInfo::new(Op::AllGather) };
    m.ask(1, &[1], &Header { info, shape: 1, epoch: 1, context: 1 });
    m.census(1, 1, 2);
    m.answer(1, 1, Reached { made: 1, digest: Some(2), lacks: Some((3, 4)) });
    m.hear(vec![(1, Heard::Note(Note::Census { context: 9, at: 1, digest: 2 }))], now);
    let late = Late { call: info, after: limit, missing: vec![1, 2], stalled: None };
    m.abort(1, Failure::late(0, late));
    m.abort(2, Failure::reported(0, "gives up"));
    m.hear(vec![(2, Heard::End(DIED)), (3, Heard::Note(Note::GivenUp { silence: 5000 }))], now);
    m.enter(5, &everyone, 0);
    m.leave(5, true);
    m.enter(6, &[0, 1], 0);
    m.leave(6, true);
    // All others but one are silent for the whole limit.
    for now in (1..=10).map(|i| now + limit * i / 4) {
        m.hear(vec![beat(9)], now);
        m.tick(now, now, 0);
    }
    m.end("no way to rank 9");
    let mut kinds = [0; 9];
    for action in m.actions() {
        let Action::Tell { note, .. } = action else { continue };
        let bytes = note.encode();
        kinds[usize::from(bytes[0])] += 1;
        assert_eq!(Note::decode(&bytes), Ok(note));
    }
    // Beats are made when they are sent.
    kinds[3] += 1;
    assert!(kinds[1..].iter().all(|n| *n > 0), "{kinds:?}");
}

#[test]
fn long_text_is_cut_at_a_character() {
    let words = "é".repeat(MAX_TEXT);
    let Ok(Note::Goodbye { words: got }) = Note::decode(&Note::Goodbye { words: words.clone() }.encode())
    else {
        panic!("not a goodbye")
    };
    assert!(got.len() == MAX_TEXT && words.starts_with(&got));
}

#[test]
fn pairs_agree_on_threads_and_connections() {
    let rank = |host_id, cores, senders, connections| {
        let config = crate::Config::new(0, 1);
        let facts = crate::rendezvous::facts(&config, false, Vec::new(), String::new());
        Facts { host_id, cores, senders, connections, addrs: vec![([10, 0, 0, 1], 1).into()], ..facts }
    };
    const AUTO: u16 = u16::MAX;
    let mut all = [
        rank(1, 16, AUTO, 0),
        rank(1, 16, AUTO, 0),
        rank(2, 3, AUTO, 0),
        rank(3, 2, AUTO, 0),
        rank(4, 64, 0, 0),
        rank(5, 1, 1, 0),
        rank(6, 64, AUTO, 1),
        rank(7, 2, AUTO, 3),
    ];
    let couriers: Vec<_> = (0..9).map(|r| Facts::couriers(&all, r)).collect();
    assert_eq!(couriers, [2, 2, 0, 0, 0, 1, 16, 0, 0]);
    for (pair, connections) in [
        ([0, 1], 2),
        ([0, 2], 2),
        ([2, 3], 1),
        ([3, 4], 1),
        ([4, 5], 2),
        ([2, 6], 1),
        ([0, 6], 1),
        ([6, 7], 3),
    ] {
        for pair in [pair, [pair[1], pair[0]]] {
            assert_eq!(Facts::connections(&all, pair), connections, "{pair:?}");
        }
    }
    let crowd = |n, senders| (0..n).map(|host| rank(host, 8, senders, 0)).collect::<Vec<_>>();
    let of = |n, senders| Facts::connections(&crowd(n, senders), [0, 1]);
    assert_eq!([of(64, AUTO), of(65, AUTO), of(65, 1)], [2, 1, 2]);
    // The lower rank listens; with two addresses each direction would have two connections, and no thread.
    all[0].addrs.push(([10, 0, 1, 1], 1).into());
    assert_eq!([[0, 1], [1, 0], [1, 2]].map(|pair| Facts::connections(&all, pair)), [1, 1, 2]);
}

/// A seed that is no message any more leads the fuzzer nowhere.
#[test]
fn the_fuzzers_seeds_are_messages() {
    macro_rules! seed {
        ($name:literal) => {
            include_bytes!(concat!("../../../../../fuzz/seeds/messages/", $name)).as_slice()
        };
    }
    for seed in [seed!("join"), seed!("ready"), seed!("failed")] {
        assert!(ToStore::decode(seed).is_ok(), "{seed:x?}");
    }
    for seed in [seed!("welcome"), seed!("entry")] {
        assert!(FromStore::decode(seed).is_ok(), "{seed:x?}");
    }
    for seed in [seed!("abort"), seed!("heartbeat")] {
        assert!(Note::decode(seed).is_ok(), "{seed:x?}");
    }
    let (mut peer, us) = UnixStream::pair().unwrap();
    us.set_nonblocking(true).unwrap();
    peer.write_all(seed!("framed")).unwrap();
    let mut conn = Conn::new(Stream::Unix(us), None);
    assert!(conn.fill());
    let count = std::iter::from_fn(|| conn.next().unwrap()).count();
    assert!(count > 1 && !conn.has_part(), "{count}");
}
