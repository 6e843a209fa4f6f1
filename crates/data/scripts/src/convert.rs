//! Answers as values of Lua, and back, as Redis documents it.

use mlua::{Lua, Result, Table, Value};
use quorate_commands::{REPLY_DEPTH_MAX, Reply, format_decimal};

use crate::number::format_g;

/// A command's answer as a script sees it, in the protocol that it chose.
pub(crate) fn to_value(lua: &Lua, reply: &Reply<'_>, resp3: bool) -> Result<Value> {
    let string = |bytes: &[u8]| Ok(Value::String(lua.create_string(bytes)?));
    let single = |name: &str, value: Value| {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, value)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Ok => single("ok", string(b"OK")?),
        Reply::Status(text) => single("ok", string(text.as_bytes())?),
        Reply::Int(number) => Ok(Value::Number(*number as f64)),
        Reply::Bulk(bytes) => string(bytes),
        Reply::Null | Reply::NullArray if resp3 => Ok(Value::Nil),
        Reply::Null | Reply::NullArray => Ok(Value::Boolean(false)),
        Reply::Array(items) => sequence(lua, items, resp3),
        Reply::Set(items) if resp3 => {
            let set = lua.create_table_with_capacity(0, items.len())?;
            for item in items {
                set.raw_set(to_value(lua, item, resp3)?, true)?;
            }
            single("set", Value::Table(set))
        }
        Reply::Set(items) => sequence(lua, items, resp3),
        Reply::Map(pairs) | Reply::Keyed(pairs) if resp3 => {
            let map = lua.create_table_with_capacity(0, pairs.len())?;
            for (key, value) in pairs {
                map.raw_set(to_value(lua, key, resp3)?, to_value(lua, value, resp3)?)?;
            }
            single("map", Value::Table(map))
        }
        Reply::Pairs(pairs) if resp3 => tables_of_two(lua, pairs, resp3),
        Reply::Keyed(pairs) => tables_of_two(lua, pairs, resp3),
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            let table = lua.create_table_with_capacity(2 * pairs.len(), 0)?;
            for (at, (one, other)) in pairs.iter().enumerate() {
                table.raw_set(2 * at + 1, to_value(lua, one, resp3)?)?;
                table.raw_set(2 * at + 2, to_value(lua, other, resp3)?)?;
            }
            Ok(Value::Table(table))
        }
        Reply::Double(number) | Reply::Decimal(number) if resp3 => {
            single("double", Value::Number(*number))
        }
        Reply::Decimal(number) => string(format_decimal(*number).as_bytes()),
        Reply::Double(number) => string(format_g(*number, 17).as_bytes()),
        Reply::Bool(is) if resp3 => Ok(Value::Boolean(*is)),
        Reply::Bool(is) => Ok(Value::Number(f64::from(u8::from(*is)))),
        Reply::BigNumber(digits) if resp3 => single("big_number", string(digits.as_bytes())?),
        Reply::BigNumber(digits) => string(digits.as_bytes()),
        Reply::Verbatim(text) if resp3 => {
            let table = lua.create_table_with_capacity(0, 2)?;
            table.raw_set("format", "txt")?;
            table.raw_set("string", string(text.as_bytes())?)?;
            single("verbatim_string", Value::Table(table))
        }
        Reply::Verbatim(text) => string(text.as_bytes()),
        Reply::Error(text) => single("err", string(text.as_bytes())?),
        Reply::Version(..) | Reply::Noted(_) => Ok(Value::Nil),
    }
}

fn tables_of_two(lua: &Lua, pairs: &[(Reply<'_>, Reply<'_>)], resp3: bool) -> Result<Value> {
    let table = lua.create_table_with_capacity(pairs.len(), 0)?;
    for (at, (one, other)) in pairs.iter().enumerate() {
        let pair = lua.create_table_with_capacity(2, 0)?;
        pair.raw_set(1, to_value(lua, one, resp3)?)?;
        pair.raw_set(2, to_value(lua, other, resp3)?)?;
        table.raw_set(at + 1, pair)?;
    }
    Ok(Value::Table(table))
}

fn sequence(lua: &Lua, items: &[Reply<'_>], resp3: bool) -> Result<Value> {
    let table = lua.create_table_with_capacity(items.len(), 0)?;
    for (at, item) in items.iter().enumerate() {
        table.raw_set(at + 1, to_value(lua, item, resp3)?)?;
    }
    Ok(Value::Table(table))
}

/// What a script returns as an answer.
pub(crate) fn to_reply(value: Value, resp3: bool) -> Result<Reply<'static>> {
    reply_at(value, resp3, 0)
}

