#!/bin/bash
# what:   LMDB: pwrite beside reads of a shared mapping, and stores to it (MDB_WRITEMAP); three writers, readers in and outside, mdb_copy, kill -9
# needs:  /usr/bin/python3 /usr/lib/python3/dist-packages/lmdb mdb_copy mdb_dump mdb_load mdb_stat
# debian: python3-minimal python3-lmdb lmdb-utils
# limit:  120
# ignore: stored-* stored-*/* *.log

cat >"$LAB_SCRATCH/store.py" <<'PYTHON'
import hashlib, lmdb, sys, time

what, path, flags = sys.argv[1:4]
env = lmdb.open(path, map_size=256 << 20, max_dbs=2, writemap="w" in flags, sync="n" not in flags)
main = env.open_db(b"main")


def value(key):
    return hashlib.sha256(key).digest() * (1 + key[-1] * 7 % 90)


if what == "fill":
    who, count = int(sys.argv[4]), int(sys.argv[5])
    for nth in range(count):
        with env.begin(write=True, db=main) as step:
            step.put(b"counter", b"%d" % (int(step.get(b"counter", b"0")) + 1))
            key = b"%d-%06d" % (who, nth)
            step.put(key, value(key))
            if nth % 7 == 3:
                step.delete(b"%d-%06d" % (who, nth - 2))
        print(who, nth, flush=True)
elif what == "read":
    # Every snapshot is whole, and none is much older than the one before: by one commit LMDB goes back also plainly, where
    # a reader that is about to begin is overtaken.
    last, until = 0, time.monotonic() + float(sys.argv[4])
    while True:
        with env.begin(db=main) as look:
            counter = int(look.get(b"counter", b"0"))
            assert counter >= last - 1, (counter, last)
            last = max(counter, last)
            found = 0
            for key, bytes_found in look.cursor():
                if key != b"counter":
                    assert bytes_found == value(key), key
                    found += 1
            assert found <= counter
        if time.monotonic() > until:
            break
elif what == "check":
    with env.begin(db=main) as look:
        for line in sys.stdin:
            who, nth = map(int, line.split())
            key = b"%d-%06d" % (who, nth)
            # Of seven keys one is deleted again.
            assert nth % 7 == 1 or look.get(key) == value(key), key
PYTHON
# Not a function: what is killed must be the program, not a shell around it.
store=(/usr/bin/python3 "$LAB_SCRATCH/store.py")
# Pages differ from run to run, as writers take turns as they come; what is in them does not.
dump() { "$@" | sed '/^mapaddr/d; /^mapsize/d; /^maxreaders/d'; }

count=150
if [ -n "$LAB_WAITS" ]; then count=40; fi
# As it is by itself, with MDB_WRITEMAP, with MDB_NOSYNC.
for flags in - w n; do
    stored=stored-$flags
    mkdir "$stored"
    jobs=()
    for who in 1 2 3; do
        "${store[@]}" fill "$stored" "$flags" $who $count >>filled.log &
        jobs+=($!)
    done
    "${store[@]}" read "$stored" "$flags" 0.7 &
    jobs+=($!)
    outside "${store[@]}" read "$stored" "$flags" 0.7 &
    jobs+=($!)
    for job in "${jobs[@]}"; do wait "$job" || die "$stored: a process failed"; done
    dump mdb_dump -s main "$stored" >"dump$flags"
    dump outside mdb_dump -s main "$stored" | cmp - "dump$flags"
    sha256sum "dump$flags"

    # Copied while it is written to, and copied once more, compact.
    "${store[@]}" fill "$stored" "$flags" 4 $count >>filled.log &
    writer=$!
    mkdir "$stored-copy" "$stored-compact" "$stored-loaded"
    mdb_copy "$stored" "$stored-copy"
    "${store[@]}" read "$stored-copy" - 0
    wait "$writer"
    mdb_copy -c "$stored" "$stored-compact"
    dump mdb_dump -s main "$stored" >whole
    dump outside mdb_dump -s main "$stored-compact" | cmp - whole && echo "the compact copy is the same"
    mdb_dump -s main "$stored" | mdb_load -s main "$stored-loaded" 2>/dev/null
    dump outside mdb_dump -s main "$stored-loaded" | cmp - whole && echo "loaded it is the same"
    mdb_stat -s main "$stored" | grep Entries

    # Killed while two write: what was acknowledged is there for everybody. (MDB_NOSYNC asks for less only of a machine.)
    # Those of the last kill are not to be taken for these.
    rm -f acknowledged-?.log
    jobs=()
    for who in 5 6; do
        "${store[@]}" fill "$stored" "$flags" $who 20000 >"acknowledged-$who.log" &
        jobs+=($!)
    done
    wait_until 40 sh -c "test \$(cat acknowledged-?.log | wc -l) -gt $count"
    kill -9 "${jobs[@]}"
    wait "${jobs[@]}" 2>/dev/null || true
    cat acknowledged-?.log | grep -xE '[56] [0-9]+' | outside "${store[@]}" check "$stored" "$flags"
    "${store[@]}" fill "$stored" "$flags" 7 20 >>filled.log
    "${store[@]}" read "$stored" "$flags" 0
    rm -r "$stored" "$stored-"* whole
done
