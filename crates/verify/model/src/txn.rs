//! The transactions of a scope: a few steps on a few keys.

use std::borrow::Cow;
use std::fmt;

use quorate_machine::{Change, Command, ValueKind, Verdict, Workspace};
use quorate_types::UnixMillis;

use crate::history::Store;
use crate::lists;

/// A transaction's step on a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    /// Reads it.
    Read(&'static str),
    /// Writes it without reading.
    Write(&'static str, &'static str),
    /// Reads it and writes it with a tail.
    Append(&'static str, &'static str),
    /// Reads it and writes it if it is absent.
    Claim(&'static str, &'static str),
    /// Deletes it without reading.
    Delete(&'static str),
    /// As `Write`, a list of one item.
    Put(&'static str, &'static str),
    /// As `Append`, an item to a list.
    Push(&'static str, &'static str),
}

use Step::{Append, Claim, Delete, Push, Put, Read, Write};

/// A transaction. Its answer is the values it read, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Txn(pub(crate) Vec<Step>);

impl fmt::Display for Txn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { ", " })?;
            match step {
                Read(key) => write!(f, "read {key}")?,
                Write(key, value) => write!(f, "write {key}={value}")?,
                Append(key, tail) => write!(f, "append {key}+{tail}")?,
                Claim(key, value) => write!(f, "claim {key}={value}")?,
                Delete(key) => write!(f, "delete {key}")?,
                Put(key, item) => write!(f, "put {key}={item}")?,
                Push(key, item) => write!(f, "push {key}+{item}")?,
            }
        }
        Ok(())
    }
}

impl Txn {
    /// Runs it on a store of its own.
    pub(crate) fn run_alone(&self, store: &mut Store) -> String {
        let mut heard = Vec::new();
        for step in &self.0 {
            match *step {
                Read(key) => heard.push(store.get(key).cloned().unwrap_or_default()),
                Write(key, value) | Put(key, value) => {
                    store.insert(key.to_owned(), value.to_owned());
                }
                Append(key, tail) | Push(key, tail) => {
                    let value = store.entry(key.to_owned()).or_default();
                    heard.push(value.clone());
                    value.push_str(tail);
                }
                Claim(key, new) => {
                    heard.push(store.get(key).cloned().unwrap_or_default());
                    store.entry(key.to_owned()).or_insert_with(|| new.to_owned());
                }
                Delete(key) => {
                    store.remove(key);
                }
            }
        }
        heard.join(",")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn look(workspace: &mut impl Workspace, key: &str) -> String {
    let current = workspace.read(key.as_bytes());
    current.content.map(|content| lists::text(content, current.large)).unwrap_or_default()
}

fn set(workspace: &mut impl Workspace, key: &str, value: String) {
    let bytes = Cow::Owned(value.into_bytes());
    let change = Change::Set { bytes, kind: ValueKind::String, expire_at: None };
    workspace.write(key.as_bytes(), change);
}

impl Command for Txn {
    type Owned = Self;
    type Reply = String;

    fn run<W: Workspace>(&self, _now: UnixMillis, workspace: &mut W) -> Verdict<String> {
        let mut heard = Vec::new();
        for step in &self.0 {
            match *step {
                Read(key) => heard.push(look(workspace, key)),
                Write(key, value) => set(workspace, key, value.to_owned()),
                Put(key, item) => workspace.write(key.as_bytes(), lists::put(item.as_bytes())),
                Push(key, item) => {
                    heard.push(look(workspace, key));
                    let change = lists::push(workspace.read(key.as_bytes()), item.as_bytes());
                    workspace.write(key.as_bytes(), change);
                }
                Delete(key) => workspace.write(key.as_bytes(), Change::Delete),
                Append(key, tail) => {
                    let value = look(workspace, key);
                    set(workspace, key, value.clone() + tail);
                    heard.push(value);
                }
                Claim(key, new) => {
                    let value = look(workspace, key);
                    if value.is_empty() {
                        set(workspace, key, new.to_owned());
                    }
                    heard.push(value);
                }
            }
        }
        Verdict::Commit(heard.join(","))
    }

    fn into_owned(self) -> Self {
        self
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        for step in &self.0 {
            let (Read(key)
            | Write(key, _)
            | Append(key, _)
            | Claim(key, _)
            | Delete(key)
            | Put(key, _)
            | Push(key, _)) = step;
            visit(key.as_bytes());
        }
    }

    fn updates(&self) -> bool {
        !self.0.iter().all(|step| matches!(step, Read(_)))
    }

    fn encode_reply(reply: &String, out: &mut Vec<u8>) {
        out.extend(reply.as_bytes());
    }

    fn decode_reply(bytes: &[u8]) -> Option<String> {
        Some(text(bytes))
    }
}
