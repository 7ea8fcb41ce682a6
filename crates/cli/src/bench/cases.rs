//! The measurements of suite posix, and what the other suites measure with.

use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::failure::said;

use super::sides::{Adit, Bare, Libc, Mapped, Plain, Scratch, pipe};
use adit_pmem::MediumKind as Medium;

/// What a case should reach.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Goal {
    /// Compared with the raw limit, else with the kernel.
    pub(crate) of_raw: bool,
    /// The largest ratio that meets it.
    pub(crate) most: f64,
}

pub(super) const fn of_raw(most: f64) -> Option<Goal> {
    Some(Goal { of_raw: true, most })
}

pub(super) const fn of_kernel(most: f64) -> Option<Goal> {
    Some(Goal {
        of_raw: false,
        most,
    })
}

/// Runs the operation of one side a fixed number of times; the result is nanoseconds per operation.
type Side<'a> = Box<dyn FnMut() -> Result<f64, String> + 'a>;

/// One row of the report.
pub(crate) struct Case<'a> {
    pub(crate) name: String,
    pub(crate) adit: Side<'a>,
    pub(crate) kernel: Side<'a>,
    /// Alternatives for the physical limit; the fastest counts.
    pub(crate) raw: Vec<Side<'a>>,
    pub(crate) raw_is: &'static str,
    pub(crate) goal: Option<Goal>,
}

pub(super) const PAGE: usize = 4096;
pub(super) const LINE: usize = 64;
/// Larger than any cache, so that copies cost what they cost in real use.
const BIG: usize = 128 << 20;
const BIG_NAME: &str = "big";
const THREAD_FILE: usize = 32 << 20;
/// Four times what goes to the kernel before a file that is appended to is staged, where that is done.
const APPENDED: usize = 64 << 20;
const SMALL_OPERATIONS: usize = 100_000;
/// Calls on a fresh description, too few for adopting its file to pay.
const FIRST_USE: usize = 2_000;

/// Times `operations` calls.
pub(super) fn per_operation(operations: usize, mut call: impl FnMut(usize)) -> f64 {
    let begun = Instant::now();
    for i in 0..operations {
        call(i);
    }
    begun.elapsed().as_nanos() as f64 / operations as f64
}

/// Times something that does `operations` and whatever belongs to them.
pub(super) fn timed(
    operations: usize,
    all: impl FnOnce() -> Result<(), String>,
) -> Result<f64, String> {
    let begun = Instant::now();
    all()?;
    Ok(begun.elapsed().as_nanos() as f64 / operations as f64)
}

/// The same pseudo-random places for every side: multiples of `step` below `len`.
pub(super) fn places(count: usize, len: usize, step: usize) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let slots = (len / step) as u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % slots) * step as u64
        })
        .collect()
}

/// What the cases share: files and places, made once.
pub(crate) struct Stage {
    scratch: Scratch,
    pub(super) medium: Medium,
    big: std::path::PathBuf,
    pages: Vec<u64>,
    lines: Vec<u64>,
}

impl Stage {
    /// With a big file, or only with a name for one.
    pub(crate) fn new(dir: &Path, medium: Medium, has_big: bool) -> Result<Self, String> {
        let scratch = Scratch::new(dir)?;
        let big = scratch.path().join(BIG_NAME);
        if has_big {
            scratch.file(BIG_NAME, BIG)?;
        }
        Ok(Self {
            scratch,
            medium,
            big,
            pages: places(BIG / PAGE, BIG, PAGE),
            lines: places(SMALL_OPERATIONS, BIG, LINE),
        })
    }

    /// Removes what a group of cases has made for itself.
    pub(crate) fn clear(&self) -> Result<(), String> {
        let of_groups = |entry: &std::fs::DirEntry| entry.file_name() != BIG_NAME;
        let entries = std::fs::read_dir(self.scratch.path()).map_err(|e| said(&e))?;
        entries
            .flatten()
            .filter(of_groups)
            .for_each(|entry| remove(&entry.path()));
        Ok(())
    }

