//! The first line of a script, which may say what it does: `#!lua flags=no-writes,allow-oom`.

use quorate_commands::Reply;

/// What the first line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flags {
    /// It changes nothing.
    pub(crate) no_writes: bool,
    /// It may run when memory is short.
    pub(crate) allow_oom: bool,
}

/// The flags of a script, and its text from the end of the first line on: lines keep their numbers.
pub(crate) fn flags(source: &[u8]) -> Result<(Flags, &[u8]), Reply<'static>> {
    let mut flags = Flags::default();
    if !source.starts_with(b"#!") {
        return Ok((flags, source));
    }
    let end = source
        .iter()
        .position(|byte| *byte == b'\n')
        .ok_or(Reply::error("ERR Invalid script shebang"))?;
    let line = String::from_utf8_lossy(&source[..end]);
    let mut words = line.split_whitespace();
    match words.next() {
        Some("#!lua") => {}
        other => {
            let engine = other.unwrap_or_default();
            let text = format!("ERR Unexpected engine in script shebang: {engine}");
            return Err(Reply::Error(text.into()));
        }
    }
    for word in words {
        let Some(list) = word.strip_prefix("flags=") else {
            return Err(Reply::Error(format!("ERR Unknown lua shebang option: {word}").into()));
        };
        for flag in list.split(',') {
            match flag {
                "no-writes" => flags.no_writes = true,
                "allow-oom" => flags.allow_oom = true,
                "" | "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                _ => {
                    let text = format!("ERR Unexpected flag in script shebang: {flag}");
                    return Err(Reply::Error(text.into()));
                }
            }
        }
    }
    Ok((flags, &source[end..]))
}

/// Whether a script says that it changes nothing.
pub fn changes_nothing(source: &[u8]) -> bool {
    flags(source).is_ok_and(|(flags, _)| flags.no_writes)
}

/// Whether a script may run when memory is short: it says so, or that it changes nothing.
pub fn runs_without_memory(source: &[u8]) -> bool {
    flags(source).is_ok_and(|(flags, _)| flags.no_writes || flags.allow_oom)
}
