//! What the front end asks of the in-memory backend.

use std::sync::Arc;

use quorate_commands::{Call, Op, Reply};
use quorate_machine::{Access, Command, Outcome, Rng, ValueKind};
use quorate_resp::{
    Attempt as Called, Backend, Blocking, KeyspaceFacts, Listed, MemoryFacts, PlacementFacts,
    ServerFacts, glob_match,
};
use quorate_rifl::{Answer as Lease, Genuine, LeaseId, Request};
use quorate_types::placement::pin_key;
use quorate_types::{
    Duration, Instant, LaneId, MemberNumber, Now, Publication, Tag, Topic, limits,
};

use super::entries::Entry;
use super::{MemoryBackend, Work};

/// What a session's number differs by from its token.
const TOKENS: u64 = 0x5eed_0000_0000_0000;

impl Backend for MemoryBackend {
    fn keyspace(&self, number: u8) -> Option<KeyspaceFacts> {
        let entries = self.keyspaces.get(&number).filter(|_| number < limits::PINS_KEYSPACE)?;
        let values = || entries.values().filter_map(|entry| entry.value.as_ref());
        Some(KeyspaceFacts {
            number,
            name: format!("db{number}"),
            engine: "memory",
            replicas: 1,
            keys: values().count() as u64,
            expires: values().filter(|(_, _, expire_at)| expire_at.is_some()).count() as u64,
        })
    }

    fn transactional(&self, keyspace: u8) -> bool {
        self.transactional.contains(&keyspace)
    }

    fn read<R>(
        &mut self,
        keyspace: u8,
        now: Now,
        call: &Call<'_>,
        with: impl FnOnce(Reply<'_>) -> R,
    ) -> Option<R> {
        if !self.local_reads || self.serving.is_err() {
            return None;
        }
        self.reads += 1;
        self.clock += self.cost;
        let entry = self.keyspaces.get(&keyspace)?.get(call.key());
        let absent = Entry::default();
        let current = entry.unwrap_or(&absent).current(now.wall());
        self.touched += current.content.map_or(0, |content| content.bytes.len() as u64);
        assert_eq!(call.access(), Access::Read, "only reads are read");
        Some(with(call.execute(now.wall(), current).0))
    }

    fn touched(&mut self) -> u64 {
        std::mem::take(&mut self.touched)
    }

    fn clock(&mut self) -> Instant {
        self.clock
    }

    fn submit<P>(&mut self, keyspace: u8, _: Now, tag: Tag, origin: u64, op: P)
    where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        self.clock += self.cost;
        self.submitted += 1;
        self.queue.push_back((keyspace, tag, Work::Op(origin, op.into_owned())));
    }

    fn block(&mut self, keyspace: u8, now: Now, tag: Tag, _: u64, mut blocking: Blocking) {
        while let Some(read) = blocking.call.call().ends_wanted() {
            let end = self.run(keyspace, now.wall(), &Op::Call(read)).expect("a small call");
            match blocking.call.call().with_end(&end) {
                Ok(call) => blocking.call = call,
                Err(error) => return self.unblocked.push_back((tag, error)),
            }
        }
        self.blocked.push_back((keyspace, tag, blocking));
    }

    fn unblock(&mut self, tag: Tag, answer: Reply<'static>) {
        if let Some(at) = self.blocked.iter().position(|(_, other, _)| *other == tag) {
            self.blocked.remove(at);
            self.unblocked.push_back((tag, answer));
        }
    }

    fn has_sessions(&self, keyspace: u8) -> bool {
        !self.without_sessions.contains(&keyspace)
    }

    fn session_term(&self) -> Duration {
        limits::LEASE_TERM
    }

    fn session_token(&self, lease: LeaseId) -> u64 {
        lease.0 ^ TOKENS
    }

    fn is_genuine(&self, lease: LeaseId, token: u64) -> Genuine {
        if self.heard_of_sessions {
            if token == self.session_token(lease) { Genuine::Yes } else { Genuine::No }
        } else {
            Genuine::Unready
        }
    }

