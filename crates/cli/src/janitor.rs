//! Directories of our own that go away with us, whatever ends us.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Removes a directory when this value goes, and also when this process is killed: then the pipe ends that a shell waits
/// at. Before that it ends the group of processes that it was told of last.
pub(crate) struct Janitor(Child);

impl Janitor {
    /// Of a directory that need not be there yet: who is killed right after making it leaves none then.
    pub(crate) fn of(path: &Path) -> std::io::Result<Self> {
        // Servers that die with this process may still be making files.
        const SCRIPT: &str = r#"
            group=
            while read -r word; do
                case $word in
                leave) exit ;;
                *) group=${word#none} ;;
                esac
            done
            [ -z "$group" ] || kill -s KILL -- "-$group"
            rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }"#;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "sh"]).arg(path);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(Stdio::null()).process_group(0);
        command
            .env_remove("LD_PRELOAD")
            .env("PATH", "/usr/bin:/bin");
        command.current_dir("/");
        command.spawn().map(Self)
    }

    /// Removes nothing: the directory is somebody else's, or is to stay.
    pub(crate) fn leave(self) {
        self.told("leave");
    }

    /// The group of processes to be ended before, if any. Its number must not be another's as long as this is so.
    pub(crate) fn ends(&self, group: Option<u32>) {
        self.told(&group.map_or_else(|| "none".to_owned(), |group| group.to_string()));
    }

    fn told(&self, word: &str) {
        if let Some(mut pipe) = self.0.stdin.as_ref() {
            let _ = pipe.write_all(format!("{word}\n").as_bytes());
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
