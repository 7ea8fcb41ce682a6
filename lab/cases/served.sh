#!/bin/bash
# what:   repeated reads of a warm file must not reach the kernel
# needs:  python3
# debian: python3-minimal
# limit:  30
# serves: 10

# What keeps the comparison honest: if Adit served nothing, every other case would pass as well.
/usr/bin/python3 - <<'EOF'
import os
fd = os.open("data", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, bytes(range(256)) * 1024)
for i in range(40000):
    assert len(os.pread(fd, 4096, i * 7919 % 250000)) == 4096
for i in range(40000):
    os.lseek(fd, i * 6 % 250000, os.SEEK_SET)
    assert len(os.read(fd, 1000)) == 1000
EOF
sha256sum data
