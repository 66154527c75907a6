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
