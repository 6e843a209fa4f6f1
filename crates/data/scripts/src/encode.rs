//! The library `cjson`, and how it encodes; [`crate::decode`] decodes.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, MultiValue, Result, Table, Value};

use crate::arguments::{Arguments, type_name};
use crate::budget::{Budget, Stop};
use crate::decode;
use crate::error::raise;
use crate::limits;
use crate::number::format_g;

/// What scripts may change of how JSON is written and read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    sparse_convert: bool,
    sparse_ratio: i64,
    sparse_safe: i64,
    encode_depth: i64,
    pub(crate) decode_depth: i64,
    encode_invalid: Invalid,
    pub(crate) decode_invalid: bool,
    precision: i64,
    keep_buffer: bool,
}

/// What becomes of infinity and what is no number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Invalid {
    Refused,
    Written,
    Null,
}

const DEFAULT: Options = Options {
    sparse_convert: false,
    sparse_ratio: 2,
    sparse_safe: 10,
    encode_depth: 1000,
    decode_depth: 1000,
    encode_invalid: Invalid::Refused,
    decode_invalid: true,
    precision: 14,
    keep_buffer: true,
};

/// The options of a run.
#[derive(Debug)]
pub(crate) struct Settings(Cell<Options>);

impl Default for Settings {
    fn default() -> Self {
        Self(Cell::new(DEFAULT))
    }
}

impl Settings {
    /// Every run begins with the defaults.
    pub(crate) fn begin(&self) {
        self.0.set(DEFAULT);
    }

    fn get(&self) -> Options {
        self.0.get()
    }

    fn change(&self, change: impl FnOnce(&mut Options)) -> Options {
        let mut options = self.get();
        change(&mut options);
        self.0.set(options);
        options
    }
}

/// The library.
pub(crate) fn library(lua: &Lua, settings: &Rc<Settings>, budget: &Rc<Budget>) -> Result<Table> {
    let cjson = instance(lua, settings, budget)?;
    let budget = budget.clone();
    let new =
        lua.create_function(move |lua, _: MultiValue| instance(lua, &Rc::default(), &budget))?;
    cjson.raw_set("new", new)?;
    Ok(cjson)
}

fn instance(lua: &Lua, settings: &Rc<Settings>, budget: &Rc<Budget>) -> Result<Table> {
    let cjson = lua.create_table()?;
    let (shared, counted) = (settings.clone(), budget.clone());
    let encode = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let (1, Some(value)) = (args.len(), args.get(1)) else {
            return Err(args.bad(1, "expected 1 argument"));
        };
        let options = shared.get();
        let mut encoder = Encoder { lua, budget: &counted, options, out: Vec::new() };
        encoder.append(value, 0)?;
        lua.create_string(&encoder.out)
    })?;
    cjson.raw_set("encode", encode)?;
    let (shared, counted) = (settings.clone(), budget.clone());
    let decode = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        if args.len() != 1 {
            return Err(args.bad(1, "expected 1 argument"));
        }
        let text = args.string(1)?;
        counted.charge(text.as_bytes().len() / 4)?;
        decode::decode(lua, &counted, &shared.get(), &text.as_bytes())
    })?;
    cjson.raw_set("decode", decode)?;
    cjson.raw_set("null", Value::NULL)?;
    cjson.raw_set("_NAME", "cjson")?;
    cjson.raw_set("_VERSION", "2.1.0")?;
    add_numbers(lua, &cjson, settings)?;
    add_switches(lua, &cjson, settings)?;
    Ok(cjson)
}

/// Sets a number within bounds, if there is one.
fn number_option(
    args: &Arguments<'_>,
    index: usize,
    (min, max): (i64, i64),
) -> Result<Option<i64>> {
    match args.get(index) {
        None | Some(Value::Nil) => Ok(None),
        _ => {
            let value = args.number(index)? as i64;
            if (min..=max).contains(&value) {
                return Ok(Some(value));
            }
            Err(args.bad(index, &format!("expected integer between {min} and {max}")))
        }
    }
}

const INT_MAX: i64 = i32::MAX as i64;

