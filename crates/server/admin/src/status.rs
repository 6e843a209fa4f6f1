//! The answers of the endpoint, as JSON.

use std::collections::BTreeMap;

use quorate_node::{EngineFacts, MemberFacts};
use quorate_runtime::{NodeFacts, NodeHandle};
use quorate_types::Role;
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskStatus};

/// One node, and its view of the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// This program's version.
    pub version: String,
    /// The cluster's name.
    pub cluster: String,
    /// The node's id.
    pub node: u16,
    /// This life of the node, in hexadecimal.
    pub incarnation: String,
    /// Whether it serves clients.
    pub serving: bool,
    /// Why it does not serve.
    pub reason: Option<String>,
    /// One sentence: what the node does now, or what it waits for.
    pub phase: String,
    /// The epoch of the view in force.
    pub epoch: u64,
    /// The rest of the lease, in milliseconds.
    pub lease_remaining_ms: u64,
    /// Views installed since the start.
    pub views: u64,
    /// How often this node was expelled and began a new life.
    pub rejoins: u64,
    /// Seconds since the cluster was formed, empty, if this process took part in that.
    pub formed_seconds_ago: Option<u64>,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Lanes of the node.
    pub lanes: u16,
    /// Connected clients.
    pub clients: u64,
    /// Bytes of records and indexes.
    pub memory_used: u64,
    /// The disk, if the node has a log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskStatus>,
    /// The members, this node included.
    pub members: Vec<MemberStatus>,
    /// The keyspaces.
    pub keyspaces: Vec<KeyspaceStatus>,
    /// The connections to peers in other processes, of all lanes.
    pub links: Vec<LinkStatus>,
}

/// One member of the view.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its id.
    pub node: u16,
    /// `active`, `shadow` (catching up) or `down`.
    pub role: String,
    /// Whether it takes part in updates.
    pub live: bool,
    /// Whether it is suspected to be dead or cut off.
    pub suspected: bool,
    /// Whether it is about to leave: it is removed once others have copied what it has.
    pub leaving: bool,
    /// Whether it has copied what falls to it, as far as the node has heard. True for all members while
    /// data is where it should be.
    pub copied: bool,
    /// Milliseconds since it was heard; `None` for the node itself or a member never heard.
    pub last_heard_ms: Option<u64>,
    /// Its life, in hexadecimal; 0 before its first start.
    pub incarnation: String,
    /// Peer address.
    pub peer: String,
    /// Client address.
    pub client: String,
    /// Administration address.
    pub admin: String,
}

/// One keyspace as this node holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyspaceStatus {
    /// The number for `SELECT`.
    pub db: u8,
    /// Its name.
    pub name: String,
    /// Its engine.
    pub engine: String,
    /// Keys with a value.
    pub keys: u64,
    /// Of these, keys that expire.
    pub expiring: u64,
    /// Deleted keys whose record is still kept.
    pub tombstones: u64,
    /// Bytes of records and indexes.
    pub bytes: u64,
    /// Whether this node holds everything.
    pub caught_up: bool,
    /// Records that this node has copied since it joined as a shadow.
    pub copied: u64,
    /// The engine's gauges, summed over lanes: ops in progress, waiting and so on.
    pub gauges: BTreeMap<String, u64>,
    /// The engine's counters, summed over lanes.
    pub counters: BTreeMap<String, u64>,
}

/// One lane's connection to one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The lane.
    pub lane: u16,
    /// The peer.
    pub peer: u16,
    /// Whether messages flow.
    pub up: bool,
    /// Why they don't flow; empty if no fault is known.
    pub complaint: String,
    /// Times it was lost.
    pub losses: u64,
}

/// The view in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ViewStatus {
    /// Its number.
    pub epoch: u64,
    /// Its members.
    pub members: Vec<MemberStatus>,
}

/// The body of `POST /member/add`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddMember {
    /// Its id, 1 to [`quorate_types::limits::NODE_ID_MAX`].
    pub id: u16,
    /// The address for its peers, `host:port`.
    pub peer: String,
    /// The address for its clients, `host:port`.
    pub client: String,
    /// The address of its administration endpoint, `host:port`.
    pub admin: String,
}

/// The body of `POST /member/remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveMember {
    /// Its id.
    pub id: u16,
    /// Its copies go with it: it is removed without waiting until others have them.
    #[serde(default)]
    pub now: bool,
}

/// The body of `POST /member/keep`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepMember {
    /// The id of a member that is about to leave.
    pub id: u16,
}

/// The body of `POST /recover`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recover {
    /// The ids of the members whose loss is accepted.
    pub lost: Vec<u16>,
    /// Change nothing, and answer what would be given up ([`crate::Loss`]).
    #[serde(default)]
    pub dry_run: bool,
}

