//! When two lanes are the same: for the exhaustive exploration of their states, which goes on from
//! each once.

use core::hash::{Hash, Hasher};

use quorate_machine::{Command, LaneShared, Table};

use crate::meta::Meta;
use crate::state::Meerkat;

/// Everything that decides what the lane will do. What only counts, and memory that is kept for
/// reuse, does not.
impl<T, X> Hash for Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared + Hash,
    X: Command + Hash,
    X::Reply: Hash,
{
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Without a rest pattern: a new field has to be put on one side or the other.
        let Self {
            config,
            table,
            rng,
            view,
            phase,
            active,
            member,
            groups,
            epoch_floor,
            read_high,
            change,
            copying,
            cluster,
            life,
            records,
            footprints,
            spare_bodies: _,
            over: _,
            suspects,
            unnamed,
            recoveries,
            stable,
            trackers,
            released_by,
            acks,
            acks_due,
            guests,
            tombstones,
            sweep_cursor,
            floor_published,
            absence_floor,
            ops,
            attempts,
            spare_attempts: _,
            next_sequence,
            last_issued,
            announced,
            announce_due,
            was_busy,
            lines,
            under_way,
            blocked_on,
            backoffs,
            ready,
            fast_checks,
            resends,
            commit_waits,
            op_deadlines,
            work: _,
            counters: _,
            clock_lead: _,
        } = self;
        (config.incarnation, table, rng, view, phase, active, member, groups).hash(state);
        (epoch_floor, read_high, change, copying, cluster, life).hash(state);
        (records, footprints, suspects, unnamed, recoveries, stable, released_by, acks).hash(state);
        (trackers, acks_due, guests, tombstones, sweep_cursor, floor_published, absence_floor)
            .hash(state);
        (ops, attempts, next_sequence, last_issued, announced, announce_due).hash(state);
        (was_busy, lines, under_way, blocked_on, backoffs, ready).hash(state);
        (fast_checks, resends, commit_waits, op_deadlines).hash(state);
    }
}
