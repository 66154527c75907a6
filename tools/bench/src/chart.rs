//! Curves over sizes, as SVG that needs nothing else.

use super::cell::size;
use std::fmt::Write;

/// Picture of some panels beside each other. Times have the same axis in all, rates each their own.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
    pub(crate) axis: Axis,
    /// Lines of small text below.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) curves: Vec<Curve>,
}

#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) colour: &'static str,
    pub(crate) stroke: Stroke,
    /// Bytes, and microseconds or GB/s.
    pub(crate) points: Vec<(u64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stroke {
    Wide,
    Thin,
    Dashed,
}

/// Quantity on the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Axis {
    /// Microseconds, logarithmic.
    Time,
    /// GB/s, from nothing.
    Rate,
}

const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 56.0;
const TALL: f64 = 270.0;
const GAP: f64 = 60.0;
const RIGHT: f64 = 50.0;
/// From the axis to the first row of the legend, and from row to row.
const LEGEND: f64 = 58.0;
const ROW: f64 = 17.0;
/// Words of neighbours below the axis do not touch with so much between.
const APART: f64 = 50.0;

/// Places of values in a picture.
struct Scale {
    sizes: Vec<u64>,
    /// Marks of each panel; alike for times.
    marks: Vec<Vec<f64>>,
    axis: Axis,
    wide: f64,
}

impl Scale {
    /// None where there is nothing to draw: an axis needs two sizes, and values above nothing.
    fn new(picture: &Picture) -> Option<Self> {
        let points = || picture.panels.iter().flat_map(|p| &p.curves).flat_map(|c| &c.points);
        let mut sizes: Vec<u64> = points().map(|p| p.0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let good = points().all(|p| p.1.is_finite() && p.1 > 0.0 && p.0 > 0);
        let high = points().map(|p| p.1).reduce(f64::max)?;
        let low = points().map(|p| p.1).reduce(f64::min)?;
        if sizes.len() < 2 || !good {
            return None;
        }
        let of = |panel: &Panel| match picture.axis {
            Axis::Time => decades(low, high),
            Axis::Rate => from_nothing(panel.curves.iter().flat_map(|c| &c.points).map(|p| p.1)),
        };
        let marks = picture.panels.iter().map(of).collect();
        let panels = picture.panels.len() as f64;
        let wide = (WIDTH - LEFT - RIGHT - (panels - 1.0) * GAP) / panels;
        Some(Self { sizes, marks, axis: picture.axis, wide })
    }

    fn left(&self, panel: usize) -> f64 {
        LEFT + panel as f64 * (self.wide + GAP)
    }

    fn x(&self, bytes: u64) -> f64 {
        let log = |b: u64| (b as f64).ln();
        let low = log(self.sizes[0]);
        let high = log(self.sizes[self.sizes.len() - 1]);
        (log(bytes) - low) / (high - low) * self.wide
    }

    fn y(&self, panel: usize, value: f64) -> f64 {
        let of = |v: f64| if self.axis == Axis::Time { v.ln() } else { v };
        let marks = &self.marks[panel];
        let low = of(marks[0]);
        let high = of(marks[marks.len() - 1]);
        TOP + TALL - (of(value) - low) / (high - low) * TALL
    }

    fn word(&self, mark: f64) -> String {
        match self.axis {
            Axis::Rate => format!("{} GB/s", (mark * 1000.0).round() / 1000.0),
            Axis::Time if mark < 1e3 => format!("{mark} us"),
            Axis::Time if mark < 1e6 => format!("{} ms", mark / 1e3),
            Axis::Time => format!("{} s", mark / 1e6),
        }
    }
}

fn decades(low: f64, high: f64) -> Vec<f64> {
    let low = low.log10().floor() as i32;
    let high = high.log10().ceil() as i32;
    (low..=high.max(low + 1)).map(|p| 10f64.powi(p)).collect()
}

fn from_nothing(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let high = values.fold(0.0, f64::max);
    let step = nice(high / 5.0);
    (0..=(high / step).ceil().max(1.0) as u32).map(|i| f64::from(i) * step).collect()
}

/// 1, 2 or 5 times a power of ten, not below.
fn nice(x: f64) -> f64 {
    let power = 10f64.powf(x.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|m| m * power).find(|m| *m >= x * 0.999).unwrap_or(10.0 * power)
}

/// The picture; none where there is nothing to draw.
pub(crate) fn svg(picture: &Picture) -> Option<String> {
    let panels: Vec<&Panel> = picture.panels.iter().filter(|p| !p.curves.is_empty()).collect();
    if panels.len() != picture.panels.len() {
        return None;
    }
    let scale = Scale::new(picture)?;
    let rows = panels.iter().map(|p| p.curves.len().div_ceil(2)).max().unwrap_or(0) as f64;
    let notes = TOP + TALL + LEGEND + rows * ROW + 12.0;
    let height = notes + 18.0 * picture.notes.len() as f64;
    let title = escaped(&picture.title);
    let mut t = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n"
    );
    for (i, panel) in panels.iter().enumerate() {
        frame(&mut t, &scale, i, &panel.title);
        for (k, curve) in panel.curves.iter().enumerate() {
            line(&mut t, &scale, i, curve);
            let column = scale.left(i) + if k % 2 == 0 { 0.0 } else { scale.wide / 2.0 };
            legend(&mut t, column, TOP + TALL + LEGEND + ROW * (k / 2) as f64, curve);
        }
    }
    for (i, note) in picture.notes.iter().enumerate() {
        let y = notes + 18.0 * i as f64;
        let _ = writeln!(t, "<text x=\"{LEFT}\" y=\"{y}\" fill=\"#444444\">{}</text>", escaped(note));
    }
    Some(t + "</svg>\n")
}