fn reply_at(value: Value, resp3: bool, depth: u32) -> Result<Reply<'static>> {
    Ok(match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec().into()),
        Value::Integer(number) => Reply::Int(number),
        // As C does on x86: what doesn't fit is the smallest number.
        Value::Number(number) if !(-(2f64.powi(63))..2f64.powi(63)).contains(&number) => {
            Reply::Int(i64::MIN)
        }
        Value::Number(number) => Reply::Int(number as i64),
        Value::Boolean(is) if resp3 => Reply::Bool(is),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => return table_reply(&table, resp3, depth),
        _ => Reply::Null,
    })
}

fn table_reply(table: &Table, resp3: bool, depth: u32) -> Result<Reply<'static>> {
    if depth >= REPLY_DEPTH_MAX {
        return Ok(Reply::error("ERR reached lua stack limit"));
    }
    let part = |value| reply_at(value, resp3, depth + 1);
    if let Some(text) = text_field(table, "err")? {
        return Ok(Reply::Error(one_line(&text).into()));
    }
    if let Some(text) = text_field(table, "ok")? {
        return Ok(Reply::Status(one_line(&text).into()));
    }
    match table.raw_get("double")? {
        Value::Number(number) => return Ok(Reply::Double(number)),
        Value::Integer(number) => return Ok(Reply::Double(number as f64)),
        _ => {}
    }
    if let Value::Table(map) = table.raw_get("map")? {
        let mut pairs = Vec::new();
        for pair in map.pairs::<Value, Value>() {
            let (key, value) = pair?;
            pairs.push((part(key)?, part(value)?));
        }
        return Ok(Reply::Map(pairs));
    }
    if let Value::Table(set) = table.raw_get("set")? {
        let mut items = Vec::new();
        for pair in set.pairs::<Value, Value>() {
            items.push(part(pair?.0)?);
        }
        return Ok(Reply::Set(items));
    }
    if let Some(digits) = text_field(table, "big_number")? {
        return Ok(Reply::BigNumber(one_line(&digits).into()));
    }
    if let Value::Table(verbatim) = table.raw_get("verbatim_string")?
        && let (Some(text), Some(_)) =
            (text_field(&verbatim, "string")?, text_field(&verbatim, "format")?)
    {
        return Ok(Reply::Verbatim(String::from_utf8_lossy(&text).into_owned().into()));
    }
    let mut items = Vec::new();
    for at in 1.. {
        match table.raw_get(at)? {
            Value::Nil => break,
            item => items.push(part(item)?),
        }
    }
    Ok(Reply::Array(items))
}

fn text_field(table: &Table, name: &str) -> Result<Option<Vec<u8>>> {
    Ok(match table.raw_get(name)? {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        _ => None,
    })
}

/// Text for an answer of one line.
fn one_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace(['\r', '\n'], " ")
}

/// The answer to a script that ended with an error, which is a table by now.
pub(crate) fn to_error(value: &Value, name: &str) -> Reply<'static> {
    let text = |field: &str| match value {
        Value::Table(table) => match table.get::<Value>(field) {
            Ok(Value::String(text)) => Some(String::from_utf8_lossy(&text.as_bytes()).into_owned()),
            Ok(Value::Integer(number)) => Some(number.to_string()),
            Ok(Value::Number(number)) => Some(format_g(number, 14)),
            _ => None,
        },
        _ => None,
    };
    if let Value::String(text) = value {
        return Reply::Error(one_line(&[b"ERR ", &*text.as_bytes()].concat()).into());
    }
    let mut whole = text("err").unwrap_or_else(|| "ERR unknown error".to_owned());
    if let (Some(source), Some(line)) = (text("source"), text("line")) {
        whole += &format!(" script: {name}, on {source}:{line}.");
    }
    Reply::Error(one_line(whole.as_bytes()).into())
}

/// The answer to a library that ended with an error.
pub(crate) fn to_registering_error(value: &Value) -> Reply<'static> {
    let text = match value {
        Value::Table(table) => text_field(table, "err").ok().flatten(),
        Value::String(text) => Some(text.as_bytes().to_vec()),
        _ => None,
    };
    let text = one_line(&text.unwrap_or_default());
    Reply::Error(format!("ERR Error registering functions: {text}").into())
}

/// A value as `tostring` says it, for a text.
pub(crate) fn to_text(lua: &Lua, value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Nil => b"nil".to_vec(),
        Value::Boolean(is) => is.to_string().into_bytes(),
        Value::Integer(_) | Value::Number(_) => match lua.coerce_string(value.clone()) {
            Ok(Some(text)) => text.as_bytes().to_vec(),
            _ => Vec::new(),
        },
        other => {
            let name = crate::arguments::type_name(other);
            format!("{name}: {:p}", other.to_pointer()).into_bytes()
        }
    }
}
