//! Cases in the guest: rdma-core's own programs, then Comity over RC and UC; and things that the kernel of the host may lack: Yama, and
//! a slow cable that loses packets.

use super::Case;

const CABLE: &str = "cable left 10.0.1.1 11 right 10.0.1.2 12\n";

pub(super) fn all() -> Vec<Case> {
    let mut cases = programs();
    cases.extend(switched());
    cases.extend(cabled());
    cases.extend(broken());
    cases.push(pulled());
    cases
}

fn case(name: &str, script: String, limit: u64, words: &'static [&'static str]) -> Case {
    Case { name: name.into(), script, limit, words }
}

/// Packets of both ends of the cable are lost.
fn lossy(share: &str) -> String {
    ["left", "right"].map(|end| format!("tc qdisc add dev {end} root netem loss {share}\n")).concat()
}

/// Command that fails unless packets were lost.
const LOST: &str = "tc -s qdisc\ntc -s qdisc | grep -q 'dropped [1-9]'";

/// rdma-core's own programs, which show that the devices and cables of this guest are sound.
fn programs() -> Vec<Case> {
    let exchange = |kind: &str| {
        let script = format!(
            "{CABLE}timeout 60 /programs/ibv_{kind}_pingpong -d rdma_left -g 1 -n 200 -c > /tmp/{kind} &
tries=0
# The server is not listening at once, and only its client may try.
until timeout 60 /programs/ibv_{kind}_pingpong -d rdma_right -g 1 -n 200 -c 127.0.0.1 > /tmp/client 2>&1; do
    tries=$((tries + 1))
    if [ $tries -gt 20 ] || ! grep -q 'connect' /tmp/client; then cat /tmp/client; exit 1; fi
    sleep 1
done
wait
cat /tmp/client /tmp/{kind}
"
        );
        case(&format!("ibv_{kind}_pingpong"), script, 60, &["200 iters in"])
    };
    vec![
        case(
            "the devices of a cable",
            format!("{CABLE}ibv_devices\nibv_devinfo -v"),
            30,
            &["rdma_left", "rdma_right", "PORT_ACTIVE (4)", "::ffff:10.0.1.2"],
        ),
        case(
            "every case that the software device is tested with",
            format!("{CABLE}conform rdma_left rdma_right"),
            60,
            &[],
        ),
        exchange("rc"),
        exchange("uc"),
    ]
}

/// The device matrix of a job, in the form of MLX's: what leads from one rank to another.
fn matrix(ranks: usize, name: impl Fn(usize, usize) -> Option<String>) -> String {
    let cell = |i, j| name(i, j).filter(|_| i != j).map_or_else(|| "null".into(), |n| format!("\"{n}\""));
    let row = |i| format!("[{}]", (0..ranks).map(|j| cell(i, j)).collect::<Vec<_>>().join(", "));
    format!("[{}]", (0..ranks).map(row).collect::<Vec<_>>().join(", "))
}

/// All operations. All types too would take an emulated processor a minute: they run over the software device.
const ALL: &str = "--quick --dtypes bf16";
/// Seconds for a job, which takes a tenth of them on a machine that is not crowded.
const JOB: u64 = 250;
/// Operations that need every pair, and one type, for the sake of time.
const SOME: &str = "--quick --ops all_reduce,all_to_all,send,split --dtypes bf16";

/// Links of a job: RDMA and nothing else, so that no pair of ranks falls back in silence.
const RDMA: &str = "COMITY_LINKS=rdma";
/// RDMA, and what there is for pairs without a cable.
const ANY: &str = "";

fn check(ranks: usize, links: &str, matrix: &str, service: &str, args: &str) -> String {
    format!(
        "{links} COMITY_DEVICES='{matrix}' COMITY_RDMA={service} timeout {} comity launch -n {ranks} -- comity check --backend jaccl {args}\n",
        JOB - 10
    )
}

/// Every rank with one device, all on a switch.
fn switched() -> Vec<Case> {
    let ranks = |n: usize, service: &'static str| {
        let devices = matrix(n, |i, _| Some(format!("rdma_p{i}")));
        case(
            &format!("{n} ranks over {service}"),
            format!("switch {n}\n{}", check(n, RDMA, &devices, service, if n == 2 { ALL } else { SOME })),
            JOB,
            &["links rdma,", "all ok"],
        )
    };
    [2, 3, 4].into_iter().flat_map(|n| ["rc", "uc"].map(|service| ranks(n, service))).collect()
}

/// Three ranks with a device for each cable, as Macs have them.
fn cabled() -> Vec<Case> {
    let cables = "cable ab 10.0.1.1 11 ba 10.0.1.2 12\ncable bc 10.0.2.1 21 cb 10.0.2.2 22\n";
    let third = "cable ac 10.0.3.1 31 ca 10.0.3.2 32\n";
    let letter = |rank| ["a", "b", "c"][rank];
    let name = |i, j| format!("rdma_{}{}", letter(i), letter(j));
    let mesh = matrix(3, |i, j| Some(name(i, j)));
    // No cable between the first and the last.
    let line = matrix(3, |i, j| (i + j != 2).then(|| name(i, j)));
    vec![
        case(
            "three ranks, a device for each cable",
            format!("{cables}{third}{}", check(3, RDMA, &mesh, "uc", SOME)),
            JOB,
            &["links rdma,", "all ok"],
        ),
        case(
            "a cable is missing",
            format!("{cables}{}", check(3, ANY, &line, "rc", SOME)),
            JOB,
            &["links rdma and", "all ok"],
        ),
    ]
}

