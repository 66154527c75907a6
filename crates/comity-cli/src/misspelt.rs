//! Variables of the environment that look like misspelt settings.

use comity::tools::VARIABLES;
use strsim::levenshtein;

/// The most letters that differ in a misspelt name.
const SLIPS: usize = 2;

/// Sentences about variables of this process that are nearly a setting's name. A variable that is like none is somebody else's.
pub(crate) fn misspelt() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter_map(|name| doubt(&name)).collect()
}

/// A sentence about this variable, if it is nearly a setting's name.
fn doubt(name: &str) -> Option<String> {
    if !name.starts_with("COMITY_") || VARIABLES.iter().any(|v| v.name == name) {
        return None;
    }
    let (slips, meant) = VARIABLES.iter().map(|v| (levenshtein(name, v.name), v.name)).min()?;
    (slips <= SLIPS).then(|| format!("nothing reads {name}; do you mean {meant}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_told_and_a_variable_of_ones_own_is_not() {
        let of_comity = |rest: &str| doubt(&format!("COMITY_{rest}"));
        let told = of_comity("TIMOUT").unwrap();
        assert!(told.ends_with("TIMOUT; do you mean COMITY_TIMEOUT?"), "{told}");
        for rest in ["TIMEOUT", "TEST_DEEP", "RUN_NAME"] {
            assert_eq!(of_comity(rest), None);
        }
        assert_eq!(doubt("TIMEOUT"), None);
    }
}
