//! What others have measured of other libraries, beside what was measured here.
//!
//! Times move between machines. What may be compared is each one's share of the time that the kernel of its own machine
//! takes, so that stands beside them, where it is known.

use serde::Serialize;

use super::report::Row;
use crate::args::Peer;

/// A peer's figures beside ours.
#[derive(Debug, Serialize)]
pub(crate) struct Beside {
    pub(crate) peer: &'static str,
    /// Where its figures are from.
    pub(crate) measured_on: &'static str,
    pub(crate) rows: Vec<PeerRow>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PeerRow {
    pub(crate) operation: &'static str,
    /// On its machine.
    pub(crate) peer_ns: f64,
    /// On its machine, too.
    pub(crate) kernel_there_ns: Option<f64>,
    pub(crate) peer_to_kernel_there: Option<f64>,
    /// On this one, as in the table of the suite.
    pub(crate) adit_to_kernel_here: f64,
}

/// An operation of suite `posix`, what the peer takes for it, and what the kernel took there.
type Figure = (&'static str, f64, Option<f64>);

const MADFS: [Figure; 7] = [
    ("append 4 KB, O_APPEND", 6954.0, Some(1583.0)),
    ("read 4 KB, sequential, warm", 275.0, Some(401.0)),
    ("pread 4 KB, random, warm", 437.0, Some(675.0)),
    ("pwrite 4 KB, sequential", 312.0, Some(617.0)),
    ("pwrite 4 KB, random", 286.0, None),
    ("pread 64 B, random, warm", 198.0, Some(441.0)),
    ("pwrite 64 B, random", 543.0, None),
];

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        self.figures().0
    }

    fn figures(self) -> (&'static str, &'static str, &'static [Figure]) {
        match self {
            Self::Madfs => (
                "MadFS",
                "another machine: tmpfs, 4 processors (AMD EPYC), Linux 6.18",
                &MADFS,
            ),
        }
    }

    /// Its figures of what `rows` have; none where these are of other operations.
    pub(crate) fn beside(self, rows: &[Row]) -> Option<Beside> {
        let (peer, measured_on, figures) = self.figures();
        let row = |&(operation, peer_ns, kernel): &Figure| {
            let ours = rows.iter().find(|row| row.operation == operation)?;
            Some(PeerRow {
                operation,
                peer_ns,
                kernel_there_ns: kernel,
                peer_to_kernel_there: kernel.map(|kernel| peer_ns / kernel),
                adit_to_kernel_here: ours.adit_to_kernel,
            })
        };
        let rows: Vec<_> = figures.iter().filter_map(row).collect();
        (!rows.is_empty()).then_some(Beside {
            peer,
            measured_on,
            rows,
        })
    }
}

impl Beside {
    pub(crate) const HEADINGS: [&str; 5] = [
        "operation",
        ">there ns",
        ">kernel there ns",
        ">there/kernel there",
        ">adit/kernel here",
    ];

    pub(crate) fn title(&self) -> String {
        format!("{}, measured on {}", self.peer, self.measured_on)
    }
}

impl PeerRow {
    pub(crate) fn cells(&self) -> [String; 5] {
        let known = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        [
            self.operation.to_owned(),
            known(Some(self.peer_ns), 0),
            known(self.kernel_there_ns, 0),
            known(self.peer_to_kernel_there, 2),
            known(Some(self.adit_to_kernel_here), 2),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::worker::Measured;
    use super::*;

    fn row(name: &str) -> Row {
        let measured = Measured {
            name: name.into(),
            adit: vec![60.0],
            kernel: vec![100.0],
            raw: Vec::new(),
            raw_is: String::new(),
            goal: None,
        };
        Row::new(measured).unwrap()
    }

    #[test]
    fn a_peer_stands_beside_what_was_measured_alone() {
        let rows = [row("append 4 KB, O_APPEND"), row("something else")];
        let beside = Peer::Madfs.beside(&rows).unwrap();
        let cells = beside.rows.iter().map(PeerRow::cells);
        let cells: Vec<_> = cells.map(|cells| cells.join(" ")).collect();
        assert_eq!(cells, ["append 4 KB, O_APPEND 6954 1583 4.39 0.60"]);
        assert!(Peer::Madfs.beside(&rows[1..]).is_none());
    }
}
