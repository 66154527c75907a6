//! For the terminal: hosts below each other, a cable a line at their right.
//!
//! ```text
//! ╭─ a ─────────────   8 cores, 32 GiB
//! │   en3 ●─╮          b en5  Thunderbolt, 80 Gb/s
//! │   en4 ●─┼─╮        c en3  Thunderbolt, 80 Gb/s
//! ├─ b      │ │        ...
//! ```
use super::{Joint, classes, joints};
use crate::graph::Cluster;

/// A row in which something is plugged in.
struct Row {
    text: String,
    /// The joint's number.
    joint: Option<usize>,
    /// Text behind the lines.
    behind: String,
}

/// The colours of classes: blue, yellow, green, magenta, cyan, white.
const ANSI: [u8; 6] = [34, 33, 32, 35, 36, 37];

/// The drawing, with a line end after each row; its lines in `colours`, or plain.
pub fn terminal(cluster: &Cluster, colours: bool) -> String {
    let joints = joints(cluster);
    let classes = classes(&joints);
    let nics = joints.iter().flat_map(|j| &j.ends).map(|e| e.nic.chars().count()).max().unwrap_or(4);
    let names = cluster.hosts.iter().map(|h| h.ssh.chars().count()).max().unwrap_or(1);
    let width = nics.max(names).max(4);
    let mut rows = Vec::new();
    for (host, facts) in cluster.hosts.iter().enumerate() {
        let corner = if host == 0 { '╭' } else { '├' };
        rows.push(Row {
            text: format!("{corner}─ {:<width$} ", facts.ssh),
            joint: None,
            behind: facts.summary(),
        });
        let mut plugs: Vec<(usize, &str)> = Vec::new();
        for (at, joint) in joints.iter().enumerate() {
            plugs.extend(joint.ends.iter().filter(|e| e.host == host).map(|e| (at, e.nic.as_str())));
        }
        plugs.sort_by_key(|(at, nic)| (joints[*at].network.is_some(), *nic, *at));
        if plugs.is_empty() {
            rows.push(Row {
                text: format!("│  {:width$} ", ""),
                joint: None,
                behind: "(nothing found that joins it to the others)".into(),
            });
        }
        for (at, nic) in plugs {
            let behind = far_ends(cluster, &joints[at], host);
            rows.push(Row { text: format!("│  {nic:>width$} "), joint: Some(at), behind });
        }
    }
    let tracks = tracks(&joints, &rows);
    let wide = tracks.iter().flatten().map(|t| t.track + 1).max().unwrap_or(0);
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        text += &row.text;
        let colour = |joint: usize| {
            let class = classes.iter().position(|c| *c == joints[joint].class).unwrap_or(0);
            colours.then(|| ANSI[class % ANSI.len()])
        };
        text += &lines(at, row, &tracks, wide, &colour);
        text += &format!("  {}", row.behind);
        text = text.trim_end().to_owned() + "\n";
    }
    text
}

/// "b en5   Thunderbolt, 80 Gb/s"
fn far_ends(cluster: &Cluster, joint: &Joint, own: usize) -> String {
    if joint.network.is_some() {
        return joint.words.clone();
    }
    let far = joint.ends.iter().filter(|e| e.host != own);
    let far: Vec<_> = far.map(|e| format!("{} {}", cluster.name(e.host), e.nic)).collect();
    format!("{}  {}", far.join(", "), joint.words)
}

/// Course of a joint's line: its column, its first and last row.
struct Track {
    track: usize,
    first: usize,
    last: usize,
}

/// A column for each joint; short ones are near the hosts, and two that do not meet share one.
fn tracks(joints: &[Joint], rows: &[Row]) -> Vec<Option<Track>> {
    let span = |j: usize| {
        let mut at = rows.iter().enumerate().filter(|(_, r)| r.joint == Some(j)).map(|(i, _)| i);
        let first = at.next()?;
        Some((first, at.next_back().unwrap_or(first)))
    };
    let mut order: Vec<_> = (0..joints.len()).filter_map(|j| Some((j, span(j)?))).collect();
    order.sort_by_key(|(j, (first, last))| (joints[*j].network.is_some(), last - first, *first));
    let mut placed: Vec<Option<Track>> = (0..joints.len()).map(|_| None).collect();
    for (j, (first, last)) in order {
        let is_free = |track: usize| {
            placed.iter().flatten().all(|t| t.track != track || t.last < first || t.first > last)
        };
        let track = (0..).find(|t| is_free(*t)).unwrap_or(0);
        placed[j] = Some(Track { track, first, last });
    }
    placed
}

/// The part of a row at the hosts' right.
fn lines(
    at: usize,
    row: &Row,
    tracks: &[Option<Track>],
    wide: usize,
    colour: &dyn Fn(usize) -> Option<u8>,
) -> String {
    let own = row.joint.and_then(|j| tracks[j].as_ref().map(|t| (j, t)));
    let mut text = String::new();
    let mut put = |c: char, by: Option<u8>| match by {
        Some(by) if c != ' ' => text += &format!("\x1b[{by}m{c}\x1b[0m"),
        _ => text.push(c),
    };
    for place in 0..2 * wide + 2 {
        if place == 0 && own.is_some() {
            put('●', own.and_then(|(j, _)| colour(j)));
            continue;
        }
        let track = (place >= 2 && place % 2 == 0).then(|| (place - 2) / 2);
        let mut there = tracks.iter().enumerate().filter_map(|(j, t)| Some((j, t.as_ref()?)));
        let passing = there.rfind(|(_, t)| Some(t.track) == track && t.first <= at && at <= t.last);
        let reaches = own.filter(|(_, t)| place > 0 && place < 2 * t.track + 2);
        match (own, passing, reaches) {
            (Some((j, t)), Some((k, _)), _) if j == k => {
                put(
                    if at == t.first {
                        '╮'
                    } else if at == t.last {
                        '╯'
                    } else {
                        '┤'
                    },
                    colour(j),
                );
            }
            (_, Some((k, _)), Some(_)) => put('┼', colour(k)),
            (_, Some((k, _)), None) => put('│', colour(k)),
            (_, None, Some((j, _))) => put('─', colour(j)),
            _ => put(' ', None),
        }
    }
    text
}
