//! What programs outside Adit do to the files meanwhile: raw system calls on fresh descriptors, from
//! this process or from a helper process that is never preloaded.

use crate::arena;
use crate::rng::Rng;
use crate::way::{Ret, Way, raw_size};
use std::ffi::{CStr, CString};
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// An outsider's act with its positions resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    pub(crate) kind: u8,
    pub(crate) pos: i64,
    pub(crate) len: i64,
    pub(crate) seed: u64,
}

pub(crate) const APPEND: u8 = 0;
pub(crate) const OVERWRITE: u8 = 1;
pub(crate) const TRUNCATE: u8 = 2;
pub(crate) const PUNCH: u8 = 3;
pub(crate) const REPLACE: u8 = 4;
pub(crate) const STORE: u8 = 5;
pub(crate) const MAKE: u8 = 6;

const RAW: Way = Way::Raw;

/// Bytes of a given seed.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    Rng::new(seed).fill(&mut buf);
    buf
}

/// Writes all of `buf` at the offset of `fd`, by the given way.
pub(crate) fn write_all(way: Way, fd: i32, mut buf: &[u8]) -> Ret {
    let mut sum = 0;
    while !buf.is_empty() {
        let n = way.write(fd, buf.as_ptr(), buf.len());
        if n <= 0 {
            return n;
        }
        sum += n;
        buf = &buf[n as usize..];
    }
    sum
}

/// Opens, acts, closes.
pub(crate) fn act(path: &CStr, a: Act) -> Ret {
    if a.kind == TRUNCATE {
        return RAW.truncate(path, a.pos, 0);
    }
    if a.kind == REPLACE {
        let mut new = path.to_bytes().to_vec();
        new.extend_from_slice(b".new");
        let new = CString::new(new).expect("a path has no NUL");
        let r = with(&new, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, |fd| {
            write_all(RAW, fd, &bytes(a.seed, a.len as usize))
        });
        return if r < 0 {
            r
        } else {
            RAW.rename(&new, path, None)
        };
    }
    let flags = match a.kind {
        APPEND => libc::O_WRONLY | libc::O_APPEND,
        MAKE => libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
        _ => libc::O_RDWR,
    };
    with(path, flags, |fd| match a.kind {
        APPEND | MAKE => write_all(RAW, fd, &bytes(a.seed, a.len as usize)),
        OVERWRITE => {
            // In place only: growing is what APPEND and TRUNCATE are for.
            let len = a.len.min(raw_size(fd).unwrap_or(0) - a.pos);
            if a.pos < 0 || len <= 0 {
                return 0;
            }
            let buf = bytes(a.seed, len as usize);
            RAW.pwrite(fd, buf.as_ptr(), buf.len(), a.pos, 0)
        }
        PUNCH => {
            let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
            RAW.fallocate(fd, mode, a.pos, a.len, 0)
        }
        _ => store(fd, a),
    })
}

fn with(path: &CStr, flags: i32, f: impl FnOnce(i32) -> Ret) -> Ret {
    let fd = RAW.open(path, flags | libc::O_CLOEXEC, 0o644, 0);
    if fd < 0 {
        return fd;
    }
    let r = f(fd as i32);
    RAW.close(fd as i32);
    r
}

fn store(fd: i32, a: Act) -> Ret {
    let size = raw_size(fd).unwrap_or(0);
    let len = a.len.min(size - a.pos);
    if a.pos < 0 || len <= 0 {
        return 0;
    }
    let page = a.pos & !4095;
    let span = (a.pos - page + len) as usize;
    let at = RAW.mmap(fd, page, span, libc::PROT_READ | libc::PROT_WRITE, 0);
    if at < 0 {
        return at;
    }
    arena::store(
        at as usize + (a.pos - page) as usize,
        &bytes(a.seed, len as usize),
    );
    RAW.munmap(at as usize, span)
}

/// The helper process and the pipes to it.
pub(crate) struct Helper {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Helper {
    pub(crate) fn start() -> std::io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--helper")
            .env_remove("LD_PRELOAD")
            .env_remove("ADIT_MODE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("a helper without pipes"));
        };
        Ok(Self { child, to, from })
    }

    pub(crate) fn act(&mut self, path: &CStr, a: Act) -> std::io::Result<Ret> {
        let mut msg = vec![a.kind];
        msg.extend_from_slice(&a.pos.to_le_bytes());
        msg.extend_from_slice(&a.len.to_le_bytes());
        msg.extend_from_slice(&a.seed.to_le_bytes());
        msg.extend_from_slice(&(path.to_bytes().len() as u32).to_le_bytes());
        msg.extend_from_slice(path.to_bytes());
        self.to.write_all(&msg)?;
        let mut ret = [0; 8];
        self.from.read_exact(&mut ret)?;
        Ok(i64::from_le_bytes(ret))
    }

    /// Ends the helper by closing its input.
    pub(crate) fn stop(self) {
        let Self {
            mut child,
            to,
            from,
        } = self;
        drop((to, from));
        // A helper that is gone already has nothing left to say.
        let _ = child.wait();
    }
}

/// The helper's side: serves acts until its input ends.
pub(crate) fn serve() -> std::io::Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut head = [0u8; 29];
    while input.read_exact(&mut head).is_ok() {
        let word = |at: usize| i64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let len = u32::from_le_bytes(head[25..29].try_into().expect("4 bytes"));
        let mut path = vec![0; len as usize];
        input.read_exact(&mut path)?;
        let path = CString::new(path)?;
        let a = Act {
            kind: head[0],
            pos: word(1),
            len: word(9),
            seed: word(17) as u64,
        };
        output.write_all(&act(&path, a).to_le_bytes())?;
        output.flush()?;
    }
    Ok(())
}
