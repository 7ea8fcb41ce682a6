//! The monitor's socket: what a process says to it, and how it is said from a signal handler.
//!
//! One connection carries one message, with at most one descriptor, and one answer. Nothing stays
//! open, so the program's descriptor table looks to the program as if Adit were not there. A monitor
//! that is stopped costs the caller a bounded wait.
//!
//! Both directions have a head of fixed size and a tail of bytes, a path. Whatever does not have
//! exactly this shape is not understood, and answered by closing the connection.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::time::Duration;
use std::time::Instant;

use adit_pmem::brief;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::attention::Attention;
use super::sys::Fd;
use super::text::Text;

/// Name of the monitor's socket.
pub(crate) const SOCKET: &CStr = c"monitor.sock";

/// Longest path in a message, with the zero byte behind it.
pub(crate) const LONGEST: usize = 1024;

/// Bytes of a message's head, and of the longest message.
const HEAD: usize = 48;
const MESSAGE: usize = HEAD + LONGEST;

/// Bytes of an answer's head, and of the longest answer.
const ANSWER_HEAD: usize = 16;
const ANSWER: usize = ANSWER_HEAD + LONGEST;

/// How long an answer may take that the monitor gives without any work of its own.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);

/// Of this process, for answers.
static ATTENTIVE: Attention = Attention::new();

/// A path in a message or an answer.
pub(crate) type Path = Text<LONGEST>;

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// Stay at least as long as the process lives whose descriptor comes along, else as the one that asks.
    Join {
        /// Its id where it is; zero for none.
        pid: u32,
    },
    /// Keep blocks reserved ahead of the descriptor that comes along.
    Reserve(Target),
    /// Free what is reserved beyond the end, and let go of the descriptor.
    Release(Target),
    /// Say which pool stages the file whose descriptor comes along.
    Pool {
        /// The one that the user asked for.
        asked: &'a [u8],
        /// Bytes of one that has to be made; zero where the user did not say.
        size: u64,
    },
    /// Take the write lease of the description that comes along.
    Acquire(Staged<'a>),
    /// Give a lease up and let go of its description.
    Drop {
        /// Its number.
        lease: u64,
        /// The inode number of its file, of which a later monitor may hold it under another number.
        ino: u64,
    },
    /// The description is closed: publish what is staged of the file, then give its lease up and let go of it.
    Close {
        /// Number of its lease.
        lease: u64,
        /// The inode number of its file.
        ino: u64,
    },
    /// Answer when all that the process has closed so is in the files.
    WaitForClosed,
    /// Publish what is staged of a file; its lease stays.
    Publish {
        /// Its device.
        dev: u64,
        /// Its inode number.
        ino: u64,
    },
    /// Say how long a file is with what is staged of it, and when it was written.
    Look {
        /// Its device.
        dev: u64,
        /// Its inode number.
        ino: u64,
    },
    /// Share a declared file with who opens it next.
    Share {
        /// Number of its lease.
        lease: u64,
    },
    /// Share a declared file with nobody.
    HoldAlone {
        /// Number of its lease.
        lease: u64,
    },
    /// Let nobody stage the file whose descriptor comes along, unless he is alone.
    Bar,
    /// Take the file whose descriptor comes along away from all who have it staged.
    TakeAway,
    /// Take a file away from its program if everything is in it and nobody else has it staged: others open it at once then,
    /// until it is written again.
    GiveBack {
        /// Its device.
        dev: u64,
        /// Its inode number.
        ino: u64,
    },
}

/// A slot of a registry file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// When the process made its file: together with the process id, the file's name.
    pub(crate) nonce: u64,
    /// The process id in the file's name.
    pub(crate) pid: u32,
    /// Number of the slot.
    pub(crate) index: u32,
}

/// A file that a process stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged<'a> {
    /// Path of the pool.
    pub(crate) pool: &'a [u8],
    /// Id of the file's entry there.
    pub(crate) file: u64,
    /// Slot of the process's attachment.
    pub(crate) slot: u32,
    /// Mode, as a number.
    pub(crate) mode: u32,
    /// Whether `O_APPEND` was taken from the description.
    pub(crate) restore_append: bool,
    /// Whether its user has declared the file.
    pub(crate) declared: bool,
}

