//! The layering of the workspace, in one place. `ARCHITECTURE.md` says why.

/// What a crate may touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `no_std`, no `unsafe`, no clock, no randomness of its own, no output. Depends on these
    /// crates of the workspace only.
    Pure(&'static [&'static str]),
    /// An ordinary crate: depends on any crate above it.
    Std,
    /// The same, and may contain `unsafe`.
    StdUnsafe,
}

/// One crate under `crates/GROUP/`.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// The directory under `crates/GROUP/`.
    pub name: &'static str,
    /// What it may touch.
    pub kind: Kind,
}

/// The words and contracts that every protocol speaks.
const CONTRACT: &[&str] = &["types", "collections", "wire", "machine"];

/// What an engine that has sessions builds on.
const ENGINE: &[&str] = &["types", "collections", "wire", "machine", "rifl", "engine"];

/// Bottom up: a crate depends only on crates above it in this list.
pub const LAYERS: &[Layer] = &[
    Layer { name: "types", kind: Kind::Pure(&[]) },
    Layer { name: "collections", kind: Kind::Pure(&["types"]) },
    Layer { name: "wire", kind: Kind::Pure(&["types"]) },
    Layer { name: "machine", kind: Kind::Pure(&["types", "collections"]) },
    Layer { name: "rdb", kind: Kind::Pure(&["machine"]) },
    Layer {
        name: "commands",
        kind: Kind::Pure(&["types", "collections", "wire", "machine", "rdb"]),
    },
    Layer { name: "scripts", kind: Kind::Std },
    Layer { name: "paxos", kind: Kind::Pure(CONTRACT) },
    Layer { name: "membership", kind: Kind::Pure(&["types", "wire", "machine", "paxos"]) },
    Layer { name: "rifl", kind: Kind::Pure(CONTRACT) },
    Layer { name: "engine", kind: Kind::Pure(ENGINE) },
    Layer { name: "hermes", kind: Kind::Pure(ENGINE) },
    Layer { name: "meerkat", kind: Kind::Pure(ENGINE) },
    Layer { name: "local", kind: Kind::Pure(ENGINE) },
    Layer { name: "zeus", kind: Kind::Pure(ENGINE) },
    Layer { name: "frame", kind: Kind::Std },
    Layer { name: "sync", kind: Kind::Std },
    Layer { name: "durability", kind: Kind::Std },
    Layer { name: "storage", kind: Kind::StdUnsafe },
    Layer { name: "baselines", kind: Kind::Std },
    Layer { name: "check", kind: Kind::Std },
    Layer { name: "disk", kind: Kind::Std },
    Layer { name: "harness", kind: Kind::Std },
    Layer { name: "model", kind: Kind::Std },
    Layer { name: "workloads", kind: Kind::Std },
    Layer { name: "node", kind: Kind::Std },
    Layer { name: "resp", kind: Kind::Std },
    Layer { name: "resp-harness", kind: Kind::Std },
    Layer { name: "client", kind: Kind::Std },
    Layer { name: "runtime", kind: Kind::StdUnsafe },
    Layer { name: "admin", kind: Kind::Std },
    Layer { name: "config", kind: Kind::Std },
    Layer { name: "sim", kind: Kind::Std },
    Layer { name: "quorate", kind: Kind::Std },
    Layer { name: "rig", kind: Kind::Std },
];

/// Libraries that a pure crate may link: small, `no_std`, deterministic.
pub const PURE_LIBRARIES: &[&str] =
    &["hashbrown", "libm", "once_cell", "rapidhash", "twox-hash", "zerocopy"];

/// Libraries that bring an operating system, an executor or a scheduler, and the only crates that
/// may name them.
pub const CONFINED_LIBRARIES: &[(&str, &[&str])] = &[
    ("mio", &["runtime", "workloads"]),
    ("socket2", &["runtime"]),
    ("rustix", &["admin", "runtime", "rig", "scripts"]),
    ("mlua", &["scripts"]),
    ("once_cell", &["commands"]),
    ("twox-hash", &["commands"]),
    ("rtrb", &["sync"]),
    ("tokio", &["admin", "client", "rig"]),
    ("axum", &["admin"]),
    ("hyper", &["admin"]),
    ("hyper-util", &["admin"]),
    ("crossbeam-epoch", &["storage"]),
    ("crossbeam-utils", &["sync", "runtime"]),
    ("loom", &["sync", "storage"]),
    ("shuttle", &["sync"]),
    ("mimalloc", &["quorate"]),
    ("clap", &["quorate", "rig"]),
    ("fuser", &["rig"]),
];

/// Libraries that must not be linked at all, not even through another library.
pub const BANNED_LIBRARIES: &[(&str, &str)] = &[
    ("bincode", "is abandoned (RUSTSEC-2025-0141)"),
    ("crossbeam-skiplist", "leaks on range scans"),
    ("dashmap", "deadlocks on re-entry"),
    ("async-std", "is discontinued"),
    ("openssl", "is not needed: TLS is rustls"),
    ("openssl-sys", "is not needed: TLS is rustls"),
    ("aws-lc-sys", "needs a C toolchain and half a minute: rustls uses ring"),
    ("glommio", "brings an executor that the machines don't need"),
];

/// Banned libraries that one other library may bring in all the same, and why.
pub const TOLERATED_LIBRARIES: &[(&str, &str, &str)] =
    &[("dashmap", "stateright", "its set of known states, which is entered once at a time")];

/// Libraries that no crate of ours may name; others may bring them in.
pub const UNWANTED_LIBRARIES: &[(&str, &str)] = &[
    ("lazy_static", "is std::sync::LazyLock today"),
    ("rand", "is not needed: machines draw from their seeded Rng, the runtime from the system"),
];

/// The layer of this name, with its position.
pub fn find(name: &str) -> Option<(usize, &'static Layer)> {
    LAYERS.iter().enumerate().find(|(_, layer)| layer.name == name)
}
