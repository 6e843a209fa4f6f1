//! The library `struct`: values as bytes in a layout that a format says.

use std::rc::Rc;

use mlua::{Lua, MultiValue, Result, Table, Value};

use crate::arguments::Arguments;
use crate::budget::{Budget, Stop};
use crate::error::raise;
use crate::limits;

const INTEGER_BYTES_MAX: usize = 32;
const ALIGNMENT: usize = 8;

/// A format while it is read.
struct Format<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    big_endian: bool,
    align: usize,
}

impl<'a> Format<'a> {
    fn new(lua: &'a Lua, text: &'a [u8]) -> Self {
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        Self { lua, text, at: 0, big_endian: false, align: 1 }
    }

    /// The next option, and the bytes that it takes.
    fn next(&mut self) -> Result<Option<(u8, usize)>> {
        let Some(&option) = self.text.get(self.at) else { return Ok(None) };
        self.at += 1;
        let size = match option {
            b'B' | b'b' | b'x' => 1,
            b'H' | b'h' => 2,
            b'f' => 4,
            b'L' | b'l' | b'T' | b'd' => 8,
            b'c' => self.number(1)?,
            b'I' | b'i' => {
                let size = self.number(4)?;
                if size > INTEGER_BYTES_MAX {
                    let text =
                        format!("integral size {size} is larger than limit of {INTEGER_BYTES_MAX}");
                    return Err(raise(self.lua, text));
                }
                size
            }
            _ => 0,
        };
        Ok(Some((option, size)))
    }

    fn number(&mut self, default: usize) -> Result<usize> {
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit());
        let mut number = None;
        for digit in digits {
            let value = number.unwrap_or(0) * 10 + usize::from(digit - b'0');
            if value > i32::MAX as usize {
                return Err(raise(self.lua, "integral size overflow"));
            }
            number = Some(value);
            self.at += 1;
        }
        Ok(number.unwrap_or(default))
    }

    /// Bytes before an element of that size so that it is aligned.
    fn padding(&self, position: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.align);
        size.wrapping_sub(position & (size - 1)) & (size - 1)
    }

    /// An option that stands for no value.
    fn control(&mut self, option: u8, args: &Arguments<'_>) -> Result<()> {
        match option {
            b' ' => {}
            b'>' => self.big_endian = true,
            b'<' => self.big_endian = false,
            b'!' => {
                let align = self.number(ALIGNMENT)?;
                if !align.is_power_of_two() {
                    let text = format!("alignment {align} is not a power of 2");
                    return Err(raise(self.lua, text));
                }
                self.align = align;
            }
            other => {
                let other = char::from(other);
                return Err(args.bad(1, &format!("invalid format option '{other}'")));
            }
        }
        Ok(())
    }

    fn order(&self, little_endian: &mut [u8]) {
        if self.big_endian {
            little_endian.reverse();
        }
    }
}

/// The library.
pub(crate) fn library(lua: &Lua, budget: &Rc<Budget>) -> Result<Table> {
    let library = lua.create_table()?;
    let shared = budget.clone();
    let packs = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let format = args.string(1)?;
        lua.create_string(pack(&args, &mut Format::new(lua, &format.as_bytes()), &shared)?)
    })?;
    library.raw_set("pack", packs)?;
    let shared = budget.clone();
    let unpacks = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let (format, data) = (args.string(1)?, args.string(2)?);
        unpack(&args, &mut Format::new(lua, &format.as_bytes()), &data.as_bytes(), &shared)
    })?;
    library.raw_set("unpack", unpacks)?;
    let size = lua.create_function(move |lua, args: MultiValue| {
        let args = Arguments::new(lua, &args);
        let format = args.string(1)?;
        let format = format.as_bytes();
        let mut format = Format::new(lua, &format);
        let mut total = 0;
        while let Some((option, size)) = format.next()? {
            total += format.padding(total, option, size);
            match option {
                b's' => return Err(args.bad(1, "option 's' has no fixed size")),
                b'c' if size == 0 => {
                    return Err(args.bad(1, "option 'c0' has no fixed size"));
                }
                _ => {}
            }
            if !option.is_ascii_alphanumeric() {
                format.control(option, &args)?;
            }
            total += size;
        }
        Ok(total as f64)
    })?;
    library.raw_set("size", size)?;
    Ok(library)
}

