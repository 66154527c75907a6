//! The two notations of Slurm that are needed: node lists and tasks per node.

use crate::address::shown;

/// The first host of a list such as `gpu[003-007,9],login`: `gpu003`.
///
/// Slurm puts task 0 there unless the step asks for an arbitrary distribution; then set `MASTER_ADDR`.
pub(super) fn first_host(list: &str) -> Result<String, String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',', ']']).unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        host.push_str(name);
        let Some(tail) = tail.strip_prefix('[') else {
            if tail.starts_with(']') {
                return Err("closes a bracket that was not opened".into());
            }
            break;
        };
        let Some((inside, after)) = tail.split_once(']') else {
            return Err("opens a bracket that is not closed".into());
        };
        let first = inside.split(['-', ',']).next().unwrap_or_default();
        if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("has {} between brackets, where numbers and ranges belong", shown(inside)));
        }
        host.push_str(first);
        rest = after;
    }
    if host.is_empty() {
        return Err("does not begin with a host".into());
    }
    Ok(host)
}

/// Tasks on node `node` of a step, from a list such as `4(x2),1`.
pub(super) fn tasks_on(list: &str, node: usize) -> Result<usize, String> {
    let mut left = node;
    for part in list.split(',') {
        let parsed = match part.split_once("(x") {
            None => number(part).map(|tasks| (tasks, 1)),
            Some((tasks, times)) => {
                let times = times.strip_suffix(')').and_then(number);
                number(tasks).zip(times)
            }
        };
        let Some((tasks, times)) = parsed else {
            return Err(format!("has {}, where a number such as 4 or 4(x2) belongs", shown(part)));
        };
        if left < times {
            return Ok(tasks);
        }
        left -= times;
    }
    Err(format!("does not tell the tasks of node {node} (SLURM_NODEID)"))
}

fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_hosts() {
        for (list, host) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("gpu[003-007,9],login", "gpu003"),
            ("n[1,3]", "n1"),
            ("r[2-3]n[07-12]x,y", "r2n07x"),
            ("10.0.0.1,10.0.0.2", "10.0.0.1"),
        ] {
            assert_eq!(first_host(list).as_deref(), Ok(host), "{list}");
        }
        for list in ["", ",a", "a[", "a[1", "a]", "a[]", "a[x-y]", "a[-3]", "[", "a[1-2]]"] {
            assert!(first_host(list).is_err(), "{list}");
        }
    }

    #[test]
    fn tasks_per_node() {
        assert_eq!(tasks_on("4(x2),1", 0), Ok(4));
        assert_eq!(tasks_on("4(x2),1", 1), Ok(4));
        assert_eq!(tasks_on("4(x2),1", 2), Ok(1));
        assert_eq!(tasks_on("8", 0), Ok(8));
        for (list, node) in [
            ("4(x2),1", 3),
            ("", 0),
            ("x", 0),
            ("4(x", 0),
            ("4(x2", 0),
            ("4(xy)", 0),
            ("+4", 0),
            ("99999999999999999999", 0),
        ] {
            assert!(tasks_on(list, node).is_err(), "{list}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(list in "[a-z0-9\\[\\],()x-]{0,40}|\\PC{0,40}", node in 0usize..9) {
            let _ = first_host(&list);
            let _ = tasks_on(&list, node);
        }
    }
}
