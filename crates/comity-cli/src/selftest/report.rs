//! The report: what ran where, the whole output of what failed, and the machine; without secrets and names.
use super::{
    Outcome, Verdict,
    names::{Names, OwnNames},
};
use crate::{here, report::Secrets, save};
use comity::{Config, tools};
use comity_cluster::facts::{HostFacts, bits_in_words};
use std::{fmt::Write, io, path::Path, time::SystemTime};

/// Writes the report.
///
/// # Errors
/// The errors of the system.
pub(super) fn write(
    file: &Path,
    machine: &HostFacts,
    all: &[Outcome],
    sum: &str,
    hosts: Option<&str>,
) -> io::Result<()> {
    let names = Names::new(&OwnNames::of_this_process(), hosts).map_err(io::Error::other)?;
    let text = without(&names, &text(machine, all, sum))?;
    save::replace(file, text.as_bytes(), save::FOR_ALL)
}

/// The text without secrets, then without names: a secret may hold one.
fn without(names: &Names, text: &str) -> io::Result<String> {
    let secrets = Secrets::of_this_process().map_err(io::Error::other)?;
    let text = secrets.removed(text.as_bytes().to_vec());
    Ok(names.removed(&String::from_utf8_lossy(&text)))
}

fn text(machine: &HostFacts, all: &[Outcome], sum: &str) -> String {
    let mut t = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        t,
        "comity {} selftest, {} {}, {}\nmachine: {}, pages of {} bytes\n",
        here::VERSION,
        std::env::consts::OS,
        std::env::consts::ARCH,
        humantime::format_rfc3339_seconds(SystemTime::now()),
        machine.summary(),
        rustix::param::page_size(),
    );
    let _ = writeln!(t, "{:<32}  {:<9}  {:>7}", "row", "result", "seconds");
    all.iter().for_each(|outcome| t += &format!("{}\n", outcome.line()));
    let _ = writeln!(t, "{sum}");
    for failed in all.iter().filter(|o| matches!(o.verdict, Verdict::Failed(_))) {
        let _ = writeln!(t, "\n== {}\n$ {}\n{}", failed.name, failed.command, failed.output);
    }
    t += "\n== machine\n";
    facts(&mut t, machine);
    t += "\n== links\n";
    if let Ok(config) = Config::from_env() {
        for note in tools::settings(&config).link_notes() {
            let _ = writeln!(t, "{}: {}", note.kind, note.why);
            for (name, at) in &note.devices {
                let _ = writeln!(
                    t,
                    "  {name}: {}",
                    at.as_ref().map_or_else(|why| why.as_str(), |_| "has an address")
                );
            }
        }
    }
    t += "\n== variables\n";
    t += &crate::report::variables();
    t
}

/// Cables, devices and limits; no addresses.
fn facts(t: &mut String, machine: &HostFacts) {
    let speed = |bits: Option<u64>| bits.map_or_else(|| "speed not known".into(), bits_in_words);
    for nic in machine.nics.iter().filter(|nic| !nic.is_inner) {
        let state = if nic.is_up { "up" } else { "down" };
        let _ = writeln!(t, "interface {}: {state}, {}, MTU {}", nic.name, speed(nic.speed), nic.mtu);
    }
    for port in &machine.thunderbolt {
        let cabled = if port.peers.is_empty() { "no peer" } else { "a peer" };
        let _ =
            writeln!(t, "Thunderbolt {} ({}): {}, {cabled}", port.receptacle, port.nic, speed(port.speed));
    }
    if let Some(enabled) = machine.rdma.enabled {
        let _ = writeln!(t, "RDMA: {}", if enabled { "enabled" } else { "disabled" });
    }
    for device in &machine.rdma.devices {
        let state = device.state.as_deref().unwrap_or("state not known");
        let _ = writeln!(t, "RDMA device {}: {state}", device.name);
    }
    let limits = &machine.limits;
    let number = |limit: Option<Option<u64>>| match limit {
        None => "not known".to_owned(),
        Some(None) => "unlimited".to_owned(),
        Some(Some(n)) => n.to_string(),
    };
    let _ =
        writeln!(t, "limits: {} open files, {} bytes locked", number(limits.files), number(limits.memlock));
    for problem in &machine.problems {
        let _ = writeln!(t, "{}: {}", problem.about, problem.why);
    }
}
