//! Waiting for a moment, in whatever program.

use core::time::Duration;

use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};
use rustix::time::{ClockId, clock_gettime};

/// Sleeps that long, whatever signals come. Where the kernel refuses to wait, others get the processor instead: the
/// standard library's sleep panics then, and asks a function of libc's that a preloaded library may have replaced.
///
/// What is left after a signal is told by the clock: who makes calls fail (a filter, a debugger) says that a signal came and
/// does not say what is left.
pub fn rest(time: Duration) {
    let end = now().saturating_add(time);
    let mut left = time;
    loop {
        match nanosleep(&timespec(left)) {
            NanosleepRelativeResult::Ok => return,
            NanosleepRelativeResult::Interrupted(_) => left = end.saturating_sub(now()),
            NanosleepRelativeResult::Err(_) => return std::thread::yield_now(),
        }
        if left.is_zero() {
            return;
        }
    }
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Pauses of somebody who looks again and again whether others are done: each twice as long as the one before, up to
/// [`Pauses::LONGER`] times the first. Where many look, they leave the processor to whom they wait for.
#[derive(Debug)]
pub struct Pauses {
    next: Duration,
    longest: Duration,
    left: Duration,
}

impl Pauses {
    /// How many times as long as the first the longest is.
    const LONGER: u32 = 16;

    /// Pauses of so much together, as they are asked for: a busy machine makes each longer, and all with them.
    #[must_use]
    pub const fn new(first: Duration, together: Duration) -> Self {
        Self {
            next: first,
            longest: first.saturating_mul(Self::LONGER),
            left: together,
        }
    }

    /// Rests for one of them; `false` when all are over.
    pub fn rest(&mut self) -> bool {
        if self.left.is_zero() {
            return false;
        }
        rest(self.next);
        self.left = self.left.saturating_sub(self.next);
        self.next = (2 * self.next).min(self.longest);
        true
    }
}

/// # Safety
///
/// A thread is forbidden its waits by a filter for system calls, whose instructions live until the kernel has copied them,
/// and sends itself signals whose handler does nothing.
#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use std::time::Instant;

    use super::*;

    /// Has the calling thread's waits fail with this error.
    fn forbid_waits(errno: i32) {
        let statement = |code: u32, k: u32| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: 0,
            k,
        };
        let skips = |number: libc::c_long, jt: u8| libc::sock_filter {
            jt,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ, number as u32)
        };
        let mut filter = [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
            skips(libc::SYS_nanosleep, 2),
            skips(libc::SYS_clock_nanosleep, 1),
            statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW),
            statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | errno as u32),
        ];
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: see the module; both calls concern this thread alone.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_SET_MODE_FILTER;
            let set = libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program);
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        }
    }

    #[test]
    fn a_wait_that_the_kernel_refuses_ends_nobody() {
        let thread = std::thread::spawn(|| {
            forbid_waits(libc::EPERM);
            let begun = Instant::now();
            rest(Duration::from_secs(60));
            begun.elapsed()
        });
        let took = thread.join().expect("a thread that goes on");
        assert!(took < Duration::from_secs(30), "it waited for {took:?}");
    }

    /// The kernel says then what is left, and a filter nothing.
    #[test]
    fn a_wait_that_is_said_to_be_interrupted_ends_in_time() {
        let time = Duration::from_millis(20);
        let thread = std::thread::spawn(move || {
            forbid_waits(libc::EINTR);
            let begun = Instant::now();
            rest(time);
            begun.elapsed()
        });
        let took = thread.join().expect("a thread that goes on");
        let limit = Duration::from_secs(30);
        assert!((time..limit).contains(&took), "it waited for {took:?}");
    }

    #[test]
    fn pauses_become_longer_and_end() {
        let (first, together) = (Duration::from_micros(100), Duration::from_millis(20));
        let mut pauses = Pauses::new(first, together);
        let begun = Instant::now();
        let all = std::iter::from_fn(|| pauses.rest().then_some(())).count();
        // 0.1, 0.2, 0.4, 0.8 and 1.6 ms, the last again and again.
        assert_eq!(all, 16);
        assert!(begun.elapsed() >= together);
    }

    extern "C" fn nothing(_: libc::c_int) {}

    #[test]
    fn a_signal_ends_no_rest() {
        let time = Duration::from_millis(300);
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t) };
        let begun = Instant::now();
        let thread = std::thread::spawn(move || rest(time));
        use std::os::unix::thread::JoinHandleExt as _;
        let mut sent = 0;
        while !thread.is_finished() {
            // SAFETY: it is joined below.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
            sent += 1;
            rest(Duration::from_millis(5));
        }
        thread.join().expect("a thread");
        assert!(begun.elapsed() >= time && sent > 1, "{sent} signals");
    }
}
