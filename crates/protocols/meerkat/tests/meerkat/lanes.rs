//! The lanes of one node in an epoch change (N4.2g): they freeze one by one, the node says what
//! it knows when all of them have, and they go on when lane 0 has installed the outcome.

use quorate_harness::Cluster;
use quorate_machine::Event;
use quorate_meerkat::{Body, Kind, Merged, Message, RecordKey, Report};
use quorate_types::{Epoch, MemberNumber, NodeId, Role, Timestamp, WriterId};

use crate::packets::{Packet, kind_name};
use crate::support::{Replicas, WALL, body_bytes};

/// Node 2 of three, with two lanes. The test plays node 1, which leads every change.
struct Lanes(Cluster<Replicas>);

impl Lanes {
    fn new() -> Self {
        let mut cluster = Cluster::new(Replicas::new(2, |_| {}));
        (1..=3).for_each(|node| cluster.start(node, 7));
        [1, 3].into_iter().for_each(|node| cluster.crash(node));
        Self(cluster)
    }

    /// A lane hears of the view of this epoch, of all three.
    fn install(&mut self, lane: u16, epoch: u64) {
        if self.0.view.epoch < Epoch(epoch) {
            self.0.decide(&[1, 2, 3].map(|node| (node, Role::Active)));
        }
        let view = self.0.view.clone();
        self.0.step_on(2, lane, Event::View(&view));
    }

    /// Node 1 says something to a lane; what that answers.
    fn tell(&mut self, lane: u16, kind: Kind<'_>) -> Vec<Packet> {
        self.0.fresh_packets.clear();
        let (epoch, body) = (self.0.view.epoch, Message { partition: 0, kind });
        self.0.step_on(2, lane, Event::Message { from: NodeId(1), epoch, body });
        std::mem::take(&mut self.0.fresh_packets)
    }

    fn deliver_mail(&mut self) {
        self.0.deliver_all_mail();
    }

    fn is_normal(&self, lane: usize) -> bool {
        self.0.hosts[&2].machines[lane].is_normal()
    }

    /// The records of the node's report, if it reports.
    fn report(&mut self) -> Option<Vec<RecordKey>> {
        let answers = self.tell(0, Kind::Freeze { part: 0 });
        let answer = answers.first()?;
        match answer.message().kind {
            Kind::Frozen { part: 0, parts: 1, bytes } => {
                let report = Report::decode(bytes).expect("well-formed");
                Some(report.records.keys().copied().collect())
            }
            other => panic!("{}", kind_name(&other)),
        }
    }

    /// The leader brings the change to an end in which nothing was settled.
    fn release(&mut self) {
        let mut bytes = Vec::new();
        Merged::default().encode(&mut bytes);
        self.tell(0, Kind::Adopt { part: 0, parts: 1, bytes: &bytes });
        self.tell(0, Kind::Release);
    }

    /// Whether lane 1 votes on a transaction of node 1.
    fn votes_on(&mut self, id: Timestamp) -> bool {
        let bytes = body_bytes(&[("k", None, Some("v"))]);
        let body = Body::check(&bytes).expect("just made");
        let answers = self.tell(1, Kind::Validate { id, stable: 0, participants: 1, body });
        let kinds = answers.iter().map(|answer| answer.message().kind);
        let votes: Vec<_> =
            kinds.map(|kind| matches!(kind, Kind::Vote { vote: Ok(()), .. })).collect();
        votes.contains(&true)
    }
}

/// The id of a transaction of node 1's lane 1.
fn id(nanos: u64) -> Timestamp {
    Timestamp::new(WALL + nanos, WriterId::new(MemberNumber(1), 1))
}

/// Both lanes work in epoch 1.
fn working() -> Lanes {
    let mut lanes = Lanes::new();
    for lane in [0, 1] {
        lanes.install(lane, 1);
    }
    lanes.deliver_mail();
    assert_eq!(lanes.report(), Some(Vec::new()));
    lanes.release();
    lanes.deliver_mail();
    assert!(lanes.is_normal(0) && lanes.is_normal(1));
    lanes
}

#[test]
fn a_node_reports_when_all_its_lanes_have_frozen() {
    let mut lanes = working();
    assert!(lanes.votes_on(id(50)));
    lanes.install(0, 2);
    lanes.deliver_mail();
    assert_eq!(lanes.report(), None, "lane 1 goes on voting");
    lanes.install(1, 2);
    assert_eq!(lanes.report(), None, "what lane 1 knew is under way");
    lanes.deliver_mail();
    assert_eq!(lanes.report(), Some(vec![RecordKey::new(id(50), 0)]));
}

#[test]
fn a_lane_goes_on_when_lane_0_has_installed_the_outcome() {
    let mut lanes = working();
    for lane in [0, 1] {
        lanes.install(lane, 2);
    }
    assert!(!lanes.votes_on(id(50)), "what was registered in the last epoch still is");
    lanes.deliver_mail();
    assert!(!lanes.votes_on(id(50)));
    lanes.release();
    assert!(lanes.is_normal(0));
    assert!(!lanes.votes_on(id(50)), "the release is under way");
    lanes.deliver_mail();
    assert!(lanes.votes_on(id(50)));
}
