//! Frames come through in any pieces, and hostile ones are errors.
use super::*;

fn go() -> Go {
    let at = "10.0.0.1:5".parse().unwrap();
    let vars = vec![("A".into(), "b".into())];
    Go {
        job: "j".into(),
        store: vec![at],
        master: at,
        vars,
        files: vec![("A".into(), "[]".into())],
        restarted: vec![0, 2],
        key: Some([7; 32]),
    }
}

#[test]
fn orders_come_through_in_any_pieces() {
    let part = HostPart { command: vec!["a b".into(), "ü".into()], world: 3, ..HostPart::default() };
    let all = [
        FleetOrder::Prepare(Box::new(part)),
        FleetOrder::Go(Box::new(go())),
        FleetOrder::Input(vec![0, 255, 10]),
        FleetOrder::InputEnd,
        FleetOrder::Piece(vec![1, 2]),
        FleetOrder::Term,
        FleetOrder::Kill,
        FleetOrder::Stop,
        FleetOrder::Continue,
        FleetOrder::Pass(PassedSignal::Quit),
        FleetOrder::StartAgain(7),
        FleetOrder::Beat,
    ];
    let bytes: Vec<u8> = all.iter().flat_map(FleetOrder::encode).collect();
    for step in [1, 7, bytes.len()] {
        let mut reader = FrameReader::default();
        let mut found = Vec::new();
        for piece in bytes.chunks(step) {
            reader.push(piece);
            while let Some((kind, body)) = reader.next().unwrap() {
                found.push(FleetOrder::decode(kind, body).unwrap());
            }
        }
        assert_eq!(found, all);
    }
    assert!(!format!("{:?}", go()).contains("7, 7"), "the key shows");
}

#[test]
fn events_come_through_behind_a_login_banner() {
    let ended = |ending, root_cause| HostEvent::Ended { rank: 3, ending, root_cause, memory: "m".into() };
    let all = [
        HostEvent::Started { rank: 2, pid: 77 },
        HostEvent::Output { rank: 2, stream: OutputStream::Err, bytes: vec![1, 2] },
        ended(Ending::Signal(9), Some(0)),
        ended(Ending::Exit(-1), None),
        HostEvent::Refused { why: "no".into(), code: 2 },
        HostEvent::Stopped { rank: 1 },
        HostEvent::Say("words".into()),
        HostEvent::Taken,
        HostEvent::Wants { file: 1, at: 1 << 40 },
        HostEvent::Beat,
        HostEvent::Bye,
    ];
    let mut reader = FrameReader::default();
    reader.push(b"Welcome to c\n");
    assert!(reader.greeting().is_none());
    reader.push(GREETING);
    all.iter().for_each(|e| reader.push(&e.encode()));
    assert_eq!(reader.greeting().unwrap(), b"Welcome to c\n");
    let mut found = Vec::new();
    while let Some((kind, body)) = reader.next().unwrap() {
        found.push(HostEvent::decode(kind, body).unwrap());
    }
    assert_eq!((found.as_slice(), reader.rest()), (&all[..], &b""[..]));
}

#[test]
fn hostile_frames_are_errors() {
    let mut reader = FrameReader::default();
    reader.push(&[b'P', 255, 255, 255, 255]);
    assert!(reader.next().unwrap_err().contains("4294967295 bytes"));
    for (kind, body) in [
        (b'?', &b""[..]),
        (b'o', b"123"),
        (b'm', b""),
        (b'h', b"{}"),
        (b'j', b"{\"Ended\":{}}"),
        (b'j', b"\"Lost\""),
        (b'j', b"\"Bye\" 1"),
    ] {
        assert!(HostEvent::decode(kind, body).is_err(), "{kind}");
    }
    for (kind, body) in [(b'T', &b""[..]), (b'O', b"["), (b'O', b"{\"Pass\":\"Kill\"}"), (b'M', b"")] {
        assert!(FleetOrder::decode(kind, body).is_err(), "{kind}");
    }
}

/// A launcher drops a field that it does not know, and would start a rank without it.
#[test]
fn a_field_more_has_another_number() {
    fn names(before: &str, value: &serde_json::Value, all: &mut Vec<String>) {
        for (name, value) in value.as_object().into_iter().flatten() {
            match value.is_object() {
                true => names(&format!("{before}{name}."), value, all),
                false => all.push(format!("{before}{name}")),
            }
        }
    }
    let mut all = Vec::new();
    names("", &serde_json::to_value(HostPart::default()).unwrap(), &mut all);
    all.sort();
    let known = "at command cwd cwd_asked elastic env first local_first local_size ports request.backend request.stdin_rank \
        request.terms.bind_to request.terms.insecure request.terms.secure request.tty restarts.most restarts.number size stage tty world";
    assert_eq!((PROTOCOL, all.join(" ").as_str()), (10, known), "raise PROTOCOL, then write both here");
}
