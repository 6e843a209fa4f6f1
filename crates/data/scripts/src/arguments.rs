//! The arguments of a library's function, checked as Lua's own libraries do.

use mlua::{Error, Lua, LuaString, MultiValue, Result, Value};

use crate::error::{is_prelude, raise};

/// Arguments, counted from 1.
pub(crate) struct Arguments<'a> {
    lua: &'a Lua,
    values: &'a MultiValue,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(lua: &'a Lua, values: &'a MultiValue) -> Self {
        Self { lua, values }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&'a Value> {
        self.values.get(index - 1)
    }

    /// The error of one argument.
    pub(crate) fn bad(&self, index: usize, why: &str) -> Error {
        raise(self.lua, bad_argument(self.lua, index, why))
    }

    /// The error of an argument of another type.
    pub(crate) fn expected(&self, index: usize, wanted: &str) -> Error {
        let got = self.get(index).map_or("no value", type_name);
        self.bad(index, &format!("{wanted} expected, got {got}"))
    }

    /// A string, or a number as a string.
    pub(crate) fn string(&self, index: usize) -> Result<LuaString> {
        match self.get(index) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(number @ (Value::Number(_) | Value::Integer(_))) => {
                let text = self.lua.coerce_string(number.clone())?;
                Ok(text.expect("a number has a text"))
            }
            _ => Err(self.expected(index, "string")),
        }
    }

    /// A number, or a string that is one.
    pub(crate) fn number(&self, index: usize) -> Result<f64> {
        match self.get(index) {
            Some(Value::Number(number)) => Ok(*number),
            Some(Value::Integer(number)) => Ok(*number as f64),
            Some(text @ Value::String(_)) => {
                let number = self.lua.coerce_number(text.clone())?;
                number.ok_or_else(|| self.expected(index, "number"))
            }
            _ => Err(self.expected(index, "number")),
        }
    }

    /// A number cut to a C `int`.
    pub(crate) fn int(&self, index: usize) -> Result<i32> {
        Ok(self.number(index)? as i64 as i32)
    }

    /// A whole number, or `default` without one.
    pub(crate) fn integer_or(&self, index: usize, default: i64) -> Result<i64> {
        match self.get(index) {
            None | Some(Value::Nil) => Ok(default),
            _ => Ok(self.number(index)? as i64),
        }
    }

    /// Whether an argument is true.
    pub(crate) fn is_true(&self, index: usize) -> bool {
        !matches!(self.get(index), None | Some(Value::Nil | Value::Boolean(false)))
    }
}

/// The text about an argument, with the function's name as the script wrote it.
pub(crate) fn bad_argument(lua: &Lua, index: usize, why: &str) -> String {
    let (name, is_method) = called_as(lua);
    match (index, is_method) {
        (1, true) => format!("calling '{name}' on bad self ({why})"),
        (_, true) => format!("bad argument #{} to '{name}' ({why})", index - 1),
        (_, false) => format!("bad argument #{index} to '{name}' ({why})"),
    }
}

/// The name of the function that runs, and whether it was called as a method.
fn called_as(lua: &Lua) -> (String, bool) {
    // A wrapper was called as the script says, and called the function by a name of its own.
    let level = usize::from(is_prelude(lua, 1));
    let names = lua.inspect_stack(level, |debug| {
        let names = debug.names();
        let is_method = names.name_what == Some("method");
        (names.name.map(|name| name.into_owned()), is_method)
    });
    let (name, is_method) = names.unwrap_or_default();
    (name.unwrap_or_else(|| "?".to_owned()), is_method)
}

/// The name of a type as Lua says it.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) | Value::Number(_) => "number",
        Value::LightUserData(_) | Value::UserData(_) | Value::Error(_) => "userdata",
        other => other.type_name(),
    }
}
