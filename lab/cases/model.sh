#!/bin/bash
# what:   one file against a model of it in memory: read, write, map, truncate, punch, sync, close and open
# debian: coreutils
# limit:  90

oracle="$LAB_BIN/adit-oracle"
[ -x "$oracle" ] || die "build it first: cargo build --release -p adit-oracle"
for seed in 21 22 23 24 25 26; do
    "$oracle" --mode model --dir "$PWD" --seed $seed --ops 2000 || die "seed $seed"
done
