//! Calls that give other processes this one's open file descriptions.
//!
//! Before any of them, every description's offset goes back to the kernel and every candidate is marked as
//! shared; but what forked children alone can have stays staged, with an offset that parent and children keep
//! in common ([`crate::children`]) until they are all gone or somebody else can have it, and what a command does not get,
//! because it is closed when that starts, stays staged as if there were none. So parent and child,
//! and whatever either executes, share offsets exactly as the kernel shares them, whoever dies when.
//!
//! # Safety
//! C entry points and hooks called from the stubs.
#![allow(unsafe_code)]

use crate::fds::{self, Kind};
use crate::real::call_real;
use crate::signal::engine;
use crate::strangers::{self, Named};
use crate::{
    actions, alloc, appends, children, closed, descriptors, init, signal, stack, stage, sys,
};
use crate::{table, times, vfork};
use adit_pmem::brief;
use adit_pmem::copy::guarded_copy;
use core::ffi::{c_char, c_int, c_uint};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a process that another thread makes is waited for: longer than a large one takes to be copied.
pub(crate) const MAKING: Duration = Duration::from_secs(1);

/// Waits for what is over soon: so long at most, but for some looks in any case, as on a machine that has just stood still
/// for a moment nothing could end.
pub(crate) struct Patience {
    at_most: Duration,
    begun: Option<Instant>,
    looks: u32,
}

impl Patience {
    const LOOKS: u32 = 200;
    const PAUSE: Duration = Duration::from_micros(20);

    pub(crate) const fn of(at_most: Duration) -> Self {
        Self {
            at_most,
            begun: None,
            looks: 0,
        }
    }

    /// Waits a little; false when that was enough.
    pub(crate) fn waits(&mut self) -> bool {
        let begun = self.begun.get_or_insert_with(Instant::now);
        let waits = self.looks < Self::LOOKS || begun.elapsed() < self.at_most;
        if waits {
            self.looks += 1;
            adit_pmem::rest(Self::PAUSE);
        }
        waits
    }
}

/// How many threads are between marking everything shared and having created the sharer.
static SHARING: AtomicU32 = AtomicU32::new(0);

