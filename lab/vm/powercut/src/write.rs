//! Operation after operation, each acknowledged when its last call has returned.

use crate::kinds::{FILE, Kind, Place, SHORTS};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The operation before which the writer says whether Adit serves its file.
const LOOK: u64 = 40;

/// What a writer does differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Acknowledges before it does the operation: a bug on purpose, which the checker has to find.
    Early,
    /// Leaves out the fsync: a bug, too, except where calls are durable by themselves.
    NoFsync,
    /// Closes its file again and again, which publishes what is staged.
    Reopen,
    /// Rests now and then, so long that what it has staged is published meanwhile.
    Rest,
    /// Waits for a byte on standard input after each short sequence, instead of a moment.
    Wait,
}

impl How {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "early" => Some(Self::Early),
            "no-fsync" => Some(Self::NoFsync),
            "reopen" => Some(Self::Reopen),
            "rest" => Some(Self::Rest),
            "wait" => Some(Self::Wait),
            _ => None,
        }
    }
}

/// Operations between two closes or rests.
const STRETCH: u64 = 32;
/// Longer than the monitor lets staged bytes lie.
const REST: Duration = Duration::from_millis(1300);

/// Writes until the power is cut.
pub(crate) fn run(place: &Place, port: &str, tag: &str, how: &[How]) -> Result<String, String> {
    let failed = |what: &str| {
        let what = format!("{tag}: {what}");
        move |e: std::io::Error| format!("{what}: {e}")
    };
    patiently(|| prepare(place)).map_err(failed("preparing"))?;
    let port = OpenOptions::new()
        .write(true)
        .open(port)
        .map_err(failed("opening the serial line"))?;
    let open = || patiently(|| Writer::new(place, how));
    let mut writer = open().map_err(failed("opening"))?;
    let early = how.contains(&How::Early);
    for operation in 1.. {
        if operation == LOOK {
            let served = served(place).map_err(failed("looking at the mappings"))?;
            send(&port, &format!("{tag} served {served}")).map_err(failed("reporting"))?;
        }
        if operation % STRETCH == 0 {
            if how.contains(&How::Rest) {
                std::thread::sleep(REST);
            }
            if how.contains(&How::Reopen) {
                writer.file = None;
                writer = open().map_err(failed("opening again"))?;
            }
        }
        let acknowledgement = format!("{tag} {operation}");
        if early {
            send(&port, &acknowledgement).map_err(failed("acknowledging"))?;
            std::thread::sleep(Duration::from_millis(20));
        }
        writer
            .operation(operation)
            .map_err(failed(&format!("operation {operation}")))?;
        if !early {
            send(&port, &acknowledgement).map_err(failed("acknowledging"))?;
        }
    }
    Ok(format!("{tag}: no more numbers"))
}

/// Does again what `adit run --require` refuses. A machine that is stopped for a look loses seconds, and waits in vain
/// for its monitor then.
fn patiently<T>(mut what: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    // What cannot be staged, whoever has it open, and without a monitor that answers.
    const REFUSED: [i32; 3] = [95, 16, 111];
    for _ in 0..500 {
        match what() {
            Err(e) if e.raw_os_error().is_some_and(|e| REFUSED.contains(&e)) => {}
            done => return done,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    what()
}

/// One write per line: the kernel keeps lines of several writers apart.
pub(crate) fn send(mut port: &File, line: &str) -> std::io::Result<()> {
    port.write_all(format!("{line}\n").as_bytes())
}

/// Makes what the operations start from, durable with its name.
fn prepare(place: &Place) -> std::io::Result<()> {
    let file = match place.kind {
        Kind::Overwrite => {
            let mut file = File::create(place.file())?;
            file.write_all(&place.bytes(0, 0, FILE))?;
            file
        }
        // The runner has reserved the blocks.
        Kind::Unwritten => File::open(place.file())?,
        Kind::Append => File::create(place.file())?,
        Kind::Replace => return File::open(&place.dir)?.sync_all(),
        Kind::Short => {
            std::fs::create_dir(place.file())?;
            File::open(place.file())?
        }
    };
    file.sync_all()?;
    File::open(&place.dir)?.sync_all()
}

/// Whether this process has the file mapped: on a DAX file system Adit overwrites nothing otherwise.
fn served(place: &Place) -> std::io::Result<&'static str> {
    let name = place.file();
    let name = name.to_string_lossy();
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mapped = maps.lines().any(|l| l.ends_with(&*name));
    Ok(if mapped { "yes" } else { "no" })
}

struct Writer<'a> {
    place: &'a Place,
    file: Option<File>,
    fsync: bool,
}

impl<'a> Writer<'a> {
    fn new(place: &'a Place, how: &[How]) -> std::io::Result<Self> {
        // What cannot be read by its writer, mode posix stages, too.
        let mut options = OpenOptions::new();
        match place.kind {
            Kind::Append if place.leaves_the_offset() => options.append(true),
            Kind::Append => options.write(true),
            _ => options.read(true).write(true),
        };
        let file = match place.kind {
            Kind::Replace | Kind::Short => None,
            _ => Some(options.open(place.file())?),
        };
        if let (Kind::Append, Some(mut file)) = (place.kind, file.as_ref()) {
            file.seek(SeekFrom::End(0))?;
        }
        if let (Kind::Unwritten, Some(file)) = (place.kind, &file) {
            // The first uses of a file are the kernel's, which makes written what was not written
            // only with its journal; Adit promises what it serves.
            for _ in 0..4 {
                file.read_exact_at(&mut [0; 8], 0)?;
            }
        }
        Ok(Self {
            place,
            file,
            fsync: !how.contains(&How::NoFsync),
        })
    }

    fn operation(&mut self, operation: u64) -> std::io::Result<()> {
        match &self.file {
            None if self.place.kind == Kind::Short => self.short(operation),
            None => self.replace(operation),
            Some(file) if self.place.kind == Kind::Append => self.append(file, operation),
            Some(file) => {
                let (offset, len) = self.place.range(operation);
                file.write_all_at(&self.place.bytes(operation, offset, len), offset)
            }
        }
    }

    fn append(&self, file: &File, operation: u64) -> std::io::Result<()> {
        self.pieces(file, operation)?;
        match operation % 2 {
            _ if !self.fsync => Ok(()),
            0 => file.sync_all(),
            _ => file.sync_data(),
        }
    }

    fn short(&self, operation: u64) -> std::io::Result<()> {
        let path = self.place.short(operation);
        if operation > SHORTS {
            std::fs::remove_file(&path)?;
        }
        let record = self.place.record(operation);
        let written = File::create_new(path)?.write(&record)?;
        assert_eq!(written, record.len(), "in one call");
        Ok(())
    }

    fn replace(&self, operation: u64) -> std::io::Result<()> {
        let file = File::create(self.place.fresh())?;
        self.pieces(&file, operation)?;
        if self.fsync {
            file.sync_all()?;
        }
        std::fs::rename(self.place.fresh(), self.place.file())?;
        if self.fsync {
            File::open(&self.place.dir)?.sync_all()?;
        }
        Ok(())
    }

    /// A record in up to three writes.
    fn pieces(&self, mut file: &File, operation: u64) -> std::io::Result<()> {
        let record = self.place.record(operation);
        let mut begin = 0;
        for end in self.place.pieces(operation) {
            file.write_all(&record[begin..end])?;
            begin = end;
        }
        Ok(())
    }
}