fn add_numbers(lua: &Lua, cjson: &Table, settings: &Rc<Settings>) -> Result<()> {
    type Place = fn(&mut Options) -> &mut i64;
    let numbers: [(&str, i64, Place); 3] = [
        ("encode_max_depth", INT_MAX, |options| &mut options.encode_depth),
        ("decode_max_depth", INT_MAX, |options| &mut options.decode_depth),
        ("encode_number_precision", 14, |options| &mut options.precision),
    ];
    for (name, max, place) in numbers {
        let settings = settings.clone();
        let f = lua.create_function(move |lua, args: MultiValue| {
            let value = number_option(&Arguments::new(lua, &args), 1, (1, max))?;
            let mut options = settings.change(|options| {
                if let Some(value) = value {
                    *place(options) = value;
                }
            });
            Ok(*place(&mut options) as f64)
        })?;
        cjson.raw_set(name, f)?;
    }
    let settings = settings.clone();
    let sparse = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let convert = args.get(1).and_then(Value::as_boolean);
        let ratio = number_option(&args, 2, (0, INT_MAX))?;
        let safe = number_option(&args, 3, (0, INT_MAX))?;
        let options = settings.change(|options| {
            options.sparse_convert = convert.unwrap_or(options.sparse_convert);
            options.sparse_ratio = ratio.unwrap_or(options.sparse_ratio);
            options.sparse_safe = safe.unwrap_or(options.sparse_safe);
        });
        let (ratio, safe) = (options.sparse_ratio as f64, options.sparse_safe as f64);
        Ok((options.sparse_convert, ratio, safe))
    })?;
    cjson.raw_set("encode_sparse_array", sparse)
}

/// What is on or off.
fn switch(args: &Arguments<'_>) -> Result<Option<bool>> {
    match args.get(1) {
        None | Some(Value::Nil) => Ok(None),
        Some(Value::Boolean(on)) => Ok(Some(*on)),
        Some(_) => match &*args.string(1)?.as_bytes() {
            b"on" => Ok(Some(true)),
            b"off" => Ok(Some(false)),
            other => {
                let other = String::from_utf8_lossy(other);
                Err(args.bad(1, &format!("invalid option '{other}'")))
            }
        },
    }
}

fn add_switches(lua: &Lua, cjson: &Table, settings: &Rc<Settings>) -> Result<()> {
    type Place = fn(&mut Options) -> &mut bool;
    let switches: [(&str, Place); 2] = [
        ("decode_invalid_numbers", |options| &mut options.decode_invalid),
        ("encode_keep_buffer", |options| &mut options.keep_buffer),
    ];
    for (name, place) in switches {
        let settings = settings.clone();
        let f = lua.create_function(move |lua, args: MultiValue| {
            let value = switch(&Arguments::new(lua, &args))?;
            let mut options = settings.change(|options| {
                if let Some(value) = value {
                    *place(options) = value;
                }
            });
            Ok(*place(&mut options))
        })?;
        cjson.raw_set(name, f)?;
    }
    let settings = settings.clone();
    let invalid = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let is_null =
            matches!(args.get(1), Some(Value::String(text)) if text.as_bytes() == *b"null");
        let value = if is_null {
            Some(Invalid::Null)
        } else {
            switch(&args)?.map(|on| if on { Invalid::Written } else { Invalid::Refused })
        };
        let options = settings.change(|options| {
            options.encode_invalid = value.unwrap_or(options.encode_invalid);
        });
        Ok(match options.encode_invalid {
            Invalid::Refused => Value::Boolean(false),
            Invalid::Written => Value::Boolean(true),
            Invalid::Null => Value::String(lua.create_string("null")?),
        })
    })?;
    cjson.raw_set("encode_invalid_numbers", invalid)
}

struct Encoder<'a> {
    lua: &'a Lua,
    budget: &'a Budget,
    options: Options,
    out: Vec<u8>,
}

