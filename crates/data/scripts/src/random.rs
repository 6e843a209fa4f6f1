//! `math.random` with Redis's generator, that of `drand48`. In Redis it goes on from script to script;
//! here the call's seed, the time and the arguments say where it begins, so that a transaction that runs
//! again, or elsewhere, draws the same.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, MultiValue, Result, Table};
use quorate_machine::mutant;
use quorate_types::{UnixMillis, hash_key};

use crate::arguments::Arguments;
use crate::error::raise;
use crate::vm::Script;

/// Twice the state of the generator.
#[derive(Debug, Default)]
pub(crate) struct Random(Cell<u64>);

const MULTIPLIER: u64 = 0x5_deec_e66d;
const MASK: u64 = (1 << 48) - 1;

impl Random {
    /// Begins with a seed.
    pub(crate) fn seed(&self, seed: u32) {
        self.0.set(u64::from(seed) << 16 | 0x330e);
    }

    /// Begins as every run of the same call does at this time.
    pub(crate) fn begin(&self, script: &Script<'_>, now: UnixMillis) {
        if !mutant!("scripts_random_unseeded") {
            let arguments = script.args.iter().skip(2).take(HASHED_ARGUMENTS);
            let begin = hash_key(&(now.0 ^ script.args.seed).to_le_bytes());
            let hash =
                arguments.fold(begin, |hash, argument| hash.rotate_left(7) ^ hash_key(argument));
            self.seed((hash >> 32) as u32);
        }
    }

    fn next(&self) -> u32 {
        let state = (self.0.get().wrapping_mul(MULTIPLIER) + 0xb) & MASK;
        self.0.set(state);
        (state >> 17) as u32
    }
}

/// Arguments that decide where the generator begins.
const HASHED_ARGUMENTS: usize = 16;

const NEXT_MAX: u32 = i32::MAX as u32;

/// Adds `random` and `randomseed`.
pub(crate) fn add(lua: &Lua, math: &Table, random: &Rc<Random>) -> Result<()> {
    let state = random.clone();
    let draw = lua.create_function(move |lua, args: MultiValue| {
        let part = f64::from(state.next() % NEXT_MAX) / f64::from(NEXT_MAX);
        let args = Arguments::new(lua, &args);
        match args.len() {
            0 => Ok(part),
            1 => {
                let to = args.int(1)?;
                if to < 1 {
                    return Err(args.bad(1, "interval is empty"));
                }
                Ok((part * f64::from(to)).floor() + 1.0)
            }
            2 => {
                let (from, to) = (args.int(1)?, args.int(2)?);
                if from > to {
                    return Err(args.bad(2, "interval is empty"));
                }
                let count = to.wrapping_sub(from).wrapping_add(1);
                Ok((part * f64::from(count)).floor() + f64::from(from))
            }
            _ => Err(raise(lua, "wrong number of arguments")),
        }
    })?;
    math.raw_set("random", draw)?;
    let state = random.clone();
    let seed = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        state.seed(args.int(1)?.cast_unsigned());
        Ok(())
    })?;
    math.raw_set("randomseed", seed)
}
