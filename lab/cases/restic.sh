#!/bin/bash
# what:   a Go program, which calls the kernel itself: restic backs up, checks and restores files that another program has just written and still has open; busybox and tar copy them
# needs:  restic /usr/bin/python3 /bin/busybox tar
# media:  ram ext4
# debian: restic python3-minimal busybox-static tar
# limit:  120
# ignore: repository repository/* *.log

export RESTIC_PASSWORD=lab RESTIC_REPOSITORY=$PWD/repository RESTIC_CACHE_DIR=$LAB_SCRATCH/cache
# Writes to forty files for each line, and keeps them open.
cat >"$LAB_SCRATCH/writer.py" <<'PYTHON'
import os, random, sys

seeded = random.Random(11)
os.makedirs("source/below", exist_ok=True)
ways = (os.O_RDWR, os.O_WRONLY | os.O_APPEND)
files = [os.open("source/%s%d" % ("below/" * (n % 3 == 0), n), ways[n % 2] | os.O_CREAT, 0o644) for n in range(40)]
for line in sys.stdin:
    for number, file in enumerate(files):
        for _ in range(8):
            os.write(file, seeded.randbytes(seeded.randrange(1, 6000)))
        if number % 2 == 0:
            os.pwrite(file, line.encode(), 7)
        if number % 5 == 0:
            os.ftruncate(file, 9000)
        if line == "synced\n":
            os.fsync(file)
    print("written", flush=True)
PYTHON
coproc writer { exec /usr/bin/python3 "$LAB_SCRATCH/writer.py"; }
pid=$writer_PID
write() {
    echo "$1" >&"${writer[1]}"
    read -r answer <&"${writer[0]}"
    [ "$answer" = written ] || die "the writer says $answer"
}
# Whoever opens a file finds all of it. That one has changed restic takes from its times, which others see a second later
# at most: so it reads all of them.
kept() {
    restic backup --quiet --force source
    rm -rf restored
    restic restore --quiet latest --target restored
    diff -r source restored/source && echo "restored as written"
    outside find restored/source -type f -exec sha256sum {} + | sort | sha256sum
}
restic init --quiet
write first
kept
write synced
kept
# A static program, and one that Adit reaches, and that opens so as not to wait.
write third
/bin/busybox cp -r source copied
diff -r source copied && echo "copied as written"
write fourth
tar cf packed source
tar df packed && echo "packed as written"
rm -r copied packed
kept
exec {writer[1]}>&-
wait "$pid"
restic backup --quiet source
restic check --quiet --read-data && echo "the repository is whole"
restic snapshots --json | outside /usr/bin/python3 -c 'import json, sys; print(len(json.load(sys.stdin)), "snapshots")'
rm -rf restored