    /// Where a file of this name would be.
    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path().join(name)
    }

    /// A written file of `len` bytes.
    pub(super) fn file(&self, name: &str, len: usize) -> Result<std::path::PathBuf, String> {
        self.scratch.file(name, len)
    }

    fn in_place(&self) -> bool {
        self.medium != Medium::Cached
    }

    /// The goal of an overwrite: in place on memory, through the kernel on the page cache.
    fn overwrite(&self, in_place: Option<Goal>) -> Option<Goal> {
        if self.in_place() {
            in_place
        } else {
            of_kernel(1.02)
        }
    }
}

/// A case whose making is put off until its turn, so that its files and mappings exist only then.
pub(crate) type Maker = fn(&Stage) -> Result<Vec<Case<'_>>, String>;

/// All groups, in the order of the report.
pub(crate) const GROUPS: [Maker; 7] = [
    reads, one_pass, overwrites, appends, threads, foreign, doors,
];

fn reads(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    let big = &stage.big;
    let mut cases = Vec::new();
    {
        let (adit, kernel, raw) = three(&stage.big)?;
        let (mut a, mut k, mut r) = (page(), page(), page());
        cases.push(Case {
            name: "read 4 KB, sequential, warm".into(),
            adit: Box::new(move || {
                adit.rewind();
                Ok(per_operation(BIG / PAGE, |_| adit.read(&mut a)))
            }),
            kernel: Box::new(move || {
                kernel.rewind();
                Ok(per_operation(BIG / PAGE, |_| kernel.read(&mut k)))
            }),
            raw: vec![Box::new(move || {
                Ok(per_operation(BIG / PAGE, |i| {
                    raw.read(&mut r, (i * PAGE) as u64)
                }))
            })],
            raw_is: "copy out of a mapping",
            goal: of_raw(1.15),
        });
    }
    for (name, places, size, warm, goal) in [
        (
            "pread 4 KB, random, warm",
            &stage.pages,
            PAGE,
            true,
            of_raw(1.15),
        ),
        (
            "pread 64 B, random, warm",
            &stage.lines,
            LINE,
            true,
            of_kernel(0.5),
        ),
        (
            "pread 64 B, random, first use",
            &stage.lines,
            LINE,
            false,
            of_kernel(1.02),
        ),
    ] {
        let (adit, kernel, raw) = three(&stage.big)?;
        if warm {
            use_up_credit(&adit);
        }
        let count = if warm { places.len() } else { FIRST_USE };
        let (mut a, mut k, mut r) = (buffer(size), buffer(size), buffer(size));
        cases.push(Case {
            name: name.into(),
            adit: Box::new(move || {
                let fresh = (!warm)
                    .then(|| Adit::open(big, libc::O_RDONLY))
                    .transpose()?;
                let file = fresh.as_ref().unwrap_or(&adit);
                Ok(per_operation(count, |i| file.read_at(&mut a, places[i])))
            }),
            kernel: Box::new(move || {
                let fresh = (!warm).then(|| plain(big, libc::O_RDONLY)).transpose()?;
                let file = fresh.as_ref().unwrap_or(&kernel);
                Ok(per_operation(count, |i| file.read_at(&mut k, places[i])))
            }),
            raw: vec![Box::new(move || {
                Ok(per_operation(count, |i| raw.read(&mut r, places[i])))
            })],
            raw_is: "copy out of a mapping",
            goal,
        });
    }
    Ok(cases)
}

/// One pass over a file, open and close included: mapping it must not be tried.
fn one_pass(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    let big = &stage.big;
    let (mut a, mut k, mut r) = (page(), page(), page());
    Ok(vec![Case {
        name: "read 4 KB, one cold pass".into(),
        adit: Box::new(move || {
            timed(BIG / PAGE, || {
                let file = Adit::open(big, libc::O_RDONLY)?;
                (0..BIG / PAGE).for_each(|_| file.read(&mut a));
                Ok(())
            })
        }),
        kernel: Box::new(move || {
            timed(BIG / PAGE, || {
                let file = plain(big, libc::O_RDONLY)?;
                (0..BIG / PAGE).for_each(|_| file.read(&mut k));
                Ok(())
            })
        }),
        raw: vec![Box::new(move || {
            timed(BIG / PAGE, || {
                let mapped = Mapped::new(big, BIG)?;
                (0..BIG / PAGE).for_each(|i| mapped.read(&mut r, (i * PAGE) as u64));
                Ok(())
            })
        })],
        raw_is: "map it filled and copy",
        goal: of_kernel(1.02),
    }])
}

