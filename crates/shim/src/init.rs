//! Start and end of the library, and the few facts about the process that decide what is promoted.
//!
//! # Safety
//! Reads the environment through libc's `getenv` before any thread exists, and libc's own
//! `__libc_single_threaded` byte.
#![allow(unsafe_code)]

use crate::appends::Appends;
use crate::times;
use crate::{data, declared, elsewhere, names, process, signal, stack, stage, stdio, sys, vfork};
use adit_pmem::MediumKind;
use adit_store::direct::Adoption;
use adit_store::monitor::Pace;
use adit_store::pools::AskedPool;
use adit_store::registry::{Env, Registry, RuntimeDir};
use adit_store::staged::Mode;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

/// Bytes (and [`crate::fds::CALL`] per call) that a descriptor's calls move through the kernel before it is
/// looked at.
const DEFAULT_CREDIT: u64 = 512 << 10;

/// Where this process's files are recorded once one is promoted.
pub(crate) static REGISTRY: Registry = Registry::new();

static CREDIT: AtomicU64 = AtomicU64::new(DEFAULT_CREDIT);
/// What the environment asked for.
static ASKED_CREDIT: AtomicU64 = AtomicU64::new(u64::MAX);
const UNSET: u32 = u32::MAX;
static PERCENT: AtomicU32 = AtomicU32::new(UNSET);
/// Bytes of files that are mapped at once; zero where the environment asked for nothing.
static GRANULE: AtomicU64 = AtomicU64::new(0);
/// Off until the constructor has found that Adit was asked for, and for ever after `release_all`.
static PROMOTING: AtomicBool = AtomicBool::new(false);

/// The credit of a new candidate; `None` when nothing is to be promoted.
#[inline]
pub(crate) fn credit() -> Option<u64> {
    PROMOTING
        .load(Ordering::Relaxed)
        .then(|| CREDIT.load(Ordering::Relaxed))
}

/// The credit that the environment asked for.
pub(crate) fn asked_credit() -> Option<u64> {
    let asked = ASKED_CREDIT.load(Ordering::Relaxed);
    (asked != u64::MAX).then_some(asked)
}

/// How eagerly a file on a medium of this kind is mapped: as the environment says, or as it pays.
pub(crate) fn adoption(kind: MediumKind) -> Adoption {
    let usual = Adoption::for_medium(kind);
    let adoption = usual
        .in_granules_of(GRANULE.load(Ordering::Relaxed))
        .unwrap_or(usual);
    match PERCENT.load(Ordering::Relaxed) {
        UNSET => adoption,
        percent => Adoption {
            percent,
            ..adoption
        },
    }
}

/// What a mode that stages needs, as the environment said it at the start: programs overwrite theirs.
struct Staging {
    mode: Mode,
    /// Without one, all is left to the kernel, with what the mode adds to its promise.
    dir: Option<RuntimeDir>,
    pool: Option<Vec<u8>>,
    /// Bytes of a pool that has to be made.
    pool_size: Option<u64>,
    /// Bytes of log that this process may have in a pool.
    log_size: Option<u64>,
    /// See [`give_back_after`].
    give_back_after: Option<Duration>,
    required: bool,
    together: bool,
    closed_soon: bool,
    /// In mode `posix`.
    appends: Option<Appends>,
    /// Directories that the user has declared.
    declared: Vec<Vec<u8>>,
    /// See [`kernel_blocks`].
    kernel_blocks: Option<u32>,
}

/// Unset in mode `posix` where no appends are staged and nothing is declared.
static STAGING: OnceLock<Staging> = OnceLock::new();

/// Whether files are staged.
#[inline]
pub(crate) fn staging() -> bool {
    STAGING.get().is_some()
}

/// Whose appends are staged, in mode `posix`.
pub(crate) fn appends() -> Option<Appends> {
    STAGING.get()?.appends
}

/// The mode, if it stages whatever is written.
pub(crate) fn mode() -> Option<Mode> {
    let mode = STAGING.get().map(|staging| staging.mode);
    mode.filter(|&mode| mode != Mode::Posix)
}

/// Directories of which the user says that no program outside Adit writes there, or reads between syncs:
/// absolute, without links.
pub(crate) fn declared() -> &'static [Vec<u8>] {
    STAGING.get().map_or(&[], |staging| &staging.declared)
}

/// The mode in which declared files are staged, or left to the kernel.
pub(crate) fn declared_mode() -> Option<Mode> {
    let staging = STAGING.get()?;
    (!staging.declared.is_empty()).then_some(staging.mode)
}

