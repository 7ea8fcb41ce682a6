#!/bin/bash
# what:   tail -f, inside and outside Adit, beside running writers; log rotation by rename and by truncation
# needs:  tail python3
# debian: coreutils python3-minimal
# limit:  60

# Where each write waits for a disk, a fifth of it.
many=500
if [ -n "$LAB_WAITS" ]; then many=100; fi
: >log
tail -n +1 -f log >inside &
first=$!
outside tail -n +1 -f log >outside &
second=$!
/usr/bin/python3 -c '
import os, sys
fd = os.open("log", os.O_WRONLY | os.O_APPEND)
for i in range(6 * int(sys.argv[1])):
    os.write(fd, b"record %d\n" % i)
' "$many"
for i in $(seq 1 $((many * 3 / 5))); do echo "shell $i"; done >>log
wait_until $((10 * LAB_PATIENCE)) cmp log inside
wait_until $((10 * LAB_PATIENCE)) cmp log outside
kill "$first" "$second"
wait "$first" "$second" 2>/dev/null || true
echo "followers saw everything"

# Each record is visible to an outsider as soon as its write has returned, in the program's order.
/usr/bin/python3 - "$many" <<'EOF'
import os, subprocess, sys
many = int(sys.argv[1])
clean = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "ADIT_"))}
fd = os.open("watched", os.O_RDWR | os.O_CREAT, 0o644)
script = """
import os, sys
fd = os.open("watched", os.O_RDONLY)
for line in sys.stdin:
    at, want = line.split()
    print(os.pread(fd, 6, int(at)).decode() == want and os.fstat(fd).st_size >= int(at) + 6, flush=True)
"""
watch = subprocess.Popen(["/usr/bin/python3", "-c", script], env=clean, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
missed = 0
for i in range(3 * many):
    # Appended at first, then in any order.
    at = i * 6 if i < 2 * many else i * 7919 % (12 * many)
    text = "%06d" % i
    assert os.pwrite(fd, text.encode(), at) == 6
    os.pread(fd, 64, at)
    watch.stdin.write(f"{at} {text}\n")
    watch.stdin.flush()
    missed += watch.stdout.readline() != "True\n"
watch.stdin.close()
watch.wait()
print("missed", missed)
EOF

# Rotation: the writer keeps its description; a truncated log starts again at its append.
/usr/bin/python3 - "$many" <<'EOF'
import os, subprocess, sys
many = int(sys.argv[1])
clean = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "ADIT_"))}
fd = os.open("rotated", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for round in range(4):
    for i in range(many):
        os.write(fd, b"round %d record %d\n" % (round, i))
    if round == 0:
        subprocess.run(["mv", "rotated", "rotated.1"], env=clean, check=True)
        os.close(fd)
        fd = os.open("rotated", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    if round == 1:
        subprocess.run("cp rotated rotated.2; : >rotated", shell=True, env=clean, check=True)
EOF
wc -l rotated rotated.1 rotated.2
