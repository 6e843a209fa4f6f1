//! The interface of an engine for sessions.

use alloc::vec::Vec;

use quorate_machine::{Effects, Machine};
use quorate_types::{MemberNumber, Now, Tag, View};
use quorate_wire::{Malformed, Reader, Writer};

use crate::{Call, Grant, Kept, LeaseEnd, LeaseId};

/// A call with the permission to attempt it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Permit {
    /// The call.
    pub call: Call,
    /// The permission.
    pub grant: Grant,
    /// The date of attempts in an engine without dates of its own on that scale: at most
    /// [`Grant::until`], and best equal to it, as replicas refuse dates below those they have
    /// forgotten.
    pub date: u64,
}

impl Permit {
    /// Whether an attempt dated `at` may be made in this view.
    pub fn covers(&self, view: &View, at: u64) -> bool {
        self.grant.covers(view, at)
    }

    /// Writes the permit as a call that another node runs carries it.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        self.call.encode(writer);
        writer.u64(self.date);
        writer.u64(self.grant.until);
        writer.u32(self.grant.owner.0);
    }

    /// Reads what [`Permit::encode`] wrote.
    ///
    /// # Errors
    /// If no correct peer of this version sends these bytes.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let call = Call::decode(reader)?;
        let date = reader.u64()?;
        let (until, owner) = (reader.u64()?, MemberNumber(reader.u32()?));
        Ok(Self { call, grant: Grant { lease: call.lease, until, owner }, date })
    }
}

/// One lane of an engine that carries out calls exactly once.
///
/// Its obligations, which `docs/design/006-sessions.md` argues for: a replica that has the effect
/// of a call has its record, in its [`crate::ResultTracker`]; an attempt is made only under a grant
/// that covers its date in the view in force, and only where [`crate::ResultTracker::admits`] lets
/// it pass; a call that is refused, or whose lease does not cover it, leaves no record.
pub trait Sessions: Machine {
    /// Takes a call's request; answered by [`Effects::complete`] with the same tag, once: with the
    /// answer of the attempt that took effect, be it this or an earlier one. A refusal says
    /// that this try did nothing, not that an earlier one didn't.
    fn call(
        &mut self,
        now: Now,
        tag: Tag,
        permit: Permit,
        request: Self::Request<'_>,
        effects: &mut impl Effects<Self>,
    );

    /// The lowest date of an attempt that begins now. A grant should reach well beyond it.
    fn date(&self, now: Now) -> u64;

    /// The sessions after this one, in order, that this machine keeps records of: `max` at most.
    fn leases_after(&self, after: Option<LeaseId>, max: usize) -> Vec<LeaseId>;

    /// Shows the records that this machine keeps, as [`crate::ResultTracker::each_record`] does: each part of its
    /// data with a number, since one call may leave a record in several.
    fn each_record(&self, visit: &mut impl FnMut(usize, LeaseId, u64, Kept<'_>));

    /// Frees the records of a session that has ended. The next sweep finds it again if a call is in
    /// progress.
    fn end_session(&mut self, verdict: &LeaseEnd);
}
