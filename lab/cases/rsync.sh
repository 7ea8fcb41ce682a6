#!/bin/bash
# what:   rsync twice (the second must transfer nothing), changes, --inplace, --append, --sparse
# needs:  rsync
# debian: rsync
# limit:  60

mkdir -p from/a/b
for i in $(seq 1 150); do seq 1 $((i * 11)) >"from/a/file$i"; done
make_data from/big 4000 3
ln -s a/file1 from/link
truncate -s 6M from/a/b/hole
find from -exec touch -h -d '2022-02-02 02:02:02.020202020Z' {} +

transfers() {
    rsync --stats "$@" | awk -F': ' '/regular files transferred|Total transferred file size/ {print $1 ": " $2}'
}
transfers -a from/ to/
echo "second pass"
transfers -a from/ to/
echo "by checksum"
transfers -a --checksum from/ to/

# A change in the middle of the big file, through the delta algorithm on both sides.
echo CHANGED | dd of=from/big bs=1 seek=2000000 conv=notrunc status=none
touch -d '2022-02-03Z' from/big
transfers -a --no-whole-file from/ to/
echo CHANGED AGAIN | dd of=from/big bs=1 seek=1000000 conv=notrunc status=none
touch -d '2022-02-04Z' from/big
transfers -a --no-whole-file --inplace from/ to/
seq 1 20000 >>from/a/file3
touch -d '2022-02-05Z' from/a/file3
transfers -a --append-verify from/ to/
rm from/a/file4 from/a/file5
transfers -a --delete from/ to/
transfers -a --sparse from/ sparse/
transfers -a --link-dest="$PWD/to" from/ linked/
diff -r from to && diff -r from sparse && diff -r from linked && echo "all equal"
sync -f sparse/a/b/hole
test "$(stat -c %b sparse/a/b/hole)" -lt 2048 && echo "still sparse"
