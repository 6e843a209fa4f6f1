//! The log on a simulated disk.

mod golden;
mod histories;
mod host;
mod inspecting;
mod recovery;
mod snapshot;
mod voter;
mod world;
mod writing;