impl Encoder<'_> {
    fn append(&mut self, value: &Value, depth: i64) -> Result<()> {
        self.budget.charge(4)?;
        match value {
            Value::String(text) => self.append_text(&text.as_bytes()),
            Value::Integer(number) => self.append_number(*number as f64, value),
            Value::Number(number) => self.append_number(*number, value),
            Value::Boolean(is) => {
                self.out.extend_from_slice(if *is { b"true" } else { b"false" });
                Ok(())
            }
            Value::Nil => {
                self.out.extend_from_slice(b"null");
                Ok(())
            }
            value if value.is_null() => {
                self.out.extend_from_slice(b"null");
                Ok(())
            }
            Value::Table(table) => self.append_table(table, depth + 1),
            other => Err(self.refuse(other, "type not supported")),
        }
    }

    fn refuse(&self, value: &Value, why: &str) -> mlua::Error {
        raise(self.lua, format!("Cannot serialise {}: {why}", type_name(value)))
    }

    fn append_table(&mut self, table: &Table, depth: i64) -> Result<()> {
        if depth > self.options.encode_depth {
            return Err(raise(self.lua, format!("Cannot serialise, excessive nesting ({depth})")));
        }
        if self.out.len() > limits::MEMORY_BYTES_MAX {
            return Err(self.budget.stop(Stop::Memory));
        }
        match self.array_length(table)? {
            Some(length) if length > 0 => self.append_array(table, length, depth),
            _ => self.append_object(table, depth),
        }
    }

    /// The length of a table that is an array.
    fn array_length(&self, table: &Table) -> Result<Option<i64>> {
        let (mut max, mut items) = (0, 0);
        for pair in table.pairs::<Value, Value>() {
            self.budget.charge(2)?;
            match pair?.0 {
                Value::Integer(key) if key >= 1 => {
                    max = max.max(key);
                    items += 1;
                }
                _ => return Ok(None),
            }
        }
        let options = &self.options;
        let is_sparse = options.sparse_ratio > 0
            && max > items * options.sparse_ratio
            && max > options.sparse_safe;
        if !is_sparse {
            return Ok(Some(max));
        }
        if !options.sparse_convert {
            return Err(self.refuse(&Value::Table(table.clone()), "excessively sparse array"));
        }
        Ok(None)
    }

    fn append_array(&mut self, table: &Table, length: i64, depth: i64) -> Result<()> {
        self.out.push(b'[');
        for index in 1..=length {
            if index > 1 {
                self.out.push(b',');
            }
            self.append(&table.raw_get(index)?, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn append_object(&mut self, table: &Table, depth: i64) -> Result<()> {
        self.out.push(b'{');
        let mut is_first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.append_text(&text.as_bytes())?,
                Value::Integer(number) => self.append_key(*number as f64, &key)?,
                Value::Number(number) => self.append_key(*number, &key)?,
                _ => return Err(self.refuse(&key, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.append(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn append_key(&mut self, number: f64, key: &Value) -> Result<()> {
        self.out.push(b'"');
        self.append_number(number, key)?;
        self.out.push(b'"');
        Ok(())
    }

    fn append_number(&mut self, number: f64, value: &Value) -> Result<()> {
        match self.options.encode_invalid {
            Invalid::Refused if !number.is_finite() => {
                return Err(self.refuse(value, "must not be NaN or Inf"));
            }
            Invalid::Null if !number.is_finite() => {
                self.out.extend_from_slice(b"null");
                return Ok(());
            }
            Invalid::Written if number.is_nan() => {
                self.out.extend_from_slice(b"nan");
                return Ok(());
            }
            _ => {}
        }
        let text = format_g(number, self.options.precision as usize);
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn append_text(&mut self, text: &[u8]) -> Result<()> {
        self.budget.charge(text.len() / 8)?;
        self.out.push(b'"');
        for &byte in text {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' => self.out.extend_from_slice(b"\\/"),
                0x08 => self.out.extend_from_slice(b"\\b"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                0x0c => self.out.extend_from_slice(b"\\f"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                0..0x20 | 0x7f => {
                    self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                }
                byte => self.out.push(byte),
            }
        }
        self.out.push(b'"');
        Ok(())
    }
}