fn overwrites(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    let sequential: Vec<u64> = (0..BIG / PAGE).map(|i| (i * PAGE) as u64).collect();
    let mut cases = Vec::new();
    for (name, places, size, in_place) in [
        ("pwrite 4 KB, sequential", sequential, PAGE, of_raw(1.2)),
        (
            "pwrite 4 KB, random",
            stage.pages.clone(),
            PAGE,
            of_raw(1.2),
        ),
        (
            "pwrite 64 B, random",
            stage.lines.clone(),
            LINE,
            of_kernel(0.5),
        ),
    ] {
        let places = std::rc::Rc::new(places);
        let (adit, kernel, raw) = three(&stage.big)?;
        use_up_credit(&adit);
        let raw = std::rc::Rc::new(raw);
        let (streamed, bytes) = (raw.clone(), buffer(size));
        let (a, k, r, s) = (bytes.clone(), bytes.clone(), bytes.clone(), bytes);
        let (ap, kp, rp, sp) = (places.clone(), places.clone(), places.clone(), places);
        cases.push(Case {
            name: name.into(),
            adit: Box::new(move || Ok(per_operation(ap.len(), |i| adit.write_at(&a, ap[i])))),
            kernel: Box::new(move || Ok(per_operation(kp.len(), |i| kernel.write_at(&k, kp[i])))),
            raw: vec![
                Box::new(move || Ok(per_operation(rp.len(), |i| raw.write(&r, rp[i])))),
                Box::new(move || Ok(per_operation(sp.len(), |i| streamed.stream(&s, sp[i])))),
            ],
            raw_is: "copy into a mapping, or past the cache and fence",
            goal: stage.overwrite(in_place),
        });
    }
    Ok(cases)
}

fn appends(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    let goal = if stage.in_place() {
        of_kernel(0.4)
    } else {
        of_kernel(0.9)
    };
    let count = APPENDED / PAGE;
    let mut cases = Vec::new();
    for (name, append) in [
        ("append 4 KB, O_APPEND", true),
        ("append 4 KB, pwrite", false),
    ] {
        let path = |side: &str| stage.scratch.path().join(format!("append-{side}"));
        let (pa, pk, pr) = (path("adit"), path("kernel"), path("raw"));
        let extra = if append { libc::O_APPEND } else { 0 };
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | extra;
        let (a, k, r) = (page(), page(), page());
        let kernel = move |path: &Path, bytes: &[u8], reserve: bool| {
            let file = plain(path, flags)?;
            if reserve {
                file.reserve(APPENDED as u64);
            }
            let time = per_operation(count, |i| match append {
                true => file.write(bytes),
                false => file.write_at(bytes, (i * PAGE) as u64),
            });
            remove(path);
            Ok(time)
        };
        cases.push(Case {
            name: name.into(),
            adit: Box::new(move || {
                let file = Adit::open(&pa, flags)?;
                let time = per_operation(count, |i| match append {
                    true => file.write(&a),
                    false => file.write_at(&a, (i * PAGE) as u64),
                });
                remove(&pa);
                Ok(time)
            }),
            kernel: Box::new(move || kernel(&pk, &k, false)),
            raw: vec![Box::new(move || kernel(&pr, &r, true))],
            raw_is: "the kernel's append with blocks reserved before",
            goal,
        });
    }
    Ok(cases)
}

/// Several threads, each with a file of its own or all with the same one.
fn threads(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    let mut files = Vec::new();
    for i in 0..4 {
        files.push(stage.scratch.file(&format!("thread-{i}"), THREAD_FILE)?);
    }
    let mut cases = Vec::new();
    for write in [false, true] {
        for shared in [false, true] {
            for count in [1usize, 2, 4] {
                cases.push(threaded(stage, &files, write, shared, count)?);
            }
        }
    }
    Ok(cases)
}

