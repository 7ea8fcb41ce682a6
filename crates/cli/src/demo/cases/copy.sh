# What scripts do to files all day: copy, cut, patch, sort, compare.
seq 1 400000 >numbers
cp numbers a; cp --sparse=always numbers b; cp --reflink=never numbers c; cat numbers >d
dd if=numbers of=e bs=4096 status=none; dd if=numbers of=e bs=1000 seek=7 skip=3 count=900 conv=notrunc status=none
truncate -s 100000 c; truncate -s 300000 c; truncate -s 8M holes; cp --sparse=always holes holes2
for f in a b d; do cmp numbers "$f" && echo "$f same"; done
sha256sum a b c d e holes2
sort -r numbers >sorted; sort -n -o sorted sorted; cmp numbers sorted && echo sorted
split -b 300000 numbers part.; cat part.* | cmp - numbers && echo joined
tail -n 2 numbers; tail -c 10 numbers; head -c 20 numbers | tail -n 1
sed -i 's/^1\(.*\)/one\1/' a; grep -c one a; tac b | head -1; wc numbers a
mv d moved; ln moved linked; rm moved; cmp linked numbers && echo linked
gzip -nk numbers; gunzip -c numbers.gz | cmp - numbers && echo unpacked
awk '{ s += $1 } END { print s }' numbers; tee t1 t2 <numbers | tail -1
install -m 640 numbers installed; stat -c '%a %s' installed; patch --version >/dev/null 2>&1 || true
diff numbers a | head -3 || true
