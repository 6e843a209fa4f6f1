//! The operator, who adds and removes members, and the nodes' answers.
//!
//! A requested change may happen as long as its request is open, and a while longer if its answer
//! says so or never comes: a proposal lives until its epoch is decided. A refused change does not
//! happen. The views of all nodes are compared with the requests, and with each other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use quorate_node::{Change, MemberConfig};
use quorate_types::{Epoch, Incarnation, MemberNumber, NodeId, NodeSet, Tag, View};

use crate::process::Node;
use crate::trace::At;
use crate::world::{Event, MS, World};

/// How long a node may take to answer: its own limit, and the time that it may stand still.
const ANSWER_MAX: u64 = 12_000 * MS;

/// How often the operator says that a loss is accepted, until the cluster goes on.
const ASKS_EVERY: u64 = 500 * MS;

/// What an operator wants of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    Add,
    /// It leaves once others have copied what it has.
    Remove,
    /// It leaves with its copies.
    RemoveNow,
    /// It stays, if it was to leave.
    Keep,
    /// The cluster goes on without the disks that are lost ([`World::ruin`]).
    Recover,
}

impl Wish {
    /// Those that are drawn, each by its name in scripts.
    pub(crate) const ALL: [(&'static str, Self); 4] = [
        ("add", Self::Add),
        ("remove", Self::Remove),
        ("remove-now", Self::RemoveNow),
        ("keep", Self::Keep),
    ];
}

/// A change of the membership, and the node that is asked for it, by their indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) wish: Wish,
    pub(crate) node: usize,
    pub(crate) at: usize,
}

impl Ask {
    /// Whether it must be refused, since a node does not remove itself.
    pub(crate) fn is_of_itself(self) -> bool {
        self.node == self.at && matches!(self.wish, Wish::Remove | Wish::RemoveNow)
    }

    /// Whether a view says that it has happened, or has begun.
    fn is_done_in(self, view: &View, subject: NodeId) -> bool {
        let (is_member, departs) =
            (view.voters().contains(subject), view.departing.contains(subject));
        match self.wish {
            Wish::Add => is_member,
            Wish::Remove => !is_member || departs,
            Wish::RemoveNow => !is_member,
            Wish::Keep => is_member && !departs,
            Wish::Recover => true,
        }
    }
}

/// What may become of the voters of the newest view.
#[derive(Clone, Copy, Default)]
pub(crate) struct ToCome {
    /// With all nodes that may be added.
    pub(crate) voters: NodeSet,
    /// Those that may be removed at any moment, with their copies.
    pub(crate) taken: NodeSet,
    /// Those that may be removed once others have copied what they have.
    pub(crate) departing: NodeSet,
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb =
            Wish::ALL.iter().find(|(_, wish)| *wish == self.wish).map_or("", |known| known.0);
        write!(f, "member {verb} {} at {}", self.node + 1, self.at + 1)
    }
}

/// Too few disks are left for the cluster to go on by itself.
#[derive(Clone, Copy)]
pub(crate) struct Ruin {
    pub(crate) lost: NodeSet,
    /// The name of the cluster.
    pub(crate) cluster: Incarnation,
    /// Whether the others have founded another cluster. What its members have on their disks is not lost.
    pub(crate) is_over: bool,
}

/// The state of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// It has no answer yet.
    Open,
    /// It may have been proposed, and may be chosen up to this epoch.
    Unknown(Epoch),
    /// It has happened, or does not happen.
    Over,
}

struct Request {
    ask: Ask,
    /// The time of the request.
    began: u64,
    status: Status,
}

/// The requests so far, and the views that they led to.
#[derive(Default)]
pub(crate) struct Operator {
    /// The tag of each is its position here, from 1 on.
    requests: Vec<Request>,
    /// Each view that some node has installed, by cluster and epoch.
    views: BTreeMap<(Incarnation, Epoch), Arc<View>>,
    /// The process of each member number, by cluster and number.
    numbers: BTreeMap<(Incarnation, MemberNumber), Incarnation>,
    /// Answers and views of nodes that must not be.
    pub(crate) complaints: Vec<String>,
}

impl Operator {
    /// Whether some request has no answer yet.
    pub(crate) fn waits(&self) -> bool {
        self.requests.iter().any(|request| request.status == Status::Open)
    }

    /// The nodes for which this wish may yet come true in a cluster that is in `epoch`.
    pub(crate) fn may_come_true(&self, wish: Wish, epoch: Epoch) -> NodeSet {
        let may_happen = move |request: &&Request| {
            request.ask.wish == wish
                && match request.status {
                    Status::Open => true,
                    Status::Unknown(until) => epoch < until,
                    Status::Over => false,
                }
        };
        let nodes = self.requests.iter().filter(may_happen).map(|request| request.ask.node);
        nodes.map(|index| NodeId(index as u16 + 1)).collect()
    }

