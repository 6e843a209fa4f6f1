//! A cluster in memory for the tests of every protocol: machines, a pool of messages in flight, and
//! virtual time. Only the test decides which message arrives, when, how often, or never.
//!
//! A protocol plugs in through [`Subject`]: how a process begins, and how its messages become bytes.
//! On top of a [`Cluster`] stand the [`interaction`] language, whose traces are golden files, and
//! [`Disorder`], the bad luck of seeded random runs.

mod clock;
mod cluster;
mod disorder;
pub mod interaction;
mod logs;
mod observed;
mod outbox;
mod packet;
mod subject;
mod views;

pub use clock::Clock;
pub use cluster::{Cluster, Host, Letter, WALL};
pub use disorder::Disorder;
pub use logs::Logs;
pub use observed::Observed;
pub use outbox::Outbox;
pub use packet::Packet;
pub use subject::{MessageOf, OutcomeOf, Process, Step, Subject};
pub use views::{member, view_of};
