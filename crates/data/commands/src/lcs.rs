//! `LCS`: what two strings have in common, in order.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use quorate_machine::Workspace;
use quorate_types::{UnixMillis, limits};

use crate::number::integer;
use crate::options::{SYNTAX, is_word};
use crate::string::bytes_of;
use crate::{Args, Reply};

#[derive(Default)]
struct Options {
    length: bool,
    ranges: bool,
    with_lengths: bool,
    shortest: i64,
}

/// A stretch that both strings contain: where it lies in each.
struct Match {
    first: Range<usize>,
    second: Range<usize>,
}

pub(crate) fn lcs(args: Args<'_>, _: UnixMillis, workspace: &mut dyn Workspace) -> Reply<'static> {
    let mut held = |at| bytes_of(workspace.read(args.get(at))).map(Vec::from);
    let (Ok(first), Ok(second)) = (held(1), held(2)) else {
        return Reply::error("ERR The specified keys must contain string values");
    };
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(error) => return error,
    };
    let Some(lengths) = Lengths::new(&first, &second) else {
        return Reply::error(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        );
    };
    let length = lengths.of(first.len(), second.len());
    if options.length {
        return Reply::Int(i64::from(length));
    }
    let (common, matches) = lengths.trace(&first, &second);
    if !options.ranges {
        return Reply::Bulk(common.into());
    }
    let ends = |range: &Range<usize>| {
        Reply::Array(vec![Reply::Int(range.start as i64), Reply::Int(range.end as i64 - 1)])
    };
    let long_enough = matches.iter().filter(|one| one.first.len() as i64 >= options.shortest);
    let shown = long_enough.map(|one| {
        let mut parts = vec![ends(&one.first), ends(&one.second)];
        if options.with_lengths {
            parts.push(Reply::Int(one.first.len() as i64));
        }
        Reply::Array(parts)
    });
    Reply::Map(vec![
        (Reply::text("matches"), Reply::Array(shown.collect())),
        (Reply::text("len"), Reply::Int(i64::from(length))),
    ])
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Self, Reply<'static>> {
        let mut options = Self::default();
        let mut words = args.iter().skip(3);
        while let Some(word) = words.next() {
            if is_word(word, "IDX") {
                options.ranges = true;
            } else if is_word(word, "LEN") {
                options.length = true;
            } else if is_word(word, "WITHMATCHLEN") {
                options.with_lengths = true;
            } else {
                let shortest = words.next().filter(|_| is_word(word, "MINMATCHLEN"));
                options.shortest = integer(shortest.ok_or(SYNTAX)?)?;
            }
        }
        if options.length && options.ranges {
            return Err(Reply::error(
                "ERR If you want both the length and indexes, please just use IDX.",
            ));
        }
        Ok(options)
    }
}

/// The length of what each prefix of one string has in common with each prefix of the other.
struct Lengths {
    width: usize,
    table: Vec<u32>,
}

impl Lengths {
    /// Fills the table; `None` if it would take more memory than a value may.
    fn new(first: &[u8], second: &[u8]) -> Option<Self> {
        let width = second.len() + 1;
        let cells = (first.len() + 1).checked_mul(width)?;
        if cells > limits::VALUE_BYTES_MAX / size_of::<u32>() {
            return None;
        }
        let mut lengths = Self { width, table: vec![0; cells] };
        for i in 1..=first.len() {
            for j in 1..=second.len() {
                lengths.table[i * width + j] = if first[i - 1] == second[j - 1] {
                    lengths.of(i - 1, j - 1) + 1
                } else {
                    lengths.of(i - 1, j).max(lengths.of(i, j - 1))
                };
            }
        }
        Some(lengths)
    }

    fn of(&self, first: usize, second: usize) -> u32 {
        self.table[first * self.width + second]
    }

    /// The common bytes, and the stretches that they come from, the last one first.
    fn trace(&self, first: &[u8], second: &[u8]) -> (Vec<u8>, Vec<Match>) {
        let (mut common, mut matches) = (Vec::new(), Vec::<Match>::new());
        let (mut i, mut j) = (first.len(), second.len());
        let mut unbroken = false;
        while i > 0 && j > 0 {
            if first[i - 1] != second[j - 1] {
                // Which way Redis goes when both are as long decides what it finds.
                if self.of(i - 1, j) > self.of(i, j - 1) {
                    i -= 1
                } else {
                    j -= 1
                }
                unbroken = false;
                continue;
            }
            common.push(first[i - 1]);
            match matches.last_mut().filter(|_| unbroken) {
                Some(last) => {
                    last.first.start -= 1;
                    last.second.start -= 1;
                }
                None => matches.push(Match { first: i - 1..i, second: j - 1..j }),
            }
            unbroken = true;
            i -= 1;
            j -= 1;
        }
        common.reverse();
        (common, matches)
    }
}