    /// Notes the process of each member number of a view. A number in a timestamp belongs to one
    /// process.
    fn note_numbers(&mut self, view: &View) {
        for member in view.members.iter().filter(|member| member.number != MemberNumber(0)) {
            let owner = self.numbers.entry((view.cluster, member.number));
            if *owner.or_insert(member.incarnation) != member.incarnation {
                self.complaints.push(format!("{member:?} has the number of another process"));
            }
        }
    }

    /// The installed view before this one, if no later view has been installed.
    fn before(&self, view: &View) -> Option<&Arc<View>> {
        let last = (view.cluster, Epoch(u64::MAX));
        let (at, before) = self.views.range((view.cluster, Epoch(0))..=last).next_back()?;
        (at.1 < view.epoch).then_some(before)
    }
}

impl World {
    /// The newest view of a node that runs.
    pub(crate) fn newest_view(&self) -> Option<&Arc<View>> {
        Self::newest_view_of(self.nodes.iter())
    }

    /// The newest view of those of these nodes that run.
    pub(crate) fn newest_view_of<'a>(
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Option<&'a Arc<View>> {
        let views = nodes.filter(|node| node.up).map(|node| node.lane(0).view());
        views.max_by_key(|view| view.epoch)
    }

    /// The nodes that are not in the newest view.
    pub(crate) fn outsiders(&self) -> NodeSet {
        let all: NodeSet = self.nodes.iter().map(|node| node.id).collect();
        self.newest_view().map_or(all, |view| all.difference(view.voters()))
    }

    /// What may become of the voters.
    pub(crate) fn voters_to_come(&self) -> ToCome {
        let Some(view) = self.newest_view() else { return ToCome::default() };
        let nodes = |wish| self.operator.may_come_true(wish, view.epoch);
        // Without keys that move a removal takes no copies of which others would be made.
        let spreads = self.spreads();
        let asked = nodes(Wish::Remove).union(view.departing);
        ToCome {
            voters: view.voters().union(nodes(Wish::Add)),
            taken: if spreads {
                nodes(Wish::RemoveNow)
            } else {
                nodes(Wish::RemoveNow).union(asked)
            },
            departing: if spreads { asked } else { NodeSet::EMPTY },
        }
    }

    /// Asks a node for a change of the membership.
    pub(crate) fn ask_operator(&mut self, ask: Ask) {
        let (time, life) = (self.time, self.nodes[ask.at].life);
        self.disturbed();
        self.changed();
        self.operator.requests.push(Request { ask, began: time, status: Status::Open });
        let number = self.operator.requests.len() as u64;
        let words = [time, 40, number, ask.node as u64, ask.at as u64, ask.wish as u64];
        self.trace.event(&words, || format!("{} request {number}: {ask}", At(time)));
        self.schedule(time, Event::Asked { node: ask.at, life, number });
    }

    /// The operator accepts that disks are lost, at some node that has its own, until the others have founded
    /// another cluster.
    pub(crate) fn accept_loss(&mut self) {
        let Some(Ruin { lost, cluster, is_over }) = self.ruin else { return };
        let view = self.newest_view().filter(|view| view.epoch > Epoch(0));
        if let Some(view) = view.filter(|view| view.cluster != cluster) {
            // Who was not here with an empty disk is no member.
            let Some(node) = self.outsiders().first().map(|node| self.index(node)) else {
                self.ruin = None;
                return;
            };
            let active = view.active();
            let member = self.nodes.iter().find(|node| node.up && active.contains(node.id));
            if let Some(at) = member.map(|member| self.index(member.id)) {
                self.ask_operator(Ask { wish: Wish::Add, node, at });
            }
            self.schedule(self.time + ASKS_EVERY, Event::AcceptLoss);
            return;
        }
        let keeps = |node: &&Node| node.up && !lost.contains(node.id);
        if let Some(node) = self.nodes.iter().find(keeps).filter(|_| !is_over) {
            let at = self.index(node.id);
            self.ask_operator(Ask { wish: Wish::Recover, node: at, at });
        }
        self.schedule(self.time + ASKS_EVERY, Event::AcceptLoss);
    }

    /// A request reaches its node.
    pub(crate) fn asked(&mut self, node: usize, number: u64) {
        let Ask { wish, node: subject, .. } = self.operator.requests[number as usize - 1].ask;
        let address = &self.nodes[node].config.nodes[subject];
        let node_id = address.node;
        let change = match wish {
            Wish::Add => Change::Add(MemberConfig {
                node: address.node,
                peer_address: address.peer.clone(),
                client_address: address.client.clone(),
                admin_address: address.admin.clone(),
            }),
            Wish::Remove => Change::Remove { node: node_id, at_once: false },
            Wish::RemoveNow => Change::Remove { node: node_id, at_once: true },
            Wish::Keep => Change::Keep(node_id),
            Wish::Recover => {
                Change::Recover { lost: self.ruin.map_or(NodeSet::EMPTY, |ruin| ruin.lost) }
            }
        };
        self.turn(node, 0, |lane, now, out| {
            lane.change_members(now, Tag(number), change, out);
            None
        });
    }

    /// A node has answered.
    pub(crate) fn operator_answered(
        &mut self,
        node: usize,
        tag: Tag,
        answer: Result<Epoch, String>,
    ) {
        let (time, until) = (self.time, self.proposals_end());
        let cluster = self.nodes[node].lane(0).view().cluster;
        let operator = &mut self.operator;
        let request = &mut operator.requests[tag.0 as usize - 1];
        let ask = request.ask;
        self.trace.event(&[time, 41, tag.0, u64::from(answer.is_ok())], || {
            format!("{} request {}: {answer:?}", At(time), tag.0)
        });
        if request.status != Status::Open {
            operator.complaints.push(format!("\"{ask}\" was answered twice, now {answer:?}"));
        }
        let may_happen = answer.as_ref().is_err_and(|text| text.contains("may still happen"));
        request.status = if may_happen { Status::Unknown(until) } else { Status::Over };
        if let Ok(epoch) = answer
            && let Some(view) = operator.views.get(&(cluster, epoch))
            && !ask.is_done_in(view, self.nodes[ask.node].id)
        {
            operator.complaints.push(format!("\"{ask}\" is said to be done in {view:?}"));
        }
    }

    /// A process has ended: changes that it was asked for may happen all the same, and get no
    /// answer.
    pub(crate) fn forget_requests(&mut self, node: usize) {
        let until = self.proposals_end();
        for request in &mut self.operator.requests {
            if request.ask.at == node && request.status == Status::Open {
                request.status = Status::Unknown(until);
            }
        }
    }

    /// The epoch that the latest proposal of any node can be for.
    fn proposals_end(&self) -> Epoch {
        Epoch(self.newest_view().map_or(0, |view| view.epoch.0) + 1)
    }

    /// Compares a node's view with the views of the others, and with the requested changes.
    pub(crate) fn note_view(&mut self, node: usize) {
        let view = self.nodes[node].lane(0).view();
        let at = (view.cluster, view.epoch);
        if view.epoch == Epoch(0) || self.nodes[node].seen == at {
            self.note_doubts();
            return;
        }
        let view = Arc::clone(view);
        self.nodes[node].seen = at;
        if !self.operator.views.contains_key(&at) {
            self.note_lost_in_doubt(&view);
        }
        self.note_back(&view);
        self.nodes[node].check_logs_renewed();
        if let Some(ruin) = self.ruin.as_mut().filter(|ruin| ruin.cluster != view.cluster) {
            ruin.is_over = true;
        }
        let spreads = self.spreads();
        let operator = &mut self.operator;
        if let Some(known) = operator.views.get(&at) {
            if *known != view {
                operator.complaints.push(format!("two views of one epoch: {known:?} and {view:?}"));
            }
            return;
        }
        operator.note_numbers(&view);
        let Some(before) = operator.before(&view).cloned() else {
            operator.views.insert(at, view);
            return;
        };
        let (old, new) = (before.voters(), view.voters());
        let moved = old.union(new).difference(old.intersection(new));
        // A change may have been chosen in any epoch since, also in one whose view no node has shown.
        let wanted = |wish| operator.may_come_true(wish, before.epoch);
        let (asked, taken) = (wanted(Wish::Remove), wanted(Wish::RemoveNow));
        let may_go = asked.union(taken).union(before.departing);
        let (begin, end) = (
            view.departing.difference(before.departing),
            before.departing.difference(view.departing).intersection(new),
        );
        let is_wanted = new.difference(old).is_subset(wanted(Wish::Add))
            && old.difference(new).is_subset(may_go)
            && begin.is_subset(asked)
            && end.is_subset(wanted(Wish::Keep));
        if !is_wanted {
            operator.complaints.push(format!(
                "{view:?} follows {before:?}, which nobody wants or which was refused"
            ));
        }
        // Members over which data is placed have copies that others rely on.
        let copies = old.difference(new).intersection(before.active()).intersection(before.placed);
        if spreads && !copies.is_subset(taken) {
            operator.complaints.push(format!("{copies:?} was removed with its copies by {view:?}"));
        }
        operator.views.insert(at, view);
        if !moved.is_empty() {
            self.disturbed();
            self.changed();
        }
    }

    /// An answer or a view of a node that must not be, or a request without an answer.
    pub(crate) fn misled_operator(&self) -> Option<String> {
        let late = |request: &&Request| {
            request.status == Status::Open && request.began + ANSWER_MAX < self.time
        };
        let late = self.operator.requests.iter().find(late);
        let late = late.map(|request| format!("\"{}\" is never answered", request.ask));
        self.operator.complaints.first().cloned().or(late)
    }
}
