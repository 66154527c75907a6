use super::*;
use crate::{
    Config,
    config::Costs,
    costs::{costs_place, tuned_bytes},
};
use std::os::unix::fs::PermissionsExt;

/// Numbers that no machine has.
fn file() -> TunedFile {
    let table = |first: u32| {
        let pairs = Kind::ALL.into_iter().flat_map(|k| k.algorithms().map(move |a| (k, a)));
        let rows =
            pairs.map(|(k, a)| RatioRow::new(k, a, (0..4).map(|i| 0.5 + f64::from(i) + a as u8 as f64)));
        RatioTable::new(vec![first, 9], vec![8, 4096], rows.collect()).unwrap()
    };
    let costs = TunedCosts::new([LinkClass::SHM, LinkClass::TCP], 1e-10, [table(2), table(3)]);
    TunedFile::here(costs.unwrap(), 9, "2026-11-25T02:00:00Z".into())
}

/// The file in a folder of configurations of its own, with this text.
fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let path = costs_place(home.path());
    file().save(&path).unwrap();
    std::fs::write(&path, text).unwrap();
    (home, path)
}

#[test]
fn a_file_holds_the_numbers_and_is_this_user_s_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = costs_place(&home.path().join("new"));
    assert_eq!(TunedFile::load(&path), Ok(None));
    file().save(&path).unwrap();
    file().save(&path).unwrap();
    let read = TunedFile::load(&path).unwrap().unwrap();
    for link in HostLink::ALL {
        assert_eq!(read.costs.table(link), file().costs.table(link));
        assert!((read.costs.class(link).cost.beta / file().costs.class(link).cost.beta - 1.0).abs() < 1e-9);
    }
    assert_eq!((read.date, read.cores), (file().date, 9));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let text = file().to_json();
    let other = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    let host = format!("\"host\":\"{}\"", here::host_name());
    let processor = serde_json::to_string(&here::processor()).unwrap();
    for (text, why) in [
        (String::new(), "is not JSON"),
        ("{}".into(), "has no \"version\""),
        (other(VERSION, "0.0.3"), "is of Comity 0.0.3, and this is"),
        (other("\"comity_costs\":1", "\"comity_costs\":2"), "is of Comity"),
        (other(&host, "\"host\":\"elsewhere\""), "was measured on elsewhere, and this is"),
        (other(&format!("\"processor\":{processor}"), "\"processor\":\"Z80\""), "another processor (\"Z80\""),
        (other("\"bytes\":[8,4096]", "\"bytes\":[4096,8]"), "has no sound \"ratios\" of shm"),
        (other("\"ranks\":[3,9]", "\"ranks\":[-3,9]"), "has no sound \"ranks\" of tcp"),
        (other("\"busy\":0.3", "\"busy\":\"very\""), "\"busy\""),
        (other("\"crowd\":1.1", "\"crowd\":1e30"), "out of range"),
        (other("\"op\":\"barrier\"", "\"op\":\"all_reduce\""), "ratios"),
        ("x".repeat(LONGEST as usize + 2), "is longer than"),
    ] {
        let (_home, path) = written(&text);
        let e = TunedFile::load(&path).unwrap_err();
        let words = e.to_string();
        assert!(words.contains(why) && words.contains(path.to_str().unwrap()), "{why}: {words:.300}");
        assert_eq!(e.file.as_deref(), Some(path.as_path()));
    }
    // Cut anywhere, it is damaged and never a panic.
    for cut in (0..text.len()).step_by(97) {
        assert!(TunedFile::from_json(&text[..cut]).is_err());
    }
}

#[test]
fn what_others_can_write_is_refused() {
    let (_home, path) = written(&file().to_json());
    assert!(TunedFile::load(&path).unwrap().is_some());
    for (mode, ok) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false), (0o666, false)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let read = TunedFile::load(&path);
        assert_eq!(read.is_ok(), ok, "{mode:o}");
        assert!(read.err().is_none_or(|e| e.to_string().contains("can be written by others")));
    }
    assert_eq!(is_safe(7, 0o644, 7), Ok(()));
    for uid in [0, 8] {
        assert!(is_safe(uid, 0o600, 7).unwrap_err().contains("runs as user 7"));
    }
    // A FIFO would wait for somebody who writes, a folder is no file.
    let fifo = path.with_extension("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    for path in [&fifo, path.parent().unwrap()] {
        assert!(TunedFile::load(path).unwrap_err().to_string().contains("is not a regular file"));
    }
}

#[test]
fn rank_0_tells_and_a_file_that_cannot_be_used_is_as_none() {
    let (home, path) = written(&file().to_json());
    let config = |rank: usize| {
        let mut config = Config::new(rank, 2);
        config.costs = Costs::Found(home.path().into());
        config
    };
    let costs = TunedFile::load(&path).unwrap().unwrap().costs;
    assert_eq!(tuned_bytes(&config(0)), costs.to_bytes());
    assert!(tuned_bytes(&config(1)).is_empty() && tuned_bytes(&Config::new(0, 2)).is_empty());
    let note = config(0).costs_note();
    assert_eq!((note.used, note.file, note.date), ("tuned", Some(path.clone()), Some(file().date)));
    std::fs::write(&path, "{").unwrap();
    assert!(tuned_bytes(&config(0)).is_empty());
    let note = config(0).costs_note();
    assert!(note.used == "usual" && note.why.contains("is not JSON"), "{note:?}");
    std::fs::remove_file(&path).unwrap();
    assert!(config(0).costs_note().why.contains("--tune"));
}
