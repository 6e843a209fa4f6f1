//! Progress: a bar on a terminal, and otherwise a line now and then.

use std::io::IsTerminal;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

use crate::log::say;

/// Where there is no terminal, a line says each time that this part of all is done.
const PERCENT_PER_LINE: u64 = 10;

/// What is done in a moment needs no progress.
const BYTES_MIN: u64 = 1024 * 1024;
const KEYS_MIN: u64 = 10_000;

pub(crate) struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    total: u64,
    /// Percent that the last line said.
    said: u64,
}

impl Progress {
    /// Of so many bytes.
    pub(crate) fn of_bytes(what: &'static str, total: u64, quiet: bool) -> anyhow::Result<Self> {
        let quiet = quiet || total < BYTES_MIN;
        Self::new(
            what,
            total,
            "{percent:>3}% {bar:30} {bytes}/{total_bytes} {msg}, {bytes_per_sec}, {eta} left",
            quiet,
        )
    }

    /// Of about so many keys.
    pub(crate) fn of_keys(what: &'static str, total: u64, quiet: bool) -> anyhow::Result<Self> {
        let quiet = quiet || total < KEYS_MIN;
        Self::new(
            what,
            total,
            "{percent:>3}% {bar:30} {pos}/{len} keys {msg}, {per_sec}, {eta} left",
            quiet,
        )
    }

    /// Whether somebody looks at a bar, so that nothing else need be said.
    pub(crate) fn is_seen(quiet: bool) -> bool {
        !quiet && std::io::stderr().is_terminal()
    }

    /// How many keys that are, beside the bar.
    pub(crate) fn keys(&self, keys: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}, {keys} keys", self.what));
        }
    }

    fn new(what: &'static str, total: u64, template: &str, quiet: bool) -> anyhow::Result<Self> {
        let style = ProgressStyle::with_template(template).context("the template is fixed")?;
        let bar = Self::is_seen(quiet)
            .then(|| ProgressBar::new(total).with_style(style).with_message(what));
        Ok(Self { what, bar, total, said: if quiet { u64::MAX } else { 0 } })
    }

    /// So much is done.
    pub(crate) fn at(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            return bar.set_position(done);
        }
        let percent = (u128::from(done) * 100 / u128::from(self.total.max(1))) as u64;
        let percent = percent - percent % PERCENT_PER_LINE;
        if percent > self.said && percent < 100 {
            self.said = percent;
            say(&format!("{percent}% {}", self.what));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Bytes, for people.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0)),
    }
}
