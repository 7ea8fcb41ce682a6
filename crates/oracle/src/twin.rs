//! Runs every operation on twin A through libc and on twin B through raw system calls, and compares.

use crate::arena::{self, Arena};
use crate::ops::{At, MAPS, Mem, NAMES, Op, Outside, SLOTS, Step};
use crate::outside::{self, Act, Helper};
use crate::way::{Meta, Ret, Way, leased, raw_size};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::time::{Duration, Instant};

/// Deliberate damage to twin A's answers, to show that each comparison can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Plant {
    /// One wrong byte in what a read returned.
    Read,
    /// One wrong byte in the file.
    File,
    /// The file offset is off by one.
    Offset,
    /// The file is one byte too long.
    Size,
    /// A wrong errno.
    Errno,
    /// The modification time advanced for nothing.
    Mtime,
}

const A: usize = 0;
const B: usize = 1;

/// Times of twins that differ by less may be the same instant seen by a clock that ticks: two ticks of the slowest clock,
/// and what lies between the two calls of a step.
const TICKS: Duration = Duration::from_millis(24);

/// How far apart two times (seconds, nanoseconds) are.
fn apart(one: (i64, i64), other: (i64, i64)) -> Duration {
    let nanoseconds =
        |(seconds, rest): (i64, i64)| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let gap = nanoseconds(one).abs_diff(nanoseconds(other));
    Duration::from_nanos(u64::try_from(gap).unwrap_or(u64::MAX))
}

/// What a look at a file's times has found.
#[derive(Clone, Copy)]
struct Times {
    modified: [(i64, i64); 2],
    /// How many steps there had been.
    step: usize,
}

#[derive(Clone, Copy)]
struct Map {
    at: usize,
    len: usize,
    /// Twin B's file and position: how much of the mapping is backed.
    judge: i32,
    off: i64,
    write: bool,
}

struct Side {
    way: Way,
    dir: CString,
    paths: Vec<CString>,
    fds: [i32; SLOTS],
    maps: [Option<Map>; MAPS],
    arena: Arena,
    pipe: [i32; 2],
    /// Whether bad buffers may be written from. XFS (Linux 6.18) shows what was in memory before when
    /// a buffer ends in the middle of a page that it is writing to a hole, differently each time.
    bad_sources: bool,
}

/// What an operation answered.
#[derive(Debug, PartialEq, Eq, Default)]
struct Out {
    ret: Ret,
    data: Vec<u8>,
    extra: Vec<i64>,
}

impl Out {
    fn of(ret: Ret) -> Self {
        Self {
            ret,
            ..Self::default()
        }
    }

    /// Descriptors and addresses differ between the twins; that there is one must not.
    fn handle(ret: Ret) -> Self {
        Self::of(ret.min(0))
    }

    fn show(&self) -> String {
        let errno = if self.ret < 0 {
            format!(
                " ({})",
                std::io::Error::from_raw_os_error((-self.ret) as i32)
            )
        } else {
            String::new()
        };
        format!(
            "ret {}{errno}, {} bytes, extra {:?}",
            self.ret,
            self.data.len(),
            self.extra
        )
    }
}

impl Side {
    /// The size of an open file, by a call that must not count as a look at the times.
    fn size(&self, slot: usize) -> Option<i64> {
        let fd = self.fds[slot];
        if self.way == Way::Raw || !(staging() || leased(fd)) {
            return raw_size(fd);
        }
        // The kernel does not know the size of a file that is staged.
        let (r, meta) = self.way.stat(self.fds[slot], c"", 0);
        (r == 0).then_some(meta.size)
    }
}

/// Whether Adit runs in a mode in which the kernel need not know what this process has written.
pub(crate) fn staging() -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|has| has == value);
    std::env::var("ADIT_MODE").is_ok()
        && (!is("ADIT_MODE", "posix") || is("ADIT_APPENDS", "staged"))
}

/// Whether the user has said that nobody but programs under Adit comes near the files.
fn declared() -> bool {
    std::env::var_os("ADIT_PATH").is_some()
}

pub(crate) struct Twins {
    sides: [Side; 2],
    helper: Helper,
    /// The last seen mtimes of both twins, by twin B's inode and birth.
    times: HashMap<FileKey, Times>,
    /// How long each step took on both twins, which is as far apart as their clocks may have been.
    lasted: Vec<Duration>,
    /// Whether every change gets a time of its own (multigrain timestamps).
    fine_times: bool,
    tmpfs: bool,
    plant: Option<Plant>,
    /// Warm-ups, and those after which twin A's file was found mapped: proof that Adit was at work.
    warmed: usize,
    mapped: usize,
    /// Looks that found twin A's file staged.
    staged: usize,
    /// Whether twin A may have blocks where twin B has holes (see [`Options::exact_holes`]).
    exact_holes: bool,
}

/// How strictly to judge, and whether to damage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) plant: Option<Plant>,
    /// Holes and block counts must agree as well. On tmpfs a load from a hole through a mapping
    /// allocates it, so with Adit a file may have more blocks than without (`docs/posix.md`).
    pub(crate) exact_holes: bool,
}

fn path_of(dir: &Path, side: &str, name: &str) -> std::io::Result<CString> {
    let p = dir.join(side).join(name);
    Ok(CString::new(p.into_os_string().into_encoded_bytes())?)
}

