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

/// What keeps every mode from working.
#[derive(Debug, Default)]
pub(crate) struct Obstacle {
    pub(crate) why: Vec<String>,
    /// Whether programs run as without us. Otherwise a mode still adds what it can to the kernel's calls.
    pub(crate) nothing_is_done: bool,
}

impl Obstacle {
    pub(crate) fn is_none(&self) -> bool {
        self.why.is_empty()
    }
}

/// The promises on `medium`.
pub(crate) fn all(medium: Medium, obstacle: &Obstacle) -> Vec<Promise> {
    Mode::ALL
        .iter()
        .map(|mode| promise(*mode, medium, obstacle))
        .collect()
}

fn promise(mode: Mode, medium: Medium, obstacle: &Obstacle) -> Promise {
    let why = match (obstacle.is_none(), mode) {
        (false, _) => obstacle.why.join("; "),
        (true, Mode::Posix) if medium == Medium::Dax => served(medium).to_owned() + STAGED_APPENDS,
        (true, Mode::Posix) => served(medium).to_owned(),
        (true, _) => format!(
            "new bytes go to a pool while no one else has the file open; else {}",
            mode.without_staging()
        ),
    };
    let kept = |by_kernel: bool| if by_kernel { Mode::Posix } else { mode };
    // What `sync` says the kernel keeps, call by call.
    let by_kernel = mode == Mode::Sync && !obstacle.nothing_is_done;
    Promise {
        mode,
        works: obstacle.is_none() || by_kernel,
        durable: durable(kept(obstacle.nothing_is_done), medium).into(),
        atomic: atomic(kept(!obstacle.is_none())).into(),
        why,
    }
}

/// What is left of the promises where nothing can be staged. The kernel keeps what mode `sync` says; what
/// the other two say, it does not.
pub(crate) fn without_staging(promises: Vec<Promise>, why: &str) -> Vec<Promise> {
    let less = |promise: Promise| match promise.mode {
        Mode::Posix => Promise {
            why: promise.why.replace(STAGED_APPENDS, ""),
            ..promise
        },
        mode => Promise {
            mode,
            works: mode == Mode::Sync,
            atomic: atomic(Mode::Posix).into(),
            why: format!("nothing is staged: {why}; {}", mode.without_staging()),
            ..promise
        },
    };
    promises.into_iter().map(less).collect()
}

/// Of a tmpfs with huge pages only the pool is mapped: its files' last page would reach beyond their end, where a read has
/// to find out that they end.
pub(crate) fn with_huge_pages(promises: Vec<Promise>) -> Vec<Promise> {
    let less = |promise: Promise| match promise.mode {
        Mode::Posix => Promise {
            why: HUGE_PAGES.to_owned(),
            ..promise
        },
        _ => promise,
    };
    promises.into_iter().map(less).collect()
}

const HUGE_PAGES: &str =
    "every call goes to the kernel, because this tmpfs has huge pages; a pool is mapped with them";

/// What mode `posix` does with a pool on DAX.
const STAGED_APPENDS: &str = ", many appends to a pool first";

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
    fn every_mode_works_and_nothing_works_against_an_obstacle() {
        for medium in [Medium::Dax, Medium::Ram, Medium::Cached] {
            let promises = all(medium, &Obstacle::default());
            assert!(promises.iter().all(|p| p.works));
            for promise in promises.iter().filter(|p| p.mode != Mode::Posix) {
                // What is not staged is never passed over.
                assert!(promise.why.contains(promise.mode.without_staging()));
            }
        }
        for nothing_is_done in [false, true] {
            let why = vec!["no".to_owned()];
            let left = all(
                Medium::Other,
                &Obstacle {
                    why,
                    nothing_is_done,
                },
            );
            assert!(left.iter().all(|p| p.why == "no"));
            let works: Vec<bool> = left.iter().map(|p| p.works).collect();
            assert_eq!(works, [false, !nothing_is_done, false, false]);
            // Only with the pool is more than that atomic; the kernel syncs what it is asked to.
            assert!(left.iter().all(|p| p.atomic == left[0].atomic));
            assert_eq!(left[1].durable == left[0].durable, nothing_is_done);
        }
    }

    #[test]
    fn nothing_is_atomic_where_nothing_is_staged() {
        let left = without_staging(all(Medium::Cached, &Obstacle::default()), "no pool");
        let works: Vec<bool> = left.iter().map(|p| p.works).collect();
        assert_eq!(works, [true, true, false, false]);
        assert!(left.iter().all(|p| p.atomic == left[0].atomic));
        assert!(left[1..].iter().all(|p| p.why.contains("no pool")));
        assert!(!left[0].why.contains("no pool"));
        let dax = all(Medium::Dax, &Obstacle::default());
        assert!(dax[0].why.contains(STAGED_APPENDS));
        assert!(!without_staging(dax, "no pool")[0].why.contains("pool"));
    }
}
