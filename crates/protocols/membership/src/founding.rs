//! Life outside a view: proofs of life, the first view, and asking to join.
//!
//! The node with the lowest configured id founds. It alone counts votes, and a first view is chosen
//! when every node in it has voted for it, so the founder can drop a proposal that is not complete
//! (because a node restarted meanwhile) and start another round. A voter that has voted for one
//! proposal installs no other first view until that proposal is dead: its founder has restarted, or
//! has moved to a later round. So no second first view is chosen while the first is in force
//! anywhere.

use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_machine::{Effects, mutant};
use quorate_paxos::Voter;
use quorate_types::{Epoch, Incarnation, Instant, NodeId, NodeSet, View};

use crate::peer::Peer;
use crate::{Body, MemberConfig, Membership, Message, Store, ViewEntry, change};

/// The founder's current proposal.
#[derive(Clone, PartialEq, Hash, Debug, Default)]
pub(crate) struct Founding {
    round: u64,
    proposal: Option<Arc<View>>,
    votes: NodeSet,
    resend_at: Instant,
}

impl Founding {
    /// Begins another round, for which `founder` votes.
    pub(crate) fn propose(&mut self, view: Arc<View>, founder: NodeId, now: Instant) {
        self.round += 1;
        self.votes = NodeSet::only(founder);
        self.proposal = Some(view);
        self.resend_at = now;
    }

    /// The nodes whose votes the proposal lacks.
    pub(crate) fn silent(&self) -> NodeSet {
        let wanted = self.proposal.as_ref().map_or(NodeSet::EMPTY, |view| view.voters());
        wanted.difference(self.votes)
    }

    /// Gives the proposal up for good.
    pub(crate) fn withdraw(&mut self) {
        if self.proposal.take().is_some() {
            self.round += 1;
        }
        self.votes = NodeSet::EMPTY;
    }
}

/// A vote for a first view.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Vote {
    founder: Voter,
    round: u64,
    view: Arc<View>,
}

impl Membership {
    /// Outside a view: announces this node to all others.
    pub(crate) fn announce_to_all(&mut self, effects: &mut impl Effects<Self>) {
        let configured = self.config.genesis.iter().map(|member| member.node);
        let known = self.known.members.iter().map(|member| member.node);
        // A new life still knows the view of the former one.
        let former = self.view.members.iter().map(|member| member.node);
        let all: NodeSet = configured.chain(known).chain(former).collect();
        for node in all.without(self.me.node) {
            self.announce(node, effects);
        }
    }

    /// The members that this node was not configured with.
    fn strangers(&self) -> NodeSet {
        let configured: NodeSet = self.config.genesis.iter().map(|member| member.node).collect();
        self.known.voters().union(self.view.voters()).difference(configured)
    }

    /// The members of a view that this node, outside, has heard lately.
    pub(crate) fn reaches(&self) -> NodeSet {
        let heard =
            |peer: &Peer| peer.is_member && self.recently(peer.announced) && peer.is_connected();
        self.peers.iter().filter(|(_, peer)| heard(peer)).map(|(node, _)| *node).collect()
    }

    fn announce(&mut self, to: NodeId, effects: &mut impl Effects<Self>) {
        let fresh = self.rng.next_u64() | 1;
        let reaches = if self.is_live() { NodeSet::EMPTY } else { self.observed.0 };
        let strangers = if self.is_live() { NodeSet::EMPTY } else { self.strangers() };
        let peer = self.peers.entry(to).or_default();
        if peer.nonce == 0 {
            peer.nonce = fresh;
        }
        peer.answered = peer.owed;
        let body = Body::Announce {
            to: peer.challenged,
            nonce: peer.nonce,
            answer: peer.owed,
            is_member: self.is_live(),
            store: if self.log.is_some() { self.store } else { Store::None },
            round: self.founding.round,
            votes_as: if self.log.is_some() { self.voter.incarnation } else { Incarnation(0) },
            reaches,
            strangers,
            addresses: self.own_addresses(),
        };
        self.send(to, body, effects);
    }

    /// The configured addresses, or those of the view.
    fn own_addresses(&self) -> MemberConfig {
        let configured = self.config.genesis.iter().find(|member| member.node == self.me.node);
        configured.cloned().unwrap_or_else(|| MemberConfig {
            node: self.me.node,
            peer_address: Default::default(),
            client_address: Default::default(),
            admin_address: Default::default(),
        })
    }

