//! Work that several threads share, where a recovery is worth them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, scope};

/// Does each job once, with up to `threads` threads, of which the calling one is the first; where the
/// others cannot be had, with fewer. The results are in the order of the jobs.
pub(crate) fn each<T: Send>(
    threads: usize,
    jobs: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    if threads <= 1 || jobs <= 1 {
        return (0..jobs).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let turn = || {
        let mut done = Vec::new();
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= jobs {
                return done;
            }
            done.push((job, work(job)));
        }
    };
    let mut all = scope(|scope| {
        let helpers: Vec<_> = (1..threads.min(jobs))
            .filter_map(|_| Builder::new().spawn_scoped(scope, turn).ok())
            .collect();
        let mut all = turn();
        for helper in helpers {
            match helper.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(job, _)| *job);
    all.into_iter().map(|(_, done)| done).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_job_is_done_once_and_in_its_place() {
        for threads in [0, 1, 3, 8] {
            for jobs in [0, 1, 2, 1000] {
                let done = super::each(threads, jobs, |job| job * 3);
                assert!(done.iter().copied().eq((0..jobs).map(|job| job * 3)));
            }
        }
    }
}
