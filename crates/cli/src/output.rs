//! Reports: JSON for programs, aligned tables for people; and how all commands print.

use std::fmt::Arguments;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::failure::{FAILED, Failure, said};

/// As the standard library's, which panics where nothing can be written. That is no defect of this program.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::report(format_args!($($text)*)) };
}

/// As [`print`], with the end of a line.
macro_rules! println {
    () => { print!("\n") };
    ($($text:tt)*) => { print!("{}\n", format_args!($($text)*)) };
}

/// As the standard library's, which panics as well. Who cannot be told is not told: above all, `adit run` starts the
/// program all the same.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::remark(format_args!($($text)*)) };
}

/// Writes to standard output.
pub(crate) fn report(text: Arguments<'_>) {
    is_written(std::io::stdout().write_all(harmless(text).as_bytes()));
}

/// Names come from other programs, and from pools: nothing in them may steer a terminal.
fn harmless(text: Arguments<'_>) -> String {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    text.to_string().replace(steers, "?")
}

/// Empties the terminal that standard output is.
pub(crate) fn clear_screen() -> std::io::Result<()> {
    std::io::stdout().write_all(b"\x1b[H\x1b[2J")
}

/// Where something could not be written to standard output nothing else that would be said could be, so this is the end.
pub(crate) fn is_written(done: std::io::Result<()>) {
    if let Err(error) = done {
        eprintln!("adit: standard output: {}", said(&error));
        std::process::exit(FAILED.into());
    }
}

/// Writes a line to standard error.
pub(crate) fn remark(text: Arguments<'_>) {
    let _ = std::io::stderr().write_all(harmless(format_args!("{text}\n")).as_bytes());
}

/// Prints a report as indented JSON.
pub(crate) fn json(report: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report).map_err(|e| Failure::new(e.to_string()))?;
    println!("{text}");
    Ok(())
}

/// A path in a report: JSON has no words for what is not UTF-8.
pub(crate) fn lossy<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// A path in a report that may be none.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
pub(crate) struct Lossy(#[serde(serialize_with = "lossy")] pub(crate) PathBuf);

/// A path as a shell and a command take it, whatever is in it.
pub(crate) fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    if bytes.starts_with(b"-") {
        // Not an option.
        return quoted(&Path::new(".").join(path));
    }
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(byte);
    match std::str::from_utf8(bytes) {
        Ok(text) if !bytes.is_empty() && bytes.iter().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => format!("$'{}'", bytes.escape_ascii()),
    }
}

/// Columns of text, aligned when printed.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these headings; a heading that starts with `>` makes its column right-aligned.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|h| h.starts_with('>')).collect();
        let names = headings
            .iter()
            .map(|h| h.trim_start_matches('>').to_owned())
            .collect();
        Self {
            rows: vec![names],
            right,
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table as text.
    pub(crate) fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.right.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
                if *right {
                    line.push_str(&padding);
                }
                line.push_str(cell);
                if !*right {
                    line.push_str(&padding);
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Prints it.
    pub(crate) fn print(&self) {
        print!("{}", self.text());
    }
}

/// One line on the terminal that says what is going on; nothing where nobody watches.
pub(crate) struct Progress {
    shown: bool,
    begun: std::time::Instant,
}

impl Progress {
    /// Nothing is shown during the first second.
    pub(crate) fn new() -> Self {
        Self {
            shown: std::io::stderr().is_terminal(),
            begun: std::time::Instant::now(),
        }
    }

    /// Shows how far the work is.
    pub(crate) fn at(&self, done: usize, of: usize, what: &str) {
        if !self.shown || self.begun.elapsed().as_secs() < 1 {
            return;
        }
        const WIDTH: usize = 24;
        let filled = WIDTH * done.min(of) / of.max(1);
        let bar: String = (0..WIDTH)
            .map(|i| if i < filled { '#' } else { '.' })
            .collect();
        let _ = write!(std::io::stderr(), "\r\x1b[K[{bar}] {done}/{of} {what}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Bytes with a unit.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_as_a_shell_takes_them() {
        use std::ffi::OsStr;
        for (path, text) in [
            (&b"/dev/shm/a-b.c"[..], "/dev/shm/a-b.c"),
            (b"My Notes.txt", "'My Notes.txt'"),
            (b"it's", r"'it'\''s'"),
            (b"$(reboot)", "'$(reboot)'"),
            (b"l\xe4nger", r"$'l\xe4nger'"),
            (b"two\nlines'", r"$'two\nlines\''"),
            (b"", "''"),
            (b"-rf", "./-rf"),
            (b"-a b", "'./-a b'"),
        ] {
            assert_eq!(quoted(Path::new(OsStr::from_bytes(path))), text);
        }
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let text = harmless(format_args!("a{}b\tc\n", "\x1b[2J\u{9b}1m\x07"));
        assert_eq!(text, "a?[2J?1m?b\tc\n");
    }

    #[test]
    fn tables_are_aligned() {
        let mut table = Table::new(&["name", ">ns"]);
        table.row(["a", "1"]);
        table.row(["long name", "1234"]);
        assert_eq!(
            table.text(),
            "name         ns\na             1\nlong name  1234\n"
        );
    }

    #[test]
    fn units() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
    }
}
