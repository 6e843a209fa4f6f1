//! Payments among friends, after the public record of Venmo's payments that Zeus's authors cut into
//! as many parts as there are nodes (Zeus §2.2, §8): 0.7% of payments crossed three parts, and 1.2%
//! crossed six. **This graph is synthetic**: a planted partition. Users form communities of equal
//! size, communities are dealt out over the nodes, and a payment goes to a member of the payer's
//! community, but for the given share, which goes to any user of another node.

use super::ledger::{Book, Change};
use super::{Draw, Ledger, Model, Part, Scenario};
use crate::layout::{Slot, UNIT_DIGITS};
use crate::{Answer, Content, Layout, Transaction, TransactionKind};

pub(super) const LAYOUT: Layout = Layout::new(&[Slot::string("wallet:", UNIT_DIGITS, 8)]);

/// Users of a community.
pub(super) const COMMUNITY: u64 = 50;
const FIRST_BALANCE: i64 = 1000;
/// The most that a payment moves.
const PAID_MAX: u64 = 10;

/// The share of payments that cross so many nodes (Zeus §8).
pub(super) const fn cut(nodes: u16) -> f64 {
    match nodes {
        0 | 1 => 0.0,
        2 | 3 => 0.007,
        _ => 0.012,
    }
}

pub(super) const fn first_content() -> Content {
    Content::Number(FIRST_BALANCE)
}

/// What all users hold together.
pub(super) const fn first_sum(users: u64) -> i64 {
    FIRST_BALANCE * users as i64
}

pub(super) struct Venmo {
    part: Part,
    nodes: u16,
    cut: f64,
    rewired: f64,
    /// The users in the order of their communities.
    users: Vec<u32>,
    /// How many users have found other friends.
    switched: u64,
    book: Book,
}

impl Venmo {
    pub(super) fn new(scenario: &Scenario, part: Part) -> Self {
        let users = part.units(scenario.units);
        Self {
            part,
            nodes: scenario.nodes,
            cut: scenario.remote_share(),
            rewired: scenario.rewired,
            users: (0..users as u32).collect(),
            switched: 0,
            book: Book::default(),
        }
    }

    /// Lets users change places as time passes.
    fn rewire(&mut self, draw: &mut Draw<'_>) {
        let users = self.users.len() as u64;
        let due = draw.turn.elapsed.as_secs_f64() * self.rewired * users as f64;
        while self.switched + 2 <= due as u64 {
            let (one, other) = (draw.rng.below(users), draw.rng.below(users));
            self.users.swap(one as usize, other as usize);
            self.switched += 2;
        }
    }

    /// A place in a community of this node.
    fn place(&self, draw: &mut Draw<'_>, node: u16) -> u64 {
        let communities = (self.users.len() as u64).div_ceil(COMMUNITY);
        let (nodes, node) = (u64::from(self.nodes), u64::from(node));
        let of_node = (communities + nodes - 1 - node) / nodes;
        loop {
            let community = draw.rng.below(of_node) * nodes + node;
            let place = community * COMMUNITY + draw.rng.below(COMMUNITY);
            if place < self.users.len() as u64 {
                return place;
            }
        }
    }

    /// The place of another member of its community.
    fn friend(&self, draw: &mut Draw<'_>, place: u64) -> u64 {
        let first = place / COMMUNITY * COMMUNITY;
        let members = COMMUNITY.min(self.users.len() as u64 - first);
        if members == 1 {
            // The last community may have a single member.
            return first - 1;
        }
        let shift = 1 + draw.rng.below(members - 1);
        first + (place - first + shift) % members
    }
}

impl Model for Venmo {
    fn draw(&mut self, draw: &mut Draw<'_>, transaction: &mut Transaction) {
        self.rewire(draw);
        let from = self.place(draw, draw.here);
        let is_remote = draw.chance(self.cut);
        let to = match is_remote {
            true => {
                let node = draw.elsewhere(self.nodes);
                self.place(draw, node)
            }
            false => self.friend(draw, from),
        };
        draw.drawn.writes += 1;
        draw.drawn.remote += u64::from(is_remote);
        let amount = 1 + draw.rng.below(PAID_MAX) as i64;
        transaction.kind = TransactionKind::Payment;
        for (place, change) in [(from, -amount), (to, amount)] {
            let user = self.part.unit(u64::from(self.users[place as usize]));
            transaction.put(user, Content::Sum(change));
        }
        self.book.begin(draw.turn.client, Change::exactly(0));
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        self.book.end(client, answer);
    }

    fn home(&self, key: u64) -> u16 {
        // Before any has found other friends.
        (self.part.place(key) / COMMUNITY % u64::from(self.nodes)) as u16
    }

    fn ledger(&self) -> Ledger {
        self.book.ledger()
    }
}
