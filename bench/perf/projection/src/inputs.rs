//! The inputs of a projection, each part under a name that says where it comes from.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The four systems of Meerkat's paper.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub(crate) enum System {
    /// No coordination between lanes or replicas.
    #[serde(rename = "meerkat")]
    Meerkat,
    /// Meerkat's storage, with a primary that alone validates.
    #[serde(rename = "meerkat-pb")]
    MeerkatPb,
    /// Every replica validates; its lanes share one record behind a mutex.
    #[serde(rename = "tapir")]
    Tapir,
    /// A primary whose lanes share a counter and a log, which backups replay.
    #[serde(rename = "kuafu")]
    KuaFu,
}

impl System {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Meerkat, Self::MeerkatPb, Self::Tapir, Self::KuaFu];

    /// The name that users see.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Meerkat => "meerkat",
            Self::MeerkatPb => "meerkat-pb",
            Self::Tapir => "tapir",
            Self::KuaFu => "kuafu",
        }
    }

    /// Whether one replica validates for all.
    pub(super) const fn has_primary(self) -> bool {
        matches!(self, Self::MeerkatPb | Self::KuaFu)
    }
}

/// Nanoseconds of processor time that a lane of a replica spends on one message: decoding it,
/// handling it, and encoding its answer. The cost of the network is not included. 0 for messages
/// that the system does not use.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Handlers {
    /// A read of one key: value and version.
    pub(crate) get: f64,
    /// VALIDATE: checks and registers a transaction; at the primary of a system that has one.
    pub(crate) validate: f64,
    /// CHECK of a transaction that writes nothing (Meerkat).
    pub(crate) check: f64,
    /// DECIDED: installs and forgets a transaction.
    pub(crate) decided: f64,
    /// ACCEPT at a backup: installs what the primary has validated.
    pub(crate) accept: f64,
    /// ACCEPTED at the primary, on average over the backups: a majority has it, or more.
    pub(crate) accepted: f64,
    /// Other work of a replica for each transaction: watermarks, dropped records, timers.
    pub(crate) upkeep: f64,
    /// The time a lane would spend on coordinating a transaction for its client, at the
    /// coordinator's node: reads there, its own vote, all answers. Not in the curves, whose clients
    /// coordinate.
    pub(crate) coordinator: f64,
}

/// Nanoseconds of one use of something shared.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Shared {
    /// By one thread alone.
    pub(crate) alone: f64,
    /// When threads on two processors use nothing else: the time between two uses. It bounds the
    /// number of uses in a second, whatever the number of lanes.
    pub(crate) contended: f64,
}

/// The things that lanes of a node share, in the systems that share something.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Contention {
    /// An atomic counter.
    pub(crate) counter: Shared,
    /// A mutex around nothing, for comparison.
    pub(crate) mutex: Shared,
    /// TAPIR's record: one transaction is noted or taken out behind its mutex.
    pub(crate) record: Shared,
    /// KuaFu++'s log at the primary or a backup: one of the three visits (append, take, done) that
    /// a transaction makes there.
    pub(crate) log: Shared,
}

/// The time between two increments of one counter by 80 threads of the paper's machines: 11 M
/// increments a second (Meerkat §1, figure 1).
const PAPER_COUNTER: f64 = 1e9 / 11e6;

impl Contention {
    /// The same things on the paper's machines, as far as its figure 1 tells: moving cache lines
    /// between processors costs more there, by the factor by which a contended counter does. Two
    /// sockets and 80 threads are in that factor; two cores of one socket can't show it.
    #[must_use]
    pub(crate) fn as_in_the_paper(&self) -> Self {
        let factor = (PAPER_COUNTER / self.counter.contended).max(1.0);
        let scaled = |shared: Shared| Shared { contended: shared.contended * factor, ..shared };
        Self {
            counter: scaled(self.counter),
            mutex: scaled(self.mutex),
            record: scaled(self.record),
            log: scaled(self.log),
        }
    }
}

/// Everything that was measured on the machine at hand.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// By workload.
    pub(crate) ycsb_t: PerSystem,
    /// By workload.
    pub(crate) retwis: PerSystem,
    /// The costs of shared things.
    pub(crate) contention: Contention,
}

/// Costs of each system.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct PerSystem {
    /// Those of Meerkat.
    pub(crate) meerkat: Handlers,
    /// Those of Meerkat-PB.
    pub(crate) meerkat_pb: Handlers,
    /// Those of the TAPIR-style system.
    pub(crate) tapir: Handlers,
    /// Those of KuaFu++.
    pub(crate) kuafu: Handlers,
}

impl PerSystem {
    /// The costs of one system.
    pub(crate) fn of(&self, system: System) -> &Handlers {
        match system {
            System::Meerkat => &self.meerkat,
            System::MeerkatPb => &self.meerkat_pb,
            System::Tapir => &self.tapir,
            System::KuaFu => &self.kuafu,
        }
    }
}

