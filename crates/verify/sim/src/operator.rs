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

/// A change of the membership, and the node that is asked for it, by their indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) adds: bool,
    pub(crate) node: usize,
    pub(crate) at: usize,
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.adds { "add" } else { "remove" };
        write!(f, "member {verb} {} at {}", self.node + 1, self.at + 1)
    }
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

    /// The nodes that may be added to a cluster that is in `epoch`, or removed from it.
    pub(crate) fn may_change(&self, adds: bool, epoch: Epoch) -> impl Iterator<Item = usize> {
        let may_happen = move |request: &&Request| {
            request.ask.adds == adds
                && match request.status {
                    Status::Open => true,
                    Status::Unknown(until) => epoch < until,
                    Status::Over => false,
                }
        };
        self.requests.iter().filter(may_happen).map(|request| request.ask.node)
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

    /// The voters of the newest view with all nodes that may be added, and the nodes that may be
    /// removed.
    pub(crate) fn voters_to_come(&self) -> (NodeSet, NodeSet) {
        let Some(view) = self.newest_view() else { return (NodeSet::EMPTY, NodeSet::EMPTY) };
        let nodes = |adds| {
            let nodes = self.operator.may_change(adds, view.epoch);
            nodes.map(|node| self.nodes[node].id).collect::<NodeSet>()
        };
        (view.voters().union(nodes(true)), nodes(false))
    }

    /// Asks a node for a change of the membership.
    pub(crate) fn ask_operator(&mut self, ask: Ask) {
        let (time, life) = (self.time, self.nodes[ask.at].life);
        self.disturbed();
        self.changed();
        self.operator.requests.push(Request { ask, began: time, status: Status::Open });
        let number = self.operator.requests.len() as u64;
        let words = [time, 40, number, ask.node as u64, ask.at as u64, u64::from(ask.adds)];
        self.trace.event(&words, || format!("{} request {number}: {ask}", At(time)));
        self.schedule(time, Event::Asked { node: ask.at, life, number });
    }

    /// A request reaches its node.
    pub(crate) fn asked(&mut self, node: usize, number: u64) {
        let Ask { adds, node: subject, .. } = self.operator.requests[number as usize - 1].ask;
        let address = &self.nodes[node].config.nodes[subject];
        let change = match adds {
            true => Change::Add(MemberConfig {
                node: address.node,
                peer_address: address.peer.clone(),
                client_address: address.client.clone(),
                admin_address: address.admin.clone(),
            }),
            false => Change::Remove(address.node),
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
            && view.member(self.nodes[ask.node].id).is_some() != ask.adds
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
            return;
        }
        let view = Arc::clone(view);
        self.nodes[node].seen = at;
        let operator = &mut self.operator;
        if let Some(known) = operator.views.get(&at) {
            if *known != view {
                operator.complaints.push(format!("two views of one epoch: {known:?} and {view:?}"));
            }
            return;
        }
        operator.note_numbers(&view);
        let Some(before) = operator.before(&view) else {
            operator.views.insert(at, view);
            return;
        };
        let (old, new) = (before.voters(), view.voters());
        let moved = old.union(new).difference(old.intersection(new));
        // A change chosen in this epoch may have been proposed in the one before.
        let epoch = Epoch(view.epoch.0 - 1);
        let is_asked_for = |moved: &NodeId| {
            let adds = new.contains(*moved);
            let mut nodes = operator.may_change(adds, epoch);
            nodes.any(|index| usize::from(moved.0) == index + 1)
        };
        if let Some(moved) = moved.into_iter().find(|moved| !is_asked_for(moved)) {
            operator.complaints.push(format!(
                "{moved:?} was added or removed by {view:?}, which nobody wants or which was refused"
            ));
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
