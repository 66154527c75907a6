//! Where code may wait, and what ends each wait when the other side never comes.

use super::{
    text::{blank, function, without_tests},
    within, words,
};

/// A place where code may wait.
pub(crate) struct Wait {
    /// A file, or a folder that ends with `/`.
    pub(crate) place: &'static str,
    /// The function that waits; empty for any there.
    pub(crate) function: &'static str,
    /// What ends the wait, which that function must have. Empty where nothing in it does, and `why` says what does.
    pub(crate) end: &'static str,
    pub(crate) why: &'static str,
}

const fn to(place: &'static str, function: &'static str, end: &'static str, why: &'static str) -> Wait {
    Wait { place, function, end, why }
}

pub(crate) const WAITS: &[Wait] = &[
    to(
        "crates/comity/src/engine/members.rs",
        "sleep",
        "bell_fd",
        "a rank in a call, which gives its deadline; the bell rings for a failure",
    ),
    to("crates/comity/src/engine/progress.rs", "complete", "failure", "the same: it parks, as below"),
    to("crates/comity/src/engine/progress.rs", "park", "left", "the same: to the call's deadline"),
    to("crates/comity/src/engine/run.rs", "sleep", "limit", "the same: links"),
    to("crates/comity/src/engine/park.rs", "sleep", "limit", "the same: links"),
    to("crates/comity/src/backend/external/mod.rs", "sleep", "limit", "the same: a library"),
    to(
        "crates/comity/src/engine/cause.rs",
        "word",
        "until",
        "word of whose fault it was: 500 ms at most for a link, a second for a library",
    ),
    to(
        "crates/comity/src/backend/mpi/place.rs",
        "",
        "until",
        "telling the meeting place: to the join deadline",
    ),
    to(
        "crates/comity/src/backend/mpi/making.rs",
        "finish",
        "",
        "a thread that has ended: callers ask `is_done` first",
    ),
    to("crates/comity/src/backend/mpi/", "", "Waiting", "MPI: as for any library, in `external`"),
    to(
        "crates/comity/src/backend/nccl/lane.rs",
        "join",
        "is_finished",
        "a thread that has ended, for which NCCL was waited for as below",
    ),
    to(
        "crates/comity/src/backend/nccl/lane.rs",
        "until_passed",
        "Waiting",
        "NCCL: as for any library, in `external`",
    ),
    to(
        "crates/comity/src/backend/nccl/guard.rs",
        "stand",
        "over",
        "NCCL's guard: woken for each call and at the end",
    ),
    to("crates/comity/src/turn.rs", "wait", "", "an earlier call of this group, which has a deadline"),
    to("crates/comity/src/group/mod.rs", "in_turn", "", "its turn, as above"),
    to("crates/comity/src/group/mod.rs", "wait", "", "its turn, as above"),
    to("crates/comity/src/group/request.rs", "job", "", "its turn, as above"),
    to(
        "crates/comity/src/group/request.rs",
        "wait",
        "",
        "background work: calls with deadlines, and what the user's closure does",
    ),
    to("crates/comity/src/group/request.rs", "wait_for", "left", "the same: to the caller's limit"),
    to("crates/comity/src/links/mesh.rs", "", "until", "links being made: to the join deadline"),
    to("crates/comity/src/links/mesh/reach.rs", "wait", "until", "the same"),
    to("crates/comity/src/transport/verbs/reach.rs", "wire", "until", "the same"),
    to(
        "crates/comity/src/links/mesh/trouble.rs",
        "explained",
        "until",
        "word of whose fault it was, no longer than to the join deadline",
    ),
    to("crates/comity/src/channel/dial.rs", "", "until", "an answer: to the join deadline"),
    to(
        "crates/comity/src/links/endpoint.rs",
        "",
        "until",
        "word from the store and the ranks: past the join deadline by a moment at most",
    ),
    to(
        "crates/comity/src/rendezvous/meet.rs",
        "join",
        "until",
        "who is there: past the join deadline by a moment at most",
    ),
    to("crates/comity/src/rendezvous/store.rs", "drop", "stop", "the store's thread, which is told to stop"),
    to(
        "crates/comity/src/rendezvous/store/server.rs",
        "serve",
        "stop",
        "the store's thread: woken when it is to stop",
    ),
    to("crates/comity/src/rendezvous/store/server.rs", "wait", "bell", "the same"),
    to(
        "crates/comity/src/rendezvous/store/server.rs",
        "finish",
        "until",
        "its last words: half a second at most",
    ),
    to("crates/comity/src/control/running.rs", "end", "stop", "the control thread, which is told to stop"),
    to(
        "crates/comity/src/control/running/serve.rs",
        "serve",
        "stop",
        "the control thread: woken for each event, and when it is to stop",
    ),
    to("crates/comity/src/control/running/serve.rs", "wait", "bell", "the same"),
    to(
        "crates/comity/src/control/leaving.rs",
        "lock_soon",
        "until",
        "the state at the end of a process: half a second at most",
    ),
    to(
        "crates/comity/src/engine/census.rs",
        "ask",
        "until",
        "answers of control threads when a limit has passed: half a second at most",
    ),
    to(
        "crates/comity/src/status/closing.rs",
        "conclude",
        "BEHIND",
        "a rank that has made fewer calls when this one leaves: two seconds at most",
    ),
    to(
        "crates/comity/src/status/closing.rs",
        "differs",
        "until",
        "which call differs: half a second at most",
    ),
    to("crates/comity/src/exchange/torch.rs", "connect", "until", "another try: to the join deadline"),
    to("crates/comity/src/exchange/unix.rs", "share", "until", "the same"),
    to("crates/comity/src/exchange/unix.rs", "drop", "stop", "its thread, which is told to stop"),
    to("crates/comity/src/exchange/unix.rs", "serve", "stopped", "its thread: woken when it is to stop"),
    to("crates/comity/src/address.rs", "resolve", "until", "the system's resolver: to the join deadline"),
    to(
        "crates/comity/src/transport/verbs/raise.rs",
        "nap",
        "until",
        "the other end of an edge: to the join deadline",
    ),
    to(
        "crates/comity/src/transport/verbs/hub/attend.rs",
        "attend",
        "nap",
        "the thread that attends devices: 50 ms at most",
    ),
    to(
        "crates/comity/src/transport/verbs/hub/attend.rs",
        "drop",
        "until",
        "the end of an edge: 500 ms at most",
    ),
    to(
        "crates/comity/src/transport/verbs/hub/attend.rs",
        "settle_all",
        "until",
        "the end of a process: the same",
    ),
    to("crates/comity/src/transport/verbs/hub.rs", "pump", "", "its own poll, a look that never sleeps"),
    to("crates/comity/src/transport/verbs/hub.rs", "poll_rail", "", "the same"),
    to("crates/comity/src/transport/verbs/mod.rs", "gather", "", "the same"),
    to(
        "crates/comity/src/transport/tcp/framing/thread.rs",
        "drop",
        "over",
        "the thread that sends for a link, which is told to stop",
    ),
    to(
        "crates/comity/src/transport/tcp/framing/thread.rs",
        "next",
        "over",
        "that thread: woken for each batch, and when it is to stop",
    ),
    to("crates/comity/src/transport/tcp/framing/thread.rs", "send", "over", "the same"),
    to("crates/comity/src/transport/tcp/framing/thread.rs", "sleep", "wake", "the same"),
    to("crates/comity/src/transport/tcp/damage.rs", "", "", "tests only"),
    to("crates/comity/src/cuda.rs", "finish", "", "a driver's own work, which no peer has a part in"),
    to(
        "crates/comity/src/sys/poll.rs",
        "poll_until",
        "until",
        "poll itself, with the deadline of its caller",
    ),
    to("crates/comity/src/sys/fds.rs", "", "until", "a descriptor from a peer: to the caller's deadline"),
    to(
        "crates/comity/src/sys/nccl/comm.rs",
        "abort",
        "until",
        "a call of NCCL that is under way, which may be stuck",
    ),
    to("crates/comity/src/sys/unacked.rs", "has_arrived", "Timespec", "a look that never sleeps"),
    to("crates/comity/src/sys/verbs/device/completion.rs", "poll", "AT_ONCE", "the same"),
    to("crates/comity-py/src/callbacks.rs", "serve", "IDLE", "the next callback: 10 s at most"),
    to("crates/comity-py/src/request.rs", "wait_until", "until", "background work, as above"),
    to(
        "crates/comity-py/src/request.rs",
        "wait",
        "limit",
        "the same; a look at Python's signals ten times a second",
    ),
    to("crates/comity-py/src/request.rs", "settles", "until", "this moment"),
    to(
        "crates/comity-py/src/request.rs",
        "watched",
        "give_up",
        "a join, which has a deadline; a signal ends it",
    ),
    to(
        "crates/comity-py/src/request.rs",
        "wait_to_the_end",
        "abort",
        "a call, which has a deadline; a signal aborts it",
    ),
];

