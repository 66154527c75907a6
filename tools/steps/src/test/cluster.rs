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

use super::{
    jobs::{comity, fails, has, lacks, script, timed},
    scope::Scope,
    sshd::{End, SWITCH, SshNet as Desk},
    step::Outcome,
};
use crate::softverbs;
use std::path::Path;
use tasks::{
    child::Task,
    place::{Scratch, copy, program, read, write},
};

/// Seconds for one command, with room for a busy machine.
const LIMIT: u64 = 300;
const PORTS: &str = "7100-7107";
const CABLES: [[End; 2]; 3] = [
    [("a", "ab", ""), ("b", "ba", "")],
    [("b", "bc", ""), ("c", "cb", "")],
    [("c", "ca", ""), ("a", "ac", "")],
];

pub(super) fn check(scope: &Scope) -> Outcome {
    let scratch = Scratch::new("cluster")?;
    let mut desk = Desk::new("cluster", &scratch, &SWITCH)?;
    CABLES.into_iter().try_for_each(|ends| desk.cable(ends))?;
    if scope.deep {
        timed("a user who cannot run sudo", || lacks_sudo(&mut desk))?;
    }
    timed("config, doctor and a job", || configures(&mut desk))?;
    timed("hosts that announce themselves", || hears(&desk))?;
    if scope.deep {
        timed("config over RDMA, doctor and a job", || over_rdma(&mut desk))?;
    }
    let groups = scope.share(GROUPS.to_vec(), 4);
    groups.iter().try_for_each(|(name, plant)| timed(&format!("faults {name}"), || plant(&mut desk)))?;
    timed("undo", || undoes(&desk))?;
    Ok(format!("found, set up, ran and undid 3 hosts; {} of 4 groups of planted faults found", groups.len()))
}

impl Desk<'_> {
    /// Run comity at the desk, with the words of this line.
    fn run(&self, line: &str) -> Result<String, String> {
        timed(&format!("  comity {line}"), || {
            self.desk(&[&comity()]).args(line.split_whitespace()).limit(LIMIT).run()
        })
    }

    /// The same, where it is to end with 1 and to say this.
    fn finds(&self, line: &str, words: &[&str]) -> Result<(), String> {
        fails(self.run(line), &[&["exit status: 1"], words].concat()).map(drop)
    }

    /// The same while something is done to hosts: each time a line, and the one that takes it back.
    fn finds_while(&self, lines: &[[&str; 3]], line: &str, words: &[&str]) -> Result<(), String> {
        let run = |host: &str, line: &str| {
            self.hosts.within(host).args(line.split_whitespace()).limit(20).run().map(drop)
        };
        lines.iter().try_for_each(|[host, plant, _]| run(host, plant))?;
        let found = self.finds(line, words);
        lines.iter().rev().try_for_each(|[host, _, mend]| run(host, mend))?;
        found
    }

    /// `cluster config --auto-setup` of these hosts fails with these words and leaves nothing to be undone.
    fn refuses(&self, hosts: &str, words: &[&str]) -> Result<(), String> {
        let undo = self.folder.text("never.json");
        self.finds(&format!("cluster config --hosts {hosts} --auto-setup --undo {undo}"), words)?;
        if Path::new(&undo).exists() { Err("an undo file of nothing is left".into()) } else { Ok(()) }
    }

    /// The cables have no addresses.
    fn is_bare(&self) -> Result<(), String> {
        let addresses = |host| self.hosts.within(host).args(["ip", "addr"]).run();
        self.names().try_for_each(|host| lacks(&addresses(host)?, "10.93."))
    }
}

