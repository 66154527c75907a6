//! `comity cluster config --over rdma`: the hosts' `/sys/class/infiniband` is written as Linux has it, with a device on each end of each cable; a job
//! then runs over a software device of each of these names, at the addresses of the cables.
use super::Desk;
use crate::{
    softverbs,
    test::{
        jobs::{fails, has},
        sshd::SshHost,
    },
};
use tasks::place::{make, read, write};

/// By host: each end of a cable, and the address that the plan gave it.
const ENDS: [(&str, [(&str, &str); 2]); 3] = [
    ("a", [("ab", "10.93.0.1"), ("ac", "10.93.0.5")]),
    ("b", [("ba", "10.93.0.2"), ("bc", "10.93.0.9")]),
    ("c", [("ca", "10.93.0.6"), ("cb", "10.93.0.10")]),
];

/// The cables have addresses.
pub(super) fn runs(desk: &mut Desk<'_>) -> Result<(), String> {
    for (number, (host, ends)) in ENDS.into_iter().enumerate() {
        let tree = desk.path(&format!("class-{host}"));
        for (nic, _) in ends {
            let device = format!("{tree}/infiniband/r{nic}");
            for folder in ["ports/1".into(), format!("device/net/{nic}")] {
                make(format!("{device}/{folder}").as_ref())?;
            }
            write(format!("{device}/ports/1/state"), "4: ACTIVE\n")?;
        }
        make(format!("{tree}/net").as_ref())?;
        let before = format!("mount --bind /sys/class/net {tree}/net\nmount --rbind {tree} /sys/class");
        let name = format!("{host}r");
        let port = 2211 + number as u16;
        desk.net.serve_as(&SshHost { name: &name, host, port, before: &before, users: "id.pub" })?;
    }
    desk.net.answer(&["ar", "br", "cr"])?;
    let out = desk.path("rdma.json");
    let words = ["--hosts", "ar,br,cr", "--over", "rdma", "--output", &out];
    let said = desk.run(&["cluster", "config"], &words)?;
    has(&said, &["a mesh, backend jaccl"])?;
    has(&read(&out)?, &["\"backend\": \"jaccl\"", "\"rab\"", "\"rcb\""])?;
    // Where root may not raise the limit of locked memory, that is all that it finds.
    let said = desk.run(&["doctor"], &[&out]).unwrap_or_else(|said| said);
    has(&said, &["passed     rdma", "passed     cable"])?;
    if let Some(other) = said.lines().find(|l| l.starts_with("FAILED") && !l.contains("memlock")) {
        return Err(format!("the doctor found {other}"));
    }
    let library = desk.net.folder.join("verbs");
    softverbs::lay_out_built(&library)?;
    let verbs = format!("COMITY_VERBS={}", library.join("libibverbs.so.1").display());
    let devices: Vec<_> =
        ENDS.iter().flat_map(|(_, ends)| ends).map(|(nic, at)| format!("r{nic}={at}")).collect();
    let devices = format!("SOFTVERBS_DEVICES={}", devices.join(","));
    let job = ["--hostfile", &out, "--env", &verbs, "--env", &devices, "--", &desk.comity];
    let check = ["check", "--quick", "--ops", "all_reduce,all_gather"];
    has(&desk.run(&["launch"], &[&job[..], &check].concat())?, &["cases on each rank", "links rdma"])?;
    // One end is down: it is said before anything runs.
    write(desk.path("class-c/infiniband/rcb/ports/1/state"), "1: DOWN\n")?;
    let said = desk.run(&["cluster", "config"], &["--hosts", "ar,br,cr", "--over", "rdma"]);
    fails(said, &["RDMA cannot go from br to cr", "active RDMA device at both ends"])?;
    desk.finds(&["--hosts", "ar,br,cr"], &["rdma", "rcb"])
}
