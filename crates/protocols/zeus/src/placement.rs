//! Where a command of this node's clients should run.
//!
//! What decides is the *anchor*, the first key that a command may change. A *unit* is a hash tag, or
//! else a whole key: keys that are to stay together.
//!
//! - A unit that is pinned to an active node is used there.
//! - Else, where this node owns all keys, the command runs here.
//! - Else, a key that several nodes write in turn is used at one of them. A key that has moved
//!   [`MOVES_MAX`] times within [`MOVES_WITHIN`] *bounces*: for [`RESIDENCE`] its unit is used at its
//!   default owner, which all nodes compute alike. Whichever key of a command bounces, the command
//!   goes there, and what else it needs follows.
//! - Else the keys come to this node, and stay. That is how data follows its users.
//!
//! Each of these is a hint: the node that a command is sent to runs it, whatever it thinks of the
//! place. Arbiters see every move of a key and an owner outside the group its own, so nodes may find
//! out at different moments that a key bounces. The default owner takes the key with the first command
//! that is sent to it, and those who take it away from there see that move, too.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::hash::{Hash, Hasher};

use quorate_engine::{Pins, Place};
use quorate_machine::{Command, DetMap, Effects, LaneShared, Table, mutant};
use quorate_types::{Duration, Instant, LaneId, Now, hash_key, unit_of};

use crate::lanes::Letter;
use crate::meta::Meta;
use crate::state::{Key, Zeus};

/// How often a key may move within [`MOVES_WITHIN`] before it bounces.
const MOVES_MAX: u32 = 4;
/// How long a move counts.
const MOVES_WITHIN: Duration = Duration::from_millis(100);
/// How long a unit that bounces stays with its default owner.
const RESIDENCE: Duration = Duration::from_secs(1);
/// Moves, and units that bounce, that a lane remembers. Of the moves it forgets the earliest.
const NOTES_MAX: usize = 64 * 1024;

/// The moves of this lane's keys that count, and the units that bounce.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounces {
    moves: VecDeque<(Instant, u64)>,
    /// By the hash of the key: of two keys that share one both may seem to bounce.
    counts: DetMap<u64, u32>,
    /// The units that are used at their default owner, and until when; of every lane of this node.
    held: BTreeMap<Key, Instant>,
}

