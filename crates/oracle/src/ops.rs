//! The operations and their seeded generator.
//!
//! The generator looks at nothing but its seed: any subset of a run's operations is a run of its
//! own, which is what makes shrinking a matter of leaving operations out.

use crate::rng::Rng;
use libc::c_int;

/// Descriptors in use at once, by slot.
pub(crate) const SLOTS: usize = 10;
/// Names in each twin's directory.
pub(crate) const NAMES: usize = 5;
/// Program mappings held over several operations.
pub(crate) const MAPS: usize = 3;

const KB: i64 = 1024;
const MB: i64 = 1024 * KB;

/// A position, resolved when the operation runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    Abs(i64),
    /// Relative to the size at that time.
    End(i64),
}

/// Where the program's buffer lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mem {
    /// In the arena, this many bytes after a page boundary.
    Good(usize),
    /// Only this many bytes before a page that cannot be touched.
    Guard(usize),
    /// An address where nothing is.
    Wild,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Outside {
    Append { len: usize },
    Overwrite { at: At, len: usize },
    Truncate { at: At },
    Punch { at: At, len: i64 },
    Replace { len: usize },
    Store { at: At, len: usize },
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Makes a whole file in one go, by libc on its side or by the judge.
    Make {
        name: usize,
        size: i64,
        own: bool,
    },
    Open {
        slot: usize,
        name: usize,
        flags: c_int,
        mode: u32,
    },
    OpenTmp {
        slot: usize,
        flags: c_int,
    },
    Creat {
        slot: usize,
        name: usize,
    },
    Close {
        slot: usize,
    },
    Dup {
        from: usize,
        to: usize,
    },
    DupTo {
        from: usize,
        to: usize,
        three: Option<c_int>,
    },
    DupFd {
        from: usize,
        to: usize,
        cloexec: bool,
    },
    GetFl {
        slot: usize,
    },
    SetFl {
        slot: usize,
        flags: c_int,
    },
    /// Whole passes: this is what makes Adit take a descriptor over.
    Warm {
        slot: usize,
        passes: usize,
        chunk: usize,
        kind: u8,
    },
    Read {
        slot: usize,
        mem: Mem,
        len: usize,
    },
    Pread {
        slot: usize,
        mem: Mem,
        len: usize,
        at: At,
    },
    Write {
        slot: usize,
        mem: Mem,
        len: usize,
    },
    Pwrite {
        slot: usize,
        mem: Mem,
        len: usize,
        at: At,
    },
    Vector {
        slot: usize,
        write: bool,
        parts: Vec<(Mem, usize)>,
        at: Option<At>,
        flags: Option<c_int>,
    },
    Lseek {
        slot: usize,
        off: i64,
        whence: c_int,
    },
    SeekTo {
        slot: usize,
        at: At,
    },
    Ftruncate {
        slot: usize,
        at: At,
    },
    Truncate {
        name: usize,
        at: At,
    },
    Fallocate {
        slot: usize,
        mode: c_int,
        at: At,
        len: i64,
    },
    Fsync {
        slot: usize,
        data: bool,
    },
    Stat {
        slot: usize,
        name: usize,
        how: u8,
    },
    SendPipe {
        slot: usize,
        at: Option<At>,
        len: usize,
    },
    SendFile {
        from: usize,
        to: usize,
        at: Option<At>,
        len: usize,
    },
    CopyRange {
        from: usize,
        to: usize,
        at: Option<At>,
        to_at: Option<At>,
        len: usize,
    },
    SpliceOut {
        slot: usize,
        at: Option<At>,
        len: usize,
    },
    SpliceIn {
        slot: usize,
        at: Option<At>,
        len: usize,
    },
    MapOpen {
        map: usize,
        slot: usize,
        page: i64,
        len: usize,
        write: bool,
    },
    MapStore {
        map: usize,
        from: usize,
        len: usize,
    },
    MapLoad {
        map: usize,
        from: usize,
        len: usize,
    },
    MapSync {
        map: usize,
        flags: c_int,
    },
    MapClose {
        map: usize,
    },
    Rename {
        from: usize,
        to: usize,
        flags: Option<u32>,
    },
    Link {
        from: usize,
        to: usize,
    },
    Unlink {
        name: usize,
    },
    Flock {
        slot: usize,
        op: c_int,
    },
    Utimens {
        slot: usize,
        name: Option<usize>,
        set: u8,
    },
    Fionread {
        slot: usize,
    },
    Outsider {
        name: usize,
        act: Outside,
        helper: bool,
    },
    Compare,
    /// Lets the kernel's coarse clock tick.
    Settle,
}

