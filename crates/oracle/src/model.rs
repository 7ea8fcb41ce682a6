//! One file against a model of it in memory, as `fsx` does.
//!
//! The twins of the other modes are looked at from outside all the time, which takes a staged file
//! away from its program. Here nobody else opens the file for most of a run: what Adit keeps to
//! itself until it must give it back stays there, and every answer is still known.

use crate::arena::{self, Arena};
use crate::ops::Mem;
use crate::records::path_in;
use crate::rng::Rng;
use crate::sys;
use crate::twin::Plant;
use crate::way::{Ret, Way, raw_size};
use libc::c_int;
use std::collections::VecDeque;
use std::ffi::CString;
use std::path::Path;

/// The file never grows beyond this.
const LIMIT: usize = 384 << 10;
/// One call moves at most this much.
const CALL: usize = 64 << 10;
const PAGE: usize = 4096;
const RDWR: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
/// What a file system may answer to an operation that it does not have.
const NOT_HERE: [Ret; 3] = [
    -(libc::EOPNOTSUPP as Ret),
    -(libc::EXDEV as Ret),
    -(libc::ENOSYS as Ret),
];

type Done = Result<(), String>;

/// Which steps run, and how they are looked at.
pub(crate) struct Plan<'a> {
    pub(crate) seed: u64,
    pub(crate) ops: usize,
    pub(crate) only: Option<std::collections::BTreeSet<usize>>,
    pub(crate) plant: Option<Plant>,
    pub(crate) replay: bool,
    pub(crate) compare_always: bool,
    pub(crate) dir: &'a Path,
}

/// Runs the plan; each step depends on the seed, its number and the model alone.
pub(crate) fn run(plan: &Plan) -> Result<String, String> {
    if let Some(Plant::Errno | Plant::Mtime) = plan.plant {
        return Err("this mode looks at contents, sizes and offsets only".into());
    }
    std::fs::create_dir_all(plan.dir).map_err(|e| e.to_string())?;
    let mut file = Model::new(plan.dir)?;
    let mut last: VecDeque<String> = VecDeque::new();
    let mut ran = 0;
    for i in 0..plan.ops {
        if plan.only.as_ref().is_some_and(|o| !o.contains(&i)) {
            continue;
        }
        ran += 1;
        let mut rng = Rng::new(plan.seed.wrapping_mul(0x1_0000_0001).wrapping_add(i as u64));
        file.plant = plan.plant.filter(|_| i >= plan.ops / 2);
        let mut result = match Scene::of(plan.seed, i) {
            (Scene::Quiet, true) => file.reopen_with(0),
            (scene, _) => file.step(scene, &mut rng),
        };
        if plan.compare_always {
            result = result.and_then(|()| file.compare());
        }
        let line = format!("{i}: {}", file.said);
        result.map_err(|e| {
            let before = last.make_contiguous().join("\n  ");
            format!("op {line}\n{e}\nbefore it:\n  {before}")
        })?;
        if plan.replay {
            println!("{line}");
        }
        last.push_back(line);
        if last.len() > 12 {
            last.pop_front();
        }
    }
    file.finish().map_err(|e| format!("at the end: {e}"))?;
    Ok(format!(
        "seed {}: {ran} operations agree with the model",
        plan.seed
    ))
}

/// How many steps a scene has.
const SCENE: usize = 150;

/// What happens for a while. A file that is mapped, duplicated or opened twice is not staged until its last
/// close, so most scenes keep away from all that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// A file that is opened once, read, written, cut and synced.
    Quiet,
    /// Everything.
    Busy,
}

impl Scene {
    /// The scene of a step, and whether it begins with it.
    fn of(seed: u64, step: usize) -> (Self, bool) {
        let number = (step / SCENE) as u64;
        let busy = Rng::new(!seed ^ number << 40).chance(40);
        let scene = if busy { Self::Busy } else { Self::Quiet };
        (scene, step.is_multiple_of(SCENE))
    }
}

struct Model {
    /// What the file must hold.
    bytes: Vec<u8>,
    /// Where the description's offset must be.
    offset: usize,
    fd: c_int,
    append: bool,
    path: CString,
    /// The name that the file does not have at the moment.
    spare: CString,
    arena: Arena,
    plant: Option<Plant>,
    /// The step that is running, in words.
    said: String,
}

