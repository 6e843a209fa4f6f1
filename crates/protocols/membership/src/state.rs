//! What a node must not forget, as bytes for its disk.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use quorate_machine::mutant;
use quorate_paxos::{Log, SlotNumber, Voter};
use quorate_types::{Incarnation, NodeId, View};
use quorate_wire::{Malformed, Reader, Writer, write_view};

use crate::ViewEntry;
use crate::message::read_entry;

/// The version of the bytes.
const VERSION: u8 = 1;
/// Lives that a state names at most. A cluster that forms again admits a recent life of each node.
pub(crate) const LIVES_MAX: usize = 256;

/// How much of its store a process that starts has got back from its disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Store {
    /// Nothing, or what nobody vouches for: the node starts as a new one does, or is a later life of a
    /// process that was expelled.
    #[default]
    None,
    /// A part of what its former life had acknowledged.
    Damaged,
    /// All that its former life had acknowledged.
    Intact,
}

/// Why a saved state can't be used. The text tells the user what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateError {
    /// A later version of the program wrote it.
    Newer(u8),
    /// It belongs to another node.
    OtherNode(NodeId),
    /// No program wrote it.
    Malformed(&'static str),
}

impl From<Malformed> for StateError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.0)
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(version) => write!(
                f,
                "the voter's state has version {version} and this program knows {VERSION}: start the \
                 program that wrote it, or a newer one"
            ),
            Self::OtherNode(node) => write!(
                f,
                "the voter's state is that of node {node}: give this node its own directory"
            ),
            Self::Malformed(reason) => write!(
                f,
                "the voter's state can't be read ({reason}): put the directory aside, and the node \
                 joins again without its vote"
            ),
        }
    }
}

impl core::error::Error for StateError {}

/// What a saved state says.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Saved<'a> {
    /// The life that votes, and what it votes in.
    pub(crate) vote: Option<Vote<'a>>,
    /// Later lives of the node, the last one at the end. Others may have admitted one of them.
    pub(crate) lives: Vec<Incarnation>,
    /// The cluster that this node left when it agreed to recover another one from what is left of it;
    /// 0 if it did not.
    pub(crate) left: Incarnation,
}

/// A voter's part of a saved state.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Vote<'a> {
    pub(crate) incarnation: Incarnation,
    /// Whether the store has all that this life had acknowledged, as far as a later one knows.
    pub(crate) store: Store,
    /// The newest view that it knows.
    pub(crate) view: Arc<View>,
    /// Bytes of its acceptor.
    pub(crate) acceptor: &'a [u8],
}

/// Appends a state: `version u8 | node u16 | left u64 | count u16 | lives u64... | votes u8`, and if it
/// votes `incarnation u64 | view | acceptor`. `votes` is 2 if what that life had acknowledged is not all
/// there.
pub(crate) fn write(
    node: NodeId,
    left: Incarnation,
    lives: &[Incarnation],
    vote: Option<(Voter, Store, &View, &Log<ViewEntry>)>,
    out: &mut Vec<u8>,
) {
    let mut writer = Writer(out);
    writer.u8(VERSION);
    writer.u16(node.0);
    writer.u64(left.0);
    writer.u16(u16::try_from(lives.len()).expect("LIVES_MAX fits"));
    for life in lives {
        writer.u64(life.0);
    }
    writer.u8(match vote {
        None => 0,
        Some((_, Store::Damaged, ..)) if !mutant!("membership_damage_forgotten") => 2,
        Some(_) => 1,
    });
    if let Some((voter, _, view, log)) = vote {
        writer.u64(voter.incarnation.0);
        write_view(view, &mut writer);
        log.write_acceptor(&mut writer);
    }
}

/// Reads bytes that [`write`] wrote.
pub(crate) fn read(node: NodeId, bytes: &[u8]) -> Result<Saved<'_>, StateError> {
    let mut reader = Reader(bytes);
    let version = reader.u8()?;
    if version == 0 {
        return Err(StateError::Malformed("version 0"));
    }
    if version > VERSION {
        return Err(StateError::Newer(version));
    }
    let owner = NodeId(reader.u16()?);
    if owner != node {
        return Err(StateError::OtherNode(owner));
    }
    let left = Incarnation(reader.u64()?);
    let count = usize::from(reader.u16()?);
    if count > LIVES_MAX {
        return Err(StateError::Malformed("too many lives"));
    }
    let mut lives = Vec::new();
    for _ in 0..count {
        lives.push(Incarnation(reader.u64()?));
    }
    let store = match reader.u8()? {
        0 => None,
        1 => Some(Store::Intact),
        2 => Some(Store::Damaged),
        _ => return Err(StateError::Malformed("a flag is 0, 1 or 2")),
    };
    let vote = match store {
        None => None,
        Some(store) => {
            let incarnation = Incarnation(reader.u64()?);
            let view = read_entry(&mut reader)?.0;
            Some(Vote { incarnation, store, view, acceptor: reader.rest() })
        }
    };
    if vote.as_ref().is_some_and(|vote| vote.incarnation.0 == 0) || lives.contains(&Incarnation(0))
    {
        return Err(StateError::Malformed("a life without a number"));
    }
    reader.end()?;
    Ok(Saved { vote, lives, left })
}

/// Reads an acceptor's state into the log of the view's voters.
pub(crate) fn read_acceptor(
    bytes: &[u8],
    view: &View,
    log: &mut Log<ViewEntry>,
) -> Result<(), StateError> {
    let mut reader = Reader(bytes);
    log.read_acceptor(&mut reader)?;
    reader.end()?;
    let next = SlotNumber(view.epoch.0).next();
    let is_next = |entry: &ViewEntry| entry.0.cluster == view.cluster && entry.0.epoch.0 == next.0;
    if !log.considered(next).all(is_next) {
        return Err(StateError::Malformed("accepted a view of another cluster or slot"));
    }
    Ok(())
}
