#!/bin/bash
# what:   a program with a database and a log open starts others in every way that Python knows
# needs:  python3 sqlite3
# debian: python3 sqlite3
# limit:  120
# ignore: rows.db-wal rows.db-shm

/usr/bin/python3 - <<'EOF'
import concurrent.futures, os, sqlite3, subprocess, sys

rows = sqlite3.connect("rows.db")
rows.execute("PRAGMA journal_mode=WAL")
rows.execute("CREATE TABLE t(n INTEGER, how TEXT)")
log = open("log", "ab", 0)
# Not closed for programs that are executed.
kept = os.open("kept", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
os.set_inheritable(kept, True)
turn = open("turn", "w+b", 0)


def run(*words, **options):
    return subprocess.run(words, check=True, **options)


def spawn(actions, *words):
    pid = os.posix_spawn(words[0], words, os.environ, file_actions=actions)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


ways = {
    "nothing": lambda: run("true"),
    "missing": lambda: subprocess.run("/nonexistent || true", shell=True, stderr=subprocess.DEVNULL),
    "captured": lambda: print(run("wc", "-l", "log", capture_output=True, text=True).stdout.strip()),
    "standard output": lambda: run("echo", "a command", stdout=log),
    "all open": lambda: run("sh", "-c", f"echo inherited >&{kept}", close_fds=False),
    "handed on": lambda: run("sh", "-c", f"echo handed on >&{log.fileno()}", pass_fds=[log.fileno()]),
    "input": lambda: run("cat", stdin=open("log", "rb"), stdout=subprocess.DEVNULL),
    "actions": lambda: spawn([(os.POSIX_SPAWN_DUP2, log.fileno(), 1)], "/bin/echo", "by an action"),
    "other actions": lambda: spawn([(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)], "/bin/echo", "lost"),
    "system": lambda: os.system("echo system >>other"),
    "popen": lambda: print(os.popen("echo from a pipe").read().strip()),
    "by turns": lambda: run("sh", "-c", "echo command", stdout=turn),
    "rights": lambda: run("true", preexec_fn=os.setsid),
}
number = 0
for again in range(3):
    for how, start in ways.items():
        rows.execute("INSERT INTO t VALUES(?, ?)", (number, how))
        log.write(f"before {number}\n".encode())
        turn.write(f"mine {number}\n".encode())
        start()
        log.write(f"after {number}, {how}\n".encode())
        os.write(kept, f"{number}\n".encode())
        rows.commit()
        number += 1
        if how == "captured":
            # The next ones come to files that nobody has used yet.
            log.close()
            log = open("log", "ab", 0)

# Threads that write while others start programs.
def writes(nth):
    with open(f"thread-{nth}", "ab", 0) as mine:
        for line in range(400):
            mine.write(f"{nth} {line}\n".encode())


def starts(nth):
    for _ in range(10):
        run("true")


with concurrent.futures.ThreadPoolExecutor(8) as pool:
    for job in [pool.submit(work, nth) for nth in range(4) for work in (writes, starts)]:
        job.result()
print(log.tell(), os.lseek(kept, 0, os.SEEK_CUR), turn.tell())
run("sqlite3", "rows.db", "SELECT count(*), max(n), count(DISTINCT how) FROM t; PRAGMA integrity_check;")
rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
rows.close()
EOF
