//! One thread logs for another, in the middle of what it logs itself; power fails anywhere.

use std::sync::OnceLock;
use std::thread::{JoinHandle, ThreadId};

use adit_pmem::OutOfRange;
use adit_sim::{History, enumerate};

use super::crashes::{boot_of, recovered};
use super::planted::found;
use super::reads::Middle;
use super::*;

const LEN: usize = 500;

/// A medium on which threads are cores, and where something happens in the middle of a record.
#[derive(Clone)]
struct Cores {
    medium: SimMedium,
    middle: Middle,
    /// The one whose fences count.
    only: Option<ThreadId>,
}

impl Medium for Cores {
    medium_of!(medium: size load store compare_exchange read flush);

    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        if from.len() == 64 {
            self.middle.happens();
        }
        self.medium.write_streaming(offset, from)
    }
    fn fence(&self) {
        if self
            .only
            .is_none_or(|only| only == std::thread::current().id())
        {
            self.medium.fence();
        }
    }
}

/// Two threads append; the second asks while the first is logging.
fn two_append(world: &World, forgetful: bool) {
    let middle = Middle::default();
    let staged = world.setup(|| {
        create_pool(world, boot_of(world));
        let file = world.create("dir/file").expect("create");
        let medium = Cores {
            medium: world.medium(),
            middle: middle.clone(),
            only: forgetful.then(|| std::thread::current().id()),
        };
        let pool = open_pool(medium, boot_of(world)).expect("open");
        let stage = Stage::new(pool.attach().expect("attach"));
        let staged = StagedFile::open(&stage, &name_of(&file), file, Mode::Strict);
        Arc::new(staged.expect("stage"))
    });
    let other: Arc<OnceLock<JoinHandle<u64>>> = Arc::default();
    let second = {
        let (staged, other) = (Arc::clone(&staged), Arc::clone(&other));
        move || {
            let asking = Arc::clone(&staged);
            let append = move || asking.append(&bytes_of(2, LEN)).expect("append");
            assert!(other.set(std::thread::spawn(append)).is_ok());
            while !staged.board.is_asked() {
                std::thread::yield_now();
            }
        }
    };
    middle.set(second);
    world.begin(1);
    world.begin(2);
    assert_eq!(staged.append(&bytes_of(1, LEN)).expect("append"), 0);
    let other = Arc::into_inner(other).and_then(OnceLock::into_inner);
    let end = other.expect("it never logged").join().expect("thread");
    assert_eq!(end, LEN as u64);
    world.acknowledge(1);
    world.acknowledge(2);
}

fn judge(world: &World, history: &History) -> std::result::Result<(), String> {
    let found = recovered(world, boot_of(world))?;
    let all = [bytes_of(1, LEN), bytes_of(2, LEN)].concat();
    let least = history.completed().len() * LEN;
    if found.len() >= least && found.len() % LEN == 0 && all.starts_with(&found) {
        return Ok(());
    }
    Err(format!("{} bytes that are no row of appends", found.len()))
}

#[test]
fn what_another_thread_logs_is_durable_with_its_bytes() {
    let config = config("staged-board", 12, 4_000);
    let report = enumerate(&config, |world: &World| two_append(world, false), judge);
    println!("{}", report.unwrap_or_else(|failure| panic!("{failure}")));
}

/// The fence of who logs does not drain the core that has streamed the bytes.
#[test]
fn who_asks_and_does_not_fence_is_found() {
    found(
        "no-own-fence",
        |world: &World| two_append(world, true),
        judge,
    );
}
