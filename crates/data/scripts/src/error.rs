//! Errors on their way through the interpreter.
//!
//! What a Rust function raises travels through Lua as a value that no script can name. Each place
//! where a script could catch it (`pcall`, `xpcall`, `coroutine.resume`, the end of the script) has
//! [`crate::vm`] turn it into what Redis raises there, or raise it again if the script was stopped.

use std::fmt;
use std::sync::Arc;

use mlua::{Error, Lua, Table, Value};

/// What a Rust function raises.
#[derive(Clone, Debug)]
pub(crate) enum Thrown {
    /// A text, as Lua's own libraries raise it.
    Text(Vec<u8>),
    /// The error of a command: a table with `err`.
    Reply(Vec<u8>),
    /// The run ends, whatever the script does.
    Stop,
}

impl fmt::Display for Thrown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Reply(text) => f.write_str(&String::from_utf8_lossy(text)),
            Self::Stop => f.write_str("the script was stopped"),
        }
    }
}

impl std::error::Error for Thrown {}

impl From<Thrown> for Error {
    fn from(thrown: Thrown) -> Self {
        Self::external(thrown)
    }
}

/// The name of the chunk that wraps functions of the libraries; no error of a script names it.
pub(crate) const PRELUDE: &str = "=\u{1}";
const PRELUDE_SHORT: &str = "\u{1}";

/// An error with the line of the script that called the library.
pub(crate) fn raise(lua: &Lua, text: impl AsRef<[u8]>) -> Error {
    let mut whole = position(lua)
        .map_or_else(Vec::new, |(place, line, _)| format!("{place}:{line}: ").into_bytes());
    whole.extend_from_slice(text.as_ref());
    Thrown::Text(whole).into()
}

/// The script's line that is being executed: its chunk's short name, the line, the chunk's name.
fn position(lua: &Lua) -> Option<(String, usize, String)> {
    frame(lua, 1)
}

/// The innermost frame of the script from a level on; `None` if the function there is not Lua's.
fn frame(lua: &Lua, from: usize) -> Option<(String, usize, String)> {
    for level in from..from + 4 {
        let found = lua.inspect_stack(level, |debug| {
            let source = debug.source();
            let short = source.short_src.map(|name| name.into_owned()).unwrap_or_default();
            let name = source.source.map(|name| name.into_owned()).unwrap_or_default();
            (short, debug.current_line(), name)
        })?;
        match found {
            (short, _, _) if short == PRELUDE_SHORT => {}
            (short, Some(line), name) if line > 0 => return Some((short, line, name)),
            _ => return None,
        }
    }
    None
}

/// Whether the function at a level is a wrapper.
pub(crate) fn is_prelude(lua: &Lua, level: usize) -> bool {
    let short = |debug: &mlua::debug::Debug<'_>| {
        debug.source().short_src.is_some_and(|name| name == PRELUDE_SHORT)
    };
    lua.inspect_stack(level, short).unwrap_or(false)
}

/// What has been thrown, if a Rust function threw it.
fn thrown(error: &Error) -> Option<Thrown> {
    match error {
        Error::CallbackError { cause, .. } => thrown(cause),
        Error::WithContext { cause, .. } => thrown(cause),
        Error::ExternalError(external) => {
            let external: &Arc<_> = external;
            external.downcast_ref::<Thrown>().cloned()
        }
        _ => None,
    }
}

/// The error as a script sees it that catches it. `Err` if it can't be caught.
pub(crate) fn as_value(lua: &Lua, value: Value) -> Result<Value, Error> {
    let error = match value {
        Value::Error(error) => error,
        Value::String(text) => return without_prelude(lua, text),
        other => return Ok(other),
    };
    match thrown(&error) {
        Some(Thrown::Text(text)) => Ok(Value::String(lua.create_string(text)?)),
        Some(Thrown::Reply(text)) => Ok(Value::Table(error_table(lua, &text)?)),
        Some(Thrown::Stop) => Err(Thrown::Stop.into()),
        // The interpreter's own: an argument that it can't convert, memory.
        None => Ok(Value::String(lua.create_string(error.to_string())?)),
    }
}

/// A text that names a line of a wrapper has the script's line instead.
fn without_prelude(lua: &Lua, text: mlua::LuaString) -> Result<Value, Error> {
    let bytes = text.as_bytes();
    if !bytes.starts_with(PRELUDE_SHORT.as_bytes()) {
        drop(bytes);
        return Ok(Value::String(text));
    }
    let message = bytes.splitn(2, |byte| *byte == b' ').nth(1).unwrap_or_default();
    Ok(Value::String(lua.create_string(message)?))
}

/// `{err = text}`.
pub(crate) fn error_table(lua: &Lua, text: &[u8]) -> Result<Table, Error> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set("err", lua.create_string(text)?)?;
    Ok(table)
}

/// The error that ends a script: a table with its text and, if it is known, the line.
pub(crate) fn at_the_end(lua: &Lua, value: Value) -> Result<Table, Error> {
    // Level 0 is this handler, level 1 what raised the error; if that is no Lua, its caller counts.
    let place = frame(lua, 1).or_else(|| frame(lua, 2));
    let table = match as_value(lua, value)? {
        Value::Table(table) => table,
        other => {
            let text = match &other {
                Value::String(text) => text.as_bytes().to_vec(),
                other => crate::convert::to_text(lua, other),
            };
            error_table(lua, &[b"ERR ", &text[..]].concat())?
        }
    };
    if let Some((_, line, source)) = place {
        table.raw_set("source", source)?;
        table.raw_set("line", line)?;
    }
    Ok(table)
}

/// Whether an error says that there is no memory left.
pub(crate) fn is_memory(value: &Value) -> bool {
    fn is(error: &Error) -> bool {
        match error {
            Error::MemoryError(_) => true,
            Error::CallbackError { cause, .. } | Error::WithContext { cause, .. } => is(cause),
            _ => false,
        }
    }
    match value {
        Value::String(text) => text.as_bytes() == *b"not enough memory",
        Value::Error(error) => is(error),
        _ => false,
    }
}
