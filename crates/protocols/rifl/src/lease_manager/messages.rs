//! Messages between lease managers.

use alloc::vec::Vec;

use quorate_machine::{Effects, Slot};
use quorate_types::{Epoch, NodeId, Now};

use super::LeaseManager;
use crate::LeaseId;
use crate::grant::{Answer, Grant, owner_of};
use crate::message::{Body, Message};

impl LeaseManager {
    /// Every legal reason to drop a message. In one epoch all nodes agree on the owner of a lease.
    pub(super) fn ignore_message(
        &self,
        from: NodeId,
        epoch: Epoch,
        body: &Body,
    ) -> Option<&'static str> {
        let is_owner = |lease: &LeaseId, node| {
            owner_of(&self.view, *lease).is_some_and(|owner| owner.node == node)
        };
        let me = self.config.node;
        match body {
            _ if epoch != self.view.epoch => Some("rifl: message of another epoch"),
            _ if self.me.is_none() || !self.view.live().contains(from) => {
                Some("rifl: message of no live member")
            }
            Body::Clock { .. } => None,
            Body::Ask { lease, .. } | Body::Close { lease, .. } if !is_owner(lease, me) => {
                Some("rifl: question about a lease that is not kept here")
            }
            Body::Sweep { leases } if !leases.iter().all(|lease| is_owner(lease, me)) => {
                Some("rifl: question about a lease that is not kept here")
            }
            Body::Grant { lease, .. } | Body::Refuse { lease, .. } if !is_owner(lease, from) => {
                Some("rifl: answer of somebody who does not keep the lease")
            }
            Body::Gone { leases } if !leases.iter().all(|(lease, _)| is_owner(lease, from)) => {
                Some("rifl: answer of somebody who does not keep the lease")
            }
            _ => None,
        }
    }

    pub(super) fn on_message(
        &mut self,
        now: Now,
        from: NodeId,
        epoch: Epoch,
        message: Message,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(reason) = self.ignore_message(from, epoch, &message.body) {
            return effects.ignored(reason);
        }
        self.observe(now, message.clock);
        self.keep_clock(now, effects);
        if let Some(number) = self.view.member(from).map(|member| member.number) {
            let heard = self.heard.entry(number).or_default();
            *heard = message.clock.max(*heard);
        }
        self.heard_now.insert(from);
        match message.body {
            Body::Clock { asks, key } => {
                if let Some(number) = self.view.member(from).map(|member| member.number) {
                    self.keys.insert(number, key);
                }
                if asks {
                    let key = self.config.key;
                    self.send(now, from, Body::Clock { asks: false, key }, effects);
                }
                let own = self.waiting.iter().filter(|(_, waiting)| self.answers(&waiting.request));
                for slot in own.map(|(slot, _)| slot).collect::<Vec<Slot>>() {
                    self.serve(now, slot, effects);
                }
            }
            Body::Ask { cookie, lease, told } => match self.renew(now, lease, told, effects) {
                Some(Ok(until)) => {
                    self.send(now, from, Body::Grant { cookie, lease, until }, effects)
                }
                Some(Err(reason)) => {
                    self.send(now, from, Body::Refuse { cookie, lease, reason }, effects);
                }
                // The node asks again; by then the clocks have been exchanged.
                None => self.request_clocks(now, effects),
            },
            Body::Close { cookie, lease } => {
                if let Some(reason) = self.close(now, lease, effects) {
                    self.send(now, from, Body::Refuse { cookie, lease, reason }, effects);
                }
            }
            Body::Grant { cookie, lease, until } => {
                let owner = self.view.member(from).map(|member| member.number).unwrap_or_default();
                let granted = Answer::Granted(Grant { lease, until, owner });
                self.on_answer(cookie, lease, granted, effects);
            }
            Body::Refuse { cookie, lease, reason } => {
                self.on_answer(cookie, lease, reason.into(), effects);
            }
            Body::Sweep { leases } => {
                let leases = self.over(now, &leases);
                if !leases.is_empty() {
                    self.send(now, from, Body::Gone { leases }, effects);
                }
            }
            // The next sweep asks again.
            Body::Gone { .. } if message.clock > self.kept.until() => {
                effects.ignored("rifl: a verdict of a time that this node has not kept yet");
            }
            Body::Gone { leases } => self.note(message.clock, &leases),
        }
    }
}
