#!/bin/bash
# what:   children Adit does not reach share files with those it does: static, setuid, env -i, unset preload
# needs:  busybox python3
# debian: busybox-static python3-minimal
# limit:  60

busybox=/bin/busybox
file=shared
: >$file
exec 3>>$file 4<>direct

# Appends through an inherited description, in turns with the shell's own.
for i in 1 2 3 4 5 6; do
    echo "shell $i" >&3
    $busybox echo "static $i" >&3
    env -i /bin/echo "empty environment $i" >&3
    env -u LD_PRELOAD /bin/echo "no preload $i" >&3
    $busybox sh -c 'echo "static shell $0"; /bin/echo "its child $0"' "$i" >&3
done
# The same on a description whose offset matters.
for i in 1 2 3 4 5 6; do
    echo "shell $i" >&4
    $busybox echo "static $i" >&4
    env -i /bin/echo "empty $i" >&4
done
# Read by turns: each takes up where the other stopped.
exec 5<direct
for i in 1 2 3; do
    read -r -u 5 line
    echo "$line"
    env -i /bin/dd bs=1 count=9 status=none <&5 | tr -d '\n'
    $busybox dd bs=1 count=8 <&5 2>/dev/null | tr -d '\n'
    echo
done
exec 3>&- 4>&- 5<&-

# A setuid program (another user's) writes to a description it got from us, and to its own file.
cp /bin/dd dd-other
mkdir -m 1777 open
if [ "$(id -u)" = 0 ]; then chown nobody dd-other; fi
chmod 4755 dd-other
exec 6>setuid
echo before >&6
echo through setuid | ./dd-other status=none >&6
echo after >&6
echo own | ./dd-other status=none of=open/own
exec 6>&-
cat setuid

# A static program replaces a file that we have open; a static one reads what we just wrote.
exec 7<>replaced
echo old >&7
$busybox sh -c 'echo new >replaced.tmp; mv replaced.tmp replaced'
echo old again >&7
cat replaced
exec 7>&-
printf 'fresh' >fresh
$busybox cat fresh
echo
$busybox truncate -s 2 fresh
cat fresh
echo
# And it grows under us while we have it mapped for reading, appending, and at its end.
/usr/bin/python3 - "$busybox" <<'EOF'
import os, subprocess, sys
busybox = sys.argv[1]
fd = os.open("grown", os.O_RDWR | os.O_CREAT, 0o644)
for round in range(200):
    os.pwrite(fd, b"%06d" % round, round * 6)
    os.pread(fd, 100, 0)
subprocess.run([busybox, "sh", "-c", "printf static >>grown"], check=True)
print(os.pread(fd, 100, 1200), os.fstat(fd).st_size)
os.write(fd, b"start!")
print(os.pread(fd, 12, 0), os.lseek(fd, 0, os.SEEK_CUR))
subprocess.run([busybox, "truncate", "-s", "3", "grown"], check=True)
print(os.pread(fd, 100, 0), os.pread(fd, 100, 3), os.read(fd, 10))
os.lseek(fd, 0, os.SEEK_END)
os.write(fd, b"tail")
subprocess.run(["/bin/cat", "grown"], env={}, check=True)
print()
EOF
