//! The replies of a node.

use std::fmt;

/// An error reply: its first word, and the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerError {
    /// The stable word that the error begins with, such as `TRYAGAIN`.
    pub code: String,
    /// The sentence for people, with the remedy.
    pub message: String,
}

impl ServerError {
    /// Splits an error line. Bytes that are no UTF-8 are replaced.
    pub(crate) fn parse(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line);
        let (code, message) = line.split_once(' ').unwrap_or((&line, ""));
        Self { code: code.to_owned(), message: message.to_owned() }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

/// One reply, of RESP2 or RESP3. Attributes, which a server may send in front of a reply, are left
/// out.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// `+OK` and its like.
    Status(String),
    /// An error. [`crate::Client::command`] returns it as [`crate::Error`]; within an array it
    /// stands for one element.
    Error(ServerError),
    /// A whole number.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// No value (`$-1`, or RESP3's null).
    Null,
    /// Several replies.
    Array(Vec<Reply>),
    /// No array (`*-1`): a watched key has changed. In RESP3 it is [`Reply::Null`].
    NullArray,
    /// Pairs, in the order in which they came (RESP3; an array with twice as many elements in
    /// RESP2).
    Map(Vec<(Reply, Reply)>),
    /// Several replies whose order means nothing (RESP3).
    Set(Vec<Reply>),
    /// A number with a fraction, infinity, or NaN (RESP3).
    Double(f64),
    /// True or false (RESP3).
    Boolean(bool),
    /// A whole number of any length, in decimal digits (RESP3).
    BigNumber(String),
    /// A text for people (RESP3).
    Verbatim {
        /// Three bytes, such as `txt` or `mkd`.
        format: [u8; 3],
        /// The text.
        text: Vec<u8>,
    },
    /// A message that a server sends unasked (RESP3). The client asks for none and skips them.
    Push(Vec<Reply>),
}

impl Reply {
    /// The kind of the reply, for an error that names an unexpected one.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Status(_) => "a status",
            Self::Error(_) => "an error",
            Self::Integer(_) => "an integer",
            Self::Bulk(_) => "a string",
            Self::Null => "a null",
            Self::Array(_) => "an array",
            Self::NullArray => "a null array",
            Self::Map(_) => "a map",
            Self::Set(_) => "a set",
            Self::Double(_) => "a double",
            Self::Boolean(_) => "a boolean",
            Self::BigNumber(_) => "a big number",
            Self::Verbatim { .. } => "a verbatim string",
            Self::Push(_) => "a push",
        }
    }

    /// The value of this name in a map, which is an array in RESP2.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        let is = |key: &Self| matches!(key, Self::Bulk(key) if key == name.as_bytes());
        match self {
            Self::Map(pairs) => pairs.iter().find(|(key, _)| is(key)).map(|(_, value)| value),
            Self::Array(pairs) => {
                pairs.chunks_exact(2).find(|pair| is(&pair[0])).map(|pair| &pair[1])
            }
            _ => None,
        }
    }

    /// Whether this is `+OK`.
    pub(crate) fn is_ok(&self) -> bool {
        matches!(self, Self::Status(text) if text == "OK")
    }
}
