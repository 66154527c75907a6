//! Drawings of machines and cables: for the terminal, as SVG, for Graphviz.
mod svg;
mod terminal;

pub use svg::svg;
pub use terminal::terminal;

use crate::facts::{THUNDERBOLT_4, bits_in_words};
use crate::graph::{Cable, CableKind, Cluster, Plug};
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

#[cfg(test)]
mod tests;
