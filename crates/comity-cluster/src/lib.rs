//! A picture of a cluster: its machines, the cables between them, and what is wrong with them.
//!
//! This crate reads no file, runs no program and sends nothing. Text that programs of the hosts printed comes in; decisions, drawings
//! and lists of commands go out. So clusters that nobody here owns are tested from texts.
//!
//! ```text
//!  text of each host          facts                what is cabled how         what to do
//!  ip -json, sysfs       ---> HostFacts ---+
//!  system_profiler,                        +----> Cluster ---> CableLayout ---+--> hostfile, commands, undo file
//!  networksetup, ...          heard -------+      (cables,    AddressPlan +--> drawings: terminal, SVG, DOT
//!                             (who hears whom)    networks)               +--> Check: a row of `comity doctor`
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`read`] | the script that a host runs, and readers of what it prints |
//! | [`facts`] | what is known of a host |
//! | [`graph`] | hosts, cables and networks; whether they make a mesh, a ring, or less |
//! | [`cores`] | cores, complexes, sockets and NUMA nodes of a host; which of them a rank is bound to |
//! | [`addresses`] | an address for each end of a cable, beside every network in use |
//! | [`commands`] | what is run on each host, how it is undone, and what of it is still there to be undone |
//! | [`hostfile`] | the file for `comity launch` and `mlx.launch` |
//! | [`draw`] | drawings |
//! | [`checks`] | verdicts over what was measured |
//!
//! Code that reads the output of Macs is written from the documented formats; it was not run on Apple hardware.
//!
//! **An internal crate: nothing here is a promise.** Use `comity cluster` and `comity doctor`.

#![doc(hidden)]

pub mod addresses;
pub mod checks;
pub mod commands;
pub mod cores;
pub mod draw;
pub mod facts;
pub mod graph;
pub mod hostfile;
pub mod read;

/// Text of another process or host as a sentence may show it: at most so many characters, and none that steers a terminal.
pub fn printable(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}

/// Text as an element or an attribute of XML or HTML may hold it.
pub fn escaped(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A sentence in lines of at most so many characters, broken between words where it can be; those after the first begin with `indent`.
pub fn folded(text: &str, most: usize, indent: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let fits = |line: &String| line.chars().count() + word.chars().count() < most;
        match lines.last_mut() {
            Some(line) if fits(line) => *line += &format!(" {word}"),
            Some(_) => lines.push(format!("{indent}{word}")),
            None => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
