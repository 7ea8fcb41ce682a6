#!/bin/bash
# what:   LevelDB (fill, overwrite, delete, reopen, verify, kill -9) and RocksDB's db_bench with checksums
# needs:  g++ /usr/include/leveldb/db.h db_bench ldb
# debian: g++ libleveldb-dev rocksdb-tools
# limit:  120
# ignore: level level/* rocks rocks/*

# Where each write waits for a disk, fewer: still more than LevelDB's buffer, so that tables are written and merged.
keys=20000 rows=15000 synced=1500
if [ -n "$LAB_WAITS" ]; then keys=6000 rows=3000 synced=300; fi
g++ -O1 -o "$LAB_SCRATCH/level" "$LAB/programs/level.cc" -lleveldb -lpthread
level="$LAB_SCRATCH/level"
"$level" fill level "$keys"
"$level" verify level "$keys"
"$level" overwrite level "$keys"
"$level" verify level "$keys"

# Killed while it writes with sync: every key it has acknowledged must be there afterwards.
"$level" acknowledge level 100000 >"$LAB_SCRATCH/acknowledged" &
writer=$!
wait_until 20 sh -c "test \$(wc -l <'$LAB_SCRATCH/acknowledged') -gt 200"
kill -9 "$writer"
wait "$writer" 2>/dev/null || true
"$level" check level <"$LAB_SCRATCH/acknowledged"
"$level" verify level "$keys"

# Only the benchmarks' names and what they found: the rest are times.
bench() {
    db_bench --db="$PWD/rocks" --num="$rows" --value_size=200 --seed=7 --threads=1 --compression_type=none \
        --verify_checksum=1 "$@" 2>&1 | tr '\r' '\n' | grep -oE '(^|\.)[a-z]+ +:|\([0-9]+ of [0-9]+ found\)'
}
bench --benchmarks=fillseq,overwrite,compact
bench --benchmarks=readrandom,readseq,verifychecksum --use_existing_db=1
bench --benchmarks=readwhilewriting --use_existing_db=1 --reads=$((rows / 3)) --mmap_read=1 | sed 's/(.*//'
bench --benchmarks=fillrandom --mmap_write=1
bench --benchmarks=verifychecksum --use_existing_db=1 --mmap_read=1
bench --benchmarks=fillsync --num="$synced"
ldb --db="$PWD/rocks" checkconsistency