    pub(crate) fn on_announce(
        &mut self,
        from: Voter,
        message: Message,
        effects: &mut impl Effects<Self>,
    ) {
        let Body::Announce {
            to,
            nonce,
            answer,
            is_member,
            store,
            round,
            votes_as,
            reaches,
            strangers,
            addresses,
        } = message.body
        else {
            return;
        };
        if addresses.node != from.node {
            return effects.ignored("announces another node");
        }
        let fresh = self.rng.next_u64() | 1;
        let (me, now, inside) = (self.me.incarnation, self.now, self.is_live());
        let peer = self.peers.entry(from.node).or_default();
        if peer.challenged != from.incarnation {
            peer.challenged = from.incarnation;
            (peer.nonce, peer.owed) = (fresh, 0);
        }
        if to == me {
            peer.owed = nonce;
            if answer == peer.nonce && answer != 0 && peer.confirmed != from.incarnation {
                peer.confirmed = from.incarnation;
                (peer.is_member, peer.round) = (false, 0);
            }
        }
        if peer.confirmed == from.incarnation {
            peer.announced = now;
            peer.is_member |= is_member;
            peer.round = if peer.is_member { u64::MAX } else { peer.round.max(round) };
            peer.addresses = Some(addresses);
            (peer.votes_as, peer.store) = (votes_as, store);
            (peer.cluster, peer.epoch) = (message.cluster, message.epoch);
            (peer.reaches, peer.strangers) = (reaches, strangers);
            peer.lost &= is_member && inside;
        }
        let unproven = to != me || peer.owed != peer.answered || peer.nonce == 0;
        // A node outside wants to see that the members still live.
        let asks = !is_member && self.is_live();
        if unproven || asks {
            self.announce(from.node, effects);
        }
        let lags = message.cluster != self.view.cluster || message.epoch < self.view.epoch;
        if self.log.is_some() && lags {
            self.teach(from.node, effects);
        }
        self.give_up_dead_vote(effects);
    }

    /// Forgets a vote whose founder can no longer choose it.
    fn give_up_dead_vote(&mut self, effects: &mut impl Effects<Self>) {
        let Some(vote) = &self.vote else { return };
        let Some(peer) = self.peers.get(&vote.founder.node) else { return };
        let restarted = peer.confirmed != vote.founder.incarnation;
        // A founder that is in a view may be in the very view that was voted for.
        let moved_on = peer.round > vote.round && !peer.is_member;
        if restarted || moved_on {
            effects.probe("membership: a vote for a first view is given up");
            self.vote = None;
        }
    }

    /// Every configured node with its incarnation, if all are present and in no view.
    fn founders(&self) -> Option<Vec<(MemberConfig, Incarnation)>> {
        let stands_by = |peer: &Peer| peer.confirmed.0 != 0 && self.recently(peer.announced);
        let in_a_view = |peer: &Peer| peer.is_member || peer.votes_as.0 != 0;
        if self.peers.values().any(|peer| in_a_view(peer) && stands_by(peer)) {
            return None;
        }
        self.config
            .genesis
            .iter()
            .map(|config| {
                if config.node == self.me.node {
                    return Some((config.clone(), self.me.incarnation));
                }
                let peer = self.peers.get(&config.node).filter(|peer| stands_by(peer))?;
                Some((peer.addresses.clone()?, peer.confirmed))
            })
            .collect()
    }

    /// As the founder: proposes the first view, repeats the proposal, or gives it up.
    pub(crate) fn found(&mut self, effects: &mut impl Effects<Self>) {
        let lowest = self.config.genesis.iter().map(|member| member.node).min();
        if lowest != Some(self.me.node) || self.log.is_some() {
            return;
        }
        let view = self.founders().map(|founders| change::genesis(self.me.incarnation, &founders));
        if self.founding.proposal.as_deref() != view.as_ref() {
            self.founding.withdraw();
        }
        let Some(view) = view else { return };
        if self.founding.proposal.is_none() {
            self.founding.propose(Arc::new(view), self.me.node, self.now);
        }
        self.resend_proposal(effects);
    }

    /// Has a first view chosen that all have voted for, or asks those again that have not.
    pub(crate) fn resend_proposal(&mut self, effects: &mut impl Effects<Self>) {
        self.choose_first_view(effects);
        if self.founding.proposal.is_none() || self.founding.resend_at > self.now {
            return;
        }
        self.founding.resend_at = self.now + self.config.heartbeat;
        let Some(view) = self.founding.proposal.clone() else { return };
        let body = Body::Found { round: self.founding.round, view: ViewEntry(view.clone()) };
        for node in view.voters().difference(self.founding.votes) {
            self.send(node, body.clone(), effects);
        }
    }