/// An answer that must be exactly this.
fn expect(what: &str, got: Ret, wanted: usize) -> Done {
    if got == wanted as Ret {
        return Ok(());
    }
    Err(format!("{what} answered {got} instead of {wanted}"))
}

/// The first difference between what was read and what must be there.
fn same(what: &str, at: usize, got: &[u8], wanted: &[u8]) -> Done {
    if got == wanted {
        return Ok(());
    }
    let i = (0..got.len().min(wanted.len()))
        .find(|&i| got[i] != wanted[i])
        .unwrap_or(got.len().min(wanted.len()));
    Err(format!(
        "{what}: {} bytes at {at}, wanted {}; the first difference at {}: {:?} instead of {:?}",
        got.len(),
        wanted.len(),
        at + i,
        got.get(i),
        wanted.get(i)
    ))
}

impl Model {
    fn new(dir: &Path) -> Result<Self, String> {
        let mut model = Self {
            bytes: Vec::new(),
            offset: 0,
            fd: -1,
            append: false,
            path: path_in(dir, "model"),
            spare: path_in(dir, "model-renamed"),
            arena: Arena::new(),
            plant: None,
            said: String::new(),
        };
        model.open(RDWR)?;
        Ok(model)
    }

    fn step(&mut self, scene: Scene, rng: &mut Rng) -> Done {
        let choice = rng.below(100);
        if scene == Scene::Quiet {
            return match choice {
                0..40 => self.read(rng),
                40..80 => self.write(rng),
                80..86 => self.truncate(rng, false),
                86..94 => self.sync(rng),
                94..96 => self.look(rng),
                96 => self.rename(),
                97 => self.reopen(rng),
                98 => self.compare(),
                _ => self.pause(),
            };
        }
        match choice {
            0..24 => self.read(rng),
            24..52 => self.write(rng),
            52..58 => self.map_read(rng),
            58..64 => self.map_write(rng),
            64..71 => {
                let by_name = rng.chance(15);
                self.truncate(rng, by_name)
            }
            71..75 => self.reserve(rng),
            75..79 => self.clear(rng),
            79..81 => self.copy_inside(rng),
            81..88 => self.sync(rng),
            88..92 => self.reopen(rng),
            92..94 => self.look(rng),
            94 => self.rename(),
            95 => self.second_name(rng),
            96 => self.another_description(rng),
            97 => self.outside(),
            98 => self.compare(),
            _ => self.pause(),
        }
    }

    fn open(&mut self, flags: c_int) -> Done {
        let fd = Way::Libc.open(&self.path, flags, 0o644, 0);
        if fd < 0 {
            return Err(format!("open answered {fd}"));
        }
        self.fd = fd as c_int;
        self.append = flags & libc::O_APPEND != 0;
        self.offset = 0;
        if flags & libc::O_TRUNC != 0 {
            self.bytes.clear();
        }
        Ok(())
    }

    /// A place that lies on a page boundary, beside one, at the end, or anywhere.
    fn place(rng: &mut Rng, limit: usize) -> usize {
        let at = rng.below(limit as u64 + 1) as usize;
        match rng.below(4) {
            0 => at / PAGE * PAGE,
            1 => (at / PAGE * PAGE + rng.below(16) as usize).saturating_sub(8),
            2 if rng.chance(30) => limit,
            _ => at,
        }
        .min(limit)
    }

    fn length(rng: &mut Rng) -> usize {
        match rng.below(6) {
            0 => 1 + rng.below(64) as usize,
            1 => PAGE,
            2 => PAGE * (1 + rng.below(8) as usize),
            3 | 4 => 1 + rng.below(3 * PAGE as u64) as usize,
            _ => 1 + rng.below(CALL as u64) as usize,
        }
    }

    /// Puts the offset somewhere when the call that follows uses it.
    fn seek(&mut self, rng: &mut Rng, at: usize) -> Done {
        let alt = rng.below(2) as u8;
        let size = self.bytes.len();
        let got = match rng.below(3) {
            0 => Way::Libc.lseek(self.fd, at as i64 - size as i64, libc::SEEK_END, alt),
            1 => Way::Libc.lseek(self.fd, at as i64 - self.offset as i64, libc::SEEK_CUR, alt),
            _ => Way::Libc.lseek(self.fd, at as i64, libc::SEEK_SET, alt),
        };
        expect("lseek", got, at)?;
        self.offset = at;
        Ok(())
    }