fn make_side(dir: &Path, name: &str, way: Way) -> std::io::Result<Side> {
    std::fs::create_dir_all(dir.join(name))?;
    let paths = (0..NAMES)
        .map(|i| path_of(dir, name, &format!("f{i}")))
        .collect::<Result<_, _>>()?;
    let pipe = crate::way::raw_pipe();
    Ok(Side {
        way,
        dir: CString::new(dir.join(name).into_os_string().into_encoded_bytes())?,
        paths,
        fds: [-1; SLOTS],
        maps: [None; MAPS],
        arena: Arena::new(),
        pipe,
        bad_sources: crate::way::shows_bad_sources_exactly(&CString::new(
            dir.as_os_str().as_encoded_bytes(),
        )?),
    })
}

fn resolve(at: At, size: i64) -> i64 {
    match at {
        At::Abs(o) => o,
        At::End(d) => size.saturating_add(d),
    }
}

type FileKey = (u64, i64, u32);

fn raw_meta(path: &CStr) -> Option<(Meta, FileKey)> {
    let (meta, birth) = crate::way::raw_stat_birth(path)?;
    Some((meta, (meta.ino, birth.0, birth.1)))
}

impl Twins {
    pub(crate) fn new(dir: &Path, options: Options) -> std::io::Result<Self> {
        let sides = [
            make_side(dir, "A", Way::Libc)?,
            make_side(dir, "B", Way::Raw)?,
        ];
        let mut t = Self {
            fine_times: false,
            tmpfs: crate::way::is_tmpfs(&sides[B].dir),
            sides,
            helper: Helper::start()?,
            times: HashMap::new(),
            lasted: Vec::new(),
            plant: options.plant,
            warmed: 0,
            mapped: 0,
            staged: 0,
            exact_holes: options.exact_holes,
        };
        t.fine_times = t.probe_times();
        Ok(t)
    }

    /// Two changes right after one another, each looked at: does the kernel tell them apart?
    fn probe_times(&self) -> bool {
        let path = &self.sides[B].paths[0];
        let fd = Way::Raw.open(path, libc::O_CREAT | libc::O_RDWR, 0o644, 0) as i32;
        let mut last = (0, 0);
        let all = (0..50).all(|i: i64| {
            Way::Raw.pwrite(fd, b"x".as_ptr(), 1, i, 0);
            let (_, m) = Way::Raw.stat(fd, path, 0);
            std::mem::replace(&mut last, m.mtime) != m.mtime
        });
        Way::Raw.close(fd);
        Way::Raw.unlink(path);
        all
    }

    fn size_of_slot(&self, slot: usize) -> i64 {
        raw_size(self.sides[B].fds[slot]).unwrap_or(0)
    }

    fn size_of_name(&self, name: usize) -> i64 {
        let (r, m) = Way::Raw.stat(-1, &self.sides[B].paths[name], 1);
        if r < 0 { 0 } else { m.size }
    }

    /// Runs one step on both twins. `Err` tells what differs.
    pub(crate) fn step(&mut self, s: &Step, plant_now: bool) -> Result<String, String> {
        let begun = Instant::now();
        let result = self.do_step(s, plant_now);
        let changes = !matches!(s.op, Op::Settle);
        self.lasted.push(if changes {
            begun.elapsed()
        } else {
            Duration::ZERO
        });
        result
    }

    fn do_step(&mut self, s: &Step, plant_now: bool) -> Result<String, String> {
        match &s.op {
            Op::Make { name, size, own } => self.make(*name, *size, *own, s.bytes)?,
            Op::Warm {
                slot,
                passes,
                chunk,
                kind,
            } => {
                self.warm(*slot, *passes, *chunk, *kind, s.bytes)?;
            }
            Op::Outsider { name, act, helper } => self.outsider(*name, *act, *helper, s.bytes)?,
            Op::Compare => self.compare_all()?,
            Op::Settle => std::thread::sleep(Duration::from_millis(12)),
            op => return self.ordinary(op, s, plant_now),
        }
        Ok(String::new())
    }

    fn ordinary(&mut self, op: &Op, s: &Step, plant_now: bool) -> Result<String, String> {
        let size = match op {
            Op::Truncate { name, .. } => self.size_of_name(*name),
            op => slot_of(op).map_or(0, |slot| self.size_of_slot(slot)),
        };
        let to_size = match op {
            Op::CopyRange { to, .. } => self.size_of_slot(*to),
            _ => 0,
        };
        let mut outs = [A, B].map(|side| self.run(side, op, s, size, to_size));
        if plant_now {
            self.damage(op, &mut outs[A]);
        }
        let [mut a, b] = outs;
        if !self.exact_holes {
            self.allow_filled_holes(op, &mut a, &b);
        }
        compare(&a, &b)?;
        if let (Op::Stat { .. }, true) = (op, a.ret == 0) {
            self.check_times_of_stat(op)?;
        }
        if let (Op::Fsync { slot, .. }, 0) = (op, a.ret) {
            self.check_times_of_fd(*slot)?;
        }
        if s.look
            && let Some(slot) = slot_of(op)
        {
            self.look(slot)?;
        }
        Ok(b.show())
    }

    /// Whether a file of twin A is staged, as mode `posix` does with some.
    fn stages_now(&self) -> bool {
        self.sides[A].fds.iter().any(|fd| leased(*fd))
    }

    /// Accepts more blocks than twin B has, and data reported where twin B has a hole.
    fn allow_filled_holes(&mut self, op: &Op, a: &mut Out, b: &Out) {
        match *op {
            Op::Stat { .. } => {
                // Of what is staged it is not known yet which blocks it will take.
                if let ([.., have], [.., want]) = (&mut a.extra[..], &b.extra[..])
                    && (*have > *want || staging() || self.stages_now())
                {
                    *have = *want;
                }
            }
            Op::Lseek { slot, whence, off } => {
                let more = match whence {
                    libc::SEEK_DATA => a.ret >= off && (b.ret < 0 || a.ret < b.ret),
                    libc::SEEK_HOLE => a.ret > b.ret && b.ret >= 0,
                    _ => false,
                };
                if more {
                    // Both go on from the same place.
                    for side in &mut self.sides {
                        side.way.lseek(side.fds[slot], 0, libc::SEEK_SET, 0);
                    }
                    a.ret = b.ret;
                }
            }
            _ => {}
        }
    }

