//! Members and their scores: added, changed, removed and looked up.

use alloc::vec::Vec;

use quorate_machine::{Change, Current};

use super::patch::Patch;
use super::{Entry, SortedSet};
use crate::double::double;
use crate::options::{SYNTAX, is_word};
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply};

key_functions! {
    zadd => |args, _, current| add(Additions::default(), args, current);
    zincrby => |args, _, current| {
        add(Additions { increments: true, ..Additions::default() }, args, current)
    };
    zrem => |args, _, current| {
        let Some(set) = SortedSet::of(current)? else { return Ok((Reply::Int(0), Change::Keep)) };
        let members = args.iter().skip(2);
        let mut patch = Patch::new(set, members.clone());
        let removed = members.filter(|member| patch.slot(member).score.take().is_some()).count();
        Ok((Reply::Int(removed as i64), patch.store(current)?))
    };
    zcard => |_, _, current| {
        Ok((Reply::Int(SortedSet::or_empty(current)?.count as i64), Change::Keep))
    };
    zscore => |args, _, current| {
        let score = SortedSet::or_empty(current)?.find(args.get(2));
        Ok((score.map_or(Reply::Null, Reply::Double), Change::Keep))
    };
    zmscore => |args, _, current| {
        let scores = scores(SortedSet::or_empty(current)?, args.iter().skip(2));
        let score = |score: Option<f64>| score.map_or(Reply::Null, Reply::Double);
        Ok((Reply::Array(scores.map(score).collect()), Change::Keep))
    };
    zrank => |args, _, current| rank(args, current, false);
    zrevrank => |args, _, current| rank(args, current, true);
}

/// How members are to be added.
#[derive(Clone, Copy, Default)]
pub(crate) struct Additions {
    pub(crate) only_absent: bool,
    pub(crate) only_present: bool,
    pub(crate) counts_changes: bool,
    only_greater: bool,
    only_less: bool,
    increments: bool,
}

impl Additions {
    /// Takes a word that may stand before the scores; false for any other word.
    fn option(&mut self, word: &[u8]) -> bool {
        let option = match () {
            () if is_word(word, "NX") => &mut self.only_absent,
            () if is_word(word, "XX") => &mut self.only_present,
            () if is_word(word, "GT") => &mut self.only_greater,
            () if is_word(word, "LT") => &mut self.only_less,
            () if is_word(word, "CH") => &mut self.counts_changes,
            () if is_word(word, "INCR") => &mut self.increments,
            () => return false,
        };
        *option = true;
        true
    }

    fn check(self, words: usize) -> Result<(), Reply<'static>> {
        let Self { only_absent, only_present, only_greater, only_less, .. } = self;
        if words == 0 || !words.is_multiple_of(2) {
            return Err(SYNTAX);
        }
        if only_absent && only_present {
            return Err(Reply::error("ERR XX and NX options at the same time are not compatible"));
        }
        if only_greater && (only_absent || only_less) || only_less && only_absent {
            return Err(Reply::error(
                "ERR GT, LT, and/or NX options at the same time are not compatible",
            ));
        }
        if self.increments && words > 2 {
            return Err(Reply::error("ERR INCR option supports a single increment-element pair"));
        }
        Ok(())
    }

    /// The score that a member gets; `None` if it stays as it is.
    ///
    /// # Errors
    /// If the sum is no number.
    fn score(self, old: Option<f64>, said: f64) -> Result<Option<f64>, Reply<'static>> {
        let Some(old) = old else { return Ok((!self.only_present).then_some(said)) };
        if self.only_absent {
            return Ok(None);
        }
        let new = if self.increments { old + said } else { said };
        if new.is_nan() {
            return Err(Reply::error("ERR resulting score is not a number (NaN)"));
        }
        let is_refused = self.only_less && new >= old || self.only_greater && new <= old;
        Ok((!is_refused).then_some(new))
    }

    /// Adds members one after the other, of which one may be there already or be named repeatedly.
    pub(crate) fn add<'a>(self, entries: &[Entry<'a>], current: Current<'a>) -> Outcome<'a> {
        let members = entries.iter().map(|entry| entry.member);
        let mut patch = Patch::new(SortedSet::or_empty(current)?, members);
        let (mut added, mut changed, mut last) = (0, 0, None);
        for Entry { score: said, member } in entries {
            let slot = patch.slot(member);
            last = self.score(slot.score, *said)?;
            let Some(score) = last else { continue };
            match slot.score {
                None => added += 1,
                Some(old) if old != score => changed += 1,
                // The score 0 stays what it is when it is said to be -0.
                Some(_) => continue,
            }
            slot.score = last;
        }
        let reply = match (self.increments, self.counts_changes) {
            (true, _) => last.map_or(Reply::Null, Reply::Double),
            (false, true) => Reply::Int(added + changed),
            (false, false) => Reply::Int(added),
        };
        Ok((reply, patch.store(current)?))
    }
}

/// `ZADD key [options] score member ...`, and `ZINCRBY`, for which some of the same words are options.
fn add<'a>(mut additions: Additions, args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let options = args.iter().skip(2).take_while(|word| additions.option(word)).count();
    let words = || args.iter().skip(2 + options);
    additions.check(words().count())?;
    let entry = |(said, member)| Ok(Entry { score: double(said)?, member });
    let pairs = words().step_by(2).zip(words().skip(1).step_by(2));
    let entries: Vec<_> = pairs.map(entry).collect::<Result<_, Reply<'static>>>()?;
    additions.add(&entries, current)
}

/// The score of each of these members.
pub(crate) fn scores<'a>(
    set: SortedSet<'a>,
    members: impl Iterator<Item = &'a [u8]> + Clone,
) -> impl Iterator<Item = Option<f64>> {
    let mut patch = Patch::new(set, members.clone());
    members.map(move |member| patch.slot(member).score)
}

/// `ZRANK key member [WITHSCORE]`; the option is Redis 7.2's.
fn rank<'a>(args: Args<'a>, current: Current<'a>, reverse: bool) -> Outcome<'a> {
    let with_score = args.len() > 3;
    if args.len() > 4 || with_score && !is_word(args.get(3), "WITHSCORE") {
        return Err(SYNTAX);
    }
    let set = SortedSet::or_empty(current)?;
    let found = match set.large {
        None => set.entries().enumerate().find(|(_, entry)| entry.member == args.get(2)),
        Some(large) => large.rank(args.get(2)).zip(large.entry(args.get(2))),
    };
    let Some((rank, entry)) = found else {
        return Ok((if with_score { Reply::NullArray } else { Reply::Null }, Change::Keep));
    };
    let rank = if reverse { set.count.saturating_sub(rank + 1) } else { rank };
    let rank = Reply::Int(rank as i64);
    let reply = match with_score {
        true => Reply::Array([rank, Reply::Double(entry.score)].into()),
        false => rank,
    };
    Ok((reply, Change::Keep))
}
