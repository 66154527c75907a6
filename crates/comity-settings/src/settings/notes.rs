//! Kinds of link that this process would use, and the reasons: for `comity info`.

use super::Settings;
use crate::LinkKind;

/// Decision for a kind of link, and the reason.
///
/// ```
/// for note in comity::tools::link_notes(&comity::Config::from_env()?) {
///     println!("{}: {} ({})", note.kind, if note.used { "used" } else { "not used" }, note.why);
/// }
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Debug)]
pub struct LinkNote {
    /// The kind.
    pub kind: LinkKind,
    /// True if it would be used.
    pub used: bool,
    /// With whom, or why not.
    pub why: String,
    /// Its devices, each with its address or why it cannot be used.
    pub devices: Vec<(String, Result<String, String>)>,
}

impl Settings {
    /// `comity::tools::link_notes`.
    pub fn link_notes(&self) -> Vec<LinkNote> {
        let value = |name: &str| self.found.seen.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        let note = |kind: LinkKind| {
            let note = self.transports.note(kind, &value)?;
            let by_default = kind.about().is_some_and(|a| a.by_default);
            let (used, why) = match (self.links.has(kind), by_default) {
                (false, true) => (false, "COMITY_LINKS leaves it out".to_owned()),
                (false, false) => (false, format!("only where COMITY_LINKS names it; {}", note.why)),
                _ if note.works && self.size == 1 => {
                    (false, format!("one rank needs none; else {}", note.why))
                }
                _ => (note.works, note.why),
            };
            Some(LinkNote { kind, used, why, devices: note.devices })
        };
        LinkKind::choices().filter_map(note).collect()
    }
}