    /// Damages twin A once, when the operation is one that shows it.
    fn damage(&mut self, op: &Op, a: &mut Out) {
        let Some(plant) = self.plant else { return };
        let fd = slot_of(op).map_or(-1, |s| self.sides[A].fds[s]);
        let done = match plant {
            Plant::Read => a.data.first_mut().map(|b| *b ^= 1).is_some(),
            Plant::Errno => {
                let bad = a.ret < 0;
                if bad {
                    a.ret -= 1;
                }
                bad
            }
            Plant::File => {
                let p = format!("/proc/self/fd/{fd}\0");
                let path = CStr::from_bytes_with_nul(p.as_bytes()).expect("one NUL");
                let w = Way::Raw.open(path, libc::O_RDWR, 0, 0) as i32;
                let mut byte = 0u8;
                let ok = Way::Raw.pread(w, &raw mut byte, 1, 0, 0) == 1;
                byte ^= 1;
                let ok = ok && Way::Raw.pwrite(w, &raw const byte, 1, 0, 0) == 1;
                Way::Raw.close(w);
                ok
            }
            Plant::Offset => {
                let way = self.sides[A].way;
                fd >= 0 && way.lseek(fd, 1, libc::SEEK_CUR, 0) >= 0
            }
            Plant::Size => {
                let size = raw_size(fd).unwrap_or(-1);
                size >= 0 && Way::Raw.ftruncate(fd, size + 1, 0) == 0
            }
            Plant::Mtime => {
                matches!(op, Op::Stat { how, .. } if how % 2 == 0) && self.spoil_mtime(fd, op)
            }
        };
        if done {
            self.plant = None;
        }
    }

    /// Makes twin A's mtime stand still where twin B's moved, or the other way round.
    fn spoil_mtime(&self, fd: i32, op: &Op) -> bool {
        let judge = slot_of(op).map_or(-1, |s| self.sides[B].fds[s]);
        let Some(before) = self.key_of_fd(judge).and_then(|k| self.times.get(&k)) else {
            return false;
        };
        let stood = Way::Raw.stat(judge, c"", 0).1.mtime == before.modified[B];
        let (tv_sec, tv_nsec) = if stood {
            (12345, 0)
        } else {
            before.modified[A]
        };
        let at = libc::timespec { tv_sec, tv_nsec };
        Way::Raw.utimens(fd, None, &[at, at]) == 0
    }

    fn make(&mut self, name: usize, size: i64, own: bool, seed: u64) -> Result<(), String> {
        let data = outside::bytes(seed, size as usize);
        let mut rets = [0; 2];
        for (side, ret) in rets.iter_mut().enumerate() {
            let path = &self.sides[side].paths[name];
            let way = if own || declared() {
                self.sides[side].way
            } else {
                Way::Raw
            };
            let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY;
            let fd = way.open(path, flags, 0o644, seed as u8 % 4);
            *ret = fd.min(0);
            if fd >= 0 {
                for part in data.chunks(100_000) {
                    *ret += outside::write_all(way, fd as i32, part);
                }
                way.close(fd as i32);
            }
        }
        equal("make", rets[A], rets[B])
    }

    fn warm(
        &mut self,
        slot: usize,
        passes: usize,
        chunk: usize,
        kind: u8,
        seed: u64,
    ) -> Result<(), String> {
        const LIMIT: i64 = 9 << 20;
        let size = self.size_of_slot(slot).min(LIMIT);
        if size < 4096 {
            return Ok(());
        }
        let chunk = chunk.max(size as usize / 2000);
        let parts = size as u64 / chunk as u64 + 1;
        let mut rng = crate::rng::Rng::new(seed);
        for pass in 0..passes {
            if matches!(kind, 0 | 4) {
                self.pair(
                    |s| s.way.lseek(s.fds[slot], 0, libc::SEEK_SET, 0),
                    "warm seek",
                )?;
            }
            for part in 0..parts {
                let random = kind == 2 || (kind == 3 && pass > 0);
                let part = if random { rng.below(parts) } else { part };
                let off = (part * chunk as u64) as i64;
                self.warm_part(slot, chunk, kind, off, &mut rng)
                    .map_err(|e| format!("pass {pass}, offset {off}: {e}"))?;
            }
        }
        self.note_mapped();
        Ok(())
    }

    /// Looks whether somebody has mapped twin A's files: the program's own mappings are known.
    fn note_mapped(&mut self) {
        let own = |from: usize| self.sides[A].maps.iter().flatten().any(|m| m.at == from);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let dir = self.sides[A].dir.to_string_lossy().into_owned() + "/";
        let served = maps.lines().filter(|l| l.contains(&dir)).any(|l| {
            let from = l
                .split('-')
                .next()
                .and_then(|a| usize::from_str_radix(a, 16).ok());
            from.is_some_and(|a| !own(a))
        });
        self.warmed += 1;
        self.mapped += usize::from(served);
    }