    /// Buffers of one call: a part each.
    fn vector(&self, rng: &mut Rng, len: usize) -> Vec<libc::iovec> {
        let cut = rng.below(len as u64 + 1) as usize;
        [(4, cut), (5, len - cut)]
            .map(|(part, len)| libc::iovec {
                iov_base: self.arena.address(Mem::Good(part), part) as *mut _,
                iov_len: len,
            })
            .into()
    }

    fn read(&mut self, rng: &mut Rng) -> Done {
        let at = Self::place(rng, self.bytes.len() + PAGE);
        let len = Self::length(rng);
        let how = rng.below(4);
        self.said = format!("read {len} at {at}, way {how}");
        let buffer = self.arena.address(Mem::Good(rng.below(9) as usize), 0);
        self.arena.fill(buffer, len, 1);
        let vector = self.vector(rng, len);
        if how < 2 {
            // Half of the sequential reads go on where the last call ended.
            if rng.chance(50) {
                self.seek(rng, at)?;
            }
        }
        let from = if how < 2 { self.offset } else { at };
        let got = match how {
            0 => Way::Libc.read(self.fd, buffer as *mut u8, len),
            1 => Way::Libc.vectored(self.fd, &vector, false, None, None, 0),
            2 => Way::Libc.pread(self.fd, buffer as *mut u8, len, at as i64, at as u8),
            _ => Way::Libc.vectored(self.fd, &vector, false, Some(at as i64), None, at as u8),
        };
        let wanted = len.min(self.bytes.len().saturating_sub(from));
        expect("the read", got, wanted)?;
        if how < 2 {
            self.offset += wanted;
            self.check_offset()?;
        }
        let mut found = if how.is_multiple_of(2) {
            self.arena.copy_out(buffer, wanted)
        } else {
            let parts = vector.iter();
            let all = parts.flat_map(|v| self.arena.copy_out(v.iov_base as usize, v.iov_len));
            all.take(wanted).collect()
        };
        if self.plant == Some(Plant::Read)
            && let Some(byte) = found.last_mut()
        {
            *byte ^= 1;
        }
        let end = (from + wanted).min(self.bytes.len());
        same("the read", from, &found, &self.bytes[from.min(end)..end])
    }

    fn check_offset(&mut self) -> Done {
        if self.plant == Some(Plant::Offset) {
            sys!(libc::SYS_lseek, self.fd, 1, libc::SEEK_CUR);
        }
        let got = Way::Libc.lseek(self.fd, 0, libc::SEEK_CUR, 0);
        expect("the offset", got, self.offset)
    }

    /// What a write leaves in the model.
    fn note(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(bytes);
    }

    fn write(&mut self, rng: &mut Rng) -> Done {
        let how = rng.below(4);
        let mut at = Self::place(rng, self.bytes.len() + PAGE);
        let mut len = Self::length(rng);
        if rng.chance(40) {
            at = self.bytes.len();
        }
        let buffer = self.arena.address(Mem::Good(rng.below(9) as usize), 0);
        let vector = self.vector(rng, len);
        if how < 2 {
            if rng.chance(60) {
                self.seek(rng, at)?;
            }
            at = self.offset;
        }
        // With O_APPEND every write goes to the end, also the positional ones: Linux's way.
        if self.append {
            at = self.bytes.len();
        }
        if at + len > LIMIT {
            self.said = "a write that would be too far".into();
            len = 0;
        } else {
            self.said = format!("write {len} at {at}, way {how}, append {}", self.append);
        }
        let content = {
            let mut content = vec![0; len];
            rng.fill(&mut content);
            content
        };
        let got = if how.is_multiple_of(2) {
            self.arena.set(buffer, &content);
            let from = buffer as *const u8;
            match how {
                0 => Way::Libc.write(self.fd, from, len),
                _ => Way::Libc.pwrite(self.fd, from, len, at as i64, at as u8),
            }
        } else {
            let mut vector = vector;
            let first = vector[0].iov_len.min(len);
            vector[0].iov_len = first;
            vector[1].iov_len = len - first;
            self.arena
                .set(vector[0].iov_base as usize, &content[..first]);
            self.arena
                .set(vector[1].iov_base as usize, &content[first..]);
            let place = (how == 3).then_some(at as i64);
            Way::Libc.vectored(self.fd, &vector, true, place, None, at as u8)
        };
        expect("the write", got, len)?;
        self.note(at, &content);
        if how < 2 {
            if len > 0 {
                self.offset = at + len;
            }
            self.check_offset()?;
        }
        Ok(())
    }

