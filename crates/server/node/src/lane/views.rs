//! How a lane follows the membership: views, new lives, and what it has copied.

use std::sync::Arc;

use quorate_machine::{Event, mutant};
use quorate_types::{Incarnation, Instant, KeyspaceId, LaneId, Now, Role, View};

use super::Lane;
use crate::engine::KeyspaceLane;
use crate::{Mail, Outbox};

impl Lane {
    /// Carries out what the membership machine decided: leases, views, a new life.
    pub(crate) fn follow_control(&mut self, now: Now, out: &mut Outbox) {
        let Some(control) = &mut self.control else { return };
        if let Some(incarnation) = control.take_rejoin(now, &mut self.rng) {
            for lane in (1..self.shared.config.lanes).map(LaneId) {
                out.mail.push((lane, Mail::Rejoin(incarnation)));
            }
            out.rejoined = Some(incarnation);
            self.rejoin(now, incarnation, out);
            return;
        }
        if control.view().epoch <= self.view.epoch {
            return;
        }
        let view = Arc::clone(control.view());
        for lane in (1..self.shared.config.lanes).map(LaneId) {
            out.mail.push((lane, Mail::View(Arc::clone(&view))));
        }
        self.install(now, view, out);
    }

    /// Installs a view on this lane: every engine prunes its state in the same step, before any
    /// message of the new epoch is handled (architecture invariant 6).
    pub(super) fn install(&mut self, now: Now, view: Arc<View>, out: &mut Outbox) {
        if view.epoch <= self.view.epoch {
            return;
        }
        let is_live = view.is_live(self.shared.config.node, self.incarnation);
        let survivors = is_live.then(|| view.survivors(&self.view));
        self.view = view;
        if self.control.is_some() {
            let me = self.view.member(self.shared.config.node);
            let active = me.is_some_and(|member| {
                member.role == Role::Active && member.incarnation == self.incarnation
            });
            self.shared.set_active(active);
        }
        let view = Arc::clone(&self.view);
        for number in 0..self.engines.len() {
            if self.engines[number].is_some() {
                let (engine, mut sink) = self.engine_and_sink(KeyspaceId(number as u8), out);
                engine.install(now, &view, survivors, &mut sink);
            }
        }
        self.install_pubsub(now, out);
        self.tell_guests_view(out);
        self.answer_internal(out);
        self.blocking.view_installed();
        self.step_lease_manager(now, Event::View(&view), out);
    }

    /// Begins a new life: ops in flight are answered, records put aside (a crashed identity never
    /// returns, and what this one wrote last may never have been agreed on).
    pub(super) fn rejoin(&mut self, now: Now, incarnation: Incarnation, out: &mut Outbox) {
        self.parking.forget_life(now.monotonic, self.incarnation);
        self.incarnation = incarnation;
        self.view = Arc::default();
        self.guests.reset();
        self.reset_pubsub(out);
        if self.control.is_some() {
            self.shared.set_active(false);
            self.shared.set_lease_until(Instant::ZERO);
        }
        for number in 0..self.engines.len() {
            if self.engines[number].is_some() {
                let (engine, mut sink) = self.engine_and_sink(KeyspaceId(number as u8), out);
                engine.reset(now, incarnation, &mut sink);
            }
        }
        self.begin_lease_manager(now, out);
        self.flushes.abandon();
        self.abandon_listings(out);
        self.answer_internal(out);
    }

    /// Tells lane 0 once this lane's engines hold everything, if somebody waits for that: as a shadow,
    /// or if data is not where it should be.
    pub(super) fn report_progress(&mut self, now: Now, out: &mut Outbox) {
        let node = self.shared.config.node;
        let own = self.view.member(node).filter(|own| own.incarnation == self.incarnation);
        let copies = own.is_some_and(|own| match own.role {
            Role::Shadow => true,
            Role::Active => !self.view.is_placed(),
            Role::Down => false,
        });
        let mut engines = self.engines.iter().flatten();
        let has_all = engines.next().is_none_or(KeyspaceLane::is_caught_up)
            && (mutant!("node_first_keyspace_is_all") || engines.all(KeyspaceLane::is_caught_up));
        if !copies || !has_all || !self.sessions.is_synced() {
            self.renewal.abandon();
            return;
        }
        let epoch = self.view.epoch;
        if self.log.as_mut().is_some_and(|log| !log.keeps_copy(epoch)) {
            return;
        }
        if !self.are_logs_renewed(out) {
            return;
        }
        match &mut self.control {
            Some(control) => {
                control.caught_up(now, self.id, epoch, out);
                self.follow_control(now, out);
            }
            None => out.mail.push((LaneId(0), Mail::CaughtUp { from: self.id, epoch })),
        }
    }
}
