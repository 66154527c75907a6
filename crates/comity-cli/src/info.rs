//! `comity info`: what this process would do, and why: its place, where it would meet, its host, its links.

use crate::{
    here,
    say::{Exit, say},
};
use comity::{
    Config, DType, Error,
    tools::{self, AddressNote, CostsNote, LinkNote, Topic, VARIABLES, Variable},
};
use comity_cluster::cores::run_words;
use serde_json::{Value, json};
use std::{ffi::OsString, fmt::Write};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Outside a job it tells what a group of one would be; under a launcher, what each rank found.
Nothing is sent. With --settings: every variable, its value here, who gave it, its default.
Exit code: 0; 2 when variables make no sense, which are named.")]
pub(crate) struct InfoArgs {
    /// Every variable: what it does, its value and where that comes from
    #[arg(long)]
    settings: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn info(args: InfoArgs) -> Exit {
    let config = Config::from_env();
    let var = |name: &str| std::env::var_os(name);
    let text = match (&config, args.settings, args.json) {
        (found, true, true) => format!("{}\n", settings_to_json(found.as_ref(), &var)),
        (found, true, false) => settings_to_text(found.as_ref(), &var),
        (Ok(config), false, true) => format!("{}\n", to_json(config)),
        (Ok(config), false, false) => to_text(config),
        (Err(_), false, _) => String::new(),
    };
    let printed = say(text, 0);
    config?;
    printed
}

/// Output of `--settings`.
pub(crate) fn all_settings() -> String {
    settings_to_text(Config::from_env().as_ref(), &|name| std::env::var_os(name))
}

fn to_text(config: &Config) -> String {
    let found = config.evidence();
    let local = config.local().map_or_else(String::new, |(r, n)| format!(", local rank {r} of {n}"));
    let variables: Vec<_> = found.seen.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut t = format!("comity {}\n", here::VERSION);
    let mut row = |name: &str, values: &[String]| {
        for (i, value) in values.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(t, "  {:<10} {value}", if i == 0 { name } else { "" });
        }
    };
    let settings = tools::settings(config);
    row("place", &[format!("rank {} of {}{local}", config.rank(), config.size())]);
    row("found by", &[format!("{}: {}", found.launcher, found.why)]);
    row("variables", if variables.is_empty() { vec!["none set".to_owned()] } else { variables }.as_slice());
    row("", &here::misspelt());
    row("meets", &[config.meeting_point().to_string()]);
    row("key", &[settings.trust_in_words().to_owned()]);
    row(
        "host",
        &[format!(
            "{}, {} cores, pages of {} bytes",
            here::host(),
            here::cores(),
            rustix::param::page_size()
        )],
    );
    row("system", &[here::system()]);
    row("cores", &topology());
    row("lanes", &[settings.lanes_in_words()]);
    row("costs", &costs(&CostsNote::of(&settings.costs)));
    let links = settings.link_notes();
    let width = links.iter().map(|l| l.kind.to_string().len()).max().unwrap_or_default();
    let note = |l: &LinkNote| {
        format!("{:<width$} {:<4} {}", l.kind.to_string(), if l.used { "yes" } else { "no" }, l.why)
    };
    row("links", &links.iter().map(note).collect::<Vec<_>>());
    let devices = links.iter().flat_map(|l| &l.devices).map(|(name, at)| match at {
        Ok(at) => format!("{at:<28} {name}"),
        Err(why) => why.clone(),
    });
    row("devices", &devices.collect::<Vec<_>>());
    let address = |a: &AddressNote| {
        let speed = a.speed.map_or_else(String::new, |s| format!(", {s} Mbit/s"));
        let unused = if a.used { "" } else { ", not used" };
        format!("{:<28} {}{speed}{unused}", a.address, a.interface)
    };
    row("addresses", &settings.address_notes().iter().map(address).collect::<Vec<_>>());
    row("network", &[settings.network_in_words()]);
    row("types", &[DType::ALL.map(DType::name).join(" ")]);
    t
}

