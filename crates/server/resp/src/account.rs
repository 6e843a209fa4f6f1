//! What clients hold, in one account for each node: query buffers, commands in progress, queues of
//! `MULTI`, replies; and the buffers of guests, which speak to the node without its front ends.
//!
//! Each lane keeps its part in a counter that it alone writes. The sum is computed
//! when it is needed: a lane does so when its own part has grown by [`LOOK_BYTES`], and about once a second. Above
//! `maxmemory-clients` it picks the clients that hold most, on whatever lane, as `CLIENT KILL` does
//! that names them. So no command takes a lock, and the sum exceeds the limit by no more than what
//! one turn of each lane adds.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::connection::{Connection, ConnectionId};
use crate::frontend::{Core, Frontend};
use crate::shared::{ClientFacts, Shared, add, lock};

/// Bytes by which a lane's part grows before the lane adds up all parts.
const LOOK_BYTES: u64 = 64 * 1024;
/// The bit of a [`Share`] that says that the others are a percentage.
const PERCENT: u64 = 1 << 63;

/// A number of bytes, or a percentage of `maxmemory`; none of either is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// So many bytes.
    Bytes(u64),
    /// A part of `maxmemory`, and no limit without one.
    Percent(u8),
}

impl Share {
    /// A number that [`Share::from_bits`] knows again.
    pub const fn to_bits(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => PERCENT | percent as u64,
        }
    }

    /// What [`Share::to_bits`] gave.
    pub const fn from_bits(bits: u64) -> Self {
        if bits & PERCENT == 0 { Self::Bytes(bits) } else { Self::Percent(bits as u8) }
    }

    /// The number of bytes, 0 for no limit.
    fn of(self, max_memory: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => max_memory / 100 * u64::from(percent),
        }
    }
}

/// What one client or guest is in the account. Its own lane writes the first number.
#[derive(Debug, Default)]
pub struct Holding {
    bytes: AtomicU64,
    /// What it held when it was chosen to be disconnected for that; [`GONE`] once it is.
    leaving: AtomicU64,
}

/// Who is disconnected can't be chosen any more.
const GONE: u64 = u64::MAX;

impl Holding {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// Whom the account may disconnect.
enum Holder {
    Client(Arc<ClientFacts>),
    Guest(Arc<Holding>),
}

impl Holder {
    fn holding(&self) -> &Holding {
        match self {
            Self::Client(facts) => &facts.holding,
            Self::Guest(guest) => guest,
        }
    }
}

impl Frontend {
    /// A guest has come to this lane.
    pub fn guest_came(&self) -> Arc<Holding> {
        let guest = Arc::new(Holding::default());
        lock(&self.core.shared.guests).push(Arc::clone(&guest));
        guest
    }

    /// A guest of this lane holds so many bytes. Whether it may stay.
    pub fn guest_holds(&mut self, guest: &Holding, bytes: u64) -> bool {
        self.core.charge(bytes.wrapping_sub(guest.bytes.swap(bytes, Relaxed)));
        self.core.watch_account();
        guest.leaving.load(Relaxed) == 0
    }

    /// A guest is gone.
    pub fn guest_left(&mut self, guest: &Arc<Holding>) {
        self.core.charge(guest.bytes().wrapping_neg());
        self.core.shared.has_left(guest);
        lock(&self.core.shared.guests).retain(|other| !Arc::ptr_eq(other, guest));
    }
}

impl Core {
    /// Corrects the lane's part after a connection has changed.
    pub(crate) fn recount(&self, connection: &mut Connection) {
        let bytes = connection.bytes() as u64;
        let before = std::mem::replace(&mut connection.charged, bytes);
        let held = bytes + connection.in_flight_bytes as u64;
        connection.facts.holding.bytes.store(held, Relaxed);
        if bytes != before {
            self.charge(bytes.wrapping_sub(before));
        }
    }

    /// Adds to the lane's part; a negative number as its complement.
    pub(crate) fn charge(&self, bytes: u64) {
        add(&self.stats.held_bytes, bytes);
    }

    /// Looks at the whole account if this lane's part has grown since it did so last.
    #[inline]
    pub(crate) fn watch_account(&mut self) {
        let held = self.stats.held_bytes.load(Relaxed);
        if held > self.looked_at.saturating_add(LOOK_BYTES) {
            self.enforce_memory_limit();
        } else {
            self.looked_at = self.looked_at.min(held);
        }
    }

