//! The engines that a node has: the one list.
//!
//! An engine is a crate and a line below. Everything else about engines, in this crate and in those
//! above it, goes by [`quorate_engine::Engine`], by [`EngineConfig`] for what an operator chooses,
//! and by [`EngineInfo`] for what users are told.

#[macro_use]
mod expand;
mod info;

use quorate_commands::Op;
use quorate_storage::{LaneTable, SharedTable};

pub use info::EngineInfo;

engines! {
    /// Invalidation-based replication of single keys.
    hermes: Hermes => quorate_hermes::Hermes<LaneTable<quorate_hermes::Meta>, Op>;
    /// Leaderless transactions over any keys.
    meerkat: Meerkat => quorate_meerkat::Meerkat<SharedTable<quorate_meerkat::Meta>, Op>;
    /// Transactions over any keys on the node that owns them.
    zeus: Zeus => quorate_zeus::Zeus<SharedTable<quorate_zeus::Meta>, Op>;
    /// One copy on one node.
    local: Local => quorate_local::Local<SharedTable<quorate_local::Meta>, Op>;
    /// A rival of Meerkat, KuaFu++.
    #[cfg(feature = "baselines")]
    kuafu: KuaFu => quorate_baselines::Baseline<
        quorate_baselines::KuaFu, SharedTable<quorate_meerkat::Meta>, Op>;
    /// A rival of Meerkat, TAPIR-style.
    #[cfg(feature = "baselines")]
    tapir: Tapir => quorate_baselines::Baseline<
        quorate_baselines::Tapir, SharedTable<quorate_meerkat::Meta>, Op>;
    /// A rival of Meerkat, Meerkat-PB.
    #[cfg(feature = "baselines")]
    meerkat_pb: MeerkatPb => quorate_baselines::Baseline<
        quorate_baselines::MeerkatPb, SharedTable<quorate_meerkat::Meta>, Op>;
    /// A rival of Zeus, FaSST-style.
    #[cfg(feature = "baselines")]
    fasst: Fasst => quorate_baselines::Baseline<
        quorate_baselines::Fasst, SharedTable<quorate_meerkat::Meta>, Op>;
}
