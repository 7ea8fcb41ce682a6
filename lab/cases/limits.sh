#!/bin/bash
# what:   resource limits, full file systems, /dev/full, descriptors closed and reused: errors as the kernel's
# needs:  python3 unshare mount
# debian: python3-minimal util-linux mount
# limit:  60
# root:   yes

# A file size limit: the write that crosses it is short, the next one fails or signals.
(
    ulimit -f 64
    trap '' XFSZ
    /usr/bin/python3 - <<'EOF'
import os
fd = os.open("limited", os.O_RDWR | os.O_CREAT, 0o644)
for i in range(200):
    os.pwrite(fd, b"x" * 100, i * 300)
    os.pread(fd, 4096, 0)
print(os.fstat(fd).st_size, os.pwrite(fd, b"y" * 10000, 60000))
try:
    os.pwrite(fd, b"z", 65536)
except OSError as error:
    print(error)
try:
    os.ftruncate(fd, 70000)
except OSError as error:
    print(error)
EOF
    head -c 100000 /dev/zero >limited.head || echo "head: $?"
)
(ulimit -f 8; head -c 100000 /dev/zero >signalled) 2>/dev/null || echo "signal status $?"
stat -c '%n %s' limited limited.head signalled

# Few descriptors: Adit may take none of the program's numbers, and the limit is reached where it was.
(
    ulimit -n 24
    /usr/bin/python3 - <<'EOF'
import os
fds = []
try:
    while True:
        fd = os.open("numbers", os.O_RDWR | os.O_CREAT, 0o644)
        os.write(fd, b"n" * 8192)
        for i in range(100):
            os.pread(fd, 4096, 0)
        fds.append(fd)
except OSError as error:
    print(fds, error)
for fd in fds[::2]:
    os.close(fd)
print([os.open("numbers", os.O_RDONLY) for _ in fds[::2]], os.dup2(fds[1], fds[3]))
EOF
)
# Little address space: mapping has to give up quietly. Where each write waits for a disk, fewer; all over the file, too.
(
    ulimit -v 400000
    /usr/bin/python3 - "${LAB_WAITS:+400}" <<'EOF'
import os, sys
fd = os.open("large", os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, 1 << 30)
total = 0
for i in range(int(sys.argv[1] or 4000)):
    at = i * 7919 * 4096 % (1 << 30)
    os.pwrite(fd, b"%d" % i, at)
    total += len(os.pread(fd, 4096, at))
print(total)
EOF
)
rm large

# A full file system: how much fits, what the error is, and that overwriting still works.
mkdir full
unshare -m bash -euo pipefail <<'OUTER'
mount -t tmpfs -o size=1m lab-full full
/usr/bin/python3 - <<'EOF'
import errno, os
fd = os.open("full/file", os.O_RDWR | os.O_CREAT, 0o644)
total = 0
try:
    while True:
        total += os.write(fd, b"f" * 5000)
        os.pread(fd, 5000, total // 2)
except OSError as error:
    print(total, errno.errorcode[error.errno], os.fstat(fd).st_size)
print(os.pwrite(fd, b"over", 1000), os.pread(fd, 4, 1000))
os.ftruncate(fd, 4096)
# A hole with no space behind it: a store would fault where the call returns an error.
filler = os.open("full/filler", os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, 1 << 20)
for i in range(500):
    os.pread(fd, 4096, i * 4096 % (1 << 20))
    os.pwrite(fd, b"0", 100)
try:
    while True:
        os.write(filler, bytes(4096))
except OSError as error:
    print(errno.errorcode[error.errno])
for at in (8192, 500000, 4090):
    try:
        print(os.pwrite(fd, b"h" * 100, at))
    except OSError as error:
        print(at, errno.errorcode[error.errno])
print(os.pread(fd, 8, 4088), os.pread(fd, 4, 8192))
EOF
cp full/file full.copy
OUTER
truncate -s 8192 full.copy

echo data >/dev/full || echo "device full"
/usr/bin/python3 - <<'EOF'
import errno, os
def attempt(what, *arguments):
    try:
        return what(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
fd = os.open("modes", os.O_WRONLY | os.O_CREAT, 0o644)
print(os.write(fd, b"w" * 300000), attempt(os.read, fd, 1), attempt(os.pread, fd, 1, 0))
ro = os.open("modes", os.O_RDONLY)
for i in range(300):
    os.pread(ro, 4096, i * 100)
print(attempt(os.write, ro, b"x"), attempt(os.pwrite, ro, b"x", 0), attempt(os.ftruncate, ro, 0))
print(attempt(os.pread, ro, 10, -1), attempt(os.lseek, ro, -1, 0), attempt(os.lseek, ro, 5, 9), os.lseek(ro, 0, 1))
os.close(ro)
print(attempt(os.pread, ro, 1, 0), attempt(os.read, ro, 1), attempt(os.read, -1, 1))
print(attempt(os.read, os.open(".", os.O_RDONLY), 1), attempt(os.write, os.open("/dev/null", os.O_RDONLY), b"x"))
path = os.open("modes", os.O_PATH)
print(attempt(os.read, path, 1), attempt(os.fstat, path).st_size)
EOF
