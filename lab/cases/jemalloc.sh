#!/bin/bash
# what:   programs with another allocator: LD_PRELOAD already holds libjemalloc before Adit is added
# needs:  /usr/lib/x86_64-linux-gnu/libjemalloc.so.2 python3 sqlite3
# debian: libjemalloc2 python3-minimal sqlite3
# limit:  60

jemalloc=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2
# From outside, as a user has it: the allocator is in the environment, `adit run` comes on top.
wrapped() {
    # shellcheck disable=SC2086
    outside env LD_PRELOAD=$jemalloc $LAB_WRAP "$@"
}
program='
import os, threading
def work(n):
    with open(f"file{n}", "wb", buffering=0) as out:
        for i in range(300):
            out.write(bytes([n + i & 255]) * (i * 37 % 5000))
    with open(f"file{n}", "rb") as back:
        return sum(len(chunk) for chunk in iter(lambda: back.read(997), b""))
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
print(work(9), "jemalloc" in open("/proc/self/maps").read())
pid = os.fork()
if pid == 0:
    open("child", "w").write("x" * 100000)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
'
wrapped /usr/bin/python3 -c "$program"
wrapped sh -c 'seq 1 1000 >numbers; grep -c jemalloc /proc/self/maps >/dev/null && echo preloaded; sort -r numbers >reversed'
wrapped sqlite3 db 'CREATE TABLE t(x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<2000) INSERT INTO t SELECT i FROM n; SELECT sum(x) FROM t; PRAGMA integrity_check;'

# And the other way round: a program that is already under Adit adds the allocator behind it.
LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$jemalloc /usr/bin/python3 -c "$program"
