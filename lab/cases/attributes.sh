#!/bin/bash
# what:   files that are immutable or only grow, and a file system that is unmounted while its user goes on
# needs:  chattr mkfs.ext4 losetup python3
# debian: e2fsprogs util-linux python3-minimal
# media:  ext4 xfs btrfs
# limit:  60
# root:   yes

cat >use.py <<'EOF'
import errno, os, sys

def told(what, *args):
    try:
        return what(*args)
    except OSError as error:
        return errno.errorcode[error.errno]

def use(name, flags):
    fd = told(os.open, name, flags)
    if isinstance(fd, str):
        print(name, flags, fd)
        return
    for i in range(200):
        told(os.pread, fd, 4096, i * 64)
    done = [told(os.write, fd, b"more"), told(os.pwrite, fd, b"over", 8), told(os.ftruncate, fd, 100),
            told(os.pread, fd, 12, 0), told(os.fsync, fd)]
    os.close(fd)
    print(name, flags, *done, os.stat(name).st_size)

for flags in os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC:
    use(sys.argv[1], flags)
print(told(os.rename, sys.argv[1], "moved"), told(os.unlink, sys.argv[1]))
EOF
for attribute in i a; do
    make_data "$attribute" 100 7
    chattr "+$attribute" "$attribute"
    python3 use.py "$attribute"
    # It becomes so while a program has it open: each file system has its own answer. On DAX nobody is asked when a
    # program stores to what it has mapped, nor when Adit does (docs/posix.md).
    if findmnt -no OPTIONS --target . | grep -q dax; then
        chattr "-$attribute" "$attribute"
        continue
    fi
    chattr "-$attribute" "$attribute"
    python3 - "$attribute" <<'EOF'
import os, subprocess, sys
name = sys.argv[1]
fd = os.open(name, os.O_RDWR)
for i in range(300):
    os.pread(fd, 4096, i * 300)
print(os.pwrite(fd, b"before", 50))
subprocess.run(["chattr", "+" + name, name], check=True)
try:
    print(os.pwrite(fd, b"later", 60))
except PermissionError:
    print("refused")
print(os.pread(fd, 20, 50))
subprocess.run(["chattr", "-" + name, name], check=True)
os.close(fd)
EOF
    sha256sum "$attribute"
done

# What is closed keeps nobody from unmounting: no mapping is left of it.
truncate -s 64M disk
mkfs.ext4 -q -F disk
mkdir mounted
mount_loop disk mounted
python3 - <<'EOF'
import hashlib, mmap, os, subprocess, time
files = []
for name in "one", "two", "three":
    fd = os.open("mounted/" + name, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, name.encode() * 50000)
    for i in range(300):
        os.pread(fd, 4096, i * 400)
        os.pwrite(fd, b"%04d" % i, i * 400)
    files.append(fd)
with mmap.mmap(files[0], 0) as mapped:
    print(mapped[:8])
twin = os.dup(files[1])
for fd in files + [twin]:
    os.close(fd)
print(subprocess.run(["umount", "mounted"]).returncode)
# A loop device that is free may be had by somebody else who was faster.
for patience in range(100):
    if subprocess.run(["mount", "-o", "loop", "disk", "mounted"], stderr=subprocess.DEVNULL).returncode == 0:
        break
    time.sleep(0.1)
for name in "one", "two", "three":
    print(name, hashlib.sha256(open("mounted/" + name, "rb").read()).hexdigest())
print(subprocess.run(["umount", "mounted"]).returncode)
EOF
rm disk
