#!/bin/bash
# what:   writers killed with -9 at random instants: every byte whose write returned is in the file
# needs:  python3
# debian: python3-minimal
# limit:  60

# The writer tells its progress through a pipe after each write: what it told must be there.
cat >writer.py <<'EOF'
import os, random, sys
name, how, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(seed)
flags = os.O_RDWR | os.O_CREAT | (os.O_APPEND if how == "append" else 0)
fd = os.open(name, flags, 0o644)
if how == "overwrite":
    os.write(fd, bytes(1 << 20))
done = 0
for i in range(1_000_000):
    size = rng.choice((1, 17, 64, 511, 4096, 9000))
    block = bytes([i % 251 + 1]) * size
    if how == "overwrite":
        at = i * 512 % (1 << 20)
        block = block[:512].ljust(512, block[:1])[: (1 << 20) - at]
        os.pwrite(fd, block, at)
        os.write(1, b"%d %d %d\n" % (at, len(block), block[0]))
    else:
        os.write(fd, block)
        os.write(1, b"%d %d %d\n" % (done, len(block), block[0]))
        done += size
    if i % 50 == 49 and how == "sync":
        os.fsync(fd)
EOF
cat >check.py <<'EOF'
import sys
name, told = sys.argv[1], sys.argv[2]
data = open(name, "rb").read()
lines = open(told, "rb").read().split(b"\n")[:-1]
final, end = {}, 0
for line in lines:
    at, size, byte = map(int, line.split())
    final[at] = (size, byte)
    last = at
    end = max(end, at + size)
assert len(lines) > 20, f"only {len(lines)} writes were told"
assert len(data) >= end, f"{name}: {end - len(data)} acknowledged bytes lost of {end}"
# The write after the last one told may have happened as well; nothing beyond that one.
assert len(data) <= max(end, 1 << 20) + 9000, f"{name}: {len(data) - end} bytes nobody wrote"
for at, (size, byte) in final.items():
    untold = at == (last + 512) % (1 << 20) and name.startswith("overwrite")
    assert untold or data[at : at + size] == bytes([byte]) * size, f"{name}: wrong bytes at {at}"
EOF
# As many as the check wants: where each write waits for a disk they take their time.
enough() {
    (($(wc -l <"$1") > 20))
}
for how in append plain sync overwrite; do
    for round in 1 2 3 4 5; do
        name=$how-$round
        /usr/bin/python3 writer.py "$name" $how $round >"$LAB_SCRATCH/$name.told" &
        writer=$!
        wait_until 10 enough "$LAB_SCRATCH/$name.told"
        sleep "0.0$((round * 17 % 10))"
        kill -9 "$writer"
        wait "$writer" 2>/dev/null || true
        outside /usr/bin/python3 check.py "$name" "$LAB_SCRATCH/$name.told" || die "$name"
        rm "$name"
    done
    echo "$how: nothing acknowledged is lost"
done

# Several writers of one file, one of them killed: the others' records stay whole and go on.
for who in 1 2 3; do
    (for i in $(seq 1 4000); do echo "writer $who record $i"; done >>log) &
    pids[who]=$!
done
sleep 0.03
kill -9 "${pids[2]}" 2>/dev/null || true
wait "${pids[1]}" "${pids[3]}"
wait "${pids[2]}" 2>/dev/null || true
grep -c 'writer 1 record' log
grep -c 'writer 3 record' log
grep -vcE '^writer [123] record [0-9]+$' log || true
rm log
# Stopped in the middle, then continued.
(for i in $(seq 1 3000); do echo "record $i"; done >stopped) &
pid=$!
sleep 0.01
kill -STOP "$pid" 2>/dev/null || true
sleep 0.2
kill -CONT "$pid" 2>/dev/null || true
wait "$pid"
wc -l <stopped
