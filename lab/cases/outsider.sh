#!/bin/bash
# what:   outsiders at work on files a running program has open: appends, overwrites, truncation, SQLite
# needs:  python3 sqlite3
# debian: python3-minimal sqlite3
# limit:  60
# ignore: db db-*

/usr/bin/python3 - <<'EOF'
import os, subprocess

clean = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "ADIT_"))}


def outsider(command):
    return subprocess.run(command, shell=True, env=clean, check=True, capture_output=True).stdout


# Appends by turns on an O_APPEND description: every record in order, none lost.
fd = os.open("log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
for i in range(40):
    for j in range(20):
        os.write(fd, b"program %d.%d\n" % (i, j))
    outsider(f"echo outsider {i} >>log")
print(os.fstat(fd).st_size, os.pread(fd, 30, os.fstat(fd).st_size - 30))

# Overwrites of what the program has read often enough to have it at hand.
fd = os.open("data", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, bytes(65536))
for i in range(300):
    os.pread(fd, 4096, i * 4096 % 65536)
    os.pwrite(fd, b"p", i)
for i in range(30):
    outsider(f"printf o{i:03d} | dd of=data bs=1 seek={i * 2000 + 1000} conv=notrunc status=none")
    got = os.pread(fd, 4, i * 2000 + 1000)
    assert got == b"o%03d" % i, (i, got)
    os.pwrite(fd, b"r%03d" % i, i * 2000 + 1500)
    seen = outsider(f"dd if=data bs=1 skip={i * 2000 + 1500} count=4 status=none")
    assert seen == b"r%03d" % i, (i, seen)
print("overwrites seen both ways")

# Growth, truncation, holes and replacement by an outsider.
outsider("truncate -s 200000 data")
print(os.fstat(fd).st_size, os.pread(fd, 10, 199995), os.lseek(fd, 0, os.SEEK_END))
outsider("printf end >>data")
print(os.read(fd, 100), os.pread(fd, 10, 199998))
outsider("truncate -s 5000 data")
print(os.pread(fd, 10000, 4990).hex(), os.pread(fd, 10, 5000), os.read(fd, 10), os.fstat(fd).st_size)
os.pwrite(fd, b"beyond", 9000)
print(outsider("stat -c %s data; tail -c 8 data | od -A n -c"))
outsider("truncate -s 0 data; printf again >data")
print(os.pread(fd, 100, 0), os.fstat(fd).st_size)
os.lseek(fd, 0, os.SEEK_SET)
print(os.read(fd, 3), os.read(fd, 3), os.read(fd, 3))
os.write(fd, b"!")
outsider("echo new >data.new; mv data.new data")
os.pwrite(fd, b"to the nameless", 0)
print(open("data").read(), os.pread(fd, 100, 0))

# An outsider maps the file, stores to it, and reads the program's stores, page by page.
fd = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b"." * 20000)
peer = subprocess.Popen(["/usr/bin/python3", "-c", """
import mmap, os, sys
fd = os.open("mapped", os.O_RDWR)
view = mmap.mmap(fd, 20000)
for line in sys.stdin:
    at, byte = map(int, line.split())
    seen = view[at]
    view[at] = byte
    print(seen, flush=True)
"""], env=clean, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for i in range(400):
    at = i * 7919 % 20000
    os.pwrite(fd, bytes([i % 200 + 1]), at)
    peer.stdin.write(f"{at} {i % 100 + 50}\n")
    peer.stdin.flush()
    assert int(peer.stdout.readline()) == i % 200 + 1, i
    assert os.pread(fd, 1, at) == bytes([i % 100 + 50]), i
peer.stdin.close()
peer.wait()
print("mapped both ways")

# The program's own mapping beside its own calls.
import mmap
view = mmap.mmap(fd, 20000)
for i in range(400):
    at = i * 7919 % 20000
    view[at] = i % 256
    assert os.pread(fd, 1, at)[0] == i % 256
    os.pwrite(fd, bytes([255 - i % 256]), at)
    assert view[at] == 255 - i % 256
print("own mapping agrees")
EOF

# SQLite: the program holds a connection open while outsiders change the database under it.
sqlite3 db 'PRAGMA journal_mode=delete; CREATE TABLE t(who, n); CREATE INDEX i ON t(n);' >/dev/null
for journal in delete wal; do
    outside sqlite3 db "PRAGMA journal_mode=$journal;"
    {
        echo ".timeout 20000"
        for i in $(seq 1 25); do
            echo "INSERT INTO t VALUES('program', $i);"
            echo ".shell env -u LD_PRELOAD -u ADIT_MODE sqlite3 -cmd '.timeout 20000' db \"INSERT INTO t VALUES('outsider', $i);\""
            echo "SELECT count(*) = (SELECT sum(who = 'program') + sum(who = 'outsider') FROM t), max(n) FROM t;"
        done
    } | sqlite3 -bail db | sort | uniq -c
    (for i in $(seq 1 25); do echo "INSERT INTO t VALUES('inside', $i);"; done | sqlite3 -cmd '.timeout 20000' -bail db) &
    first=$!
    (for i in $(seq 1 25); do echo "INSERT INTO t VALUES('beside', $i);"; done | outside sqlite3 -cmd '.timeout 20000' -bail db) &
    second=$!
    wait "$first" && wait "$second" || die "a writer failed"
    sqlite3 db 'PRAGMA integrity_check; SELECT who, count(*), sum(n) FROM t GROUP BY who;'
    outside sqlite3 db 'PRAGMA integrity_check; SELECT who, count(*), sum(n) FROM t GROUP BY who;'
done
