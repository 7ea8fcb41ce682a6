#!/bin/bash
# what:   fsx: random operations on one file, each read compared with what was written; with mappings and without
# needs:  fsx
# debian: coreutils
# cargo:  fsx
# limit:  90

config=$LAB/programs/fsx.toml
cp "$config" maps.toml
grep -Ev "^(map|invalidate)" maps.toml >calls.toml
echo "mapread = 0" >>calls.toml
echo "mapwrite = 0" >>calls.toml
# In the modes in which each write waits for a disk it takes a hundred times as long.
if [ -n "$LAB_WAITS" ]; then ops=300 seeds=1; else ops=5000 seeds="1 2 3"; fi
for seed in $seeds; do
    for what in maps calls; do
        fsx -q -f $what.toml -N "$ops" -S "$seed" -P "$PWD" "file-$what-$seed" >said 2>&1 || {
            cat said >&2
            die "seed $seed, $what.toml"
        }
        cat said
    done
done
rm said
