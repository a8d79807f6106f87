//! Charts over time as SVG, without external resources.

use std::fmt::Write as _;

use crate::study::table::span;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 210.0;
/// Space for the numbers at the left, the legend above, and the times below.
const LEFT: f64 = 64.0;
const TOP: f64 = 30.0;
const BELOW: f64 = 24.0;
const RIGHT: f64 = 28.0;
/// The numbers of horizontal lines and of time labels.
const LINES: u32 = 4;
const TIMES: u32 = 6;

/// A line over time; a point without a value is a gap.
pub(crate) struct ChartLine {
    pub(crate) name: String,
    /// The class for which the report's style defines a color.
    pub(crate) class: &'static str,
    /// True if a value holds until the next one; false if the line runs straight to it.
    pub(crate) steps: bool,
    pub(crate) points: Vec<(f64, Option<f64>)>,
}

/// A chart.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    /// The suffix of printed values.
    pub(crate) unit: &'a str,
    pub(crate) lines: Vec<ChartLine>,
    /// A value that should not be exceeded.
    pub(crate) limit: Option<f64>,
    /// The largest shown value, for values that can be far above the interesting range.
    pub(crate) ceiling: Option<f64>,
}

/// The largest shown time and value.
#[derive(Clone, Copy)]
struct Axes {
    end: f64,
    top: f64,
}

impl Chart<'_> {
    /// The title, with a note if the axis ends below the peak.
    fn titled(&self, top: f64, peak: f64) -> String {
        let Self { title, unit, .. } = self;
        if peak <= top {
            return (*title).to_owned();
        }
        format!("{title}; cut off at {}{unit}, the highest is {}{unit}", number(top), number(peak))
    }

    /// The chart as an SVG element.
    pub(crate) fn svg(&self) -> String {
        let points: Vec<&(f64, Option<f64>)> =
            self.lines.iter().flat_map(|line| &line.points).collect();
        let end = points.iter().map(|(at, _)| *at).fold(1e-9, f64::max);
        let peak = points.iter().filter_map(|(_, value)| *value).fold(0.0, f64::max);
        let highest = self.limit.map_or(peak, |limit| peak.max(limit * 1.1));
        let top = round_up(self.ceiling.map_or(highest, |ceiling| highest.min(ceiling)));
        let axes = Axes { end, top };

        let title = escaped(&self.titled(top, peak));
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n\
             <text class=\"title\" x=\"{LEFT}\" y=\"16\">{title}</text>\n"
        );
        // Writing to a string cannot fail.
        for step in 0..=LINES {
            let value = top * f64::from(step) / f64::from(LINES);
            let at = axes.y(value);
            let number = number(value);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text class=\"y\" x=\"{:.1}\" \
                 y=\"{:.1}\">{number}{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                escaped(self.unit),
            );
        }

        for step in 0..=TIMES {
            let at = end * f64::from(step) / f64::from(TIMES);
            let _ = writeln!(
                svg,
                "<text class=\"x\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                axes.x(at),
                HEIGHT - 6.0,
                span(at)
            );
        }

        if let Some(limit) = self.limit {
            let at = axes.y(limit);
            let _ =
                writeln!(svg, "<path class=\"limit\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
        }

        let mut legend = WIDTH - RIGHT;
        for line in self.lines.iter().rev() {
            legend -= 8.0 * line.name.chars().count() as f64 + 26.0;
            let name = escaped(&line.name);
            let _ = writeln!(
                svg,
                "<path class=\"line {0}\" d=\"M{1:.1} 12h16\"/><text x=\"{2:.1}\" y=\"16\">{name}</text>\n\
                 <path class=\"line {0}\" d=\"{3}\"/>",
                line.class,
                legend,
                legend + 20.0,
                line.path(axes),
            );
        }

        svg.push_str("</svg>\n");
        svg
    }
}

impl Axes {
    fn x(self, at: f64) -> f64 {
        LEFT + at / self.end * (WIDTH - LEFT - RIGHT)
    }

    fn y(self, value: f64) -> f64 {
        TOP + (1.0 - (value / self.top).clamp(0.0, 1.0)) * (HEIGHT - TOP - BELOW)
    }
}

impl ChartLine {
    fn path(&self, axes: Axes) -> String {
        let mut path = String::new();
        let mut down = false;
        for &(at, value) in &self.points {
            let Some(value) = value else {
                down = false;
                continue;
            };
            let x = axes.x(at);
            let y = axes.y(value);
            // Writing to a string cannot fail.
            let _ = match (down, self.steps) {
                (false, _) => write!(path, "M{x:.1} {y:.1}"),
                (true, true) => write!(path, "H{x:.1}V{y:.1}"),
                (true, false) => write!(path, "L{x:.1} {y:.1}"),
            };
            down = true;
        }

        path
    }
}

/// The next number of 1, 2, 4, 5 or 8 times a power of ten, because these divide well into
/// quarters.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
    let step = steps.into_iter().find(|factor| factor * power >= value * (1.0 - 1e-9));
    step.unwrap_or(10.0) * power
}

fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text with escaped markup.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number_above_all_values() {
        for (value, top) in [(0.0, 1.0), (0.03, 0.04), (1.0, 1.0), (6.1, 8.0), (9.0, 10.0)] {
            assert!((round_up(value) - top).abs() < 1e-9, "{value}: {}", round_up(value));
        }
        assert_eq!(
            (number(0.25), number(40.0), number(0.0)),
            ("0.25".into(), "40".into(), "0".into())
        );
    }

    fn svg(values: &[f64]) -> String {
        let points = values.iter().zip(0..).map(|(value, at)| (f64::from(at), Some(*value)));
        let line = ChartLine {
            name: "TTFT".to_owned(),
            class: "a",
            steps: false,
            points: points.collect(),
        };

        let limit = Some(2.0);
        let ceiling = Some(10.0);
        Chart { title: "Time", unit: " s", lines: vec![line], limit, ceiling }.svg()
    }

    #[test]
    fn a_chart_that_is_cut_off_says_where_and_how_high_it_was() {
        let cut = svg(&[1.0, 81.25, 3.0]);
        assert!(cut.contains(">Time; cut off at 10 s, the highest is 81.25 s<"), "{cut}");
        let whole = svg(&[1.0, 9.5, 3.0]);
        assert!(whole.contains(">Time<") && !whole.contains("cut off"), "{whole}");
    }

    #[test]
    fn a_line_has_gaps_and_names_are_no_markup() {
        let points = vec![(0.0, Some(1.0)), (1.0, None), (2.0, Some(0.5)), (4.0, Some(1.0))];
        let line = ChartLine { name: "<b>".to_owned(), class: "a", steps: true, points };
        let chart =
            Chart { title: "t & u", unit: "", lines: vec![line], limit: None, ceiling: None };
        let svg = chart.svg();
        assert!(svg.contains("M64.0 30.0M478.0 108.0H892.0V30.0"), "{svg}");
        assert!(svg.contains("t &amp; u") && svg.contains("&lt;b&gt;") && !svg.contains("<b>"));
    }
}
