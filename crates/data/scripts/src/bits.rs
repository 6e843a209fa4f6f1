//! The library `bit`: numbers as 32 bits.

use mlua::{Lua, MultiValue, Result, Table};

use crate::arguments::Arguments;

/// The lowest 32 bits of a number, as BitOp finds them: whole numbers up to 2^51 keep their own.
fn bits(args: &Arguments<'_>, index: usize) -> Result<u32> {
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    Ok((args.number(index)? + SHIFT).to_bits() as u32)
}

fn number(bits: u32) -> f64 {
    f64::from(bits.cast_signed())
}

/// The library.
pub(crate) fn library(lua: &Lua) -> Result<Table> {
    type One = fn(u32) -> u32;
    type Two = fn(u32, u32) -> u32;
    let bit = lua.create_table()?;
    let ones: [(&str, One); 3] = [("tobit", |a| a), ("bnot", |a| !a), ("bswap", u32::swap_bytes)];
    for (name, apply) in ones {
        let f = lua.create_function(move |lua, args: MultiValue| {
            Ok(number(apply(bits(&Arguments::new(lua, &args), 1)?)))
        })?;
        bit.raw_set(name, f)?;
    }
    let shifts: [(&str, Two); 5] = [
        ("lshift", |a, by| a << (by & 31)),
        ("rshift", |a, by| a >> (by & 31)),
        ("arshift", |a, by| (a.cast_signed() >> (by & 31)).cast_unsigned()),
        ("rol", |a, by| a.rotate_left(by & 31)),
        ("ror", |a, by| a.rotate_right(by & 31)),
    ];
    for (name, apply) in shifts {
        let f = lua.create_function(move |lua, args: MultiValue| {
            let args = Arguments::new(lua, &args);
            Ok(number(apply(bits(&args, 1)?, bits(&args, 2)?)))
        })?;
        bit.raw_set(name, f)?;
    }
    let folds: [(&str, Two); 3] =
        [("band", |a, b| a & b), ("bor", |a, b| a | b), ("bxor", |a, b| a ^ b)];
    for (name, apply) in folds {
        let f = lua.create_function(move |lua, args: MultiValue| {
            let args = Arguments::new(lua, &args);
            let mut all = bits(&args, 1)?;
            for index in 2..=args.len() {
                all = apply(all, bits(&args, index)?);
            }
            Ok(number(all))
        })?;
        bit.raw_set(name, f)?;
    }
    let tohex = lua.create_function(|lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let value = bits(&args, 1)?;
        let digits = if args.len() < 2 { 8 } else { bits(&args, 2)?.cast_signed() };
        let count = digits.unsigned_abs().min(8) as usize;
        let text = if digits < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
        Ok(text[8 - count..].to_owned())
    })?;
    bit.raw_set("tohex", tohex)?;
    Ok(bit)
}
