#!/bin/bash
# what:   cp with reflink, sparse and attributes; dd, split, sort in place, sed -i, install, mv, truncate
# debian: coreutils sed gawk
# limit:  60

make_data data 2500 4
cp --reflink=auto data clone
cp --reflink=never data copy
cp --sparse=always data sparse-copy
cmp data clone && cmp data copy && cmp data sparse-copy && echo "copies equal"
# A store to one side of a clone leaves the other alone.
echo overwritten | dd of=clone bs=1 seek=70000 conv=notrunc status=none
cmp data copy && echo "the original kept its bytes"

truncate -s 16M holes
printf 'islands' | dd of=holes bs=1 seek=5000001 conv=notrunc status=none
printf 'more' | dd of=holes bs=1 seek=9999999 conv=notrunc status=none
cp --sparse=always holes holes.always
cp --sparse=never holes holes.never
cp holes holes.auto
cmp holes holes.always && cmp holes holes.never && cmp holes holes.auto && echo "holes read as zeros"
sync -f holes.always
test "$(stat -c %b holes.always)" -lt 1024 && echo "holes kept"
test "$(stat -c %b holes.never)" -ge 32768 && echo "holes filled"
rm holes.never

mkdir tree
for i in $(seq 1 60); do seq 1 $((i * 7)) >"tree/$i"; done
touch -d '2019-09-09 09:09:09.987654321Z' tree/*
cp -a tree tree.a
cp -ru tree/. tree.a
mv tree.a/5 tree.a/five
install -m 0640 data installed

dd if=data of=dd.part bs=4096 skip=3 count=11 status=none
dd if=data of=dd.seek bs=1000 seek=7 count=5 status=none
dd if=/dev/zero of=dd.seek bs=10 seek=100 count=3 conv=notrunc status=none
dd if=data of=dd.append bs=777 count=10 oflag=append conv=notrunc status=none
dd if=data of=dd.append bs=777 count=10 oflag=append conv=notrunc,fsync status=none
dd if=data of=dd.sync bs=5000 count=20 oflag=sync status=none
dd if=data of=dd.ibs ibs=333 obs=1111 count=50 status=none
# Direct and buffered calls on one file. Where O_DIRECT is refused it is refused on both sides.
dd if=data of=dd.direct bs=4096 count=64 oflag=direct status=none 2>/dev/null || echo "no O_DIRECT"
dd if=data of=dd.direct bs=1000 count=3 seek=9 conv=notrunc status=none
dd if=dd.direct bs=4096 count=8 iflag=direct status=none 2>/dev/null | md5sum
dd if=data bs=64k 2>/dev/null | dd of=dd.pipe bs=7k iflag=fullblock status=none

split -b 300000 data piece.
cat piece.* | cmp - data && echo "pieces join"
seq 5000 -1 1 >numbers
sort -n -o numbers numbers
head -n 3 numbers
sort -R --random-source=data numbers | sort -n | cmp - numbers && echo "sorted again"
sed -i 's/^1/one/;w sed.extra' numbers
sed -i.bak '1,100d' numbers
awk '{print > ("awk." (NR % 3))} END {print NR}' numbers
tee tee.a tee.b <numbers | tail -n 2
tac numbers | tac | cmp - numbers && echo "tac twice"
truncate -s 100 tee.a
truncate -s +50 tee.a
shuf --random-source=data -n 100 numbers >shuffled
comm -12 <(sort shuffled) <(sort numbers) | wc -l
od -A d -t x1 data | tail -n 2
md5sum data clone | md5sum
cat data data >joined
truncate -s 3000000 joined
fallocate -l 200000 reserved
fallocate -n -l 400000 reserved
fallocate -p -o 4096 -l 8192 joined
stat -c %s reserved joined