/// One generated operation with what else it needs to be exactly repeatable.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    /// Which of an entry's several names to use.
    pub(crate) alt: u8,
    /// Bytes that this step writes come from here.
    pub(crate) bytes: u64,
    /// Whether to compare offset and size after it. Not always: asking may itself repair.
    pub(crate) look: bool,
}

struct Gen {
    rng: Rng,
    open: [bool; SLOTS],
    sizes: [i64; NAMES],
    left: usize,
    out: Vec<Step>,
}

/// The first `n` operations of this seed.
pub(crate) fn generate(seed: u64, n: usize) -> Vec<Step> {
    let mut g = Gen {
        rng: Rng::new(seed),
        open: [false; SLOTS],
        sizes: [0; NAMES],
        left: n,
        out: Vec::with_capacity(n),
    };
    while g.left > 0 {
        g.scene();
    }
    g.out
}

impl Gen {
    fn push(&mut self, op: Op) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let step = Step {
            op,
            alt: self.rng.below(4) as u8,
            bytes: self.rng.next(),
            look: self.rng.chance(70),
        };
        self.out.push(step);
    }

    /// A file, warmed until Adit serves it, then everything at once.
    fn scene(&mut self) {
        let name = self.rng.below(NAMES as u64) as usize;
        let size = match self.rng.below(10) {
            0 => self.rng.below(5000) as i64,
            1..=5 => 64 * KB + self.rng.below(512 * 1024) as i64,
            6..=8 => 64 * KB + self.rng.below((3 * MB) as u64) as i64,
            _ => 2 * MB + self.rng.below((6 * MB) as u64) as i64,
        };
        // A page boundary every now and then: that is where the end of file is hardest.
        let size = if self.rng.chance(30) {
            size & !4095
        } else {
            size
        };
        self.sizes[name] = size;
        let own = self.rng.chance(40);
        self.push(Op::Make { name, size, own });
        let main = self.rng.below(3) as usize;
        let flags = if self.rng.chance(85) {
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
        let append = if self.rng.chance(10) {
            libc::O_APPEND
        } else {
            0
        };
        self.open_slot(main, name, flags | append);
        if self.rng.chance(60) {
            let flags = self
                .rng
                .pick(&[libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY]);
            self.open_slot((main + 1) % SLOTS, name, flags);
        }
        self.warm(main);
        let steps = self.rng.range(40, 260);
        for _ in 0..steps {
            if self.left == 0 {
                return;
            }
            self.any(main, name);
        }
        self.push(Op::Compare);
        for map in 0..MAPS {
            if self.rng.chance(70) {
                self.push(Op::MapClose { map });
            }
        }
        for slot in 0..SLOTS {
            if self.rng.chance(70) {
                self.close_slot(slot);
            }
        }
    }

    fn open_slot(&mut self, slot: usize, name: usize, flags: c_int) {
        self.open[slot] = true;
        self.push(Op::Open {
            slot,
            name,
            flags,
            mode: 0o644,
        });
    }

    fn close_slot(&mut self, slot: usize) {
        self.open[slot] = false;
        self.push(Op::Close { slot });
    }

    fn warm(&mut self, slot: usize) {
        let passes = self.rng.range(2, 4) as usize;
        let chunk = self.rng.pick(&[512, 4096, 16384, 65536, 100_000, 1 << 20]);
        let kind = self.rng.below(5) as u8;
        self.push(Op::Warm {
            slot,
            passes,
            chunk,
            kind,
        });
    }

    /// Mostly the scene's descriptor, sometimes another open one, rarely none at all.
    fn slot(&mut self, main: usize) -> usize {
        if self.rng.chance(60) {
            return main;
        }
        let slot = self.rng.below(SLOTS as u64) as usize;
        if self.open[slot] || self.rng.chance(10) {
            slot
        } else {
            main
        }
    }

    fn name(&mut self, main: usize) -> usize {
        if self.rng.chance(70) {
            main
        } else {
            self.rng.below(NAMES as u64) as usize
        }
    }

    fn len(&mut self) -> usize {
        (match self.rng.below(20) {
            0 => 0,
            1..=4 => self.rng.range(1, 17),
            5..=8 => self.rng.range(1, 600),
            9..=12 => 4096,
            13..=16 => self.rng.range(1, 20_000),
            17 => self.rng.pick(&[8192, 16384, 65536]),
            18 => self.rng.range(1, 300_000),
            _ => self.rng.range(1, 3_000_000),
        }) as usize
    }

    /// Lengths for what makes a file grow: short enough that a scene stays small.
    fn grow(&mut self) -> usize {
        self.len().min(150_000)
    }

    fn at(&mut self, main: usize) -> At {
        let size = self.sizes[main].max(1) as u64;
        match self.rng.below(100) {
            0..=44 => At::Abs(self.rng.below(size) as i64),
            45..=59 => At::Abs((self.rng.below(size) & !4095) as i64),
            60..=74 => At::End(-(self.rng.below(9000) as i64)),
            75..=79 => At::End(0),
            80..=88 => At::End(self.rng.below(12_000) as i64),
            89 => At::End(self.rng.below((3 * MB) as u64) as i64),
            90 | 91 => At::Abs(0),
            92 => At::Abs(2 * MB - self.rng.below(5000) as i64),
            93 => At::Abs(-1 - self.rng.below(5000) as i64),
            94 => At::Abs(i64::MAX - self.rng.below(5000) as i64),
            95 => At::Abs(i64::MAX),
            96 => At::Abs(i64::MIN),
            97 => At::Abs((1 << 32) + self.rng.below(9000) as i64),
            98 => At::Abs((1 << 31) - self.rng.below(9000) as i64),
            _ => At::Abs(1 << self.rng.range(33, 62)),
        }
    }

    /// Positions to write at: like the others, but making a huge file only rarely.
    fn write_at(&mut self, main: usize) -> At {
        let at = self.at(main);
        match at {
            At::Abs(o) if o > 16 * MB && o < (1 << 62) && self.rng.chance(80) => At::End(-5),
            other => other,
        }
    }

    /// A copy inside the kernel. Whole blocks are often shared then, where the file system can share them.
    fn copy_range(&mut self, from: usize, to: usize, main: usize) -> Op {
        let size = self.sizes[main].max(1) as u64;
        let (at, to_at, len) = if self.rng.chance(50) {
            let mut block = || Some(At::Abs((self.rng.below(size) & !4095) as i64));
            let (at, to_at) = (block(), block());
            (at, to_at, 4096 * self.rng.range(1, 16) as usize)
        } else {
            let at = self.maybe_at(main);
            let to_at = if self.rng.chance(50) {
                Some(self.write_at(main))
            } else {
                None
            };
            (at, to_at, self.grow())
        };
        Op::CopyRange {
            from,
            to,
            at,
            to_at,
            len,
        }
    }

    fn maybe_at(&mut self, main: usize) -> Option<At> {
        if self.rng.chance(50) {
            Some(self.at(main))
        } else {
            None
        }
    }

    fn mem(&mut self) -> Mem {
        match self.rng.below(40) {
            0 => Mem::Guard(0),
            1 => Mem::Guard(self.rng.below(9000) as usize),
            2 => Mem::Wild,
            3..=15 => Mem::Good(self.rng.below(4096) as usize),
            _ => Mem::Good(0),
        }
    }

    fn read_len(&mut self) -> usize {
        if self.rng.chance(2) {
            self.rng.pick(&[
                0x7fff_f000,
                0x7fff_ffff,
                1 << 40,
                usize::MAX >> 1,
                usize::MAX,
            ])
        } else {
            self.len()
        }
    }

    /// Lengths for writes: absurd ones come from a short buffer, so that little is written.
    fn write_part(&mut self) -> (Mem, usize) {
        if self.rng.chance(2) {
            let near = Mem::Guard(self.rng.below(9000) as usize);
            (
                near,
                self.rng
                    .pick(&[0x7fff_f000, 1 << 40, usize::MAX >> 1, usize::MAX]),
            )
        } else {
            (self.mem(), self.grow())
        }
    }

    fn parts(&mut self, write: bool) -> Vec<(Mem, usize)> {
        let n = self.rng.range(0, 6);
        (0..n)
            .map(|_| {
                let (mem, len) = if write {
                    self.write_part()
                } else {
                    (self.mem(), self.grow())
                };
                (mem, len.min(200_000))
            })
            .collect()
    }

    fn outside(&mut self, main: usize) -> Outside {
        let size = self.sizes[main];
        match self.rng.below(12) {
            0..=2 => Outside::Append { len: self.grow() },
            3..=5 => Outside::Overwrite {
                at: self.inside(main),
                len: self.grow(),
            },
            6 => Outside::Truncate {
                at: At::Abs(self.rng.below(size.max(1) as u64) as i64),
            },
            7 => Outside::Truncate {
                at: At::End(-(self.rng.below(9000) as i64)),
            },
            8 => {
                let to = self.rng.below(size.max(1) as u64) as i64 & !4095;
                Outside::Truncate { at: At::Abs(to) }
            }
            9 => Outside::Punch {
                at: self.inside(main),
                len: 1 + self.rng.below(20_000) as i64,
            },
            10 => Outside::Replace { len: self.len() },
            _ => Outside::Store {
                at: self.inside(main),
                len: self.rng.range(1, 6000) as usize,
            },
        }
    }

    fn inside(&mut self, main: usize) -> At {
        if self.rng.chance(60) {
            At::Abs(self.rng.below(self.sizes[main].max(1) as u64) as i64)
        } else {
            At::End(-(self.rng.below(9000) as i64))
        }
    }

    fn flags(&mut self) -> c_int {
        let mut f = self.rng.pick(&[
            libc::O_RDONLY,
            libc::O_RDWR,
            libc::O_RDWR,
            libc::O_RDWR,
            libc::O_WRONLY,
            3,
        ]);
        for (flag, percent) in [
            (libc::O_APPEND, 20),
            (libc::O_TRUNC, 8),
            (libc::O_CREAT, 40),
            (libc::O_EXCL, 6),
            (libc::O_SYNC, 4),
            (libc::O_DSYNC, 4),
            (libc::O_CLOEXEC, 20),
            (libc::O_NOFOLLOW, 4),
            (libc::O_NONBLOCK, 4),
            (libc::O_NOATIME, 4),
            (libc::O_DIRECT, 3),
            (libc::O_PATH, 3),
            (libc::O_DIRECTORY, 2),
        ] {
            if self.rng.chance(percent) {
                f |= flag;
            }
        }
        f
    }

    fn any(&mut self, main: usize, name: usize) {
        let slot = self.slot(main);
        match self.rng.below(100) {
            0..=44 => self.transfer(slot, name),
            45..=54 => self.seek(slot, name),
            55..=62 => self.shape(slot, name),
            63..=70 => self.descriptors(slot, name),
            71..=77 => self.look_at(slot, name),
            78..=82 => self.kernel_copies(slot, name),
            83..=88 => self.maps(slot, name),
            89..=91 => self.names(name),
            92..=96 => {
                let (name, helper) = (self.name(name), self.rng.chance(40));
                let act = self.outside(name);
                self.push(Op::Outsider { name, act, helper });
            }
            97 => self.push(Op::Compare),
            98 => self.warm(slot),
            _ if self.rng.chance(20) => self.push(Op::Settle),
            _ => self.push(Op::Fsync { slot, data: true }),
        }
    }

    fn transfer(&mut self, slot: usize, name: usize) {
        let op = match self.rng.below(12) {
            0..=2 => Op::Read {
                slot,
                mem: self.mem(),
                len: self.read_len(),
            },
            3..=5 => Op::Pread {
                slot,
                mem: self.mem(),
                len: self.read_len(),
                at: self.at(name),
            },
            6 | 7 => {
                let (mem, len) = self.write_part();
                Op::Write { slot, mem, len }
            }
            8 | 9 => {
                let (mem, len) = self.write_part();
                Op::Pwrite {
                    slot,
                    mem,
                    len,
                    at: self.write_at(name),
                }
            }
            _ => {
                let write = self.rng.chance(45);
                let at = if self.rng.chance(50) {
                    Some(self.write_at(name))
                } else {
                    None
                };
                let flags = self.vector_flags(write);
                Op::Vector {
                    slot,
                    write,
                    parts: self.parts(write),
                    at,
                    flags,
                }
            }
        };
        self.push(op);
    }

    fn vector_flags(&mut self, write: bool) -> Option<c_int> {
        if self.rng.chance(60) {
            return None;
        }
        let choice: &[c_int] = if write {
            &[
                0,
                0,
                libc::RWF_DSYNC,
                libc::RWF_SYNC,
                libc::RWF_APPEND,
                0x4000_0000,
            ]
        } else {
            &[0, 0, libc::RWF_HIPRI, 0x4000_0000]
        };
        Some(self.rng.pick(choice))
    }

    fn seek(&mut self, slot: usize, name: usize) {
        if self.rng.chance(75) {
            let at = self.at(name);
            self.push(Op::SeekTo { slot, at });
            return;
        }
        let whence = self.rng.pick(&[
            libc::SEEK_SET,
            libc::SEEK_CUR,
            libc::SEEK_CUR,
            libc::SEEK_END,
            libc::SEEK_DATA,
            libc::SEEK_HOLE,
            99,
        ]);
        let off = match self.rng.below(8) {
            0 => 0,
            1 => -1,
            2 => i64::MAX,
            3 => i64::MIN,
            4 => -(self.rng.below(100_000) as i64),
            _ => self.rng.below(self.sizes[name].max(1) as u64) as i64,
        };
        self.push(Op::Lseek { slot, off, whence });
    }

    fn shape(&mut self, slot: usize, name: usize) {
        let op = match self.rng.below(10) {
            0..=3 => Op::Ftruncate {
                slot,
                at: self.write_at(name),
            },
            4 | 5 => Op::Truncate {
                name,
                at: self.write_at(name),
            },
            6 | 7 => {
                let mode = self.rng.pick(&[
                    0,
                    libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_ZERO_RANGE,
                    libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_COLLAPSE_RANGE,
                    libc::FALLOC_FL_INSERT_RANGE,
                    0x4000,
                ]);
                let blocks =
                    mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0;
                let at = match self.inside(name) {
                    At::Abs(o) if blocks => At::Abs(o & !4095),
                    other => other,
                };
                let len = match self.rng.below(12) {
                    0 => 0,
                    1 => -1,
                    2 => i64::MAX,
                    _ if blocks => 4096 * self.rng.range(1, 8) as i64,
                    _ => self.rng.range(1, 300_000) as i64,
                };
                Op::Fallocate {
                    slot,
                    mode,
                    at,
                    len,
                }
            }
            _ => Op::Fsync {
                slot,
                data: self.rng.chance(50),
            },
        };
        self.push(op);
    }

    fn descriptors(&mut self, slot: usize, name: usize) {
        let to = self.rng.below(SLOTS as u64) as usize;
        match self.rng.below(14) {
            0 | 1 => {
                let (name, flags) = (self.name(name), self.flags());
                self.open_slot(to, name, flags);
            }
            2 => self.open_slot(to, name, libc::O_RDWR),
            3 => {
                self.open[to] = true;
                let flags = self
                    .rng
                    .pick(&[libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY]);
                self.push(Op::OpenTmp { slot: to, flags });
            }
            4 if self.rng.chance(20) => {
                self.open[to] = true;
                let name = self.name(name);
                self.push(Op::Creat { slot: to, name });
            }
            5 => self.close_slot(to),
            6 => {
                self.open[to] = true;
                self.push(Op::Dup { from: slot, to });
            }
            7 | 8 => {
                let three =
                    self.rng
                        .pick(&[None, None, Some(0), Some(libc::O_CLOEXEC), Some(0x55)]);
                self.push(Op::DupTo {
                    from: slot,
                    to,
                    three,
                });
            }
            9 => {
                self.open[to] = true;
                let cloexec = self.rng.chance(50);
                self.push(Op::DupFd {
                    from: slot,
                    to,
                    cloexec,
                });
            }
            10 | 11 => {
                let flags =
                    self.rng
                        .pick(&[0, 0, libc::O_APPEND, libc::O_APPEND, libc::O_NONBLOCK]);
                self.push(Op::SetFl { slot, flags });
            }
            12 => {
                let op = self.rng.pick(&[
                    libc::LOCK_SH | libc::LOCK_NB,
                    libc::LOCK_EX | libc::LOCK_NB,
                    libc::LOCK_UN,
                    0x77,
                ]);
                self.push(Op::Flock { slot, op });
            }
            _ => self.push(Op::GetFl { slot }),
        }
    }

    fn look_at(&mut self, slot: usize, name: usize) {
        let name = self.name(name);
        match self.rng.below(8) {
            0 => self.push(Op::Fionread { slot }),
            1 => {
                let by_name = if self.rng.chance(50) {
                    Some(name)
                } else {
                    None
                };
                let set = self.rng.below(5) as u8;
                self.push(Op::Utimens {
                    slot,
                    name: by_name,
                    set,
                });
            }
            _ => {
                let how = self.rng.below(8) as u8;
                self.push(Op::Stat { slot, name, how });
            }
        }
    }

    fn kernel_copies(&mut self, slot: usize, name: usize) {
        let other = self.rng.below(SLOTS as u64) as usize;
        let (from, to) = if self.rng.chance(50) {
            (slot, other)
        } else {
            (other, slot)
        };
        let len = self.grow();
        let at = self.maybe_at(name);
        let op = match self.rng.below(5) {
            0 => Op::SendPipe {
                slot,
                at,
                len: len.min(60_000),
            },
            1 => Op::SendFile { from, to, at, len },
            2 => self.copy_range(from, to, name),
            3 => Op::SpliceOut {
                slot,
                at,
                len: len.min(60_000),
            },
            _ => {
                let at = if self.rng.chance(50) {
                    Some(self.write_at(name))
                } else {
                    None
                };
                Op::SpliceIn {
                    slot,
                    at,
                    len: len.min(60_000),
                }
            }
        };
        self.push(op);
    }

    fn maps(&mut self, slot: usize, name: usize) {
        let map = self.rng.below(MAPS as u64) as usize;
        let (from, len) = (
            self.rng.below(60_000) as usize,
            self.rng.range(1, 9000) as usize,
        );
        let op = match self.rng.below(12) {
            0..=2 => Op::MapOpen {
                map,
                slot,
                page: self.rng.below(self.sizes[name].max(1) as u64) as i64 / 4096,
                len: self.rng.range(1, 200_000) as usize,
                write: self.rng.chance(75),
            },
            3..=6 => Op::MapStore { map, from, len },
            7..=9 => Op::MapLoad { map, from, len },
            10 => Op::MapSync {
                map,
                flags: self
                    .rng
                    .pick(&[libc::MS_SYNC, libc::MS_ASYNC, libc::MS_INVALIDATE]),
            },
            _ => Op::MapClose { map },
        };
        self.push(op);
    }

    fn names(&mut self, name: usize) {
        let other = self.rng.below(NAMES as u64) as usize;
        let (from, to) = if self.rng.chance(50) {
            (name, other)
        } else {
            (other, name)
        };
        let op = match self.rng.below(6) {
            0..=2 => {
                let flags = self.rng.pick(&[
                    None,
                    None,
                    Some(libc::RENAME_NOREPLACE),
                    Some(libc::RENAME_EXCHANGE),
                    Some(0x800),
                ]);
                Op::Rename { from, to, flags }
            }
            3 | 4 => Op::Link { from, to },
            _ => Op::Unlink { name: to },
        };
        self.push(op);
    }
}
