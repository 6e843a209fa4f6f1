//! The library `cmsgpack`.

use std::rc::Rc;

use mlua::{Lua, MultiValue, Result, Table, Value};

use crate::arguments::Arguments;
use crate::budget::{Budget, Stop};
use crate::error::{Thrown, raise};
use crate::limits;

/// Tables nested deeper are written as nil, which ends circles.
const WRITTEN_DEPTH_MAX: u32 = 16;
/// Values nested deeper are not read.
const READ_DEPTH_MAX: u32 = 1000;

/// The library.
pub(crate) fn library(lua: &Lua, budget: &Rc<Budget>) -> Result<Table> {
    let library = lua.create_table()?;
    let shared = budget.clone();
    let pack = lua.create_function(move |lua, args: MultiValue| {
        if args.is_empty() {
            return Err(Arguments::new(lua, &args).bad(0, "MessagePack pack needs input."));
        }
        let mut writer = Writer { budget: &shared, out: Vec::new() };
        for value in &args {
            writer.append(value, 0)?;
        }
        lua.create_string(&writer.out)
    })?;
    library.raw_set("pack", pack)?;
    let shared = budget.clone();
    let all = lua.create_function(move |lua, args: MultiValue| {
        unpack(lua, &shared, &Arguments::new(lua, &args), 0, 0)
    })?;
    library.raw_set("unpack", all)?;
    let shared = budget.clone();
    let one = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let offset = args.integer_or(2, 0)?;
        unpack(lua, &shared, &args, 1, offset)
    })?;
    library.raw_set("unpack_one", one)?;
    let shared = budget.clone();
    let some = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let limit = args.number(2)? as i64;
        let offset = args.integer_or(3, 0)?;
        unpack(lua, &shared, &args, limit, offset)
    })?;
    library.raw_set("unpack_limit", some)?;
    library.raw_set("_NAME", "cmsgpack")?;
    library.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    library.raw_set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    library.raw_set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    Ok(library)
}