fn configures(desk: &mut Desk<'_>) -> Result<(), String> {
    let [out, undo, svg] = ["cluster.json", "undo.json", "cluster.svg"].map(|file| desk.folder.text(file));
    // A cable that was plugged in just now: its ends have no address to tell it from for up to 2 s.
    for (host, nic) in [("c", "ca"), ("a", "ac")] {
        desk.hosts.ip(host, &format!("link set {nic} down"))?;
        desk.hosts.ip(host, &format!("link set {nic} up"))?;
    }
    // Without --auto-setup the commands are told, and nothing changes.
    let told = desk.run("cluster config --hosts a,b,c --over ethernet")?;
    let words = ["3 of 3 cables have no addresses", "sudo ip addr add 10.93.0.1/30 dev ab", "\"ssh\": \"c\""];
    has(&told, &words)?;
    fails_halfway(desk)?;
    let all = format!("cluster config --hosts a,b,c --auto-setup --undo {undo} --output {out} --svg {svg}");
    has(&desk.run(&all)?, &["●", "b ba", "3 hosts, a mesh, backend ring", "6 commands were run"])?;
    has(&read(&svg)?, &["<svg", "</svg>"])?;
    has(&read(&out)?, &["\"COMITY_INTERFACES\": \"=ab,ac\"", "10.93.0."])?;
    let written = read(&undo)?;
    has(&desk.run(&all)?, &["every cable has its addresses already: no command was run"])?;
    has(&read(&undo)?, &[&written])?;
    let said = desk.run(&format!("doctor {out} --ports {PORTS}"))?;
    has(&said, &["passed     cable    a ab - b ba", " 0 failed", "there and back"])?;
    let comity = comity();
    let job = format!("launch --hostfile {out} -- {comity} bench all_reduce --sizes 64K --budget 0.3");
    has(&desk.run(&job)?, &["3 ranks on 3 hosts (a, b, c), links tcp", "[0@"])
}

/// The user of one host cannot become root: nothing is done on any.
fn lacks_sudo(desk: &mut Desk<'_>) -> Result<(), String> {
    let id = script(&desk.folder.join("user-id"), "#!/bin/sh\necho 501\n")?;
    let before = format!(
        "mount --bind {id} $(command -v id)\nfor s in $(command -v sudo || true); do mount --bind $(command -v false) $s; done"
    );
    desk.serve(&[("c8", "c", &before)])?;
    desk.refuses("a,b,c8", &["host c8: its user cannot run sudo without a password", "NOPASSWD"])?;
    desk.is_bare()
}

/// A command that fails on the last host: those before it are undone, on all hosts.
fn fails_halfway(desk: &mut Desk<'_>) -> Result<(), String> {
    let real = program("ip").ok_or("there is no ip")?;
    let kept = desk.folder.join("real-ip");
    copy(&real, &kept)?;
    let failing = format!(
        "#!/bin/sh\ncase \"$*\" in *'dev cb') echo 'not today' >&2; exit 2;; esac\nexec {} \"$@\"\n",
        kept.display()
    );
    let failing = script(&desk.folder.join("failing-ip"), &failing)?;
    let before = format!("mount --bind {failing} {}", real.display());
    desk.serve(&[("c9", "c", &before)])?;
    desk.refuses(
        "a,b,c9",
        &["not today", "the 5 commands before it were undone: all hosts are as they were"],
    )?;
    desk.is_bare()
}

/// Two of the hosts announce themselves, and the desk finds those over the switch.
fn hears(desk: &Desk<'_>) -> Result<(), String> {
    let announce = |host: &str| {
        let task = desk.hosts.within(host).args([&comity()]);
        task.args(["cluster", "announce", "--name", host, "--for", "40"]).limit(LIMIT).start()
    };
    let announced = [announce("a")?, announce("b")?];
    let found = desk.run("cluster find --announced --json")?;
    drop(announced);
    let hosts = ["heard a (comity ", "heard b (comity ", "\"ssh\": \"10.78.0.2\"", "\"ssh\": \"10.78.0.3\""];
    has(&found, &hosts)?;
    lacks(&found, "heard c")
}

/// By host: each end of a cable, and the address that the plan gave it.
const ENDS: [(&str, [(&str, &str); 2]); 3] = [
    ("a", [("ab", "10.93.0.1"), ("ac", "10.93.0.5")]),
    ("b", [("ba", "10.93.0.2"), ("bc", "10.93.0.9")]),
    ("c", [("ca", "10.93.0.6"), ("cb", "10.93.0.10")]),
];