    fn warm_part(
        &mut self,
        slot: usize,
        chunk: usize,
        kind: u8,
        off: i64,
        rng: &mut crate::rng::Rng,
    ) -> Result<(), String> {
        let writes = kind >= 3 && rng.chance(40);
        let seed = rng.next();
        let n = self.pair(
            |s| {
                let at = s.arena.address(Mem::Good(0), 0);
                let fd = s.fds[slot];
                match kind {
                    0 | 4 => s.way.read(fd, at as *mut u8, chunk),
                    _ => s.way.pread(fd, at as *mut u8, chunk, off, 0),
                }
            },
            "warm read",
        )?;
        self.same_memory(n)?;
        if !writes || n <= 0 {
            return Ok(());
        }
        self.pair(
            |s| {
                let at = s.arena.address(Mem::Good(0), 0);
                let (fd, n) = (s.fds[slot], n as usize);
                s.arena.fill(at, n, seed);
                if kind == 4 {
                    s.way.lseek(fd, -(n as i64), libc::SEEK_CUR, 1);
                    s.way.write(fd, at as *const u8, n)
                } else {
                    s.way.pwrite(fd, at as *const u8, n, off, 1)
                }
            },
            "warm write",
        )?;
        Ok(())
    }

    fn pair(&mut self, f: impl Fn(&mut Side) -> Ret, what: &str) -> Result<Ret, String> {
        let [a, b] = &mut self.sides;
        let (a, b) = (f(a), f(b));
        equal(what, a, b)?;
        Ok(b)
    }

    fn same_memory(&self, n: Ret) -> Result<(), String> {
        let get = |s: &Side| {
            s.arena
                .copy_out(s.arena.address(Mem::Good(0), 0), n.max(0) as usize)
        };
        same_bytes("read", &get(&self.sides[A]), &get(&self.sides[B]))
    }

    fn outsider(
        &mut self,
        name: usize,
        what: Outside,
        helper: bool,
        seed: u64,
    ) -> Result<(), String> {
        if declared() {
            return Ok(());
        }
        let size = self.size_of_name(name);
        // What outsiders do is about the reachable part of files; the far ends are the program's.
        let near = |at: At| resolve(at, size).clamp(0, 16 << 20);
        let (kind, pos, len) = match what {
            Outside::Append { len } => (outside::APPEND, 0, len as i64),
            Outside::Overwrite { at, len } => (outside::OVERWRITE, near(at), len as i64),
            Outside::Truncate { at } => (outside::TRUNCATE, near(at), 0),
            Outside::Punch { at, len } => (outside::PUNCH, near(at), len),
            Outside::Replace { len } => (outside::REPLACE, 0, len as i64),
            Outside::Store { at, len } => (outside::STORE, near(at), len as i64),
        };
        let act = Act {
            kind,
            pos,
            len,
            seed,
        };
        let mut rets = [0; 2];
        for (side, ret) in rets.iter_mut().enumerate() {
            let path = &self.sides[side].paths[name];
            *ret = if helper {
                self.helper
                    .act(path, act)
                    .map_err(|e| format!("helper: {e}"))?
            } else {
                outside::act(path, act)
            };
        }
        equal("outsider", rets[A], rets[B])
    }

    /// Offset and size of a descriptor, both ways.
    fn look(&mut self, slot: usize) -> Result<(), String> {
        self.pair(
            |s| s.way.lseek(s.fds[slot], 0, libc::SEEK_CUR, 1),
            "offset afterwards",
        )?;
        self.staged += usize::from(leased(self.sides[A].fds[slot]));
        let metas = [A, B].map(|i| {
            let s = &self.sides[i];
            (s.size(slot), i)
        });
        if metas[A].0 != metas[B].0 {
            return Err(format!(
                "size afterwards: {:?} against {:?}",
                metas[A].0, metas[B].0
            ));
        }
        Ok(())
    }

    fn key_of_fd(&self, fd: i32) -> Option<FileKey> {
        let p = format!("/proc/self/fd/{fd}\0");
        raw_meta(CStr::from_bytes_with_nul(p.as_bytes()).ok()?).map(|m| m.1)
    }

    fn check_times_of_stat(&mut self, op: &Op) -> Result<(), String> {
        let Op::Stat { slot, name, how } = *op else {
            return Ok(());
        };
        let metas = [A, B].map(|i| {
            let s = &self.sides[i];
            s.way.stat(s.fds[slot], &s.paths[name], how).1.mtime
        });
        let key = if how % 2 == 1 {
            raw_meta(&self.sides[B].paths[name]).map(|m| m.1)
        } else {
            self.key_of_fd(self.sides[B].fds[slot])
        };
        self.sample(key, metas, "stat")
    }

    fn check_times_of_fd(&mut self, slot: usize) -> Result<(), String> {
        // The kernel learns of what is staged within a second, or when somebody opens the file.
        if declared() || leased(self.sides[A].fds[slot]) {
            return Ok(());
        }
        let metas = [A, B].map(|i| {
            let s = &self.sides[i];
            Way::Raw.stat(s.fds[slot], &s.paths[0], 0).1.mtime
        });
        let key = self.key_of_fd(self.sides[B].fds[slot]);
        self.sample(key, metas, "an outsider's stat after fsync")
    }

    /// Twin A's mtime must have moved since the last look exactly if twin B's has.
    fn sample(
        &mut self,
        key: Option<FileKey>,
        now: [(i64, i64); 2],
        what: &str,
    ) -> Result<(), String> {
        let Some(key) = key else { return Ok(()) };
        let seen = Times {
            modified: now,
            step: self.lasted.len(),
        };
        let Some(last) = self.times.insert(key, seen) else {
            return Ok(());
        };
        let before = last.modified;
        let moved = [A, B].map(|i| now[i] != before[i]);
        // On kernels whose times have the grain of the clock's tick, one change may fall into the
        // tick of the look before and its twin into the next. A machine may stand still between the two.
        let steps = self.lasted.get(last.step..).unwrap_or_default();
        let longest = steps.iter().max().copied().unwrap_or_default();
        let same_tick = !self.fine_times && apart(now[A], now[B]) < TICKS + longest;
        if moved[A] == moved[B] || same_tick {
            return Ok(());
        }
        let verb = |m: bool| if m { "moved" } else { "stood still" };
        Err(format!(
            "{what}: twin A's mtime {} ({:?} -> {:?}), twin B's {} ({:?} -> {:?})",
            verb(moved[A]),
            before[A],
            now[A],
            verb(moved[B]),
            before[B],
            now[B]
        ))
    }