/// Calls one operation of a side: which file, place, buffer.
type Call<T> = fn(&T, &mut [u8], u64);

fn threaded<'a>(
    stage: &Stage,
    files: &[std::path::PathBuf],
    write: bool,
    shared: bool,
    count: usize,
) -> Result<Case<'a>, String> {
    let used = |i: usize| &files[if shared { 0 } else { i }];
    let distinct = if shared { 1 } else { count };
    let mut adit = Vec::new();
    let mut kernel = Vec::new();
    let mut raw = Vec::new();
    for i in 0..distinct {
        adit.push(Adit::open(used(i), libc::O_RDWR)?);
        kernel.push(plain(used(i), libc::O_RDWR)?);
        raw.push(Mapped::new(used(i), THREAD_FILE)?);
    }
    let (on_adit, on_kernel, on_raw): (Call<Adit>, Call<Plain>, Call<Mapped>) = if write {
        (
            |f, b, at| f.write_at(b, at),
            |f, b, at| f.write_at(b, at),
            |f, b, at| f.write(b, at),
        )
    } else {
        (
            |f, b, at| f.read_at(b, at),
            |f, b, at| f.read_at(b, at),
            |f, b, at| f.read(b, at),
        )
    };
    let goal = match (write, shared, count) {
        (true, true, 4) if stage.in_place() => of_kernel(0.125),
        (true, _, _) => stage.overwrite(of_raw(1.2)),
        (false, _, _) => of_raw(1.15),
    };
    Ok(Case {
        name: format!(
            "{} 4 KB, random, {count} thread{}, {}",
            if write { "pwrite" } else { "pread" },
            if count == 1 { "" } else { "s" },
            if shared { "one file" } else { "own files" },
        ),
        adit: Box::new(move || Ok(together(&adit, count, on_adit))),
        kernel: Box::new(move || Ok(together(&kernel, count, on_kernel))),
        raw: vec![Box::new(move || Ok(together(&raw, count, on_raw)))],
        raw_is: "copy from or to a mapping",
        goal,
    })
}

/// Wall time per operation of all threads together, from the first one's start to the last one's
/// end. The threads take these times themselves: whoever waits for them may be woken late.
pub(super) fn together<T: Sync>(files: &[T], count: usize, call: Call<T>) -> f64 {
    const EACH: usize = THREAD_FILE / PAGE;
    let all = places(EACH * count, THREAD_FILE, PAGE);
    let barrier = Barrier::new(count);
    let run = |i: usize| {
        let (file, mine) = (&files[i % files.len()], &all[EACH * i..EACH * (i + 1)]);
        let mut buffer = page();
        barrier.wait();
        let begun = Instant::now();
        for at in mine {
            call(file, &mut buffer, *at);
        }
        (begun, Instant::now())
    };
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let run = &run;
        let workers: Vec<_> = (0..count).map(|i| scope.spawn(move || run(i))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no call failed"))
            .collect()
    });
    let first = times.iter().map(|t| t.0).min();
    let last = times.iter().map(|t| t.1).max();
    match (first, last) {
        (Some(first), Some(last)) => (last - first).as_nanos() as f64 / (EACH * count) as f64,
        _ => 0.0,
    }
}

