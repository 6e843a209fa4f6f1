//! A guest of a random run: it hears of some views, late, dies and comes anew, and is cut off at times, maybe
//! for so long that what it has begun is too old to be begun.

use quorate_harness::Logs;
use quorate_meerkat::Config;
use quorate_types::{Duration, NodeId, WriterId};

use super::{PLAN, Plan, Run, sweep, two_partitions};
use crate::guests::GUEST;
use crate::losses::two_groups;
use crate::packets::Packet;
use crate::support::Cluster;

/// What a run knows of its guest.
pub(super) struct Guest {
    writer: WriterId,
    /// How many there were before it.
    number: u8,
    /// Whether nothing goes from it or to it.
    cut: bool,
}

impl Guest {
    pub(super) fn enter(cluster: &mut Cluster, number: u8, configure: fn(&mut Config)) -> Self {
        Self { writer: cluster.let_in(number, configure), number, cut: false }
    }
}

fn is_of_guest(packet: &Packet) -> bool {
    packet.from.0 == GUEST || packet.to.0 == GUEST
}

impl Run {
    /// The guest connects with a process that has just been started.
    pub(super) fn visit(&mut self, node: u16) {
        if let Some(Guest { writer, .. }) = self.guest {
            self.cluster.machine(node).guest_joined(writer, NodeId(GUEST));
        }
    }

    /// What a guest does in its own time.
    pub(super) fn act_as_guest(&mut self) {
        let Some(guest) = &mut self.guest else { return };
        if self.rng.chance(1, 400) {
            self.cluster.crash(GUEST);
            *guest = Guest::enter(&mut self.cluster, guest.number + 1, self.plan.configure);
        }
        guest.cut ^= self.rng.chance(1, 100);
        if guest.cut {
            self.cluster.pool.retain(|packet| !is_of_guest(packet));
        } else if self.rng.chance(1, 30) {
            self.tell_guest();
        }
        if self.rng.chance(1, 10) {
            self.cluster.tick_node(GUEST);
        }
    }

    /// It hears of the newest view.
    fn tell_guest(&mut self) {
        let view = self.cluster.view.clone();
        if self.cluster.machine(GUEST).epoch() < view.epoch {
            self.cluster.install_on(GUEST, &view);
        }
    }

    /// The nodes are well again, and so is the guest at last.
    pub(super) fn heal_guest(&mut self, span: Duration) {
        if self.guest.as_mut().is_some_and(|guest| std::mem::take(&mut guest.cut)) {
            if self.rng.chance(1, 2) {
                self.tell_guest();
            }
            self.cluster.run_some(span, |packet| !is_of_guest(packet));
        }
        if self.guest.is_some() {
            self.tell_guest();
        }
        self.cluster.run_for(span);
    }

    /// The ends of a guest's transactions are kept for some seconds, and for more if it has died.
    pub(super) fn await_guest(&mut self) {
        if let Some(guest) = &self.guest {
            let span = Duration::from_secs(if guest.number == 0 { 6 } else { 70 });
            self.cluster.run_for(span);
            self.note_answers();
        }
    }
}

/// Clients that coordinate transactions of their own, beside the nodes.
#[test]
fn what_guests_do_is_strictly_serializable() {
    let plan = Plan { has_guest: true, sent: 15, ..PLAN };
    let mut probes = sweep(200, plan);
    probes.extend(sweep(100, Plan { nodes: 5, keys: 3, configure: two_partitions, ..plan }));
    for name in ["meerkat: decided as a backup", "meerkat: decided by a backup"] {
        assert!(probes.contains_key(name), "never: {name}");
    }
}

#[test]
fn guests_outlive_the_power_of_their_nodes() {
    let plan = Plan { has_guest: true, sent: 15, outages: 6, trouble: 0, ..PLAN };
    sweep(100, Plan { logs: Logs::Sync, ..plan });
    sweep(200, Plan { logs: Logs::Async, ..plan });
    let groups =
        Plan { nodes: 6, keys: 4, configure: two_groups, circuit: Some(3), outages: 8, ..plan };
    sweep(60, Plan { logs: Logs::Sync, ..groups });
    sweep(150, Plan { logs: Logs::Async, ..groups });
}
