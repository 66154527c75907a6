//! Crates that are published: those whose `Cargo.toml` does not say `publish = false`.

use serde_json::Value;
use std::path::Path;
use tasks::{child::Task, place::target};

/// Crate of the workspace that is published.
#[derive(Debug, PartialEq)]
struct Crate {
    name: String,
    /// Oldest compiler that it promises.
    oldest: String,
    /// Crates of the workspace that it needs.
    needs: Vec<String>,
}

/// Package each, as `cargo publish` would; nothing is compiled.
pub(crate) fn package() -> Result<(), String> {
    let crates = published(&metadata()?)?;
    let names = crates.iter().flat_map(|c| ["-p", c.name.as_str()]);
    let task = Task::cargo().args(["package", "--no-verify", "--allow-dirty", "--locked"]).args(names);
    task.limit(600).run()?;
    println!("packaged, in the order in which they are published:");
    for c in &crates {
        println!("  {}{}{}", c.name, if c.needs.is_empty() { "" } else { ", after " }, c.needs.join(", "));
    }
    Ok(())
}

/// Compile each with the oldest compiler that it promises.
pub(crate) fn compile_with_oldest() -> Result<(), String> {
    let crates = published(&metadata()?)?;
    for c in &crates {
        let oldest =
            if c.oldest.matches('.').count() == 1 { format!("{}.0", c.oldest) } else { c.oldest.clone() };
        // A folder of its own: the builds of two compilers would put each other out.
        let folder = target().join("msrv");
        let task = Task::new("rustup").args(["run", "--install", &oldest, "cargo", "check", "--locked"]);
        // The cargo that runs this program has said which compiler is to be used.
        let task = task.env("RUSTUP_TOOLCHAIN", &oldest).env("CARGO_TARGET_DIR", folder);
        task.args(["-p", &c.name]).limit(3600).echo().run()?;
        println!("{} compiles with {oldest}", c.name);
    }
    Ok(())
}

fn metadata() -> Result<Value, String> {
    let said = Task::cargo().args(["metadata", "--no-deps", "--format-version", "1", "--quiet"]).run()?;
    serde_json::from_str(&said).map_err(|e| format!("cargo metadata is no JSON: {e}"))
}

/// Published crates, each after those that it needs; or a crate that cannot be published as it is.
fn published(metadata: &Value) -> Result<Vec<Crate>, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let is_published = |p: &&Value| p["publish"].is_null();
    let names: Vec<&str> = packages.iter().filter(is_published).filter_map(|p| p["name"].as_str()).collect();
    let mut open = Vec::new();
    for package in packages.iter().filter(is_published) {
        open.push(read(package, &names)?);
    }
    let mut ordered: Vec<Crate> = Vec::new();
    while !open.is_empty() {
        let is_ready = |c: &Crate| c.needs.iter().all(|n| ordered.iter().any(|o| o.name == *n));
        let Some(next) = open.iter().position(is_ready) else {
            return Err(format!("these need each other in a circle: {open:?}"));
        };
        ordered.push(open.remove(next));
    }
    Ok(ordered)
}

fn read(package: &Value, names: &[&str]) -> Result<Crate, String> {
    let text = |key: &str| package[key].as_str().map(str::to_owned);
    let name = text("name").ok_or("a package has no name")?;
    for key in ["description", "license"] {
        text(key).ok_or_else(|| format!("{name} is published, and its Cargo.toml has no {key}"))?;
    }
    if package["metadata"]["docs"]["rs"]["targets"].is_null() {
        return Err(format!("{name} is published, and says no target of its documentation"));
    }
    let manifest = text("manifest_path").unwrap_or_default();
    if !Path::new(&manifest).with_file_name("LICENSE").is_file() {
        return Err(format!("{name} is published, and has no LICENSE beside {manifest}"));
    }
    let oldest = text("rust_version").ok_or_else(|| format!("{name} has no rust-version"))?;
    let mut needs = Vec::new();
    for needed in package["dependencies"].as_array().into_iter().flatten() {
        // Whoever uses the crate does not compile its tests.
        if needed["path"].is_null() || needed["kind"] == "dev" {
            continue;
        }
        let needed = needed["name"].as_str().unwrap_or_default().to_owned();
        if !names.contains(&needed.as_str()) {
            return Err(format!("{name} is published, and needs {needed}, which is not"));
        }
        if !needs.contains(&needed) {
            needs.push(needed);
        }
    }
    Ok(Crate { name, oldest, needs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tasks::place::root;

    fn package(name: &str, publish: &Value, needs: &[&str]) -> Value {
        let needs: Vec<Value> =
            needs.iter().map(|n| json!({"name": n, "path": "/x", "kind": null})).collect();
        json!({"name": name, "publish": publish, "dependencies": needs, "description": "d", "license": "MIT",
            "rust_version": "1.89", "metadata": {"docs": {"rs": {"targets": ["t"]}}},
            "manifest_path": root().join("Cargo.toml")})
    }

    #[test]
    fn crates_come_after_what_they_need() {
        let never = json!([]);
        let all = json!({"packages": [
            package("command", &Value::Null, &["core", "plan"]),
            package("core", &Value::Null, &["plan"]),
            package("tool", &never, &["command"]),
            package("plan", &Value::Null, &[]),
        ]});
        let names: Vec<String> = published(&all).unwrap().into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["plan", "core", "command"]);
    }

    #[test]
    fn a_crate_that_needs_one_that_is_not_published_is_named() {
        let never = json!([]);
        let all =
            json!({"packages": [package("core", &Value::Null, &["tool"]), package("tool", &never, &[])]});
        assert_eq!(published(&all).unwrap_err(), "core is published, and needs tool, which is not");
        let mut bare = package("core", &Value::Null, &[]);
        bare["license"] = Value::Null;
        let e = published(&json!({"packages": [bare]})).unwrap_err();
        assert_eq!(e, "core is published, and its Cargo.toml has no license");
        let mut bare = package("core", &Value::Null, &[]);
        bare["manifest_path"] = "/nowhere/Cargo.toml".into();
        let e = published(&json!({"packages": [bare]})).unwrap_err();
        assert_eq!(e, "core is published, and has no LICENSE beside /nowhere/Cargo.toml");
        let mut bare = package("core", &Value::Null, &[]);
        bare["metadata"] = Value::Null;
        let e = published(&json!({"packages": [bare]})).unwrap_err();
        assert_eq!(e, "core is published, and says no target of its documentation");
    }

    #[test]
    fn the_crates_of_this_workspace_can_be_published() {
        let crates = published(&metadata().unwrap()).unwrap();
        assert!(crates.iter().any(|c| c.name == "comity"), "{crates:?}");
    }
}