/// A panel's title, its horizontal lines and its words. Writing to a string does not fail.
fn frame(t: &mut String, scale: &Scale, panel: usize, title: &str) {
    let left = scale.left(panel);
    let bottom = TOP + TALL;
    let _ = writeln!(
        t,
        "<text x=\"{left:.1}\" y=\"{}\" font-weight=\"bold\">{}</text>",
        TOP - 10.0,
        escaped(title)
    );
    for &mark in &scale.marks[panel] {
        let y = scale.y(panel, mark);
        let right = left + scale.wide;
        let _ = writeln!(
            t,
            "<line x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>"
        );
        if panel == 0 || scale.axis == Axis::Rate {
            let x = left - 8.0;
            let y = y + 4.0;
            let word = scale.word(mark);
            let _ = writeln!(t, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{word}</text>");
        }
    }
    let mut ends = [f64::MIN; 2];
    for &bytes in &scale.sizes {
        let x = left + scale.x(bytes);
        let _ = writeln!(
            t,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom}\" y2=\"{}\" stroke=\"#555555\"/>",
            bottom + 5.0
        );
        // In the second row where it would touch its neighbour; nowhere where there is no room in either.
        if let Some(row) = (0..2).find(|&r| x - ends[r] >= APART) {
            ends[row] = x;
            let y = bottom + 18.0 + 14.0 * row as f64;
            let _ = writeln!(t, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", size(bytes));
        }
    }
}

impl Stroke {
    const fn svg(self) -> &'static str {
        match self {
            Self::Wide => "stroke-width=\"3\"",
            Self::Thin => "stroke-width=\"1.5\"",
            Self::Dashed => "stroke-width=\"1.5\" stroke-dasharray=\"5 4\"",
        }
    }
}

fn line(t: &mut String, scale: &Scale, panel: usize, curve: &Curve) {
    let left = scale.left(panel);
    let at = curve.points.iter().map(|&(b, v)| (left + scale.x(b), scale.y(panel, v)));
    let at: Vec<(f64, f64)> = at.collect();
    let points: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    let colour = curve.colour;
    let stroke = curve.stroke.svg();
    let _ = writeln!(t, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" {stroke}/>");
    let radius = if curve.stroke == Stroke::Dashed { 2 } else { 3 };
    for (x, y) in at {
        let _ = writeln!(t, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>");
    }
}

fn legend(t: &mut String, x: f64, y: f64, curve: &Curve) {
    let colour = curve.colour;
    let stroke = curve.stroke.svg();
    let label = escaped(&curve.label);
    let end = x + 24.0;
    let middle = y - 4.0;
    let words = x + 30.0;
    let _ = writeln!(
        t,
        "<line x1=\"{x:.1}\" x2=\"{end:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"{colour}\" {stroke}/>\
         <text x=\"{words:.1}\" y=\"{y}\">{label}</text>"
    );
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(axis: Axis, points: &[(u64, f64)]) -> Picture {
        let curve =
            |stroke| Curve { label: "a & b".into(), colour: "#123456", stroke, points: points.into() };
        let panel =
            || Panel { title: "<p>".into(), curves: vec![curve(Stroke::Wide), curve(Stroke::Dashed)] };
        Picture { title: "t".into(), panels: vec![panel(), panel()], axis, notes: vec!["n".into()] }
    }

    #[test]
    fn curves_lie_within_their_panels() {
        for axis in [Axis::Time, Axis::Rate] {
            let text = svg(&picture(axis, &[(8, 0.13), (1 << 10, 2.5), (1 << 26, 123_456.0)])).unwrap();
            assert_eq!(text.matches("<polyline").count(), 4);
            assert_eq!(text.matches("stroke-dasharray").count(), 4);
            assert!(text.contains("a &amp; b") && text.contains("&lt;p&gt;") && text.contains("64 MiB"));
            for bad in ["NaN", "inf", "x=\"-", "http://www.w3.org/1999"] {
                assert!(!text.contains(bad), "{bad}: {text}");
            }
            for point in text.split("<circle cx=\"").skip(1) {
                let x: f64 = point.split('"').next().unwrap().parse().unwrap();
                let y: f64 = point.split("cy=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
                assert!((LEFT - 0.1..=WIDTH - RIGHT + 0.1).contains(&x), "{x}");
                assert!((TOP - 0.1..=TOP + TALL + 0.1).contains(&y), "{y}");
            }
        }
    }

    #[test]
    fn no_axis_is_empty() {
        assert_eq!(svg(&picture(Axis::Time, &[])), None);
        assert_eq!(svg(&picture(Axis::Time, &[(8, 1.0)])), None);
        assert_eq!(svg(&picture(Axis::Time, &[(8, 0.0), (16, 1.0)])), None);
        let mut none = picture(Axis::Time, &[(8, 1.0), (16, 1.0)]);
        none.panels[1].curves.clear();
        assert_eq!(svg(&none), None);
        // Equal values have an axis none the less.
        assert!(svg(&picture(Axis::Time, &[(8, 1.0), (16, 1.0)])).is_some());
    }

    #[test]
    fn marks_are_round_numbers() {
        assert_eq!([nice(0.9), nice(1.0), nice(3.1), nice(60.0)], [1.0, 1.0, 5.0, 100.0]);
    }
}
