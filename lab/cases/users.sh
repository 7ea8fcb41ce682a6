#!/bin/bash
# what:   programs of another user, programs that change their identity, and files they share
# needs:  setpriv python3
# debian: util-linux python3-minimal
# limit:  60
# root:   yes

chmod 777 .
# Another user's program, started under our Adit: our run-time directory is not his.
setpriv --reuid=nobody --regid=nogroup --clear-groups /usr/bin/python3 - <<'EOF'
import os
fd = os.open("theirs", os.O_RDWR | os.O_CREAT, 0o640)
for i in range(3000):
    os.pwrite(fd, b"%04d" % i, i * 4)
    os.pread(fd, 4096, 0)
print(os.getuid() != 0, os.fstat(fd).st_size)
EOF
stat -c '%n %U %a %s' theirs

# A server that opens as root, works as nobody, and forks: what it may no longer do it cannot do.
/usr/bin/python3 - <<'EOF'
import os
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
data = os.open("data", os.O_RDWR | os.O_CREAT, 0o600)
os.write(data, bytes(100000))
for i in range(500):
    os.pwrite(data, b"root", i * 4)
    os.pread(data, 4096, i * 8)
os.setgid(65534)
os.setuid(65534)
for i in range(500):
    os.write(log, b"nobody %d\n" % i)
    os.pwrite(data, b"nobo", 2000 + i * 4)
    os.pread(data, 4096, i * 8)
for path in ("data", "log"):
    try:
        os.open(path, os.O_RDONLY)
        print("opened", path)
    except PermissionError:
        print("refused", path)
pid = os.fork()
if pid == 0:
    os.write(log, b"child\n")
    os.pwrite(data, b"child", 50000)
    os._exit(0)
os.waitpid(pid, 0)
print(os.pread(data, 5, 50000), os.fstat(log).st_size)
EOF
# A file that another may write, used by both at once.
/usr/bin/python3 - <<'EOF'
import os, subprocess
fd = os.open("common", os.O_RDWR | os.O_CREAT, 0o666)
os.fchmod(fd, 0o666)
os.write(fd, b"c" * 50000)
for i in range(300):
    os.pwrite(fd, b"root", i * 16)
    os.pread(fd, 4096, i * 16)
subprocess.run(["setpriv", "--reuid=nobody", "--clear-groups", "sh", "-c",
                "printf theirs | dd of=common bs=1 seek=40000 conv=notrunc status=none; echo end >>common"], check=True)
print(os.pread(fd, 6, 40000), os.fstat(fd).st_size, os.pread(fd, 100, 50000))
EOF
# chroot: Adit's paths are gone, the descriptors are not.
/usr/bin/python3 - <<'EOF'
import os
fd = os.open("jailed", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b"j" * 300000)
os.mkdir("jail")
os.chroot("jail")
os.chdir("/")
for i in range(2000):
    os.pwrite(fd, b"%05d" % i, i * 100)
    assert os.pread(fd, 5, i * 100) == b"%05d" % i
inner = os.open("/inner", os.O_RDWR | os.O_CREAT, 0o644)
os.write(inner, b"inside" * 10000)
for i in range(500):
    os.pread(inner, 600, i * 100)
print(os.listdir("/"), os.fstat(fd).st_size)
EOF
