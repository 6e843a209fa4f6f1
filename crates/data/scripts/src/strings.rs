//! The functions of `string` that a bound on instructions doesn't bound.

use std::cell::Cell;
use std::rc::Rc;

use memchr::memmem;
use mlua::{Function, Lua, LuaString, MultiValue, Result, Table, Value};

use crate::arguments::Arguments;
use crate::budget::{Budget, Stop};
use crate::error::raise;
use crate::limits;
use crate::pattern::Matcher;

const SPECIAL: &[u8] = b"^$*+?.([%-";

/// Adds the functions to `string`, and to `host` what its wrapper of `gsub` needs. Returns `gsub` by
/// a text.
pub(crate) fn add(
    lua: &Lua,
    string: &Table,
    host: &Table,
    budget: &Rc<Budget>,
) -> Result<Function> {
    for (name, finds) in [("find", true), ("match", false)] {
        let budget = budget.clone();
        let f = lua.create_function(move |lua, args: MultiValue| {
            find(lua, &budget, &Arguments::new(lua, &args), finds)
        })?;
        string.raw_set(name, f)?;
    }
    let shared = budget.clone();
    let gmatch = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let (text, pattern) = (args.string(1)?, args.string(2)?);
        let (budget, next) = (shared.clone(), Cell::new(0));
        lua.create_function(move |lua, _: MultiValue| {
            let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
            let mut matcher = Matcher::new(lua, &budget, &text, &pattern);
            for start in next.get()..=text.len() {
                if let Some(end) = matcher.match_at(start)? {
                    next.set(if end == start { end + 1 } else { end });
                    return values(&matcher, start, end, true);
                }
            }
            next.set(text.len() + 1);
            Ok(MultiValue::from_iter([Value::Nil]))
        })
    })?;
    string.raw_set("gmatch", gmatch)?;
    let shared = budget.clone();
    let rep = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let (text, count) = (args.string(1)?, args.number(2)? as i64);
        let count = usize::try_from(count).unwrap_or(0);
        let bytes = text.as_bytes().len().saturating_mul(count);
        // What has no room here has none in the interpreter either.
        if bytes > limits::MEMORY_BYTES_MAX {
            return Err(shared.stop(Stop::Memory));
        }
        shared.charge(bytes / 64)?;
        lua.create_string(text.as_bytes().repeat(count))
    })?;
    string.raw_set("rep", rep)?;
    let dump = lua.create_function(|lua, _: MultiValue| {
        Err::<(), _>(raise(lua, "unable to dump given function"))
    })?;
    string.raw_set("dump", dump)?;
    add_match(lua, host, budget)?;
    let shared = budget.clone();
    lua.create_function(move |lua, args: MultiValue| {
        gsub(lua, &shared, &Arguments::new(lua, &args))
    })
}

/// `match(text, pattern, from)`: the next match for the wrapper of `gsub`: first and last byte, values.
fn add_match(lua: &Lua, host: &Table, budget: &Rc<Budget>) -> Result<()> {
    let budget = budget.clone();
    let next = lua.create_function(move |lua, args: (LuaString, LuaString, usize)| {
        let (text, pattern, from) = args;
        let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
        let anchored = pattern.first() == Some(&b'^');
        let pattern = &pattern[usize::from(anchored)..];
        let mut matcher = Matcher::new(lua, &budget, &text, pattern);
        let last = if anchored { from - 1 } else { text.len() };
        for start in from - 1..=last.min(text.len()) {
            if let Some(end) = matcher.match_at(start)? {
                let mut found = values(&matcher, start, end, true)?;
                found.push_front(Value::Number(end as f64));
                found.push_front(Value::Number((start + 1) as f64));
                return Ok(found);
            }
        }
        Ok(MultiValue::new())
    })?;
    host.raw_set("match", next)
}

fn values(matcher: &Matcher<'_>, start: usize, end: usize, whole: bool) -> Result<MultiValue> {
    (0..matcher.values(whole)).map(|index| matcher.value(index, start, end)).collect()
}

