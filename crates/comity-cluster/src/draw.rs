//! Drawings of machines and cables: for the terminal, as SVG, for Graphviz.
use crate::facts::{THUNDERBOLT_4, bits_in_words};
use crate::graph::{Cable, CableKind, Cluster, Plug};
use crate::{escaped, folded};
use std::f64::consts::{PI, TAU};
use std::fmt::Write;

/// A cable or a network: what a drawing joins.
#[derive(Clone, Debug)]
struct Joint {
    ends: Vec<Plug>,
    /// "Thunderbolt, 80 Gb/s, RDMA".
    words: String,
    /// Class, for its colour: by kind and speed.
    class: String,
    /// A network of several, with its name.
    network: Option<String>,
}

/// Everything that joins hosts, cables first.
fn joints(cluster: &Cluster) -> Vec<Joint> {
    let cable = |c: &Cable| {
        let words = cable_in_words(c);
        Joint { ends: vec![c.a.clone(), c.b.clone()], class: words.clone(), words, network: None }
    };
    let mut all: Vec<_> = cluster.cables.iter().map(cable).collect();
    for (at, network) in cluster.networks.iter().enumerate() {
        let name = network.subnet.map_or_else(|| format!("network {}", at + 1), |s| s.to_string());
        all.push(Joint {
            ends: network.ends.clone(),
            words: format!("network {name}"),
            class: "a network of several".into(),
            network: Some(name),
        });
    }
    all
}

fn cable_in_words(c: &Cable) -> String {
    let kind = match (c.kind, c.speed) {
        (CableKind::Thunderbolt, Some(s)) if s <= THUNDERBOLT_4 => "Thunderbolt 4 or less",
        (CableKind::Thunderbolt, _) => "Thunderbolt",
        (CableKind::Ethernet, _) => "Ethernet",
    };
    let speed = c.speed.map_or_else(|| "speed not known".into(), bits_in_words);
    format!("{kind}, {speed}{}", if c.rdma { ", RDMA" } else { "" })
}

/// The classes of cables in a fixed order, for colours and legends.
fn classes(joints: &[Joint]) -> Vec<String> {
    let mut all: Vec<String> = joints.iter().map(|j| j.class.clone()).collect();
    all.sort();
    all.dedup();
    all
}

fn colour(classes: &[String], joint: &Joint) -> &'static str {
    COLOURS[classes.iter().position(|c| *c == joint.class).unwrap_or(0) % COLOURS.len()]
}

/// Colours that differ for people who see red and green alike, too.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#555555"];

/// A graph of hosts and cables for Graphviz (`dot -Tsvg`); every cable once, with both interfaces.
pub fn dot(cluster: &Cluster) -> String {
    let joints = joints(cluster);
    let classes = classes(&joints);
    let quoted =
        |s: &str| format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
    let mut t = String::from("graph G {\n  node [shape=rectangle];\n");
    // Writing to a string cannot fail.
    for (i, host) in cluster.hosts.iter().enumerate() {
        let _ = writeln!(t, "  h{i} [label={}];", quoted(&format!("{}\n{}", host.ssh, host.summary())));
    }
    for (i, joint) in joints.iter().enumerate() {
        let colour = colour(&classes, joint);
        match (&joint.network, joint.ends.as_slice()) {
            (None, [a, b]) => {
                let label = quoted(&format!("{}/{}\n{}", a.nic, b.nic, joint.words));
                let _ = writeln!(t, "  h{} -- h{} [label={label}, color=\"{colour}\"];", a.host, b.host);
            }
            _ => {
                let _ = writeln!(t, "  n{i} [shape=ellipse, label={}];", quoted(&joint.words));
                for end in &joint.ends {
                    let _ = writeln!(
                        t,
                        "  h{} -- n{i} [label={}, color=\"{colour}\"];",
                        end.host,
                        quoted(&end.nic)
                    );
                }
            }
        }
    }
    t + "}\n"
}

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

/// Drawing for the terminal, with a line end after each row: hosts below each other, a cable a line at their right, in `colours` or plain.
///
/// ```text
/// ╭─ a ─────────────   8 cores, 32 GiB
/// │   en3 ●─╮          b en5  Thunderbolt, 80 Gb/s
/// │   en4 ●─┼─╮        c en3  Thunderbolt, 80 Gb/s
/// ├─ b      │ │        ...
/// ```
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

/// Least room for an interface's label on the circle.
const SLOT: f64 = 20.0;
/// Room for a host's name, around the circle of labels.
const MARGIN: f64 = 190.0;
/// Between the circle on which cables end and the arc of a host.
const LABEL: f64 = 74.0;
const FONT: &str = "font-family=\"Helvetica, Arial, sans-serif\"";

/// Place at which something is plugged in: its angle, the joint's number, the interface.
struct Slot<'a> {
    angle: f64,
    joint: usize,
    host: usize,
    nic: &'a str,
}

