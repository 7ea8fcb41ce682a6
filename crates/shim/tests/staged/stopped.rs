//! A program that is stopped at any instant of its writing keeps nobody from what it had written.
//!
//! Where it is stopped nobody can choose: in a few of many instants it holds the file's lock, and then whoever
//! opens the file waits until it goes on, as `docs/posix.md` says. So a wait counts as an answer here, but what
//! is found in the file is judged always.

use super::*;

use std::os::unix::fs::OpenOptionsExt as _;

/// How often a program is stopped on each medium.
const STOPS: u64 = 15;
/// How long an opener tries while the program stands still.
const PATIENCE: Duration = Duration::from_millis(300);
const NONBLOCK: i32 = 0o4000;

/// The program at work.
pub(super) struct Ticks<'a> {
    place: &'a Place,
    child: Child,
    pid: String,
}

impl<'a> Ticks<'a> {
    pub(super) fn start(place: &'a Place, program: &Path, mode: &str) -> Self {
        let _ = fs::remove_file(place.file());
        fs::write(place.dir.join("count"), [0; 4096]).expect("the count");
        let child = place
            .command(program, Some(mode))
            .arg(place.file())
            .arg(place.dir.join("count"))
            .stdin(Stdio::null())
            .spawn()
            .expect("timeout(1)");
        let mut ticks = Self {
            place,
            child,
            pid: String::new(),
        };
        wait_for("the first records", || ticks.acknowledged() > 2);
        ticks.pid = started_by(ticks.child.id());
        ticks
    }

    pub(super) fn acknowledged(&self) -> usize {
        let bytes = fs::read(self.place.dir.join("count")).expect("the count");
        usize::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
    }

    pub(super) fn signal(&self, which: &str) {
        signal(which, &self.pid);
    }

    pub(super) fn stop(&self) {
        self.signal("-STOP");
        wait_for("the stop", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid));
            stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|s| s.starts_with('T')))
        });
    }

    /// The file for somebody who opens it; `None` when that one would have to wait.
    fn opened(&self, flags: i32) -> Option<Vec<u8>> {
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(self.place.file());
        match file {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            other => {
                let mut bytes = Vec::new();
                let mut file = other.expect("the file");
                std::io::Read::read_to_end(&mut file, &mut bytes).expect("its bytes");
                Some(bytes)
            }
        }
    }
}

impl Drop for Ticks<'_> {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = Command::new("kill").args(["-KILL", &self.pid]).output();
        let _ = self.child.wait();
    }
}

/// How long the part of a record is that only fills it.
fn filler(number: usize) -> usize {
    number * 2731 % 400
}

/// The records that `ticks` writes. There may be hundreds of thousands, and many tests at once that look at theirs.
fn records(count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for number in 0..count {
        write!(all, "{number:08} ").expect("memory");
        all.resize(all.len() + filler(number), b'a' + (number % 26) as u8);
        all.push(b'\n');
    }
    all
}

/// All that was acknowledged, and perhaps the one after.
#[track_caller]
pub(super) fn judge(found: &[u8], acknowledged: usize, most: usize, when: &str) {
    let all = records(most);
    let least: usize = (0..acknowledged)
        .map(|number| "00000000 \n".len() + filler(number))
        .sum();
    assert!(
        all.starts_with(found) && found.len() >= least,
        "{when}: {} bytes are found where {acknowledged} acknowledged records have {least}",
        found.len()
    );
}

fn stopped_anywhere(place: &Place, mode: &str) {
    let program = place.compile("ticks");
    let mut waited = 0;
    for round in 0..STOPS {
        let ticks = Ticks::start(place, &program, mode);
        // Instants between two writes, and in them, wherever they fall.
        std::thread::sleep(Duration::from_micros(round * 7919 % 3000));
        ticks.stop();
        let acknowledged = ticks.acknowledged();
        let begun = Instant::now();
        let mut found = ticks.opened(NONBLOCK);
        while found.is_none() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            found = ticks.opened(NONBLOCK);
        }
        let when = format!("mode {mode}, stop {round}");
        match found {
            Some(found) => judge(&found, acknowledged, acknowledged + 1, &when),
            None => {
                waited += 1;
                ticks.signal("-CONT");
                let found = ticks.opened(0).expect("the kernel waits");
                let most = ticks.acknowledged() + 1;
                judge(&found, acknowledged, most, &when);
            }
        }
        ticks.signal("-CONT");
        // It goes on, and loses nothing by what was done meanwhile.
        wait_for("the next records", || {
            ticks.acknowledged() > acknowledged + 2
        });
        ticks.stop();
        let acknowledged = ticks.acknowledged();
        ticks.signal("-KILL");
        let mut found = Vec::new();
        wait_for(&when, || {
            found = ticks.opened(NONBLOCK).unwrap_or_default();
            found.len() >= records(acknowledged).len()
        });
        judge(&found, acknowledged, acknowledged + 1, &when);
    }
    assert!(waited < STOPS, "mode {mode}: every opener waited");
}

#[test]
fn a_program_may_be_stopped_at_any_instant() {
    let Some(place) = Place::new("stopped") else {
        return;
    };
    for mode in ["sync", "strict"] {
        stopped_anywhere(&place, mode);
    }
}

#[test]
fn a_program_that_writes_to_a_disk_may_be_stopped_at_any_instant() {
    if let Some(place) = Place::on_disk("stopped-disk") {
        stopped_anywhere(&place, "strict");
    }
}
