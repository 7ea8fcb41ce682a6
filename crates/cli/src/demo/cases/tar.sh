# Archives: create, append, list, extract, compressed and plain.
mkdir -p tree/a/b; for i in $(seq 1 150); do seq 1 $((i * 17)) >"tree/a/f$i"; done
head -c 5000000 /dev/zero | tr '\0' 'q' >tree/a/b/large
ln -s a/f1 tree/link; ln tree/a/f2 tree/hard
truncate -s 8M tree/sparse; printf end | dd of=tree/sparse bs=1 seek=8000000 conv=notrunc status=none
find tree -exec touch -h -d '2024-01-01 UTC' {} +
options='--sort=name --owner=0 --group=0 --numeric-owner --format=gnu'
tar $options -cf plain.tar tree
echo more >more; touch -d '2024-01-01 UTC' more; tar $options -rf plain.tar more
tar $options -Scf sparse.tar tree/sparse
tar $options -cf - tree | gzip -n >tree.tar.gz
tar -tf plain.tar | wc -l
mkdir out out2; tar -xf plain.tar -C out; tar -xzf tree.tar.gz -C out2; tar -xf sparse.tar -C out2
diff -r tree out/tree && diff -r tree out2/tree && echo same
tar --compare -f plain.tar && echo compared