/// Packets that are lost, ranks that are killed.
fn broken() -> Vec<Case> {
    let pair = matrix(2, |i, _| Some(["rdma_left", "rdma_right"][i].into()));
    let three = matrix(3, |i, _| Some(format!("rdma_p{i}")));
    // It would not end for minutes: all operations, types and sizes.
    let job = check(3, RDMA, &three, "rc", "");
    // The launcher gives the others a second to tell, which an emulated processor may not always do for one of them.
    let killed = format!(
        "switch 3
for try in 1 2 3; do
    ( {} ) > /tmp/job 2>&1 &
    until grep -q 'links rdma,' /tmp/job; do sleep 1; done
    sleep 1
    kill -9 $(grep -l COMITY_RANK=1 /proc/[0-9]*/environ | cut -d / -f 3)
    wait
    if grep -q 'comity check: rank ' /tmp/job; then break; fi
done
cat /tmp/job
! grep 'comity check: rank [02] ' /tmp/job",
        job.trim_end()
    );
    vec![
        case(
            "two ranks over rc with 1 % of the packets lost",
            format!("{CABLE}{}{}{LOST}", lossy("1%"), check(2, RDMA, &pair, "rc", SOME)),
            JOB,
            &["links rdma,", "all ok", "netem"],
        ),
        case(
            "a rank is killed",
            killed,
            JOB,
            // The other ranks say whose fault it was, the launcher how it ended.
            &["comity check: rank 1 ", "died", "killed by signal 9"],
        ),
    ]
}

/// Ranks of an ordinary user that read each other's memory, where the system lets them.
fn pulled() -> Case {
    let words = &[
        "scope 0, unasked, COMITY_TIMEOUT=60: read yes; long messages of exchanges and sends are read where they lie",
        "scope 1, unasked, COMITY_TIMEOUT=60: read no; long messages go through rings: Yama's ptrace_scope is 1",
        "scope 1, unasked, COMITY_PTRACER=ancestor: read yes; long messages of exchanges and sends are read where they lie, of ranks",
        "scope 0, COMITY_PTRACER=ancestor: read yes",
        "scope 1, COMITY_PTRACER=ancestor: read yes; Yama's ptrace_scope is 1",
        "scope 1, COMITY_PTRACER=keep: read no",
        "scope 2, COMITY_PTRACER=ancestor: read no; Yama's ptrace_scope is 2",
        "COMITY_PTRACER=ancestor: a stranger may read: no",
        "COMITY_PTRACER=any: a stranger may read: yes",
    ];
    case("memory that peers read, under Yama", include_str!("yama.sh").into(), JOB, words)
}

/// Two hosts far from each other, over TCP: many connections, right results, and nobody is taken for dead. An emulated processor has enough
/// to do with some operations, each of which waits for the cable many times.
pub(super) fn far() -> Case {
    let rank = |host: &str, rank: u32| {
        format!(
            "ip netns exec {host} env COMITY_RANK={rank} COMITY_SIZE=2 COMITY_HOST={host} MASTER_ADDR=10.0.1.1 MASTER_PORT=7400 \
    COMITY_KEY_FILE=/tmp/key COMITY_LINKS=tcp timeout {} comity check --quick --ops all_reduce,send --dtypes bf16 > /tmp/{host} 2>&1",
            JOB - 10
        )
    };
    let script = format!(
        "mkdir -p /run/netns /var
ln -sfn /run /var/run
( umask 077; dd if=/dev/urandom of=/tmp/key bs=32 count=1 2> /dev/null )
ip netns add a
ip netns add b
ip link add name left netns a type veth peer name right netns b
for end in 'a left 10.0.1.1' 'b right 10.0.1.2'; do
    set -- $end
    ip -n $1 addr add $3/24 dev $2
    ip -n $1 link set lo up
    ip -n $1 link set $2 up
    ip netns exec $1 tc qdisc add dev $2 root netem delay 50ms loss 1%
done
{} &
{}
code=$?
wait $! || code=1
cat /tmp/a /tmp/b
ip netns exec a tc -s qdisc show dev left
ip netns exec a tc -s qdisc show dev left | grep -q 'dropped [1-9]' || code=1
! grep -E 'fell silent|nothing is heard|died|given up' /tmp/a /tmp/b || code=1
ip netns del a
ip netns del b
exit $code",
        rank("a", 0),
        rank("b", 1)
    );
    case(
        "two hosts, 50 ms and 1 % of the packets lost each way",
        script,
        JOB,
        &["links tcp over 15 connections", "all ok", "qdisc netem", "delay 50ms loss 1%"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_have_holes_where_nothing_leads() {
        let text = matrix(3, |i, j| (i + j != 2).then(|| format!("d{i}{j}")));
        assert_eq!(text, r#"[[null, "d01", null], ["d10", null, "d12"], [null, "d21", null]]"#);
    }
}
