//! The curve of a loss, as a picture.

use std::fmt::Write as _;

/// Losses as a curve, in SVG; `steps` names the moments after which each was taken.
///
/// ```
/// let picture = demo::plot(&[2.0, 1.0, 0.5], "epochs");
/// assert!(picture.contains("0.0,0.0 320.0,160.0 640.0,240.0"));
/// assert!(picture.contains("loss after each of 3 epochs"));
/// ```
#[must_use]
pub fn plot(losses: &[f64], steps: &str) -> String {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 320.0;
    let top = losses.iter().copied().fold(1e-9, f64::max);
    let mut points = String::new();
    for (i, loss) in losses.iter().enumerate() {
        let x = WIDTH * i as f64 / (losses.len().max(2) - 1) as f64;
        // A String takes all that is written.
        let _ = write!(points, "{x:.1},{:.1} ", HEIGHT * (1.0 - loss / top));
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-40 -20 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <polyline fill=\"none\" stroke=\"#1f6feb\" points=\"{points}\"/>\n\
         <line x2=\"{WIDTH}\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\" stroke=\"gray\"/>\n\
         <line y2=\"{HEIGHT}\" stroke=\"gray\"/>\n\
         <text x=\"-34\" y=\"8\">{top:.2}</text><text x=\"-12\" y=\"{HEIGHT}\">0</text>\n\
         <text x=\"{:.0}\" y=\"{:.0}\">loss after each of {} {steps}</text>\n</svg>\n",
        WIDTH + 60.0,
        HEIGHT + 60.0,
        WIDTH / 2.0 - 70.0,
        HEIGHT + 24.0,
        losses.len()
    )
}
