//! What each mode promises on a medium, in sentences.

use serde::Serialize;

use crate::args::Mode;
use adit_pmem::MediumKind as Medium;

/// One mode's row.
#[derive(Debug, Serialize)]
pub(crate) struct Promise {
    /// The mode.
    pub(crate) mode: Mode,
    /// Whether programs can be run in it here.
    pub(crate) works: bool,
    /// When written bytes are durable.
    pub(crate) durable: String,
    /// What is atomic against a crash of the system.
    pub(crate) atomic: String,
    /// Why it works, or why not.
    pub(crate) why: String,
}

/// The promises on `medium`; `obstacle` is what keeps every mode from working here.
pub(crate) fn all(medium: Medium, obstacle: Option<&str>) -> Vec<Promise> {
    Mode::ALL
        .iter()
        .map(|mode| promise(*mode, medium, obstacle))
        .collect()
}

fn promise(mode: Mode, medium: Medium, obstacle: Option<&str>) -> Promise {
    let works = mode.available() && obstacle.is_none();
    let why = match (mode.available(), obstacle) {
        (false, _) => "not in this version: adit run refuses it".to_owned(),
        (true, Some(obstacle)) => obstacle.to_owned(),
        (true, None) => served(medium).to_owned(),
    };
    Promise {
        mode,
        works,
        durable: durable(mode, medium).into(),
        atomic: atomic(mode).into(),
        why,
    }
}

fn served(medium: Medium) -> &'static str {
    match medium {
        Medium::Dax => "reads and overwrites go straight to the medium",
        Medium::Ram => "reads and overwrites go straight to memory",
        Medium::Cached => "reads come straight from the page cache, overwrites go to the kernel",
        Medium::Other => "every call goes to the kernel",
    }
}

fn durable(mode: Mode, medium: Medium) -> &'static str {
    match (mode, medium) {
        (_, Medium::Ram) => {
            "never across a power cut (memory); at once across the death of programs"
        }
        (Mode::Posix, Medium::Dax) => {
            "overwrites of written blocks at once, the rest when fsync returns"
        }
        (Mode::Posix | Mode::Atomic, _) => "when fsync returns",
        (Mode::Sync | Mode::Strict, _) => "when the call returns",
    }
}

fn atomic(mode: Mode) -> &'static str {
    match mode {
        Mode::Posix | Mode::Sync => "what the file system makes atomic itself",
        Mode::Atomic => "everything since the last fsync, per file",
        Mode::Strict => "every call",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_posix_works_and_nothing_works_against_an_obstacle() {
        for medium in [Medium::Dax, Medium::Ram, Medium::Cached] {
            let working: Vec<Mode> = all(medium, None)
                .iter()
                .filter(|p| p.works)
                .map(|p| p.mode)
                .collect();
            assert_eq!(working, [Mode::Posix]);
        }
        assert!(all(Medium::Other, Some("no")).iter().all(|p| !p.works));
    }
}
