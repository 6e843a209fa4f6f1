//! A node's requests for its clients: answered here, or by the lease manager that owns the lease.

use alloc::vec::Vec;

use quorate_machine::{Effects, Slot};
use quorate_types::Now;

use super::{LeaseManager, Waiting};
use crate::LeaseId;
use crate::grant::{Answer, Grant, Request, owner_of};
use crate::message::Body;

impl LeaseManager {
    pub(super) fn serve_all(&mut self, now: Now, at_once: bool, effects: &mut impl Effects<Self>) {
        let due = |waiting: &Waiting| at_once || waiting.resend_at <= now.monotonic;
        let slots = self.waiting.iter().filter(|(_, waiting)| due(waiting)).map(|(slot, _)| slot);
        for slot in slots.collect::<Vec<Slot>>() {
            self.serve(now, slot, effects);
        }
    }

    /// Answers a request, or asks the owner (again).
    pub(super) fn serve(&mut self, now: Now, slot: Slot, effects: &mut impl Effects<Self>) {
        let Some(waiting) = self.waiting.get_mut(slot) else { return };
        waiting.resend_at = now.monotonic + self.config.message_loss_timeout;
        if now.monotonic >= waiting.since + self.config.op_timeout {
            return self.answer(slot, Answer::Unready, effects);
        }
        let request = waiting.request;
        let answer = match request {
            Request::Open => self.open(now),
            Request::Renew { lease, told, above } => {
                self.observe(now, above);
                self.keep_clock(now, effects);
                self.renew_at_owner(now, slot, lease, told, effects)
            }
            Request::Close { lease } => self.close_at_owner(now, slot, lease, effects),
        };
        match answer {
            Some(answer) => self.answer(slot, answer, effects),
            None if self.answers(&request) => self.request_clocks(now, effects),
            None => {}
        }
    }

    /// Whether this node has to answer a request.
    pub(super) fn answers(&self, request: &Request) -> bool {
        match request {
            Request::Open => true,
            Request::Renew { lease, .. } | Request::Close { lease } => {
                owner_of(&self.view, *lease).is_some_and(|owner| owner.node == self.config.node)
            }
        }
    }

    pub(super) fn answer(&mut self, slot: Slot, answer: Answer, effects: &mut impl Effects<Self>) {
        if let Some(waiting) = self.waiting.remove(slot) {
            effects.complete(waiting.tag, answer);
        }
    }

    pub(super) fn open(&mut self, now: Now) -> Option<Answer> {
        let me = self.me?;
        if !self.view.active().contains(self.config.node) {
            return None;
        }
        self.raise_bound(now);
        if !self.is_fresh(now) || !self.is_clock_kept(now) {
            return None;
        }
        if self.terms.len() >= self.config.leases_max {
            return Some(Answer::Full);
        }
        let counter = self.terms.open(now.monotonic, now.monotonic + self.config.term);
        let lease = LeaseId::new(me, self.config.lane, counter);
        Some(Answer::Granted(Grant { lease, until: self.limit(), owner: me }))
    }

    /// The latest date that may be granted now.
    pub(super) fn limit(&self) -> u64 {
        self.bound.saturating_add(self.config.term.as_nanos() as u64)
    }

    pub(super) fn renew_at_owner(
        &mut self,
        now: Now,
        slot: Slot,
        lease: LeaseId,
        told: u64,
        effects: &mut impl Effects<Self>,
    ) -> Option<Answer> {
        let owner = owner_of(&self.view, lease)?;
        let (node, number) = (owner.node, owner.number);
        if node != self.config.node {
            self.send(now, node, Body::Ask { cookie: slot.to_u64(), lease, told }, effects);
            return None;
        }
        Some(match self.renew(now, lease, told, effects)? {
            Ok(until) => Answer::Granted(Grant { lease, until, owner: number }),
            Err(denial) => denial.into(),
        })
    }

    pub(super) fn close_at_owner(
        &mut self,
        now: Now,
        slot: Slot,
        lease: LeaseId,
        effects: &mut impl Effects<Self>,
    ) -> Option<Answer> {
        let owner = owner_of(&self.view, lease)?.node;
        if owner != self.config.node {
            self.send(now, owner, Body::Close { cookie: slot.to_u64(), lease }, effects);
            return None;
        }
        self.close(now, lease, effects).map(Answer::from)
    }

    pub(super) fn on_answer(
        &mut self,
        cookie: u64,
        lease: LeaseId,
        answer: Answer,
        effects: &mut impl Effects<Self>,
    ) {
        let slot = Slot::from_u64(cookie);
        let asked = |waiting: &Waiting| match waiting.request {
            Request::Open => false,
            Request::Close { lease: asked } => {
                asked == lease && matches!(answer, Answer::Lost(_) | Answer::Full)
            }
            Request::Renew { lease: asked, .. } => asked == lease,
        };
        if self.waiting.get(slot).is_some_and(asked) {
            self.answer(slot, answer, effects);
        } else {
            effects.ignored("rifl: answer to a question that is settled");
        }
    }
}
