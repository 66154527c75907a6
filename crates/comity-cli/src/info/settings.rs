//! `comity info --settings`: every variable, its value here and where that comes from.

use comity::{
    Config, Error,
    tools::{Topic, VARIABLES, Variable},
};
use serde_json::{Value, json};
use std::{ffi::OsString, fmt::Write};

/// A variable as it stands here.
struct Setting {
    about: &'static Variable,
    /// Its value, where it has one, and who gave it.
    value: Option<(String, String)>,
}

/// Value of each variable in `found`; of a configuration that makes no sense, the value in the environment.
fn all(found: Result<&Config, &Error>, var: &dyn Fn(&str) -> Option<OsString>) -> Vec<Setting> {
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
pub(super) fn to_text(found: Result<&Config, &Error>, var: &dyn Fn(&str) -> Option<OsString>) -> String {
    let mut t = String::new();
    let mut topic = None::<Topic>;
    // Writing to a string cannot fail.
    for Setting { about: v, value } in all(found, var) {
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
pub(super) fn to_json(found: Result<&Config, &Error>, var: &dyn Fn(&str) -> Option<OsString>) -> Value {
    let one = |Setting { about: v, value }: Setting| {
        let (value, from) = value.unzip();
        json!({
            "name": v.name, "topic": plain(&v.topic.to_string()), "about": plain(v.about), "default": plain(v.default),
            "example": v.example, "value": value, "from": from,
        })
    };
    let error = found.err().map(ToString::to_string);
    json!({ "settings": all(found, var).into_iter().map(one).collect::<Vec<_>>(), "error": error })
}

/// Without the marks of code.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let text = to_text(Ok(&config), &var);
        for part in [
            "COMITY_RANK=1  (from torchrun)",
            "COMITY_TIMEOUT=30  (from the environment)",
            "COMITY_JOIN_TIMEOUT  is not set; default: 60",
            "How ranks meet",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(VARIABLES.iter().all(|v| text.contains(v.name) && text.contains(&plain(v.about))));
        let json = to_json(Ok(&config), &var);
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
        assert!(to_text(Err(&error), &var).contains("COMITY_LINKS=telepathy"));
        assert!(to_json(Err(&error), &var)["error"].as_str().unwrap().contains("telepathy"));
    }
}
