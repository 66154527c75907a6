//! Twelve faults, planted several at a time, and what the doctor must say of each.

use super::{Desk, PORTS};
use crate::test::{
    jobs::{fails, script},
    sshd::SshHost,
};
use std::path::Path;
use tasks::{child::Task, place::copy};

/// Plants faults that can be planted together, has them found, and takes them away; their names.
type Plant = fn(&mut Desk<'_>) -> Result<Vec<&'static str>, String>;

pub(super) const GROUPS: [(&str, Plant); 4] =
    [("of hosts", hosts), ("of addresses", addresses), ("of ways", ways), ("of logins", logins)];

/// A command in a host's namespace.
fn on(desk: &Desk<'_>, host: &str, line: &str) -> Result<(), String> {
    desk.net.hosts.within(host).args(line.split_whitespace()).limit(20).run().map(drop)
}

/// A script that stands before the program on one host. It is told the program's own path, which is a link to it.
fn wrapped(desk: &Desk<'_>, name: &str, lines: &str) -> Result<String, String> {
    let real = desk.net.folder.join("real-comity");
    if !real.exists() {
        copy(desk.comity.as_ref(), &real)?;
    }
    let text = format!("#!/bin/sh\nreal={}\n{lines}\n", real.display());
    let path = script(&desk.net.folder.join(name), &text)?;
    Ok(format!("mount --bind {path} {}", desk.comity))
}

/// Other words in what the agent says.
fn says(change: &str) -> String {
    format!("\"$real\" \"$@\" | perl -pe 'BEGIN {{ $| = 1 }} {change}'")
}

/// No memory to lock, a full /dev/shm, another version, another key; a closed port, a slow cable.
fn hosts(desk: &mut Desk<'_>) -> Result<Vec<&'static str>, String> {
    let version = wrapped(desk, "older", &says("s/\"version\":\"[^\"]*\"/\"version\":\"0.0.9\"/"))?;
    let key = desk.path("job.key");
    for file in ["job.key", "other.key"] {
        Task::new(&desk.comity).args(["key", "new"]).args([desk.path(file)]).run()?;
    }
    let poor = format!("ulimit -l 16\nmount --bind {} {key}", desk.path("other.key"));
    let full = "mount -t tmpfs -o size=1m tmpfs /dev/shm\ndd if=/dev/zero of=/dev/shm/full bs=1k count=1000 2>/dev/null";
    for (name, host, before) in [("a1", "a", version.as_str()), ("b1", "b", &poor), ("c1", "c", full)] {
        desk.net.serve_as(&SshHost { name, host, port: 2201, before, users: "id.pub" })?;
    }
    desk.net.answer(&["a1", "b1", "c1"])?;
    for line in [
        "ip rule add pref 100 lookup local",
        "ip rule del pref 0",
        "ip rule add pref 10 iif eth0 ipproto tcp dport 7100-7107 blackhole",
    ] {
        on(desk, "b", line)?;
    }
    on(desk, "a", "tc qdisc add dev ab root tbf rate 100mbit burst 64kb latency 50ms")?;
    let found = desk.finds(
        &["--hosts", "a1,b1,c1", "--ports", PORTS, "--key", &key],
        &[
            "FAILED     version  a1: it has comity 0.0.9",
            "FAILED     memlock  b1: a process may lock 16 KiB",
            "FAILED     key      b1: ",
            "comity key copy b1",
            "FAILED     shm      c1: /dev/shm has 0 MiB free of 1",
            "FAILED     port     a1 eth0 -> b1 eth0: port 71",
            "FAILED     port     c1 eth0 -> b1 eth0: port 71",
            "FAILED     speed    b1 ba -> a1 ab: ",
            " 7 failed",
        ],
    );
    on(desk, "a", "tc qdisc del dev ab root")?;
    on(desk, "b", "ip rule del pref 10")?;
    found?;
    Ok(vec![
        "another version",
        "no memlock",
        "a wrong job key",
        "a full /dev/shm",
        "a closed port",
        "a slow cable",
    ])
}

/// Crossed cables, a clock that is wrong, memory that cannot be read.
fn addresses(desk: &mut Desk<'_>) -> Result<Vec<&'static str>, String> {
    let clock =
        wrapped(desk, "late", &says("s/\"unix_us\":(\\d+)/\"\\\"unix_us\\\":\" . ($1 + 90_000_000)/e"))?;
    // A program that may not be read cannot be looked into, but by those who may look into all.
    let hidden = desk.net.folder.join("hidden-comity");
    copy(desk.comity.as_ref(), &hidden)?;
    Task::new("chmod").arg("0111").arg(&hidden).run()?;
    let drop = "setpriv --bounding-set=-sys_ptrace,-dac_override,-dac_read_search --inh-caps=-all";
    // The rights go with the first program that is started, and are looked at when the second is.
    let closed =
        wrapped(desk, "closed", &format!("exec {drop} sh -c 'exec {} \"$@\"' sh \"$@\"", hidden.display()))?;
    for (name, host, before) in [("a2", "a", clock.as_str()), ("b2", "b", &closed)] {
        desk.net.serve_as(&SshHost { name, host, port: 2202, before, users: "id.pub" })?;
    }
    desk.net.answer(&["a2", "b2"])?;
    let hosts = &desk.net.hosts;
    let swap = |x: &str, y: &str| {
        for line in [
            format!("addr del 10.93.0.2/30 dev {x}"),
            format!("addr del 10.93.0.9/30 dev {y}"),
            format!("addr add 10.93.0.2/30 dev {y}"),
            format!("addr add 10.93.0.9/30 dev {x}"),
        ] {
            hosts.ip("b", &line)?;
        }
        Ok::<(), String>(())
    };
    swap("ba", "bc")?;
    let found = desk.finds(
        &["--hosts", "a2,b2,c"],
        &[
            "FAILED     cable    a2 ab - b2 ba: the cable of a2 ab (10.93.0.1/30) ends in b2 ba (10.93.0.9/30), but 10.93.0.2/30 is b2 bc: the cables are crossed",
            "FAILED     clock    a2: its clock is 90.0 s ahead",
            "FAILED     ptrace   b2: a process cannot read the memory",
            " 4 failed",
        ],
    );
    swap("bc", "ba")?;
    found?;
    Ok(vec!["crossed cables", "a clock that is wrong", "no ptrace"])
}

/// A small MTU, a way in one direction only, an address that two hosts have.
fn ways(desk: &mut Desk<'_>) -> Result<Vec<&'static str>, String> {
    let hosts = &desk.net.hosts;
    hosts.ip("b", "link set bc mtu 1280")?;
    hosts.ip("c", "route add unreachable 10.93.0.5/32")?;
    hosts.ip("c", "addr add 10.93.0.2/32 dev ca")?;
    let found = desk.finds(
        &["--hosts", "a,b,c"],
        &[
            "FAILED     mtu      b bc -> c cb: ",
            "on b run: sudo ip link set dev bc mtu 1500",
            "FAILED     route    a ac -> c ca: one way only",
            "FAILED     route    c ca -> a ac: c has no way to 10.93.0.5",
            "FAILED     address  all hosts: 10.93.0.2 is an address of b (ba) and of c (ca)",
            " 5 failed",
        ],
    );
    hosts.ip("c", "addr del 10.93.0.2/32 dev ca")?;
    hosts.ip("c", "route del unreachable 10.93.0.5/32")?;
    hosts.ip("b", "link set bc mtu 1500")?;
    found?;
    Ok(vec!["a small MTU", "a one-way route", "a duplicate address"])
}

/// A host that does not let this user in, one without comity, and one where sudo wants a password is told before anything is done.
fn logins(desk: &mut Desk<'_>) -> Result<Vec<&'static str>, String> {
    desk.net.keygen("stranger")?;
    let folder = Path::new(&desk.comity).parent().ok_or("the program has no folder")?;
    let nothing = format!("mount -t tmpfs tmpfs {}", folder.display());
    for (name, host, before, users) in
        [("b4", "b", "", "stranger.pub"), ("c4", "c", nothing.as_str(), "id.pub")]
    {
        desk.net.serve_as(&SshHost { name, host, port: 2204, before, users })?;
    }
    desk.net.answer(&["c4"])?;
    desk.finds(
        &["--hosts", "a,b4,c4"],
        &[
            "FAILED     ssh      b4: it does not let this user in without a password: `ssh-copy-id` to it",
            "FAILED     version  c4: comity is not installed there",
            " 2 failed",
        ],
    )?;
    let undo = desk.path("never.json");
    let said = desk.run(&["cluster", "config"], &["--hosts", "a,b4", "--auto-setup", "--undo", &undo]);
    fails(said, &["exit status: 1", "ssh-copy-id"])?;
    match Path::new(&undo).exists() {
        true => Err("it wrote an undo file of nothing".into()),
        false => Ok(vec!["a wrong ssh key"]),
    }
}
