#!/bin/bash
# what:   random file operations through libc agree with bare system calls on a twin
# debian: coreutils
# limit:  90

oracle="$LAB_BIN/adit-oracle"
[ -x "$oracle" ] || die "build it first: cargo build --release -p adit-oracle"
for seed in 11 12; do
    for mode in single threads procs; do
        # How much was found mapped differs between the sides, and is not for us to judge.
        "$oracle" --dir "$PWD" --seed $seed --mode $mode --ops 2500 >said 2>&1 || {
            cat said >&2
            die "seed $seed, mode $mode"
        }
        sed 's/, mapped after.*//' said
    done
done
rm said