/// Drawing as a file of SVG: hosts on a circle, each with its interfaces side by side, so that no label lies over another; cables as curves
/// within.
pub fn svg(cluster: &Cluster) -> String {
    let joints = joints(cluster);
    let classes = classes(&joints);
    let (slots, arcs) = slots(cluster, &joints);
    let parts = arcs.iter().map(|a| a.2).sum::<usize>() + 2 * arcs.len();
    let inner = (SLOT * parts as f64 / TAU).clamp(130.0, 1200.0);
    let half = inner + LABEL + MARGIN;
    let notes = noted(&cluster.notes, ((2.0 * half - 60.0) / CHARACTER) as usize);
    let height = 2.0 * half + 40.0 + 22.0 * (classes.len() + notes.len()) as f64;
    let at = |angle: f64, r: f64| (half + r * angle.sin(), half - r * angle.cos());
    let mut t = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {:.0} {height:.0}\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        2.0 * half,
        2.0 * half
    );
    // Writing to a string cannot fail.
    curves(&mut t, &joints, &classes, &slots, half, inner);
    for slot in &slots {
        let (x, y) = at(slot.angle, inner);
        let colour = colour(&classes, &joints[slot.joint]);
        let _ = writeln!(t, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
        let (x, y) = at(slot.angle, inner + 10.0);
        // Read from the left, on both sides.
        let degrees = slot.angle.to_degrees() - 90.0;
        let (turn, anchor) =
            if slot.angle.sin() < -1e-9 { (degrees + 180.0, "end") } else { (degrees, "start") };
        let _ = writeln!(
            t,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" {FONT} font-size=\"12\" fill=\"#333\" text-anchor=\"{anchor}\" dy=\"0.35em\" transform=\"rotate({turn:.1} {x:.1} {y:.1})\">{}</text>",
            escaped(slot.nic)
        );
    }
    for (host, facts) in cluster.hosts.iter().enumerate() {
        let (from, to, _) = arcs[host];
        arc(&mut t, from, to, half, inner + LABEL);
        let (x, y) = at((from + to) / 2.0, inner + LABEL + 16.0);
        name(&mut t, x, y, (from + to) / 2.0, &facts.ssh, &facts.summary());
    }
    legend(&mut t, &notes, &classes, 2.0 * half + 20.0);
    t + "</svg>\n"
}

/// Every interface's place, and for each host its arc and how many places it has.
fn slots<'a>(cluster: &Cluster, joints: &'a [Joint]) -> (Vec<Slot<'a>>, Vec<(f64, f64, usize)>) {
    let n = cluster.hosts.len().max(1);
    let mut plugs: Vec<Vec<(usize, &str)>> = vec![Vec::new(); n];
    for (at, joint) in joints.iter().enumerate() {
        for end in &joint.ends {
            if let Some(own) = plugs.get_mut(end.host) {
                own.push((at, &end.nic));
            }
        }
    }
    for (host, own) in plugs.iter_mut().enumerate() {
        // The host that comes next on the circle is reached from the last place: fewer cables cross.
        own.sort_by_key(|(at, nic)| {
            let other = joints[*at].ends.iter().map(|e| e.host).find(|h| *h != host).unwrap_or(host);
            let ahead = (other + n - host) % n;
            (if joints[*at].network.is_some() { n } else { 2 * (n - ahead) }, *nic)
        });
    }
    let parts: usize = plugs.iter().map(|p| p.len().max(3) + 2).sum();
    let mut place = 0.0;
    let mut slots = Vec::new();
    let mut arcs = Vec::new();
    for (host, own) in plugs.iter().enumerate() {
        let room = own.len().max(3);
        let angle = |part: f64| TAU * (place + part) / parts as f64;
        let first = (room - own.len()) as f64 / 2.0 + 0.5;
        for (i, (joint, nic)) in own.iter().enumerate() {
            slots.push(Slot { angle: angle(1.0 + first + i as f64), joint: *joint, host, nic });
        }
        arcs.push((angle(1.0), angle(1.0 + room as f64), room));
        place += room as f64 + 2.0;
    }
    // The first host in the middle of the top.
    let turn = arcs.first().map_or(0.0, |a| (a.0 + a.1) / 2.0);
    slots.iter_mut().for_each(|s| s.angle -= turn);
    (slots, arcs.into_iter().map(|(a, b, room)| (a - turn, b - turn, room)).collect())
}

