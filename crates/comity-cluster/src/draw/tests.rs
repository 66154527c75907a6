//! Requirements on drawings.
use super::*;
use crate::samples::{cluster, macs, mesh, ring};

#[test]
fn every_cable_is_in_every_drawing_and_every_host_too() {
    for (n, pairs) in [(2, mesh(2)), (4, ring(4)), (8, mesh(8))] {
        let cluster = cluster(&macs(n, &pairs));
        let text = terminal(&cluster, false);
        let plugs = text.lines().filter(|l| l.contains('●') && l.contains("Thunderbolt")).count();
        assert_eq!(plugs, 2 * pairs.len(), "{text}");
        assert!(
            (0..n).all(|i| text.contains(&format!("─ m{i} ")) && text.contains("16 cores, 128 GiB")),
            "{text}"
        );
        assert!(text.lines().all(|l| l.chars().count() <= 140), "{text}");
        let picture = svg(&cluster);
        assert_eq!(picture.matches("<title>").count(), pairs.len());
        let graph = dot(&cluster);
        // Beside the cables each host is in the network of all.
        assert_eq!(graph.matches(" -- ").count(), pairs.len() + n);
        assert!(!text.contains('\u{1b}') && terminal(&cluster, true).contains("\u{1b}["));
    }
}

#[test]
fn lines_of_the_terminal_drawing_end_where_they_began() {
    let text = terminal(&cluster(&macs(8, &mesh(8))), false);
    let count = |c| text.matches(c).count();
    assert_eq!((count('╮'), count('╯')), (29, 29), "{text}");
}

#[test]
fn notes_stay_within_the_drawing() {
    let mut cluster = cluster(&macs(2, &mesh(2)));
    cluster.notes = vec!["a sentence that is longer than the drawing of two hosts is wide ".repeat(2); 3];
    let picture = svg(&cluster);
    let width: f64 = picture.split('"').nth(3).unwrap().parse().unwrap();
    let notes: Vec<&str> = picture.lines().filter(|l| l.contains("fill=\"#a00\"")).collect();
    assert!(notes.len() > 3, "{picture}");
    for note in notes {
        let text = note.rsplit_once("</text>").unwrap().0.rsplit_once('>').unwrap().1;
        assert!(30.0 + 7.0 * text.len() as f64 <= width, "{text} in {width}");
    }
}

#[test]
fn names_cannot_break_a_drawing() {
    let mut all = macs(2, &mesh(2));
    all[0].name = "a\"<b>&\\".into();
    let cluster = cluster(&all);
    assert!(svg(&cluster).contains("a&quot;&lt;b&gt;&amp;\\"));
    assert!(dot(&cluster).contains(r#""a\"<b>&\\\n16 cores"#), "{}", dot(&cluster));
}

/// Writes drawings for people to look at: `DRAWINGS_FOLDER=FOLDER cargo test -p comity-cluster drawings_to_look_at`.
#[test]
fn drawings_to_look_at() {
    let folder = std::env::var_os("DRAWINGS_FOLDER").map(std::path::PathBuf::from);
    for (name, n, pairs) in
        [("mesh8", 8, mesh(8)), ("ring8", 8, ring(8)), ("mesh3", 3, mesh(3)), ("two", 2, mesh(2))]
    {
        let cluster = cluster(&macs(n, &pairs));
        let all = [("svg", svg(&cluster)), ("txt", terminal(&cluster, false)), ("dot", dot(&cluster))];
        for (kind, text) in all {
            assert!(text.contains("m1"), "{name}.{kind}");
            if let Some(folder) = &folder {
                std::fs::write(folder.join(format!("{name}.{kind}")), text).unwrap();
            }
        }
    }
}