    pub(crate) fn on_found(
        &mut self,
        from: Voter,
        newest: (Incarnation, Epoch),
        round: u64,
        view: ViewEntry,
        effects: &mut impl Effects<Self>,
    ) {
        let lives = self
            .peers
            .get(&from.node)
            .is_some_and(|peer| peer.confirmed == from.incarnation && !peer.is_member);
        let names_both = view.0.is_live(self.me.node, self.me.incarnation)
            && view.0.is_live(from.node, from.incarnation);
        let recovers = self.recovers_this(newest, &view.0);
        // It recovers the founder's cluster, or begins anew.
        let is_own = match view.0.epoch {
            Epoch(1) => view.0.cluster == from.incarnation,
            _ => view.0.cluster == newest.0.recovered_by(from.incarnation),
        };
        let is_first = self.log.is_none();
        if !lives || !names_both || !is_own || !(is_first || recovers) {
            return effects.ignored("a first view for others");
        }
        if self.vote.as_ref().is_some_and(|vote| vote.founder == from && vote.round > round) {
            return effects.ignored("an earlier founding round");
        }
        if recovers {
            self.agree_to_recover(&view.0, effects);
        }
        self.vote = Some(Vote { founder: from, round, view: view.0 });
        self.send(from.node, Body::Founded { to: from.incarnation, round }, effects);
    }

    pub(crate) fn on_founded(
        &mut self,
        from: Voter,
        to: Incarnation,
        round: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let voted = self.founding.proposal.as_ref().is_some_and(|view| {
            to == self.me.incarnation
                && round == self.founding.round
                && view.is_live(from.node, from.incarnation)
        });
        if !voted {
            return effects.ignored("a vote for another first view");
        }
        self.founding.votes.insert(from.node);
        self.choose_first_view(effects);
    }

    fn choose_first_view(&mut self, effects: &mut impl Effects<Self>) {
        let complete =
            self.founding.proposal.take_if(|view| view.voters().is_subset(self.founding.votes));
        let Some(view) = complete else { return };
        self.install(view.clone(), effects);
        for node in view.voters() {
            self.teach(node, effects);
        }
    }

    /// A view is chosen, and this node is in none yet.
    pub(crate) fn on_chosen_outside(
        &mut self,
        from: Voter,
        entry: ViewEntry,
        effects: &mut impl Effects<Self>,
    ) {
        let view = entry.0;
        let own = view.member(self.me.node);
        if own.is_some_and(|own| own.incarnation == self.me.incarnation)
            || self.earlier_life_in(&view).is_some()
        {
            let other_vote = self.vote.as_ref().is_some_and(|vote| vote.view != view);
            if view.epoch.0 == 1 && other_vote {
                return effects.ignored("a first view beside the one voted for");
            }
            // The node was perhaps admitted and given up again before it heard of either. It is a
            // voter nevertheless, and goes into its next life as one.
            return self.install(view, effects);
        }
        // Members teach, and so do voters that are back from their disks.
        let lives = self.peers.get(&from.node).is_some_and(|peer| {
            peer.confirmed == from.incarnation
                || peer.store != Store::None && peer.votes_as == from.incarnation
        });
        let is_old = view.cluster == self.known.cluster && view.epoch <= self.known.epoch;
        if !lives || is_old {
            return effects.ignored("a view without this node");
        }
        self.known = view;
    }

    /// The process that now holds the id of a voter whose view names another, if it has announced
    /// itself lately.
    pub(crate) fn joining(&self, node: NodeId) -> Option<(Incarnation, &MemberConfig)> {
        let member = self.view.member(node)?;
        self.outside(node).filter(|(life, _)| *life != member.incarnation)
    }

    /// The process that holds an id and is in no view, if it has announced itself lately.
    pub(crate) fn outside(&self, node: NodeId) -> Option<(Incarnation, &MemberConfig)> {
        let peer = self.peers.get(&node)?;
        // A disk of another cluster is a mistake: its data would be overwritten.
        let is_foreign = peer.store != Store::None && peer.cluster != self.view.cluster;
        let joins = peer.confirmed.0 != 0
            && (!is_foreign || mutant!("membership_admits_a_foreign_disk"))
            && !peer.is_member
            && peer.is_connected()
            && self.recently(peer.announced);
        if joins { Some((peer.confirmed, peer.addresses.as_ref()?)) } else { None }
    }
}
