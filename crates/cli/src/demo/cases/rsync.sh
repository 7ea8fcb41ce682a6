# Copies by time and size, by checksum, in place and by appending.
mkdir -p from/sub; for i in $(seq 1 100); do seq 1 $((i * 23)) >"from/sub/f$i"; done
head -c 4000000 /dev/zero | tr '\0' 'r' >from/large
find from -exec touch -d '2024-01-01 UTC' {} +
show() { rsync "$@" | grep -v '^sent\|^total\|^$' || true; }
show -ai from/ to/ | wc -l
show -ain from/ to/
# The same size and another time: only the time tells that it has to be copied.
printf CHANGED | dd of=from/large bs=1 seek=1000000 conv=notrunc status=none
printf CHANGED | dd of=from/sub/f7 bs=1 seek=3 conv=notrunc status=none
show -ain from/ to/ | cut -c 1-11,12-
show -ai --inplace --no-whole-file from/ to/ >/dev/null
cmp from/large to/large && cmp from/sub/f7 to/sub/f7 && echo changes copied
seq 1 100000 >>from/large
show -a --append-verify from/ to/ >/dev/null
show -ainc from/ to/
cmp from/large to/large && echo appended