/// Where it matters.
const PLACES: [&str; 3] = ["crates/comity/src/", "crates/comity-membership/src/", "crates/comity-py/src/"];

/// Calls that can sleep, or are made again and again instead.
const WAITING: &[&str] = &[
    "poll",
    "poll_until",
    "park",
    "park_timeout",
    "sleep",
    "wait",
    "wait_while",
    "wait_timeout",
    "wait_timeout_while",
    "recv_timeout",
    "spin_loop",
    "yield_now",
];
/// The same where nothing is given to them: else they join texts and receive for a group.
const WAITING_ALONE: &[&str] = &["join", "recv"];

/// What is wrong with the waits of this file, and which entries of the list it needs.
pub(crate) fn misplaced(name: &str, text: &str) -> (Vec<String>, Vec<usize>) {
    let (mut found, mut used) = (Vec::new(), Vec::new());
    let test = name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("/conformance.rs");
    if test || !PLACES.iter().any(|place| name.starts_with(place)) {
        return (found, used);
    }
    let code = blank(text);
    let code = without_tests(&code);
    for (at, (i, line)) in code.iter().enumerate().filter(|(_, (_, l))| waits(l)) {
        let (inside, body) = function(&code, at);
        let here = |w: &Wait| within(name, w.place) && (w.function.is_empty() || w.function == inside);
        let listed: Vec<(usize, &Wait)> = WAITS.iter().enumerate().filter(|(_, w)| here(w)).collect();
        let ended = |w: &Wait| w.end.is_empty() || words(&body, w.end).next().is_some();
        let what = format!("{name}:{}: a wait in `{inside}`", i + 1);
        match listed.iter().find(|(_, w)| ended(w)) {
            Some((entry, _)) => used.push(*entry),
            None if listed.is_empty() => {
                found.push(format!("{what}, outside the places for it: {}", line.trim()));
            }
            None => {
                let lacks = listed.iter().map(|(_, w)| format!("`{}` ({})", w.end, w.why));
                found.push(format!("{what}, which has no {}", lacks.collect::<Vec<_>>().join(" or ")));
            }
        }
    }
    (found, used)
}

fn waits(line: &str) -> bool {
    WAITING.iter().any(|w| calls(line, w, "(")) || WAITING_ALONE.iter().any(|w| calls(line, w, "()"))
}

/// Whether `name`, a function or what a field holds, is called with `given`.
fn calls(line: &str, name: &str, given: &str) -> bool {
    words(line, name).any(|(before, after)| {
        let held = before.ends_with('.') && after.strip_prefix(')').is_some_and(|a| a.starts_with(given));
        (after.starts_with(given) || held) && !before.trim_end().ends_with("fn")
    })
}
