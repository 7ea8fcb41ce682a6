#!/bin/bash
# what:   random file operations through libc agree with bare system calls on a twin
# debian: coreutils
# limit:  90

oracle="$LAB_BIN/adit-oracle"
[ -x "$oracle" ] || die "build it first: cargo build --release -p adit-oracle"
# In the modes in which each write waits for a disk, 2500 operations are some hundred thousand waits.
if [ -n "$LAB_WAITS" ]; then ops=100 seeds=11; else ops=2500 seeds="11 12"; fi
for seed in $seeds; do
    for mode in single threads procs; do
        # How much was found mapped differs between the sides, and is not for us to judge.
        "$oracle" --dir "$PWD" --seed $seed --mode $mode --ops "$ops" >said 2>&1 || {
            cat said >&2
            die "seed $seed, mode $mode"
        }
        sed 's/, mapped after.*//' said
    done
done
rm said
