//! Members and their scores: added, changed, removed and looked up.

use alloc::vec::Vec;

use quorate_machine::{Change, Current};

use super::SortedSet;
use super::patch::Patch;
use crate::double::double;
use crate::options::{SYNTAX, is_word};
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply};

key_functions! {
    zadd => |args, _, current| add(Options::parse(args), args, current);
    zincrby => |args, _, current| {
        add(Options { increments: true, ..Options::parse(args) }, args, current)
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
        let members = args.iter().skip(2);
        let mut patch = Patch::new(SortedSet::or_empty(current)?, members.clone());
        let score = |member| patch.slot(member).score.map_or(Reply::Null, Reply::Double);
        Ok((Reply::Array(members.map(score).collect()), Change::Keep))
    };
    zrank => |args, _, current| rank(args, current, false);
    zrevrank => |args, _, current| rank(args, current, true);
}

/// What may be said before the scores. A word that is said twice counts once.
#[derive(Clone, Copy, Default)]
struct Options {
    only_absent: bool,
    only_present: bool,
    only_greater: bool,
    only_less: bool,
    counts_changes: bool,
    increments: bool,
    /// The first argument that is no option.
    end: usize,
}

impl Options {
    fn parse(args: Args<'_>) -> Self {
        let mut options = Self { end: 2, ..Self::default() };
        for word in args.iter().skip(2) {
            let option = match () {
                () if is_word(word, "NX") => &mut options.only_absent,
                () if is_word(word, "XX") => &mut options.only_present,
                () if is_word(word, "GT") => &mut options.only_greater,
                () if is_word(word, "LT") => &mut options.only_less,
                () if is_word(word, "CH") => &mut options.counts_changes,
                () if is_word(word, "INCR") => &mut options.increments,
                () => break,
            };
            *option = true;
            options.end += 1;
        }
        options
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
}

fn add<'a>(options: Options, args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let words = || args.iter().skip(options.end);
    options.check(words().count())?;
    let scores: Vec<f64> = words().step_by(2).map(double).collect::<Result<_, _>>()?;
    let members = words().skip(1).step_by(2);
    let mut patch = Patch::new(SortedSet::or_empty(current)?, members.clone());
    let (mut added, mut changed, mut last) = (0, 0, None);
    for (member, said) in members.zip(scores) {
        let slot = patch.slot(member);
        last = options.score(slot.score, said)?;
        let Some(score) = last else { continue };
        match slot.score {
            None => added += 1,
            Some(old) if old != score => changed += 1,
            // The score 0 stays what it is when it is said to be -0.
            Some(_) => continue,
        }
        slot.score = last;
    }
    let reply = match (options.increments, options.counts_changes) {
        (true, _) => last.map_or(Reply::Null, Reply::Double),
        (false, true) => Reply::Int(added + changed),
        (false, false) => Reply::Int(added),
    };
    Ok((reply, patch.store(current)?))
}

/// `ZRANK key member [WITHSCORE]`; the option is Redis 7.2's.
fn rank<'a>(args: Args<'a>, current: Current<'a>, reverse: bool) -> Outcome<'a> {
    let with_score = args.len() > 3;
    if args.len() > 4 || with_score && !is_word(args.get(3), "WITHSCORE") {
        return Err(SYNTAX);
    }
    let set = SortedSet::or_empty(current)?;
    let mut entries = set.entries();
    let found = entries.by_ref().enumerate().find(|(_, entry)| entry.member == args.get(2));
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
