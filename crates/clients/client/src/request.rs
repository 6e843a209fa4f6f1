//! Commands on their way to a node.

use std::io::Write as _;

use quorate_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::error::Error;

/// Commands that are sent together, in RESP2.
#[derive(Clone, Default, Debug)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    commands: usize,
    uncounted: usize,
}

impl Request {
    /// One command.
    pub(crate) fn one(words: &[&[u8]]) -> Self {
        let mut request = Self::default();
        request.push(words);
        request
    }

    /// Adds a command that sets the numbering of the commands behind it, and has no number itself.
    pub(crate) fn push_numbering(&mut self, words: &[&[u8]]) {
        self.push(words);
        self.uncounted += 1;
    }

    /// Adds a command.
    pub(crate) fn push(&mut self, words: &[&[u8]]) {
        self.commands += 1;
        write!(self.bytes, "*{}\r\n", words.len()).expect("memory takes every byte");
        for word in words {
            write!(self.bytes, "${}\r\n", word.len()).expect("memory takes every byte");
            self.bytes.extend_from_slice(word);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many of its commands have a number, on a connection that numbers commands.
    pub(crate) fn counted(&self) -> usize {
        self.commands - self.uncounted
    }

    /// How many replies there will be.
    pub(crate) fn commands(&self) -> usize {
        self.commands
    }
}

/// Refuses a key that no node would take: a node closes the connection over some of them, and the
/// reason would be lost.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Error> {
    check("the key", key, KEY_BYTES_MAX)
}

/// Refuses a value that no node would take.
pub(crate) fn check_value(value: &[u8]) -> Result<(), Error> {
    check("the value", value, VALUE_BYTES_MAX)
}

fn check(what: &'static str, bytes: &[u8], bytes_max: usize) -> Result<(), Error> {
    if bytes.len() > bytes_max {
        return Err(Error::TooLarge { what, bytes: bytes.len(), bytes_max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_strings() {
        let mut request = Request::one(&[b"SET", b"a\r\n", b""]);
        request.push(&[b"EXEC"]);
        assert_eq!(
            request.bytes(),
            b"*3\r\n$3\r\nSET\r\n$3\r\na\r\n\r\n$0\r\n\r\n*1\r\n$4\r\nEXEC\r\n"
        );
        assert_eq!(request.commands(), 2);
    }

    #[test]
    fn what_no_node_would_take_is_refused() {
        assert!(check_key(&vec![0; KEY_BYTES_MAX]).is_ok());
        assert!(check_value(&vec![0; VALUE_BYTES_MAX]).is_ok());
        let error = check_key(&vec![0; KEY_BYTES_MAX + 1]).expect_err("one byte too many");
        assert!(error.to_string().contains("split it"), "{error}");
        assert!(check_value(&vec![0; VALUE_BYTES_MAX + 1]).is_err());
    }
}