/// A message taken to pieces.
#[derive(Default)]
struct Parts<'a> {
    kind: u32,
    words: [u32; 3],
    longs: [u64; 2],
    tail: &'a [u8],
}

impl<'a> Request<'a> {
    fn parts(&self) -> Parts<'a> {
        let short = |kind, target: &Target| Parts {
            kind,
            words: [target.pid, target.index, 0],
            longs: [target.nonce, 0],
            tail: &[],
        };
        match *self {
            Self::Join { pid } => Parts {
                kind: 1,
                words: [pid, 0, 0],
                ..Parts::default()
            },
            Self::Reserve(target) => short(2, &target),
            Self::Release(target) => short(3, &target),
            Self::Pool { asked, size } => Parts {
                kind: 4,
                longs: [size, 0],
                tail: asked,
                ..Parts::default()
            },
            Self::Acquire(staged) => Parts {
                kind: 5,
                words: [
                    staged.slot,
                    staged.mode,
                    u32::from(staged.restore_append) | u32::from(staged.declared) << 1,
                ],
                longs: [staged.file, 0],
                tail: staged.pool,
            },
            Self::Drop { lease, ino } => Parts {
                kind: 6,
                longs: [lease, ino],
                ..Parts::default()
            },
            Self::Publish { dev, ino } => Parts {
                kind: 7,
                longs: [dev, ino],
                ..Parts::default()
            },
            Self::Share { lease } => Parts {
                kind: 8,
                longs: [lease, 0],
                ..Parts::default()
            },
            Self::HoldAlone { lease } => Parts {
                kind: 9,
                longs: [lease, 0],
                ..Parts::default()
            },
            Self::Bar => Parts {
                kind: 10,
                ..Parts::default()
            },
            Self::TakeAway => Parts {
                kind: 11,
                ..Parts::default()
            },
            Self::Look { dev, ino } => Parts {
                kind: 12,
                longs: [dev, ino],
                ..Parts::default()
            },
            Self::GiveBack { dev, ino } => Parts {
                kind: 13,
                longs: [dev, ino],
                ..Parts::default()
            },
            Self::Close { lease, ino } => Parts {
                kind: 14,
                longs: [lease, ino],
                ..Parts::default()
            },
            Self::WaitForClosed => Parts {
                kind: 15,
                ..Parts::default()
            },
        }
    }

    fn encode(&self, into: &mut [u8; MESSAGE]) -> Result<usize, Errno> {
        let parts = self.parts();
        let words = [parts.kind].into_iter().chain(parts.words);
        for (chunk, word) in into.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        for (chunk, long) in into.chunks_exact_mut(8).skip(2).zip(parts.longs) {
            chunk.copy_from_slice(&long.to_ne_bytes());
        }
        let len = HEAD + parts.tail.len();
        let tail = into.get_mut(HEAD..len).ok_or(Errno::NAMETOOLONG)?;
        tail.copy_from_slice(parts.tail);
        Ok(len)
    }

    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, tail) = bytes.split_at_checked(HEAD)?;
        let mut words = [0u32; 4];
        for (word, chunk) in words.iter_mut().zip(head.chunks_exact(4)) {
            *word = u32::from_ne_bytes(chunk.try_into().ok()?);
        }
        let mut longs = [0u64; 4];
        for (long, chunk) in longs.iter_mut().zip(head.chunks_exact(8).skip(2)) {
            *long = u64::from_ne_bytes(chunk.try_into().ok()?);
        }
        let [kind, a, b, c] = words;
        let [x, y, ..] = longs;
        let target = Target {
            nonce: x,
            pid: a,
            index: b,
        };
        let path = tail.len() < LONGEST && !tail.contains(&0);
        Some(match (kind, tail.is_empty()) {
            (1, true) => Self::Join { pid: a },
            (2, true) => Self::Reserve(target),
            (3, true) => Self::Release(target),
            (4, _) if path => Self::Pool {
                asked: tail,
                size: x,
            },
            (5, false) if path => Self::Acquire(Staged {
                pool: tail,
                file: x,
                slot: a,
                mode: b,
                restore_append: c & 1 != 0,
                declared: c & 2 != 0,
            }),
            (6, true) => Self::Drop { lease: x, ino: y },
            (7, true) => Self::Publish { dev: x, ino: y },
            (8, true) => Self::Share { lease: x },
            (9, true) => Self::HoldAlone { lease: x },
            (10, true) => Self::Bar,
            (11, true) => Self::TakeAway,
            (12, true) => Self::Look { dev: x, ino: y },
            (13, true) => Self::GiveBack { dev: x, ino: y },
            (14, true) => Self::Close { lease: x, ino: y },
            (15, true) => Self::WaitForClosed,
            _ => return None,
        })
    }
}

