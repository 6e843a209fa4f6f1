//! What a session's call asks for.

use quorate_machine::{Access, Operation, Transaction};

use crate::{Op, OwnedCall, Txn};

/// What one call of a session asks for: all of it, once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// An op on one key, for an engine that changes one key at a time.
    Op(Op),
    /// A transaction, for an engine that has them.
    Txn(Txn),
}

impl Work {
    /// Whether it may change anything. What is only read needs no session.
    pub fn updates(&self) -> bool {
        match self {
            Self::Op(op) => op.access() != Access::Read,
            Self::Txn(txn) => txn.updates(),
        }
    }

    /// A digest of the commands and their arguments, the same at every try and on every node: it
    /// tells another command under the same number. A block has that of its commands in order;
    /// what is watched doesn't count, since a try elsewhere watches anew.
    pub fn digest(&self) -> u32 {
        let one = |call: &OwnedCall| digest(core::slice::from_ref(call));
        let all = |calls: &[OwnedCall]| digest(calls).rotate_left(1);
        match self {
            Self::Op(Op::Call(call)) | Self::Txn(Txn::Call(call)) => one(call),
            Self::Op(Op::Script(script)) => all(&script.calls),
            Self::Txn(Txn::Block(block)) => all(&block.calls),
            Self::Op(Op::Version(_)) | Self::Txn(Txn::Versions(_)) => {
                unreachable!("WATCH is no call of a session")
            }
        }
    }
}

fn digest(calls: &[OwnedCall]) -> u32 {
    (calls.iter().fold(0, |digest, call| call.digest(digest)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::Block;

    fn call(words: &[&str]) -> OwnedCall {
        OwnedCall::new(words.iter().map(|word| word.as_bytes())).expect("a command")
    }

    fn single(words: &[&str]) -> u32 {
        Work::Op(Op::Call(call(words))).digest()
    }

    #[test]
    fn a_digest_tells_commands_and_arguments_apart_but_not_spellings() {
        assert_eq!(single(&["INCR", "key"]), single(&["incr", "key"]));
        let others = [
            single(&["DECR", "key"]),
            single(&["INCR", "kez"]),
            single(&["INCRBY", "key", "1"]),
            single(&["INCRBY", "key", "2"]),
            single(&["SET", "ab", "c"]),
            single(&["SET", "a", "bc"]),
        ];
        for (at, digest) in others.iter().enumerate() {
            assert!(!others[..at].contains(digest), "number {at}");
        }
        assert_eq!(single(&["INCR", "key"]), PINNED, "other nodes have other digests now");
    }

    #[test]
    fn a_block_has_the_digest_of_its_commands_in_order() {
        let block = |calls: &[&[&str]]| {
            let calls = calls.iter().map(|words| call(words)).collect();
            Work::Txn(Txn::Block(Block { watches: vec![], calls })).digest()
        };
        let (one, other): (&[&str], &[&str]) = (&["INCR", "a"], &["INCR", "b"]);
        assert_ne!(block(&[one, other]), block(&[other, one]));
        assert_ne!(block(&[one]), block(&[one, one]));
        assert_ne!(block(&[one]), single(one), "a block answers an array");
        assert_eq!(block(&[one, other]), block(&[one, other]));
    }

    const PINNED: u32 = 2_691_260_806;
}
