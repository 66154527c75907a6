//! Texts of errors.

use super::*;
use crate::{CallInfo, Op};

/// An error begins with the event and ends with the remedy.
#[test]
fn errors_end_with_what_to_do_next() {
    let peer = Peer { rank: 2, host: Some("m3".into()), pid: Some(4711) };
    let call = CallInfo { seq: 7, root: Some(1), ..CallInfo::new(Op::Broadcast) };
    let lost = ErrorKind::PeerLost {
        peer: peer.clone(),
        cause: "died".into(),
        because_of: Vec::new(),
        seen_by: None,
        left: false,
        call: Some(call),
    };
    assert_eq!(
        lost.to_string(),
        "rank 2 (host m3, pid 4711) died during broadcast #7 root 1; look at that rank's last output, then restart the job (`comity launch --max-restarts`) or call the group's reform"
    );
    // A comma, so that the call is this rank's.
    let left = ErrorKind::PeerLost {
        peer: peer.clone(),
        cause: "left the group after its call #1".into(),
        because_of: Vec::new(),
        seen_by: Some(0),
        left: true,
        call: Some(call),
    };
    let said = left.to_string();
    assert!(said.contains("after its call #1 (seen by rank 0), during broadcast #7 root 1; look"), "{said}");
    let aborted = ErrorKind::Aborted { by: peer.clone(), reason: "no space left".into(), call: None };
    assert_eq!(
        aborted.to_string(),
        "rank 2 (host m3, pid 4711) gave up the group: no space left; mend that, then restart the job or call the group's reform"
    );
    let theirs = CallInfo { root: Some(0), ..call };
    let mismatch = ErrorKind::Mismatch {
        rank: 0,
        ours: call,
        peer: peer.clone(),
        theirs,
        differs: "root",
        threads: None,
    };
    assert_eq!(
        mismatch.to_string(),
        "ranks disagree in root: rank 2 (host m3, pid 4711) called broadcast #7 root 0 while rank 0 called broadcast #7 root 1; \
         make the same calls with the same arguments in the same order on every rank"
    );
    let after = Duration::from_secs(5);
    let waiting_for = vec![peer.clone()];
    let crossed =
        vec![CrossedWait { peer, call: CallInfo { seq: 3, ..CallInfo::new(Op::Barrier) }, elsewhere: true }];
    let late = ErrorKind::Timeout { rank: 0, call, after, waiting_for, stalled: None, crossed };
    assert_eq!(
        late.to_string(),
        "broadcast #7 root 1 timed out after 5s on rank 0: rank 2 (host m3, pid 4711) had not called it; \
         rank 2 waited for this one in barrier #3 of another group; look at what that rank does, or raise COMITY_TIMEOUT, or the limit of this group or call, if it is only slow (none: as long as all ranks live)"
    );
    let late = Error::from(late);
    let later = Error::from(ErrorKind::Broken(late.clone()));
    assert_eq!((later.to_string(), later.root()), (format!("the group failed earlier: {late}"), &late));
}

#[test]
fn what_goes_to_a_terminal_cannot_steer_it() {
    let e = Error::config("file \u{1b}[2J\n of ü: wrong\u{7}");
    assert_eq!(e.to_string(), "configuration: file \\u{1b}[2J\\n of ü: wrong\\u{7}");
    assert_eq!(Error::config("plain").to_string(), "configuration: plain");
}

#[test]
fn a_full_table_of_descriptors_is_known_by_its_code() {
    use rustix::io::Errno;

    let e = Error::os("opening a socket", Errno::MFILE);
    assert!(e.to_string().contains("`ulimit -n`"), "{e}");
    let e = Error::os("opening a socket", Errno::NFILE);
    assert!(e.to_string().contains("fs.file-max"), "{e}");
    let e = Error::os("opening a socket", io::Error::other("a text that ends with (os error 24)"));
    assert_eq!(e.to_string(), "opening a socket: a text that ends with (os error 24)");
    let ErrorKind::Os(e) = e.kind() else { panic!("{e}") };
    assert_eq!((e.action(), e.kind()), ("opening a socket", io::ErrorKind::Other));
}

#[test]
fn sources_lead_to_the_first_failure() {
    use std::error::Error as _;

    let first = Error::config("no such host");
    let later = Error::from(ErrorKind::Broken(first.clone()));
    assert_eq!(later.source().and_then(|e| e.downcast_ref()), Some(&first));
    assert!(first.source().is_some_and(|e| e.is::<ConfigError>()));
}