/// What the monitor says.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    /// Zero is yes; else the reason, which the two sides of a request agree on.
    pub(crate) code: u32,
    /// The kernel's number for the reason, or zero.
    pub(crate) errno: u32,
    /// A number that goes with a yes.
    pub(crate) value: u64,
    /// A path that goes with a yes, or a second number in decimal digits.
    pub(crate) path: Path,
}

impl Answer {
    /// Yes.
    pub(crate) fn yes() -> Self {
        Self {
            code: 0,
            errno: 0,
            value: 0,
            path: Path::new(),
        }
    }

    /// No, with a reason other than zero.
    pub(crate) fn no(code: u32, errno: u32) -> Self {
        Self {
            code: code.max(1),
            errno,
            ..Self::yes()
        }
    }

    /// Whether it is a yes.
    pub(crate) fn agreed(&self) -> bool {
        self.code == 0
    }

    fn encode(&self, into: &mut [u8; ANSWER]) -> usize {
        let path = self.path.as_bytes();
        into[..4].copy_from_slice(&self.code.to_ne_bytes());
        into[4..8].copy_from_slice(&self.errno.to_ne_bytes());
        into[8..16].copy_from_slice(&self.value.to_ne_bytes());
        into[ANSWER_HEAD..ANSWER_HEAD + path.len()].copy_from_slice(path);
        ANSWER_HEAD + path.len()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, tail) = bytes.split_at_checked(ANSWER_HEAD)?;
        let word = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let mut path = Path::new();
        path.push(tail);
        if !tail.is_empty() {
            path.as_c_str()?;
        }
        Some(Self {
            code: word(0)?,
            errno: word(4)?,
            value: u64::from_ne_bytes(head.get(8..16)?.try_into().ok()?),
            path,
        })
    }
}

/// The socket's address as seen from an open directory. A socket address is short, a directory's
/// path need not be, so it goes by the descriptor; of this thread, because the process's first one may
/// have ended, and `/proc/self` with it.
pub(crate) fn address(dir: &Fd) -> Result<SocketAddrUnix, Errno> {
    let mut path = Text::<64>::new();
    path.push(b"/proc/thread-self/fd/");
    path.push_number(u64::try_from(dir.raw()).map_err(|_| Errno::BADF)?);
    path.push(b"/").push(SOCKET.to_bytes());
    SocketAddrUnix::new(path.as_c_str().ok_or(Errno::NAMETOOLONG)?)
}

/// A new socket of the kind both sides use. What other threads write to a standard descriptor that the program has closed
/// does not go to the other side.
pub(crate) fn socket() -> Result<Fd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    brief::above_standard(|| rustix::net::socket_with(family, kind, flags, None)).map(Fd::new)
}

/// Says one thing to the monitor of a directory, and waits for the answer until `patience` is over.
pub(crate) fn ask(
    dir: &Fd,
    request: &Request<'_>,
    along: Option<BorrowedFd<'_>>,
    patience: Duration,
) -> Result<Answer, Errno> {
    let until = Instant::now() + patience;
    let mut bytes = [0; MESSAGE];
    let len = request.encode(&mut bytes)?;
    let socket = connect(dir, until)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = along.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [IoSlice::new(bytes.get(..len).unwrap_or_default())];
    rustix::net::sendmsg(socket.as_fd(), &parts, &mut control, SendFlags::NOSIGNAL)?;
    hear(&socket, until)
}

/// Connects. The kernel refuses while too many others wait to be accepted.
fn connect(dir: &Fd, until: Instant) -> Result<Fd, Errno> {
    let socket = socket()?;
    let address = address(dir)?;
    loop {
        match rustix::net::connect(socket.as_fd(), &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < until => {
                adit_pmem::rest(Duration::from_millis(1));
            }
            Err(Errno::INTR) if Instant::now() < until => {}
            Err(Errno::AGAIN | Errno::INTR) => return Err(Errno::TIMEDOUT),
            Err(error) => return Err(error),
        }
    }
}

