//! Fuzzes hostfiles and variables.

use super::{Settings, mlx_hostfile::Hostfile};
use crate::ErrorKind;
use std::{collections::HashMap, ffi::OsString, os::unix::ffi::OsStringExt};

/// A hostfile, or lines `NAME=value`.
pub fn config(bytes: &[u8]) {
    let Some((first, text)) = bytes.split_first() else { return };
    let error = if first % 2 == 0 {
        let file = Hostfile::parse("hosts.json", text);
        file.and_then(|f| {
            assert!(!f.ranks.is_empty() && !f.job().is_empty());
            f.check("MLX_RANK", usize::from(*first) / 2, None, first % 3 == 0)
        })
        .err()
    } else {
        let lines = text
            .split(|b| *b == b'\n')
            .filter_map(|l| l.split_at_checked(l.iter().position(|b| *b == b'=')?));
        let vars: HashMap<&str, OsString> = lines
            .filter_map(|(name, value)| {
                Some((str::from_utf8(name).ok()?, OsString::from_vec(value.get(1..)?.to_vec())))
            })
            // Would read files and descriptors of this process.
            .filter(|(name, _)| {
                !["MLX_HOSTFILE", "COMITY_KEY_FILE", "COMITY_KEY_FD", "COMITY_ROOT_CAUSE_FD"].contains(name)
            })
            .collect();
        let config = Settings::from_vars(&|name| vars.get(name).cloned());
        config.map(|c| assert!(c.rank < c.size && !c.evidence.why.is_empty())).err()
    };
    if let Some(e) = error {
        assert!(matches!(e.kind(), ErrorKind::Config(why) if !why.to_string().is_empty()), "{e}");
    }
}
