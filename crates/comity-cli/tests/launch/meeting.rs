//! Place where the ranks of `--hosts` meet: the port that the user wants, and the place where torch's rank 0 is found.
use super::harness::*;
use super::hosts::Hosts;
use std::net::{Ipv4Addr, TcpListener};

const SAY: [&str; 4] = ["--", "sh", "-c", "echo $COMITY_STORE $MASTER_ADDR $MASTER_PORT"];

/// The rank's line: the store, and the place of torch's rank 0.
fn said(done: &Ended) -> Vec<[String; 3]> {
    let words = |line: &str| -> Vec<String> { line.split(' ').skip(1).map(str::to_owned).collect() };
    done.sorted().iter().map(|line| words(line).try_into().unwrap()).collect()
}

#[test]
fn the_port_is_that_of_bind_or_of_comity_ports() {
    let hosts = Hosts::new();
    let one = free_port();
    let expected = format!("127.0.0.1:{one}");
    for bind in [format!("127.0.0.1:{one}"), format!(":{one}")] {
        let done = hosts.run(&[&["--hosts", "a,b", "--meet-at", &bind][..], &SAY].concat()).ends(0);
        assert!(said(&done).iter().all(|[store, ..]| *store == expected), "{bind}: {:?}", said(&done));
    }
    let range = format!("{one}-{}", one.saturating_add(9));
    let with = |words: &[&str], shell: Option<&str>| {
        let words = [&["--hosts", "a,b"], words, &SAY].concat();
        hosts.start_with(&words, |c| c.envs(shell.map(|ports| ("COMITY_PORTS", ports)))).finish()
    };
    let set = format!("COMITY_PORTS={range}");
    for done in [with(&["--env", &set], None), with(&[], Some(&range))] {
        let done = done.ends(0);
        let met: u16 = said(&done)[0][0].rsplit(':').next().unwrap().parse().unwrap();
        assert!((one..=one.saturating_add(9)).contains(&met), "{:?}", said(&done));
    }
    // Somebody has it.
    let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let done = hosts.run(&[&["--hosts", "a", "--meet-at", &taken][..], &SAY].concat()).ends(2);
    done.says(&[&taken, "--meet-at"]);
    with(&[], Some("7100-x")).ends(2).says(&["COMITY_PORTS=7100-x: no range"]);
}

#[test]
fn each_host_has_a_place_of_its_own_for_torch() {
    let hosts = Hosts::new();
    let done = hosts.run(&[&["--hosts", "a:2,b"][..], &SAY].concat()).ends(0);
    let said = said(&done);
    assert!(said.iter().all(|[_, host, _]| host == "127.0.0.1"), "{said:?}");
    let ports: Vec<&str> = said.iter().map(|[.., port]| port.as_str()).collect();
    assert!(ports[0] == ports[1] && ports[1] != ports[2], "{ports:?}");
    let own = ["--hosts", "a,b", "--env", "MASTER_ADDR=10.0.0.1", "--env", "MASTER_PORT=7"];
    let done = hosts.run(&[&own[..], &SAY].concat());
    assert!(done.out.matches(" 10.0.0.1 7").count() == 2, "{}", done.out);
}