fn to_json(config: &Config) -> Value {
    let settings = tools::settings(config);
    let found = config.evidence();
    let variables: serde_json::Map<String, Value> =
        found.seen.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let notes = settings.link_notes();
    let costs = CostsNote::of(&settings.costs);
    let links: Vec<_> =
        notes.iter().map(|l| json!({ "kind": l.kind.to_string(), "used": l.used, "why": l.why })).collect();
    let address = |a: AddressNote| json!({ "interface": a.interface, "address": a.address, "speed": a.speed, "used": a.used });
    let addresses: Vec<_> = settings.address_notes().into_iter().map(address).collect();
    let devices: Vec<_> = notes
        .iter()
        .flat_map(|l| &l.devices)
        .map(|(name, at)| json!({ "name": name, "address": at.as_ref().ok(), "why": at.as_ref().err() }))
        .collect();
    json!({
        "version": here::VERSION, "rank": config.rank(), "size": config.size(),
        "local_rank": config.local().map(|l| l.0), "local_size": config.local().map(|l| l.1),
        "launcher": found.launcher.to_string(), "why": found.why, "variables": variables,
        "meets": config.meeting_point().to_string(), "key": settings.trust_in_words(), "host": here::host(), "cores": here::cores(),
        "lanes": settings.lanes_in_words(),
        "page_size": rustix::param::page_size(), "system": here::system(), "links": links, "devices": devices, "addresses": addresses,
        "network": settings.network_in_words(), "topology": topology(),
        "costs": { "used": costs.used, "file": costs.file, "why": costs.why },
        "types": DType::ALL.map(DType::name),
    })
}

/// Layout of the cores, and those that this process may use; a line each.
fn topology() -> Vec<String> {
    let (Some(all), Some(own)) = (comity_launch::host_cores(), comity_launch::allowed_cores()) else {
        return vec!["the system does not say how they lie".into()];
    };
    let mut lines = vec![all.words()];
    if own != all {
        let list = run_words(&own.processors(), ",");
        lines.push(format!(
            "this process may use {} of {} threads: {list:.60}",
            own.counts().processors,
            all.counts().processors
        ));
    }
    lines
}

/// The costs by which plans are chosen, and their file.
fn costs(note: &CostsNote) -> Vec<String> {
    let file = note.file.iter().map(|file| file.display().to_string());
    std::iter::once(format!("{}: {}", note.used, note.why)).chain(file).collect()
}

/// A variable as it stands here.
struct Setting {
    about: &'static Variable,
    /// Its value, where it has one, and who gave it.
    value: Option<(String, String)>,
}

/// Value of each variable in `found`; of a configuration that makes no sense, the value in the environment.
fn settings_of(found: Result<&Config, &Error>, var: &dyn Fn(&str) -> Option<OsString>) -> Vec<Setting> {
    let of = |about: &'static Variable| {
        let own = var(about.name).map(|v| (v.to_string_lossy().into_owned(), "the environment".to_owned()));
        Setting { about, value: own.or_else(|| elsewhere(found.ok()?, about.name)) }
    };
    VARIABLES.iter().map(of).collect()
}

/// The value of a variable that is not set, where another stands for it.
fn elsewhere(config: &Config, name: &str) -> Option<(String, String)> {
    let found = config.evidence();
    let local = config.local();
    let number = match name {
        "COMITY_RANK" => Some(config.rank()),
        "COMITY_SIZE" => Some(config.size()),
        "COMITY_LOCAL_RANK" => local.map(|l| l.0),
        "COMITY_LOCAL_SIZE" => local.map(|l| l.1),
        _ => None,
    };
    if let Some(number) = number {
        return Some((number.to_string(), found.launcher.to_string()));
    }
    // Other launchers' names of the same.
    let same = |n: &str| name == "COMITY_DEVICES" && n.ends_with("_IBV_DEVICES");
    let (other, value) = found.seen.iter().find(|(n, _)| same(n))?;
    Some((value.clone(), (*other).to_owned()))
}

