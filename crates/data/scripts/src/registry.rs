//! `redis.register_function`, while a library is loaded.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Result, Table, Value};

use crate::error::Thrown;
use crate::functions::{BAD_NAME, Described, FLAGS, Registered, is_name};

/// What the library that is being loaded has registered; nothing while none is.
#[derive(Default)]
pub(crate) struct Registry(RefCell<Option<Vec<Registered>>>);

fn refuse<T>(text: &str) -> Result<T> {
    Err(Thrown::Reply(format!("ERR {text}").into_bytes()).into())
}

impl Registry {
    pub(crate) fn open(&self) {
        *self.0.borrow_mut() = Some(Vec::new());
    }

    pub(crate) fn close(&self) -> Vec<Registered> {
        self.0.borrow_mut().take().unwrap_or_default()
    }

    /// The function that libraries call.
    pub(crate) fn function(self: &Rc<Self>, lua: &Lua) -> Result<Function> {
        let registry = self.clone();
        lua.create_function(move |lua, args: MultiValue| registry.register(lua, &args))
    }

    fn register(&self, lua: &Lua, args: &MultiValue) -> Result<()> {
        let mut registered = self.0.borrow_mut();
        let Some(registered) = &mut *registered else {
            return refuse("redis.register_function can only be called on FUNCTION LOAD command");
        };
        let function = match (args.len(), args.front()) {
            (1, Some(Value::Table(named))) => from_table(lua, named)?,
            (1, _) => {
                return refuse(
                    "calling redis.register_function with a single argument is only applicable to \
                     Lua table (representing named arguments).",
                );
            }
            (2, Some(name)) => from_two(lua, name, args.get(1))?,
            _ => return refuse("wrong number of arguments to redis.register_function"),
        };
        let name = &function.described.name;
        if !is_name(name) {
            return Err(Thrown::Reply(BAD_NAME.into()).into());
        }
        if registered.iter().any(|known| known.described.is_called(name)) {
            return refuse("Function already exists in the library");
        }
        registered.push(function);
        Ok(())
    }
}

/// A string, or a number as one.
fn text(lua: &Lua, value: &Value) -> Result<Option<Vec<u8>>> {
    match value {
        Value::String(_) | Value::Integer(_) | Value::Number(_) => {
            Ok(lua.coerce_string(value.clone())?.map(|text| text.as_bytes().to_vec()))
        }
        _ => Ok(None),
    }
}

fn from_two(lua: &Lua, name: &Value, callback: Option<&Value>) -> Result<Registered> {
    let Some(name) = text(lua, name)? else {
        return refuse("first argument to redis.register_function must be a string");
    };
    let Some(Value::Function(callback)) = callback else {
        return refuse("second argument to redis.register_function must be a function");
    };
    let described = Described { name, flags: 0, description: None };
    Ok(Registered { described, callback: callback.clone() })
}

fn from_table(lua: &Lua, named: &Table) -> Result<Registered> {
    let (mut name, mut description, mut callback, mut flags) = (None, None, None, 0);
    for pair in named.pairs::<Value, Value>() {
        let (key, value) = pair?;
        let Value::String(key) = key else {
            return refuse("named argument key given to redis.register_function is not a string");
        };
        match (&*key.as_bytes(), value) {
            (b"function_name", value) => {
                name = text(lua, &value)?;
                if name.is_none() {
                    return refuse(
                        "function_name argument given to redis.register_function must be a string",
                    );
                }
            }
            (b"description", value) => {
                description = text(lua, &value)?;
                if description.is_none() {
                    return refuse(
                        "description argument given to redis.register_function must be a string",
                    );
                }
            }
            (b"callback", Value::Function(function)) => callback = Some(function),
            (b"callback", _) => {
                return refuse(
                    "callback argument given to redis.register_function must be a function",
                );
            }
            (b"flags", Value::Table(list)) => flags = flags_of(&list)?,
            (b"flags", _) => {
                return refuse(
                    "flags argument to redis.register_function must be a table representing \
                     function flags",
                );
            }
            _ => return refuse("unknown argument given to redis.register_function"),
        }
    }
    let Some(name) = name else {
        return refuse("redis.register_function must get a function name argument");
    };
    let Some(callback) = callback else {
        return refuse("redis.register_function must get a callback argument");
    };
    Ok(Registered { described: Described { name, flags, description }, callback })
}

fn flags_of(list: &Table) -> Result<u8> {
    let mut flags = 0;
    for flag in list.clone().sequence_values::<Value>() {
        let flag = flag?;
        let known = match &flag {
            Value::String(text) => {
                FLAGS.iter().position(|known| *known.as_bytes() == *text.as_bytes())
            }
            _ => None,
        };
        match known {
            Some(bit) => flags |= 1 << bit,
            None => return refuse("unknown flag given"),
        }
    }
    Ok(flags)
}
