//! What clients hold, in one account for each node: query buffers, commands in progress, queues of
//! `MULTI`, replies; and the buffers of guests, which speak to the node without its front ends.
//!
//! Each lane keeps its part in a counter that it alone writes. Whoever needs the sum adds the parts
//! up; a lane does so when its own part has grown by [`LOOK_BYTES`], and about once a second. Above
//! `maxmemory-clients` it picks the clients that hold most, on whatever lane, as `CLIENT KILL` does
//! that names them. So no command takes a lock, and the sum exceeds the limit by no more than what
//! one turn of each lane adds.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::connection::Connection;
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

impl Shared {
    /// Bytes that clients hold together, those aside that are about to be disconnected for it.
    pub fn clients_bytes(&self) -> u64 {
        let held: u64 = lock(&self.lanes).iter().map(|lane| lane.held_bytes.load(Relaxed)).sum();
        held.saturating_sub(self.leaving_bytes.load(Relaxed))
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
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Harness;
    use crate::{ConnectionId, Settings};

    /// Sets `maxmemory-clients`.
    fn limited(bytes: u64) -> Arc<Shared> {
        let settings = Settings::default();
        settings.max_memory_clients.store(Share::Bytes(bytes).to_bits(), Relaxed);
        Shared::new(settings, None)
    }

    /// Adds the parts up anew: what each connection holds, and each op in progress.
    fn audit(frontend: &Frontend) -> u64 {
        let mut sum = 0;
        for (slot, connection) in frontend.connections.iter() {
            let own = |id: ConnectionId| id.0 == slot;
            let pending = frontend.core.pending.iter().filter(|(_, op)| own(op.connection));
            let in_flight: usize = pending.map(|(_, op)| op.bytes).sum();
            assert_eq!(connection.in_flight_bytes, in_flight);
            assert_eq!(connection.charged, connection.bytes() as u64);
            let held = connection.charged + in_flight as u64;
            assert_eq!(connection.facts.holding.bytes(), held);
            sum += connection.charged;
        }
        sum + frontend.core.pending.iter().map(|(_, op)| op.bytes as u64).sum::<u64>()
    }

    fn balanced(harnesses: &[Harness], shared: &Shared) {
        let parts: Vec<u64> = harnesses.iter().map(|harness| audit(&harness.frontend)).collect();
        for (harness, part) in harnesses.iter().zip(&parts) {
            assert_eq!(harness.frontend.stats().held_bytes.load(Relaxed), *part);
        }
        let leaving = shared.leaving_bytes.load(Relaxed);
        let sum: u64 = parts.iter().sum();
        assert_eq!(shared.clients_bytes(), sum.saturating_sub(leaving));
    }

    fn line() -> impl Strategy<Value = Vec<u8>> {
        let value = (0..200_000usize).prop_map(|length| "v".repeat(length));
        let set = (0..3u8, value.clone()).prop_map(|(key, value)| {
            format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n${}\r\n{value}\r\n", value.len())
        });
        let unfinished = value.prop_map(|value| format!("*2\r\n$3\r\nGET\r\n$300000\r\n{value}"));
        let others = proptest::sample::select(vec![
            "GET 0\r\n",
            "MGET 0 1 2 0 1\r\n",
            "MULTI\r\n",
            "EXEC\r\n",
            "DISCARD\r\n",
            "WATCH 0 1\r\n",
            "SELECT 1\r\n",
            "SELECT 0\r\n",
            "FLUSHALL\r\n",
            "DEL 0 1\r\n",
            "GETSET 1 x\r\n",
            "PING\r\n",
            "WAIT 1 0\r\n",
            "CLIENT REPLY OFF\r\n",
            "CLIENT REPLY ON\r\n",
            "RESET\r\n",
            "QUIT\r\n",
            "SESSION OPEN\r\n",
            "SESSION CALL 1 1 APPEND 0 x\r\n",
            "CLIENT NO-EVICT ON\r\n",
        ]);
        prop_oneof![2 => set, 1 => unfinished, 8 => others.prop_map(str::to_owned)]
            .prop_map(String::into_bytes)
    }

    #[derive(Clone, Debug)]
    enum Act {
        Open(usize),
        Feed(usize, Vec<u8>),
        Complete(usize),
        Take(usize, usize),
        Close(usize),
        Pass(usize),
        LoseLease(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            2 => any::<usize>().prop_map(Act::Open),
            10 => (any::<usize>(), line()).prop_map(|(which, line)| Act::Feed(which, line)),
            5 => any::<usize>().prop_map(Act::Complete),
            4 => (any::<usize>(), 1..300_000usize).prop_map(|(which, most)| Act::Take(which, most)),
            1 => any::<usize>().prop_map(Act::Close),
            1 => any::<usize>().prop_map(Act::Pass),
            1 => any::<usize>().prop_map(Act::LoseLease),
        ]
    }

    /// Closes what wants to be closed, as a driver does at the end of a turn.
    fn end_turn(harness: &mut Harness, open: &mut Vec<ConnectionId>) {
        harness.frontend.close_killed();
        open.retain(|&id| {
            let ends = harness.frontend.wants_close(id);
            if ends {
                harness.frontend.close(id);
            }
            !ends
        });
    }

    fn play(acts: Vec<Act>, limit: u64) {
        let shared = limited(limit);
        let mut lanes = [0, 1].map(|_| (Harness::new(Arc::clone(&shared)), Vec::new()));
        for act in acts {
            match act {
                Act::Open(which) => {
                    let (harness, open) = &mut lanes[which % 2];
                    open.push(harness.connect());
                }
                Act::Feed(which, bytes) => {
                    let (harness, open) = &mut lanes[which % 2];
                    if let Some(&id) = open.get(which / 2 % open.len().max(1)) {
                        harness.feed(id, &bytes);
                    }
                }
                Act::Complete(which) => {
                    lanes[which % 2].0.complete_one();
                }
                Act::Take(which, most) => {
                    let (harness, open) = &mut lanes[which % 2];
                    harness.frontend.seal(quorate_machine::Seal::Holds);
                    if let Some(&id) = open.get(which / 2 % open.len().max(1)) {
                        let length = harness.frontend.output(id).map_or(0, |output| output.len());
                        let now = harness.now;
                        harness.frontend.written(id, length.min(most), now, &mut harness.backend);
                    }
                }
                Act::Close(which) => {
                    let (harness, open) = &mut lanes[which % 2];
                    if !open.is_empty() {
                        harness.frontend.close(open.swap_remove(which / 2 % open.len()));
                    }
                }
                Act::Pass(which) => lanes[which % 2].0.pass(1500),
                Act::LoseLease(which) => {
                    lanes[which % 2].0.frontend.seal(quorate_machine::Seal::Lost)
                }
            }
            for (harness, open) in &mut lanes {
                end_turn(harness, open);
            }
            let [(one, _), (two, _)] = &lanes;
            for (harness, part) in [one, two].map(|harness| (harness, audit(&harness.frontend))) {
                assert_eq!(harness.frontend.stats().held_bytes.load(Relaxed), part);
            }
            assert_eq!(shared.leaving_bytes.load(Relaxed), 0, "all that were named are gone");
        }
        for (harness, open) in &mut lanes {
            for id in open.drain(..) {
                harness.frontend.close(id);
            }
            while harness.complete_one() {}
        }
        assert_eq!(shared.clients_bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn the_account_is_the_sum_of_what_is_held(acts in proptest::collection::vec(act(), 1..120)) {
            play(acts, 0);
        }

        #[test]
        fn so_it_is_while_clients_are_disconnected(acts in proptest::collection::vec(act(), 1..120)) {
            play(acts, 400_000);
        }
    }

    #[test]
    fn the_largest_goes_first_on_whatever_lane() {
        let shared = limited(1 << 20);
        let mut lanes = [0, 1].map(|_| Harness::new(Arc::clone(&shared)));
        let unfinished = |bytes: usize| format!("*1\r\n$900000\r\n{}", "x".repeat(bytes));
        let small = lanes[0].connect();
        let largest = lanes[0].connect();
        let spared = lanes[1].connect();
        let last = lanes[1].connect();
        lanes[1].talk(spared, "CLIENT NO-EVICT ON");
        lanes[1].feed(spared, unfinished(400_000).as_bytes());
        lanes[0].feed(largest, unfinished(300_000).as_bytes());
        lanes[0].feed(small, unfinished(50_000).as_bytes());
        assert_eq!(shared.totals().evicted, 0);
        lanes[1].feed(last, unfinished(200_000).as_bytes());
        while shared.totals().evicted == 0 {
            lanes[1].feed(last, "x".repeat(20_000).as_bytes());
        }
        assert!(lanes[1].frontend.take_named_others());
        lanes[0].frontend.close_killed();
        let closes = |harness: &Harness, id| harness.frontend.wants_close(id);
        assert!(closes(&lanes[0], largest) ^ closes(&lanes[1], last));
        assert!(!closes(&lanes[0], small) && !closes(&lanes[1], spared));
        assert_eq!(shared.totals().evicted, 1);
        assert!(shared.clients_bytes() <= 1 << 20);
        balanced(&lanes, &shared);
    }

    #[test]
    fn a_guest_that_holds_most_goes_first() {
        let shared = limited(1 << 20);
        let mut lanes = [0, 1].map(|_| Harness::new(Arc::clone(&shared)));
        let (small, large) = (lanes[0].frontend.guest_came(), lanes[0].frontend.guest_came());
        assert!(lanes[0].frontend.guest_holds(&small, 100_000));
        assert!(lanes[0].frontend.guest_holds(&large, 700_000));
        assert!(lanes[0].frontend.guest_holds(&large, 600_000));
        assert_eq!(shared.clients_bytes(), 700_000);
        let id = lanes[1].connect();
        lanes[1].feed(id, format!("*1\r\n$900000\r\n{}", "x".repeat(500_000)).as_bytes());
        assert!(lanes[1].frontend.take_named_others());
        assert!(!lanes[0].frontend.guest_holds(&large, 600_000));
        assert!(lanes[0].frontend.guest_holds(&small, 100_000));
        assert!(!lanes[1].frontend.wants_close(id));
        lanes[0].frontend.guest_left(&large);
        lanes[0].frontend.guest_left(&small);
        assert_eq!(shared.totals().evicted, 1);
        balanced(&lanes, &shared);
        lanes[1].frontend.close(id);
        assert_eq!((shared.clients_bytes(), shared.leaving_bytes.load(Relaxed)), (0, 0));
        // Who is gone is not chosen by a lane that saw it a moment ago.
        assert!(!shared.leaves(&large, 5) && !shared.leaves(&small, 5));
        assert_eq!(shared.leaving_bytes.load(Relaxed), 0);
    }

    #[test]
    fn a_percentage_is_one_of_maxmemory() {
        let shared = limited(0);
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
