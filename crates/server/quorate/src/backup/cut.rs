//! Whether what a backup has read is of one moment.
//!
//! Every key was read at one node, whose replica tells of each change. If it told of none since the last
//! key was read, all of them were as they were read, together, at that moment. What the replica holds then
//! is also a moment of the cluster, unless an update has ended elsewhere that it has not heard of: then it
//! may have heard of a later one that rests on it. So every node must have said, meanwhile, that it knows of
//! no such update. They need not say it at the same time: an update that ended before the replica was silent
//! is known to some node until the replica has it, and one that ends later rests on nothing that is missing.

use quorate_machine::mutant;

/// What a node says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    /// The epoch of its view.
    pub(super) epoch: u64,
    /// Updates that may have ended and that some replica may not have.
    pub(super) unsettled: u64,
    /// Whether it serves.
    pub(super) serves: bool,
}

/// Why it is of no single moment yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Open {
    /// Keys have changed, or could not be read.
    Keys(usize),
    /// Updates are under way.
    Updates(u64),
    /// The members change.
    Members,
}

/// Judges a round: how many keys were told of since it began, how many it could not read, and what every
/// member said behind its last read and before the last look at what was told.
pub(super) fn judge(told: usize, unread: usize, nodes: &[Standing]) -> Result<(), Open> {
    let changed = if mutant!("quorate_backup_changes_unheeded") { unread } else { told + unread };
    if changed > 0 {
        return Err(Open::Keys(changed));
    }
    let is_one_view = nodes.windows(2).all(|pair| pair[0].epoch == pair[1].epoch);
    if !(is_one_view && nodes.iter().all(|node| node.serves)) || nodes.is_empty() {
        return Err(Open::Members);
    }
    match nodes.iter().map(|node| node.unsettled).sum() {
        0 => Ok(()),
        _ if mutant!("quorate_backup_unsettled_unheeded") => Ok(()),
        updates => Err(Open::Updates(updates)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Standing = Standing { epoch: 3, unsettled: 0, serves: true };

    #[test]
    fn a_moment_is_one_in_which_nothing_changes_and_nothing_is_under_way() {
        assert_eq!(judge(0, 0, &[QUIET; 3]), Ok(()));
        assert_eq!(judge(2, 0, &[QUIET; 3]), Err(Open::Keys(2)));
        assert_eq!(judge(0, 1, &[QUIET; 3]), Err(Open::Keys(1)));
        let busy = Standing { unsettled: 4, ..QUIET };
        assert_eq!(judge(0, 0, &[QUIET, busy, QUIET]), Err(Open::Updates(4)));
        let later = Standing { epoch: 4, ..QUIET };
        assert_eq!(judge(0, 0, &[QUIET, QUIET, later]), Err(Open::Members));
        let lapsed = Standing { serves: false, ..QUIET };
        assert_eq!(judge(0, 0, &[lapsed]), Err(Open::Members));
        assert_eq!(judge(0, 0, &[]), Err(Open::Members), "nobody was asked");
    }
}
