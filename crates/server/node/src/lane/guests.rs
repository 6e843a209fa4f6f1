//! What guests say to a lane, and what they are told.

use quorate_types::{Incarnation, KeyspaceId, NodeId, NodeSet, Now, Role, WriterId};
use quorate_wire::{GuestMessage, Header, Kind, Malformed, Welcome};

use super::Lane;
use crate::{EngineConfig, Outbox};

impl Lane {
    /// A guest has connected, under an id that no member has. `session` tells it from others.
    pub fn guest_connected(&mut self, node: NodeId, session: Incarnation) {
        self.guests.connect(node, session);
    }

    /// A guest's connection is gone. What it has begun, the replicas finish.
    pub fn guest_lost(&mut self, now: Now, node: NodeId) {
        if let Some(keyspace) = self.guests.leave(now.monotonic, node)
            && let Some(engine) = self.engines[usize::from(keyspace.0)].as_mut()
        {
            engine.guest_left(node);
        }
    }

    /// Whole messages of a guest. It may speak to the engine that it has joined, and to nothing
    /// else; the engine takes only what is about the guest's own transactions.
    pub(super) fn receive_guest(
        &mut self,
        now: Now,
        from: NodeId,
        bytes: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        let mut rest = bytes;
        while let Some((header, body)) = Header::split(&mut rest)? {
            self.counts.messages += 1;
            match header.kind {
                Kind::Guest => {
                    let message = GuestMessage::decode(body)?;
                    self.admit(now, from, header.keyspace, &message, out)?;
                }
                Kind::Engine(_) if self.guests.keyspace(from) == Some(header.keyspace) => {
                    let (engine, mut sink) = self.engine_and_sink(header.keyspace, out);
                    engine.receive(now, from, &header, body, &mut sink)?;
                    self.answer_internal(out);
                    self.refuse()?;
                }
                _ => return Err(Malformed("a guest speaks to what it has joined")),
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(Malformed("message cut short")) }
    }

    /// Lets a guest into a keyspace, or says why not.
    fn admit(
        &mut self,
        now: Now,
        from: NodeId,
        keyspace: KeyspaceId,
        message: &GuestMessage,
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        if self.guests.keyspace(from).is_some() {
            return Err(Malformed("a guest joins once"));
        }
        let answer = match message {
            GuestMessage::Join => self.welcome(from, keyspace).map(GuestMessage::Welcome),
            GuestMessage::Enter { writer } => self
                .guest_terms(keyspace)
                .and_then(|_| {
                    let lanes = self.shared.config.lanes;
                    let now = now.monotonic;
                    let entered = self.guests.enter(now, from, keyspace, *writer, self.id, lanes);
                    entered.map_err(str::to_owned)
                })
                .map(|()| {
                    self.guest_joined(keyspace, *writer, from);
                    GuestMessage::View((*self.view).clone())
                }),
            _ => return Err(Malformed("a node's message from a guest")),
        };
        let answer = answer.unwrap_or_else(|text| GuestMessage::Refused { text });
        self.tell_guest(from, keyspace, &answer, out);
        Ok(())
    }

    fn welcome(&mut self, from: NodeId, keyspace: KeyspaceId) -> Result<Welcome, String> {
        let (terms, partitions) = self.guest_terms(keyspace)?;
        let me = self.view.member(self.shared.config.node);
        let me = me
            .filter(|member| member.role == Role::Active && member.incarnation == self.incarnation);
        let member = me.map(|member| member.number).ok_or(
            "this node is not an active member of the cluster yet; join at another node, or wait \
             until it has caught up",
        )?;
        let lanes = self.shared.config.lanes;
        let writer = self.guests.give(from, keyspace, member, self.id, lanes)?;
        self.guest_joined(keyspace, writer, from);
        Ok(Welcome { writer, terms, partitions, view: (*self.view).clone() })
    }

    fn guest_joined(&mut self, keyspace: KeyspaceId, writer: WriterId, from: NodeId) {
        if let Some(engine) = self.engines[usize::from(keyspace.0)].as_mut() {
            engine.guest_joined(writer, from);
        }
    }

    /// What a guest must know of a keyspace, if it can coordinate its transactions at all: the
    /// engine's terms, and the replica group of each partition.
    fn guest_terms(&self, keyspace: KeyspaceId) -> Result<(Vec<u8>, Vec<Option<NodeSet>>), String> {
        let config = self.shared.config.keyspace(keyspace).ok_or_else(|| {
            "there is no keyspace of this number; choose one of the configuration's [[keyspace]]"
                .to_owned()
        })?;
        if !config.engine.capabilities().guests {
            return Err(format!(
                "this keyspace's engine has no transactions that a client could coordinate; choose \
                 one whose engine is {}",
                EngineConfig::names_with(|can| can.guests)
            ));
        }
        let groups = config.partitions.iter().map(|group| group.or(config.replicas)).collect();
        Ok((config.engine.guest_terms(), groups))
    }

    fn tell_guest(
        &self,
        to: NodeId,
        keyspace: KeyspaceId,
        message: &GuestMessage,
        out: &mut Outbox,
    ) {
        let epoch = self.view.epoch;
        out.frame(NodeSet::only(to), |buffer| {
            Header::frame(buffer, Kind::Guest, keyspace, epoch, |writer| message.encode(writer));
        });
    }

    /// Tells every guest of the view in force.
    pub(super) fn tell_guests_view(&self, out: &mut Outbox) {
        let mut guests = self.guests.joined().peekable();
        if guests.peek().is_none() {
            return;
        }
        let message = GuestMessage::View((*self.view).clone());
        for (node, keyspace) in guests {
            self.tell_guest(node, keyspace, &message, out);
        }
    }
}