    /// Runs an operation on one side.
    fn run(&mut self, side: usize, op: &Op, s: &Step, size: i64, to_size: i64) -> Out {
        let tmpfs = self.tmpfs;
        let me = &mut self.sides[side];
        let (w, alt) = (me.way, s.alt);
        match op {
            Op::Open {
                slot,
                name,
                flags,
                mode,
            } => {
                me.take(*slot);
                let fd = w.open(&me.paths[*name], *flags, *mode, alt);
                me.put(*slot, fd)
            }
            Op::OpenTmp { slot, flags } => {
                me.take(*slot);
                let fd = w.open(&me.dir, *flags | libc::O_TMPFILE, 0o600, alt);
                me.put(*slot, fd)
            }
            Op::Creat { slot, name } => {
                me.take(*slot);
                let fd = w.creat(&me.paths[*name], 0o644);
                me.put(*slot, fd)
            }
            Op::Close { slot } => {
                let fd = std::mem::replace(&mut me.fds[*slot], -1);
                Out::of(w.close(fd))
            }
            Op::Dup { from, to } => {
                let fd = w.dup(me.fds[*from]);
                me.take(*to);
                me.put(*to, fd)
            }
            Op::DupTo { from, to, three } => {
                let (from, to) = (me.fds[*from], me.fds[*to]);
                Out::handle(w.dup_to(from, to, *three))
            }
            Op::DupFd { from, to, cloexec } => {
                let cmd = if *cloexec {
                    libc::F_DUPFD_CLOEXEC
                } else {
                    libc::F_DUPFD
                };
                let fd = w.fcntl(me.fds[*from], cmd, 100, alt);
                me.take(*to);
                me.put(*to, fd)
            }
            Op::GetFl { slot } => Out {
                ret: w.fcntl(me.fds[*slot], libc::F_GETFL, 0, alt),
                data: Vec::new(),
                extra: vec![w.fcntl(me.fds[*slot], libc::F_GETFD, 0, alt)],
            },
            Op::SetFl { slot, flags } => {
                Out::of(w.fcntl(me.fds[*slot], libc::F_SETFL, i64::from(*flags), alt))
            }
            Op::Read { slot, mem, len } => {
                me.reading(*mem, *len, |m, p| w.read(m.fds[*slot], p, *len))
            }
            Op::Pread { slot, mem, len, at } => {
                let off = resolve(*at, size);
                me.reading(*mem, *len, |m, p| w.pread(m.fds[*slot], p, *len, off, alt))
            }
            Op::Write { slot, mem, len } => {
                let p = me.source(*mem, *len, s.bytes);
                Out::of(w.write(me.fds[*slot], p, *len))
            }
            Op::Pwrite { slot, mem, len, at } => {
                let p = me.source(*mem, *len, s.bytes);
                Out::of(w.pwrite(me.fds[*slot], p, *len, resolve(*at, size), alt))
            }
            Op::Vector {
                slot,
                write,
                parts,
                at,
                flags,
            } => {
                let off = at.map(|a| resolve(a, size));
                me.vector(*slot, *write, parts, off, *flags, s)
            }
            Op::Lseek { slot, off, whence } => Out::of(w.lseek(me.fds[*slot], *off, *whence, alt)),
            Op::SeekTo { slot, at } => {
                Out::of(w.lseek(me.fds[*slot], resolve(*at, size), libc::SEEK_SET, alt))
            }
            Op::Ftruncate { slot, at } => {
                Out::of(w.ftruncate(me.fds[*slot], resolve(*at, size), alt))
            }
            Op::Truncate { name, at } => {
                Out::of(w.truncate(&me.paths[*name], resolve(*at, size), alt))
            }
            Op::Fallocate {
                slot,
                mode,
                at,
                len,
            } => {
                // Positions so far out that a kernel would allocate for minutes are left out.
                let off = resolve(*at, size).min(1 << 40);
                Out::of(w.fallocate(me.fds[*slot], *mode, off, *len, alt))
            }
            Op::Fsync { slot, data } => Out::of(w.fsync(me.fds[*slot], *data)),
            Op::Stat { slot, name, how } => {
                let (ret, m) = w.stat(me.fds[*slot], &me.paths[*name], *how);
                let mut extra = vec![m.size, i64::from(m.mode), m.nlink as i64];
                if tmpfs {
                    extra.push(m.blocks);
                }
                Out {
                    ret,
                    data: Vec::new(),
                    extra: if ret == 0 { extra } else { Vec::new() },
                }
            }
            Op::SendPipe { slot, at, len } => {
                let mut off = at.map_or(0, |a| resolve(a, size));
                let p = if at.is_some() {
                    &raw mut off
                } else {
                    std::ptr::null_mut()
                };
                let ret = w.sendfile(me.pipe[1], me.fds[*slot], p, *len, alt);
                Out {
                    ret,
                    data: me.drain(),
                    extra: vec![off],
                }
            }
            Op::SendFile { from, to, at, len } => {
                let mut off = at.map_or(0, |a| resolve(a, size));
                let p = if at.is_some() {
                    &raw mut off
                } else {
                    std::ptr::null_mut()
                };
                let ret = w.sendfile(me.fds[*to], me.fds[*from], p, *len, alt);
                Out {
                    ret,
                    data: Vec::new(),
                    extra: vec![off],
                }
            }
            Op::CopyRange {
                from,
                to,
                at,
                to_at,
                len,
            } => {
                let mut off = at.map_or(0, |a| resolve(a, size));
                let mut out = to_at.map_or(0, |a| resolve(a, to_size));
                let p = if at.is_some() {
                    &raw mut off
                } else {
                    std::ptr::null_mut()
                };
                let q = if to_at.is_some() {
                    &raw mut out
                } else {
                    std::ptr::null_mut()
                };
                let ret = w.copy_range(me.fds[*from], p, me.fds[*to], q, *len);
                Out {
                    ret,
                    data: Vec::new(),
                    extra: vec![off, out],
                }
            }
            Op::SpliceOut { slot, at, len } => {
                let mut off = at.map_or(0, |a| resolve(a, size));
                let p = if at.is_some() {
                    &raw mut off
                } else {
                    std::ptr::null_mut()
                };
                let ret = w.splice(me.fds[*slot], p, me.pipe[1], std::ptr::null_mut(), *len);
                Out {
                    ret,
                    data: me.drain(),
                    extra: vec![off],
                }
            }
            Op::SpliceIn { slot, at, len } => {
                let buf = outside::bytes(s.bytes, *len);
                Way::Raw.write(me.pipe[1], buf.as_ptr(), buf.len());
                let mut off = at.map_or(0, |a| resolve(a, size));
                let p = if at.is_some() {
                    &raw mut off
                } else {
                    std::ptr::null_mut()
                };
                let ret = w.splice(me.pipe[0], std::ptr::null_mut(), me.fds[*slot], p, *len);
                Out {
                    ret,
                    data: me.drain(),
                    extra: vec![off],
                }
            }
            Op::Rename { from, to, flags } => {
                Out::of(w.rename(&me.paths[*from], &me.paths[*to], *flags))
            }
            Op::Link { from, to } => Out::of(w.link(&me.paths[*from], &me.paths[*to])),
            Op::Unlink { name } => Out::of(w.unlink(&me.paths[*name])),
            Op::Flock { slot, op } => Out::of(w.flock(me.fds[*slot], *op)),
            Op::Utimens { slot, name, set } => me.utimens(*slot, *name, *set),
            Op::Fionread { slot } => {
                let (ret, n) = w.fionread(me.fds[*slot]);
                Out {
                    ret,
                    data: Vec::new(),
                    extra: vec![i64::from(n)],
                }
            }
            Op::MapOpen { .. } | Op::MapClose { .. } | Op::MapSync { .. } => {
                let judge = match op {
                    Op::MapOpen { slot, .. } if side == B => self.sides[B].fds[*slot],
                    _ => -1,
                };
                self.map_life(side, op, alt, judge)
            }
            Op::MapStore { map, from, len } => {
                self.map_touch(side, *map, *from, *len, Some(s.bytes))
            }
            Op::MapLoad { map, from, len } => self.map_touch(side, *map, *from, *len, None),
            Op::Make { .. } | Op::Warm { .. } | Op::Outsider { .. } | Op::Compare | Op::Settle => {
                Out::default()
            }
        }
    }

