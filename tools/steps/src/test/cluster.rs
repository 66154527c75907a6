//! `comity cluster` and `comity doctor` on three hosts with an sshd each: a switch with the names, and a triangle of cables.
//!
//! ```text
//!   desk --+-- a eth0        a ab --- ba b      the cables have no addresses of IPv4
//!          +-- b eth0        b bc --- cb c
//!          +-- c eth0        c ca --- ac a
//! ```
//!
//! `comity cluster config` gives the cables addresses and writes a hostfile, which `comity doctor` passes and `comity launch` runs. Then
//! faults are planted, and each is found; the setup is undone. The gate takes a share of the faults, the deep checks all.

mod faults;
mod rdma;

use super::{
    jobs::{comity_word, fails, has, script, timed},
    scope::Scope,
    sshd::{Cabling, SshHost, SshNet},
    step::Outcome,
};
use std::{path::Path, time::Instant};
use tasks::place::{Scratch, copy, program, read};

/// Seconds for one command, with room for a busy machine.
const LIMIT: u64 = 300;
const PORTS: &str = "7100-7107";

/// The hosts, and the command that is run at the desk.
struct Desk<'a> {
    net: SshNet<'a>,
    comity: String,
}

pub(super) fn check(scope: &Scope) -> Outcome {
    let scratch = Scratch::new("cluster")?;
    let net = SshNet::new("cluster", &scratch, Cabling::Switch, false)?;
    cables(&net)?;
    let mut desk = Desk { net, comity: comity_word() };
    if scope.deep {
        timed("a user who cannot run sudo", || lacks_sudo(&mut desk))?;
    }
    timed("config, doctor and a job", || configures(&mut desk))?;
    timed("hosts that announce themselves", || hears(&desk))?;
    if scope.deep {
        timed("config over RDMA, doctor and a job", || rdma::runs(&mut desk))?;
    }
    let mut found = 0;
    for (name, plant) in scope.share(faults::GROUPS.to_vec(), 4) {
        let names = timed(&format!("faults {name}"), || plant(&mut desk))?;
        println!("  found: {}", names.join(", "));
        found += names.len();
    }
    timed("undo", || undoes(&desk))?;
    Ok(format!("found, set up, ran and undid 3 hosts; {found} planted faults found"))
}

fn cables(net: &SshNet<'_>) -> Result<(), String> {
    for (one, at, other, there) in [("a", "ab", "b", "ba"), ("b", "bc", "c", "cb"), ("c", "ca", "a", "ac")] {
        net.hosts.cable([(one, at), (other, there)])?;
        net.hosts.ip(one, &format!("link set {at} up"))?;
        net.hosts.ip(other, &format!("link set {there} up"))?;
    }
    Ok(())
}

impl Desk<'_> {
    fn path(&self, file: &str) -> String {
        self.net.folder.text(file)
    }

    /// Run a command of comity at the desk.
    fn run(&self, words: &[&str], args: &[&str]) -> Result<String, String> {
        let begun = Instant::now();
        let config = format!("--ssh-arg={}", self.path("config"));
        let all = [&[self.comity.as_str()], words, &["--ssh-arg=-F", &config], args].concat();
        let said = self.net.desk(&all).limit(LIMIT).run();
        println!("  comity {}: {:.1} s", words.join(" "), begun.elapsed().as_secs_f64());
        said
    }

    /// `comity doctor`, which is to find these.
    fn finds(&self, args: &[&str], words: &[&str]) -> Result<(), String> {
        fails(self.run(&["doctor"], args), &[&["exit status: 1"], words].concat()).map(drop)
    }
}

fn configures(desk: &mut Desk<'_>) -> Result<(), String> {
    let out = desk.path("cluster.json");
    let undo = desk.path("undo.json");
    let svg = desk.path("cluster.svg");
    // A cable that was plugged in just now: its ends have no address to tell it from for up to 2 s.
    for (host, nic) in [("c", "ca"), ("a", "ac")] {
        desk.net.hosts.ip(host, &format!("link set {nic} down"))?;
        desk.net.hosts.ip(host, &format!("link set {nic} up"))?;
    }
    // Without --auto-setup the commands are told, and nothing changes.
    let told = desk.run(&["cluster", "config"], &["--hosts", "a,b,c", "--over", "ethernet"])?;
    has(
        &told,
        &["3 of 3 cables have no addresses", "sudo ip addr add 10.93.0.1/30 dev ab", "\"ssh\": \"c\""],
    )?;
    fails_halfway(desk, &undo)?;
    let all = ["--hosts", "a,b,c", "--auto-setup", "--undo", &undo, "--output", &out, "--svg", &svg];
    let said = desk.run(&["cluster", "config"], &all)?;
    has(&said, &["●", "b ba", "3 hosts, a mesh, backend ring", "6 commands were run"])?;
    has(&read(&svg)?, &["<svg", "</svg>"])?;
    has(&read(&out)?, &["\"COMITY_INTERFACES\": \"=ab,ac\"", "10.93.0."])?;
    let written = read(&undo)?;
    let again = desk.run(&["cluster", "config"], &all)?;
    has(&again, &["every cable has its addresses already: no command was run"])?;
    if read(&undo)? != written {
        return Err("the undo file is not as it was".into());
    }
    let said = desk.run(&["doctor"], &[&out, "--ports", PORTS])?;
    has(&said, &["passed     cable    a ab - b ba", " 0 failed", "there and back"])?;
    let job =
        ["--hostfile", &out, "--", &desk.comity, "bench", "all_reduce", "--sizes", "64K", "--budget", "0.3"];
    has(&desk.run(&["launch"], &job)?, &["3 ranks on 3 hosts (a, b, c), links tcp", "[0@"])?;
    Ok(())
}

