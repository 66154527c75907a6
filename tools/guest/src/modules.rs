//! Kernel modules and what they need, in the order in which they can be loaded. The package has no list of that.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// The files of these modules and of all that they need, needed ones first.
pub(super) fn in_order(folder: &Path, wanted: &[&str]) -> Result<Vec<PathBuf>, String> {
    let mut found = HashMap::new();
    list(folder, &mut found).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    let mut order = Vec::new();
    for name in wanted {
        add(&found, name, &mut order)?;
    }
    Ok(order)
}

fn list(folder: &Path, found: &mut HashMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, found)?;
        } else if let Some(name) =
            path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".ko"))
        {
            found.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn add(found: &HashMap<String, PathBuf>, name: &str, order: &mut Vec<PathBuf>) -> Result<(), String> {
    let path = found
        .get(&name.replace('-', "_"))
        .ok_or_else(|| format!("the kernel has no module {name}.ko, or packs it"))?;
    if order.contains(path) {
        return Ok(());
    }
    let bytes = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    for needed in needs(&bytes) {
        add(found, &needed, order)?;
    }
    order.push(path.clone());
    Ok(())
}

/// A module says so in a text `depends=a,b` between zeros.
fn needs(module: &[u8]) -> Vec<String> {
    let text = module.split(|b| *b == 0).find_map(|text| text.strip_prefix(b"depends="));
    let text = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
    text.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tasks::place::Scratch;

    #[test]
    fn needed_modules_come_first() {
        let scratch = Scratch::new("modules").unwrap();
        let folder = scratch.join("net");
        fs::create_dir(&folder).unwrap();
        for (name, text) in
            [("rxe", "x\0depends=tunnel,ib-core\0y"), ("tunnel", "depends=\0"), ("ib-core", "\0")]
        {
            fs::write(folder.join(format!("{name}.ko")), text).unwrap();
        }
        let order = in_order(&scratch.join(""), &["rxe", "ib_core"]).unwrap();
        let names: Vec<_> = order.iter().map(|p| p.file_stem().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["tunnel", "ib-core", "rxe"]);
        assert!(in_order(&scratch.join(""), &["siw"]).unwrap_err().contains("siw"));
    }
}
