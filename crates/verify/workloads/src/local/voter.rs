//! Voter (Difallah et al. 2013) as in Zeus §8.4: people vote by phone for one of 20 contestants. A
//! vote changes two objects, the contestant's total and the voter's count, which is limited.
//!
//! Each voter is a fan of one contestant, whose home is the voter's, too. A move takes contestants
//! to the next node, and with them their fans: all of them (the paper's first experiment), or one
//! popular contestant with a given number of fans (its second one).

use super::ledger::{Book, Change};
use super::{Draw, Ledger, Model, Moves, Part, Scenario};
use crate::layout::{Slot, UNIT_DIGITS};
use crate::{Answer, Content, Layout, Rule, Transaction, TransactionKind};

pub(super) const LAYOUT: Layout = Layout::new(&[
    Slot::string("voter:", UNIT_DIGITS, 8),
    Slot::string("contestant:", UNIT_DIGITS, 8),
]);

/// Contestants; their keys are those of the first units' second slot.
pub(super) const CONTESTANTS: u64 = 20;
/// Votes that each voter has. Asked of the store only by a client that reads before it writes.
pub(super) const VOTES_MAX: i64 = 10;
/// Draws after which a vote is for a contestant of another node.
const DRAWS_MAX: u32 = 64;

pub(super) fn voter(unit: u64) -> u64 {
    unit * 2
}

fn contestant(number: u64) -> u64 {
    number * 2 + 1
}

/// Whether the key is a contestant's, or would be if there were so many.
pub(super) fn is_contestant(key: u64) -> bool {
    key % 2 == 1
}

pub(super) fn first_content(key: u64) -> Option<Content> {
    (!is_contestant(key) || key / 2 < CONTESTANTS).then_some(Content::Number(0))
}

pub(super) struct Voter {
    part: Part,
    nodes: u16,
    remote: f64,
    moves: Moves,
    /// How many moves have happened.
    moved: usize,
    /// Whether only the first contestant moves.
    has_star: bool,
    /// The contestant of each voter.
    fan_of: Vec<u8>,
    homes: [u16; CONTESTANTS as usize],
    book: Book,
}

impl Voter {
    pub(super) fn new(scenario: &Scenario, part: Part) -> Self {
        let voters = part.units(scenario.units);
        let fan_of = (0..voters).map(|place| match (part.unit(place), scenario.movers) {
            (voter, Some(fans)) if voter < fans => 0,
            (voter, Some(_)) => 1 + (voter % (CONTESTANTS - 1)) as u8,
            (voter, None) => (voter % CONTESTANTS) as u8,
        });
        let moves_all = scenario.moves != Moves::Never && scenario.movers.is_none();
        let home = |number: usize| if moves_all { 0 } else { number as u16 % scenario.nodes };
        Self {
            part,
            nodes: scenario.nodes,
            remote: scenario.remote_share(),
            moves: scenario.moves.clone(),
            moved: 0,
            has_star: scenario.movers.is_some(),
            fan_of: fan_of.collect(),
            homes: std::array::from_fn(home),
            book: Book::default(),
        }
    }

    fn home_of(&self, voter: u64) -> u16 {
        self.homes[usize::from(self.fan_of[voter as usize])]
    }

    fn move_on(&mut self, draw: &Draw<'_>) {
        let due = self.moves.due(draw.turn.elapsed, draw.drawn.transactions);
        while self.moved < due {
            self.moved += 1;
            let movers = if self.has_star { 1 } else { self.homes.len() };
            for home in &mut self.homes[..movers] {
                *home = (*home + 1) % self.nodes;
            }
        }
    }

    /// A voter of the client's node; or, if it has hardly any, one of another node.
    fn draw_voter(&self, draw: &mut Draw<'_>) -> u64 {
        let voters = self.fan_of.len() as u64;
        if self.homes.contains(&draw.here) {
            for _ in 0..DRAWS_MAX {
                let voter = draw.rng.below(voters);
                if self.home_of(voter) == draw.here {
                    return voter;
                }
            }
        }
        draw.rng.below(voters)
    }
}

impl Model for Voter {
    fn draw(&mut self, draw: &mut Draw<'_>, transaction: &mut Transaction) {
        self.move_on(draw);
        let mut voter = self.draw_voter(draw);
        // A remote vote: somebody from elsewhere becomes a fan of a contestant of this node.
        if draw.chance(self.remote) {
            let contestant = self.fan_of[voter as usize];
            for _ in 0..DRAWS_MAX {
                let other = draw.rng.below(self.fan_of.len() as u64);
                if self.home_of(other) != self.homes[usize::from(contestant)] {
                    voter = other;
                    self.fan_of[voter as usize] = contestant;
                    draw.drawn.remote += 1;
                    break;
                }
            }
        }
        draw.drawn.writes += 1;
        let key = self::voter(self.part.unit(voter));
        transaction.kind = TransactionKind::Vote;
        transaction.gets.push(key);
        transaction.put(contestant(u64::from(self.fan_of[voter as usize])), Content::Sum(1));
        transaction.put(key, Content::Sum(1));
        transaction.rule = Rule::Below(VOTES_MAX);
        // Where the voter's calls are taken.
        transaction.node = Some(self.home_of(voter));
        let change = Change { expected: 1, told: (1, 2), bounds: (0, 1) };
        self.book.begin(draw.turn.client, change);
    }

    fn start(&mut self, moves: &Moves) {
        self.moves = moves.clone();
        self.moved = 0;
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        self.book.end(client, answer);
    }

    fn home(&self, key: u64) -> u16 {
        let unit = key / LAYOUT.slots();
        match is_contestant(key) {
            true => self.homes.get(unit as usize).copied().unwrap_or_default(),
            false => self.home_of(self.part.place(unit)),
        }
    }

    fn ledger(&self) -> Ledger {
        self.book.ledger()
    }
}
