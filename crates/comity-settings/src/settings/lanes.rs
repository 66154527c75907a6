//! With how many threads a rank moves a large message within its host.

use super::{Settings, vars::Vars};
use crate::{
    Result,
    lanes::{MOST_LANES, OwnCores, most_lanes},
};
use std::thread;

/// Take what the environment says.
pub(super) fn read(vars: &Vars<'_>, config: &mut Settings) -> Result<()> {
    let number = vars.number("COMITY_LANES", MOST_LANES)?;
    config.lanes = number.map(|n| n.max(1)).or(config.lanes);
    Ok(())
}

impl Settings {
    /// With how many threads, in words. For `comity info`.
    pub fn lanes_in_words(&self) -> String {
        let threads = |n: usize| if n == 1 { "one thread".to_owned() } else { format!("up to {n} threads") };
        if let Some(n) = self.lanes {
            return format!("{} of each rank for a large message (COMITY_LANES)", threads(n));
        }
        let own = thread::available_parallelism().map_or(1, |n| n.get());
        let shared = self.host_cores.map_or(own, usize::from);
        let ranks = self.local.map_or(1, |(_, n)| n.max(1));
        let n = most_lanes(&vec![OwnCores { host: 0, shared, own }; ranks]);
        let ranks = if ranks == 1 { "one rank".to_owned() } else { format!("{ranks} ranks") };
        format!("{} of each rank for a large message, with {ranks} on this host", threads(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_say_how_many_threads_and_why() {
        let words = Settings { lanes: Some(3), ..Settings::new(0, 2) }.lanes_in_words();
        assert_eq!(words, "up to 3 threads of each rank for a large message (COMITY_LANES)");
        let config = Settings { host_cores: Some(1), ..Settings::new(0, 2) };
        assert_eq!(
            config.lanes_in_words(),
            "one thread of each rank for a large message, with one rank on this host"
        );
    }
}