fn pack(args: &Arguments<'_>, format: &mut Format<'_>, budget: &Budget) -> Result<Vec<u8>> {
    let (mut out, mut index) = (Vec::new(), 2);
    while let Some((option, size)) = format.next()? {
        budget.charge(4 + size / 16)?;
        out.resize(out.len() + format.padding(out.len(), option, size), 0);
        if out.len() > limits::MEMORY_BYTES_MAX {
            return Err(budget.stop(Stop::Memory));
        }
        if index == args.len() + 1 {
            match option {
                b'c' | b's' => return Err(args.bad(index, "string expected, got nil")),
                b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' | b'f' | b'd' => {
                    return Err(args.bad(index, "number expected, got nil"));
                }
                _ => {}
            }
        }
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let number = args.number(index)?;
                let value =
                    if number < 0.0 { (number as i64).cast_unsigned() } else { number as u64 };
                let mut bytes = value.to_le_bytes().to_vec();
                bytes.resize(size, 0);
                format.order(&mut bytes);
                out.extend_from_slice(&bytes);
                index += 1;
            }
            b'x' => out.push(0),
            b'f' => {
                let mut bytes = (args.number(index)? as f32).to_le_bytes();
                format.order(&mut bytes);
                out.extend_from_slice(&bytes);
                index += 1;
            }
            b'd' => {
                let mut bytes = args.number(index)?.to_le_bytes();
                format.order(&mut bytes);
                out.extend_from_slice(&bytes);
                index += 1;
            }
            b'c' | b's' => {
                let text = args.string(index)?;
                let text = text.as_bytes();
                index += 1;
                let size = if size == 0 { text.len() } else { size };
                if text.len() < size {
                    return Err(args.bad(index, "string too short"));
                }
                out.extend_from_slice(&text[..size]);
                if option == b's' {
                    out.push(0);
                }
            }
            other => format.control(other, args)?,
        }
    }
    Ok(out)
}

fn unpack(
    args: &Arguments<'_>,
    format: &mut Format<'_>,
    data: &[u8],
    budget: &Budget,
) -> Result<MultiValue> {
    let from = args.integer_or(3, 1)?;
    if from <= 0 {
        return Err(args.bad(3, "offset must be 1 or greater"));
    }
    let mut position = from as usize - 1;
    let mut values: Vec<Value> = Vec::new();
    let part = |position: usize, size: usize| {
        let end = position.checked_add(size);
        let bytes = end.and_then(|end| data.get(position..end));
        bytes.ok_or_else(|| args.bad(2, "data string too short"))
    };
    while let Some((option, mut size)) = format.next()? {
        budget.charge(4)?;
        position = position.saturating_add(format.padding(position, option, size));
        let bytes = part(position, size)?;
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                values.push(Value::Number(integer(bytes, option, format.big_endian)));
            }
            b'f' => {
                let mut bytes: [u8; 4] = bytes.try_into().expect("four bytes");
                format.order(&mut bytes);
                values.push(Value::Number(f64::from(f32::from_le_bytes(bytes))));
            }
            b'd' => {
                let mut bytes: [u8; 8] = bytes.try_into().expect("eight bytes");
                format.order(&mut bytes);
                values.push(Value::Number(f64::from_le_bytes(bytes)));
            }
            b'x' => {}
            b'c' => {
                if size == 0 {
                    let Some(Value::Number(length)) = values.pop() else {
                        return Err(raise(format.lua, "format 'c0' needs a previous size"));
                    };
                    size = length as usize;
                }
                values.push(Value::String(format.lua.create_string(part(position, size)?)?));
            }
            b's' => {
                let rest = &data[position..];
                let Some(length) = rest.iter().position(|byte| *byte == 0) else {
                    return Err(raise(format.lua, "unfinished string in data"));
                };
                budget.charge(length / 16)?;
                size = length + 1;
                values.push(Value::String(format.lua.create_string(&rest[..length])?));
            }
            other => format.control(other, args)?,
        }
        position += size;
    }
    values.push(Value::Number((position + 1) as f64));
    Ok(MultiValue::from_iter(values))
}

fn integer(bytes: &[u8], option: u8, big_endian: bool) -> f64 {
    let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    let value =
        if big_endian { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) };
    if !option.is_ascii_lowercase() {
        return value as f64;
    }
    let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
    ((value << unused).cast_signed() >> unused) as f64
}
