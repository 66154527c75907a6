//! `comity bench --tune` and `--predict`, and jobs whose ranks find different files, or damaged ones.

use super::{CHECK, ME, launch, run};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The command, with this folder of configurations.
fn comity(home: &Path) -> Command {
    let mut c = Command::new(ME);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("COMITY_") {
            c.env_remove(&name);
        }
    }
    c.env("XDG_CONFIG_HOME", home);
    c
}

const SMALL: [&str; 6] = ["--at-ranks", "2", "--at-sizes", "64,65536", "--within", "0.1"];

/// File of the measurements, where there is one.
fn tuned(home: &Path) -> Option<PathBuf> {
    let folder = fs::read_dir(home.join("comity")).ok()?;
    folder.map(|f| f.unwrap().path()).next()
}

/// Algorithm that rank 0 of two would choose for a small all_reduce.
fn chosen(prepare: &str, home: &Path) -> String {
    let survey = "bench all_reduce --survey --at-sizes 64 --budget 0.0001";
    let script = format!("{prepare} exec {ME} {survey}");
    let (code, out, errors) = run(launch(2).args(["sh", "-c", &script]).env("XDG_CONFIG_HOME", home));
    assert_eq!(code, Some(0), "{errors}");
    let rows = out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let chosen: Vec<_> = rows.filter(|r| r["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1, "{out}");
    chosen[0]["algorithm"].as_str().unwrap().to_owned()
}

#[test]
fn a_host_is_measured_found_and_judged() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        let (code, _, errors) = run(comity(Path::new("/nowhere")).args(["bench", "--tune"]));
        assert!(code == Some(2) && errors.contains("need 2 cores"), "{errors}");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let said = |words: &[&str]| run(comity(home.path()).args(words));
    assert!(said(&["info"]).1.contains("--tune"));
    let (code, out, errors) = said(&[&["bench", "--tune"], &SMALL[..]].concat());
    assert_eq!(code, Some(0), "{out} {errors}");
    let file = tuned(home.path()).unwrap();
    assert!(
        out.contains(file.to_str().unwrap()) && out.contains("# shm: ") && out.contains("# tcp: "),
        "{out}"
    );
    let (_, info, _) = said(&["info"]);
    assert!(info.contains("tuned: measured on this host") && info.contains(file.to_str().unwrap()), "{info}");
    let info: Value = serde_json::from_str(&said(&["info", "--json"]).1).unwrap();
    assert_eq!((&info["costs"]["used"], info["costs"]["file"].as_str()), (&"tuned".into(), file.to_str()));
    assert!(info["costs"]["date"].as_str().is_some_and(|d| d.starts_with("20")), "{info}");
    // Predictions by the file, and by constants.
    let report = home.path().join("report");
    let words = [
        &["bench", "all_reduce", "broadcast", "--predict", "--report", report.to_str().unwrap()],
        &SMALL[..],
    ];
    let (code, out, errors) = said(&words.concat());
    assert!(code == Some(0) && out.contains("| broadcast | tcp |"), "{out} {errors}");
    let text = fs::read_to_string(report.with_extension("md")).unwrap();
    assert!(
        text.contains("costs: tuned") && text.contains("| all_reduce | shm | 2 | 65536 | ring |"),
        "{text}"
    );
    let json: Value =
        serde_json::from_str(&fs::read_to_string(report.with_extension("json")).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &json["costs"]), (8, &"tuned".into()), "{json}");
    for row in rows {
        let timings = row["timings"].as_array().unwrap();
        assert!(
            timings
                .iter()
                .all(|t| t["predicted_us"].as_f64() > Some(0.0) && t["measured_us"].as_f64() > Some(0.0))
        );
        assert_eq!(timings.iter().filter(|t| t["chosen"] == true).count(), 1, "{row}");
    }
    // Jobs of its own cannot be inside another.
    let (code, _, errors) = run(launch(2).args([ME, "bench", "--tune"]));
    assert!(code == Some(2) && errors.contains("without a launcher"), "{code:?} {errors}");

    files_of_rank_0_hold(home.path(), &file);
}

/// The file that was measured, changed so that only the ring looks quick.
fn files_of_rank_0_hold(home: &Path, file: &Path) {
    let mut costs: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    for link in ["shm", "tcp"] {
        for row in costs["links"][link]["ratios"].as_array_mut().unwrap() {
            let ratio = if row["algorithm"] == "ring" { 0.01 } else { 60.0 };
            row["measured_over_predicted"].as_array_mut().unwrap().iter_mut().for_each(|by| {
                by.as_array_mut().unwrap().fill(ratio.into());
            });
        }
    }
    let text = costs.to_string();
    fs::write(file, &text).unwrap();
    assert_eq!(chosen("", home), "ring");
    assert_ne!(chosen("export COMITY_COSTS=off;", home), "ring");
    // One rank with the file, one without: whichever it is, they agree, and the words of rank 0 hold.
    assert_eq!(chosen("[ $COMITY_RANK = 0 ] || export XDG_CONFIG_HOME=/nowhere;", home), "ring");
    assert_ne!(chosen("[ $COMITY_RANK = 1 ] || export XDG_CONFIG_HOME=/nowhere;", home), "ring");
    let check = |damage: &dyn Fn()| {
        damage();
        let (code, _, errors) = run(launch(2).arg(ME).args(CHECK).env("XDG_CONFIG_HOME", home));
        assert_eq!(code, Some(0), "{errors}");
        errors
    };
    assert!(!check(&|| ()).contains("costs file"));
    // A file that cannot be used is said once, and the job runs by the usual costs.
    let other = text.replace(env!("CARGO_PKG_VERSION"), "0.0.1");
    for (content, why) in [(&text[..99], "is not JSON"), (&other, "is of Comity 0.0.1")] {
        let errors = check(&|| fs::write(file, content).unwrap());
        assert_eq!(errors.matches("it is not used, and the usual costs hold").count(), 1, "{errors}");
        assert!(errors.contains(why) && errors.contains("comity bench --tune"), "{errors}");
    }
    let (_, info, _) = run(comity(home).arg("info"));
    assert!(info.contains("costs file") && info.contains("is of Comity 0.0.1"), "{info}");
    // It is no file of pairs.
    let named = run(launch(2).arg(ME).args(CHECK).env("COMITY_COSTS", file));
    assert!(named.0 == Some(2) && named.2.contains("bench --tune"), "{named:?}");
}
