//! The engines under test. A new one is a row here, and nothing else.

use quorate_check::Model;

/// The rig's knowledge of an engine.
pub(crate) struct Engine {
    /// Its name in a configuration.
    pub(crate) name: &'static str,
    /// More lines of its `[[keyspace]]`.
    pub(crate) options: &'static str,
    /// The guarantee of its transactions, if it has any. Single keys are linearizable in every
    /// engine.
    pub(crate) transactions: Option<Model>,
    /// The furthest that the wall clocks of two nodes may differ without breaking a promise, in
    /// milliseconds.
    pub(crate) clock_step_ms_max: u64,
    /// Whether keys move to where they are written.
    pub(crate) moves: bool,
    /// Whether every live node has what was acknowledged, not only a majority.
    pub(crate) writes_all: bool,
    /// Whether clients have sessions, whose calls happen once.
    pub(crate) sessions: bool,
    /// More lines of `[cluster]` where what is acknowledged is on disks; `None` if the engine has none.
    pub(crate) on_disks: Option<&'static str>,
}

/// Every engine.
pub(crate) const ENGINES: &[Engine] = &[
    Engine {
        name: "hermes",
        options: "",
        transactions: None,
        // Wall clocks matter only to expiry, which no client of the rig uses.
        clock_step_ms_max: 3_600_000,
        moves: false,
        writes_all: true,
        sessions: true,
        on_disks: Some("lanes = 2\n"),
    },
    Engine {
        name: "meerkat",
        options: "isolation = \"strict\"\nmax_clock_skew_ms = 50\n",
        transactions: Some(Model::StrictSerializable),
        clock_step_ms_max: 45,
        moves: false,
        writes_all: false,
        sessions: true,
        on_disks: Some("lanes = 2\n"),
    },
    Engine {
        name: "zeus",
        options: "",
        transactions: Some(Model::StrictSerializable),
        // Versions are above all that was seen, whatever clocks show.
        clock_step_ms_max: 3_600_000,
        moves: true,
        writes_all: true,
        sessions: true,
        on_disks: Some("lanes = 2\n"),
    },
];

/// The engine of this name.
pub(crate) fn find(name: &str) -> anyhow::Result<&'static Engine> {
    ENGINES.iter().find(|engine| engine.name == name).ok_or_else(|| {
        let names: Vec<&str> = ENGINES.iter().map(|engine| engine.name).collect();
        anyhow::anyhow!("there is no engine {name:?}; choose of {}", names.join(", "))
    })
}