    /// Maps some pages; what lies behind the end of the file in its last page must be zeros.
    fn map_read(&mut self, rng: &mut Rng) -> Done {
        let size = self.bytes.len();
        if size == 0 {
            self.said = "nothing to map".into();
            return Ok(());
        }
        let first = rng.below(size.div_ceil(PAGE) as u64) as usize * PAGE;
        let len = Self::length(rng).min(size - first);
        self.said = format!("load {len} at {first} from a mapping");
        let at = self.map(first, len, libc::PROT_READ)?;
        let whole = len.next_multiple_of(PAGE);
        let found = arena::load(at, whole);
        expect("munmap", Way::Libc.munmap(at, len), 0)?;
        let end = (first + whole).min(size);
        same(
            "the mapping",
            first,
            &found[..end - first],
            &self.bytes[first..end],
        )?;
        let zeros = vec![0; whole - (end - first)];
        same("behind the end", end, &found[end - first..], &zeros)
    }

    fn map(&self, first: usize, len: usize, prot: c_int) -> Result<usize, String> {
        let at = Way::Libc.mmap(self.fd, first as i64, len, prot, (len % 2) as u8);
        if at <= 0 {
            return Err(format!("mmap answered {at}"));
        }
        Ok(at as usize)
    }

    fn map_write(&mut self, rng: &mut Rng) -> Done {
        let start = Self::place(rng, self.bytes.len());
        let len = Self::length(rng).min(LIMIT.saturating_sub(start)).max(1);
        let end = start + len;
        self.said = format!("store {len} at {start} through a mapping");
        if end > self.bytes.len() {
            let got = Way::Libc.ftruncate(self.fd, end as i64, 0);
            expect("ftruncate", got, 0)?;
            self.bytes.resize(end, 0);
        }
        let first = start / PAGE * PAGE;
        let mapped = end - first;
        let at = self.map(first, mapped, libc::PROT_READ | libc::PROT_WRITE)?;
        let mut content = vec![0; len];
        rng.fill(&mut content);
        arena::store(at + (start - first), &content);
        self.note(start, &content);
        if rng.chance(30) {
            self.said += ", synced";
            let got = Way::Libc.msync(at, mapped, libc::MS_SYNC);
            expect("msync", got, 0)?;
        }
        // A read while the stores are only in the mapping must find them.
        if rng.chance(50) {
            let buffer = self.arena.address(Mem::Good(0), 0);
            let got = Way::Libc.pread(self.fd, buffer as *mut u8, len, start as i64, 0);
            expect("the read beside the mapping", got, len)?;
            let found = self.arena.copy_out(buffer, len);
            same("the read beside the mapping", start, &found, &content)?;
        }
        expect("munmap", Way::Libc.munmap(at, mapped), 0)
    }

    fn truncate(&mut self, rng: &mut Rng, by_name: bool) -> Done {
        let size = self.bytes.len();
        // Mostly shorter, or the file would be nothing but holes.
        let to = if rng.chance(70) {
            size - rng.below(size as u64 + 1).min(1 + rng.below(64 << 10)) as usize
        } else {
            Self::place(rng, LIMIT.min(size + 3 * PAGE))
        }
        .min(LIMIT);
        let to = if size == 0 { PAGE } else { to };
        self.said = format!(
            "truncate {size} to {to}{}",
            if by_name { " by name" } else { "" }
        );
        let got = if by_name {
            Way::Libc.truncate(&self.path, to as i64, 0)
        } else {
            Way::Libc.ftruncate(self.fd, to as i64, to as u8)
        };
        expect("truncate", got, 0)?;
        self.bytes.resize(to, 0);
        self.check_size()
    }

