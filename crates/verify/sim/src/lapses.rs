//! Keys that expire: the ops of clients on them, and their legal values.
//!
//! The clocks of nodes decide when a value expires. For the judges it is deleted at some time after
//! it was set, or never; and no client may read it long after its time.

use std::collections::BTreeMap;

use quorate_check::{Action, Bytes};
use quorate_commands::{OwnedCall, Reply};
use quorate_machine::Rng;

use crate::collections;
use crate::intent::Intent;
use crate::world::MS;

/// The most ops on one such key: with more, the judges would have too much to try.
const LIFE: u64 = 12;
/// How long after its time a value may be seen, besides the difference of clocks: a stopped process
/// goes on with the time that it had read.
const GRACE: u64 = 1_500 * MS;

/// The prefix of keys whose values expire.
const PREFIX: &str = "ttl:";

/// Milliseconds of a value that outlives every run.
const LONG: u64 = 3_600_000;

/// Values that expire.
pub(crate) struct Lapses {
    /// How far two wall clocks may be apart.
    clocks_apart: u64,
    /// How long a watch of an absent key holds.
    watches_last: u64,
    /// The last time at which each value may be seen.
    seen_until: BTreeMap<Bytes, u64>,
    /// The keys that one client alone sets, by client and name, if no op on them is under way.
    own: BTreeMap<(u64, &'static str), String>,
}

/// Whether values of this key expire.
pub(crate) fn expires(key: &Bytes) -> bool {
    key.0.starts_with(PREFIX.as_bytes()) || collections::expires(key)
}

impl Lapses {
    pub(crate) fn new(clocks_apart: u64, watches_last: u64) -> Self {
        Self { clocks_apart, watches_last, seen_until: BTreeMap::new(), own: BTreeMap::new() }
    }

    /// An intent with a key that expires. `reads` says whether to read such keys, too.
    pub(crate) fn draw(rng: &mut Rng, unique: u64, reads: bool) -> Intent {
        let key = format!("{PREFIX}{}", unique / LIFE);
        let value = format!("v{unique}");
        let bytes = Bytes::from(value.as_str());
        let action = match rng.below(10) {
            0..=3 => return Intent::Lapse { key, value, millis: 1 + rng.below(400) },
            4..=6 if reads => Action::Get,
            7 => Action::SetNx(bytes),
            8 => Action::GetSet(bytes),
            _ => Action::Del,
        };
        Intent::Single { key, action }
    }

    /// A client watches a key that no other client touches, and sets it: one that it always sets
    /// for long, or one that has mostly expired when the client comes again.
    pub(crate) fn draw_own(&mut self, process: u64, unique: u64, rng: &mut Rng) -> Intent {
        let (name, millis) = match rng.chance(1, 2) {
            true => ("kept", LONG),
            false => ("mine", 1 + rng.below(60)),
        };
        // If the last change has an unknown outcome, it may happen yet: the next one takes a new
        // key.
        let key = self.own.remove(&(process, name));
        let key = key.unwrap_or_else(|| format!("{name}:{process}.{unique}"));
        Intent::Own { key, value: format!("v{unique}"), millis }
    }

    /// Whether a watch of such a key, which existed or not, has to hold for so long.
    pub(crate) fn must_hold(&self, existed: bool, millis: u64, span: u64) -> bool {
        if existed { millis == LONG } else { span < self.watches_last }
    }

    /// It was set, or the watch failed.
    pub(crate) fn ended_own(&mut self, process: u64, key: String, millis: u64) {
        let name = if millis == LONG { "kept" } else { "mine" };
        self.own.insert((process, name), key);
    }

    /// A value was set.
    pub(crate) fn set(&mut self, value: &str, millis: u64, now: u64) {
        let until = self.last_seen(millis, now);
        self.seen_until.insert(Bytes::from(value), until);
    }

    /// The last time at which a value may be seen that was set by `now` for `millis`.
    fn last_seen(&self, millis: u64, now: u64) -> u64 {
        now + millis * MS + self.clocks_apart + GRACE
    }

    /// A complaint about the answer to a read that began then.
    pub(crate) fn check(&self, key: &str, reply: &Reply<'_>, began: u64) -> Option<String> {
        let Reply::Bulk(value) = reply else { return None };
        let until = *self.seen_until.get(&Bytes(value.to_vec()))?;
        let late = began.checked_sub(until)?;
        Some(format!("{key} holds a value {} ms after it must have expired", late / MS))
    }
}

/// The command that sets a key for a while.
pub(crate) fn to_call(key: &str, value: &str, millis: u64) -> OwnedCall {
    let millis = millis.to_string();
    let words: [&[u8]; 5] = [b"SET", key.as_bytes(), value.as_bytes(), b"PX", millis.as_bytes()];
    OwnedCall::new(words).expect("clients know the commands")
}
