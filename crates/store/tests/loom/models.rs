// What is checked, once with the real orderings and once without.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::AtomicU64 as Cell;
use loom::sync::atomic::Ordering::Relaxed;

/// What is done inside is done by one thread at a time, once for each request, and the answer is the
/// asker's own.
pub fn asking() {
    struct Shared {
        board: board::Board,
        /// Guarded by being inside.
        served: Cell,
    }
    let shared = Arc::new(Shared {
        board: board::Board::new(),
        served: Cell::new(0),
    });
    let ask = |shared: &Shared, who: u64| {
        let serve = |(): &mut (), request: &board::Words| {
            let nth = shared.served.load(Relaxed);
            shared.served.store(nth + 1, Relaxed);
            [request[0] * 10, nth, 0, 0]
        };
        let answer = shared.board.ask([who, 0, 0, 0], || (), || (), serve);
        assert_eq!(answer[0], who * 10, "the answer of another");
        answer[1]
    };
    let other = {
        let shared = shared.clone();
        loom::thread::spawn(move || ask(&shared, 1))
    };
    let mut order = [ask(&shared, 2), other.join().unwrap()];
    order.sort_unstable();
    assert_eq!(order, [0, 1], "not one after the other");
}

/// Two pages of the pool, of two words each, and which of them the overlay names.
struct Pool {
    reuse: reuse::Reuse,
    pages: [[Cell; 2]; 2],
    named: Mutex<usize>,
}

impl Pool {
    fn new() -> Arc<Self> {
        let page = |value| [Cell::new(value), Cell::new(value)];
        Arc::new(Self {
            reuse: reuse::Reuse::new(),
            pages: [page(1), page(2)],
            named: Mutex::new(0),
        })
    }

    fn fill(&self, page: usize, value: u64) {
        self.pages[page].iter().for_each(|word| word.store(value, Relaxed));
    }

    /// Covers the first page by the second.
    fn cover(&self) {
        *self.named.lock().unwrap() = 1;
    }

    /// Copies what the overlay names; `None` when the copy is thrown away.
    fn read(&self) -> Option<()> {
        let epoch = self.reuse.epoch();
        let page = *self.named.lock().unwrap();
        let copy = [0, 1].map(|nth: usize| self.pages[page][nth].load(Relaxed));
        self.reuse.is_still(epoch).then(|| {
            let wanted = page as u64 + 1;
            assert_eq!(copy, [wanted; 2], "torn");
        })
    }
}

fn read_while(write: fn(&Pool)) {
    let pool = Pool::new();
    let writer = {
        let pool = pool.clone();
        loom::thread::spawn(move || write(&pool))
    };
    pool.read();
    writer.join().unwrap();
}

pub fn reading() {
    read_while(|pool| {
        pool.cover();
        if pool.reuse.move_on_gently() {
            pool.fill(0, 3);
        }
    });
}

pub fn reading_while_the_epoch_is_late() {
    read_while(|pool| {
        pool.cover();
        pool.fill(0, 3);
        pool.reuse.move_on();
    });
}

/// Who reads under a pin is not disturbed by what is used again gently.
pub fn pinned() {
    let pool = Pool::new();
    let pin = pool.reuse.pin();
    let writer = {
        let pool = pool.clone();
        loom::thread::spawn(move || {
            pool.cover();
            assert!(!pool.reuse.move_on_gently(), "used again under a pin");
        })
    };
    assert_eq!(pool.read(), Some(()));
    writer.join().unwrap();
    drop(pin);
}