/// `find` and `match`.
fn find(lua: &Lua, budget: &Budget, args: &Arguments<'_>, finds: bool) -> Result<MultiValue> {
    let (text, pattern) = (args.string(1)?, args.string(2)?);
    let from = args.integer_or(3, 1)?;
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let from = if from < 0 { (text.len() as i64 + from).max(0) } else { (from - 1).max(0) };
    let from = (from as usize).min(text.len());
    let nothing = || Ok(MultiValue::from_iter([Value::Nil]));
    let number = |place: usize| Value::Number(place as f64);
    let is_plain = || !pattern.iter().take_while(|b| **b != 0).any(|b| SPECIAL.contains(b));
    if finds && (args.is_true(4) || is_plain()) {
        budget.charge((text.len() - from + pattern.len()) / 16)?;
        return match memmem::find(&text[from..], &pattern) {
            None => nothing(),
            Some(at) => {
                let (first, last) = (from + at + 1, from + at + pattern.len());
                Ok(MultiValue::from_iter([number(first), number(last)]))
            }
        };
    }
    let anchored = pattern.first() == Some(&b'^');
    let pattern = &pattern[usize::from(anchored)..];
    let mut matcher = Matcher::new(lua, budget, &text, pattern);
    for start in from..=if anchored { from } else { text.len() } {
        let Some(end) = matcher.match_at(start)? else { continue };
        if !finds {
            return values(&matcher, start, end, true);
        }
        let mut found = values(&matcher, start, end, false)?;
        found.push_front(number(end));
        found.push_front(number(start + 1));
        return Ok(found);
    }
    nothing()
}

/// `gsub` by a text.
fn gsub(lua: &Lua, budget: &Budget, args: &Arguments<'_>) -> Result<(LuaString, f64)> {
    let (text, pattern) = (args.string(1)?, args.string(2)?);
    let by = match args.get(3) {
        Some(Value::String(_) | Value::Number(_) | Value::Integer(_)) => args.string(3)?,
        _ => return Err(args.bad(3, "string/function/table expected")),
    };
    let (text, pattern, by) = (text.as_bytes(), pattern.as_bytes(), by.as_bytes());
    let limit = args.integer_or(4, text.len() as i64 + 1)?;
    let anchored = pattern.first() == Some(&b'^');
    let pattern = &pattern[usize::from(anchored)..];
    let mut matcher = Matcher::new(lua, budget, &text, pattern);
    let (mut out, mut count, mut at) = (Vec::new(), 0, 0);
    while count < limit {
        let found = matcher.match_at(at)?;
        if let Some(end) = found {
            count += 1;
            substitute(&matcher, &by, (at, end), &mut out)?;
            budget.charge(by.len() / 16)?;
            if out.len() > limits::MEMORY_BYTES_MAX {
                return Err(budget.stop(Stop::Memory));
            }
        }
        match found {
            Some(end) if end > at => at = end,
            _ if at < text.len() => {
                out.push(text[at]);
                at += 1;
            }
            _ => break,
        }
        if anchored {
            break;
        }
    }
    out.extend_from_slice(&text[at.min(text.len())..]);
    Ok((lua.create_string(out)?, count as f64))
}

/// Appends the text that replaces a match.
fn substitute(
    matcher: &Matcher<'_>,
    by: &[u8],
    (start, end): (usize, usize),
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut bytes = by.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let next = bytes.next().copied().unwrap_or(0);
        if !next.is_ascii_digit() {
            out.push(next);
            continue;
        }
        let index = usize::from(next - b'0');
        if next == b'0' {
            out.extend_from_slice(matcher.all(start, end));
            continue;
        }
        match matcher.capture(index - 1, start, end)? {
            Ok(bytes) => out.extend_from_slice(bytes),
            Err(position) => out.extend_from_slice(position.to_string().as_bytes()),
        }
    }
    Ok(())
}
