//! What becomes of the files in a node's directory before any of them is used.
//!
//! A driver looks through them ([`NodeFound`]) and asks [`Opening`]: they are used, or some are put aside
//! first, where nothing reads them again, and the rest is looked through once more. A node whose log is
//! damaged begins without data and copies from the others. One that has a log and no promises of a voter
//! does, too: nobody can say whether the cluster has gone on without it.

use quorate_durability::{Directory, LogError, Name, VOTER_FILE, VoterFile};
use quorate_machine::mutant;
use quorate_types::LaneId;

use crate::{LaneFound, NodeConfig, RestoredStore, identity};

/// What there is of a node.
#[derive(Debug)]
pub struct NodeFound {
    /// By number of the lane.
    pub lanes: Vec<LaneFound>,
    /// The file with what the node has promised as a voter, and what it says.
    pub voter: (VoterFile, Option<Vec<u8>>),
}

impl NodeFound {
    /// Looks through the files of all lanes, and the voter's.
    ///
    /// # Errors
    /// Of [`VoterFile::load`] and [`LaneFound::look`].
    pub fn look(directory: &mut impl Directory, config: &NodeConfig) -> Result<Self, LogError> {
        let voter = VoterFile::load(directory, identity(config, LaneId(0)))?;
        let lanes = (0..config.lanes).map(LaneId);
        let lanes = lanes.map(|lane| LaneFound::look(directory, identity(config, lane)));
        Ok(Self { lanes: lanes.collect::<Result<_, _>>()?, voter })
    }

    /// Whether the lanes have left anything.
    fn has_data(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.is_empty())
    }
}

/// Files that are put aside together: a part of them could look like a log that ends earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Aside {
    /// Those of all lanes.
    Lanes,
    /// Those of all lanes, and the voter's.
    All,
}

/// What a node begins with.
#[derive(Debug)]
pub struct Opened {
    /// The files that are used.
    pub found: NodeFound,
    /// How much of what the node had acknowledged is there.
    pub store: RestoredStore,
    /// Whether an earlier process may have acknowledged anything: the lanes have left something, or have
    /// lost all that they had not flushed.
    pub has_past: bool,
}

impl Opened {
    /// Snapshots that are damaged, so that an older one counts, and what is wrong with each: they are put
    /// aside one by one.
    pub fn damaged_snapshots(&self) -> impl Iterator<Item = &(Name, LogError)> {
        self.found.lanes.iter().flat_map(|lane| &lane.damaged)
    }
}

/// What a driver does with the files that it has looked through.
#[derive(Debug)]
pub enum Verdict {
    /// They are used.
    Use(Box<Opened>),
    /// These are put aside, for good, and what is left is looked through again.
    PutAside {
        /// Which.
        aside: Aside,
        /// Why, in words that name the file.
        why: String,
    },
}

/// Decides about the files of one node. See the module's documentation.
#[derive(Debug, Default)]
pub struct Opening {
    /// What was put aside so far.
    aside: Option<Aside>,
}

impl Opening {
    /// What becomes of the files that a driver has looked through, with the errors of
    /// [`NodeFound::look`].
    ///
    /// # Errors
    /// If the files belong elsewhere or to a newer program, or the directory can't be read: nothing is
    /// changed then. Or if what is damaged was put aside and is damaged again.
    ///
    /// # Panics
    /// If the driver has put nothing aside.
    pub fn judge(&mut self, looked: Result<NodeFound, LogError>) -> Result<Verdict, LogError> {
        let found = match looked {
            Ok(found) => found,
            Err(error) => {
                let aside = match error {
                    LogError::Voter { .. } => Aside::All,
                    _ => Aside::Lanes,
                };
                if !is_damage(&error) || self.aside >= Some(aside) {
                    return Err(error);
                }
                self.aside = Some(aside);
                return Ok(Verdict::PutAside { aside, why: error.to_string() });
            }
        };
        let has_data = found.has_data();
        if found.voter.1.is_none() && has_data && !mutant!("node_log_without_its_voter") {
            assert!(self.aside < Some(Aside::All), "what was put aside is not read again");
            self.aside = Some(Aside::All);
            let why = format!(
                "there is a log, and the file '{VOTER_FILE}' with what this node has promised is missing; \
                 to use the log, put it back with that file"
            );
            return Ok(Verdict::PutAside { aside: Aside::All, why });
        }
        // Who has promised anything has prepared its logs before. They are not there if they were put
        // aside, now or by a process that has ended since.
        let is_whole =
            found.lanes.iter().all(LaneFound::is_prepared) || mutant!("node_missing_log_is_intact");
        let store = match &found.voter.1 {
            None => RestoredStore::None,
            Some(_) if is_whole => RestoredStore::Intact,
            Some(_) => RestoredStore::Damaged,
        };
        let has_lost_all = store == RestoredStore::Intact && !mutant!("node_empty_log_has_no_past");
        let has_past = has_data || has_lost_all;
        Ok(Verdict::Use(Box::new(Opened { found, store, has_past })))
    }
}

/// Whether a node may go on without what its files say: others have a copy.
fn is_damage(error: &LogError) -> bool {
    let is_elsewhere = matches!(error, LogError::Foreign { .. } | LogError::Newer { .. });
    !is_elsewhere && !matches!(error, LogError::Directory(_))
}

#[cfg(test)]
mod tests;
