//! One table of medians with spread and of ratios, and a chart of the ratios.

use std::fmt::Write as _;

use super::Arguments;

/// Which figure is the better one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    More,
    Less,
}

struct Row {
    work: String,
    system: String,
    unit: &'static str,
    median: f64,
    least: f64,
    most: f64,
    /// How much better than the reference, and which that is.
    ratio: f64,
    reference: String,
}

/// What was measured.
pub struct Report {
    folder: std::path::PathBuf,
    only: String,
    work: String,
    samples: Vec<(String, Vec<f64>)>,
    rows: Vec<Row>,
}

impl Report {
    pub fn new(arguments: &Arguments) -> Self {
        Self {
            folder: arguments.folder.clone(),
            only: arguments.only.clone(),
            work: String::new(),
            samples: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Begins a work, if it is asked for.
    pub fn wants(&mut self, work: &str) -> bool {
        let wanted = work.contains(&self.only);
        if wanted {
            eprintln!("{work}");
            self.begin(work);
        }
        wanted
    }

    /// Begins a work.
    pub fn begin(&mut self, work: &str) {
        work.clone_into(&mut self.work);
        self.samples.clear();
    }

    /// One measurement.
    pub fn add(&mut self, system: &str, value: f64) {
        match self.samples.iter_mut().find(|(name, _)| name == system) {
            Some((_, values)) => values.push(value),
            None => self.samples.push((system.to_owned(), vec![value])),
        }
    }

    /// Ends a work; ratios are to `reference`, larger than 1 where a system is better.
    pub fn end(&mut self, unit: &'static str, better: Better, reference: &str) {
        let median = |values: &[f64]| {
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted[sorted.len() / 2]
        };
        let base = self.samples.iter().find(|(name, _)| name == reference);
        let base = base.map_or(f64::NAN, |(_, values)| median(values));
        for (system, values) in self.samples.drain(..) {
            let middle = median(&values);
            let is_memory = system.ends_with("peak MiB");
            let ratio = if is_memory {
                f64::NAN
            } else if better == Better::More {
                middle / base
            } else {
                base / middle
            };
            self.rows.push(Row {
                work: self.work.clone(),
                system,
                unit: if is_memory { "MiB" } else { unit },
                median: middle,
                least: values.iter().copied().fold(f64::INFINITY, f64::min),
                most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                ratio,
                reference: reference.to_owned(),
            });
        }
    }

    /// Prints the table, and writes it and the chart into the folder.
    pub fn finish(&self) {
        let mut text = "| work | system | median | least – most | ratio |\n|---|---|---:|---:|---:|\n".to_owned();
        let mut before = "";
        for row in &self.rows {
            let work = if row.work == before { "" } else { row.work.as_str() };
            before = &row.work;
            let ratio = if row.ratio.is_nan() { String::new() } else { format!("{:.2} × {}", row.ratio, row.reference) };
            let _ = writeln!(
                text,
                "| {work} | {} | {} {} | {} – {} | {ratio} |",
                row.system,
                figure(row.median),
                row.unit,
                figure(row.least),
                figure(row.most),
            );
        }
        println!("{text}");
        std::fs::write(self.folder.join("report.md"), &text).expect("the folder can be written");
        std::fs::write(self.folder.join("chart.svg"), self.chart()).expect("the folder can be written");
    }

    /// Bars of each figure as a part of the longest of its work.
    fn chart(&self) -> String {
        let shown: Vec<&Row> = self.rows.iter().filter(|row| !row.ratio.is_nan()).collect();
        let works = shown.iter().fold(Vec::new(), |mut works: Vec<&str>, row| {
            if works.last() != Some(&row.work.as_str()) {
                works.push(&row.work);
            }
            works
        });
        let height = (shown.len() + works.len() * 2) * LINE + LINE;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"860\" height=\"{height}\" fill=\"white\"/>\n"
        );
        let mut y = LINE;
        for work in works {
            let _ = writeln!(text, "<text x=\"10\" y=\"{y}\" font-weight=\"bold\">{work}</text>");
            let rows: Vec<_> = shown.iter().filter(|row| row.work == work).collect();
            let longest = rows.iter().map(|row| row.median).fold(0.0, f64::max);
            for row in rows {
                y += LINE;
                let width = row.median / longest * WIDTH;
                let colour = if row.system.starts_with("lancefs") { "#c2410c" } else { "#94a3b8" };
                let _ = writeln!(
                    text,
                    "<text x=\"200\" y=\"{y}\" text-anchor=\"end\">{}</text><rect x=\"210\" y=\"{}\" width=\"{width:.0}\" height=\"12\" fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{y}\">{} {}</text>",
                    row.system,
                    y - 10,
                    220.0 + width,
                    figure(row.median),
                    row.unit
                );
            }
            y += LINE * 2;
        }
        text + "</svg>\n"
    }
}

/// The height of a line of the chart, and the length of its longest bar, in pixels.
const LINE: usize = 18;
const WIDTH: f64 = 500.0;

/// Three digits that matter.
fn figure(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else if value >= 10.0 { format!("{value:.1}") } else { format!("{value:.2}") }
}