/// Where the monitor is found.
pub(crate) fn runtime_dir() -> Option<&'static RuntimeDir> {
    STAGING.get()?.dir.as_ref()
}

/// The pool that the user asked for.
pub(crate) fn asked_pool() -> AskedPool<'static> {
    let staging = STAGING.get();
    AskedPool {
        path: staging.and_then(|staging| staging.pool.as_deref()),
        size: staging.and_then(|staging| staging.pool_size),
    }
}

/// Bytes of log that this process may have in a pool, where the user said that.
pub(crate) fn log_size() -> Option<u64> {
    STAGING.get()?.log_size
}

/// How long nothing may be written to a staged file until the monitor gives it back, as far as this process was told: whoever
/// has started the monitor decides.
pub(crate) fn give_back_after() -> Duration {
    let told = STAGING.get().and_then(|staging| staging.give_back_after);
    told.unwrap_or_else(|| Pace::default().give_back_after)
}

/// Set when the process ends.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Whether a file that cannot be staged must not be opened for writing. What libc still flushes when the process ends
/// is the kernel's: nobody would hear of an error.
pub(crate) fn required() -> bool {
    STAGING.get().is_some_and(|staging| staging.required) && !has_ended()
}

/// Whether the program has come to its end, and only what is left in its streams is still to be written.
pub(crate) fn has_ended() -> bool {
    ENDED.load(Ordering::Relaxed)
}

/// Whether one `fsync` commits all staged files of this process.
pub(crate) fn together() -> bool {
    STAGING.get().is_some_and(|staging| staging.together)
}

/// Whether files that this process closes are published when it goes on already, see [`crate::closed`].
pub(crate) fn closed_soon() -> bool {
    STAGING.get().is_some_and(|staging| staging.closed_soon)
}

/// How many writes to a file the kernel may do before it is staged at most, where a test or a user says so; see
/// [`crate::blocks`].
pub(crate) fn kernel_blocks() -> Option<u32> {
    STAGING.get()?.kernel_blocks
}

/// Whether Adit was asked for when the program started, whatever has happened since.
pub(crate) fn was_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

pub(crate) static ASKED: AtomicBool = AtomicBool::new(false);

/// Promotes nothing any more.
pub(crate) fn stop_promoting() {
    PROMOTING.store(false, Ordering::SeqCst);
    elsewhere::stop();
}

unsafe extern "C" {
    /// libc's own byte: cleared before the process creates its second thread.
    pub(crate) static __libc_single_threaded: c_char;
}

/// Whether this process has only ever had one thread.
pub(crate) fn single_threaded() -> bool {
    // SAFETY: a byte that libc clears before it creates the second thread; read only.
    unsafe { (&raw const __libc_single_threaded).read_volatile() != 0 }
}

/// The soft limit on a resource; `None` when there is none.
pub(crate) fn limit(resource: u32) -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    sys::prlimit(0, resource as usize, 0, &raw mut limit as usize).ok()?;
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Whether mappings could make the program run into its limit (PROTOCOLS F8).
pub(crate) fn address_space_limited() -> bool {
    limit(libc::RLIMIT_AS).is_some()
}

