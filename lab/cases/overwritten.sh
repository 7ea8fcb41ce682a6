#!/bin/bash
# what:   repeated overwrites of a warm file on tmpfs must not reach the kernel; its times must advance
# needs:  python3
# debian: python3-minimal
# media:  ram
# limit:  60
# serves: 10

/usr/bin/python3 - <<'EOF'
import os, time
fd = os.open("data", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, bytes(range(256)) * 1024)
for i in range(200):
    os.pread(fd, 4096, 0)
os.utime(fd, (1, 1))
for i in range(40000):
    assert os.pwrite(fd, b"%06d" % i, i * 7919 % 250000) == 6
for i in range(40000):
    os.lseek(fd, i * 6 % 250000, os.SEEK_SET)
    assert os.write(fd, b"%04d" % (i % 10000)) == 4
# The program itself sees its writes in the time at once, others within a second.
print(time.time() - os.fstat(fd).st_mtime < 60)
os.close(fd)
EOF
deadline=$((SECONDS + 20))
while [ "$(stat -c %Y data)" -lt 1000 ] && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
[ "$(stat -c %Y data)" -gt 1000 ] && echo "the time advanced"

# Nor may a death keep the time back.
/usr/bin/python3 - <<'EOF' || echo "killed"
import os, signal
fd = os.open("data", os.O_RDWR)
for i in range(200):
    os.pread(fd, 4096, 0)
os.utime(fd, (2, 2))
for i in range(2000):
    os.pwrite(fd, b"%06d" % i, i * 7919 % 250000)
os.kill(os.getpid(), signal.SIGKILL)
EOF
deadline=$((SECONDS + 20))
while [ "$(stat -c %Y data)" -lt 1000 ] && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
[ "$(stat -c %Y data)" -gt 1000 ] && echo "the time advanced after the death"
sha256sum data