/// Descriptors that are not ours must cost a few nanoseconds at most. What a program would call
/// without Adit is libc's own function, so that is the kernel's side here; the bare system call is
/// the limit.
fn foreign(_: &Stage) -> Result<Vec<Case<'_>>, String> {
    const BYTE: [u8; 1] = [1];
    let zero = Path::new("/dev/zero");
    let adit = Adit::open(zero, libc::O_RDONLY)?;
    let (real, bare) = (Libc::find()?, Bare::open(zero, OFlags::RDONLY)?);
    let plain = real.open(zero, libc::O_RDONLY)?;
    let (mut a, mut k, mut r) = ([0u8; 1], [0u8; 1], [0u8; 1]);
    let read = Case {
        name: "foreign: read 1 B of /dev/zero".into(),
        adit: Box::new(move || Ok(per_operation(SMALL_OPERATIONS, |_| adit.read(&mut a)))),
        kernel: Box::new(move || Ok(per_operation(SMALL_OPERATIONS, |_| plain.read(&mut k)))),
        raw: vec![Box::new(move || {
            Ok(per_operation(SMALL_OPERATIONS, |_| bare.read(&mut r)))
        })],
        raw_is: "the bare system call",
        goal: of_kernel(1.02),
    };
    let (adit, plain, bare) = (pipe()?, real.pipe()?, Bare::pipe()?);
    let piped = Case {
        name: "foreign: write and read 1 B of a pipe".into(),
        adit: Box::new(move || {
            Ok(per_operation(SMALL_OPERATIONS, |_| {
                adit.1.write(&BYTE);
                adit.0.read(&mut a);
            }))
        }),
        kernel: Box::new(move || {
            Ok(per_operation(SMALL_OPERATIONS, |_| {
                plain.1.write(&BYTE);
                plain.0.read(&mut k);
            }))
        }),
        raw: vec![Box::new(move || {
            Ok(per_operation(SMALL_OPERATIONS, |_| {
                bare.1.write(&BYTE);
                bare.0.read(&mut r);
            }))
        })],
        raw_is: "the bare system calls",
        goal: of_kernel(1.02),
    };
    Ok(vec![read, piped])
}

fn doors(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    const COUNT: usize = 20_000;
    const MADE: &str = "the file was just made";
    let small = stage.scratch.file("small", PAGE)?;
    let mut cases = Vec::new();
    for (name, reading) in [("open, close", false), ("open, read 4 KB, close", true)] {
        let real = Libc::find()?;
        let (ap, kp, rp) = (small.clone(), small.clone(), small.clone());
        let (mut a, mut k, mut r) = (page(), page(), page());
        cases.push(Case {
            name: name.into(),
            adit: Box::new(move || {
                Ok(per_operation(COUNT, |_| {
                    let file = Adit::open(&ap, libc::O_RDONLY).expect(MADE);
                    if reading {
                        file.read(&mut a);
                    }
                }))
            }),
            kernel: Box::new(move || {
                Ok(per_operation(COUNT, |_| {
                    let file = real.open(&kp, libc::O_RDONLY).expect(MADE);
                    if reading {
                        file.read(&mut k);
                    }
                }))
            }),
            raw: vec![Box::new(move || {
                Ok(per_operation(COUNT, |_| {
                    let file = Bare::open(&rp, OFlags::RDONLY).expect(MADE);
                    if reading {
                        file.read(&mut r);
                    }
                }))
            })],
            raw_is: "the bare system calls",
            goal: of_kernel(1.02),
        });
    }
    Ok(cases)
}

/// Opens past the library.
pub(super) fn plain(path: &Path, flags: libc::c_int) -> Result<Plain, String> {
    Libc::find()?.open(path, flags)
}

fn three(path: &Path) -> Result<(Adit, Plain, Mapped), String> {
    Ok((
        Adit::open(path, libc::O_RDWR)?,
        plain(path, libc::O_RDWR)?,
        Mapped::new(path, BIG)?,
    ))
}

/// Uses a description until the library has had every reason to adopt its file.
fn use_up_credit(adit: &Adit) {
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..3 {
        for at in 0..BIG / buffer.len() {
            adit.read_at(&mut buffer, (at << 20) as u64);
        }
    }
}

/// A buffer that begins on a page. Copies to and from memory that does not even begin on a cache
/// line cost up to a third more, and the sides must not differ by what the allocator gave them.
#[derive(Clone)]
pub(super) struct Buffer {
    page: Box<Aligned>,
    len: usize,
}

#[derive(Clone)]
#[repr(align(4096))]
struct Aligned([u8; PAGE]);

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.page.0[..self.len]
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.page.0[..self.len]
    }
}

pub(super) fn buffer(len: usize) -> Buffer {
    Buffer {
        page: Box::new(Aligned([0x5a; PAGE])),
        len: len.min(PAGE),
    }
}

pub(super) fn page() -> Buffer {
    buffer(PAGE)
}

pub(super) fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}
