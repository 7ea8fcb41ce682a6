#!/bin/bash
# what:   Berkeley DB (load, dump, verify, in place) and Kyoto Cabinet's own tests of hash and tree files
# needs:  db5.3_load db5.3_dump db5.3_verify kchashtest kctreetest kchashmgr
# debian: db5.3-util kyotocabinet-utils
# limit:  90
# ignore: *.kch *.kct *.kcd *.kcf __db* log.*

seq 1 12000 | awk '{printf "key%06d\nvalue %d %s\n", $1 * 7919 % 12000, $1, substr("abcdefghijklmnopqrstuvwxyz", $1 % 20)}' >records
for kind in btree hash; do
    db5.3_load -T -t $kind -f records $kind.db
    db5.3_verify -q $kind.db && echo "$kind sound"
    db5.3_dump -p $kind.db | grep '^ key' | sort | md5sum
    # Again over what is there: overwrites in place, page by page.
    sed 's/^value/changed/' records | db5.3_load -T -t $kind $kind.db
    db5.3_verify -q $kind.db && echo "$kind sound after overwriting"
    db5.3_dump -p $kind.db | grep -c changed
done
# The file id in a Berkeley DB is random: what a dump says is what counts.
db5.3_dump btree.db | grep -v '^VERSION' | md5sum
rm btree.db hash.db

quiet() {
    "$@" >"$LAB_SCRATCH/said" 2>&1 && echo "$1 $2 passes" || {
        tail -n 20 "$LAB_SCRATCH/said" >&2
        die "$*"
    }
}
quiet kchashtest order -rnd table.kch 8000
quiet kchashtest order -th 3 -tran table.kch 2000
quiet kchashtest wicked -th 2 -it 2 wicked.kch 5000
quiet kchashtest tran -it 2 -hard tran.kch 200
quiet kctreetest order -rnd -etc tree.kct 8000
quiet kctreetest wicked -th 2 -it 2 tree2.kct 4000
quiet kcdirtest order dir.kcd 400
for file in table.kch wicked.kch tran.kch; do
    kchashmgr check "$file" >/dev/null || die "$file is damaged"
done
rm -r ./*.kc*
