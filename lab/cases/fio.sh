#!/bin/bash
# what:   fio: psync, pvsync, sync, posixaio, libaio, io_uring and mmap engines, verified by crc32c
# needs:  fio
# debian: fio
# limit:  90
# ignore: *.state

run() {
    local engine=$1 pattern=$2
    shift 2
    # Only what must be equal is printed: bytes moved and errors, not times.
    fio --name="$engine-$pattern" --ioengine="$engine" --rw="$pattern" --size=6m --bs=4k --randseed=7 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --fallocate=none --end_fsync=1 \
        --output-format=terse --terse-version=3 "$@" |
        awk -F';' '/^3;/ {print $3, "error", $5, "read KiB", $6, "written KiB", $47}'
}
for engine in psync pvsync pvsync2 sync vsync mmap; do
    run $engine write
    run $engine randwrite
done
for engine in libaio posixaio io_uring; do
    run $engine write --iodepth=8
    run $engine randwrite --iodepth=8
done
# Odd sizes, mixed with reads; two processes on one file, each in its half.
run psync randwrite --bs=512-9000 --bs_unaligned --filename=odd
run psync randrw --verify_backlog=64 --filename=mixed
run psync write --fsync=16 --filename=synced
run psync write --numjobs=2 --offset_increment=3m --size=3m --filename=halves --group_reporting
run psync randwrite --numjobs=2 --thread --offset_increment=3m --size=3m --filename=threads --group_reporting
# Written through one engine, verified through another.
fio --name=cross --filename=cross --ioengine=psync --rw=write --size=4m --bs=4k --verify=crc32c \
    --do_verify=0 --randseed=7 --output=/dev/null
for engine in mmap sync io_uring libaio; do
    fio --name=cross --filename=cross --ioengine=$engine --rw=read --size=4m --bs=4k --verify=crc32c \
        --verify_only --randseed=7 --output=/dev/null && echo "verified by $engine"
done
# The headers that fio writes hold times: the bytes differ by nature, the sizes must not.
stat -c '%n %s' ./* | sort
rm -f ./*
