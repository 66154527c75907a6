//! For Graphviz: `dot -Tsvg`.
use super::{classes, colour, joints};
use crate::graph::Cluster;
use std::fmt::Write;

/// A graph of hosts and cables; every cable once, with both interfaces.
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