/// Until when threads wait until no process is being made, to open or to stage what none of them may have; zero is free,
/// and so is what is over: who left a call by a jump out of a handler has not given it up.
static WAITERS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Who makes a process lets pass whoever has this, as threads that make them by turns would leave no time without one.
pub(crate) struct RightOfWay(Option<(&'static AtomicU64, u64)>);

impl RightOfWay {
    /// For how long at most: a handler over who has it makes processes, too. As long as the processes take that are being
    /// made already, on a machine with other work.
    pub(crate) const LASTS: Duration = Duration::from_secs(4);

    /// Where many have it, more go without: those that have it keep the way free meanwhile.
    pub(crate) fn ask() -> Self {
        let now = Self::now();
        let until = now + Self::LASTS.as_nanos() as u64;
        let taken = WAITERS.iter().find(|waiter| {
            let seen = waiter.load(Ordering::SeqCst);
            let take = || waiter.compare_exchange(seen, until, Ordering::SeqCst, Ordering::SeqCst);
            seen <= now && take().is_ok()
        });
        Self(taken.map(|waiter| (waiter, until)))
    }

    fn now() -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    fn is_asked() -> bool {
        let mut now = None;
        WAITERS.iter().any(|waiter| {
            let until = waiter.load(Ordering::SeqCst);
            until != 0 && until > *now.get_or_insert_with(Self::now)
        })
    }

    fn yield_to_others() {
        let mut patience = Patience::of(Self::LASTS);
        while Self::is_asked() && patience.waits() {}
    }
}

impl Drop for RightOfWay {
    fn drop(&mut self) {
        if let Some((waiter, until)) = self.0 {
            // In a child that a handler has forked meanwhile nobody waits.
            let _ = waiter.compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// How often that, or the same for a command, was begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// How often processes were begun to be made: what has not changed says that none was made meanwhile.
pub(crate) fn begun() -> u64 {
    BEGUN.load(Ordering::SeqCst)
}

/// Set when what is counted there will never end.
static FOR_GOOD: AtomicBool = AtomicBool::new(false);

/// Whether descriptors are the kernel's from now on, whoever has them.
pub(crate) fn shares_for_good() -> bool {
    FOR_GOOD.load(Ordering::SeqCst)
}

/// Whether processes are made that may have descriptors which were opened or promoted just now.
pub(crate) fn sharing() -> bool {
    SHARING.load(Ordering::SeqCst) != 0
}

/// How many threads are between looking at everything for a command and having started it, which gets what is not closed
/// then alone.
static COMMANDS: AtomicU32 = AtomicU32::new(0);

/// Whether this descriptor, opened or promoted just now, may be shared already. Before its mark to be closed is taken
/// away, it is the kernel's ([`descriptors::before_inheriting`]).
pub(crate) fn shares(fd: c_int) -> bool {
    sharing() || (starts_commands() && !With::Actions.ends(fd))
}

fn starts_commands() -> bool {
    COMMANDS.load(Ordering::SeqCst) != 0
}

/// Whether this process may be giving descriptions to somebody just now.
pub(crate) fn passes_on() -> bool {
    sharing() || starts_commands() || has_vfork_children()
}

/// How many threads are between looking at everything for a child of `vfork` and having listed it.
static VFORKING: AtomicU32 = AtomicU32::new(0);

/// Whether children of `vfork` run, or are about to: what is opened or closed just now they may have, without finding it
/// in their lists. What is staged just now they find: either it is in common already, or it will be.
pub(crate) fn has_vfork_children() -> bool {
    VFORKING.load(Ordering::SeqCst) != 0 || vfork::any_runs()
}

/// Whether this is a forked child that was not told so yet: a handler for a signal runs, or one that another library has
/// set up for forks before ours.
pub(crate) fn is_untold_child() -> bool {
    sharing() && !vfork::in_child() && children::is_untold()
}

/// How many threads make processes that may have descriptions in common with this one.
pub(crate) fn sharers() -> u32 {
    SHARING.load(Ordering::SeqCst) + VFORKING.load(Ordering::SeqCst)
}

/// With whom descriptions are shared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    /// A forked child, which will end.
    Child,
    /// A child of `vfork`, which will execute a program or end.
    Vfork,
    /// A program that takes this one's place, and gets what is not closed when it starts.
    Program,
    /// A program that gets the same, and runs beside this one.
    Command,
    /// One that gets what file actions name as well.
    Actions,
    /// Anybody.
    Anybody,
}

impl With {
    /// Whether `fd` is closed before a command starts.
    pub(crate) fn ends(self, fd: c_int) -> bool {
        match self {
            Self::Program | Self::Command => descriptors::ends_with_us(fd),
            Self::Actions => descriptors::ends_with_us(fd) && !actions::name(fd),
            Self::Child | Self::Vfork | Self::Anybody => false,
        }
    }
}

/// Gives the offset of `fd` to the kernel because somebody else is about to have the description.
pub(crate) fn share(fd: c_int, with: With) -> Result<(), c_int> {
    loop {
        match fds::kind(fd) {
            Kind::Foreign => return Ok(()),
            Kind::Promoted(ofd) => return ofd.share(fd, with),
            // A store would copy the page once more after every fork.
            Kind::Candidate(word) if word & fds::SHARED != 0 => return Ok(()),
            Kind::Candidate(word) => {
                if fds::change(fd, word, word | fds::SHARED) {
                    return Ok(());
                }
            }
        }
    }
}

/// Shares every description. Before fork, spawn, exec, `system`, `popen` and their kind. Where one
/// cannot be published the new process must not come to be: it would find a description without
/// `O_APPEND`, whose offset and size are old.
pub(crate) fn share_all() -> Result<(), c_int> {
    share_all_with(With::Anybody)
}

fn share_all_with(with: With) -> Result<(), c_int> {
    let shared = share_each(with);
    // Whoever runs then finds no descriptor of what this process has closed, and all of it in the files.
    stack::with_room(closed::wait);
    shared
}

fn share_each(with: With) -> Result<(), c_int> {
    if vfork::in_child() {
        return vfork::before_sharing(with);
    }
    match with {
        With::Child | With::Anybody => children::pass_on(),
        With::Vfork | With::Program | With::Command | With::Actions => {
            children::pass_on_what_was_used();
        }
    }
    times::settle_all();
    stack::with_room(|| fds::all().try_for_each(|fd| share(fd, with)))
}

/// Before another program takes this one's place.
fn before_program() -> c_int {
    let refusal = before_program_with(With::Program);
    if refusal == 0 && !vfork::in_child() {
        stack::with_room(stage::leave);
    }
    refusal
}

/// Before `system` and `wordexp` start one inside libc. (What is not closed then, and another thread of this process stages
/// while they do, is not looked after.)
pub(crate) extern "C" fn before_command() -> c_int {
    before_program_with(With::Command)
}

fn before_program_with(with: With) -> c_int {
    let ready = share_all_with(with);
    if ready.is_ok() {
        signal::before_program();
    }
    descriptors::refusal(ready)
}

/// The same before `execve` and its kind, which name the program, its arguments and its variables.
fn before_execution(named: Named, arguments: usize, variables: usize) -> c_int {
    match before_program() {
        0 => strangers::execute(named, arguments, variables),
        errno => errno,
    }
}

/// Before `execve(path, arguments, variables)`.
pub(crate) extern "C" fn before_execve(path: usize, arguments: usize, variables: usize) -> c_int {
    before_execution(Named::Path(path), arguments, variables)
}

/// Before `execv(path, arguments)`.
pub(crate) extern "C" fn before_execv(path: usize, arguments: usize) -> c_int {
    before_execution(Named::Path(path), arguments, strangers::own())
}

/// Before `execvpe(name, arguments, variables)`.
pub(crate) extern "C" fn before_execvpe(
    name: *const c_char,
    arguments: usize,
    variables: usize,
) -> c_int {
    before_execution(Named::Searched(name), arguments, variables)
}

/// Before `execvp(name, arguments)`.
pub(crate) extern "C" fn before_execvp(name: *const c_char, arguments: usize) -> c_int {
    before_execution(Named::Searched(name), arguments, strangers::own())
}

/// `execl(path, argument, …, NULL)`: as `execv` with the list that these are.
pub(crate) extern "C" fn execl(path: usize, arguments: *const usize) -> c_int {
    execute(path, arguments, strangers::own())
}

/// `execlp(name, argument, …, NULL)`: as `execvp`.
pub(crate) extern "C" fn execlp(name: *const c_char, arguments: *const usize) -> c_int {
    type Function = unsafe extern "C" fn(*const c_char, *const usize) -> c_int;
    match before_execvp(name, arguments as usize) {
        // SAFETY: libc's own function with the program's own arguments, as they lie in memory.
        0 => unsafe { call_real!(table::execvp, Function)(name, arguments) },
        errno => descriptors::minus_one(errno) as c_int,
    }
}

/// `execle(path, argument, …, NULL, variables)`: as `execve`.
pub(crate) extern "C" fn execle(path: usize, arguments: *const usize) -> c_int {
    let mut end = arguments;
    // SAFETY: the program's list ends with a null, and its variables are next.
    let variables = unsafe {
        while end.read() != 0 {
            end = end.add(1);
        }
        end.add(1).read()
    };
    execute(path, arguments, variables)
}

fn execute(path: usize, arguments: *const usize, variables: usize) -> c_int {
    type Function = unsafe extern "C" fn(usize, *const usize, usize) -> c_int;
    match before_execve(path, arguments as usize, variables) {
        // SAFETY: libc's own function with the program's own arguments, as they lie in memory.
        0 => unsafe { call_real!(table::execve, Function)(path, arguments, variables) },
        errno => descriptors::minus_one(errno) as c_int,
    }
}

/// Before `fexecve(fd, arguments, variables)`.
pub(crate) extern "C" fn before_fexecve(fd: c_int, arguments: usize, variables: usize) -> c_int {
    let named = Named::At(fd, c"".as_ptr() as usize, libc::AT_EMPTY_PATH);
    before_execution(named, arguments, variables)
}

/// Before `execveat(dir, path, arguments, variables, flags)`.
pub(crate) extern "C" fn before_execveat(
    dir: c_int,
    path: usize,
    arguments: usize,
    variables: usize,
    flags: c_int,
) -> c_int {
    before_execution(Named::At(dir, path, flags), arguments, variables)
}

/// What a refused `wordexp` returns.
pub(crate) extern "C" fn no_space(_errno: c_int) -> i64 {
    const WRDE_NOSPACE: i64 = 1;
    WRDE_NOSPACE
}

/// As [`descriptors::minus_one`], of a call that returns its error negated.
pub(crate) extern "C" fn minus_errno(errno: c_int) -> i64 {
    -i64::from(errno)
}

/// Before `forkpty`.
pub(crate) extern "C" fn before_forkpty() -> c_int {
    children::another();
    descriptors::refusal(share_all())
}

pub(crate) extern "C" fn fork() -> c_int {
    // SAFETY: libc's own function.
    fork_by(|| unsafe { call_real!(table::fork, unsafe extern "C" fn() -> c_int)() })
}

/// `_Fork`: as [`fork`], without the handlers that libc runs around it.
pub(crate) extern "C" fn fork_raw() -> c_int {
    // SAFETY: libc's own function.
    let create = || unsafe { call_real!(table::_Fork, unsafe extern "C" fn() -> c_int)() };
    fork_by(|| {
        let inside = engine::enter();
        brief::before_fork();
        drop(inside);
        let child = alloc::around_fork(create);
        if child != 0 {
            brief::after_fork();
        }
        child
    })
}

fn fork_by(create: impl FnOnce() -> c_int) -> c_int {
    if vfork::in_child() {
        let child = share_all().map(|()| vfork::around_fork(create));
        return child.unwrap_or_else(|errno| descriptors::minus_one(errno) as c_int);
    }
    resolve_for_children();
    let with = if children::prepare() {
        With::Child
    } else {
        With::Anybody
    };
    let this = children::this_process();
    RightOfWay::yield_to_others();
    SHARING.fetch_add(1, Ordering::SeqCst);
    BEGUN.fetch_add(1, Ordering::SeqCst);
    RENEWED.store(false, Ordering::SeqCst);
    let child = share_all_with(with).map(|()| create());
    if child == Ok(0) {
        // `_Fork` runs no handlers.
        if !RENEWED.load(Ordering::SeqCst) {
            in_new_process();
        }
    } else if children::this_process() != this {
        // A child that a handler forked meanwhile has gone on with the fork of its parent, which does not know
        // of the child's own.
        children::pass_on();
    } else {
        if let Ok(child @ 1..) = child
            && with == With::Child
        {
            children::born(child);
        }
        SHARING.fetch_sub(1, Ordering::SeqCst);
    }
    child.unwrap_or_else(|errno| sys::to_libc(Err(errno)) as c_int)
}

/// Set in a child whose handlers have run.
static RENEWED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// The lock of libc's list of streams.
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
}

/// Before anybody registers handlers of forks: ours are the first, also before those of libraries whose constructors run
/// before ours. Handlers that were registered before would run while the heap is held for the fork, and wait for it for ever.
pub(crate) extern "C" fn before_registering() -> c_int {
    if init::is_asked() {
        register_fork_handlers();
    }
    0
}

/// Has forks wait for what is open for a moment, and children know that they are some before the program's own handlers
/// run in them: these may write. After the heap's own handlers: who has something open may need the heap.
pub(crate) fn register_fork_handlers() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.swap(true, Ordering::SeqCst) {
        return;
    }
    alloc::register_fork_handlers();
    extern "C" fn before() {
        // A handler that forks, too, would wait for its own thread, where that is about to have the next lock.
        let _inside = engine::enter();
        // Whoever has it may write through a stream, and then need what is held from here on; libc takes it next.
        // SAFETY: libc's own lock, which one thread may take several times.
        unsafe { _IO_list_lock() };
        brief::before_fork();
    }
    extern "C" fn in_parent() {
        let _inside = engine::enter();
        brief::after_fork();
        // SAFETY: it was taken before.
        unsafe { _IO_list_unlock() };
    }
    extern "C" fn in_child() {
        // SAFETY: the parent's is nobody's here.
        unsafe { _IO_list_resetlock() };
        in_new_process();
        RENEWED.store(true, Ordering::SeqCst);
    }
    // SAFETY: the handlers live as long as the library.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// Shares descriptions, then creates a process. Meanwhile no other thread stages anything that the new process would
/// have as well.
pub(crate) fn while_sharing<T>(with: With, create: impl FnOnce() -> T) -> Result<T, c_int> {
    let sharers = match with {
        With::Vfork => &VFORKING,
        With::Command | With::Actions => &COMMANDS,
        With::Child | With::Program | With::Anybody => &SHARING,
    };
    RightOfWay::yield_to_others();
    sharers.fetch_add(1, Ordering::SeqCst);
    BEGUN.fetch_add(1, Ordering::SeqCst);
    let created = share_all_with(with).map(|()| create());
    // In a child that a handler has forked meanwhile it counts nobody.
    let less = |count: u32| count.checked_sub(1);
    let _ = sharers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    created
}

type Spawn = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;
type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

macro_rules! spawns {
    ($($name:ident $named:path;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub(crate) extern "C" fn $name(
            pid: usize,
            program: usize,
            actions: usize,
            attributes: usize,
            arguments: usize,
            environment: usize,
        ) -> c_int {
            let with = if actions == 0 { With::Command } else { With::Actions };
            spawn_by(with, || {
                // SAFETY: libc's own function with the program's own arguments.
                let spawn = unsafe { call_real!(table::$name, Spawn) };
                let with = |environment| {
                    // SAFETY: as above.
                    unsafe { spawn(pid, program, actions, attributes, arguments, environment) }
                };
                strangers::spawn($named(program as _), environment, with)
            })
            .unwrap_or_else(|errno| errno)
        }
    )*};
}
spawns! {
    posix_spawn Named::Path;
    posix_spawnp Named::Searched;
    pidfd_spawn Named::Path;
    pidfd_spawnp Named::Searched;
}

/// `popen`.
pub(crate) extern "C" fn popen(command: *const c_char, how: *const c_char) -> *mut libc::FILE {
    // SAFETY: libc's own function with the program's own arguments.
    let open = || unsafe { call_real!(table::popen, Open)(command, how) };
    spawn_by(With::Command, open).unwrap_or_else(|errno| {
        sys::set_errno(errno);
        core::ptr::null_mut()
    })
}

fn spawn_by<T>(with: With, create: impl FnOnce() -> T) -> Result<T, c_int> {
    let create = || {
        signal::before_program();
        create()
    };
    if vfork::in_child() {
        return share_all().map(|()| create());
    }
    while_sharing(with, create)
}

/// Looks up, once, what children call that their parent seldom does. Each child would do it anew, and
/// it touches more pages than the rest of what we do between a fork and an exec.
fn resolve_for_children() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Relaxed) {
        return;
    }
    table::execve::REAL.resolve_ahead(c"execve");
    table::dup2::REAL.resolve_ahead(c"dup2");
    table::_exit::REAL.resolve_ahead(c"_exit");
    DONE.store(true, Ordering::Relaxed);
}

/// In the child of a fork: only this thread came along. A signal handler finds that nothing or all of it was done.
fn in_new_process() {
    sys::with_signals_blocked(renew);
}

fn renew() {
    children::in_new_process();
    vfork::in_new_process();
    init::REGISTRY.after_fork_child();
    // SAFETY: only this thread came along.
    unsafe { stage::in_new_process() };
    for (_, ofd) in fds::each_promoted() {
        if let Some(writer) = ofd.writer() {
            writer.forget_the_parent();
        }
    }
    fds::each_promoted().for_each(|(_, ofd)| ofd.in_new_process());
    brief::in_child();
    // A ring that was made before the fork is the child's, too.
    SHARING.store(u32::from(shares_for_good()), Ordering::SeqCst);
    COMMANDS.store(0, Ordering::SeqCst);
    VFORKING.store(0, Ordering::SeqCst);
    for waiter in &WAITERS {
        waiter.store(0, Ordering::SeqCst);
    }
}

/// Before `clone(function, stack, flags, …)`. Threads share everything as before; a new process
/// shares descriptions; a new process that shares the descriptor table or memory without suspending
/// this one can change our table behind our back, so nothing stays promoted.
pub(crate) extern "C" fn before_clone(_function: usize, _stack: usize, flags: c_int) -> c_int {
    if flags & libc::CLONE_THREAD != 0 {
        return 0;
    }
    children::another();
    let ready = share_all();
    if ready.is_ok() && flags & (libc::CLONE_VM | libc::CLONE_FILES) != 0 {
        descriptors::release_all();
    }
    descriptors::refusal(ready)
}

/// Whether one of so many messages carries control data, as descriptors are.
fn carries_control(messages: usize, count: usize, step: usize) -> bool {
    // In a sandbox nothing is promoted, and the call of the kernel that looks could end the program.
    if !signal::guards() && fds::each_promoted().next().is_none() {
        return true;
    }
    // The kernel sends no more at once.
    (0..count.min(libc::UIO_MAXIOV as usize))
        .any(|nth| control_of(messages.wrapping_add(nth.wrapping_mul(step))) != 0)
}

/// Bytes of control data of the message at an address. None of one that cannot be read, as the kernel refuses it; where a
/// fault could not be handled, the kernel is asked, and what it does not tell may be anything.
fn control_of(message: usize) -> usize {
    let at = message.wrapping_add(core::mem::offset_of!(libc::msghdr, msg_controllen));
    let mut length = [0; size_of::<usize>()];
    if !signal::guards() {
        if strangers::read(at, &mut length).is_none() {
            return usize::MAX;
        }
    } else {
        // SAFETY: the local has room for so many bytes; the program's pointer may fault.
        let copied = unsafe { guarded_copy(length.as_mut_ptr(), at as *const u8, length.len()) };
        if copied.is_err() {
            return 0;
        }
    }
    usize::from_ne_bytes(length)
}

/// Before `sendmsg(socket, message, flags)`: descriptors in it get a second owner.
pub(crate) extern "C" fn before_sendmsg(_socket: c_int, message: usize) -> c_int {
    before_sending(carries_control(message, 1, 0))
}

/// Before `sendmmsg(socket, messages, count, flags)`.
pub(crate) extern "C" fn before_sendmmsg(_socket: c_int, messages: usize, count: c_uint) -> c_int {
    let step = size_of::<libc::mmsghdr>();
    before_sending(carries_control(messages, count as usize, step))
}

fn before_sending(carries_control: bool) -> c_int {
    if carries_control {
        return descriptors::refusal(share_all());
    }
    0
}

/// Before `prctl(option, …)`: a sandbox is being closed.
pub(crate) extern "C" fn before_prctl(option: c_int) {
    if option == libc::PR_SET_SECCOMP {
        descriptors::release_all();
    }
}

/// Before `setrlimit(resource, …)` and `prlimit(pid, resource, …)`: the kernel must see every write
/// and every mapping that a new limit could refuse.
pub(crate) extern "C" fn before_setrlimit(resource: c_int) {
    match resource as c_uint {
        // To ask takes one more.
        libc::RLIMIT_NOFILE if vfork::in_child() => drop(share_all()),
        libc::RLIMIT_FSIZE | libc::RLIMIT_AS => descriptors::release_all(),
        // The engine's memory is the process's data.
        libc::RLIMIT_DATA if init::appends().is_some() => drop(appends::stop()),
        libc::RLIMIT_DATA if init::staging() => descriptors::release_all(),
        _ => {}
    }
}

/// Before `ulimit(command, …)`.
pub(crate) extern "C" fn before_ulimit(command: c_int) {
    const SET_FILE_SIZE: c_int = 2;
    if command == SET_FILE_SIZE {
        before_setrlimit(libc::RLIMIT_FSIZE as c_int);
    }
}

/// Before `vlimit(resource, …)`, which numbers resources in its own way.
pub(crate) extern "C" fn before_vlimit(resource: c_int) {
    match resource {
        2 => before_setrlimit(libc::RLIMIT_FSIZE as c_int),
        3 => before_setrlimit(libc::RLIMIT_DATA as c_int),
        _ => {}
    }
}

/// Before `prlimit(pid, resource, new, old)`.
pub(crate) extern "C" fn before_prlimit(_pid: c_int, resource: c_int, new: usize) {
    if new != 0 {
        before_setrlimit(resource);
    }
}

/// Publishes what is staged, and leaves it so, before a program starts that may look.
pub(crate) fn show_all() -> Result<(), c_int> {
    times::settle_all();
    let shown = fds::each_promoted()
        .try_for_each(|(fd, ofd)| ofd.writer().map_or(Ok(()), |writer| writer.show(&ofd, fd)));
    stack::with_room(closed::wait);
    shown
}

/// Gives everything that is staged to the kernel.
pub(crate) fn unstage_all() -> Result<(), c_int> {
    if vfork::in_child() {
        return share_all();
    }
    let mut unstaged = Ok(());
    if init::staging() {
        for (fd, _) in fds::each_promoted() {
            unstaged = unstaged.and(descriptors::unstage(fd));
        }
        stack::with_room(closed::wait);
    }
    unstaged
}

/// At the end of this process: publishes what it stages.
pub(crate) fn finish_all() {
    if init::staging() && !vfork::in_child() {
        // What cannot be published is found by whoever recovers.
        for (fd, _) in fds::each_promoted() {
            let _ = descriptors::publish_at_the_end(fd);
        }
        closed::wait();
    }
}

/// Before `lio_listio`.
pub(crate) extern "C" fn before_listio() -> c_int {
    descriptors::refusal(unstage_all())
}

/// Before the kernel is set up to read and write in its own time, through calls that we do not see
/// (libaio): nothing may be staged any more.
pub(crate) extern "C" fn before_aio_setup() -> c_int {
    if init::appends().is_some() {
        return descriptors::refusal(appends::stop());
    }
    if init::staging() {
        return before_sharing_for_good();
    }
    0
}

/// Before an io_uring is set up, or `pidfd_getfd` makes a twin of any descriptor of any process, also of this one: the
/// kernel will use descriptors, and their offsets, without a call that we see. Offsets stay the kernel's from now on;
/// positional reads are coherent anyway.
pub(crate) extern "C" fn before_sharing_for_good() -> c_int {
    descriptors::refusal(share_all_for_good())
}

pub(crate) fn share_all_for_good() -> Result<(), c_int> {
    if vfork::in_child() {
        return share_all();
    }
    FOR_GOOD.store(true, Ordering::SeqCst);
    SHARING.fetch_add(1, Ordering::SeqCst);
    share_all()
}

/// `_exit` and `_Exit` run no destructors.
pub(crate) extern "C" fn before_exit() {
    init::end();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However little time is left, something is looked at again and again before it is given up.
    #[test]
    fn patience_is_not_only_time() {
        let mut patience = Patience::of(Duration::ZERO);
        let looks = std::iter::repeat_with(|| patience.waits()).take_while(|waits| *waits);
        assert_eq!(looks.count(), Patience::LOOKS as usize);
    }
}
