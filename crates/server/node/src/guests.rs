//! Guests of a lane: clients that coordinate their transactions themselves.
//!
//! A guest has one connection to every live member, all on one lane, because a transaction stays on
//! one lane. One node gives it an id ([`GuestMessage::Join`]), under which it then enters the
//! others. Each id is given once in the life of a node: it stands in timestamps, and there must
//! never be two transactions with the same one.

use std::collections::BTreeMap;

use quorate_types::{
    Duration, Incarnation, Instant, KeyspaceId, LaneId, MemberNumber, NodeId, NodeSet, WriterId,
};

/// Guests of one lane at the same time; more are refused.
pub const GUESTS_MAX: usize = 16;
/// How long a guest may be away from a node. The node remembers for longer how the guest's
/// transactions ended, so a guest that is back in time can't bring one up again.
const ABSENCE_MAX: Duration = Duration::from_secs(30);

/// The guests that a lane knows.
#[derive(Default)]
pub(crate) struct Guests {
    connected: NodeSet,
    seats: BTreeMap<NodeId, Seat>,
    /// How many ids this lane has given in this life, by keyspace.
    given: BTreeMap<KeyspaceId, u16>,
    /// Those that were here and are gone: whose they were, and since when.
    left: BTreeMap<(KeyspaceId, WriterId), (Incarnation, Instant)>,
}

/// One guest's connection.
struct Seat {
    session: Incarnation,
    /// What it coordinates, and under which id.
    joined: Option<(KeyspaceId, WriterId)>,
}

impl Guests {
    /// A connection of the guest whose session this is, under an id that no node has.
    pub(crate) fn connect(&mut self, node: NodeId, session: Incarnation) {
        self.connected.insert(node);
        self.seats.insert(node, Seat { session, joined: None });
    }

