//! Checks that ops complete while the world does not change.
//!
//! A cluster need not answer while it finds out about a change. Once the world has not changed for
//! [`time_to_recover`], without a fault or with a standing one, every op that is asked of a node
//! without a fault completes within [`OP_MAX`]; and where a link between two nodes is cut, all
//! nodes but one go on, provided that a majority is connected and alive.

use quorate_commands::Reply;
use quorate_machine::{Outcome, Refusal};
use quorate_types::NodeSet;

use crate::links::SILENCE_MAX;
use crate::setup::BUFFER_BYTES;
use crate::world::{MS, World};

/// How long a cluster may take to recover from a change, once it has noticed the change.
const SETTLES: u64 = 2_000 * MS;
/// How long a cluster may take to notice a change, and to recover from it. A broken connection and
/// a restart are noticed at once. A cut is noticed by the silence behind it, for which a node waits
/// the longer the longer silences it has known; on a lane without heartbeats the operating system
/// notices it.
pub(crate) fn time_to_recover(world: &World) -> u64 {
    // Over slow links: two changes in a row, each of which tells all that members know there and back.
    let transfers = 4 * world.network.transfer(BUFFER_BYTES);
    let patience = world.nodes[0].config.suspect_after_max().as_nanos();
    let patience = u64::try_from(patience).unwrap_or(u64::MAX / 4).max(SILENCE_MAX);
    SETTLES + transfers + if world.isolated.is_empty() { 0 } else { patience }
}

/// How long an op may take after that.
const OP_MAX: u64 = 1_000 * MS;

/// The ops since the last change.
#[derive(Default)]
pub(crate) struct Progress {
    /// The time of the change.
    since: u64,
    /// Nodes that did not complete an op.
    failed: NodeSet,
    /// An op that should have completed, if one did not.
    pub(crate) complaint: Option<String>,
}

impl Progress {
    /// The last change, if an op that begins now should complete unless something changes again.
    pub(crate) fn begin(world: &World) -> Option<u64> {
        let right = world.nodes.iter().all(|node| node.monotonic.is_right());
        let calm = world.network.is_calm() && right && world.disks_are_well();
        let since = world.changed_at.filter(|_| calm)?;
        (since + time_to_recover(world) <= world.time).then_some(since)
    }

    /// Ends an op that was asked of a node at `began`, when the last change was `steady`.
    pub(crate) fn end(
        &mut self,
        world: &World,
        node: usize,
        began: u64,
        steady: Option<u64>,
        outcome: &Outcome<Reply<'static>>,
    ) {
        let completed = match outcome {
            Outcome::Done(_) => world.time - began <= OP_MAX,
            Outcome::Refused(refusal) => *refusal != Refusal::NotServing,
            Outcome::Unknown => false,
        };
        if completed || steady.is_none() || steady != world.changed_at || self.complaint.is_some() {
            return;
        }
        if steady != Some(self.since) {
            (self.since, self.failed) = (steady.unwrap_or_default(), NodeSet::EMPTY);
        }
        // The node was removed, or is not yet added, or can't copy what it lacks: it can't serve.
        let id = world.nodes[node].id;
        if world.outsiders().contains(id) || world.lacks_donors(id) {
            return;
        }
        self.failed.insert(id);
        if let Some(expected) = Self::expected(world)
            && (self.failed.difference(world.isolated) != NodeSet::EMPTY
                || world.nodes.len() - self.failed.len() < expected)
            && !world.majority_lost()
            && !world.lacks_votes()
            && !world.waits_for_the_cut_off()
        {
            let stuck: Vec<_> = { world.keyspaces.iter() }
                .map(|keyspace| (keyspace.id, world.stuck_nodes(keyspace)))
                .filter(|(_, nodes)| !nodes.is_empty())
                .collect();
            self.complaint = Some(format!(
                "an op that was asked of {:?} {} ms after the last change, with {:?} cut off, ended \
                 {} ms later as {outcome:?}; ops asked of {:?} do not complete; too few replicas of \
                 {stuck:?} are left",
                id,
                (began - self.since) / MS,
                world.isolated,
                (world.time - began) / MS,
                self.failed,
            ));
        }
    }

    /// The number of nodes that should go on, if the cluster should.
    fn expected(world: &World) -> Option<usize> {
        let down = world.nodes.iter().filter(|node| !node.up).count();
        // Of two nodes that do not reach each other one goes on.
        let lost = world.isolated.len().min(1);
        let left = world.nodes.len() - lost;
        (down == 0 && left * 2 > world.nodes.len()).then_some(left)
    }
}