    fn reserve(&mut self, rng: &mut Rng) -> Done {
        let at = Self::place(rng, self.bytes.len() + PAGE);
        let len = Self::length(rng).min(LIMIT.saturating_sub(at)).max(1);
        let keep = rng.chance(50);
        self.said = format!(
            "reserve {len} at {at}{}",
            if keep { ", size kept" } else { "" }
        );
        let mode = if keep { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        let alt = rng.below(3) as u8;
        let got = Way::Libc.fallocate(self.fd, mode, at as i64, len as i64, alt);
        if NOT_HERE.contains(&got) {
            return Ok(());
        }
        expect("fallocate", got, 0)?;
        if !keep && self.bytes.len() < at + len {
            self.bytes.resize(at + len, 0);
        }
        self.check_size()
    }

    /// Punches a hole or writes zeros without bytes.
    fn clear(&mut self, rng: &mut Rng) -> Done {
        let at = Self::place(rng, self.bytes.len());
        let len = Self::length(rng);
        let punch = rng.chance(70);
        let mode = libc::FALLOC_FL_KEEP_SIZE
            | if punch {
                libc::FALLOC_FL_PUNCH_HOLE
            } else {
                libc::FALLOC_FL_ZERO_RANGE
            };
        self.said = format!("{} {len} at {at}", if punch { "punch" } else { "zero" });
        let got = Way::Libc.fallocate(self.fd, mode, at as i64, len as i64, 0);
        if NOT_HERE.contains(&got) {
            return Ok(());
        }
        expect("fallocate", got, 0)?;
        let end = (at + len).min(self.bytes.len());
        self.bytes[at.min(end)..end].fill(0);
        self.check_size()
    }

    fn copy_inside(&mut self, rng: &mut Rng) -> Done {
        let size = self.bytes.len();
        let len = Self::length(rng).min(size / 2);
        // The source lies in front of the target: ranges that overlap are refused.
        let from = Self::place(rng, size.saturating_sub(2 * len));
        let to = Self::place(rng, LIMIT - len)
            .min(LIMIT - len)
            .max(from + len);
        self.said = format!("copy {len} from {from} to {to}");
        if len == 0 || self.append || from + len > size || to + len > LIMIT {
            self.said += ": not done";
            return Ok(());
        }
        let (mut a, mut b) = (from as i64, to as i64);
        let got = Way::Libc.copy_range(self.fd, &raw mut a, self.fd, &raw mut b, len);
        if NOT_HERE.contains(&got) {
            return Ok(());
        }
        let done = usize::try_from(got)
            .ok()
            .filter(|&n| n > 0 && n <= len)
            .ok_or_else(|| format!("copy_file_range answered {got}"))?;
        let content = self.bytes[from..from + done].to_vec();
        self.note(to, &content);
        Ok(())
    }

    fn sync(&mut self, rng: &mut Rng) -> Done {
        let data = rng.chance(50);
        self.said = if data { "fdatasync" } else { "fsync" }.into();
        let got = Way::Libc.fsync(self.fd, data);
        expect("the sync", got, 0)
    }

    fn reopen(&mut self, rng: &mut Rng) -> Done {
        let extra = match rng.below(20) {
            0 => libc::O_TRUNC,
            1..7 => libc::O_APPEND,
            _ => 0,
        };
        self.reopen_with(extra)
    }

    fn reopen_with(&mut self, extra: c_int) -> Done {
        self.said = format!("close and open with {extra:#o}");
        expect("close", Way::Libc.close(self.fd), 0)?;
        self.open(RDWR | extra)?;
        self.check_size()
    }

    fn look(&mut self, rng: &mut Rng) -> Done {
        let how = rng.below(u64::from(crate::way::STAT_WAYS)) as u8;
        self.said = format!("stat, way {how}");
        let (got, meta) = Way::Libc.stat(self.fd, &self.path, how);
        expect("stat", got, 0)?;
        expect("the size", meta.size, self.bytes.len())
    }

    fn check_size(&mut self) -> Done {
        if self.plant == Some(Plant::Size) {
            sys!(libc::SYS_ftruncate, self.fd, self.bytes.len() + 1);
        }
        let (got, meta) = Way::Libc.stat(self.fd, &self.path, 0);
        expect("fstat", got, 0)?;
        expect("the size", meta.size, self.bytes.len())
    }

    fn rename(&mut self) -> Done {
        self.said = "rename".into();
        let got = Way::Libc.rename(&self.path, &self.spare, None);
        expect("rename", got, 0)?;
        std::mem::swap(&mut self.path, &mut self.spare);
        self.check_size()
    }

    /// A write through a duplicate of the descriptor: one offset for both.
    fn second_name(&mut self, rng: &mut Rng) -> Done {
        self.said = "dup, ".into();
        let twin = Way::Libc.dup(self.fd);
        if twin < 0 {
            return Err(format!("dup answered {twin}"));
        }
        let own = std::mem::replace(&mut self.fd, twin as c_int);
        let done = self.write(rng).and_then(|()| self.read(rng));
        self.fd = own;
        self.said.insert_str(0, "through a duplicate: ");
        done?;
        expect("close", Way::Libc.close(twin as c_int), 0)?;
        self.check_offset()
    }

    /// Opens the file once more, as any program may, and writes and reads there.
    fn another_description(&mut self, rng: &mut Rng) -> Done {
        let flags = RDWR | if rng.chance(50) { libc::O_APPEND } else { 0 };
        let (own, offset, append) = (self.fd, self.offset, self.append);
        self.open(flags)?;
        let done = self.write(rng).and_then(|()| self.read(rng));
        let other = std::mem::replace(&mut self.fd, own);
        (self.offset, self.append) = (offset, append);
        self.said.insert_str(0, "through another description: ");
        done?;
        self.compare()?;
        expect("close", Way::Libc.close(other), 0)?;
        self.check_offset()
    }

    fn pause(&mut self) -> Done {
        self.said = "pause".into();
        std::thread::sleep(std::time::Duration::from_millis(30));
        self.compare()
    }

    /// The whole file as its program sees it.
    fn compare(&mut self) -> Done {
        if self.said.is_empty() || self.said.starts_with("pause") {
            self.said += " and compare";
        }
        if self.plant == Some(Plant::File) && !self.bytes.is_empty() {
            self.damage();
        }
        let (fd, bytes) = (self.fd, &self.bytes);
        let buffer = self.arena.address(Mem::Good(0), 0);
        let mut at = 0;
        loop {
            let got = Way::Libc.pread(fd, buffer as *mut u8, CALL, at as i64, 0);
            let wanted = CALL.min(bytes.len() - at);
            expect("the comparing read", got, wanted)?;
            if wanted == 0 {
                return Ok(());
            }
            let found = self.arena.copy_out(buffer, wanted);
            same("the comparing read", at, &found, &bytes[at..at + wanted])?;
            at += wanted;
        }
    }

    /// One byte of the file becomes another behind the model's back.
    fn damage(&self) {
        let at = self.bytes.len() / 2;
        let wrong = [!self.bytes[at]];
        sys!(libc::SYS_pwrite64, self.fd, wrong.as_ptr(), 1, at);
    }

    /// The whole file as somebody sees it who knows nothing of Adit.
    fn outside(&mut self) -> Done {
        self.said = "look from outside".into();
        let fd = Way::Raw.open(&self.path, libc::O_RDONLY | libc::O_CLOEXEC, 0, 0);
        if fd < 0 {
            return Err(format!("an outsider's open answered {fd}"));
        }
        let fd = fd as c_int;
        let mut found = vec![0; self.bytes.len() + PAGE];
        let buffer = self.arena.address(Mem::Good(0), 0);
        let mut at = 0;
        let done = loop {
            let got = Way::Raw.pread(fd, buffer as *mut u8, CALL, at as i64, 0);
            match usize::try_from(got) {
                Ok(0) => break Ok(()),
                Ok(n) if at + n <= found.len() => {
                    found[at..at + n].copy_from_slice(&self.arena.copy_out(buffer, n));
                    at += n;
                }
                _ => break Err(format!("an outsider's read at {at} answered {got}")),
            }
        };
        let size = raw_size(fd);
        Way::Raw.close(fd);
        done?;
        expect("the outsider's size", size.unwrap_or(-1), self.bytes.len())?;
        same("the outsider", 0, &found[..at], &self.bytes)
    }

    fn finish(&mut self) -> Done {
        self.compare()?;
        expect("the last close", Way::Libc.close(self.fd), 0)?;
        self.outside()
    }
}