    fn lease(&mut self, now: Now, tag: Tag, request: Request) {
        let until = now.unix.0 + limits::LEASE_TERM.as_nanos() as u64;
        let answer = match request {
            Request::Open if self.leases.len() >= self.leases_max => Lease::Full,
            Request::Open => {
                let lease = LeaseId::new(MemberNumber(1), LaneId(0), self.leases.len() as u64);
                self.leases.insert(lease, (until, false));
                self.grant(now, lease)
            }
            Request::Renew { lease, .. } | Request::Close { lease } => {
                let closes = matches!(request, Request::Close { .. });
                if let Lease::Granted(_) = self.grant(now, lease) {
                    self.leases.insert(lease, (until, closes));
                }
                if closes {
                    self.tracker.close(lease);
                }
                self.grant(now, lease)
            }
        };
        self.leased.push_back((tag, answer));
    }

    fn call(&mut self, keyspace: u8, now: Now, tag: Tag, _: u64, called: Called) {
        if now.unix.0 > called.grant.until {
            let lease = called.call.lease;
            self.lease(now, tag, Request::Renew { lease, told: called.grant.until, above: 0 });
            if !matches!(self.leased.back(), Some((_, Lease::Granted(_)))) {
                return;
            }
        }
        self.submitted += 1;
        self.queue.push_back((keyspace, tag, Work::Call(called)));
    }

    fn flush(&mut self, keyspace: u8, _: Now, tag: Tag) {
        self.queue.push_back((keyspace, tag, Work::Flush));
    }

