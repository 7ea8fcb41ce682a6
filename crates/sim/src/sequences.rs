//! Every short sequence of operations: most crash bugs of file systems needed no more than three.

/// All sequences of 1 to `longest` operations out of `operations`, shorter ones first.
///
/// An enumeration of each of them, with a small budget, finds what a single long workload passes by.
///
/// ```
/// let all: Vec<_> = adit_sim::sequences(&["write", "sync"], 2).collect();
/// assert_eq!(all.len(), 2 + 4);
/// assert_eq!(all[2], ["write", "write"]);
/// assert_eq!(all[5], ["sync", "sync"]);
/// ```
pub fn sequences<T: Clone>(operations: &[T], longest: u32) -> impl Iterator<Item = Vec<T>> {
    (1..=longest).flat_map(move |length| {
        let count = operations.len();
        (0..count.pow(length)).map(move |nth| {
            let digit = |place: u32| nth / count.pow(length - 1 - place) % count;
            (0..length)
                .map(|place| operations[digit(place)].clone())
                .collect()
        })
    })
}
