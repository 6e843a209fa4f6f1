//! When two machines are the same: for the exhaustive exploration of their states, which goes on
//! from each once.

use core::hash::{Hash, Hasher};

use quorate_machine::{Command, Table};

use crate::{Hermes, Meta};

/// Everything that decides what the machine will do. What only counts, and memory that is kept for
/// reuse, does not.
impl<T, O> Hash for Hermes<T, O>
where
    T: Table<Meta = Meta> + Hash,
    O: Command + Hash,
    O::Reply: Hash,
{
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Without a rest pattern: a new field has to be put on one side or the other.
        let Self {
            config,
            table,
            rng,
            view,
            number,
            live,
            retired,
            life,
            has_base,
            cluster,
            is_replica,
            peers,
            active,
            ops,
            next_number,
            resends,
            queues,
            waiting,
            serving,
            queue_checks,
            next_queue,
            ack_sets,
            hot,
            sweep,
            copying,
            floors,
            tombstones,
            reads,
            forwarding,
            expiry,
            tracker,
            tentative,
            deltas,
            overtaken,
            counters: _,
            scratch: _,
            answer_scratch: _,
        } = self;
        (config.incarnation, table, rng, view, number, live, retired, is_replica).hash(state);
        (peers, active, ops, next_number, resends, queues, waiting, serving).hash(state);
        (queue_checks, next_queue, ack_sets, hot, sweep, copying).hash(state);
        (floors, tombstones, reads, forwarding, expiry).hash(state);
        (tracker, tentative, deltas, overtaken, life, has_base, cluster).hash(state);
    }
}
