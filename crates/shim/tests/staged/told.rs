//! A program that does what it is told, line by line, and answers each with a line.

use super::*;

/// The program, under `timeout` or another command that has started it. Its input ends with it here.
pub(crate) struct Told {
    child: Child,
    input: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Told {
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("timeout(1) or env(1)");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Self {
            input: child.stdin.take(),
            child,
            said,
        }
    }

    pub(crate) fn say(&mut self, what: &str) {
        let input = self.input.as_mut().expect("its input");
        input
            .write_all(format!("{what}\n").as_bytes())
            .expect("its input");
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("its output");
        line.trim_end_matches('\n').to_owned()
    }

    pub(crate) fn tell(&mut self, what: &str) -> String {
        self.say(what);
        self.hear()
    }

    #[track_caller]
    pub(crate) fn answers(&mut self, dialogue: &[(&str, &str)]) {
        for (what, answer) in dialogue {
            assert_eq!(self.tell(what), *answer, "{what}");
        }
    }

    #[track_caller]
    pub(crate) fn all_well(&mut self, what: &[&str]) {
        for what in what {
            assert_eq!(self.tell(what), "0 -", "{what}");
        }
    }

    pub(crate) fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().expect("wait").success());
    }

    pub(crate) fn kill(mut self) {
        // Another command has started it.
        signal("-KILL", &started_by(self.child.id()));
        self.child.wait().expect("wait");
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