/// `comity cluster config --over rdma`: the hosts' `/sys/class/infiniband` is written as Linux has it, with a device on each end of each cable; a
/// job then runs over a software device of each of these names, at the addresses that the cables have.
fn over_rdma(desk: &mut Desk<'_>) -> Result<(), String> {
    for (host, ends) in ENDS {
        let tree = desk.folder.text(&format!("class-{host}"));
        let device = |(nic, _): (&str, &str)| {
            let at = format!("{tree}/infiniband/r{nic}");
            format!("mkdir -p {at}/ports/1 {at}/device/net/{nic}\necho '4: ACTIVE' > {at}/ports/1/state\n")
        };
        let devices = ends.map(device).concat();
        let before = format!(
            "{devices}mkdir {tree}/net\nmount --bind /sys/class/net {tree}/net\nmount --rbind {tree} /sys/class"
        );
        desk.serve(&[(&format!("{host}r"), host, &before)])?;
    }
    let out = desk.folder.text("rdma.json");
    let config = format!("cluster config --hosts ar,br,cr --over rdma --output {out}");
    has(&desk.run(&config)?, &["a mesh, backend jaccl"])?;
    has(&read(&out)?, &["\"backend\": \"jaccl\"", "\"rab\"", "\"rcb\""])?;
    // Where root may not raise the limit of locked memory, that is all that it finds.
    let said = desk.run(&format!("doctor {out}")).unwrap_or_else(|said| said);
    has(&said, &["passed     rdma", "passed     cable"])?;
    if let Some(other) = said.lines().find(|l| l.starts_with("FAILED") && !l.contains("memlock")) {
        return Err(format!("the doctor found {other}"));
    }
    let library = desk.folder.text("verbs");
    softverbs::lay_out_built(library.as_ref())?;
    let devices: Vec<_> =
        ENDS.iter().flat_map(|(_, ends)| ends).map(|(nic, at)| format!("r{nic}={at}")).collect();
    let job = format!(
        "launch --hostfile {out} --env COMITY_VERBS={library}/libibverbs.so.1 --env SOFTVERBS_DEVICES={} \
         -- {} check --quick --ops all_reduce,all_gather",
        devices.join(","),
        comity()
    );
    has(&desk.run(&job)?, &["cases on each rank", "links rdma"])?;
    // One end is down: it is said before anything runs.
    write(desk.folder.text("class-c/infiniband/rcb/ports/1/state"), "1: DOWN\n")?;
    fails(desk.run(&config), &["RDMA cannot go from br to cr", "active RDMA device at both ends"])?;
    desk.finds("doctor --hosts ar,br,cr", &["rdma", "rcb"])
}

fn undoes(desk: &Desk<'_>) -> Result<(), String> {
    let undo = format!("cluster undo {}", desk.folder.text("undo.json"));
    let hosts = &desk.hosts;
    hosts.ip("b", "addr del 10.93.0.2/30 dev ba")?;
    hosts.ip("b", "addr add 10.93.0.2/24 dev ba")?;
    fails(desk.run(&undo), &["exit status: 2", "ba has 10.93.0.2/24", "nothing was undone"])?;
    hosts.ip("b", "addr del 10.93.0.2/24 dev ba")?;
    has(&desk.run(&undo)?, &["host b: undone already: ip addr add 10.93.0.2/30 dev ba"])?;
    desk.is_bare()
}

