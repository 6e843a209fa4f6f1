//! The lanes of one node in an epoch change (N4.2g): they freeze one by one, the node says what
//! it knows when all of them have, and they go on when lane 0 has installed the outcome.

use quorate_machine::{Effects, Event, Machine, MapTable, Outcome};
use quorate_meerkat::{Body, Config, Kind, Mail, Meerkat, Merged, Message, RecordKey, Report};
use quorate_types::{
    Epoch, Incarnation, Instant, LaneId, Member, MemberNumber, NodeId, Now, Role, Tag, Timestamp,
    UnixNanos, View, WriterId,
};

use crate::packets::{encoded, kind_name};
use crate::support::{Node, WALL, body_bytes};
use crate::txn::Reply;

/// What one step said.
#[derive(Default)]
struct Said {
    sent: Vec<Vec<u8>>,
    mail: Vec<(LaneId, Mail)>,
}

impl Effects<Node> for Said {
    fn send(&mut self, _to: NodeId, message: &Message<'_>) {
        self.sent.push(encoded(message));
    }

    fn complete(&mut self, tag: Tag, _outcome: Outcome<Reply>) {
        panic!("{tag:?}: nobody has asked for anything");
    }

    fn mail(&mut self, to: LaneId, mail: Mail) {
        self.mail.push((to, mail));
    }

    fn ignored(&mut self, _reason: &'static str) {}

    fn probe(&mut self, _name: &'static str) {}
}

/// Node 2 of three, with two lanes. The test plays node 1, which leads every change.
struct Lanes {
    machines: [Node; 2],
    epoch: Epoch,
    /// Mail that has not arrived: from, to, what.
    mail: Vec<(u16, u16, Mail)>,
}

impl Lanes {
    fn new() -> Self {
        let machines = [0, 1].map(|lane| {
            let config = Config::new(NodeId(2), Incarnation(2), LaneId(lane), 2, 7);
            Meerkat::new(config, MapTable::default())
        });
        Self { machines, epoch: Epoch(0), mail: Vec::new() }
    }

    /// A lane takes a step; what it sends.
    fn step(&mut self, lane: u16, event: Event<'_, Node>) -> Vec<Vec<u8>> {
        let now = Now { monotonic: Instant(1_000_000_000), unix: UnixNanos(WALL) };
        let mut said = Said::default();
        let machine = &mut self.machines[usize::from(lane)];
        machine.step(now, event, &mut said);
        machine.check_invariants();
        self.mail.extend(said.mail.into_iter().map(|(to, mail)| (lane, to.0, mail)));
        said.sent
    }

    /// A lane hears of a view of all three.
    fn install(&mut self, lane: u16, epoch: u64) {
        self.epoch = Epoch(epoch);
        let member = |node: u16| Member {
            node: NodeId(node),
            incarnation: Incarnation(u64::from(node)),
            number: MemberNumber(u32::from(node)),
            role: Role::Active,
            peer_address: String::new(),
            client_address: String::new(),
            admin_address: String::new(),
        };
        let members = (1..=3).map(member).collect();
        let view = View {
            epoch: self.epoch,
            cluster: Incarnation(1),
            members,
            last_number: MemberNumber(3),
        };
        self.step(lane, Event::View(&view));
    }

    /// Node 1 says something to a lane; what that answers.
    fn tell(&mut self, lane: u16, kind: Kind<'_>) -> Vec<Vec<u8>> {
        let body = Message { partition: 0, kind };
        self.step(lane, Event::Message { from: NodeId(1), epoch: self.epoch, body })
    }

    fn deliver_mail(&mut self) {
        for (from, to, mail) in std::mem::take(&mut self.mail) {
            self.step(to, Event::Mail { from: LaneId(from), mail });
        }
    }

    /// The records of the node's report, if it reports.
    fn report(&mut self) -> Option<Vec<RecordKey>> {
        let answers = self.tell(0, Kind::Freeze { part: 0 });
        let answer = answers.first()?;
        match Message::decode(answer).expect("well-formed").kind {
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
        let kinds = answers.iter().map(|bytes| Message::decode(bytes).expect("well-formed").kind);
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
    assert!(lanes.machines.iter().all(Node::is_normal));
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
    assert!(lanes.machines[0].is_normal());
    assert!(!lanes.votes_on(id(50)), "the release is under way");
    lanes.deliver_mail();
    assert!(lanes.votes_on(id(50)));
}
