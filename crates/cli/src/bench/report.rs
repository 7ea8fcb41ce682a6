//! From rounds to medians, ratios and goals; as a table, as JSON, as a page.

use std::fmt::Write;

use serde::Serialize;

use super::peers::Beside;
use super::worker::Measured;
use crate::args::Peer;
use crate::output::Table;

/// One row.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) operation: String,
    pub(crate) adit_ns: f64,
    pub(crate) kernel_ns: f64,
    pub(crate) raw_ns: Option<f64>,
    pub(crate) raw_is: String,
    pub(crate) adit_to_kernel: f64,
    /// The smallest and the largest of the rounds' ratios.
    pub(crate) adit_to_kernel_range: [f64; 2],
    pub(crate) adit_to_raw: Option<f64>,
    /// The goal in words.
    pub(crate) goal: Option<String>,
    pub(crate) met: Option<bool>,
}

/// Everything that was measured in one run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) suite: &'static str,
    pub(crate) dir: String,
    pub(crate) medium: String,
    pub(crate) kernel: String,
    pub(crate) processors: usize,
    pub(crate) rounds: u32,
    /// Whether the library served the measured process. Without it no row means anything.
    pub(crate) library_active: bool,
    pub(crate) rows: Vec<Row>,
    /// What others have measured of other libraries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) peers: Vec<Beside>,
    /// What was not measured, and what it needs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) skipped: Vec<String>,
    /// What went wrong, and where; it has no rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<String>,
}

/// The middle value.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len().checked_sub(1)? / 2;
    let upper = sorted[sorted.len() / 2];
    Some((sorted[middle] + upper) / 2.0)
}

/// The ratios of the rounds. Their median is steadier than the ratio of the medians when the machine's speed drifts.
fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(a, b)| a / b).collect()
}

/// What the columns of a table do not say by themselves.
const RATIOS: &str = "ratios are medians of the rounds' ratios, not quotients of the medians beside them; \
                      the range is that of adit/kernel";