    fn map_life(&mut self, side: usize, op: &Op, alt: u8, judge: i32) -> Out {
        let me = &mut self.sides[side];
        let w = me.way;
        match *op {
            Op::MapOpen {
                map,
                slot,
                page,
                len,
                write,
            } => {
                me.unmap(map);
                let prot = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
                let at = w.mmap(me.fds[slot], page * 4096, len, prot, alt);
                if at > 0 {
                    // Twin B's own duplicate tells how much is backed, whatever happens to the slot.
                    let judge = if side == B {
                        Way::Raw.dup(judge) as i32
                    } else {
                        -1
                    };
                    let at = at as usize;
                    me.maps[map] = Some(Map {
                        at,
                        len,
                        judge,
                        off: page * 4096,
                        write,
                    });
                }
                Out::handle(at)
            }
            Op::MapSync { map, flags } => {
                Out::of(me.maps[map].map_or(0, |m| w.msync(m.at, m.len, flags)))
            }
            Op::MapClose { map } => Out::of(me.unmap(map)),
            _ => Out::default(),
        }
    }

    /// Loads or stores where the judge says the mapping is backed; beyond, a program gets SIGBUS.
    fn map_touch(
        &mut self,
        side: usize,
        map: usize,
        from: usize,
        len: usize,
        store: Option<u64>,
    ) -> Out {
        let (Some(m), Some(judge)) = (self.sides[side].maps[map], self.sides[B].maps[map]) else {
            return Out::of(-1);
        };
        let size = raw_size(judge.judge).unwrap_or(0);
        let from = from % m.len.max(1);
        let backed = (size - judge.off).clamp(0, m.len as i64) as usize;
        let len = len.min(backed.saturating_sub(from));
        if len == 0 || (store.is_some() && !m.write) {
            return Out::of(-2);
        }
        if !arena::readable(m.at + from, len) {
            return Out::of(-3);
        }
        if let Some(seed) = store {
            arena::store(m.at + from, &outside::bytes(seed, len));
            return Out::of(len as i64);
        }
        Out {
            ret: len as i64,
            data: arena::load(m.at + from, len),
            extra: Vec::new(),
        }
    }

