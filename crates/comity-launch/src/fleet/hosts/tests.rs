//! Files of MLX, Open MPI and MPICH, what editors make of them, and every problem with line and key.

use super::*;

#[test]
fn a_mark_before_the_text_is_no_part_of_a_name() {
    for text in ["\u{feff}a\nb\n", "\u{feff}[\"a\", \"b\"]"] {
        let names: Vec<_> = parse(text).unwrap().hosts.into_iter().map(|h| h.name).collect();
        assert_eq!(names, ["a", "b"], "{text:?}");
    }
}

#[test]
fn an_address_in_brackets_begins_no_json() {
    for text in ["[::1]:2\n", " [fd00::3:2]\tslots=2\n", "[fe80::1%eth0] slots=2"] {
        let hosts = parse(text).unwrap().hosts;
        assert!(hosts.len() == 1 && hosts[0].slots == Some(2), "{text:?}: {hosts:?}");
    }
    assert!(parse("[]").unwrap_err()[0].contains("names no host"));
    assert!(parse("[::1").unwrap_err()[0].contains("no JSON"));
}

#[test]
fn mlx_files_in_both_forms() {
    let object = parse(
        r#"{"backend": "jaccl", "envs": ["A=b=c"], "hosts": [
            {"ssh": "h1", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en2"]},
            {"ssh": "u@h2", "ips": [], "rdma": [["x", "y"], null], "slots": 2, "port": 2222, "env": {"B": "1"}}]}"#,
    )
    .unwrap();
    assert_eq!((object.backend, object.env.len(), object.hosts.len()), (AskedBackend::named("jaccl"), 1, 2));
    assert_eq!(object.hosts[0].ips.len() + object.hosts[1].ips.len(), 1);
    assert_eq!((object.hosts[1].slots, object.hosts[1].port), (Some(2), Some(2222)));
    assert_eq!(object.hosts[1].env, [("B".into(), "1".into())]);
    let list = parse(r#"[{"ssh": "h1", "ips": []}, "h2"]"#).unwrap();
    assert_eq!(list.hosts.iter().map(|h| h.name.as_str()).collect::<Vec<_>>(), ["h1", "h2"]);
}

#[test]
fn open_mpi_and_mpich_files() {
    let file = parse("# all\na slots=4 max_slots=8\nb:2\n\nc user=me port=22 # last\n").unwrap();
    let short: Vec<_> = file.hosts.iter().map(|h| (h.name.as_str(), h.slots, h.port)).collect();
    assert_eq!(short, [("a", Some(4), None), ("b", Some(2), None), ("me@c", None, Some(22))]);
}

#[test]
fn every_problem_is_told_with_line_and_key() {
    let wrong = parse(
        "{\"hosts\": [\n{\"ssh\": \"-oProxyCommand=x\", \"port\": 0, \"devices\": {}},\n{\"ips\": []},\n{\"ssh\": \"a\", \"slots\": 0, \"ips\": [\"x\"],\n\"rdma\": [null]},\n7, {\"ssh\": \"b\", \"rdma\": [null, null, null, null, \"rdma_en1\"]}], \"envs\": [\"A\"],\n\"backends\": \"ring\", \"backend\": \"rings\"}",
    )
    .unwrap_err();
    let all = wrong.join("\n");
    for part in [
        "line 2: ssh: host \"-oProxyCommand=x\": a host's name does not begin with '-'",
        "line 2: port: is no port",
        "line 2: devices: is no list of devices",
        "line 3: ssh: is missing",
        "line 4: slots: \"0\" is no number of ranks",
        "line 4: ips: \"x\" is no IP address",
        "line 5: rdma: has 1 entries, but there are 5 hosts",
        "line 6: rdma: entry 4 is of this host itself",
        "line 6: hosts: entry 3 is neither",
        "line 6: envs: \"A\" is not \"KEY=VALUE\"",
        "line 7: backends: is not known",
        "line 7: backend: \"rings\" is not known; known are any, mpi, nccl, jaccl, ring, jaccl-ring",
    ] {
        assert!(all.contains(part), "{part} in\n{all}");
    }
    let all = parse("a slots=none\na slots=2\nb,c\n-x user=me port=0\nd what\n").unwrap_err().join("\n");
    for part in
        ["line 1: slots", "line 3: one host", "line 4: host \"-x\"", "line 4: port", "line 5: \"what\""]
    {
        assert!(all.contains(part), "{part} in\n{all}");
    }
    for (text, part) in [
        ("", "names no host"),
        ("{}", "has no key hosts"),
        ("[", "is no JSON"),
        (r#"[["10.0.0.1:5000"]]"#, "MLX_HOSTFILE"),
        ("[]", "names no host"),
    ] {
        assert!(parse(text).unwrap_err().join("\n").contains(part), "{text}");
    }
}

#[test]
fn a_large_file_is_refused_unread() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![b'a'; 10 << 20]).unwrap();
    assert!(read(file.path()).unwrap_err()[0].contains("larger than 1048576 bytes"));
    assert!(read(Path::new("/nowhere/hosts")).unwrap_err()[0].contains("/nowhere/hosts"));
}

