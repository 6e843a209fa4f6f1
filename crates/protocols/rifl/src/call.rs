//! The identity of a call.

use core::fmt;

use quorate_machine::CallError;
use quorate_types::{LaneId, MemberNumber, limits};
use quorate_wire::{Malformed, Reader, Writer};

const COUNTER_BITS: u32 = 34;
const LANE_BITS: u32 = 6;

/// Names a session: the member that gave the lease out, the lane that it belongs to on every node,
/// and a counter of that lane.
///
/// Member numbers are never used twice, so no two leases have the same id, and every node knows the
/// owner of a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl LeaseId {
    /// The largest counter.
    pub const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;

    /// Lease number `counter` of a member's lane.
    pub fn new(member: MemberNumber, lane: LaneId, counter: u64) -> Self {
        assert!(member.0 <= limits::MEMBER_NUMBER_MAX, "member number {member} is out of range");
        assert!(lane.0 < limits::LANES_MAX, "lane {lane} is out of range");
        assert!(counter <= Self::COUNTER_MAX, "lease counter {counter} is out of range");
        let high = u64::from(member.0) << LANE_BITS | u64::from(lane.0);
        Self(high << COUNTER_BITS | counter)
    }

    /// The member that gave it out.
    pub const fn member(self) -> MemberNumber {
        MemberNumber((self.0 >> (COUNTER_BITS + LANE_BITS)) as u32)
    }

    /// The lane on which its calls run.
    pub const fn lane(self) -> LaneId {
        LaneId((self.0 >> COUNTER_BITS) as u16 & (limits::LANES_MAX - 1))
    }

    /// Its number among those of the member's lane.
    pub const fn counter(self) -> u64 {
        self.0 & Self::COUNTER_MAX
    }
}

const _: () = assert!(limits::LANES_MAX == 1 << LANE_BITS);
const _: () = assert!(limits::MEMBER_NUMBER_MAX < 1 << (64 - LANE_BITS - COUNTER_BITS));

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.member(), self.lane(), self.counter())
    }
}

/// One call of a session, the same at every try.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    /// The session.
    pub lease: LeaseId,
    /// The call's number within it.
    pub sequence: u64,
    /// The client has the answers of all calls below this one. May be larger at a later try.
    pub first_incomplete: u64,
    /// A digest of the command, which tells a different one under the same number.
    pub digest: u32,
}

impl Call {
    /// Appends the call.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.lease.0);
        writer.u64(self.sequence);
        writer.u64(self.first_incomplete);
        writer.u32(self.digest);
    }

    /// Reads bytes that [`Call::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are no call of a proper client: see [`Call::check`].
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let call = Self {
            lease: LeaseId(reader.u64()?),
            sequence: reader.u64()?,
            first_incomplete: reader.u64()?,
            digest: reader.u32()?,
        };
        call.check().map_err(|_| Malformed("a call outside its window"))?;
        Ok(call)
    }

    /// Checks that the call's client has not acknowledged it, and that it is no further from the
    /// first incomplete one than the window allows.
    ///
    /// # Errors
    /// The fault of the call, whatever is known of its session.
    pub const fn check(&self) -> Result<(), CallError> {
        if self.sequence < self.first_incomplete {
            Err(CallError::Stale)
        } else if self.sequence - self.first_incomplete >= limits::SESSION_WINDOW {
            Err(CallError::BeyondWindow)
        } else {
            Ok(())
        }
    }
}
