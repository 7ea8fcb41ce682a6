//! Memory of a program: pieces of it, one after the other, that are only ever addresses here.
//!
//! A program's buffer may be inaccessible, and its other threads may change it at any time. So no
//! reference to it is ever formed, and it is copied with guards.

/// An address in a program's memory.
pub(super) trait Address: Copy {
    /// The address `by` bytes further on.
    fn skip(self, by: usize) -> Self;
}

impl Address for *const u8 {
    fn skip(self, by: usize) -> Self {
        self.wrapping_add(by)
    }
}

impl Address for *mut u8 {
    fn skip(self, by: usize) -> Self {
        self.wrapping_add(by)
    }
}

/// All bytes of some buffers; `None` when no file could hold them.
pub(super) fn total<A>(buffers: &[(A, usize)]) -> Option<usize> {
    buffers
        .iter()
        .try_fold(0_usize, |sum, (_, len)| sum.checked_add(*len))
        .filter(|sum| *sum <= isize::MAX as usize)
}

/// How far some buffers are used.
pub(super) struct Cursor<'a, A> {
    buffers: &'a [(A, usize)],
    used: usize,
}

impl<'a, A: Address> Cursor<'a, A> {
    pub(super) fn new(buffers: &'a [(A, usize)]) -> Self {
        Self { buffers, used: 0 }
    }

    /// The next bytes that lie together, at most `most` of them; no bytes when all are used.
    pub(super) fn next(&mut self, most: usize) -> Option<(A, usize)> {
        while let Some((&(start, len), rest)) = self.buffers.split_first() {
            let left = len - self.used;
            if left == 0 {
                self.buffers = rest;
                self.used = 0;
                continue;
            }
            let at = start.skip(self.used);
            let taken = left.min(most);
            self.used += taken;
            return Some((at, taken));
        }
        None
    }

    /// Calls `with` for the next `len` bytes, buffer by buffer: how far they are, where, how many.
    #[inline(always)]
    pub(super) fn each<E>(
        &mut self,
        len: usize,
        mut with: impl FnMut(usize, A, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len {
            let Some((at, part)) = self.next(len - done) else {
                break;
            };
            with(done, at, part)?;
            done += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_one_row_of_bytes() {
        let at = |n: usize| std::ptr::without_provenance::<u8>(n);
        let buffers = [(at(100), 3), (at(7), 0), (at(200), 5)];
        assert_eq!(total(&buffers), Some(8));
        let mut cursor = Cursor::new(&buffers);
        let mut seen = Vec::new();
        let mut note = |done, at: *const u8, len| {
            seen.push((done, at.addr(), len));
            Ok::<(), ()>(())
        };
        cursor.each(4, &mut note).unwrap();
        cursor.each(9, &mut note).unwrap();
        assert_eq!(seen, [(0, 100, 3), (3, 200, 1), (0, 201, 4)]);
        assert_eq!(total(&[((), usize::MAX), ((), 1)]), None);
    }
}
