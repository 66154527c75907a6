//! A plan as a picture: time runs downwards, a column for each rank, a band and a colour for each round. May import
//! `report` and `shape`.
//!
//! Messages of a round are packed into lanes, so that no two arrows and no two labels lie over each other.

use crate::{
    report::{PlanReport, size},
    shape::Shape,
};
use std::{collections::BTreeMap, fmt::Write};

/// More ranks than this are no picture any more.
pub(crate) const MOST_RANKS: usize = 64;
const MOST_ROUNDS: usize = 64;
/// Told apart by people who see fewer colours too, as long as neighbours are compared.
const COLOURS: [&str; 8] =
    ["#1f6fb4", "#c4560a", "#2a7d3c", "#8a4bb0", "#b3252f", "#7a5a12", "#0b7c86", "#b0388a"];
const LEFT: usize = 170;
const PITCH: usize = 84;
const TOP: usize = 128;
/// Heights of a lane without labels and with them.
const LANES: [usize; 2] = [13, 24];

/// A message: its sender, its receiver, its bytes.
type Message = (usize, usize, usize);

/// The messages by sender and receiver, each with its round and its bytes.
pub(crate) type Edges = BTreeMap<(usize, usize), Vec<(u32, usize)>>;

pub(crate) fn svg(report: &PlanReport, shape: &Shape, edges: &Edges) -> String {
    let mut rounds: BTreeMap<u32, Vec<Message>> = BTreeMap::new();
    for (&(from, to), messages) in edges {
        for &(round, bytes) in messages {
            rounds.entry(round).or_default().push((from, to, bytes));
        }
    }
    let mut bands = String::new();
    let mut y = TOP;
    for (&round, messages) in rounds.iter().take(MOST_ROUNDS) {
        y += band(&mut bands, round, y, messages, shape);
    }
    if rounds.len() > MOST_ROUNDS {
        let more = rounds.len() - MOST_ROUNDS;
        let _ = writeln!(bands, r#"<text x="16" y="{}">and {more} rounds more</text>"#, y + 24);
        y += 36;
    }
    let width = (LEFT + shape.size * PITCH + 16).max(560);
    let mut t = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        t,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {0}" width="{width}" height="{0}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12">"#,
        y + 16
    );
    t.push_str("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<defs>\n");
    for (i, colour) in COLOURS.iter().enumerate() {
        let _ = writeln!(
            t,
            r#"<marker id="tip{i}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>"#
        );
    }
    t.push_str("</defs>\n");
    head(&mut t, report, shape, y);
    t.push_str(&bands);
    t.push_str("</svg>\n");
    t
}

fn column(rank: usize) -> usize {
    LEFT + rank * PITCH + PITCH / 2
}

/// Title, legend, hosts, ranks and their lines down to `end`.
fn head(t: &mut String, report: &PlanReport, shape: &Shape, end: usize) {
    let hosts = shape.hosts.last().map_or(1, |h| h + 1);
    let s = if report.rounds == 1 { "" } else { "s" };
    let segment =
        if report.segment > 0 { format!(", one segment of {}", size(report.segment)) } else { String::new() };
    let _ = writeln!(
        t,
        r##"<text x="16" y="24" font-size="15" font-weight="bold">{} of {}, {} ranks: {}</text>
<text x="16" y="44" fill="#555">{} round{s}{segment}, {} messages in all. Time runs downwards; a colour is a round.</text>"##,
        report.op,
        size(report.bytes),
        report.ranks,
        report.algorithm,
        report.rounds,
        report.messages
    );
    if hosts > 1 {
        t.push_str(
            r##"<path d="M16 60H52" stroke="#555" stroke-width="1.6"/><text x="58" y="64" fill="#555">within a host</text>
<path d="M160 60H196" stroke="#555" stroke-width="1.6" stroke-dasharray="5 3"/><text x="202" y="64" fill="#555">between hosts</text>
"##,
        );
    }
    for host in 0..hosts {
        let own: Vec<usize> = (0..shape.size).filter(|&r| shape.hosts[r] == host).collect();
        let (Some(first), Some(last)) = (own.first(), own.last()) else { continue };
        let x = column(*first) - PITCH / 2 + 4;
        let w = (last - first + 1) * PITCH - 8;
        let _ = writeln!(
            t,
            r##"<rect x="{x}" y="76" width="{w}" height="{}" rx="6" fill="#f3f5f8"/><text x="{}" y="92" text-anchor="middle" fill="#555">host {host}</text>"##,
            end - 76,
            x + w / 2
        );
    }
    for rank in 0..shape.size {
        let x = column(rank);
        let _ = writeln!(
            t,
            r##"<path d="M{x} 118V{end}" stroke="#c9ced6"/><circle cx="{x}" cy="108" r="11" fill="#333b47"/><text x="{x}" y="112" text-anchor="middle" fill="#fff" font-weight="bold">{rank}</text>"##
        );
    }
}

