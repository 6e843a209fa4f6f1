//! The store and the node behind a front end: what `resp` asks is passed on to this lane, or read
//! from what the lanes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use quorate_commands::{Call, Op, Reply};
use quorate_machine::{Command, Rng, ValueKind};
use quorate_node::{
    BlockingCall, Durability, EngineConfig, Lane, LogFacts, Outbox, SessionCall, Shared,
};
use quorate_resp::{
    Attempt, Backend, Blocking, KeyspaceFacts, MemoryFacts, PersistenceFacts, PlacementFacts,
    ServerFacts,
};
use quorate_rifl::{Genuine, LeaseId, Request};
use quorate_types::{
    Duration, Instant, KeyspaceId, Now, Publication, Role, Tag, Topic, View, limits,
};

use crate::clock;
use crate::handle::{Stop, stop};
use crate::loading::Loading;
use crate::mesh::Parker;
use crate::process;

/// What a lane's backend knows of its node.
pub(crate) struct NodeFacts {
    pub(crate) shared: Arc<Shared>,
    /// Whether clients may coordinate their transactions themselves.
    pub(crate) guests: bool,
    pub(crate) stop: Arc<Stop>,
    pub(crate) parkers: Vec<Arc<Parker>>,
    pub(crate) started: Instant,
    /// How far the node has restored.
    pub(crate) loading: Arc<Loading>,
    pub(crate) port: u16,
    /// By lane, the longest turn since the start or the last `CONFIG RESETSTAT`, in microseconds; 0
    /// if none was slow.
    pub(crate) longest_turns: Vec<AtomicU64>,
    /// Resident bytes of the process, refreshed about once a second by lane 0.
    pub(crate) resident: AtomicU64,
    pub(crate) memory_peak: AtomicU64,
}

/// One lane as its front end sees it, for the time of one call.
pub(crate) struct LaneBackend<'a> {
    pub(crate) lane: &'a mut Lane,
    pub(crate) out: &'a mut Outbox,
    pub(crate) node: &'a NodeFacts,
    pub(crate) rng: &'a mut Rng,
    pub(crate) now: Now,
}

impl LaneBackend<'_> {
    fn shared(&self) -> &Shared {
        &self.node.shared
    }
}