/// The user of one host cannot become root: nothing is done on any.
fn lacks_sudo(desk: &mut Desk<'_>) -> Result<(), String> {
    let id = script(&desk.net.folder.join("user-id"), "#!/bin/sh\necho 501\n")?;
    let before = format!(
        "mount --bind {id} $(command -v id)\nfor s in $(command -v sudo || true); do mount --bind $(command -v false) $s; done"
    );
    desk.net.serve_as(&SshHost { name: "c8", host: "c", port: 2208, before: &before, users: "id.pub" })?;
    desk.net.answer(&["c8"])?;
    let undo = desk.path("undo.json");
    let said = desk.run(&["cluster", "config"], &["--hosts", "a,b,c8", "--auto-setup", "--undo", &undo]);
    fails(said, &["exit status: 1", "host c8: its user cannot run sudo without a password", "NOPASSWD"])?;
    bare(desk)
}

/// A command that fails on the last host: those before it are undone, on all hosts.
fn fails_halfway(desk: &mut Desk<'_>, undo: &str) -> Result<(), String> {
    let real = program("ip").ok_or("there is no ip")?;
    let kept = desk.net.folder.join("real-ip");
    copy(&real, &kept)?;
    let failing = format!(
        "#!/bin/sh\ncase \"$*\" in *'dev cb') echo 'not today' >&2; exit 2;; esac\nexec {} \"$@\"\n",
        kept.display()
    );
    let failing = script(&desk.net.folder.join("failing-ip"), &failing)?;
    let before = format!("mount --bind {failing} {}", real.display());
    desk.net.serve_as(&SshHost { name: "c9", host: "c", port: 2209, before: &before, users: "id.pub" })?;
    desk.net.answer(&["c9"])?;
    let said = desk.run(&["cluster", "config"], &["--hosts", "a,b,c9", "--auto-setup", "--undo", undo]);
    let undone = "the 5 commands before it were undone: all hosts are as they were";
    fails(said, &["exit status: 1", "not today", undone])?;
    if Path::new(undo).exists() {
        return Err("an undo file of nothing is left".into());
    }
    bare(desk)
}

/// The cables have no addresses.
fn bare(desk: &Desk<'_>) -> Result<(), String> {
    for host in ["a", "b", "c"] {
        let left = desk.net.hosts.within(host).args(["ip", "addr"]).run()?;
        if left.contains("10.93.") {
            return Err(format!("addresses are left on {host}:\n{left}"));
        }
    }
    Ok(())
}

/// Two of the hosts announce themselves, and the desk finds those over the switch.
fn hears(desk: &Desk<'_>) -> Result<(), String> {
    let announce = |host: &str| {
        let task = desk.net.hosts.within(host).args([&desk.comity]);
        task.args(["cluster", "announce", "--name", host, "--for", "40"]).limit(LIMIT).start()
    };
    let announced = [announce("a")?, announce("b")?];
    let found = desk.run(&["cluster", "find"], &["--announced", "--json"])?;
    drop(announced);
    let hosts = ["heard a (comity ", "heard b (comity ", "\"ssh\": \"10.78.0.2\"", "\"ssh\": \"10.78.0.3\""];
    has(&found, &hosts)?;
    match found.contains("heard c") {
        true => Err(format!("c did not announce itself:\n{found}")),
        false => Ok(()),
    }
}

fn undoes(desk: &Desk<'_>) -> Result<(), String> {
    let undo = desk.path("undo.json");
    let hosts = &desk.net.hosts;
    hosts.ip("b", "addr del 10.93.0.2/30 dev ba")?;
    hosts.ip("b", "addr add 10.93.0.2/24 dev ba")?;
    let said = desk.run(&["cluster", "undo"], &[&undo]);
    fails(said, &["exit status: 2", "ba has 10.93.0.2/24", "nothing was undone"])?;
    hosts.ip("b", "addr del 10.93.0.2/24 dev ba")?;
    let said = desk.run(&["cluster", "undo"], &[&undo])?;
    has(&said, &["host b: undone already: ip addr add 10.93.0.2/30 dev ba"])?;
    bare(desk)
}
