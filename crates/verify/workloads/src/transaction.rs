//! One transaction, as data.

/// The purpose of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TransactionKind {
    /// YCSB-T: reads and writes one key.
    ReadModifyWrite,
    /// Retwis: 1 get, 3 puts.
    AddUser,
    /// Retwis: follows or unfollows somebody, 2 gets, 2 puts.
    Follow,
    /// Retwis: 3 gets, 5 puts.
    PostTweet,
    /// Retwis: 1 to 10 gets.
    LoadTimeline,
    /// `GET` and `SET` of one key.
    GetSet,
    /// Moves money from one account to another.
    Transfer,
    /// Gives a key its first value.
    Fill,
    /// Reads a key after the run.
    Audit,
}

/// The new content of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A value of the layout's length that shows this number.
    Filler(u64),
    /// This number, in decimal.
    Number(i64),
    /// The number that the key holds, plus this.
    Sum(i64),
}

/// A write of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// The number of the key; [`Layout::key`](crate::Layout::key) spells it.
    pub key: u64,
    /// Its new content.
    pub content: Content,
}

/// Keys to get and keys to put, together or not at all. No put depends on the result of a get, so
/// that a transaction can be sent whole. The keys of one list are distinct.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// Its purpose.
    pub kind: TransactionKind,
    /// Numbers of the keys to get.
    pub gets: Vec<u64>,
    /// The writes.
    pub puts: Vec<Put>,
}

impl Transaction {
    /// A transaction without keys.
    pub(crate) fn empty() -> Self {
        Self { kind: TransactionKind::Fill, gets: Vec::new(), puts: Vec::new() }
    }
}
