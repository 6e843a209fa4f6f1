//! Transactions that move unique elements between lists and between sets, and read where they are.
//!
//! Elements are put in and never taken out. So a read of all keys of a group shows each element that
//! was there before, and none twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use quorate_check::{Answer, Bytes};
use quorate_commands::{Block, Op, OwnedCall, Reply};
use quorate_machine::Rng;

use crate::collections::{self, elements_of};
use crate::command::Command;
use crate::losses::Losing;
use crate::process::Entry;

/// The prefix of these keys, which are `moved:TYPE:AGE:NUMBER`.
const PREFIX: &str = "moved:";
/// Transactions after which clients go on to another group.
const LIFE: u64 = 40;
/// The keys of a group, which each transaction reads last.
const KEYS: usize = 3;

/// The commands of a transaction, by their words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Moves(Vec<String>);

impl Moves {
    pub(crate) fn draw(unique: u64, rng: &mut Rng) -> Self {
        let age = unique / LIFE;
        let of = ["list", "set"][rng.below(2) as usize];
        let key = |number: u64| format!("{PREFIX}{of}:{age}:{number}");
        let any = |rng: &mut Rng| key(rng.below(KEYS as u64));
        let is_list = of == "list";
        let mut commands = Vec::new();
        if rng.chance(1, 2) {
            let put = if is_list { "RPUSH" } else { "SADD" };
            commands.push(format!("{put} {} e{unique}", any(rng)));
        }
        for _ in 0..rng.below(3) {
            let (from, to) = (any(rng), any(rng));
            let element = format!("e{}", unique.saturating_sub(rng.below(12)));
            let words = match (is_list, rng.below(8)) {
                (true, 0..4) => format!("LMOVE {from} {to} LEFT RIGHT"),
                (true, _) => format!("LMOVE {from} {to} RIGHT LEFT"),
                // A key of another type takes no member.
                (false, 0) => {
                    commands.push(format!("SET {PREFIX}text:{age} v"));
                    format!("SMOVE {from} {PREFIX}text:{age} {element}")
                }
                // No element is in two sets.
                (false, 1) => format!("SINTERSTORE {PREFIX}both:{age} {} {}", key(0), key(1)),
                (false, _) => format!("SMOVE {from} {to} {element}"),
            };
            commands.push(words);
        }
        let read = |number| match is_list {
            true => format!("LRANGE {} 0 -1", key(number)),
            false => format!("SMEMBERS {}", key(number)),
        };
        commands.extend((0..KEYS as u64).map(read));
        Self(commands)
    }

    pub(crate) fn command(&self) -> Command {
        let call = |words: &String| {
            OwnedCall::new(words.split(' ').map(str::as_bytes)).expect("clients know the commands")
        };
        let calls = self.0.iter().map(call).collect();
        Command(Op::Block(Block { watches: Vec::new(), calls }))
    }

    /// The group: its keys without their numbers.
    fn group(&self) -> &str {
        let read = self.0.last().map_or("", String::as_str);
        read.split(' ').nth(1).and_then(group_of).unwrap_or_default()
    }

    fn put(&self) -> impl Iterator<Item = Bytes> {
        let puts =
            self.0.iter().filter(|words| words.starts_with("RPUSH") || words.starts_with("SADD"));
        puts.filter_map(|words| words.rsplit(' ').next()).map(Bytes::from)
    }
}

/// The group of a key.
fn group_of(key: &str) -> Option<&str> {
    let (group, _) = key.strip_prefix(PREFIX)?.rsplit_once(':')?;
    Some(&key[..PREFIX.len() + group.len()])
}

/// The elements that were put into each group.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    groups: BTreeMap<String, Group>,
    /// When something was lost for the last time, and when that may have been a part of a transaction.
    lost_at: Option<u64>,
    torn_at: Option<u64>,
}

#[derive(Debug, Default)]
struct Group {
    /// What was put in for sure, and when its client waited for the answer, in the order of the answers.
    put: Vec<(Bytes, u64, u64)>,
    /// When a transaction ended last.
    ended: u64,
    /// Whether a loss may have taken a part of a transaction: then elements may be in two places or in none.
    is_torn: bool,
}

impl Moved {
    /// What was answered last may be lost.
    pub(crate) fn lose(&mut self, Losing { loss, torn }: Losing) {
        self.lost_at = Some(loss.at);
        self.torn_at = self.lost_at.filter(|_| torn);
        for group in self.groups.values_mut() {
            group.put.retain(|(_, began, ended)| !loss.takes(*began, *ended));
            group.is_torn |= torn && group.ended >= loss.from;
        }
    }

    /// A transaction had no answer.
    pub(crate) fn never_known(&mut self, moves: &Moves, span: (u64, u64)) {
        self.note_end(moves, span);
    }

    /// Notes that a transaction has ended. Whether its group may be torn.
    fn note_end(&mut self, moves: &Moves, (began, now): (u64, u64)) -> bool {
        let group = self.groups.entry(moves.group().to_owned()).or_default();
        group.ended = now;
        group.is_torn |= self.torn_at >= Some(began);
        group.is_torn
    }