/// Cables as curves that bend towards the middle; a network is a spot there.
fn curves(t: &mut String, joints: &[Joint], classes: &[String], slots: &[Slot<'_>], half: f64, inner: f64) {
    let at = |angle: f64, r: f64| (half + r * angle.sin(), half - r * angle.cos());
    let networks: Vec<_> = (0..joints.len()).filter(|j| joints[*j].network.is_some()).collect();
    for (j, joint) in joints.iter().enumerate() {
        let own: Vec<_> = slots.iter().filter(|s| s.joint == j).collect();
        let colour = colour(classes, joint);
        let line = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"");
        if let (None, [a, b]) = (&joint.network, own.as_slice()) {
            let (x, y) = at(a.angle, inner);
            let (u, v) = at(b.angle, inner);
            // Ends far from each other bend less.
            let apart = ((a.angle - b.angle).sin().atan2((a.angle - b.angle).cos())).abs() / PI;
            let ((p, q), (r, s)) =
                (at(a.angle, inner * (0.75 - 0.45 * apart)), at(b.angle, inner * (0.75 - 0.45 * apart)));
            let _ = writeln!(
                t,
                "<path d=\"M{x:.1} {y:.1} C{p:.1} {q:.1} {r:.1} {s:.1} {u:.1} {v:.1}\" {line}><title>{} {} - {} {}: {}</title></path>",
                a.host,
                escaped(a.nic),
                b.host,
                escaped(b.nic),
                escaped(&joint.words)
            );
            continue;
        }
        let number = networks.iter().position(|n| *n == j).unwrap_or(0) as f64;
        let many = networks.len() as f64;
        let (x, y) =
            if networks.len() == 1 { (half, half) } else { at(TAU * number / many + 0.3, inner * 0.4) };
        for slot in own {
            let (u, v) = at(slot.angle, inner);
            let _ = writeln!(t, "<path d=\"M{x:.1} {y:.1} L{u:.1} {v:.1}\" {line}/>");
        }
        let words = escaped(joint.network.as_deref().unwrap_or_default());
        let wide = 16.0 + 7.0 * words.chars().count() as f64;
        let _ = writeln!(
            t,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"26\" rx=\"13\" fill=\"white\" stroke=\"{colour}\" stroke-width=\"2\"/>\n<text x=\"{x:.1}\" y=\"{y:.1}\" {FONT} font-size=\"12\" text-anchor=\"middle\" dy=\"0.35em\">{words}</text>",
            x - wide / 2.0,
            y - 13.0
        );
    }
}

fn arc(t: &mut String, from: f64, to: f64, half: f64, r: f64) {
    let at = |angle: f64| (half + r * angle.sin(), half - r * angle.cos());
    let (x, y) = at(from);
    let (u, v) = at(to);
    let large = u8::from(to - from > PI);
    let _ = writeln!(
        t,
        "<path d=\"M{x:.1} {y:.1} A{r:.1} {r:.1} 0 {large} 1 {u:.1} {v:.1}\" fill=\"none\" stroke=\"#222\" stroke-width=\"6\" stroke-linecap=\"round\"/>"
    );
}

/// A host's name outside of its arc, and below it what it is, in lines that fit.
fn name(t: &mut String, x: f64, y: f64, angle: f64, name: &str, about: &str) {
    let side = angle.sin();
    let anchor = if side > 0.3 {
        "start"
    } else if side < -0.3 {
        "end"
    } else {
        "middle"
    };
    let mut lines = folded(about, 24, "");
    lines.truncate(FOLDS);
    let high = 17.0 + 14.0 * lines.len() as f64;
    // Above the circle text ends at the point, below it begins there.
    let top = y - high * (1.0 + angle.cos()) / 2.0 + 14.0;
    let _ = writeln!(
        t,
        "<text x=\"{x:.1}\" y=\"{top:.1}\" {FONT} font-size=\"16\" font-weight=\"bold\" text-anchor=\"{anchor}\">{}</text>",
        escaped(name)
    );
    for (i, line) in lines.iter().enumerate() {
        let _ = writeln!(
            t,
            "<text x=\"{x:.1}\" y=\"{:.1}\" {FONT} font-size=\"11\" fill=\"#555\" text-anchor=\"{anchor}\">{}</text>",
            top + 15.0 + 14.0 * i as f64,
            escaped(line)
        );
    }
}

fn legend(t: &mut String, notes: &[String], classes: &[String], top: f64) {
    for (i, class) in classes.iter().enumerate() {
        let y = top + 22.0 * i as f64;
        let _ = writeln!(
            t,
            "<line x1=\"30\" y1=\"{y}\" x2=\"70\" y2=\"{y}\" stroke=\"{}\" stroke-width=\"4\"/>\n<text x=\"80\" y=\"{y}\" {FONT} font-size=\"13\" dy=\"0.35em\">{}</text>",
            COLOURS[i % COLOURS.len()],
            escaped(class)
        );
    }
    for (i, note) in notes.iter().enumerate() {
        let y = top + 22.0 * (classes.len() + i) as f64;
        let _ = writeln!(
            t,
            "<text x=\"30\" y=\"{y}\" {FONT} font-size=\"12\" fill=\"#a00\" dy=\"0.35em\">{}</text>",
            escaped(note)
        );
    }
}

/// The width of a character of the notes, at the most but for capitals.
const CHARACTER: f64 = 7.0;
/// Most lines of one text.
const FOLDS: usize = 4;
/// Most lines of notes.
const NOTES: usize = 12;

/// The notes in lines of at most so many characters.
fn noted(notes: &[String], most: usize) -> Vec<String> {
    let mut lines: Vec<String> =
        notes.iter().flat_map(|note| folded(note, most, "").into_iter().take(FOLDS)).collect();
    lines.truncate(NOTES);
    lines
}

#[cfg(test)]
mod tests;