impl Hash for Bounces {
    /// What a lane does with a command does not depend on it, only where commands are sent to.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Bounces {
    fn forget_before(&mut self, now: Instant) {
        let is_over = |(at, _): &(Instant, u64)| *at + MOVES_WITHIN <= now;
        while self.moves.front().is_some_and(is_over) || self.moves.len() > NOTES_MAX {
            let (_, hash) = self.moves.pop_front().expect("there is one");
            let count = self.counts.get_mut(&hash).expect("its moves are counted");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&hash);
            }
        }
    }

    /// Notes a move of a key. Whether it bounces.
    fn note_move(&mut self, key: &[u8], now: Instant) -> bool {
        let hash = hash_key(key);
        self.forget_before(now);
        self.moves.push_back((now, hash));
        let (count, _) = self.counts.get_or_insert_with(hash, || 0);
        *count += 1;
        *count >= MOVES_MAX && !mutant!("zeus_bounces_uncounted")
    }

    /// A unit is used at its default owner for a while. Whether that is news.
    fn hold(&mut self, unit: &[u8], now: Instant) -> bool {
        self.held.retain(|_, until| *until > now);
        if self.held.len() >= NOTES_MAX {
            return false;
        }
        self.held.insert(unit.into(), now + RESIDENCE).is_none()
    }

    fn is_held(&self, unit: &[u8], now: Instant) -> bool {
        self.held.get(unit).is_some_and(|until| *until > now || mutant!("zeus_bounces_for_ever"))
    }

    /// How many units bounce.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Where a command should run. What this origin has asked for before may wait here for its keys,
    /// and comes first.
    pub fn place<P: Command>(
        &mut self,
        now: Now,
        origin: u64,
        command: &P,
        pins: &impl Pins,
    ) -> Place {
        // In doubt, this node can't tell who has what, and the others wait for it.
        let in_doubt = self.layout.in_doubt && !mutant!("zeus_placed_in_doubt");
        if self.has_line(origin) || !self.layout.is_active() || in_doubt {
            return Place::Here;
        }
        match command.updates() {
            true => self.place_writer(now, command, pins),
            false => self.place_reader(now, origin, command),
        }
    }

    fn place_writer<P: Command>(&mut self, now: Now, command: &P, pins: &impl Pins) -> Place {
        if pins.is_empty() && self.bounces.held.is_empty() {
            return Place::Here;
        }
        let now = now.monotonic;
        let mut anchor = command.anchor().map(Key::from);
        let mut owns_all = true;
        // Of several units that bounce all nodes choose the same one, in whatever order a command has them.
        let mut bounces: Option<Key> = None;
        command.visit_keys(&mut |key| {
            anchor.get_or_insert_with(|| key.into());
            owns_all &= self.is_owner(key);
            let unit = unit_of(key);
            let is_first = bounces.as_ref().is_none_or(|first| unit < &**first);
            if is_first && self.bounces.is_held(unit, now) {
                bounces = Some(unit.into());
            }
        });
        let Some(anchor) = anchor else { return Place::Here };
        let pinned = if mutant!("zeus_pin_by_key") { &*anchor } else { unit_of(&anchor) };
        let pinned = pins.node_of(pinned).filter(|_| !mutant!("zeus_pin_unheeded"));
        let is_there =
            |node| self.layout.active.contains(node) || mutant!("zeus_pin_outlives_node");
        let target = match pinned.filter(|node| is_there(*node)) {
            Some(node) => Some(node),
            None if owns_all => None,
            None => bounces.and_then(|unit| self.layout.default_owner(&unit)),
        };
        match target {
            Some(node) if node != self.layout.node => Place::At(node),
            _ => Place::Here,
        }
    }

    /// A read of what has no copy here runs at a member of the group. If no node has copies of all its
    /// keys, it runs here, and others are asked for what they have.
    fn place_reader<P: Command>(&mut self, now: Now, origin: u64, command: &P) -> Place {
        if self.layout.reads_all() {
            return Place::Here;
        }
        let mut is_here = true;
        let mut have_all = self.layout.active;
        command.visit_keys(&mut |key| {
            is_here &= self.layout.reads(key) || {
                let meta = self.meta(key);
                self.rights().has_copy(&meta, key)
            };
            have_all = have_all.intersection(self.layout.readers(key));
        });
        if is_here || have_all.is_empty() || mutant!("zeus_reads_stay") {
            return Place::Here;
        }
        if !command.asks_placement() && self.copies.begins_count(now, origin) {
            let layout = Arc::clone(&self.layout);
            command.visit_keys(&mut |key| {
                if !layout.reads(key) {
                    self.count_forward(now, key);
                }
            });
        }
        let chosen = self.rng.below(have_all.len() as u64) as usize;
        have_all.nth(chosen).map_or(Place::Here, Place::At)
    }

    /// A key has moved from one live node to another.
    pub(crate) fn note_move(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        self.counters.moves += 1;
        if self.bounces.note_move(key, now.monotonic) && self.hold(now, unit_of(key)) {
            effects.probe("zeus: a key bounces");
            self.counters.bounced += 1;
            let own = self.config.lane;
            for lane in (0..self.config.lanes).map(LaneId).filter(|lane| *lane != own) {
                self.write_to(lane, Letter::Bounces { unit: unit_of(key).into() }, effects);
            }
        }
    }

    /// A unit bounces. Whether that is news.
    pub(crate) fn hold(&mut self, now: Now, unit: &[u8]) -> bool {
        self.bounces.hold(unit, now.monotonic)
    }
}