impl Backend for LaneBackend<'_> {
    fn keyspace(&self, number: u8) -> Option<KeyspaceFacts> {
        let keyspace = self.shared().config.keyspace(KeyspaceId(number))?;
        if !self.has_keyspace(number) {
            return None;
        }
        let facts = self.shared().store_facts(keyspace.id);
        let placed = self.lane.view().placed.len();
        let replicas = keyspace.copies(self.shared().config.nodes.len(), placed);
        Some(KeyspaceFacts {
            number,
            name: keyspace.name.clone(),
            engine: keyspace.engine.name(),
            replicas,
            keys: facts.keys,
            expires: facts.expiring,
        })
    }

    #[inline]
    fn has_keyspace(&self, number: u8) -> bool {
        // The others are not for clients.
        usize::from(number) < limits::KEYSPACES_MAX
            && self.shared().store(KeyspaceId(number)).is_some()
    }

    #[inline]
    fn transactional(&self, keyspace: u8) -> bool {
        let store = self.shared().store(KeyspaceId(keyspace));
        store.is_some_and(|store| store.capabilities().transactions)
    }

    fn crosskey(&self) -> &str {
        EngineConfig::crosskey()
    }

    #[inline]
    fn read<R>(
        &mut self,
        keyspace: u8,
        now: Now,
        call: &Call<'_>,
        with: impl FnOnce(Reply<'_>) -> R,
    ) -> Option<R> {
        self.lane.read(now, KeyspaceId(keyspace), call, with)
    }

    #[inline]
    fn touched(&mut self) -> u64 {
        self.lane.take_touched()
    }

    fn clock(&mut self) -> Instant {
        clock::monotonic()
    }

    #[inline]
    fn submit<P>(&mut self, keyspace: u8, now: Now, tag: Tag, origin: u64, op: P)
    where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        self.lane.submit(now, KeyspaceId(keyspace), tag, origin, op, self.out);
    }

    fn block(&mut self, keyspace: u8, now: Now, tag: Tag, origin: u64, blocking: Blocking) {
        let Blocking { call, line, until } = blocking;
        let call = BlockingCall { keyspace: KeyspaceId(keyspace), origin, call, line, until };
        self.lane.block(now, tag, call, self.out);
    }

    fn unblock(&mut self, tag: Tag, answer: Reply<'static>) {
        self.lane.unblock(tag, answer, self.out);
    }

    fn set_tracking(&mut self, active: bool) {
        self.lane.set_tracking(active);
    }

    fn track(&mut self, keyspace: u8, key: &[u8]) -> bool {
        self.lane.track(KeyspaceId(keyspace), key)
    }

    fn untrack(&mut self, keyspace: u8, key: &[u8]) {
        self.lane.untrack(KeyspaceId(keyspace), key);
    }

    fn hears_all(&self) -> bool {
        self.lane.hears_all()
    }

    fn track_prefixes(&mut self, tag: Tag, prefixes: &[&[u8]], coalesced: bool) {
        self.lane.track_prefixes(self.now, tag, prefixes, coalesced, self.out);
    }

    fn untrack_prefix(&mut self, prefix: &[u8], coalesced: bool) {
        self.lane.untrack_prefix(prefix, coalesced);
    }

    fn has_sessions(&self, keyspace: u8) -> bool {
        let keyspace = self.shared().config.keyspace(KeyspaceId(keyspace));
        keyspace.is_some_and(|keyspace| keyspace.engine.capabilities().calls.is_some())
    }

    fn session_term(&self) -> Duration {
        self.shared().config.session_term
    }

    fn session_token(&self, lease: LeaseId) -> u64 {
        self.lane.session_token(lease)
    }

    fn is_genuine(&self, lease: LeaseId, token: u64) -> Genuine {
        self.lane.is_genuine(lease, token)
    }

    fn lease(&mut self, now: Now, tag: Tag, request: Request) {
        self.lane.lease(now, tag, request, self.out);
    }

    fn call(&mut self, keyspace: u8, now: Now, tag: Tag, origin: u64, attempt: Attempt) {
        let Attempt { call, grant, op } = attempt;
        let keyspace = KeyspaceId(keyspace);
        self.lane.call(now, tag, SessionCall { keyspace, origin, call, grant, op }, self.out);
    }

    fn flush(&mut self, keyspace: u8, now: Now, tag: Tag) {
        self.lane.flush_keyspace(now, KeyspaceId(keyspace), tag, self.out);
    }

    fn scan(
        &mut self,
        keyspace: u8,
        now: Now,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], ValueKind),
    ) -> Option<u64> {
        if !self.lane.holds_all(KeyspaceId(keyspace)) {
            return None;
        }
        let store = self.shared().store(KeyspaceId(keyspace))?;
        Some(store.scan(cursor, limit, &mut |key, value| {
            if let Some(value) = value
                && value.expire_at.is_none_or(|at| at > now.wall())
            {
                visit(key, value.kind);
            }
        }))
    }

    fn lists_alone(&self, keyspace: u8) -> bool {
        self.lane.lists_alone(KeyspaceId(keyspace))
    }

    fn list(
        &mut self,
        keyspace: u8,
        now: Now,
        tag: Tag,
        cursor: u64,
        limit: usize,
        kind: Option<ValueKind>,
    ) {
        self.lane.list(now, KeyspaceId(keyspace), tag, (cursor, limit, kind), self.out);
    }

    fn count(&mut self, keyspace: u8, now: Now, tag: Tag, cursor: u64) {
        self.lane.count(now, KeyspaceId(keyspace), tag, cursor, self.out);
    }

    fn listen(&mut self, _: Now, topic: Topic, name: &[u8], clients: u32) {
        self.lane.listen(topic, name, clients);
    }

    fn is_announced(&self) -> bool {
        self.lane.is_announced()
    }

    fn announce(&mut self, now: Now, tag: Tag) {
        self.lane.announce(now, tag);
    }

    fn publish(&mut self, _: Now, publication: &Arc<Publication>) -> u64 {
        self.lane.broadcast(publication, self.out)
    }

    fn listeners(&self, topic: Topic, name: &[u8]) -> u64 {
        self.lane.listeners(topic, name)
    }

    fn visit_names(&self, topic: Topic, visit: &mut dyn FnMut(&[u8])) {
        self.lane.visit_names(topic, visit);
    }

    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn random_cursor(&self, keyspace: u8, random: u64) -> u64 {
        self.lane.random_cursor(KeyspaceId(keyspace), random)
    }

    fn key_count(&self, keyspace: u8) -> Option<u64> {
        let keyspace = KeyspaceId(keyspace);
        self.lane.holds_all(keyspace).then(|| self.shared().store_facts(keyspace).keys)
    }

    fn memory_usage(&mut self, keyspace: u8, now: Now, key: &[u8]) -> Option<u64> {
        let store = self.shared().store(KeyspaceId(keyspace))?;
        store.memory_of(key, now.wall()).map(|bytes| bytes as u64)
    }

    fn replicas(&self, keyspace: u8) -> usize {
        self.lane.other_replicas(KeyspaceId(keyspace))
    }

    fn pins(&self, keyspace: u8, unit: &[u8]) -> Option<(u64, Option<u16>)> {
        let (count, node) = self.lane.engine(KeyspaceId(keyspace))?.pins(unit)?;
        Some((count, node.map(|node| node.0)))
    }

    fn placement(&self) -> Option<PlacementFacts> {
        let facts = self.shared().placement_facts()?;
        Some(PlacementFacts {
            moves: facts.moves,
            local_share: facts.local_share(),
            bounced: (facts.bounced, facts.bouncing),
            copies_dropped: facts.copies_dropped,
            pins: facts.pins,
        })
    }

    fn unsettled(&self) -> u64 {
        self.shared().unsettled()
    }

    fn persistence(&self) -> Option<PersistenceFacts> {
        let lanes = self.shared().lane_facts();
        let logs: Vec<&LogFacts> = lanes.iter().filter_map(|lane| lane.log.as_ref()).collect();
        if logs.is_empty() {
            return None;
        }
        let sum = |value: fn(&LogFacts) -> u64| logs.iter().map(|log| value(log)).sum::<u64>();
        let saves = logs.iter().map(|log| log.snapshots).min().unwrap_or(0);
        let longest = logs.iter().map(|log| log.snapshot_seconds).max();
        let begun = self.now.monotonic.since(self.node.started).as_millis() as u64;
        let started = self.now.wall().0.saturating_sub(begun);
        Some(PersistenceFacts {
            is_saving: self.shared().is_saving(),
            last_save: self.shared().saved_at().unwrap_or(started) / 1000,
            save_failed: logs.iter().any(|log| log.snapshot_failed),
            save_seconds: longest.filter(|_| saves > 0),
            save_bytes: sum(|log| log.snapshot_bytes),
            saves,
            entries_since_save: sum(|log| log.entries_since_snapshot),
            bytes_since_save: sum(|log| log.bytes_since_snapshot),
            pending_bytes: sum(|log| log.pending_bytes),
            is_full: logs.iter().any(|log| log.is_full),
            restored: (sum(|log| log.restored_entries), sum(|log| log.restored_bytes)),
            flushes: sum(|log| log.flushes.iter().sum()),
            flush_micros: sum(|log| log.flush_micros),
        })
    }

    fn save(&mut self) {
        self.lane.save(self.out);
    }

    fn acknowledges_from_disks(&self, keyspace: u8) -> bool {
        let keyspace = self.shared().config.keyspace(KeyspaceId(keyspace));
        keyspace.is_some_and(|keyspace| keyspace.durability == Durability::Sync)
    }

    fn memory(&self) -> MemoryFacts {
        let used = self.shared().memory_used();
        let peak = self.node.memory_peak.fetch_max(used, Relaxed).max(used);
        MemoryFacts { used, peak, resident: self.node.resident.load(Relaxed) }
    }

    fn facts(&self) -> ServerFacts {
        let view = self.lane.view();
        let config = &self.shared().config;
        let turns = self.node.longest_turns.iter();
        ServerFacts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: config.cluster.clone(),
            node: config.node.0,
            incarnation: self.lane.incarnation().0,
            epoch: view.epoch.0,
            role: role_of(view, self.lane),
            lease: self.shared().lease_until() > clock::monotonic(),
            lanes: config.lanes,
            members: view
                .members
                .iter()
                .map(|member| {
                    (member.node.0, role_name(member.role), member.client_address.clone())
                })
                .collect(),
            port: self.node.port,
            process: std::process::id(),
            uptime_seconds: self.now.monotonic.since(self.node.started).as_secs(),
            cpu_micros: process::cpu_micros(),
            longest_turns_micros: turns.map(|turn| turn.load(Relaxed)).collect(),
        }
    }

    fn reset_stats(&mut self) {
        self.node.longest_turns.iter().for_each(|turn| turn.store(0, Relaxed));
    }

    fn serving(&self) -> Result<(), &'static str> {
        self.lane.serving(self.now)
    }

    fn takes_ops(&self) -> Result<(), &'static str> {
        self.lane.takes_ops(self.now)
    }

    fn shutdown(&mut self) {
        tracing::info!("a client asked for SHUTDOWN");
        stop(&self.node.stop, &self.node.parkers);
    }
}

fn role_of(view: &View, lane: &Lane) -> &'static str {
    let node = lane.shared().config.node;
    match view.member(node) {
        Some(member) if member.incarnation == lane.incarnation() => role_name(member.role),
        _ => role_name(Role::Down),
    }
}

/// A role in one word, as `INFO` and the administration endpoint say it.
pub(crate) const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Active => "active",
        Role::Shadow => "shadow",
        Role::Down => "down",
    }
}
