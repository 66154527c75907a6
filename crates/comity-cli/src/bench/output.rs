//! A run as a table for other programs (`--csv`) and as a page with curves (`--html`).
use comity_cluster::escaped;
use serde_json::Value;
use std::{collections::BTreeMap, fmt::Write};

/// The columns of `--csv`, named as `--json` names them.
pub(super) const COLUMNS: &str =
    "op,bytes,count,dtype,redop,ranks,calls,min_us,median_us,p99_us,algbw_GBps,busbw_GBps,cpu_s_per_GB,wrong";

/// A row of comma-separated values; none of them needs quotes.
pub(super) fn csv(row: &Value) -> String {
    let cell = |name: &str| match if name == "ranks" { &row["world"]["ranks"] } else { &row[name] } {
        Value::Null => String::new(),
        Value::String(s) => s.clone(),
        n => n.to_string(),
    };
    COLUMNS.split(',').map(cell).collect::<Vec<_>>().join(",")
}

const COLOURS: [&str; 6] = ["#1f6fb4", "#c4560a", "#2a7d3c", "#8a4bb0", "#b3252f", "#0b7c86"];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
/// Width of the labels beside the curves.
const LEFT: f64 = 84.0;

/// Times and bandwidths of all rows, on one page that needs nothing else.
pub(super) fn html(rows: &[Value], title: &str) -> String {
    let title = escaped(title);
    let mut t = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>comity bench</title><style>\n\
         body {{ font: 15px/1.4 system-ui, sans-serif; max-width: 1000px; margin: 1rem auto; padding: 0 1rem; color: #1b1f24; background: #fff; }}\n\
         table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }} td, th {{ text-align: right; padding: .15rem .7rem .15rem 0; }}\n\
         th {{ color: #667; font-weight: 500; border-bottom: 1px solid #d5d9e0; }} svg {{ width: 100%; max-width: 720px; height: auto; }}\n\
         svg text {{ font-size: 11px; fill: #444; }}\n</style></head><body>\n<h1>comity bench</h1><p>{title}</p>\n"
    );
    t += "<h2>Median time of a call</h2>\n";
    t += &chart(rows, "median_us", "us");
    t += "<h2>Bandwidth of each link (busbw)</h2>\n";
    t += &chart(rows, "busbw_GBps", "GB/s");
    t += "<h2>All rows</h2>\n<table><tr>";
    COLUMNS.split(',').for_each(|c| t += &format!("<th>{c}</th>"));
    t += "</tr>\n";
    for row in rows {
        let cells = csv(row);
        t += "<tr>";
        for cell in cells.split(',') {
            let short = match cell.parse::<f64>() {
                Ok(n) if cell.contains('.') => format!("{n:.2}"),
                _ => escaped(cell),
            };
            t += &format!("<td>{short}</td>");
        }
        t += "</tr>\n";
    }
    t + "</table>\n</body></html>\n"
}

/// Curves over bytes, both axes logarithmic; a legend below, so that no label lies over a curve.
fn chart(rows: &[Value], name: &str, unit: &str) -> String {
    let mut curves: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        let (Some(op), Some(x), Some(y)) = (row["op"].as_str(), row["bytes"].as_f64(), row[name].as_f64())
        else {
            continue;
        };
        if x > 0.0 && y > 0.0 {
            curves.entry(op).or_default().push((x.log2(), y.log10()));
        }
    }
    let all = || curves.values().flatten();
    if all().count() == 0 {
        return "<p>nothing that could be drawn</p>\n".into();
    }
    let range = |of: fn(&(f64, f64)) -> f64| {
        let (low, high) = all().map(of).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        (low.floor(), high.ceil().max(low.floor() + 1.0))
    };
    let ((x0, x1), (y0, y1)) = (range(|p| p.0), range(|p| p.1));
    let place = |(x, y): (f64, f64)| {
        (LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - 20.0), 10.0 + (y1 - y) / (y1 - y0) * (HEIGHT - 50.0))
    };
    let legend = HEIGHT + 18.0 * curves.len() as f64;
    let mut t = format!("<svg viewBox=\"0 0 {WIDTH} {legend}\" role=\"img\">\n");
    // Writing to a string does not fail.
    for power in y0 as i32..=y1 as i32 {
        let (_, y) = place((x0, power.into()));
        let _ = writeln!(
            t,
            "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#e3e6ea\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{} {unit}</text>",
            WIDTH - 20.0,
            LEFT - 6.0,
            y + 4.0,
            10f64.powi(power)
        );
    }
    let step = (((x1 - x0) / 8.0).ceil() as usize).max(1);
    for power in (x0 as i32..=x1 as i32).step_by(step) {
        let (x, _) = place((power.into(), y0));
        let label = crate::size::bytes(1u64 << power.clamp(0, 62));
        let _ =
            writeln!(t, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", HEIGHT - 22.0);
    }
    for (i, (op, points)) in curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let line: Vec<String> =
            points.iter().map(|p| place(*p)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let y = HEIGHT + 18.0 * i as f64;
        let _ = writeln!(
            t,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><path d=\"M{LEFT} {y}h24\" stroke=\"{colour}\" stroke-width=\"3\"/><text x=\"{}\" y=\"{}\">{}</text>",
            line.join(" "),
            LEFT + 32.0,
            y + 4.0,
            escaped(op)
        );
    }
    t + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_become_cells_and_curves() {
        let row = |bytes: u64, us: f64| json!({"op": "all_reduce", "bytes": bytes, "redop": null, "median_us": us, "busbw_GBps": 1.5, "world": {"ranks": 2}});
        let rows = [row(8, 2.5), row(1 << 20, 900.0)];
        assert_eq!(csv(&rows[0]), "all_reduce,8,,,,2,,,2.5,,,1.5,,");
        let page = html(&rows, "2 ranks <b>");
        assert!(page.contains("2 ranks &lt;b&gt;") && page.matches("<polyline").count() == 2, "{page}");
        assert!(!page.contains("http") && !page.contains("NaN") && !page.contains("inf"), "{page}");
        assert!(html(&[], "").contains("nothing that could be drawn"));
    }
}