/// Draws a round from `y` on. Returns its height.
fn band(t: &mut String, round: u32, y: usize, messages: &[Message], shape: &Shape) -> usize {
    let colour = round as usize % COLOURS.len();
    let (least, most) = messages.iter().fold((usize::MAX, 0), |(a, b), m| (a.min(m.2), b.max(m.2)));
    let labelled = least != most;
    let lane = LANES[usize::from(labelled)];
    let lanes = pack(messages);
    let height = (lanes.len() * lane + 18).max(54);
    let _ = writeln!(t, r##"<path d="M16 {y}H{}" stroke="#dfe3e8"/>"##, LEFT + shape.size * PITCH);
    let each =
        if labelled { format!("{} to {}", size(least), size(most)) } else { format!("{} each", size(most)) };
    let s = if messages.len() == 1 { "" } else { "s" };
    let _ = writeln!(
        t,
        r##"<rect x="16" y="{}" width="10" height="34" fill="{c}"/><text x="34" y="{}" font-weight="bold" fill="{c}">round {round}</text><text x="34" y="{}" font-size="11" fill="#555">{} message{s}</text><text x="34" y="{}" font-size="11" fill="#555">{each}</text>"##,
        y + 8,
        y + 18,
        y + 32,
        messages.len(),
        y + 45,
        c = COLOURS[colour]
    );
    for (i, lane_messages) in lanes.iter().enumerate() {
        let at = y + 9 + i * lane + lane - 5;
        for &(from, to, bytes) in lane_messages {
            let a = column(from);
            let b = column(to);
            let (x1, x2) = if a < b { (a + 3, b - 3) } else { (a - 3, b + 3) };
            let dash = if shape.hosts[from] == shape.hosts[to] { "" } else { r#" stroke-dasharray="5 3""# };
            let _ = writeln!(
                t,
                r#"<path d="M{x1} {at}H{x2}" stroke="{}" stroke-width="1.6"{dash} marker-end="url(#tip{colour})"/>"#,
                COLOURS[colour]
            );
            if labelled {
                let _ = writeln!(
                    t,
                    r#"<text x="{}" y="{}" text-anchor="middle" font-size="10" fill="{}">{}</text>"#,
                    a.midpoint(b),
                    at - 5,
                    COLOURS[colour],
                    size(bytes)
                );
            }
        }
    }
    height
}

/// Lanes in which no two messages share more than a rank's line.
fn pack(messages: &[Message]) -> Vec<Vec<Message>> {
    let mut sorted = messages.to_vec();
    // Those of one direction lie together where they can.
    sorted.sort_by_key(|&(from, to, _)| (from > to, from.abs_diff(to), from.min(to)));
    let mut lanes: Vec<Vec<Message>> = Vec::new();
    for message in sorted {
        let span = |m: &Message| (m.0.min(m.1), m.0.max(m.1));
        let (low, high) = span(&message);
        let free = |lane: &Vec<Message>| lane.iter().map(span).all(|(l, h)| high <= l || h <= low);
        match lanes.iter_mut().find(|lane| free(lane)) {
            Some(lane) => lane.push(message),
            None => lanes.push(vec![message]),
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, PlanRequest, plan_report};

    #[test]
    fn a_ring_takes_two_lanes_and_a_fan_one_for_each() {
        let ring: Vec<Message> = (0..6).map(|r| (r, (r + 1) % 6, 1)).collect();
        assert_eq!(pack(&ring).len(), 2);
        let fan: Vec<Message> = (1..5).map(|r| (0, r, 1)).collect();
        assert_eq!(pack(&fan).len(), 4);
    }

    /// The place and the width of each label, roughly, and its text.
    fn labels(svg: &str) -> Vec<(f64, f64, f64, String)> {
        let number = |tag: &str, name: &str| {
            let (_, rest) = tag.split_once(&format!(" {name}=\"")).expect("a number");
            rest.split('"').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")
        };
        let texts = svg.split("<text").skip(1).map(|t| t.split("</text>").next().unwrap_or_default());
        texts
            .map(|t| {
                let (tag, text) = t.split_once('>').expect("a text");
                let width =
                    text.chars().count() as f64 * if tag.contains("font-size=\"15\"") { 9.5 } else { 7.0 };
                let x = number(tag, "x") - if tag.contains("middle") { width / 2.0 } else { 0.0 };
                (x, number(tag, "y"), width, text.to_owned())
            })
            .collect()
    }

    #[test]
    fn no_label_lies_over_another() {
        for algorithm in Algorithm::ALL.iter().copied() {
            for (op, ranks, hosts) in
                [("all_reduce", 12, 3), ("all_to_all", 12, 1), ("broadcast", 9, 2), ("gather", 12, 4)]
            {
                let ask = PlanRequest {
                    hosts,
                    algorithm: Some(algorithm),
                    ..PlanRequest::new(op, ranks, 64 << 20)
                };
                let Ok(report) = plan_report(&ask) else { continue };
                let labels = labels(&report.svg);
                assert!(labels.len() > ranks, "{}", report.svg);
                for (i, a) in labels.iter().enumerate() {
                    for b in &labels[i + 1..] {
                        let apart = (a.1 - b.1).abs() >= 9.0 || a.0 + a.2 <= b.0 || b.0 + b.2 <= a.0;
                        assert!(apart, "{op} by {}: {a:?} {b:?}", algorithm.name());
                    }
                }
            }
        }
    }
}
