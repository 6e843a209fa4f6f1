//! The command line.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use quorate_node::{Durability, EngineConfig};
use quorate_types::limits;

use crate::engine_arg;

/// A replicated in-memory key-value store that Redis clients can use.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn durability_parser() -> impl TypedValueParser<Value = Durability> {
    PossibleValuesParser::new(Durability::ALL.map(|(name, _)| name))
        .map(|name| Durability::named(&name).expect("the name is one of those"))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster in this process, to try things out; nothing to set up
    Dev(Dev),
    /// Run one node of a cluster
    Serve(Serve),
    /// Show the members of a running cluster and how they are
    Status(Status),
    /// Add a member to a running cluster, remove one, or have one stay that is about to leave
    Member(Member),
    /// Accept the loss of nodes: go on from what is on the disks of the others, when too few come back
    Recover(Recover),
    /// Measure transactions per second of a running cluster, or of any server like Redis
    Bench(crate::bench::Options),
    /// Judge a recorded history: 0 it keeps its guarantee, 1 it does not, 2 the file is bad, 3
    /// undecided
    Check(Check),
    /// Look at the files of a node's log: 0 they are sound, 1 something is damaged, 2 they can't be
    /// read. Nothing is changed
    Log(Log),
    /// Write all keyspaces of a running cluster to one file, of one moment where that can be had, and say
    /// whether it could: keys of all types, expiries, libraries of functions
    Backup(crate::backup::Options),
    /// Write a backup into a running cluster that has nothing there
    Restore(crate::restore::Options),
    /// Write the keys of a Redis file (RDB) into a running cluster, or any server like Redis
    Import(crate::import::Options),
    /// Write the keys of a running cluster to a Redis file (RDB); each is of one moment, and the file as
    /// a whole is not
    Export(crate::export::Options),
    /// Run simulated clusters in virtual time under faults, and judge what their clients saw
    Sim(crate::sim::Options),
}

#[derive(Args, Debug)]
pub(crate) struct Dev {
    /// How many nodes
    #[arg(long, default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..=limits::MEMBERS_MAX as i64))]
    pub(crate) nodes: u16,
    /// Threads that serve data; all nodes share them
    #[arg(long, default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::LANES_MAX)))]
    pub(crate) lanes: u16,
    /// Redis port of the first node; the others follow. 0 lets the system choose
    #[arg(long, default_value_t = 6379)]
    pub(crate) port: u16,
    /// Administration port of the first node; the others follow. 0 lets the system choose
    #[arg(long, default_value_t = 9400)]
    pub(crate) admin_port: u16,
    /// Also open peer ports, the first node's and those after it, for clients that coordinate their
    /// transactions themselves; the cluster's name is `dev`. 0 lets the system choose
    #[arg(long)]
    pub(crate) peer_port: Option<u16>,
    /// The engine of every database; without it, database 1 has the first of these, which is the
    /// fastest on single keys, and all others the first that runs every command over any keys
    #[arg(long, value_parser = engine_arg::parser())]
    pub(crate) engine: Option<EngineConfig>,
    /// A directory in which the nodes keep their data, made if it isn't there; started again with it,
    /// everything is back. Without it, data lives in memory
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// What survives in the directory when all processes end at once: `sync` whatever was acknowledged,
    /// `async` all but the last moments, `memory` nothing
    #[arg(long, requires = "dir", default_value = "sync", value_parser = durability_parser())]
    pub(crate) durability: Durability,
    /// A password that clients must give
    #[arg(long, value_name = "PASSWORD")]
    pub(crate) requirepass: Option<String>,
    /// A file with the token that a change of the members must give, made if it isn't there;
    /// without it, they can't be changed
    #[arg(long, value_name = "PATH")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print nothing but the line that says that the cluster is ready
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// The cluster's configuration, the same file on every node
    #[arg(long)]
    pub(crate) config: PathBuf,
    /// Which of its nodes this process is
    #[arg(long)]
    pub(crate) node: u16,
    /// A file with the token that a change of the members must give, made if it isn't there;
    /// without it, the configuration's path with the extension `token`
    #[arg(long, value_name = "PATH")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Administration address of any node
    #[arg(long, default_value = "127.0.0.1:9400")]
    pub(crate) admin: String,
    /// Print what that node says as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Member {
    #[command(subcommand)]
    pub(crate) change: MemberChange,
    /// The file with the token of the node that is asked, which that node names when it starts
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemberChange {
    /// Add a node; start its process then, and it joins, copies the data and serves
    Add {
        /// Its id, one that no node of the cluster has or had
        id: u16,
        /// Where its peers reach it, host:port
        #[arg(long)]
        peer: String,
        /// Where its clients reach it, host:port
        #[arg(long)]
        client: String,
        /// Where its administration endpoint listens, host:port
        #[arg(long)]
        admin_address: String,
        /// Administration address of a node of the running cluster
        #[arg(long, default_value = "127.0.0.1:9400")]
        admin: String,
    },
    /// Remove a node for good, once the others have copied what it has; waits for that, and goes on
    /// without this command, too
    Remove {
        /// Its id
        id: u16,
        /// Administration address of a node that stays
        #[arg(long, default_value = "127.0.0.1:9400")]
        admin: String,
        /// Don't wait until it is out
        #[arg(long)]
        no_wait: bool,
        /// Remove it with its copies, at once: a loss like a death, and if further nodes die before
        /// the others have copied what falls to them, data may be gone
        #[arg(long)]
        now: bool,
    },
    /// Have a node stay that is about to leave
    Keep {
        /// Its id
        id: u16,
        /// Administration address of a node of the running cluster
        #[arg(long, default_value = "127.0.0.1:9400")]
        admin: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Recover {
    /// The ids of the nodes that are lost, or whose disks are; none if all are here and damaged
    pub(crate) lost: Vec<u16>,
    /// Accept that what only they had is gone, which is said without it. They must not come back: what
    /// they have doesn't count any more
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Administration address of a node that serves, if some do. Otherwise of one that came back with its
    /// disk: if no node has all that clients were told, what this one has counts
    #[arg(long, default_value = "127.0.0.1:9400")]
    pub(crate) admin: String,
    /// The file with the token of the node that is asked, which that node names when it starts
    #[arg(long, value_name = "PATH")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Log {
    #[command(subcommand)]
    pub(crate) command: LogCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Say what each file of a directory is, or what is in one file, batch by batch
    Inspect {
        /// A node's directory, or a segment or snapshot in it
        path: PathBuf,
    },
    /// Read all files of a node that is not running, as it would when it starts, and name what is
    /// damaged, with file and offset
    Verify {
        /// The node's directory
        directory: PathBuf,
    },
}

/// A guarantee of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Model {
    /// Some order of the transactions explains what each of them read
    Serializable,
    /// The same, and what ended before something else began comes first
    Strict,
}

/// A workload of Elle, the checker of Jepsen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Elle {
    /// Lists that are appended to and read whole
    ListAppend,
    /// Registers
    RwRegister,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// The history, JSON lines; docs/src/history.md describes them
    pub(crate) file: PathBuf,
    /// What to hold the history against; without it strict if there are transactions, and
    /// otherwise each key on its own
    #[arg(long, value_enum)]
    pub(crate) model: Option<Model>,
    /// Judge nothing; print the history as elle-cli reads it, for this workload
    #[arg(long, value_enum, value_name = "WORKLOAD", conflicts_with = "model")]
    pub(crate) elle: Option<Elle>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