/// Whether the engine's own memory could make the program run into its limits: it must find some.
pub(crate) fn memory_limited() -> bool {
    address_space_limited() || limit(libc::RLIMIT_DATA).is_some()
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the constructor runs before the program could change its environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: getenv returns null or a C string.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

fn number(name: &CStr) -> Option<u64> {
    variable(name)?.to_str().ok()?.trim().parse().ok()
}

/// Whether Adit is asked for, also before the constructor has run.
pub(crate) fn is_asked() -> bool {
    was_asked() || variable(MODE).is_some()
}

/// A number of seconds.
fn seconds(name: &CStr) -> Option<Duration> {
    let seconds = variable(name)?.to_str().ok()?.trim().parse();
    Duration::try_from_secs_f64(seconds.ok()?).ok()
}

const MODE: &CStr = c"ADIT_MODE";

extern "C" fn start() {
    let Some(name) = variable(MODE) else {
        return;
    };
    let env = Env {
        adit_runtime_dir: variable(c"ADIT_RUNTIME_DIR").map(CStr::to_bytes),
        xdg_runtime_dir: variable(c"XDG_RUNTIME_DIR").map(CStr::to_bytes),
    };
    let mode = match name.to_bytes() {
        b"posix" => None,
        b"sync" => Some(Mode::Sync),
        b"atomic" => Some(Mode::Atomic),
        b"strict" => Some(Mode::Strict),
        // Of another version: what it promises is not known here. `adit run` never says it.
        _ => return,
    };
    let appends = variable(c"ADIT_APPENDS").filter(|_| mode.is_none());
    let appends = appends.and_then(|name| Appends::named(name.to_bytes()));
    process::register_fork_handlers();
    stack::begin();
    let declared: Vec<Vec<u8>> = variable(c"ADIT_PATH").map_or_else(Vec::new, |dirs| {
        let dirs = dirs.to_bytes().split(|&byte| byte == b':');
        let absolute = dirs.filter(|dir| dir.starts_with(b"/"));
        absolute.map(<[u8]>::to_vec).collect()
    });
    let asked = number(c"ADIT_STDIO");
    // Streams that only read follow what others stage of declared files.
    let asked = asked.or((!declared.is_empty()).then_some(1));
    stdio::configure(mode.is_some(), asked);
    if mode.is_some() || appends.is_some() || !declared.is_empty() {
        let required = mode.is_some() && variable(c"ADIT_REQUIRE").is_some_and(|it| it == c"1");
        let together = mode == Some(Mode::Atomic)
            && variable(c"ADIT_COMMIT").is_some_and(|value| value == c"together");
        let closed_soon = variable(c"ADIT_CLOSED").is_some_and(|value| value == c"soon");
        let mode = mode.unwrap_or(Mode::Posix);
        let _ = STAGING.set(Staging {
            mode,
            dir: RuntimeDir::resolve(&env).ok(),
            pool: variable(c"ADIT_POOL").map(|path| path.to_bytes().to_vec()),
            pool_size: number(c"ADIT_POOL_SIZE"),
            log_size: number(c"ADIT_LOG_SIZE"),
            give_back_after: seconds(c"ADIT_GIVE_BACK_AFTER"),
            required,
            together,
            closed_soon,
            appends,
            declared,
            kernel_blocks: number(c"ADIT_KERNEL_BLOCKS")
                .map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
        });
        stage::count_none();
        signal::engine::start();
        names::start(mode);
    }
    REGISTRY.has_mode(name.to_bytes());
    REGISTRY.configure(&env);
    if let Some(bytes) = number(c"ADIT_ADOPT_BYTES") {
        CREDIT.store(bytes.min(1 << 40), Ordering::Relaxed);
        ASKED_CREDIT.store(bytes.min(1 << 40), Ordering::Relaxed);
    }
    if let Some(percent) = number(c"ADIT_ADOPT_PERCENT") {
        PERCENT.store(percent.min(10_000) as u32, Ordering::Relaxed);
    }
    if let Some(granule) = number(c"ADIT_MAP_SIZE") {
        GRANULE.store(granule, Ordering::Relaxed);
    }
    if limit(libc::RLIMIT_FSIZE).is_some() {
        data::KERNEL_WRITES.store(true, Ordering::Relaxed);
    }
    declared::bar_inherited();
    ASKED.store(true, Ordering::Relaxed);
    PROMOTING.store(true, Ordering::SeqCst);
    elsewhere::start();
}

/// The process is about to end. Other destructors, and libc's flush of stdio, still run after this
/// one and may still read and write; what they write goes through the kernel. A child of `vfork` that calls `exit`, as many
/// do that could not execute anything, runs them in its parent's memory, and its parent goes on.
pub(crate) extern "C" fn end() {
    if vfork::in_child() {
        return;
    }
    stack::with_room(|| {
        data::KERNEL_WRITES.store(true, Ordering::SeqCst);
        ENDED.store(true, Ordering::SeqCst);
        times::settle_all();
        process::finish_all();
        stage::leave();
        REGISTRY.detach();
    });
}

/// What a program that returns from `main` leaves in its streams libc writes when we are gone. Written now it is staged as
/// all before, and published with it, or the kernel's, as nobody would hear of an error. Of several threads one may have a stream for ever, which only libc's last flush passes
/// over.
extern "C" fn exit() {
    if staging() && single_threaded() && !vfork::in_child() {
        ENDED.store(true, Ordering::SeqCst);
        // SAFETY: as at any time; nobody else is about to use a stream.
        unsafe { libc::fflush(core::ptr::null_mut()) };
    }
    end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = exit;

#[allow(unreachable_pub)]
/// Says that the library is loaded and serves this process: 1 while it promotes descriptors, else 0.
/// `adit bench` and `adit demo` refuse to compare the kernel with itself.
#[unsafe(no_mangle)]
pub extern "C" fn adit_active() -> i32 {
    i32::from(credit().is_some())
}