/// A network: a model in every case.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Network {
    /// Its name.
    pub(crate) name: &'static str,
    /// Nanoseconds that a message takes from one processor to another, at least.
    pub(crate) delay: f64,
    /// Nanoseconds that it takes longer at most; any time up to that is equally likely.
    pub(crate) jitter: f64,
    /// Nanoseconds of a lane's processor time for each message that it receives or sends.
    pub(crate) message: f64,
}

impl Network {
    /// Those that have names.
    pub(crate) const ALL: [Self; 4] = [Self::ERPC, Self::TESTBED, Self::TCP, Self::UDP];
    /// Kernel bypass, as eRPC (NSDI 2019): 10 M small calls a second on a core, 50 ns a message
    /// with either end's share; 2 µs one way through a switch.
    pub(crate) const ERPC: Self =
        Self { name: "erpc", delay: 2_000.0, jitter: 500.0, message: 50.0 };
    /// The paper's machines: 80 threads commit 8.3 M transactions of YCSB-T, which is 104 k for
    /// each thread with 2.3 requests each, so 4 µs for a request and its answer (Meerkat N6.6).
    /// Taken from the right end of Meerkat's line in figure 4, which is therefore no prediction;
    /// the other lines are.
    pub(crate) const TESTBED: Self =
        Self { name: "testbed", delay: 2_000.0, jitter: 500.0, message: 2_000.0 };
    /// TCP with batched writes: 5.4 M messages a second over the loopback device here, sender and
    /// receiver together 185 ns; 53 µs there and back between sleeping processes.
    pub(crate) const TCP: Self =
        Self { name: "tcp", delay: 26_500.0, jitter: 6_000.0, message: 92.5 };
    /// UDP with one system call for each datagram: 0.30 M a second here; 47 µs there and back.
    pub(crate) const UDP: Self =
        Self { name: "udp", delay: 23_500.0, jitter: 6_000.0, message: 1_650.0 };
}

impl FromStr for Network {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|one| one.name == name);
        found
            .ok_or_else(|| format!("there is no network {name:?}: it is erpc, testbed, tcp or udp"))
    }
}

/// The assumptions about everything else.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Model {
    /// The network.
    pub(crate) network: Network,
    /// Replicas; the first one is the primary of the systems that have one.
    pub(crate) replicas: usize,
    /// Keys for each lane of a replica: the data grows with the lanes (Meerkat §6.2).
    pub(crate) keys_per_lane: u64,
    /// Nanoseconds by which a client's clock differs from the true time at most.
    pub(crate) clock_skew: f64,
    /// Nanoseconds that a client pauses at most after its first abort; twice as long after each
    /// further one, up to 64 times.
    pub(crate) backoff: f64,
    /// The seed of all draws.
    pub(crate) seed: u64,
}

impl Model {
    /// The paper's cluster over a network.
    pub(crate) fn new(network: Network, seed: u64) -> Self {
        Self {
            network,
            replicas: 3,
            keys_per_lane: 1_000_000,
            clock_skew: 1_000.0,
            backoff: 2.0 * network.delay,
            seed,
        }
    }
}

#[cfg(test)]
pub(super) fn fixed() -> Measured {
    let meerkat = Handlers {
        get: 300.0,
        validate: 1_000.0,
        check: 500.0,
        decided: 800.0,
        accept: 0.0,
        accepted: 0.0,
        upkeep: 100.0,
        coordinator: 3_000.0,
    };
    let primary = Handlers {
        validate: 900.0,
        check: 0.0,
        decided: 0.0,
        accept: 500.0,
        accepted: 300.0,
        upkeep: 0.0,
        ..meerkat
    };
    let tapir = Handlers { check: 0.0, upkeep: 0.0, ..meerkat };
    let kuafu = Handlers { validate: 1_100.0, accept: 900.0, accepted: 400.0, ..primary };
    let systems = PerSystem { meerkat, meerkat_pb: primary, tapir, kuafu };
    let contention = Contention {
        counter: Shared { alone: 2.0, contended: 8.0 },
        mutex: Shared { alone: 10.0, contended: 60.0 },
        record: Shared { alone: 80.0, contended: 400.0 },
        log: Shared { alone: 40.0, contended: 400.0 },
    };
    Measured { ycsb_t: systems, retwis: systems, contention }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_names() {
        for network in Network::ALL {
            assert_eq!(network.name.parse(), Ok(network));
        }
        assert!("rdma".parse::<Network>().is_err());
    }

    #[test]
    fn contention_is_scaled_to_the_papers_counter_and_never_down() {
        let scaled = fixed().contention.as_in_the_paper();
        assert!((scaled.counter.contended - PAPER_COUNTER).abs() < 1e-6);
        let factor = PAPER_COUNTER / 8.0;
        assert!((scaled.record.contended - 400.0 * factor).abs() < 1e-6);
        assert_eq!(scaled.record.alone, 80.0);
        let mut slow = fixed().contention;
        slow.counter.contended = 500.0;
        assert_eq!(slow.as_in_the_paper(), slow);
    }
}