#[test]
fn hosts_have_users_and_counts() {
    let hosts = list("a,b:4,user@c, 10.0.0.7:2,fd00::1,[fd00::2]:3").unwrap();
    let short: Vec<_> = hosts.iter().map(|h| (h.name.as_str(), h.slots, h.ips.len())).collect();
    let wanted = [("a", None, 0), ("b", Some(4), 0), ("user@c", None, 0)];
    assert_eq!(short[..3], wanted);
    assert_eq!(short[3..], [("10.0.0.7", Some(2), 1), ("fd00::1", None, 1), ("fd00::2", Some(3), 1)]);
    assert!(list("localhost").unwrap()[0].is_here() && !hosts[0].is_here());
}

#[test]
fn an_address_that_may_end_with_a_count_is_asked_about() {
    let why = list("fd00::3:2").unwrap_err();
    assert!(why[0].contains("write [fd00::3:2] or [fd00::3]:2"), "{why:?}");
    let hosts = list("[fd00::3:2],[fd00::4]:2,fd00::5,fd00::3:a2,me@fd00::7").unwrap();
    let short: Vec<_> = hosts.iter().map(|h| (h.name.as_str(), h.slots)).collect();
    let all = ["fd00::3:2", "fd00::4", "fd00::5", "fd00::3:a2", "me@fd00::7"];
    assert_eq!(short, all.map(|n| (n, (n == "fd00::4").then_some(2))));
    assert!(list("me@fd00::3:2").is_err());
}

#[test]
fn a_file_may_name_a_host_for_each_rank() {
    let named = |names: &[&str]| names.iter().map(|n| FleetHost::named(n).unwrap()).collect::<Vec<_>>();
    let short =
        |hosts: Vec<FleetHost>| -> Vec<_> { merged(hosts).into_iter().map(|h| (h.name, h.slots)).collect() };
    let a = |n| ("a".to_owned(), n);
    let b = |n| ("b".to_owned(), n);
    assert_eq!(short(named(&["a", "a", "b"])), [a(Some(2)), b(None)]);
    assert_eq!(short(named(&["a", "b", "a"])), [a(Some(1)), b(None), a(Some(1))]);
    let mut other = named(&["a", "a"]);
    other[1].env = vec![("A".into(), "1".into())];
    assert_eq!(short(other), [a(Some(1)), a(Some(1))]);
}

#[test]
fn every_problem_is_told_and_no_name_is_an_option() {
    let wrong = list("-oProxyCommand=touch x,u@-l,b:0,c:many,,d,d,e;ls,f$(x)").unwrap_err();
    for (at, part) in
        [(0, "begin with '-'"), (1, "begin with '-'"), (2, "1 to 4096"), (3, "many"), (4, "empty")]
    {
        assert!(wrong[at].contains(part), "{wrong:?}");
    }
    assert!(wrong[5].contains("e;ls") && wrong[6].contains("f$(x)"), "{wrong:?}");
    assert!(wrong[7].contains("\"d\" is named twice; write d:2"), "{wrong:?}");
    assert_eq!(wrong.len(), 8);
}

#[test]
fn devices_are_written_in_some_ways() {
    let good = ["[0, 1]", "\"0,1\"", "[\"0\", \"1\"]", "3"].map(devices);
    assert_eq!(good, ["0,1", "0,1", "0,1", "3"].map(|d| Some(d.into())));
    assert_eq!(["{}", "[[0]]", "null", "-1"].map(devices), [const { None }; 4]);
}
