#!/bin/bash
# what:   tar create, list, append, extract, compare; sparse files; compressed; over a pipe
# needs:  tar gzip xz
# debian: tar gzip xz-utils
# limit:  60

mkdir -p tree/deep/er
for i in $(seq 1 200); do
    head -c $((i * 131)) /dev/zero | tr '\0' "$(printf '\\%03o' $((65 + i % 26)))" >"tree/deep/file$i"
done
make_data tree/random 3000 2
ln -s ../random tree/deep/link
ln tree/random tree/deep/er/hard
mkfifo tree/fifo
chmod 4711 tree/deep/file7
chmod 0 tree/deep/file8
truncate -s 24M tree/sparse
echo middle | dd of=tree/sparse bs=1 seek=12000000 conv=notrunc status=none
find tree -exec touch -h -d '2021-03-04 05:06:07.123456789Z' {} +

tar --sort=name -cf all.tar tree
tar -tvf all.tar | awk '{print $1, $3, $6, $7, $8}' | sha256sum
mkdir out piped packed
tar -xpf all.tar -C out
tar -df all.tar && echo "archive equals the tree"
tar -C tree --sort=name -cf - . | tar -C piped -xpf -
tar --sort=name -Scf sparse.tar tree/sparse
tar -C packed -xSpf sparse.tar
tar -rf all.tar tree/random --transform 's/random/again/'
tar -tf all.tar | tail -n 1
tar --sort=name -czf all.tar.gz tree/deep
gzip -t all.tar.gz && gunzip -c all.tar.gz | tar -tf - | wc -l
tar --sort=name -cJf all.tar.xz tree/deep
xz -t all.tar.xz
tar --delete -f all.tar tree/deep/file9
tar -tf all.tar | wc -l

sync -f packed/tree/sparse
cmp packed/tree/sparse tree/sparse && echo "sparse contents equal"
# 24 MB with one block of text in it: a copy that filled the holes would be caught here.
test "$(stat -c %b packed/tree/sparse)" -lt 4096 && echo "still sparse"