/// Whether nobody listens to the socket of a directory: a monitor was killed with its standby, or there is none.
pub(crate) fn nobody_listens(dir: &Fd) -> bool {
    let refused = connect(dir, Instant::now());
    matches!(refused, Err(Errno::CONNREFUSED | Errno::NOENT))
}

fn hear(socket: &Fd, until: Instant) -> Result<Answer, Errno> {
    let here = || match take(socket) {
        Err(Errno::AGAIN | Errno::INTR) => None,
        answer => Some(answer),
    };
    if let Some(answer) = ATTENTIVE.look(here) {
        return answer;
    }
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut wait = [PollFd::new(socket, PollFlags::IN)];
        match poll(&mut wait, Some(&timespec(left))) {
            Ok(0) => return hear_the_last(socket),
            Ok(_) => match take(socket) {
                Err(Errno::INTR | Errno::AGAIN) if Instant::now() < until => {}
                answer => return answer,
            },
            // Interrupted for ever is silent, too.
            Err(Errno::INTR) if Instant::now() < until => {}
            Err(Errno::INTR) => return hear_the_last(socket),
            Err(error) => return Err(error),
        }
    }
}

/// The wait is over. Whether the monitor agreed must be known to both sides alike: an answer that
/// was sent by now counts, and from now on none can be sent.
fn hear_the_last(socket: &Fd) -> Result<Answer, Errno> {
    let _ = rustix::net::shutdown(socket.as_fd(), Shutdown::Both);
    match take(socket) {
        Ok(answer) => Ok(answer),
        Err(_) => Err(Errno::TIMEDOUT),
    }
}

/// The answer, if it is there. Of a socket that is not waited for, Linux says that it has ended when the other end is
/// closed between its look for messages and its look for the end, although a message came in between; so the end counts
/// when it is seen twice. An answer that was taken for the end was asked for again, and the second lease refused.
fn take(socket: &Fd) -> Result<Answer, Errno> {
    let mut answer = [0u8; ANSWER];
    let mut receive = || {
        let received = rustix::net::recv(socket.as_fd(), &mut answer[..], RecvFlags::empty());
        received.map(|(len, _)| len)
    };
    let len = match receive()? {
        0 => receive()?,
        len => len,
    };
    Answer::decode(answer.get(..len).unwrap_or_default()).ok_or(Errno::CONNRESET)
}

/// A wait in the kernel's form.
pub(crate) fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    }
}

/// Room for a message of any size that counts.
pub(crate) struct Buffer([u8; MESSAGE + 1]);

impl Buffer {
    /// An empty buffer.
    pub(crate) fn new() -> Self {
        Self([0; MESSAGE + 1])
    }

    /// Takes one message off an accepted connection, with the descriptor that came along.
    /// `Ok(None)` is a message nobody here understands.
    pub(crate) fn receive(
        &mut self,
        socket: &Fd,
    ) -> Result<Option<(Request<'_>, Option<Fd>)>, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.0)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut control, flags)?;
        let mut along = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                // Every descriptor that arrived is owned by now; all but the last one are dropped.
                for descriptor in descriptors {
                    along = Some(Fd::new(descriptor));
                }
            }
        }
        let request = Request::decode(self.0.get(..received.bytes).unwrap_or_default());
        Ok(request.map(|request| (request, along)))
    }
}

/// Answers; `false` when nobody waits for the answer any more.
pub(crate) fn answer(socket: &Fd, answer: &Answer) -> bool {
    let mut bytes = [0; ANSWER];
    let len = answer.encode(&mut bytes);
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let bytes = bytes.get(..len).unwrap_or_default();
    rustix::net::send(socket.as_fd(), bytes, flags) == Ok(len)
}

#[cfg(test)]
mod tests {
    use super::{ANSWER, Answer, HEAD, LONGEST, MESSAGE, Request, Staged, Target};