    fn scan(
        &mut self,
        keyspace: u8,
        now: Now,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], ValueKind),
    ) -> Option<u64> {
        if self.elsewhere {
            return None;
        }
        self.clock += self.cost;
        let mut keys = self.live(keyspace, now.wall()).skip(cursor as usize);
        keys.by_ref().take(limit).for_each(|(key, kind)| visit(key, kind));
        Some(if keys.next().is_some() { cursor + limit as u64 } else { 0 })
    }

    fn lists_alone(&self, _: u8) -> bool {
        !self.elsewhere
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
        let mut keys = self.live(keyspace, now.wall()).skip(cursor as usize);
        let wanted =
            |(key, of): (&Vec<u8>, _)| kind.is_none_or(|kind| kind == of).then(|| key.clone());
        let listed: Vec<_> = keys.by_ref().take(limit).filter_map(wanted).collect();
        let next = if keys.next().is_some() { cursor + limit as u64 } else { 0 };
        drop(keys);
        let count = listed.len() as u64;
        self.listed.push_back((tag, Outcome::Done(Listed { next, keys: listed, count })));
    }

    fn count(&mut self, keyspace: u8, now: Now, tag: Tag, _: u64) {
        let count = self.live(keyspace, now.wall()).count() as u64;
        let listed = Listed { next: 0, keys: Vec::new(), count };
        self.listed.push_back((tag, Outcome::Done(listed)));
    }

    fn listen(&mut self, _: Now, topic: Topic, name: &[u8], clients: u32) {
        match clients {
            0 => self.listening.remove(&(topic, name.to_vec())),
            clients => self.listening.insert((topic, name.to_vec()), clients),
        };
    }

    fn is_announced(&self) -> bool {
        !self.announces
    }

    fn announce(&mut self, _: Now, tag: Tag) {
        self.queue.push_back((0, tag, Work::Announce));
    }

    fn publish(&mut self, _: Now, publication: &Arc<Publication>) -> u64 {
        self.published.push(Arc::clone(publication));
        let hears = |topic: Topic, name: &[u8]| match (publication.topic, topic) {
            (Topic::Channel, Topic::Pattern) => glob_match(name, &publication.channel, false),
            (published, topic) => published == topic && *name == *publication.channel,
        };
        let here = self.listening.iter().filter(|((topic, name), _)| hears(*topic, name));
        here.map(|(_, clients)| u64::from(*clients)).sum::<u64>() + self.listeners_elsewhere
    }

    fn listeners(&self, topic: Topic, name: &[u8]) -> u64 {
        self.listening.get(&(topic, name.to_vec())).map_or(0, |clients| u64::from(*clients))
    }

    fn visit_names(&self, topic: Topic, visit: &mut dyn FnMut(&[u8])) {
        let names = self.listening.keys().filter(|(other, _)| *other == topic);
        names.for_each(|(_, name)| visit(name));
    }

    fn set_tracking(&mut self, _: bool) {}

    fn track(&mut self, keyspace: u8, key: &[u8]) -> bool {
        let hears = !self.unheard.contains(key);
        if hears {
            self.tracked.insert((keyspace, key.to_vec()));
        }
        hears
    }

    fn untrack(&mut self, keyspace: u8, key: &[u8]) {
        self.tracked.remove(&(keyspace, key.to_vec()));
    }

    fn hears_all(&self) -> bool {
        self.unheard.is_empty()
    }

    fn track_prefixes(&mut self, tag: Tag, prefixes: &[&[u8]], coalesced: bool) {
        let list = if coalesced { &mut self.coalesced } else { &mut self.prefixes };
        list.extend(prefixes.iter().map(|prefix| prefix.to_vec()));
        self.queue.push_back((0, tag, Work::Announce));
    }

    fn untrack_prefix(&mut self, prefix: &[u8], coalesced: bool) {
        let list = if coalesced { &mut self.coalesced } else { &mut self.prefixes };
        let at = list.iter().position(|known| known == prefix);
        list.swap_remove(at.expect("only what is tracked ends"));
    }

    fn random(&mut self) -> u64 {
        self.random.as_mut().map_or(0, Rng::next_u64)
    }

    fn random_cursor(&self, _: u8, random: u64) -> u64 {
        random
    }

    fn key_count(&self, keyspace: u8) -> Option<u64> {
        (!self.elsewhere).then(|| self.keyspace(keyspace).map_or(0, |facts| facts.keys))
    }

    fn memory_usage(&mut self, keyspace: u8, now: Now, key: &[u8]) -> Option<u64> {
        let entry = self.keyspaces.get(&keyspace)?.get(key)?;
        let content = entry.current(now.wall()).content?;
        Some((key.len() + content.bytes.len()) as u64)
    }

    fn pins(&self, keyspace: u8, unit: &[u8]) -> Option<(u64, Option<u16>)> {
        let kept = self.keyspaces.get(&limits::PINS_KEYSPACE);
        let kept = kept.filter(|_| self.moving.contains(&keyspace))?;
        let entry = kept.get(&pin_key(keyspace, unit)).and_then(|entry| entry.value.as_ref());
        let node = entry.map(|(bytes, ..)| std::str::from_utf8(bytes).expect("a number"));
        let count = kept.values().filter(|entry| entry.value.is_some()).count() as u64;
        Some((count + self.pins, node.map(|node| node.parse().expect("a number"))))
    }

    fn placement(&self) -> Option<PlacementFacts> {
        let (pins, copies_dropped) = (self.moving.first().and_then(|at| self.pins(*at, b""))?.0, 3);
        Some(PlacementFacts { moves: 7, local_share: 999, bounced: (2, 1), copies_dropped, pins })
    }

    fn replicas(&self, _: u8) -> usize {
        self.replicas
    }

    fn memory(&self) -> MemoryFacts {
        MemoryFacts { used: self.used, peak: self.used, resident: 0 }
    }

    fn facts(&self) -> ServerFacts {
        ServerFacts {
            version: "test".to_owned(),
            cluster: "a\nname".to_owned(),
            node: 1,
            incarnation: self.incarnation,
            role: "active",
            longest_turns_micros: self.longest_turns.clone(),
            members: vec![(1, "active", "one:1".to_owned()), (2, "down", "two:2".to_owned())],
            ..Default::default()
        }
    }

    fn unsettled(&self) -> u64 {
        3
    }

    fn reset_stats(&mut self) {
        self.longest_turns = Vec::new();
    }

    fn serving(&self) -> Result<(), &'static str> {
        self.serving
    }

    fn takes_ops(&self) -> Result<(), &'static str> {
        self.serving
    }

    fn shutdown(&mut self) {
        self.stopped = true;
    }
}
