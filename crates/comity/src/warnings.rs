//! Warnings for a process whose program listens to no events of `tracing`: the command, and the Python package.
//!
//! Only events of level `WARN` are passed on. An error is returned to the caller, and events below a warning
//! matter to those who look for them.

use std::fmt::{self, Write};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
    subscriber::set_global_default,
};

/// Returns true for an event of the library, whose crates are `comity` and those named after it.
fn is_ours(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or_default();
    name == "comity" || name.starts_with("comity_")
}

struct WarningVoice<F>(F);

/// Has `tell` called with each warning of the library in this process, on the thread that has it; the answer is `false` where the
/// process has a subscriber of `tracing` already.
///
/// ```
/// assert!(comity::tools::on_warning(|words| eprintln!("comity: {words}")));
/// assert!(!comity::tools::on_warning(|_| ()));
/// ```
pub fn on_warning(tell: impl Fn(&str) + Send + Sync + 'static) -> bool {
    set_global_default(WarningVoice(tell)).is_ok()
}

impl<F: Fn(&str) + Send + Sync + 'static> Subscriber for WarningVoice<F> {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && *about.level() == Level::WARN && is_ours(about.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = EventLine::default();
        event.record(&mut line);
        (self.0)(&(line.words + &line.fields));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event as a line: what it says, and then `name=value` for each field.
#[derive(Default)]
struct EventLine {
    words: String,
    fields: String,
}

impl Visit for EventLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A String takes what is written.
        let _ = match field.name() {
            "message" => write!(self.words, "{value:?}"),
            name => write!(self.fields, ", {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn warnings_are_told_with_their_fields_and_nothing_else_is() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let voice = WarningVoice(move |words: &str| heard.lock().unwrap().push(words.to_owned()));
        tracing::subscriber::with_default(voice, || {
            tracing::warn!(rank = 3, at = %"10.0.0.1:7", "it is {}", "slow");
            tracing::error!("an error is returned");
            tracing::info!("and this is for those who look");
            tracing::warn!(target: "comity_transport::tcp::reach", "below");
            tracing::warn!(target: "other", "of another crate");
        });
        assert_eq!(*told.lock().unwrap(), ["it is slow, rank=3, at=10.0.0.1:7", "below"]);
    }
}
