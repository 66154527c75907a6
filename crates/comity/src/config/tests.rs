//! Configurations that programs build.

use super::Config;
use crate::{Key, LinkKind, settings::MAX_TIMEOUT};
use std::{fs, time::Duration};

#[test]
fn a_call_need_have_no_limit() {
    assert_eq!(Config::new(0, 1).timeout(Duration::MAX).settings.timeout, MAX_TIMEOUT);
}

#[test]
fn settings_are_shown_as_fields_of_the_configuration() {
    let config = Config::new(3, 4).job("digits");
    let text = format!("{config:?}");
    assert!(text.starts_with("Config { rank: 3, size: 4, ") && text.contains("job: \"digits\""), "{text}");
    let lines = format!("{:#?}", [config]);
    assert!(lines.starts_with("[\n    Config {\n        rank: 3,\n        size: 4,\n"), "{lines}");
}

#[test]
fn by_value_contradictions_are_errors_before_anything_is_opened() {
    let two = || Config::new(0, 2);
    let at = |c: Config| c.store("10.0.0.1:5000");
    assert!(at(two()).unwrap().settings.check().is_ok());
    assert!(Config::new(0, 1).settings.check().is_ok());
    let cases = [
        (two(), "place to meet"),
        (Config::new(2, 2), "rank is 2"),
        (Config::new(0, 0), "size is 0"),
        (Config::new(0, usize::MAX), "size"),
        (at(two()).unwrap().links([]), "links"),
        (at(two()).unwrap().links([LinkKind::Local]), "links"),
        (at(two()).unwrap().connections(0), "connections"),
        (at(two()).unwrap().send_threads(65), "send_threads"),
        (at(two()).unwrap().timeout(Duration::ZERO), "timeout"),
        (at(two()).unwrap().join_timeout(Duration::MAX), "join_timeout"),
        (two().rendezvous("[fe80::1]:5000").unwrap(), "needs the interface of this host"),
        (two().store("[fe80::1%nosuch0]:5000,[fe80::2]:5000").unwrap(), "none of that name"),
        (at(two()).unwrap().job(""), "job"),
        (at(two()).unwrap().host_name("a\0b"), "host name"),
        (at(two()).unwrap().addrs(["0.0.0.0:1".parse().unwrap()]), "addrs"),
        (at(two()).unwrap().key(Key::from([1; 32])).insecure(), "insecure"),
    ];
    for (config, part) in cases {
        let e = config.settings.check().unwrap_err().to_string();
        assert!(e.contains(part), "{part}: {e}");
    }
    for text in ["", "host", "host:0", "host:x"] {
        assert!(two().store(text).is_err() && two().rendezvous(text).is_err(), "{text}");
    }
    let hosts = std::env::temp_dir().join(format!("comity-config-{}-value", std::process::id()));
    fs::write(&hosts, r#"[["10.0.0.1:5000", "10.1.0.1:5000"], ["node7:5000"], ["[fe80::1%4]:5000"]]"#)
        .unwrap();
    let [whole, other] = [3, 2].map(|size| Config::new(1, size).hostfile(&hosts));
    let _ = fs::remove_file(&hosts);
    assert!(whole.unwrap().settings.check().is_ok());
    assert!(other.unwrap_err().to_string().contains("3 ranks"));
}
