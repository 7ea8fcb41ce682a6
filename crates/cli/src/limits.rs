//! Limits of the process (`ulimit`) under which neither a monitor nor a recovery can do its work.
//!
//! # Safety
//!
//! What becomes of a signal is changed by a libc call that takes constants, or what it gave itself.
#![allow(unsafe_code)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A hard limit, and what it must be for the monitor of all the user's programs.
struct Decisive {
    resource: Resource,
    /// Less than this is too little; anything is, where there is none.
    enough: Option<u64>,
    name: &'static str,
}

/// Under the first three no pool can be mapped, made larger or recovered. Each staged file is a descriptor of
/// the monitor's, and what takes long a thread. When its processor time is over it is killed, and the standby
/// begins with as much.
const DECISIVE: [Decisive; 6] = [
    Decisive {
        resource: Resource::As,
        enough: None,
        name: "limit on memory (ulimit -v)",
    },
    Decisive {
        resource: Resource::Data,
        enough: None,
        name: "limit on data (ulimit -d)",
    },
    Decisive {
        resource: Resource::Fsize,
        enough: None,
        name: "limit on file sizes (ulimit -f)",
    },
    Decisive {
        resource: Resource::Nofile,
        enough: Some(1024),
        name: "limit on open files (ulimit -n)",
    },
    Decisive {
        resource: Resource::Nproc,
        enough: Some(256),
        name: "limit on processes (ulimit -u)",
    },
    Decisive {
        resource: Resource::Cpu,
        enough: Some(600),
        name: "limit on processor time (ulimit -t)",
    },
];

/// A limit that is too low for a pool's work, and that this process cannot lift: nor can a monitor that it begins.
pub(crate) fn too_low() -> Option<&'static str> {
    let is_too_low = |limit: &Decisive| {
        let most = getrlimit(limit.resource).maximum;
        most.is_some_and(|most| limit.enough.is_none_or(|enough| most < enough))
    };
    let found = DECISIVE.into_iter().find(is_too_low);
    found.map(|decisive| decisive.name)
}

/// Lifts what limits only this process, as far as that may be done.
pub(crate) fn lift() {
    for Decisive { resource, .. } in DECISIVE {
        let limit = getrlimit(resource);
        let most = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let _ = setrlimit(resource, most);
    }
}

/// Does `work` without what limits only this process: its limits are those of the program that it becomes. What would
/// make a file larger than it may be is an error meanwhile, and no signal.
pub(crate) fn lifted_for<T>(work: impl FnOnce() -> T) -> T {
    let before = DECISIVE.map(|each| (each.resource, getrlimit(each.resource)));
    lift();
    // SAFETY: constants of libc.
    let told = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let done = work();
    for (resource, limit) in before {
        let _ = setrlimit(resource, limit);
    }
    // SAFETY: what the same call has given.
    unsafe { libc::signal(libc::SIGXFSZ, told) };
    done
}