    #[test]
    fn messages_come_back() {
        let target = Target {
            nonce: u64::MAX - 5,
            pid: 4_000_000,
            index: 255,
        };
        let long = [b'p'; LONGEST - 1];
        let staged = Staged {
            pool: b"/a/pool",
            file: u64::MAX / 3,
            slot: 200,
            mode: 2,
            restore_append: true,
            declared: true,
        };
        for request in [
            Request::Join { pid: 7 },
            Request::Reserve(target),
            Request::Release(target),
            Request::Pool {
                asked: b"",
                size: u64::MAX,
            },
            Request::Pool {
                asked: &long,
                size: 0,
            },
            Request::Acquire(staged),
            Request::Drop {
                lease: u64::MAX,
                ino: 3,
            },
            Request::Publish { dev: 1, ino: 2 },
            Request::Share { lease: 5 },
            Request::HoldAlone { lease: 6 },
            Request::Bar,
            Request::TakeAway,
            Request::Look { dev: 3, ino: 4 },
            Request::GiveBack { dev: 5, ino: 6 },
            Request::Close { lease: 7, ino: 8 },
            Request::WaitForClosed,
        ] {
            let mut bytes = [0; MESSAGE];
            let len = request.encode(&mut bytes).expect("fits");
            assert_eq!(Request::decode(&bytes[..len]), Some(request));
            assert_eq!(Request::decode(&bytes[1..HEAD]), None);
        }
        let mut bytes = [0; MESSAGE];
        let too_long = [b'p'; LONGEST + 1];
        let request = Request::Pool {
            asked: &too_long,
            size: 0,
        };
        assert!(request.encode(&mut bytes).is_err());
    }

    #[test]
    fn what_has_another_shape_is_not_understood() {
        for bad in [&[][..], &[1; HEAD], &[1; MESSAGE], &[0; MESSAGE + 1]] {
            assert_eq!(Request::decode(bad), None);
        }
        let mut bytes = [0; MESSAGE];
        let len = Request::Join { pid: 7 }.encode(&mut bytes).expect("fits");
        assert_eq!(Request::decode(&bytes[..len + 1]), None, "a tail");
        let zero = Request::Pool {
            asked: b"/a\0b",
            size: 0,
        };
        let len = zero.encode(&mut bytes).expect("fits");
        assert_eq!(Request::decode(&bytes[..len]), None, "a zero byte");
        let none = Request::Acquire(Staged {
            pool: b"",
            file: 1,
            slot: 0,
            mode: 0,
            restore_append: false,
            declared: false,
        });
        let len = none.encode(&mut bytes).expect("fits");
        assert_eq!(Request::decode(&bytes[..len]), None, "no pool");
    }

    /// Whoever answers closes the socket at once, and whoever asks does not wait in the kernel.
    #[test]
    fn the_last_word_is_heard_before_the_end() {
        use super::{Fd, take};
        use rustix::io::Errno;
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        use std::sync::mpsc::channel;
        let (sender, to_answer) = channel::<Fd>();
        let answerer = std::thread::spawn(move || {
            for socket in to_answer {
                assert!(super::answer(&socket, &Answer::yes()));
            }
        });
        // For some seconds, not some rounds: a virtual machine without a second processor makes few of them.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
        for round in 0..60_000 {
            if std::time::Instant::now() > until {
                break;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
            let (ours, theirs) = pair.expect("a pair");
            let ours = Fd::new(ours);
            sender.send(Fd::new(theirs)).expect("it listens");
            let answer = loop {
                match take(&ours) {
                    Err(Errno::AGAIN) => {}
                    answer => break answer,
                }
            };
            assert!(answer.is_ok(), "round {round}: {:?}", answer.err());
        }
        drop(sender);
        answerer.join().expect("it ends");
    }

    #[test]
    fn answers_come_back() {
        let mut answer = Answer::yes();
        answer.value = u64::MAX - 1;
        answer.path.push(b"/pool");
        let mut bytes = [0; ANSWER];
        let len = answer.encode(&mut bytes);
        let back = Answer::decode(&bytes[..len]).expect("understood");
        assert!(back.agreed());
        assert_eq!(
            (back.value, back.path.as_bytes()),
            (answer.value, &b"/pool"[..])
        );
        let len = Answer::no(0, 5).encode(&mut bytes);
        let back = Answer::decode(&bytes[..len]).expect("understood");
        assert!(!back.agreed());
        assert_eq!(back.errno, 5);
        assert!(Answer::decode(&[0; 3]).is_none());
        assert!(Answer::decode(&[0; 17]).is_none(), "a path of a zero byte");
    }
}