    /// Every file, as an outsider and as the program sees it, against twin B.
    pub(crate) fn compare_all(&mut self) -> Result<(), String> {
        for name in 0..NAMES {
            self.compare_name(name)
                .map_err(|e| format!("contents of f{name}: {e}"))?;
        }
        for slot in 0..SLOTS {
            self.compare_slot(slot)
                .map_err(|e| format!("contents through slot {slot}: {e}"))?;
        }
        Ok(())
    }

    fn compare_name(&mut self, name: usize) -> Result<(), String> {
        let open = |w: Way, side: &Side| w.open(&side.paths[name], libc::O_RDONLY, 0, 0);
        let b = open(Way::Raw, &self.sides[B]);
        // Of what is declared an outsider may be shown an older state.
        let outsider = if declared() { Way::Libc } else { Way::Raw };
        let a = open(outsider, &self.sides[A]);
        let own = open(Way::Libc, &self.sides[A]);
        let found = if a.min(0) != b.min(0) || own.min(0) != b.min(0) {
            Err(format!("open: raw {a}, libc {own}, against {b}"))
        } else if b < 0 {
            Ok(())
        } else {
            same_file(outsider, a as i32, b as i32)
                .map_err(|e| format!("seen by an outsider: {e}"))
                .and_then(|()| {
                    same_file(Way::Libc, own as i32, b as i32)
                        .map_err(|e| format!("seen through libc: {e}"))
                })
        };
        for (way, fd) in [(outsider, a), (Way::Raw, b), (Way::Libc, own)] {
            if fd >= 0 {
                way.close(fd as i32);
            }
        }
        found
    }

    /// A window of each open descriptor: unlinked and replaced files have no name any more.
    fn compare_slot(&mut self, slot: usize) -> Result<(), String> {
        let size = self.size_of_slot(slot);
        for off in [0, size / 2, size - 100_000] {
            let n = self.pair(
                |s| {
                    let at = s.arena.address(Mem::Good(0), 0);
                    s.way
                        .pread(s.fds[slot], at as *mut u8, 100_000, off.max(0), 0)
                },
                "pread",
            )?;
            self.same_memory(n)?;
        }
        Ok(())
    }

    /// Closes everything and compares what is left, times included.
    pub(crate) fn finish(mut self) -> Result<String, String> {
        for map in 0..MAPS {
            self.pair(|s| s.unmap(map), "munmap at the end")?;
        }
        for slot in 0..SLOTS {
            self.pair(|s| s.take(slot), "close at the end")?;
        }
        self.compare_all()?;
        for name in 0..NAMES {
            let metas = [A, B].map(|i| raw_meta(&self.sides[i].paths[name]));
            if let [Some(a), Some(b)] = metas {
                self.sample(
                    Some(b.1),
                    [a.0.mtime, b.0.mtime],
                    "an outsider's stat after close",
                )?;
            }
        }
        for side in &mut self.sides {
            for path in &side.paths {
                Way::Raw.unlink(path);
            }
            for fd in side.pipe {
                Way::Raw.close(fd);
            }
        }
        self.helper.stop();
        Ok(format!(
            "mapped after {} of {} warm-ups, staged at {} looks",
            self.mapped, self.warmed, self.staged
        ))
    }
}

impl Side {
    /// Empties a slot by closing what was in it.
    fn take(&mut self, slot: usize) -> Ret {
        let fd = std::mem::replace(&mut self.fds[slot], -1);
        if fd < 0 { 0 } else { self.way.close(fd) }
    }

    fn put(&mut self, slot: usize, fd: Ret) -> Out {
        if fd >= 0 {
            self.fds[slot] = fd as i32;
        }
        Out::handle(fd)
    }

    fn unmap(&mut self, map: usize) -> Ret {
        let Some(m) = self.maps[map].take() else {
            return 0;
        };
        if m.judge >= 0 {
            Way::Raw.close(m.judge);
        }
        self.way.munmap(m.at, m.len)
    }

    fn reading(&mut self, mem: Mem, len: usize, f: impl FnOnce(&Self, *mut u8) -> Ret) -> Out {
        let at = self.arena.address(mem, 0);
        let ret = f(self, at as *mut u8);
        let got = if ret > 0 { (ret as usize).min(len) } else { 0 };
        Out {
            ret,
            data: self.arena.copy_out(at, got),
            extra: Vec::new(),
        }
    }

    /// The buffer to write from.
    fn source_mem(&self, mem: Mem) -> Mem {
        if self.bad_sources || matches!(mem, Mem::Good(_)) {
            mem
        } else {
            Mem::Good(0)
        }
    }

    fn source(&mut self, mem: Mem, len: usize, seed: u64) -> *const u8 {
        let at = self.arena.address(self.source_mem(mem), 0);
        // An absurd length is about the error, not about gigabytes of pattern.
        self.arena.fill(at, len.min(4 << 20), seed);
        at as *const u8
    }

    fn vector(
        &mut self,
        slot: usize,
        write: bool,
        parts: &[(Mem, usize)],
        off: Option<i64>,
        flags: Option<i32>,
        s: &Step,
    ) -> Out {
        let iov: Vec<libc::iovec> = parts
            .iter()
            .enumerate()
            .map(|(i, &(mem, len))| {
                let mem = if write { self.source_mem(mem) } else { mem };
                let at = self.arena.address(mem, i);
                if write {
                    self.arena.fill(at, len, s.bytes.wrapping_add(i as u64));
                }
                libc::iovec {
                    iov_base: at as *mut _,
                    iov_len: len,
                }
            })
            .collect();
        let ret = self
            .way
            .vectored(self.fds[slot], &iov, write, off, flags, s.alt);
        let mut out = Out::of(ret);
        let mut left = if write { 0 } else { ret.max(0) as usize };
        for v in &iov {
            let n = v.iov_len.min(left);
            out.data.extend(self.arena.copy_out(v.iov_base as usize, n));
            left -= n;
        }
        out
    }

