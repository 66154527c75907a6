//! Flight records that the ranks of a job left in a directory, read together.
use comity::tools::{Flight, FlightState};
use comity_cluster::cores::runs;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

#[cfg(test)]
mod sample;

/// No job has more groups and ranks than this that fail at once.
const MOST_FILES: usize = 100_000;

/// The first lines of the report on a job that has ended, for its launcher.
pub fn first_lines(dir: &Path, most: usize) -> Vec<String> {
    match read(dir) {
        Ok((flights, bad)) => {
            let text = if flights.is_empty() { String::new() } else { report(&flights) };
            bad.into_iter().chain(text.lines().map(String::from)).take(most).collect()
        }
        Err(why) => vec![why],
    }
}

/// Removes the records that an earlier job has left here.
pub fn clear(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)?.flatten() {
        if entry.file_name().to_str().is_some_and(|n| Flight::of_name(n).is_some()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// All records of a directory, by group and rank, and what is wrong with the files that hold none.
pub fn read(dir: &Path) -> Result<(Vec<Flight>, Vec<String>), String> {
    let bad = |e| format!("'{}': {e}", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(bad)? {
        let name = entry.map_err(bad)?.file_name();
        if let Some(name) = name.to_str().filter(|n| Flight::of_name(n).is_some()) {
            names.push(name.to_owned());
        }
        if names.len() > MOST_FILES {
            return Err(format!("'{}' holds more than {MOST_FILES} flight records", dir.display()));
        }
    }
    let mut flights = Vec::new();
    let mut refused = Vec::new();
    names.sort();
    for name in names {
        match load(dir, &name) {
            Ok(flight) => flights.push(flight),
            Err(why) => refused.push(format!("'{}' {why}", dir.join(&name).display())),
        }
    }
    flights.sort_by_key(|f| (f.group, f.rank));
    Ok((flights, refused))
}

fn load(dir: &Path, name: &str) -> Result<Flight, String> {
    let path = dir.join(name);
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(&path).map_err(|e| format!("cannot be read: {e}"))?.is_file() {
        return Err("is not a file".into());
    }
    let file = File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
    let mut bytes = Vec::new();
    file.take(Flight::MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    Flight::parse(name, &bytes)
}

/// The records as a trace in Chrome's format, which Perfetto reads: a process for each rank, a thread for each group.
pub fn trace(flights: &[Flight]) -> String {
    let start = flights.iter().flat_map(|f| &f.calls).map(|c| c.begin).min().unwrap_or(0);
    let mut threads: BTreeMap<u64, usize> = BTreeMap::new();
    let us = |ns: u64| ns as f64 / 1e3;
    let mut rows = Vec::new();
    for f in flights {
        let next = threads.len();
        let thread = *threads.entry(f.group).or_insert(next);
        let of = |rank: usize| f.members.get(rank).copied().unwrap_or(rank);
        let rank = of(f.rank);
        let host = f.host.as_deref().unwrap_or("?");
        rows.push(json!({
            "ph": "M", "name": "process_name", "pid": rank,
            "args": { "name": format!("rank {rank} (host {host}, pid {})", f.pid) },
        }));
        rows.push(json!({
            "ph": "M", "name": "thread_name", "pid": rank, "tid": thread,
            "args": { "name": format!("group {:x}", f.group) },
        }));
        rows.extend(f.calls.iter().map(|c| {
            json!({
                "ph": "X", "cat": "comity", "name": c.info.to_string(), "pid": rank, "tid": thread,
                "ts": us(c.begin - start), "dur": us(c.end - c.begin),
                "args": {
                    "state": format!("{:?}", c.state).to_lowercase(),
                    "waited_for": c.peer.map(of),
                    "asleep_us": us(c.waited),
                },
            })
        }));
    }
    // A row a line: such files are looked at with text tools, too.
    let rows: Vec<String> = rows.iter().map(ToString::to_string).collect();
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", rows.join(",\n"))
}

/// Ranks that were waited for less than this in all are not slow.
const LEAST: Duration = Duration::from_millis(1);
/// Slow ranks shown.
const MOST_SLOW: usize = 8;

/// The report on records that are sorted by group: the group that failed first comes first.
pub fn report(flights: &[Flight]) -> String {
    let mut groups: Vec<&[Flight]> = flights.chunk_by(|a, b| a.group == b.group).collect();
    groups.sort_by_key(|g| g.iter().map(|f| f.written).min());
    let heard: BTreeSet<usize> = flights.iter().map(|f| world(f, f.rank)).collect();
    let mut out = String::new();
    for group in groups {
        // Writing to a string does not fail.
        let _ = write!(out, "{}", of_group(group, &heard));
    }
    out + &slow(flights)
}

fn of_group(flights: &[Flight], heard: &BTreeSet<usize>) -> String {
    let Some(first) = flights.iter().min_by_key(|f| f.written) else { return String::new() };
    let name = if first.group == 0 { String::new() } else { format!(" {:x}", first.group) };
    // Errors count ranks within their group.
    let in_job = match first.culprit {
        Some(c) if world(first, c) != c => format!(" (its rank {c} is rank {} of the job)", world(first, c)),
        _ => String::new(),
    };
    let all: BTreeSet<usize> = first.members.iter().copied().collect();
    format!(
        "{}\ngroup{name} of {}; cause, as {} saw it first: {}{in_job}\n",
        sentence(flights, heard),
        ranks(&all),
        ranks(&[world(first, first.rank)].into()),
        first.error
    )
}

/// Place of each rank of a group; `heard` are the ranks of the job that left a record of any group:
/// "rank 3 is at all_reduce #812 f32[1048576]; ranks 0-2 wait for it in all_gather #813".
fn sentence(flights: &[Flight], heard: &BTreeSet<usize>) -> String {
    let here: BTreeSet<usize> = flights.iter().map(|f| f.rank).collect();
    let Some(first) = flights.first() else { return String::new() };
    let absent = (0..first.members.len()).filter(|r| !here.contains(r));
    let (elsewhere, missing): (BTreeSet<usize>, BTreeSet<usize>) =
        absent.partition(|&r| heard.contains(&world(first, r)));
    let mut at: BTreeMap<(u64, bool, String), BTreeSet<usize>> = BTreeMap::new();
    let mut waits: BTreeMap<usize, usize> = BTreeMap::new();
    for f in flights {
        let last = f.calls.last();
        // A rank that was told as it left is in no call.
        let is_inside = last.is_some_and(|c| c.state != FlightState::Done);
        let (seq, call) = last.map_or((0, String::new()), |c| (position(f), c.info.to_string()));
        at.entry((seq, is_inside, call)).or_default().insert(f.rank);
        if let Some(peer) = last.filter(|_| is_inside).and_then(|c| c.peer).filter(|&p| p != f.rank) {
            waits.insert(f.rank, peer);
        }
    }
    let place = |r: usize| at.iter().position(|(_, ranks)| ranks.contains(&r));
    let holder = |r: usize| holder(r, &waits, &place);
    let named = |set: &BTreeSet<usize>| ranks(&set.iter().map(|&r| world(first, r)).collect());
    let mut clauses = Vec::new();
    let mut subject: BTreeSet<usize> = missing.clone();
    if !missing.is_empty() {
        clauses.push(format!(
            "{} left no record (killed, stopped, or ended without closing the group)",
            named(&missing)
        ));
    }
    if !elsewhere.is_empty() {
        clauses.push(format!("{} failed in another group", named(&elsewhere)));
    }
    for ((_, is_inside, call), ranks) in &at {
        let held: BTreeSet<usize> =
            ranks.iter().filter_map(|&r| holder(r)).filter(|h| !ranks.contains(h)).collect();
        if held.is_empty() || subject.is_empty() {
            clauses.push(stands(&named(ranks), ranks.len(), *is_inside, call));
            if subject.is_empty() {
                subject = ranks.clone();
            }
        } else {
            let whom = match &held {
                h if !elsewhere.is_empty() => named(h),
                h if *h != subject => named(h),
                h if h.len() == 1 => "it".into(),
                _ => "them".into(),
            };
            let waits = if ranks.len() == 1 { "waits" } else { "wait" };
            clauses.push(format!("{} {waits} for {whom} in {call}", named(ranks)));
        }
    }
    clauses.join("; ")
}

/// Rank that `rank` waits for in the end. In a ring ranks wait for a neighbour that waits itself, in the same call: the last
/// in the chain holds all up.
fn holder(
    mut rank: usize,
    waits: &BTreeMap<usize, usize>,
    place: &dyn Fn(usize) -> Option<usize>,
) -> Option<usize> {
    let start = place(rank);
    let mut to = waits.get(&rank).copied()?;
    for _ in 0..waits.len() {
        match waits.get(&to) {
            Some(&next) if place(to) == start && next != rank => (rank, to) = (to, next),
            _ => break,
        }
    }
    Some(to)
}

/// Place of ranks that wait for nobody else.
fn stands(who: &str, count: usize, is_inside: bool, call: &str) -> String {
    match (is_inside, call) {
        (true, call) => format!("{who} {} at {call}", if count == 1 { "is" } else { "are" }),
        (false, "") => format!("{who} made no call"),
        (false, call) => format!("{who} made no call after {call}"),
    }
}

/// Progress of a rank: the number of its last collective call, whatever it has sent since.
fn position(f: &Flight) -> u64 {
    f.calls.iter().rev().map(|c| c.info.seq).find(|&s| s > 0).unwrap_or(0)
}

/// For whom the others were asleep how long. One that was late because it waited itself in that call is not the one to look at.
fn slow(flights: &[Flight]) -> String {
    let mut waits: HashMap<(u64, u64, usize), (usize, u64)> = HashMap::new();
    for f in flights {
        for c in f.calls.iter().filter(|c| c.info.seq > 0 && c.waited > 0) {
            if let Some(peer) = c.peer {
                waits.insert((f.group, c.info.seq, f.rank), (peer, c.waited));
            }
        }
    }
    let mut by: BTreeMap<usize, (u64, u64, BTreeSet<usize>)> = BTreeMap::new();
    for f in flights {
        for c in &f.calls {
            if let Some(peer) = c.peer.filter(|_| c.waited > 0) {
                let next = |at: usize| match waits.get(&(f.group, c.info.seq, at)) {
                    Some(&(next, ns)) if ns >= c.waited / 2 => Some(next),
                    _ => None,
                };
                let chain = std::iter::successors(Some(peer), |&at| next(at)).take(f.members.len());
                // Ranks that waited for each other in turn have no last one.
                let peer = chain.last().filter(|&at| at != f.rank && next(at).is_none()).unwrap_or(peer);
                let (ns, calls, who) = by.entry(world(f, peer)).or_default();
                *ns = ns.saturating_add(c.waited);
                *calls += 1;
                who.insert(world(f, f.rank));
            }
        }
    }
    let mut all: Vec<_> = by.into_iter().filter(|(_, (ns, ..))| Duration::from_nanos(*ns) >= LEAST).collect();
    all.sort_by_key(|(rank, (ns, ..))| (std::cmp::Reverse(*ns), *rank));
    let mut out = String::new();
    for (rank, (ns, calls, who)) in all.into_iter().take(MOST_SLOW) {
        let time = Duration::from_nanos(ns).as_secs_f64();
        let _ = writeln!(out, "rank {rank} was waited for {time:.3} s in {calls} calls by {}", ranks(&who));
    }
    out
}

fn world(f: &Flight, rank: usize) -> usize {
    f.members.get(rank).copied().unwrap_or(rank)
}

/// "rank 3", "ranks 0-2, 5".
fn ranks(set: &BTreeSet<usize>) -> String {
    let run = |(from, to): (usize, usize)| match to - from {
        0 => from.to_string(),
        1 => format!("{from}, {to}"),
        _ => format!("{from}-{to}"),
    };
    let word = if set.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", runs(set.iter().copied()).into_iter().map(run).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::sample::flight;
    use super::*;
    use serde_json::Value;

    #[test]
    fn each_call_is_an_event_of_its_rank() {
        let all = [flight(0, "barrier", 3, None), flight(2, "barrier", 3, Some(0))];
        let v: Value = serde_json::from_str(&trace(&all)).unwrap();
        let rows = v["traceEvents"].as_array().unwrap();
        let calls: Vec<_> = rows.iter().filter(|r| r["ph"] == "X").collect();
        assert_eq!((rows.len(), calls.len()), (6, 2));
        assert_eq!((&calls[1]["pid"], &calls[1]["dur"]), (&json!(2), &json!(2_500_000.0)));
        assert_eq!((&calls[1]["args"]["waited_for"], &calls[1]["ts"]), (&json!(0), &json!(0.0)));
    }

    #[test]
    fn ranks_that_disagree_are_told_apart() {
        let mut all: Vec<_> = (0..3).map(|r| flight(r, "all_gather", 813, Some(3))).collect();
        all.push(flight(3, "all_reduce", 812, Some(0)));
        assert_eq!(
            sentence(&all, &BTreeSet::new()),
            "rank 3 is at all_reduce #812 f32[1048576]; ranks 0-2 wait for it in all_gather #813 f32[1048576]"
        );
    }

    #[test]
    fn a_rank_without_a_record_is_named_through_a_chain() {
        // A ring: 0 waits for 3, 3 for 2, and 2 for 1, which is gone.
        let all = [
            flight(0, "all_reduce", 9, Some(3)),
            flight(2, "all_reduce", 9, Some(1)),
            flight(3, "all_reduce", 9, Some(2)),
        ];
        let text = report(&all);
        let line = text.lines().next().unwrap();
        assert!(line.starts_with("rank 1 left no record (killed"), "{text}");
        assert!(line.ends_with("; ranks 0, 2, 3 wait for it in all_reduce #9 f32[1048576]"), "{text}");
        assert!(text.contains("group of ranks 0-3; cause, as rank 0 saw it first: why 0"), "{text}");
        assert!(text.contains("rank 1 was waited for 6.000 s in 3 calls by ranks 0, 2, 3\n"), "{text}");
    }

    #[test]
    fn a_rank_that_failed_in_another_group_is_not_lost() {
        let all = [flight(0, "barrier", 9, Some(1)), flight(2, "barrier", 9, Some(1))];
        assert_eq!(
            sentence(&all, &[0, 2, 3].into()),
            "rank 1 left no record (killed, stopped, or ended without closing the group); rank 3 failed in another group; \
             ranks 0, 2 wait for rank 1 in barrier #9 f32[1048576]"
        );
    }

    #[test]
    fn a_rank_in_no_call_waits_for_nobody() {
        let mut all: Vec<_> = (0..4).map(|r| flight(r, "barrier", 9, Some(3))).collect();
        for (rank, call) in [(2, 7), (3, 8)] {
            all[rank] = flight(rank, "barrier", call, Some(1));
            all[rank].calls[0].state = FlightState::Done;
        }
        assert_eq!(
            sentence(&all, &BTreeSet::new()),
            "rank 2 made no call after barrier #7 f32[1048576]; rank 3 made no call after barrier #8 f32[1048576]; \
             ranks 0, 1 wait for rank 3 in barrier #9 f32[1048576]"
        );
        all.truncate(3);
        all.iter_mut().for_each(|f| f.calls.clear());
        assert_eq!(
            sentence(&all, &BTreeSet::new()),
            "rank 3 left no record (killed, stopped, or ended without closing the group); ranks 0-2 made no call"
        );
    }

    #[test]
    fn ranks_that_wait_for_each_other_end() {
        let all: Vec<_> = (0..4).map(|r| flight(r, "barrier", 3, Some((r + 1) % 4))).collect();
        assert_eq!(sentence(&all, &BTreeSet::new()), "ranks 0-3 are at barrier #3 f32[1048576]");
    }

    #[test]
    fn runs_of_ranks() {
        assert_eq!(ranks(&[1].into()), "rank 1");
        assert_eq!(ranks(&[0, 1, 3, 4, 5, 9].into()), "ranks 0, 1, 3-5, 9");
    }
}
