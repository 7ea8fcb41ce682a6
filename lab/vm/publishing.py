"""Looks from outside whether somebody in the machine is folding staged bytes into a file: so cuts can be aimed there."""

import os
import struct
import time

MAGIC = b"ADITPOOL"
PAGE = 4096
# The superblock up to its geometry, as docs/format.md has it.
SUPERBLOCK = struct.Struct("<8sIIQQ16s16sIIIII")
SLOTS, SLOT = 4 * PAGE, 64
# Entries of the table of files, and in each the word that names who publishes the file.
ENTRY, PUBLISHER = 128, 120
BLOCK = 1 << 20


class Watch:
    """The pools in the files behind some NVDIMMs."""

    def __init__(self, images):
        self.files = {place: open(image, "rb", buffering=0) for place, image in images.items()}
        # Where the table of files of each pool lies: (offset, bytes).
        self.tables = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in self.files.values():
            file.close()

    def find(self):
        """Looks for pools where none was found yet."""
        for place, file in self.files.items():
            if place not in self.tables and (table := find_table(file.fileno())) is not None:
                self.tables[place] = table
        return self.tables

    def publishing(self):
        """Where somebody publishes now."""
        return {place for place, table in self.tables.items() if self.claimed(place, table)}

    def in_copies(self, images):
        """Whether somebody publishes in copies of the same files."""
        with Watch(images) as copies:
            copies.tables = {place: self.tables[place] for place in images if place in self.tables}
            return bool(copies.publishing())

    def claimed(self, place, table):
        offset, size = table
        entries = os.pread(self.files[place].fileno(), size, offset)
        return any(entries[PUBLISHER::ENTRY]) or any(entries[PUBLISHER + 1::ENTRY])

    def wait(self, limit):
        """Waits until somebody begins to publish."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if len(self.tables) < len(self.files):
                self.find()
            if self.publishing():
                return
            time.sleep(0.0004)


def find_table(fd):
    """The first pool of a sparse file; nothing is read where nothing was written."""
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return None
        end = os.lseek(fd, at, os.SEEK_HOLE)
        while at < end:
            block = os.pread(fd, min(BLOCK, end - at), at)
            for page in range(0, len(block), PAGE):
                if block.startswith(MAGIC, page) and len(block) - page >= SUPERBLOCK.size:
                    words = SUPERBLOCK.unpack_from(block, page)
                    # The second copy of the superblock lies behind the first one.
                    return at + page + table_offset(*words[9:11]), words[11] * ENTRY
            at += len(block)
    return None


def table_offset(max_chunks, slots):
    def whole(size):
        return -(-size // PAGE) * PAGE

    return SLOTS + whole(slots * SLOT) + whole(max_chunks * 8)
