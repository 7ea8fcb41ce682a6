//! What Adit's modes promise for a power cut, and for the death of processes, as the judge needs it.

/// The mode that a program ran in, or what every mode promises when only processes die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    Posix,
    Sync,
    Atomic,
    Strict,
    /// Processes died, in any mode: what was acknowledged is there, exactly. Of the call that they died in any part
    /// may be there.
    Killed,
    /// The same in mode strict, where also that call is there as a whole or not at all.
    KilledStrict,
}

impl Promise {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 6] = [
        Self::Posix,
        Self::Sync,
        Self::Atomic,
        Self::Strict,
        Self::Killed,
        Self::KilledStrict,
    ];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "posix" => Self::Posix,
            "sync" => Self::Sync,
            "atomic" => Self::Atomic,
            "strict" => Self::Strict,
            "killed" => Self::Killed,
            "killed-strict" => Self::KilledStrict,
            _ => return None,
        })
    }

    /// Whether only processes died. The kernel's memory is still there, and everything in it.
    pub(crate) fn power_stayed(self) -> bool {
        matches!(self, Self::Killed | Self::KilledStrict)
    }

    /// Whether bytes are there for certain when the call that wrote them returns.
    pub(crate) fn calls_are_durable(self) -> bool {
        matches!(self, Self::Sync | Self::Strict) || self.power_stayed()
    }

    /// Whether a call's bytes are there as a whole or not at all.
    pub(crate) fn calls_are_atomic(self) -> bool {
        matches!(self, Self::Strict | Self::KilledStrict)
    }

    /// Whether names are there for certain when the call that changed them returns.
    pub(crate) fn names_are_durable(self) -> bool {
        matches!(self, Self::Sync | Self::Strict) || self.power_stayed()
    }
}
