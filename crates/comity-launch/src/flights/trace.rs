//! Flight records as a trace in Chrome's format, which Perfetto reads: a process for each rank, a thread for each group.

use comity::tools::Flight;
use serde_json::json;
use std::collections::BTreeMap;

/// The records in that format.
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

#[cfg(test)]
mod tests {
    use super::super::sample::flight;
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
}
