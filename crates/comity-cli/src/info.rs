//! `comity info`: what this process would do, and why: its place, where it would meet, its host, its links.

mod settings;

use crate::{
    here,
    say::{Exit, say},
};
use comity::{
    Config, DType,
    tools::{self, AddressNote, CostsNote, LinkNote},
};
use comity_cluster::cores::run_words;
use serde_json::{Value, json};
use std::fmt::Write;

/// Arguments of `comity info`.
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

/// `comity info`
pub(crate) fn info(args: InfoArgs) -> Exit {
    let config = Config::from_env();
    let var = |name: &str| std::env::var_os(name);
    let text = match (&config, args.settings, args.json) {
        (found, true, true) => format!("{}\n", settings::to_json(found.as_ref(), &var)),
        (found, true, false) => settings::to_text(found.as_ref(), &var),
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
    settings::to_text(Config::from_env().as_ref(), &|name| std::env::var_os(name))
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
    row("place", &[format!("rank {} of {}{local}", config.rank(), config.size())]);
    row("found by", &[format!("{}: {}", found.launcher, found.why)]);
    row("variables", if variables.is_empty() { vec!["none set".to_owned()] } else { variables }.as_slice());
    row("", &crate::misspelt::misspelt());
    row("meets", &[config.meeting_point().to_string()]);
    row("key", &[tools::trust_in_words(config).to_owned()]);
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
    row("lanes", &[tools::lanes_in_words(config)]);
    row("costs", &costs(&tools::costs_note(config)));
    let links = tools::link_notes(config);
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
    row("addresses", &tools::address_notes(config).iter().map(address).collect::<Vec<_>>());
    row("network", &[tools::network_in_words(config)]);
    row("types", &[DType::ALL.map(DType::name).join(" ")]);
    t
}

fn to_json(config: &Config) -> Value {
    let found = config.evidence();
    let variables: serde_json::Map<String, Value> =
        found.seen.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let notes = tools::link_notes(config);
    let costs = tools::costs_note(config);
    let links: Vec<_> =
        notes.iter().map(|l| json!({ "kind": l.kind.to_string(), "used": l.used, "why": l.why })).collect();
    let address = |a: AddressNote| json!({ "interface": a.interface, "address": a.address, "speed": a.speed, "used": a.used });
    let addresses: Vec<_> = tools::address_notes(config).into_iter().map(address).collect();
    let devices: Vec<_> = notes
        .iter()
        .flat_map(|l| &l.devices)
        .map(|(name, at)| json!({ "name": name, "address": at.as_ref().ok(), "why": at.as_ref().err() }))
        .collect();
    json!({
        "version": here::VERSION, "rank": config.rank(), "size": config.size(),
        "local_rank": config.local().map(|l| l.0), "local_size": config.local().map(|l| l.1),
        "launcher": found.launcher.to_string(), "why": found.why, "variables": variables,
        "meets": config.meeting_point().to_string(), "key": tools::trust_in_words(config), "host": here::host(), "cores": here::cores(),
        "lanes": tools::lanes_in_words(config),
        "page_size": rustix::param::page_size(), "system": here::system(), "links": links, "devices": devices, "addresses": addresses,
        "network": tools::network_in_words(config), "topology": topology(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use comity::Error;
    use std::ffi::OsString;

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
}