impl Row {
    /// A row; `None` when a side has no rounds.
    pub(crate) fn new(measured: Measured) -> Option<Self> {
        let fastest = measured
            .raw
            .iter()
            .filter(|rounds| !rounds.is_empty())
            .min_by(|a, b| {
                median(a)
                    .partial_cmp(&median(b))
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
        let to_kernel = ratios(&measured.adit, &measured.kernel);
        let adit_to_kernel = median(&to_kernel)?;
        let least = to_kernel.iter().copied().fold(f64::INFINITY, f64::min);
        let most = to_kernel.iter().copied().fold(0.0, f64::max);
        let adit_to_raw = fastest.and_then(|raw| median(&ratios(&measured.adit, raw)));
        let goal = measured.goal.map(|goal| {
            let whose = if goal.of_raw { "raw" } else { "kernel" };
            let most = (goal.most * 1000.0).round() / 1000.0;
            format!("<= {most} x {whose}")
        });
        let met = measured.goal.and_then(|goal| {
            let reached = if goal.of_raw {
                adit_to_raw
            } else {
                Some(adit_to_kernel)
            };
            reached.map(|ratio| ratio <= goal.most)
        });
        Some(Self {
            operation: measured.name,
            adit_ns: median(&measured.adit)?,
            kernel_ns: median(&measured.kernel)?,
            raw_ns: fastest.and_then(|raw| median(raw)),
            raw_is: measured.raw_is,
            adit_to_kernel,
            adit_to_kernel_range: [least, most],
            adit_to_raw,
            goal,
            met,
        })
    }

    fn cells(&self) -> [String; 9] {
        let [least, most] = self.adit_to_kernel_range;
        let number = |value: Option<f64>, digits: usize| match value {
            Some(value) => format!("{value:.digits$}"),
            None => "-".to_owned(),
        };
        [
            self.operation.clone(),
            number(Some(self.adit_ns), 0),
            number(Some(self.kernel_ns), 0),
            number(self.raw_ns, 0),
            number(Some(self.adit_to_kernel), 2),
            format!("{least:.2}-{most:.2}"),
            number(self.adit_to_raw, 2),
            self.goal.clone().unwrap_or_else(|| "-".to_owned()),
            match self.met {
                Some(true) => "yes".to_owned(),
                Some(false) => "NO".to_owned(),
                None => "-".to_owned(),
            },
        ]
    }
}

const HEADINGS: [&str; 9] = [
    "operation",
    ">adit ns",
    ">kernel ns",
    ">raw ns",
    ">adit/kernel",
    ">range",
    ">adit/raw",
    "goal",
    "met",
];

impl Report {
    /// With what is known of these.
    pub(crate) fn beside(mut self, peers: &[Peer]) -> Self {
        for peer in peers {
            match peer.beside(&self.rows) {
                Some(beside) => self.peers.push(beside),
                None => self.skipped.push(format!(
                    "peer {}: nothing is known of it that suite {} measures",
                    peer.name(),
                    self.suite
                )),
            }
        }
        self
    }

    /// Whether every goal was met by numbers that mean something.
    pub(crate) fn all_met(&self) -> bool {
        let met = self.rows.iter().all(|row| row.met != Some(false));
        self.library_active && self.failed.is_empty() && met
    }

    fn title(&self) -> String {
        format!(
            "suite {} in {} (medium {}), kernel {}, {} processors, medians of {} rounds",
            self.suite, self.dir, self.medium, self.kernel, self.processors, self.rounds
        )
    }

    /// For people.
    pub(crate) fn print(&self) {
        println!("{}", self.title());
        let mut table = Table::new(&HEADINGS);
        for row in &self.rows {
            table.row(row.cells());
        }
        table.print();
        if !self.rows.is_empty() {
            println!("{RATIOS}");
        }
        self.peers.iter().for_each(Beside::print);
        self.remarks().for_each(|remark| println!("{remark}"));
    }

    fn remarks(&self) -> impl Iterator<Item = String> {
        let skipped = self.skipped.iter().map(|what| format!("skipped {what}"));
        skipped.chain(self.failed.iter().map(|what| format!("FAILED {what}")))
    }

    fn html(&self, page: &mut String) {
        let _ = writeln!(page, "<p>{}</p>", escape(&self.title()));
        page.push_str("<table><tr>");
        for heading in HEADINGS {
            let _ = write!(page, "<th>{}</th>", escape(heading.trim_start_matches('>')));
        }
        page.push_str("<th>adit as a share of the kernel's time</th></tr>\n");
        for row in &self.rows {
            row.html(page);
        }
        page.push_str("</table>\n");
        self.peers.iter().for_each(|peer| peer.html(page));
        for remark in self.remarks() {
            let _ = writeln!(page, "<p>{}</p>", escape(&remark));
        }
    }
}

impl Beside {
    fn print(&self) {
        println!("{}", self.title());
        let mut table = Table::new(&Self::HEADINGS);
        self.rows.iter().for_each(|row| table.row(row.cells()));
        table.print();
    }

    fn html(&self, page: &mut String) {
        let _ = write!(page, "<p>{}</p>\n<table><tr>", escape(&self.title()));
        for heading in Self::HEADINGS {
            let _ = write!(page, "<th>{}</th>", escape(heading.trim_start_matches('>')));
        }
        page.push_str("</tr>\n");
        for row in &self.rows {
            page.push_str("<tr>");
            for cell in row.cells() {
                let _ = write!(page, "<td>{}</td>", escape(&cell));
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</table>\n");
    }
}

/// One page without anything to load.
pub(crate) fn html(reports: &[Report]) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Adit</title>\n<style>\
         body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}\
         table{border-collapse:collapse;width:100%}\
         td,th{padding:.3rem .6rem;border-bottom:1px solid #8884;text-align:right}\
         td:first-child,th:first-child{text-align:left}\
         .bar{display:block;height:.4rem;background:#3a7}\
         .over .bar{background:#c63}.no{color:#c33;font-weight:bold}\
         small{color:#777}</style>\n<h1>Adit beside the kernel and the raw copy</h1>\n",
    );
    reports.iter().for_each(|report| report.html(&mut page));
    let _ = writeln!(
        page,
        "<p><small>Times are nanoseconds per operation. All sides of a row ran in turn: adit through the \
         preloaded functions, the kernel through libc's own; {RATIOS}. \
         Hover over an operation to see what its raw limit is.</small></p></html>",
    );
    page
}

impl Row {
    fn html(&self, page: &mut String) {
        let class = if self.adit_to_kernel > 1.02 {
            " class=over"
        } else {
            ""
        };
        let _ = write!(page, "<tr{class} title=\"raw: {}\">", escape(&self.raw_is));
        for cell in self.cells() {
            let class = if cell == "NO" { " class=no" } else { "" };
            let _ = write!(page, "<td{class}>{}</td>", escape(&cell));
        }
        let width = (self.adit_to_kernel * 50.0).clamp(0.5, 100.0);
        let _ = writeln!(
            page,
            "<td><span class=bar style=\"width:{width:.1}%\"></span></td></tr>"
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::cases::Goal;
    use super::*;

    fn measured(adit: f64, goal: Goal) -> Measured {
        Measured {
            name: "read <big>".into(),
            adit: vec![adit, adit * 3.0, adit],
            kernel: vec![100.0, 300.0, 100.0],
            raw: vec![vec![80.0, 240.0, 80.0], vec![50.0, 150.0, 50.0]],
            raw_is: "copy".into(),
            goal: Some(goal),
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn goals_can_be_met_and_missed() {
        let row = Row::new(measured(
            60.0,
            Goal {
                of_raw: true,
                most: 1.3,
            },
        ))
        .unwrap();
        assert_eq!((row.adit_to_raw, row.met), (Some(1.2), Some(true)));
        assert_eq!(row.adit_to_kernel_range, [0.6, 0.6]);
        assert_eq!(row.adit_to_kernel, 0.6);
        let row = Row::new(measured(
            70.0,
            Goal {
                of_raw: true,
                most: 1.3,
            },
        ))
        .unwrap();
        assert_eq!(row.met, Some(false));
        let row = Row::new(measured(
            110.0,
            Goal {
                of_raw: false,
                most: 1.02,
            },
        ))
        .unwrap();
        assert_eq!(row.met, Some(false));
        let report = Report {
            library_active: true,
            rows: vec![row],
            ..Report::default()
        };
        assert!(!report.all_met());
        // A kernel compared with itself meets nothing.
        assert!(!Report::default().all_met());
    }

    #[test]
    fn the_page_quotes_what_it_shows() {
        let row = Row::new(measured(
            60.0,
            Goal {
                of_raw: true,
                most: 1.3,
            },
        ));
        let page = html(&[Report {
            rows: row.into_iter().collect(),
            ..Report::default()
        }]);
        assert!(page.contains("read &lt;big&gt;") && !page.contains("read <big>"));
    }
}
