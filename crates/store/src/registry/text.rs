//! Text in a fixed buffer, because the registry may be entered from a signal handler, where nothing
//! may allocate.

use core::ffi::CStr;

/// Up to `N - 1` bytes of text, always followed by a zero byte.
///
/// Text that does not fit marks the whole value as overflowed and [`as_c_str`](Self::as_c_str)
/// then gives nothing: a cut path would name another file.
#[derive(Clone, Copy)]
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
    overflowed: bool,
}

impl<const N: usize> Text<N> {
    /// No text.
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
            overflowed: false,
        }
    }

    /// Appends bytes; a zero byte among them counts as an overflow.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> &mut Self {
        let end = self.len + bytes.len();
        if end >= N || bytes.contains(&0) {
            self.overflowed = true;
            return self;
        }
        if let Some(target) = self.bytes.get_mut(self.len..end) {
            target.copy_from_slice(bytes);
            self.len = end;
        }
        self
    }

    /// Appends a decimal number.
    pub(crate) fn push_number(&mut self, mut number: u64) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            if let Some(digit) = digits.get_mut(start) {
                *digit = b'0' + (number % 10) as u8;
            }
            number /= 10;
            if number == 0 || start == 0 {
                break;
            }
        }
        self.push(digits.get(start..).unwrap_or_default())
    }

    /// The text without its terminator.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The text as the kernel wants it, unless it is empty or did not fit.
    pub(crate) fn as_c_str(&self) -> Option<&CStr> {
        if self.overflowed || self.len == 0 {
            return None;
        }
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }
}

/// Parses decimal digits only: no sign, no space, no overflow.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::{Text, number};

    #[test]
    fn numbers_come_back() {
        for value in [0, 1, 9, 10, 12_345, u64::MAX] {
            let mut text = Text::<32>::new();
            text.push_number(value);
            assert_eq!(number(text.as_bytes()), Some(value));
        }
        for bad in [&b""[..], b"-1", b"+1", b"1 ", b"18446744073709551616"] {
            assert_eq!(number(bad), None);
        }
    }

    #[test]
    fn text_that_does_not_fit_is_no_path() {
        let mut text = Text::<4>::new();
        assert!(text.as_c_str().is_none());
        text.push(b"abc");
        assert_eq!(
            text.as_c_str().map(|text| text.to_bytes()),
            Some(&b"abc"[..])
        );
        text.push(b"d");
        assert!(text.as_c_str().is_none());
        let mut text = Text::<8>::new();
        text.push(b"a\0b");
        assert!(text.as_c_str().is_none());
    }
}