    /// Whether this is a guest's connection.
    #[inline]
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.connected.contains(node)
    }

    /// The keyspace that a guest has joined.
    pub(crate) fn keyspace(&self, node: NodeId) -> Option<KeyspaceId> {
        self.seats.get(&node)?.joined.map(|(keyspace, _)| keyspace)
    }

    /// The guests that have joined, and what.
    pub(crate) fn joined(&self) -> impl Iterator<Item = (NodeId, KeyspaceId)> + '_ {
        self.seats.iter().filter_map(|(&node, seat)| Some((node, seat.joined?.0)))
    }

    /// A connection is gone; returns the keyspace that must be told.
    pub(crate) fn leave(&mut self, now: Instant, node: NodeId) -> Option<KeyspaceId> {
        self.connected.remove(node);
        let seat = self.seats.remove(&node)?;
        let joined = seat.joined?;
        self.left.insert(joined, (seat.session, now));
        Some(joined.0)
    }

    /// Gives an id to a guest that has none.
    pub(crate) fn give(
        &mut self,
        node: NodeId,
        keyspace: KeyspaceId,
        member: MemberNumber,
        lane: LaneId,
        lanes: u16,
    ) -> Result<WriterId, &'static str> {
        let given = self.given.entry(keyspace).or_default();
        // Ids are dealt out to the lanes in turn, as `lane_of` takes them back apart.
        let index = given.saturating_mul(lanes).saturating_add(lane.0);
        let writer = u8::try_from(index).ok().and_then(|index| WriterId::guest(member, index));
        let writer = writer.ok_or(
            "this node has given away every id that it has for clients on this lane; \
             join at another node, or restart this one",
        )?;
        *given += 1;
        if let Some(seat) = self.seats.get_mut(&node) {
            seat.joined = Some((keyspace, writer));
        }
        Ok(writer)
    }

    /// Lets a guest in that has its id from another node, or that was here before.
    pub(crate) fn enter(
        &mut self,
        now: Instant,
        node: NodeId,
        keyspace: KeyspaceId,
        writer: WriterId,
        lane: LaneId,
        lanes: u16,
    ) -> Result<(), &'static str> {
        if !writer.is_guest() || writer.lane(lanes) != lane {
            return Err("this id is not one of a guest on this lane; join anew");
        }
        let Some(session) = self.seats.get(&node).map(|seat| seat.session) else {
            return Err("this connection is not a guest's; connect anew");
        };
        let joined = Some((keyspace, writer));
        let mut others = self.seats.values_mut().filter(|seat| seat.joined == joined);
        if let Some(other) = others.next() {
            if other.session != session {
                return Err("another client has this id; join anew");
            }
            // The guest has connected again before the loss of the old connection was noticed.
            other.joined = None;
        }
        if let Some((theirs, since)) = self.left.remove(&(keyspace, writer))
            && (theirs != session || now.since(since) > ABSENCE_MAX)
        {
            self.left.insert((keyspace, writer), (theirs, since));
            return Err("this client was away for too long; join anew");
        }
        if let Some(seat) = self.seats.get_mut(&node) {
            seat.joined = joined;
        }
        Ok(())
    }

    /// The node begins a new life: it knows nobody, and has all its ids again.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: KeyspaceId = KeyspaceId(1);
    const ME: MemberNumber = MemberNumber(3);
    const LANES: u16 = 2;

    fn with_guests(count: u16) -> Guests {
        let mut guests = Guests::default();
        for node in 0..count {
            guests.connect(NodeId(63 - node), Incarnation(u64::from(node)));
        }
        guests
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn each_id_is_given_once_and_belongs_to_the_lane() {
        for lane in (0..LANES).map(LaneId) {
            let mut guests = with_guests(1);
            let mut seen = std::collections::BTreeSet::new();
            let refusal = loop {
                match guests.give(NodeId(63), K, ME, lane, LANES) {
                    Ok(writer) => {
                        assert!(writer.is_guest() && writer.member() == ME);
                        assert_eq!(writer.lane(LANES), lane);
                        assert!(seen.insert(writer), "{writer:?} was given twice");
                    }
                    Err(refusal) => break refusal,
                }
            };
            assert_eq!(seen.len(), 96);
            assert!(refusal.contains("join at another node"), "{refusal}");
            guests.give(NodeId(63), KeyspaceId(2), ME, lane, LANES).unwrap();
        }
    }

    #[test]
    fn a_guest_comes_back_in_time_or_not_at_all() {
        let mut guests = with_guests(3);
        let writer = guests.give(NodeId(63), K, ME, LaneId(0), LANES).unwrap();
        assert_eq!(guests.keyspace(NodeId(63)), Some(K));
        let enter = |guests: &mut Guests, now, node, session| {
            guests.connect(NodeId(node), Incarnation(session));
            guests.enter(at(now), NodeId(node), K, writer, LaneId(0), LANES)
        };
        assert!(enter(&mut guests, 0, 62, 1).is_err(), "it is another's");
        assert_eq!(guests.leave(at(10), NodeId(63)), Some(K));
        assert!(!guests.contains(NodeId(63)));
        assert!(enter(&mut guests, 11, 62, 1).is_err(), "it was another's");
        enter(&mut guests, 40, 61, 0).unwrap();
        enter(&mut guests, 40, 60, 0).unwrap();
        assert_eq!(guests.leave(at(41), NodeId(61)), None, "it is here under another connection");
        assert_eq!(guests.joined().collect::<Vec<_>>(), [(NodeId(60), K)]);
        assert_eq!(guests.leave(at(50), NodeId(60)), Some(K));
        let late = enter(&mut guests, 81, 60, 0).unwrap_err();
        assert!(late.contains("too long"), "{late}");
        assert!(enter(&mut guests, 82, 60, 0).is_err(), "and again");
    }

    #[test]
    fn an_id_of_another_lane_or_of_a_node_is_refused() {
        let mut guests = with_guests(1);
        let mut enter =
            |writer| guests.enter(at(0), NodeId(63), K, writer, LaneId(0), LANES).is_ok();
        assert!(!enter(WriterId::new(ME, 0)));
        assert!(!enter(WriterId::guest(ME, 1).unwrap()));
        assert!(enter(WriterId::guest(ME, 2).unwrap()));
    }
}