    fn drain(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buf = vec![0u8; 65536];
        loop {
            let n = Way::Raw.read(self.pipe[0], buf.as_mut_ptr(), buf.len());
            if n <= 0 {
                return all;
            }
            all.extend_from_slice(&buf[..n as usize]);
        }
    }

    fn utimens(&mut self, slot: usize, name: Option<usize>, set: u8) -> Out {
        let fixed = |s: i64| libc::timespec {
            tv_sec: s,
            tv_nsec: 123_456_000,
        };
        let special = |n: i64| libc::timespec {
            tv_sec: 0,
            tv_nsec: n,
        };
        let t = match set {
            0 => [fixed(1_000_000_000), fixed(1_000_000_001)],
            1 => [special(libc::UTIME_OMIT), fixed(1_234_567_890)],
            2 => [special(libc::UTIME_NOW), special(libc::UTIME_OMIT)],
            3 => [special(libc::UTIME_NOW), special(libc::UTIME_NOW)],
            _ => [special(1 << 31), special(0)],
        };
        let path = name.map(|n| self.paths[n].clone());
        let fd = self.fds[slot];
        let ret = self.way.utimens(fd, path.as_deref(), &t);
        // A time that was set must be there exactly, not be overtaken by a late store's.
        let mut extra = Vec::new();
        if ret == 0 && set < 2 {
            let how = u8::from(path.is_some());
            let (_, m) = self.way.stat(fd, path.as_deref().unwrap_or(c""), how);
            extra.extend([m.mtime.0, m.mtime.1]);
        }
        Out {
            ret,
            data: Vec::new(),
            extra,
        }
    }
}

fn slot_of(op: &Op) -> Option<usize> {
    match *op {
        Op::Open { slot, .. }
        | Op::OpenTmp { slot, .. }
        | Op::Creat { slot, .. }
        | Op::GetFl { slot }
        | Op::SetFl { slot, .. }
        | Op::Read { slot, .. }
        | Op::Pread { slot, .. }
        | Op::Write { slot, .. }
        | Op::Pwrite { slot, .. }
        | Op::Vector { slot, .. }
        | Op::Lseek { slot, .. }
        | Op::SeekTo { slot, .. }
        | Op::Ftruncate { slot, .. }
        | Op::Fallocate { slot, .. }
        | Op::Fsync { slot, .. }
        | Op::Stat { slot, .. }
        | Op::SendPipe { slot, .. }
        | Op::SpliceOut { slot, .. }
        | Op::SpliceIn { slot, .. }
        | Op::MapOpen { slot, .. }
        | Op::Flock { slot, .. }
        | Op::Utimens { slot, .. }
        | Op::Fionread { slot } => Some(slot),
        Op::Dup { from, .. }
        | Op::DupTo { from, .. }
        | Op::DupFd { from, .. }
        | Op::SendFile { from, .. }
        | Op::CopyRange { from, .. } => Some(from),
        _ => None,
    }
}

fn equal(what: &str, a: Ret, b: Ret) -> Result<(), String> {
    if a == b {
        Ok(())
    } else {
        Err(format!("{what}: {a} against {b}"))
    }
}

fn compare(a: &Out, b: &Out) -> Result<(), String> {
    if a.ret != b.ret || a.extra != b.extra {
        return Err(format!("libc: {}; raw: {}", a.show(), b.show()));
    }
    same_bytes("data", &a.data, &b.data)
}

pub(crate) fn same_bytes(what: &str, a: &[u8], b: &[u8]) -> Result<(), String> {
    if a == b {
        return Ok(());
    }
    let at = a
        .iter()
        .zip(b)
        .position(|(x, y)| x != y)
        .unwrap_or(a.len().min(b.len()));
    let end = |s: &[u8]| s.get(at..(at + 8).min(s.len())).map(<[u8]>::to_vec);
    Err(format!(
        "{what}: {} against {} bytes, first difference at {at}: {:?} against {:?}",
        a.len(),
        b.len(),
        end(a),
        end(b)
    ))
}

/// Compares two files wherever either has data; what neither has is zero on both sides.
fn same_file(way: Way, a: i32, b: i32) -> Result<(), String> {
    let size = if declared() {
        Some(way.stat(a, c"", 0).1.size)
    } else {
        raw_size(a)
    };
    let sizes = (size, raw_size(b));
    if sizes.0 != sizes.1 {
        return Err(format!("sizes {sizes:?}"));
    }
    if let (_, m) = way.stat(a, c"", 0)
        && Some(m.size) != sizes.1
    {
        return Err(format!("size by {way:?} {} against {:?}", m.size, sizes.1));
    }
    let mut pos = 0;
    loop {
        let next = [a, b]
            .map(|fd| Way::Raw.lseek(fd, pos, libc::SEEK_DATA, 0))
            .into_iter()
            .filter(|&o| o >= 0)
            .min();
        let Some(start) = next else { return Ok(()) };
        let mut bufs = [vec![0u8; 256 << 10], vec![0u8; 256 << 10]];
        let n = way.pread(a, bufs[0].as_mut_ptr(), bufs[0].len(), start, 0);
        let m = Way::Raw.pread(b, bufs[1].as_mut_ptr(), bufs[1].len(), start, 0);
        equal(&format!("pread at {start}"), n, m)?;
        if n <= 0 {
            return Ok(());
        }
        let [x, y] = &bufs;
        same_bytes(&format!("at {start}"), &x[..n as usize], &y[..n as usize])?;
        pos = start + n;
    }
}