/// Every variable with its sentence.
fn settings_to_text(found: Result<&Config, &Error>, var: &dyn Fn(&str) -> Option<OsString>) -> String {
    let mut t = String::new();
    let mut topic = None::<Topic>;
    // Writing to a string cannot fail.
    for Setting { about: v, value } in settings_of(found, var) {
        if topic.replace(v.topic) != Some(v.topic) {
            let _ = writeln!(t, "{}{}", if t.is_empty() { "" } else { "\n" }, plain(&v.topic.to_string()));
        }
        let _ = match value {
            Some((value, by)) => writeln!(t, "  {}={value}  (from {by})", v.name),
            None => writeln!(t, "  {}  is not set; default: {}", v.name, plain(v.default)),
        };
        let _ = writeln!(t, "      {} Example: {}", plain(v.about), v.example);
    }
    t
}

/// The same for programs.
fn settings_to_json(found: Result<&Config, &Error>, var: &dyn Fn(&str) -> Option<OsString>) -> Value {
    let one = |Setting { about: v, value }: Setting| {
        let (value, from) = value.unzip();
        json!({
            "name": v.name, "topic": plain(&v.topic.to_string()), "about": plain(v.about), "default": plain(v.default),
            "example": v.example, "value": value, "from": from,
        })
    };
    let error = found.err().map(ToString::to_string);
    json!({ "settings": settings_of(found, var).into_iter().map(one).collect::<Vec<_>>(), "error": error })
}

/// Without the marks of code.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Result<Config, Error> {
        Config::from_vars(|name| vars.iter().find(|v| v.0 == name).map(|v| OsString::from(v.1)))
    }

    #[test]
    fn alone_and_in_a_job() {
        let alone = to_text(&config(&[]).unwrap());
        assert!(alone.contains("rank 0 of 1") && alone.contains("none set"), "{alone}");
        assert!(alone.contains("needs none"), "{alone}");
        let vars = [
            ("COMITY_RANK", "1"),
            ("COMITY_SIZE", "3"),
            ("COMITY_STORE", "127.0.0.1:7000"),
            ("COMITY_INSECURE", "1"),
            ("COMITY_LINKS", "tcp"),
        ];
        let job = config(&vars).unwrap();
        let text = to_text(&job);
        for part in [
            "rank 1 of 3",
            "COMITY_STORE=127.0.0.1:7000",
            "comity launch",
            "none is wanted",
            "COMITY_LINKS leaves it out",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
        let json = to_json(&job);
        assert_eq!((&json["rank"], &json["links"][0]["used"]), (&json!(1), &json!(false)));
        assert_eq!(json["variables"]["COMITY_SIZE"], "3");
    }

    #[test]
    fn values_say_where_they_come_from() {
        let vars = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("COMITY_INSECURE", "1"),
            ("COMITY_TIMEOUT", "30"),
        ];
        let var = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| OsString::from(v.1));
        let config = Config::from_vars(var).unwrap();
        let text = settings_to_text(Ok(&config), &var);
        for part in [
            "COMITY_RANK=1  (from torchrun)",
            "COMITY_TIMEOUT=30  (from the environment)",
            "COMITY_JOIN_TIMEOUT  is not set; default: 60",
            "How ranks meet",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(VARIABLES.iter().all(|v| text.contains(v.name) && text.contains(&plain(v.about))));
        let json = settings_to_json(Ok(&config), &var);
        let of = |name: &str| {
            json["settings"].as_array().unwrap().iter().find(|s| s["name"] == name).unwrap().clone()
        };
        assert_eq!(
            (&of("COMITY_SIZE")["value"], &of("COMITY_SIZE")["from"]),
            (&json!("2"), &json!("torchrun"))
        );
        assert_eq!((&of("COMITY_DEVICES")["value"], &json["error"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn what_makes_no_sense_is_shown_too() {
        let var = |name: &str| (name == "COMITY_LINKS").then(|| OsString::from("telepathy"));
        let error = Config::from_vars(var).unwrap_err();
        assert!(settings_to_text(Err(&error), &var).contains("COMITY_LINKS=telepathy"));
        assert!(settings_to_json(Err(&error), &var)["error"].as_str().unwrap().contains("telepathy"));
    }
}