struct Writer<'a> {
    budget: &'a Budget,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn append(&mut self, value: &Value, depth: u32) -> Result<()> {
        self.budget.charge(4)?;
        match value {
            Value::String(text) => self.text(&text.as_bytes())?,
            Value::Boolean(is) => self.out.push(if *is { 0xc3 } else { 0xc2 }),
            Value::Integer(number) => self.integer(*number),
            Value::Number(number) => self.double(*number),
            Value::Table(table) if depth < WRITTEN_DEPTH_MAX => self.table(table, depth)?,
            _ => self.out.push(0xc0),
        }
        Ok(())
    }

    fn head(&mut self, kind: u8, number: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(number);
    }

    fn text(&mut self, text: &[u8]) -> Result<()> {
        self.budget.charge(text.len() / 16)?;
        match text.len() {
            length @ 0..32 => self.out.push(0xa0 | length as u8),
            length @ ..=0xff => self.head(0xd9, &[length as u8]),
            length @ ..=0xffff => self.head(0xda, &(length as u16).to_be_bytes()),
            length => self.head(0xdb, &(length as u32).to_be_bytes()),
        }
        self.out.extend_from_slice(text);
        if self.out.len() > limits::MEMORY_BYTES_MAX {
            return Err(self.budget.stop(Stop::Memory));
        }
        Ok(())
    }

    fn integer(&mut self, number: i64) {
        match number {
            0..=127 => self.out.push(number as u8),
            128..=0xff => self.head(0xcc, &[number as u8]),
            0x100..=0xffff => self.head(0xcd, &(number as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.head(0xce, &(number as u32).to_be_bytes()),
            0x1_0000_0000.. => self.head(0xcf, &number.to_be_bytes()),
            -32..0 => self.out.push(number as u8),
            -128..-32 => self.head(0xd0, &[number as u8]),
            -0x8000..-128 => self.head(0xd1, &(number as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.head(0xd2, &(number as i32).to_be_bytes()),
            _ => self.head(0xd3, &number.to_be_bytes()),
        }
    }

    fn double(&mut self, number: f64) {
        // Minus zero is a whole number to C.
        if number == 0.0 {
            return self.integer(0);
        }
        let short = number as f32;
        if f64::from(short) == number {
            self.head(0xca, &short.to_be_bytes());
        } else {
            self.head(0xcb, &number.to_be_bytes());
        }
    }

    fn table(&mut self, table: &Table, depth: u32) -> Result<()> {
        let (mut is_array, mut max, mut count) = (true, 0, 0);
        for pair in table.pairs::<Value, Value>() {
            self.budget.charge(2)?;
            match pair?.0 {
                Value::Integer(key) if key > 0 => max = max.max(key),
                _ => is_array = false,
            }
            count += 1;
        }
        if is_array && max == count {
            let length = table.raw_len();
            self.length(length, 0x90, 0xdc);
            for index in 1..=length {
                self.append(&table.get(index)?, depth + 1)?;
            }
            return Ok(());
        }
        self.length(count as usize, 0x80, 0xde);
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            self.append(&key, depth + 1)?;
            self.append(&value, depth + 1)?;
        }
        Ok(())
    }

    fn length(&mut self, length: usize, short: u8, long: u8) {
        match length {
            ..16 => self.out.push(short | length as u8),
            16..0x1_0000 => self.head(long, &(length as u16).to_be_bytes()),
            _ => self.head(long + 1, &(length as u32).to_be_bytes()),
        }
    }
}

/// Reads values: all of them if neither limit nor offset is given, and otherwise where to go on, too.
fn unpack(
    lua: &Lua,
    budget: &Budget,
    args: &Arguments<'_>,
    limit: i64,
    offset: i64,
) -> Result<MultiValue> {
    let text = args.string(1)?;
    let text = text.as_bytes();
    let is_all = limit == 0 && offset == 0;
    let length = text.len();
    if offset < 0 || limit < 0 {
        return Err(raise(
            lua,
            format!("Invalid request to unpack with offset of {offset} and limit of {length}."),
        ));
    }
    if offset as usize > length {
        return Err(raise(
            lua,
            format!("Start offset {offset} greater than input length {length}."),
        ));
    }
    let mut reader = Reader { lua, budget, rest: &text[offset as usize..] };
    let mut values = Vec::new();
    while !reader.rest.is_empty() && (is_all || (values.len() as i64) < limit) {
        values.push(reader.value(0)?);
    }
    if !is_all {
        let next = if reader.rest.is_empty() { -1 } else { (length - reader.rest.len()) as i64 };
        values.insert(0, Value::Number(next as f64));
    }
    Ok(MultiValue::from_iter(values))
}

struct Reader<'a> {
    lua: &'a Lua,
    budget: &'a Budget,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(raise(self.lua, "Missing bytes in input."));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("so many were taken"))
    }

    fn length(&mut self, bytes: usize) -> Result<usize> {
        Ok(self.take(bytes)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn value(&mut self, depth: u32) -> Result<Value> {
        self.budget.charge(4)?;
        if depth > READ_DEPTH_MAX {
            return Err(raise(self.lua, "Bad data format in input."));
        }
        let [kind] = self.number()?;
        let number = match kind {
            0xcc => f64::from(self.number::<1>()?[0]),
            0xcd => f64::from(u16::from_be_bytes(self.number()?)),
            0xce => f64::from(u32::from_be_bytes(self.number()?)),
            0xcf => u64::from_be_bytes(self.number()?) as f64,
            0xd0 => f64::from(i8::from_be_bytes(self.number()?)),
            0xd1 => f64::from(i16::from_be_bytes(self.number()?)),
            0xd2 => f64::from(i32::from_be_bytes(self.number()?)),
            0xd3 => i64::from_be_bytes(self.number()?) as f64,
            0xca => f64::from(f32::from_be_bytes(self.number()?)),
            0xcb => f64::from_be_bytes(self.number()?),
            0x00..=0x7f | 0xe0..=0xff => f64::from(kind.cast_signed()),
            _ => return self.other(kind, depth),
        };
        Ok(Value::Number(number))
    }

    fn other(&mut self, kind: u8, depth: u32) -> Result<Value> {
        match kind {
            0xc0 => Ok(Value::Nil),
            0xc2 | 0xc3 => Ok(Value::Boolean(kind == 0xc3)),
            0xa0..=0xbf => self.text(usize::from(kind & 0x1f)),
            0xd9..=0xdb => {
                let length = self.length(1 << (kind - 0xd9))?;
                self.text(length)
            }
            0x90..=0x9f => self.array(usize::from(kind & 0x0f), depth),
            0xdc | 0xdd => {
                let length = self.length(2 << (kind - 0xdc))?;
                self.array(length, depth)
            }
            0x80..=0x8f => self.map(usize::from(kind & 0x0f), depth),
            0xde | 0xdf => {
                let length = self.length(2 << (kind - 0xde))?;
                self.map(length, depth)
            }
            _ => Err(raise(self.lua, "Bad data format in input.")),
        }
    }

    fn text(&mut self, length: usize) -> Result<Value> {
        self.budget.charge(length / 16)?;
        let text = self.take(length)?;
        Ok(Value::String(self.lua.create_string(text)?))
    }

    fn array(&mut self, length: usize, depth: u32) -> Result<Value> {
        let table = self.lua.create_table()?;
        for index in 1..=length {
            table.raw_set(index, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, length: usize, depth: u32) -> Result<Value> {
        let table = self.lua.create_table()?;
        for _ in 0..length {
            let (key, value) = (self.value(depth + 1)?, self.value(depth + 1)?);
            match key {
                Value::Nil => return Err(Thrown::Text("table index is nil".into()).into()),
                Value::Number(number) if number.is_nan() => {
                    return Err(Thrown::Text("table index is NaN".into()).into());
                }
                key => table.raw_set(key, value)?,
            }
        }
        Ok(Value::Table(table))
    }
}
