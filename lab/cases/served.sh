#!/bin/bash
# what:   repeated reads and overwrites of warm files must not reach the kernel at all
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
    assert os.pread(fd, 4096, i * 7919 % 250000) != b""
EOF
sha256sum data
