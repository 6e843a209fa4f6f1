//! The events of a run, as a digest always and as lines on request.

use std::fmt;

/// The record of a run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    keep: bool,
    digest: u64,
    lines: Vec<String>,
}

impl Trace {
    pub(crate) fn new(keep: bool) -> Self {
        Self { keep, digest: 0xcbf2_9ce4_8422_2325, lines: Vec::new() }
    }

    /// Adds an event. The digest takes in the words of the event; the line is built only if kept.
    pub(crate) fn event(&mut self, words: &[u64], line: impl FnOnce() -> String) {
        for word in words {
            for byte in word.to_le_bytes() {
                self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        if self.keep {
            self.lines.push(line());
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines
    }
}

/// A virtual time as seconds with microseconds.
pub(crate) struct At(pub(crate) u64);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}.{:06}", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}
