//! A client's request to a node.

use std::fmt;

use quorate_commands::{Call, Op, OwnedCall};
use quorate_machine::Access;

/// A client's request to a node.
#[derive(Clone, Debug)]
pub(crate) struct Command(pub(crate) Op);

impl Command {
    /// The command, if a local record might answer it.
    pub(crate) fn single_read(&self) -> Option<Call<'_>> {
        let Op::Call(call) = &self.0 else { return None };
        let call = call.call();
        let single = matches!(call.single_key(), Ok(Some(_))) && call.keys().count() == 1;
        (single && call.access() == Access::Read).then_some(call)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = |f: &mut fmt::Formatter<'_>, call: &OwnedCall| {
            let words = call.call().args.iter().map(|word| word.escape_ascii().to_string());
            f.write_str(&words.collect::<Vec<_>>().join(" "))
        };
        match &self.0 {
            Op::Call(call) => write(f, call),
            Op::Block(block) => {
                for (key, watch) in &block.watches {
                    write!(f, "[{} at {:?}] ", key.escape_ascii(), watch.timestamp)?;
                }
                for (at, call) in block.calls.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { "; " })?;
                    write(f, call)?;
                }
                Ok(())
            }
            Op::Noted { op, .. } => Self((**op).clone()).fmt(f),
            Op::Placement(key) => write!(f, "PLACEMENT GET {}", key.escape_ascii()),
            Op::Versions(keys) => {
                let keys = keys.iter().map(|key| key.escape_ascii().to_string());
                write!(f, "WATCH {}", keys.collect::<Vec<_>>().join(" "))
            }
        }
    }
}
