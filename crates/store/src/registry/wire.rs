//! The monitor's socket: what a process says to it, and how it is said from a signal handler.
//!
//! One connection carries one message and one byte of answer. Nothing stays open, so the program's
//! descriptor table looks to the program as if Adit were not there. A monitor that is stopped costs
//! the caller a bounded wait.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::sys::Fd;
use super::text::Text;

/// Name of the monitor's socket.
pub(crate) const SOCKET: &CStr = c"monitor.sock";

/// Bytes of a message.
const MESSAGE: usize = 80;

/// How long an answer may take.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Stay at least as long as this process lives.
    Join {
        /// Its id.
        pid: u32,
    },
    /// Keep blocks reserved ahead of the descriptor that comes along.
    Reserve(Target),
    /// Free what is reserved beyond the end, and let go of the descriptor.
    Release(Target),
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

impl Request {
    fn encode(self) -> [u8; MESSAGE] {
        let (kind, pid, index, nonce) = match self {
            Self::Join { pid } => (1u32, pid, 0, 0),
            Self::Reserve(target) => (2, target.pid, target.index, target.nonce),
            Self::Release(target) => (3, target.pid, target.index, target.nonce),
        };
        let mut bytes = [0; MESSAGE];
        let words = [kind, pid, index, nonce as u32, (nonce >> 32) as u32];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = [0u32; 5];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(chunk.try_into().ok()?);
        }
        let [kind, pid, index, low, high] = words;
        let target = Target {
            nonce: u64::from(low) | u64::from(high) << 32,
            pid,
            index,
        };
        match (kind, bytes.len()) {
            (1, MESSAGE) => Some(Self::Join { pid }),
            (2, MESSAGE) => Some(Self::Reserve(target)),
            (3, MESSAGE) => Some(Self::Release(target)),
            _ => None,
        }
    }
}

/// The socket's address as seen from an open directory. A socket address is short, a directory's
/// path need not be, so it goes by the descriptor.
pub(crate) fn address(dir: &Fd) -> Result<SocketAddrUnix, Errno> {
    let mut path = Text::<64>::new();
    path.push(b"/proc/self/fd/");
    path.push_number(u64::try_from(dir.raw()).map_err(|_| Errno::BADF)?);
    path.push(b"/").push(SOCKET.to_bytes());
    SocketAddrUnix::new(path.as_c_str().ok_or(Errno::NAMETOOLONG)?)
}

/// A new socket of the kind both sides use.
pub(crate) fn socket() -> Result<Fd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map(Fd::new)
}

/// Says one thing to the monitor of a directory; whether it agreed.
pub(crate) fn ask(
    dir: &Fd,
    request: Request,
    along: Option<BorrowedFd<'_>>,
) -> Result<bool, Errno> {
    let socket = socket()?;
    rustix::net::connect(socket.as_fd(), &address(dir)?)?;
    let bytes = request.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = along.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [IoSlice::new(&bytes)];
    rustix::net::sendmsg(socket.as_fd(), &parts, &mut control, SendFlags::NOSIGNAL)?;
    let mut answer = [0u8; 1];
    for _ in 0..4 {
        let mut wait = [PollFd::new(&socket, PollFlags::IN)];
        match poll(&mut wait, Some(&PATIENCE)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        return match rustix::net::recv(socket.as_fd(), &mut answer[..], RecvFlags::empty()) {
            Ok((1, _)) => Ok(answer == [1]),
            Ok(_) => Err(Errno::CONNRESET),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(error) => Err(error),
        };
    }
    Err(Errno::INTR)
}

/// Takes one message off an accepted connection, with the descriptor that came along. `Ok(None)`
/// is a message nobody here understands.
pub(crate) fn receive(socket: &Fd) -> Result<Option<(Request, Option<Fd>)>, Errno> {
    let mut bytes = [0u8; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
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
    let request = Request::decode(bytes.get(..received.bytes).unwrap_or_default());
    Ok(request.map(|request| (request, along)))
}

#[cfg(test)]
mod tests {
    use super::{MESSAGE, Request, Target};

    #[test]
    fn messages_come_back() {
        let target = Target {
            nonce: u64::MAX - 5,
            pid: 4_000_000,
            index: 255,
        };
        for request in [
            Request::Join { pid: 7 },
            Request::Reserve(target),
            Request::Release(target),
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        assert_eq!(Request::decode(&[]), None);
        assert_eq!(Request::decode(&[1; MESSAGE]), None);
        assert_eq!(
            Request::decode(&Request::Join { pid: 7 }.encode()[1..]),
            None
        );
    }
}
