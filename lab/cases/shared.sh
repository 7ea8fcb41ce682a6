#!/bin/bash
# what:   programs that share the files of a declared directory: SQLite from three processes, appenders, a file that two rewrite in turns
# needs:  sqlite3 python3
# debian: sqlite3 python3
# limit:  120
# ignore: two-*.db* log

# Whoever is started from here on has declared the directory; this shell itself touches no file of it.
export ADIT_PATH=$PWD

writer() {
    for i in $(seq 1 30); do
        echo ".timeout 30000"
        echo "BEGIN IMMEDIATE; INSERT INTO t(who, n) VALUES('$2', $i); UPDATE counter SET n = n + 1; COMMIT;"
    done | sqlite3 -bail "$1"
}
for journal in delete wal; do
    database=two-$journal.db
    sqlite3 "$database" "PRAGMA journal_mode=$journal; CREATE TABLE t(id INTEGER PRIMARY KEY, who, n); CREATE TABLE counter(n); INSERT INTO counter VALUES(0);" >/dev/null
    jobs=()
    for who in a b c; do
        writer "$database" $who &
        jobs+=($!)
    done
    for i in $(seq 1 10); do
        bad=$(sqlite3 -cmd '.timeout 30000' "$database" 'SELECT (SELECT n FROM counter) - (SELECT count(*) FROM t);')
        [ "$bad" = 0 ] || die "$database: counter and rows differ by $bad"
    done
    for job in "${jobs[@]}"; do wait "$job" || die "$database: a process failed"; done
    sqlite3 "$database" 'PRAGMA integrity_check; SELECT who, count(*), sum(n) FROM t GROUP BY who; SELECT n FROM counter;'
done

# Each sees its own lines and never fewer of the others'. The kernel shows the first pages of a write before its last one;
# where files are staged nobody sees a part.
appender='
import os, sys
who = sys.argv[1]
out = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
back = os.open("log", os.O_RDONLY)
seen = 0
staged = os.environ.get("ADIT_MODE", "posix") != "posix"
for nth in range(300):
    line = ("%s %d %s\n" % (who, nth, "x" * (nth * 7 % 300))).encode()
    assert os.write(out, line) == len(line)
    if nth % 10 == 9:
        size = os.fstat(back).st_size
        text = os.pread(back, size, 0)
        assert len(text) == size >= seen, (len(text), size, seen)
        assert text.endswith(b"\n") or not staged, (size, text[-300:])
        assert line in text
        seen = size
'
jobs=()
for who in 1 2 3; do
    python3 -c "$appender" $who &
    jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || die "an appender failed"; done
python3 -c '
lines = open("log").read().splitlines()
for who in "123":
    mine = [line.split()[1] for line in lines if line.startswith(who + " ")]
    assert mine == [str(nth) for nth in range(300)], who
print(len(lines), "lines, each writer in its order")
'

# Two rewrite a page in turns, and cut and extend the file; each finds what the other has just done.
python3 -c '
import os, subprocess, sys
other = """
import os, sys
fd = os.open("turns", os.O_RDWR)
for line in sys.stdin:
    nth = int(line)
    page = os.pread(fd, 1 << 20, 0)
    assert page == bytes([nth % 251]) * (4096 + nth * 13 % 5000), (nth, len(page))
    os.ftruncate(fd, 100)
    os.pwrite(fd, b"back %d" % nth, 50)
    print(nth, flush=True)
"""
os.close(os.open("turns", os.O_CREAT | os.O_WRONLY, 0o644))
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child = subprocess.Popen([sys.executable, "-c", other], **pipes)
fd = os.open("turns", os.O_RDWR)
for nth in range(200):
    data = bytes([nth % 251]) * (4096 + nth * 13 % 5000)
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    if nth % 40 == 0:
        os.fsync(fd)
    print(nth, file=child.stdin, flush=True)
    assert int(child.stdout.readline()) == nth
    text = b"back %d" % nth
    expected = data[:50] + text + data[50 + len(text):100]
    found = os.pread(fd, 1 << 20, 0)
    assert found == expected, (nth, found)
child.stdin.close()
assert child.wait() == 0
print("200 turns")
'
