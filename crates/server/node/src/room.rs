//! Whether the disks of other replicas have room.
//!
//! An update has to be kept by every replica, so one full disk stops all of them. A lane whose disk is
//! full has nearly a segment in reserve; it tells the same lane of the other nodes at once, and again and
//! again, and those refuse updates until it has room, instead of waiting for its acknowledgement.

use std::collections::BTreeMap;

use quorate_machine::mutant;
use quorate_types::{Duration, Instant, KeyspaceId, NodeId, Now};
use quorate_wire::{Header, Kind, Malformed, Reader};

use crate::{Lane, Outbox};

/// How often a lane whose disk is full says so.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// How long that is believed, should nothing else be heard.
const BELIEVED: Duration = Duration::from_secs(1);

/// Which disks are known to be full.
#[derive(Debug)]
pub(crate) struct Room {
    /// Whether this lane's own is.
    own: bool,
    /// When the others are told again, while it is.
    tell_at: Instant,
    /// Nodes that have said so, and until when it is believed.
    others: BTreeMap<NodeId, Instant>,
}

impl Default for Room {
    fn default() -> Self {
        Self { own: false, tell_at: Instant::NEVER, others: BTreeMap::new() }
    }
}

impl Room {
    pub(crate) fn next_deadline(&self) -> Instant {
        self.others.values().copied().min().unwrap_or(Instant::NEVER).min(self.tell_at)
    }

    /// Whether this lane's own disk is full.
    pub(crate) fn is_own_full(&self) -> bool {
        self.own
    }
}

impl Lane {
    /// Says whether the disk is full, and forgets what others have said too long ago.
    pub(crate) fn tend_room(&mut self, now: Now, is_full: bool, out: &mut Outbox) {
        let was_full = std::mem::replace(&mut self.room.own, is_full);
        if is_full != was_full || self.room.tell_at <= now.monotonic {
            self.room.tell_at = if is_full { now.monotonic + TELL_EVERY } else { Instant::NEVER };
            let others = self.view.live().without(self.shared.config.node);
            let epoch = self.view.epoch;
            out.frame(others, |buffer| {
                Header::frame(buffer, Kind::Room, KeyspaceId(0), epoch, |writer| {
                    writer.u8(is_full.into());
                });
            });
        }
        self.room.others.retain(|_, until| *until > now.monotonic);
        let is_other_full = self.room.others.keys().any(|node| self.view.live().contains(*node));
        self.disk_is_full =
            is_full || is_other_full && !mutant!("node_full_disk_of_another_forgotten");
    }

    /// Another node says whether its disk is full.
    pub(crate) fn hear_room(
        &mut self,
        now: Now,
        from: NodeId,
        body: &[u8],
    ) -> Result<(), Malformed> {
        let mut reader = Reader(body);
        match (reader.u8()?, reader.rest()) {
            (0, []) => self.room.others.remove(&from),
            (1, []) => self.room.others.insert(from, now.monotonic + BELIEVED),
            _ => return Err(Malformed("a disk has room or none")),
        };
        Ok(())
    }
}