/// Plants faults that can be planted together, has them found, and takes them away.
type Plant = fn(&mut Desk<'_>) -> Result<(), String>;

const GROUPS: [(&str, Plant); 4] =
    [("of hosts", hosts), ("of addresses", addresses), ("of ways", ways), ("of logins", logins)];

/// A script that stands before the program on one host. It is told the program's own path, which is a link to it.
fn wrapped(desk: &Desk<'_>, name: &str, lines: &str) -> Result<String, String> {
    let real = desk.folder.join("real-comity");
    if !real.exists() {
        copy(comity().as_ref(), &real)?;
    }
    let text = format!("#!/bin/sh\nreal={}\n{lines}\n", real.display());
    let path = script(&desk.folder.join(name), &text)?;
    Ok(format!("mount --bind {path} {}", comity()))
}

/// Other words in what the agent says.
fn says(change: &str) -> String {
    format!("\"$real\" \"$@\" | perl -pe 'BEGIN {{ $| = 1 }} {change}'")
}

/// No memory to lock, a full /dev/shm, another version, another key; a closed port, a slow cable.
fn hosts(desk: &mut Desk<'_>) -> Result<(), String> {
    let version = wrapped(desk, "older", &says("s/\"version\":\"[^\"]*\"/\"version\":\"0.0.9\"/"))?;
    let key = desk.folder.text("job.key");
    for file in ["job.key", "other.key"] {
        Task::new(comity()).args(["key", "new"]).args([desk.folder.text(file)]).run()?;
    }
    let poor = format!("ulimit -l 16\nmount --bind {} {key}", desk.folder.text("other.key"));
    let full = "mount -t tmpfs -o size=1m tmpfs /dev/shm\ndd if=/dev/zero of=/dev/shm/full bs=1k count=1000 2>/dev/null";
    desk.serve(&[("a1", "a", &version), ("b1", "b", &poor), ("c1", "c", full)])?;
    desk.finds_while(
        &[
            ["b", "ip rule add pref 100 lookup local", "ip rule del pref 100"],
            ["b", "ip rule del pref 0", "ip rule add pref 0 lookup local"],
            [
                "b",
                "ip rule add pref 10 iif eth0 ipproto tcp dport 7100-7107 blackhole",
                "ip rule del pref 10",
            ],
            [
                "a",
                "tc qdisc add dev ab root tbf rate 100mbit burst 64kb latency 50ms",
                "tc qdisc del dev ab root",
            ],
        ],
        &format!("doctor --hosts a1,b1,c1 --ports {PORTS} --key {key}"),
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
    )
}

/// Crossed cables, a clock that is wrong, memory that cannot be read.
fn addresses(desk: &mut Desk<'_>) -> Result<(), String> {
    let clock =
        wrapped(desk, "late", &says("s/\"unix_us\":(\\d+)/\"\\\"unix_us\\\":\" . ($1 + 90_000_000)/e"))?;
    // A program that may not be read cannot be looked into, but by those who may look into all.
    let hidden = desk.folder.join("hidden-comity");
    copy(comity().as_ref(), &hidden)?;
    Task::new("chmod").arg("0111").arg(&hidden).run()?;
    let drop = "setpriv --bounding-set=-sys_ptrace,-dac_override,-dac_read_search --inh-caps=-all";
    // The rights go with the first program that is started, and are looked at when the second is.
    let closed =
        wrapped(desk, "closed", &format!("exec {drop} sh -c 'exec {} \"$@\"' sh \"$@\"", hidden.display()))?;
    desk.serve(&[("a2", "a", &clock), ("b2", "b", &closed)])?;
    desk.finds_while(
        &[
            ["b", "ip addr del 10.93.0.2/30 dev ba", "ip addr add 10.93.0.2/30 dev ba"],
            ["b", "ip addr del 10.93.0.9/30 dev bc", "ip addr add 10.93.0.9/30 dev bc"],
            ["b", "ip addr add 10.93.0.2/30 dev bc", "ip addr del 10.93.0.2/30 dev bc"],
            ["b", "ip addr add 10.93.0.9/30 dev ba", "ip addr del 10.93.0.9/30 dev ba"],
        ],
        "doctor --hosts a2,b2,c",
        &[
            "FAILED     cable    a2 ab - b2 ba: the cable of a2 ab (10.93.0.1/30) ends in b2 ba (10.93.0.9/30), but 10.93.0.2/30 is b2 bc: the cables are crossed",
            "FAILED     clock    a2: its clock is 90.0 s ahead",
            "FAILED     ptrace   b2: a process cannot read the memory",
            " 4 failed",
        ],
    )
}

/// A small MTU, a way in one direction only, an address that two hosts have.
fn ways(desk: &mut Desk<'_>) -> Result<(), String> {
    desk.finds_while(
        &[
            ["b", "ip link set bc mtu 1280", "ip link set bc mtu 1500"],
            ["c", "ip route add unreachable 10.93.0.5/32", "ip route del unreachable 10.93.0.5/32"],
            ["c", "ip addr add 10.93.0.2/32 dev ca", "ip addr del 10.93.0.2/32 dev ca"],
        ],
        "doctor --hosts a,b,c",
        &[
            "FAILED     mtu      b bc -> c cb: ",
            "on b run: sudo ip link set dev bc mtu 1500",
            "FAILED     route    a ac -> c ca: one way only",
            "FAILED     route    c ca -> a ac: c has no way to 10.93.0.5",
            "FAILED     address  all hosts: 10.93.0.2 is an address of b (ba) and of c (ca)",
            " 5 failed",
        ],
    )
}

/// A host that does not let this user in, one without comity, and one where sudo wants a password is told before anything is done.
fn logins(desk: &mut Desk<'_>) -> Result<(), String> {
    desk.keygen("stranger")?;
    let nothing = format!("mount -t tmpfs tmpfs $(dirname {})", comity());
    let [known, other] = ["id.pub", "stranger.pub"].map(|file| desk.folder.text(file));
    desk.serve_one("b4", "b", &format!("mount --bind {other} {known}"))?;
    desk.serve(&[("c4", "c", &nothing)])?;
    desk.finds(
        "doctor --hosts a,b4,c4",
        &[
            "FAILED     ssh      b4: it does not let this user in without a password: `ssh-copy-id` to it",
            "FAILED     version  c4: comity is not installed there",
            " 2 failed",
        ],
    )?;
    desk.refuses("a,b4", &["ssh-copy-id"])
}