    /// Judges an answer. If reads are `strict`, all elements that were there before it was asked for must be among
    /// what was read.
    pub(crate) fn end(
        &mut self,
        moves: &Moves,
        strict: bool,
        reply: &Reply<'static>,
        (began, now): (u64, u64),
    ) -> Result<(), String> {
        let is_torn = self.note_end(moves, (began, now));
        let wrong = |what: &str| Err(format!("{what}: {moves} was answered {reply:?}"));
        let Reply::Array(replies) = reply else { return wrong("no block") };
        if replies.len() != moves.0.len() {
            return wrong("not an answer for each command");
        }
        let met =
            moves.0.iter().zip(replies).find(|(words, reply)| {
                words.starts_with("SINTERSTORE") && **reply != Reply::Int(0)
            });
        if met.is_some() && !is_torn {
            return wrong("an element is in two sets");
        }
        let mut found = BTreeSet::new();
        for reply in &replies[replies.len() - KEYS..] {
            let Answer::Array(items) = collections::to_answer(reply) else {
                return wrong("no elements");
            };
            for item in items {
                let Answer::Value(Some(element)) = item else { return wrong("no element") };
                if !found.insert(element) && !is_torn {
                    return wrong("an element is there twice");
                }
            }
        }
        let all = self.groups.entry(moves.group().to_owned()).or_default();
        // What was lost meanwhile was counted.
        let is_risky = self.lost_at >= Some(began);
        // A loss that shows late may have taken some of what was put in before.
        let was_there = |ended: u64| strict && !is_risky && ended < began;
        let is_lost = |element: &Bytes, ended| was_there(ended) && !found.contains(element);
        let lost = all.put.iter().find(|(element, _, ended)| is_lost(element, *ended));
        if let Some((lost, ..)) = lost.filter(|_| !is_torn) {
            return wrong(&format!("{lost} is missing"));
        }
        let put = moves.put().filter(|_| !is_risky);
        all.put.extend(put.map(|element| (element, began, now)));
        Ok(())
    }

    /// Judges what is there at the end.
    pub(crate) fn check_left(&self, contents: &[Entry]) -> Result<(), String> {
        let mut left: BTreeMap<&str, BTreeSet<Bytes>> = BTreeMap::new();
        for (key, _, text) in contents {
            let Some(group) = group_of(key) else { continue };
            for element in elements_of(text).unwrap_or_default() {
                let is_torn = self.groups.get(group).is_some_and(|group| group.is_torn);
                if !left.entry(group).or_default().insert(element.clone()) && !is_torn {
                    return Err(format!("{element} is in two keys of {group} at the end"));
                }
            }
        }
        for (group, all) in self.groups.iter().filter(|(_, all)| !all.is_torn) {
            let left = left.get(group.as_str());
            let mut put = all.put.iter().map(|(element, ..)| element);
            if let Some(lost) = put.find(|one| !left.is_some_and(|left| left.contains(*one))) {
                return Err(format!("{lost} is missing from {group} at the end"));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MOVES; {}; EXEC", self.0.join("; "))
    }
}

impl FromStr for Moves {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let commands = text.strip_prefix("MOVES; ").and_then(|text| text.strip_suffix("; EXEC"));
        let commands: Vec<String> =
            commands.into_iter().flat_map(|text| text.split("; ")).map(str::to_owned).collect();
        let moves = Self(commands);
        if moves.0.len() < KEYS || moves.group().is_empty() {
            return Err(format!("'{text}' moves nothing"));
        }
        Ok(moves)
    }
}

#[cfg(test)]
mod tests {
    use quorate_check::Loss;

    use super::*;

    fn bulk(text: &str) -> Reply<'static> {
        Reply::Bulk(text.as_bytes().to_vec().into())
    }

    #[test]
    fn an_element_is_in_one_place() {
        let text = "MOVES; SADD moved:set:0:0 e1; SMEMBERS moved:set:0:0; SMEMBERS moved:set:0:1; \
                    SMEMBERS moved:set:0:2; EXEC";
        let moves: Moves = text.parse().expect("it is one");
        assert_eq!(moves.to_string(), text);
        let answer = |sets: [&[&str]; 3]| {
            let sets = sets.map(|set| Reply::Set(set.iter().map(|one| bulk(one)).collect()));
            Reply::Array([Reply::Int(1)].into_iter().chain(sets).collect())
        };
        let mut moved = Moved::default();
        assert_eq!(moved.end(&moves, true, &answer([&["e1"], &[], &["e0"]]), (1, 2)), Ok(()));
        assert_eq!(moved.end(&moves, true, &answer([&[], &["e1"], &[]]), (3, 4)), Ok(()));
        for sets in [[&["e1"][..], &["e1"], &[]], [&[], &["e2"], &[]]] {
            assert!(moved.end(&moves, true, &answer(sets), (5, 6)).is_err(), "{sets:?}");
        }
        // A loss may show late to have been larger: before the end of what has begun since.
        let without = answer([&["e2"], &[], &[]]);
        assert!(moved.end(&moves, true, &without, (7, 9)).is_err());
        moved.lose(Losing { loss: Loss { from: 0, at: 5, all: false }, torn: false });
        assert_eq!(moved.end(&moves, true, &without, (7, 9)), Ok(()));
        assert_eq!(moved.end(&moves, true, &answer([&["e1"], &[], &[]]), (10, 11)), Ok(()));
        let entry = |number: u64, text: &str| {
            (format!("moved:set:0:{number}"), String::new(), text.to_owned())
        };
        assert_eq!(moved.check_left(&[entry(1, "Set 0 e1"), entry(2, "Set 0 e5")]), Ok(()));
        assert!(moved.check_left(&[entry(1, "Set 0 e1"), entry(2, "Set 0 e1")]).is_err());
        assert!(moved.check_left(&[entry(2, "Set 0 e5")]).is_err());
    }
}
