//! Media and base files that change one thing: the rest they hand on to the simulated one they have.

/// Of [`Medium`](adit_pmem::Medium), the methods that are handed on to a field.
macro_rules! medium_of {
    ($to:tt: $($method:ident)+) => {
        $(medium_of!(@ $to $method);)+
    };
    (@ $to:tt size) => {
        fn size(&self) -> u64 {
            self.$to.size()
        }
    };
    (@ $to:tt load) => {
        fn load(&self, offset: u64) -> Result<u64, adit_pmem::OutOfRange> {
            self.$to.load(offset)
        }
    };
    (@ $to:tt store) => {
        fn store(&self, offset: u64, value: u64) -> Result<(), adit_pmem::OutOfRange> {
            self.$to.store(offset, value)
        }
    };
    (@ $to:tt compare_exchange) => {
        fn compare_exchange(
            &self,
            at: u64,
            old: u64,
            new: u64,
        ) -> Result<Result<u64, u64>, adit_pmem::OutOfRange> {
            self.$to.compare_exchange(at, old, new)
        }
    };
    (@ $to:tt read) => {
        fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), adit_pmem::OutOfRange> {
            self.$to.read(offset, into)
        }
    };
    (@ $to:tt write_streaming) => {
        fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), adit_pmem::OutOfRange> {
            self.$to.write_streaming(offset, from)
        }
    };
    (@ $to:tt flush) => {
        fn flush(&self, offset: u64, len: u64) -> Result<(), adit_pmem::OutOfRange> {
            self.$to.flush(offset, len)
        }
    };
    (@ $to:tt fence) => {
        fn fence(&self) {
            self.$to.fence();
        }
    };
    (@ $to:tt order) => {
        fn order(&self) {
            self.$to.order();
        }
    };
    (@ $to:tt fence_is_slow) => {
        fn fence_is_slow(&self) -> bool {
            self.$to.fence_is_slow()
        }
    };
}

/// Of [`BaseFile`](adit_pmem::BaseFile), the methods that are handed on to a field. Nothing is exchanged.
macro_rules! base_of {
    ($to:tt: $($method:ident)+) => {
        $(base_of!(@ $to $method);)+

        fn set_size(&self, size: u64) -> Result<(), Errno> {
            self.$to.set_size(size)
        }
        fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno> {
            self.$to.reserve(offset, len)
        }
        fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
            self.$to.punch(offset, len)
        }
        fn clone_range(&self, at: u64, from: &Self, from_at: u64, len: u64) -> Result<(), Errno> {
            self.$to.clone_range(at, &from.$to, from_at, len)
        }
        fn exchange_range(&self, _: u64, _: &Self, _: u64, _: u64) -> Result<(), Errno> {
            Err(Errno::OPNOTSUPP)
        }
    };
    (@ $to:tt size) => {
        fn size(&self) -> Result<u64, Errno> {
            self.$to.size()
        }
    };
    (@ $to:tt read_at) => {
        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
            self.$to.read_at(offset, into)
        }
    };
    (@ $to:tt write_at) => {
        fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
            self.$to.write_at(offset, from)
        }
    };
    (@ $to:tt sync) => {
        fn sync(&self) -> Result<(), Errno> {
            self.$to.sync()
        }
    };
}

/// Whatever medium a test has. The engine is compiled once for all of them, which is most of what building the tests takes.
pub(super) struct AnyMedium(pub(super) Box<dyn adit_pmem::Medium>);

impl adit_pmem::Medium for AnyMedium {
    medium_of!(0: size load store compare_exchange read write_streaming flush fence order fence_is_slow);
}