    /// Disconnects the clients that hold most if all hold too much together.
    pub(crate) fn enforce_memory_limit(&mut self) {
        self.looked_at = self.stats.held_bytes.load(Relaxed);
        let limit = self.shared.clients_bytes_max();
        if limit == 0 {
            return;
        }
        let excess = self.shared.clients_bytes().saturating_sub(limit);
        if excess > 0 {
            add(&self.stats.evicted, self.shared.evict(excess));
            self.named_others = true;
        }
    }
}

impl Frontend {
    /// Adds up anew what its connections hold, and the ops in progress: for tests, without guests.
    ///
    /// # Panics
    /// If the account says anything else.
    pub fn check_invariants(&self) {
        let mut held = 0;
        for (slot, connection) in self.connections.iter() {
            let own = |id: ConnectionId| id.0 == slot;
            let pending = self.core.pending.iter().filter(|(_, op)| own(op.connection));
            let in_flight: usize = pending.map(|(_, op)| op.bytes).sum();
            assert_eq!(connection.in_flight_bytes, in_flight);
            assert_eq!(connection.charged, connection.bytes() as u64);
            assert_eq!(connection.facts.holding.bytes(), connection.charged + in_flight as u64);
            held += connection.charged;
        }
        held += self.core.pending.iter().map(|(_, op)| op.bytes as u64).sum::<u64>();
        assert_eq!(self.stats().held_bytes.load(Relaxed), held, "the account is the sum");
    }
}

impl Shared {
    /// Bytes that clients hold together, those aside that are about to be disconnected for it.
    pub fn clients_bytes(&self) -> u64 {
        let held: u64 = lock(&self.lanes).iter().map(|lane| lane.held_bytes.load(Relaxed)).sum();
        held.saturating_sub(self.leaving_bytes())
    }

    /// Bytes of clients that are about to be disconnected because all hold too much.
    pub fn leaving_bytes(&self) -> u64 {
        self.leaving_bytes.load(Relaxed)
    }

    /// `maxmemory-clients` in bytes, 0 for no limit.
    pub fn clients_bytes_max(&self) -> u64 {
        let settings = &self.settings;
        let share = Share::from_bits(settings.max_memory_clients.load(Relaxed));
        share.of(settings.max_memory.load(Relaxed))
    }

    /// Disconnects clients that hold so much together, the largest first. Returns how many.
    fn evict(&self, excess: u64) -> u64 {
        let clients = self.clients().into_iter().filter(|facts| !facts.no_evict.load(Relaxed));
        let guests = lock(&self.guests).clone();
        let holders = clients.map(Holder::Client).chain(guests.into_iter().map(Holder::Guest));
        // Other lanes go on writing these numbers.
        let mut holders: Vec<_> =
            holders.map(|holder| (holder.holding().bytes(), holder)).collect();
        holders.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let (mut freed, mut count) = (0, 0);
        for (bytes, holder) in holders {
            if freed >= excess {
                break;
            }
            if self.leaves(holder.holding(), bytes) {
                if let Holder::Client(facts) = &holder {
                    self.kill_client(facts);
                }
                freed += bytes;
                count += 1;
            }
        }
        count
    }

    /// Chooses a client or guest to be disconnected, unless another lane has, or it is gone.
    fn leaves(&self, holding: &Holding, bytes: u64) -> bool {
        self.leaving_bytes.fetch_add(bytes, Relaxed);
        let chosen = holding.leaving.compare_exchange(0, bytes, Relaxed, Relaxed).is_ok();
        if !chosen {
            self.leaving_bytes.fetch_sub(bytes, Relaxed);
        }
        chosen
    }

    /// What a client or guest held is no longer part of any lane's.
    pub(crate) fn has_left(&self, holding: &Holding) {
        self.leaving_bytes.fetch_sub(holding.leaving.swap(GONE, Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[test]
    fn a_guest_that_is_gone_is_not_chosen_by_a_lane_that_saw_it_a_moment_ago() {
        let shared = Shared::new(Settings::default(), None);
        let mut frontend = Frontend::new(Arc::clone(&shared));
        let guest = frontend.guest_came();
        frontend.guest_left(&guest);
        assert!(!shared.leaves(&guest, 5));
        assert_eq!(shared.leaving_bytes(), 0);
    }

    #[test]
    fn a_percentage_is_one_of_maxmemory() {
        let shared = Shared::new(Settings::default(), None);
        assert_eq!(shared.clients_bytes_max(), 0);
        let set =
            |name: &str, value: &str| shared.config_set(&[(name.as_bytes(), value.as_bytes())]);
        set("maxmemory-clients", "5%").unwrap();
        assert_eq!(shared.clients_bytes_max(), 0, "there is no maxmemory");
        set("maxmemory", "200mb").unwrap();
        assert_eq!(shared.clients_bytes_max(), 10 << 20);
        assert_eq!(shared.config_get(&[b"maxmemory-clients"])[0].1, "5%");
        set("maxmemory-clients", "1gb").unwrap();
        assert_eq!(shared.clients_bytes_max(), 1 << 30);
        assert_eq!(shared.config_get(&[b"maxmemory-clients"])[0].1, "1073741824");
        for wrong in ["101%", "-1%", "%", "x", "-1"] {
            let error = set("maxmemory-clients", wrong).unwrap_err();
            assert!(error.ends_with("argument must be a memory or percent value"), "{error}");
        }
    }
}
