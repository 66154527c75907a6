//! A setting by the name of its variable.

use super::*;

/// Variables that no configuration takes, and a part of the reason.
const REFUSED: [(&str, &str); 13] = [
    ("COMITY_RANK", "when it is made"),
    ("COMITY_SIZE", "when it is made"),
    ("COMITY_LOCAL_RANK", "environment"),
    ("COMITY_LOCAL_SIZE", "environment"),
    ("MASTER_ADDR", "host:port"),
    ("MASTER_PORT", "host:port"),
    ("COMITY_TORCH_COMPRESSION", "environment"),
    ("COMITY_NCCL", "environment"),
    ("COMITY_CUDA", "environment"),
    ("COMITY_MPI", "environment"),
    ("COMITY_MPIRUN", "environment"),
    ("COMITY_VERBS", "environment"),
    ("COMITY_VERBOSE", "environment"),
];

/// Variables that only a launcher sets.
const LAUNCHERS: [&str; 5] =
    ["COMITY_KEY_FD", "COMITY_ROOT_CAUSE_FD", "COMITY_RESTART", "COMITY_HOST_CORES", "COMITY_STATS_FD"];

fn with(name: &str, value: &str) -> Result<Settings> {
    let mut settings = Settings::new(0, 1);
    settings.set(name, value).map(|()| settings)
}

#[test]
fn a_reader_has_at_most_thirty_two_settings_to_know() {
    // The meeting place is torch's pair of variables.
    let read = |v: &&Variable| {
        v.name.starts_with("COMITY_") && !matches!(v.topic, Topic::Launcher | Topic::Internal)
    };
    let settings = VARIABLES.iter().filter(read).count();
    assert!(
        settings <= 32,
        "{settings} settings: take one away, or mark one that nobody should set `Internal`"
    );
}

#[test]
fn each_row_of_the_table_is_taken_as_the_variable_is_or_refused_with_a_reason() {
    for row in VARIABLES.iter().filter(|v| !LAUNCHERS.contains(&v.name)) {
        let Variable { name, example, .. } = *row;
        let made = with(name, example);
        if let Some((_, why)) = REFUSED.iter().find(|(n, _)| *n == name) {
            let e = made.unwrap_err().to_string();
            assert!(e.contains(&format!("{name}={example:?}")) && e.contains(why), "{e}");
            continue;
        }
        let mut read = Settings::new(0, 1);
        let read = read.read(&|asked| (asked == name).then(|| example.into())).map(|()| read);
        match (made, read) {
            // A meeting place is no setting of the environment's alone; nor is it that a process joins there.
            (Ok(made), Ok(_)) if name == "COMITY_STORE" => {
                assert_eq!(made.meeting_point.to_string(), format!("at the store at {example}"));
            }
            (Ok(made), Ok(read)) if name == "COMITY_JOIN" => assert!(made.joins && !read.joins),
            (Ok(made), Ok(read)) => {
                assert_eq!(format!("{made:?}"), format!("{read:?}"));
                assert_ne!(format!("{made:?}"), format!("{:?}", Settings::new(0, 1)), "{name}");
            }
            // The example names a file.
            (Err(made), Err(read)) => {
                assert!(made.to_string() == read.to_string() && made.to_string().contains(name), "{made}");
            }
            (made, read) => panic!("{name}: {made:?}, but {read:?}"),
        }
    }
}

#[test]
fn a_setting_leaves_the_others_and_the_last_value_counts() {
    let all = [
        ("COMITY_INSECURE", "1"),
        ("COMITY_COSTS", "measure"),
        ("COMITY_HOST", "here"),
        ("COMITY_LOG_DIR", "logs"),
        ("COMITY_DEVICES", r#"[[null, "a"], ["b", null]]"#),
        ("COMITY_STORE", "10.0.0.1:4000"),
    ];
    let mut made = Settings::new(0, 2);
    all.into_iter().for_each(|(name, value)| made.set(name, value).unwrap());
    assert_eq!((made.insecure, &made.costs), (Insecure::Private, &Costs::Measure));
    assert_eq!((made.host.as_deref(), made.log_dir.is_some()), (Some("here"), true));
    assert_eq!(made.launched_at.len(), 1);
    made.check().unwrap();
    let other = r#"[[null, "c"], ["d", null]]"#;
    made.set("COMITY_INSECURE", "0").and_then(|()| made.set("COMITY_DEVICES", other)).unwrap();
    assert_eq!(made.insecure, Insecure::No);
    let mut transports = TransportSettings::default();
    assert!(transports.set_devices(other).is_ok());
    assert_eq!(format!("{:?}", made.transports), format!("{transports:?}"));
}

#[test]
fn an_error_names_the_setting_and_the_value() {
    for (name, value, part) in [
        ("TIMEOUT", "30", "is no setting"),
        ("MLX_JACCL_RING", "1", "is no setting"),
        ("COMITY_TIMEOUT", "soon", "300 or 2.5"),
        ("COMITY_TIMEOUT", "0", "more than 0"),
        ("COMITY_DETECTION", "0.01", "0.1 s to a day"),
        ("COMITY_LINKS", "string", "allowed are shm"),
        ("COMITY_STORE", "nowhere", "host:port"),
        ("COMITY_JOB", "", "empty"),
    ] {
        let e = with(name, value).unwrap_err();
        let ErrorKind::Config(e) = e.kind() else { panic!("{name}={value}: {e}") };
        let words = e.to_string();
        assert!(words.contains(name) && words.contains(part), "{words}");
        assert_eq!(e.key.as_deref(), Some(name));
    }
}

#[test]
fn the_row_of_links_names_every_kind_that_users_may_choose() {
    let row = VARIABLES.iter().find(|v| v.name == "COMITY_LINKS").unwrap();
    for kind in LinkKind::choices() {
        assert!(row.about.contains(&format!("`{kind}`")), "{kind} is missing in {}", row.about);
    }
}