/// The answer to a membership change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Changed {
    /// The first epoch that has the change.
    pub epoch: u64,
    /// After a removal that waits until others have copied what the member has: how far they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Progress>,
}

/// How many of the live members that stay have copied what falls to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Those that have.
    pub copied: usize,
    /// All.
    pub members: usize,
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} members have copied what it has", self.copied, self.members)
    }
}

impl Progress {
    /// How far the removal of a member is; `None` if it isn't about to leave.
    pub fn of(members: &[MemberStatus], node: u16) -> Option<Self> {
        let leaves = members.iter().any(|member| member.node == node && member.leaving);
        let stay = || members.iter().filter(|member| member.live && !member.leaving);
        let copied = stay().filter(|member| member.copied).count();
        leaves.then(|| Self { copied, members: stay().count() })
    }
}

/// The answer after an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// The error and the remedy.
    pub error: String,
}

impl Status {
    /// This node's knowledge now.
    pub(crate) fn of(node: &NodeHandle, disk: Option<&Disk>) -> Self {
        let facts = node.facts();
        let config = node.config();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: config.cluster.clone(),
            node: config.node.0,
            incarnation: format!("{:016x}", facts.control.incarnation.0),
            serving: facts.not_serving.is_none(),
            reason: facts.not_serving.clone(),
            phase: facts.not_serving.clone().unwrap_or_else(|| facts.control.phase.clone()),
            epoch: facts.control.epoch.0,
            lease_remaining_ms: millis(facts.control.lease_remaining),
            views: facts.control.views,
            rejoins: facts.control.rejoins,
            formed_seconds_ago: facts
                .control
                .formed
                .map(|formed| quorate_runtime::now().monotonic.since(formed).as_secs()),
            uptime_seconds: facts.uptime_seconds,
            lanes: config.lanes,
            clients: facts.clients,
            memory_used: facts.memory_used,
            disk: disk.map(Disk::status),
            members: facts.control.members.iter().map(MemberStatus::of).collect(),
            keyspaces: keyspaces(&facts),
            links: links(&facts),
        }
    }
}

impl ViewStatus {
    /// The view in force at this node.
    pub(crate) fn of(node: &NodeHandle) -> Self {
        let control = node.facts().control;
        Self {
            epoch: control.epoch.0,
            members: control.members.iter().map(MemberStatus::of).collect(),
        }
    }
}

impl MemberStatus {
    fn of(member: &MemberFacts) -> Self {
        Self {
            node: member.node.0,
            role: role_name(member.role).to_owned(),
            live: member.role != Role::Down,
            suspected: member.suspected,
            leaving: member.leaving,
            copied: member.has_copied,
            last_heard_ms: member.last_heard.map(millis),
            incarnation: format!("{:016x}", member.incarnation.0),
            peer: member.peer.clone(),
            client: member.client.clone(),
            admin: member.admin.clone(),
        }
    }
}

fn keyspaces(facts: &NodeFacts) -> Vec<KeyspaceStatus> {
    let of = |(keyspace, store): &(quorate_node::KeyspaceConfig, quorate_node::StoreFacts)| {
        let engines = || {
            let engines = facts.lanes.iter().flat_map(|lane| &lane.engines);
            engines.filter(|engine| engine.keyspace == keyspace.id)
        };
        KeyspaceStatus {
            db: keyspace.id.0,
            name: keyspace.name.clone(),
            engine: keyspace.engine.name().to_owned(),
            keys: store.keys,
            expiring: store.expiring,
            tombstones: store.tombstones,
            bytes: store.bytes,
            caught_up: engines().all(|engine| engine.caught_up),
            copied: engines().map(|engine| engine.copied).sum(),
            gauges: sum(engines().map(|engine: &EngineFacts| &engine.gauges)),
            counters: sum(engines().map(|engine: &EngineFacts| &engine.counters)),
        }
    };
    facts.keyspaces.iter().map(of).collect()
}

fn links(facts: &NodeFacts) -> Vec<LinkStatus> {
    let lanes = facts.io.iter().enumerate();
    lanes
        .flat_map(|(lane, io)| {
            io.links.iter().map(move |link| LinkStatus {
                lane: lane as u16,
                peer: link.peer.0,
                up: link.up,
                complaint: link.complaint.clone(),
                losses: link.counts.losses,
            })
        })
        .collect()
}

fn sum<'a>(lists: impl Iterator<Item = &'a Vec<(&'static str, u64)>>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in lists.flatten() {
        *sums.entry((*name).to_owned()).or_insert(0) += count;
    }
    sums
}

/// A role in one word.
pub(crate) const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Active => "active",
        Role::Shadow => "shadow",
        Role::Down => "down",
    }
}

fn millis(span: quorate_types::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
