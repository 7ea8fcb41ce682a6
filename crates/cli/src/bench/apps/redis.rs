//! Redis with an append-only file that is synced before every answer, under `redis-benchmark`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::side::{Running, Side, plainly};
use super::{Load, Ran, Ready, Room};
use crate::failure::said;
use crate::run;

/// How long the server may take to read its file, or to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Keys set one by one after the load, to be asked for after a restart.
const MARKS: usize = 50;
/// A name in the server's directory: paths of sockets must be short, directories' need not be.
const SOCKET: &str = "socket";

/// The load.
pub(super) struct Redis {
    clients: usize,
    operations: usize,
}

impl Redis {
    /// With so many clients at once, each of which waits for its answer.
    pub(super) fn new(clients: usize) -> Self {
        Self {
            clients,
            operations: 0,
        }
    }
}

impl Load for Redis {
    fn name(&self) -> &'static str {
        match self.clients {
            1 => "redis, appendfsync always, 1 client",
            _ => "redis, appendfsync always, 50 clients",
        }
    }

    fn rows(&self) -> &'static [&'static str] {
        &["SET"]
    }

    fn waits(&self) -> bool {
        true
    }

    fn prepare(&mut self, room: &Room) -> Result<Ready, String> {
        if !run::is_installed("redis-server") {
            return Ok(Ready::Missing("package redis-server"));
        }
        if !run::is_installed("redis-benchmark") {
            return Ok(Ready::Missing("package redis-tools"));
        }
        self.operations = match self.clients {
            1 => room.operations(1, 150, 20_000),
            // A sync serves all clients that wait for one.
            many => room.operations(1, 100, 2000).saturating_mul(many / 2),
        };
        Ok(Ready::Yes)
    }

    fn run(&self, side: &Side, work: &Path) -> Result<Ran, String> {
        let mut server = Server::start(side, work)?;
        let printed = self.benchmark(work)?;
        let rate = rate(&printed).ok_or_else(|| format!("redis-benchmark says {printed:?}"))?;
        for i in 0..MARKS {
            server.expect(&format!("SET mark:{i} {i}"), "+OK")?;
        }
        let before = server.ask("DBSIZE")?;
        server.stop()?;
        // What the file holds is asked of a server without Adit.
        let mut server = Server::start(&Side::new(None).map_err(|e| said(&e))?, work)?;
        server.expect("DBSIZE", &before)?;
        for i in 0..MARKS {
            let value = i.to_string();
            server.expect(&format!("GET mark:{i}"), &format!("${}", value.len()))?;
            server.next_is(&value)?;
        }
        server.stop()?;
        Ok(Ran {
            times: vec![1e9 / rate],
            // Which of its keys the benchmark sets is left to chance.
            left: String::new(),
        })
    }
}

impl Redis {
    fn benchmark(&self, work: &Path) -> Result<String, String> {
        let (operations, clients) = (self.operations.to_string(), self.clients.to_string());
        let words = [
            "-s",
            SOCKET,
            "-t",
            "set",
            "-n",
            &operations,
            "-c",
            &clients,
            "-d",
            "100",
            "-r",
            "100000",
            "--csv",
        ];
        plainly("redis-benchmark", &words.map(AsRef::as_ref), work)
    }
}

/// Operations per second, out of lines like `"SET","12345.67","0.1",…`.
fn rate(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.starts_with("\"SET\""))?;
    let rate: f64 = line.split(',').nth(1)?.trim_matches('"').parse().ok()?;
    (rate > 0.0).then_some(rate)
}

/// A server and a client of it.
struct Server {
    running: Running,
    client: BufReader<UnixStream>,
}

impl Server {
    fn start(side: &Side, work: &Path) -> Result<Self, String> {
        let _ = std::fs::remove_file(work.join(SOCKET));
        let mut command = side.command("redis-server", work);
        command.args(["--port", "0", "--unixsocket", SOCKET, "--daemonize", "no"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--save", "", "--auto-aof-rewrite-percentage", "0"]);
        let running = Running::start(&mut command, work.join("redis.log"))?;
        let begun = Instant::now();
        // While it loads its file, it answers that it does.
        while begun.elapsed() < PATIENCE {
            if let Ok(client) = connect(running.pid()) {
                let mut server = Self { running, client };
                while begun.elapsed() < PATIENCE {
                    if server.ask("PING")? == "+PONG" {
                        return Ok(server);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!(
            "redis-server does not answer within {} s",
            PATIENCE.as_secs()
        ))
    }

    fn ask(&mut self, command: &str) -> Result<String, String> {
        let failed =
            |e: std::io::Error| format!("redis-server does not answer to {command}: {}", said(&e));
        let line = format!("{command}\r\n");
        let client = self.client.get_mut();
        client.write_all(line.as_bytes()).map_err(failed)?;
        self.next_line().map_err(failed)
    }

    fn next_line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.client.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// What follows the length of a value.
    fn next_is(&mut self, expected: &str) -> Result<(), String> {
        match self.next_line() {
            Ok(value) if value == expected => Ok(()),
            other => Err(format!("{other:?} is the value, not {expected}")),
        }
    }

    fn expect(&mut self, command: &str, expected: &str) -> Result<(), String> {
        let answer = self.ask(command)?;
        if answer == expected {
            return Ok(());
        }
        Err(format!("{command} gives {answer}, not {expected}"))
    }

    fn stop(mut self) -> Result<(), String> {
        let ask = self.client.get_mut().write_all(b"SHUTDOWN NOSAVE\r\n");
        ask.map_err(|e| said(&e))?;
        self.running.wait()
    }
}

fn connect(pid: u32) -> std::io::Result<BufReader<UnixStream>> {
    let socket = PathBuf::from(format!("/proc/{pid}/cwd")).join(SOCKET);
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(BufReader::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"12500.00\",\"0.072\"\n";
        assert_eq!(rate(text), Some(12_500.0));
        for bad in [
            "",
            "\"SET\"",
            "\"SET\",\"0.00\"",
            "\"SET\",\"fast\"",
            "Error",
        ] {
            assert_eq!(rate(bad), None, "{bad}");
        }
    }
}
