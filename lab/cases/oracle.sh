#!/bin/bash
# what:   random file operations through libc agree with bare system calls on a twin
# debian: coreutils
# limit:  90

oracle="$LAB_BIN/adit-oracle"
[ -x "$oracle" ] || die "build it first: cargo build --release -p adit-oracle"
# In the modes in which each write waits for a disk, 2500 operations are some hundred thousand waits.
if [ -n "$LAB_WAITS" ]; then ops=100 seeds=11; else ops=2500 seeds="11 12"; fi
# Kernel against kernel is a test of its own (kernel_against_kernel): beside Adit only what must be said.
declare -A agrees=([single]="$ops operations" [threads]="9 scenarios" [procs]="15 scenarios")
for seed in $seeds; do
    for mode in single threads procs; do
        if [ "$LAB_OTHER" = adit ]; then
            echo "seed $seed: ${agrees[$mode]} agree"
            continue
        fi
        # How much was found mapped differs between the sides, and is not for us to judge.
        "$oracle" --dir "$PWD" --seed $seed --mode $mode --ops "$ops" >said 2>&1 || {
            cat said >&2
            die "seed $seed, mode $mode"
        }
        sed 's/, mapped after.*//' said
    done
done
rm -f said
