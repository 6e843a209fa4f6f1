//! Leases and calls of sessions on whole lanes: three nodes with two lanes each, in one process.

use quorate_commands::Reply;
use quorate_machine::{CallError, Outcome, Refusal};
use quorate_node::{EngineConfig, KeyspaceConfig, NodeConfig, SessionCall};
use quorate_rifl::{Answer, Call, Grant, LeaseId, Lost, Request};
use quorate_types::{Duration, KeyspaceId, LaneId, MemberNumber, NodeId};

use crate::support::script;
use crate::support::{Cluster, Place, at, command, config};

const NODES: u16 = 3;
const LANES: u16 = 2;
const TERM: Duration = Duration::from_secs(20);
const SESSIONS_MAX: usize = 6;

fn configs() -> impl Iterator<Item = NodeConfig> {
    let keyspace = |number, engine| {
        KeyspaceConfig::new(KeyspaceId(number), format!("number {number}"), engine)
    };
    let engines = [EngineConfig::hermes(), EngineConfig::meerkat(), EngineConfig::zeus()];
    let keyspaces: Vec<_> = (0..).zip(engines).map(|(at, engine)| keyspace(at, engine)).collect();
    (1..=NODES).map(NodeId).map(move |node| NodeConfig {
        sessions_max: SESSIONS_MAX,
        session_term: TERM,
        ..config(node, NODES, LANES, keyspaces.clone())
    })
}

fn three_nodes() -> Cluster {
    Cluster::new(configs())
}

impl Cluster {
    fn request(&mut self, place: Place, request: Request) -> Answer {
        let (now, tag) = (at(self.time), self.tag());
        let host = self.host(place);
        host.lane.lease(now, tag, request, &mut host.out);
        for _ in 0..2_000 {
            if let Some((answered, answer)) = self.host(place).out.leased.pop() {
                assert_eq!(answered, tag);
                return answer;
            }
            self.turn(Duration::from_millis(2));
        }
        panic!("{request:?} has no answer");
    }

    fn granted(&mut self, place: Place, request: Request) -> Grant {
        match self.request(place, request) {
            Answer::Granted(grant) => grant,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    fn renew(&mut self, place: Place, grant: Grant) -> Answer {
        self.request(place, Request::Renew { lease: grant.lease, told: grant.until, above: 0 })
    }

    /// Tries a call once. The grant that came with the answer, if one did.
    fn call(
        &mut self,
        place: Place,
        keyspace: u8,
        grant: Grant,
        [sequence, first_incomplete]: [u64; 2],
        words: &[&str],
    ) -> (Option<Answer>, Option<Outcome<Reply<'static>>>) {
        let (now, tag) = (at(self.time), self.tag());
        let op = command(words);
        let digest = op.digest();
        let call = Call { lease: grant.lease, sequence, first_incomplete, digest };
        let (keyspace, origin) = (KeyspaceId(keyspace), 1);
        let host = self.host(place);
        let call = SessionCall { keyspace, origin, call, grant, op };
        host.lane.call(now, tag, call, &mut host.out);
        let mut leased = None;
        for _ in 0..2_000 {
            let out = &mut self.host(place).out;
            if let Some((answered, answer)) = out.leased.pop() {
                assert_eq!(answered, tag);
                leased = Some(answer);
                if !matches!(answer, Answer::Granted(_)) {
                    return (leased, None);
                }
            }
            if let Some(done) = out.done.pop() {
                assert_eq!(done.tag, tag);
                return (leased, Some(done.outcome));
            }
            self.turn(Duration::from_millis(2));
        }
        panic!("{words:?} has no answer");
    }

    /// The answer of a call that has one.
    fn answer(
        &mut self,
        place: Place,
        keyspace: u8,
        grant: Grant,
        numbers: [u64; 2],
        words: &[&str],
    ) -> Reply<'static> {
        match self.call(place, keyspace, grant, numbers, words) {
            (_, Some(Outcome::Done(reply))) => reply,
            other => panic!("{words:?} at {place:?}: {other:?}"),
        }
    }

    /// How many sessions the engines of a keyspace have records of, on all lanes of all nodes.
    fn sessions(&mut self, keyspace: u8) -> u64 {
        let hosts = self.lanes.iter().flat_map(|lane| &lane.hosts);
        let engines = hosts.filter_map(|host| host.lane.engine(KeyspaceId(keyspace)));
        let gauge = |gauges: Vec<(&str, u64)>| {
            gauges.into_iter().find(|(name, _)| *name == "sessions").expect("a gauge").1
        };
        engines.map(|engine| gauge(engine.facts().gauges)).sum()
    }

    fn refused(&mut self, (node, lane): Place) -> Vec<(&'static str, u64)> {
        let now = at(self.time);
        self.host((node, lane)).lane.publish(now);
        self.nodes[node].lane_facts()[lane].sessions.refused.clone()
    }
}

#[test]
fn a_lease_lives_on_its_lane_and_is_renewed_from_everywhere() {
    let mut cluster = three_nodes();
    let grant = cluster.granted((0, 1), Request::Open);
    assert_eq!(grant.lease.lane(), LaneId(1));
    let other = cluster.granted((0, 0), Request::Open);
    assert_eq!(other.lease.lane(), LaneId(0));
    for place in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
        cluster.pass(TERM / 2);
        let Answer::Granted(renewed) = cluster.renew(place, grant) else {
            panic!("not renewed at {place:?}")
        };
        assert!(renewed.until > grant.until, "{place:?}");
        assert_eq!((renewed.lease, renewed.owner), (grant.lease, grant.owner));
    }
    // Nobody has renewed the other one.
    assert_eq!(cluster.renew((1, 0), other), Answer::Lost(Lost::Expired));
}

#[test]
fn a_closed_lease_is_closed_everywhere_and_an_expired_one_is_over() {
    let mut cluster = three_nodes();
    let grant = cluster.granted((1, 0), Request::Open);
    let close = Request::Close { lease: grant.lease };
    assert_eq!(cluster.request((2, 1), close), Answer::Lost(Lost::Closed));
    for place in [(0, 1), (1, 0), (2, 0)] {
        assert_eq!(cluster.renew(place, grant), Answer::Lost(Lost::Closed), "{place:?}");
    }
    let grant = cluster.granted((1, 1), Request::Open);
    cluster.pass(TERM + Duration::from_secs(2));
    for place in [(0, 1), (1, 0), (1, 1)] {
        assert_eq!(cluster.renew(place, grant), Answer::Lost(Lost::Expired), "{place:?}");
    }
    assert_eq!(cluster.refused((1, 0)), [("closed", 1), ("expired", 1)]);
}

#[test]
fn a_lease_of_nobody_is_over() {
    let mut cluster = three_nodes();
    let grant = cluster.granted((0, 0), Request::Open);
    let member = grant.lease.member();
    for lease in [
        LeaseId::new(member, LaneId(0), 77),
        LeaseId::new(member, LaneId(LANES), 0),
        LeaseId::new(member, LaneId(63), 0),
    ] {
        let request = Request::Renew { lease, told: grant.until, above: 0 };
        assert_eq!(cluster.request((1, 1), request), Answer::Lost(Lost::Expired), "{lease:?}");
    }
}

#[test]
fn a_node_that_may_have_been_expelled_ends_no_session() {
    let mut cluster = three_nodes();
    // The first node would keep it, if it had been given out; a later view's member may have done so.
    let lease = LeaseId::new(MemberNumber(9), LaneId(0), 0);
    let request = Request::Renew { lease, told: u64::MAX, above: 0 };
    assert_eq!(cluster.request((0, 0), request), Answer::Lost(Lost::Expired));
    // Nobody hears anything for so long that others may have gone on without it.
    cluster.time += NodeConfig::LEASE * 2;
    assert_eq!(cluster.request((0, 0), request), Answer::Unready);
    cluster.pass(NodeConfig::LEASE * 20);
    assert_eq!(cluster.request((0, 0), request), Answer::Lost(Lost::Expired));
}

#[test]
fn each_lane_has_its_share_of_the_sessions() {
    let mut cluster = three_nodes();
    for lane in 0..usize::from(LANES) {
        for _ in 0..SESSIONS_MAX / usize::from(LANES) {
            cluster.granted((0, lane), Request::Open);
        }
        assert_eq!(cluster.request((0, lane), Request::Open), Answer::Full);
    }
    let closed = cluster.granted((1, 0), Request::Open);
    assert_eq!(cluster.refused((0, 1)), [("too many sessions", 1)]);
    cluster.request((0, 0), Request::Close { lease: closed.lease });
    assert_eq!(cluster.request((0, 0), Request::Open), Answer::Full, "that was another node's");
    let now = at(cluster.time);
    cluster.host((1, 0)).lane.publish(now);
    assert_eq!(cluster.nodes[1].lane_facts()[0].sessions.open, 0);
}

/// The clock that a lane dates attempts by may be far ahead of the one of the lease's lane.
#[test]
fn a_call_moves_the_clock_of_its_lease_along() {
    let mut cluster = Cluster::founded_behind(configs(), TERM * 2);
    let grant = cluster.granted((0, 1), Request::Open);
    let keys = ["a", "b", "c", "d"].into_iter().cycle();
    for ((sequence, key), place) in (0..).zip(keys).zip(PLACES.into_iter().cycle()).take(24) {
        let reply = cluster.answer(place, 0, grant, [sequence, 0], &["SET", key, "x"]);
        assert_eq!(reply, Reply::Ok, "{key} at {place:?}");
    }
}

const PLACES: [Place; 6] = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)];

/// It is told with the answer of the try that ran, and not with the answer from the record.
#[test]
fn a_call_that_is_tried_again_publishes_once() {
    script::install();
    for keyspace in [0, 1, 2] {
        let mut cluster = three_nodes();
        let grant = cluster.granted((0, 1), Request::Open);
        for (at, place) in PLACES.into_iter().enumerate() {
            let reply = cluster.answer(place, keyspace, grant, [0, 0], &script::on("k"));
            let told = (at == 0).then_some(1);
            assert_eq!(script::told(&reply), told, "at {place:?} of keyspace {keyspace}");
        }
    }
}

#[test]
fn a_call_takes_effect_once_wherever_it_is_tried() {
    for keyspace in [0, 1, 2] {
        let mut cluster = three_nodes();
        let grant = cluster.granted((0, 1), Request::Open);
        // Keys of both lanes.
        for (sequence, key) in (0..).zip(["a", "b", "c", "d"]) {
            for place in PLACES {
                let numbers = [sequence, 0];
                let reply = cluster.answer(place, keyspace, grant, numbers, &["INCR", key]);
                assert_eq!(reply, Reply::Int(1), "{key} at {place:?}");
            }
            let again = cluster.answer((1, 0), keyspace, grant, [sequence + 10, 0], &["INCR", key]);
            assert_eq!(again, Reply::Int(2));
        }
        for (numbers, words, why) in [
            ([0, 0], ["DECR", "a"], CallError::Different),
            ([2, 3], ["INCR", "a"], CallError::Stale),
            ([512, 0], ["INCR", "a"], CallError::BeyondWindow),
        ] {
            let refused = Outcome::Refused(Refusal::CallError(why));
            let tried = cluster.call((2, 0), keyspace, grant, numbers, &words);
            assert_eq!(tried, (None, Some(refused)));
        }
        // An acknowledged call has ended for good, also where it was not tried.
        cluster.answer((0, 0), keyspace, grant, [20, 20], &["INCR", "a"]);
        cluster.pass(Duration::from_millis(50));
        let late = cluster.call((2, 1), keyspace, grant, [0, 0], &["INCR", "a"]);
        assert_eq!(late, (None, Some(Outcome::Refused(Refusal::CallError(CallError::Stale)))));
    }
}

#[test]
fn a_call_renews_its_lease_when_it_must_and_ends_with_it() {
    for keyspace in [0, 1, 2] {
        let mut cluster = three_nodes();
        let grant = cluster.granted((0, 1), Request::Open);
        cluster.pass(TERM - Duration::from_secs(3));
        let (leased, outcome) = cluster.call((1, 0), keyspace, grant, [0, 0], &["INCR", "a"]);
        assert_eq!(outcome, Some(Outcome::Done(Reply::Int(1))));
        let Some(Answer::Granted(renewed)) = leased else { panic!("{leased:?}") };
        assert!(renewed.until > grant.until);
        // The clock that leases stand on has not run ahead of the nodes'.
        let latest = at(cluster.time).unix.0 + TERM.as_nanos() as u64;
        assert!(renewed.until <= latest, "{} ns too far", renewed.until - latest);
        cluster.pass(TERM - Duration::from_secs(10));
        // Granted anew, it is covered: nothing is asked.
        let (leased, outcome) = cluster.call((1, 0), keyspace, renewed, [0, 0], &["INCR", "a"]);
        assert_eq!((leased, outcome), (None, Some(Outcome::Done(Reply::Int(1)))));
        cluster.pass(TERM);
        let (leased, outcome) = cluster.call((2, 1), keyspace, renewed, [1, 1], &["INCR", "a"]);
        assert_eq!((leased, outcome), (Some(Answer::Lost(Lost::Expired)), None));
        let other = cluster.granted((0, 0), Request::Open);
        let close = Request::Close { lease: other.lease };
        cluster.answer((0, 0), keyspace, other, [0, 0], &["INCR", "b"]);
        assert_eq!(cluster.request((1, 1), close), Answer::Lost(Lost::Closed));
        cluster.pass(Duration::from_millis(50));
        let refused = cluster.call((2, 0), keyspace, other, [0, 0], &["INCR", "b"]);
        let closed = Outcome::Refused(Refusal::CallError(CallError::Closed));
        assert_eq!(refused, (None, Some(closed)));
    }
}

#[test]
fn records_are_freed_on_every_lane_of_every_node() {
    for keyspace in [0, 1, 2] {
        let mut cluster = three_nodes();
        let (open, closed) =
            (cluster.granted((0, 1), Request::Open), cluster.granted((1, 0), Request::Open));
        let expiring = cluster.granted((2, 0), Request::Open);
        for (sequence, key) in (0..).zip(["a", "b", "c", "d"]) {
            for grant in [open, closed, expiring] {
                cluster.answer((1, 1), keyspace, grant, [sequence, 0], &["INCR", key]);
            }
        }
        cluster.pass(Duration::from_millis(50));
        let each = cluster.sessions(keyspace) / 3;
        assert!(each >= u64::from(NODES), "{each} of each session");
        assert_eq!(cluster.sessions(keyspace), 3 * each);
        cluster.request((0, 0), Request::Close { lease: closed.lease });
        cluster.pass(Duration::from_millis(50));
        assert_eq!(cluster.sessions(keyspace), 2 * each);
        // Two terms and a sweep later, one session was renewed and the other not.
        let mut open = open;
        for _ in 0..5 {
            cluster.pass(TERM / 2);
            let Answer::Granted(renewed) = cluster.renew((0, 1), open) else { panic!("it lives") };
            open = renewed;
        }
        assert_eq!(cluster.sessions(keyspace), each);
        let kept = cluster.answer((2, 0), keyspace, open, [0, 0], &["INCR", "a"]);
        assert!(matches!(kept, Reply::Int(1..=3)), "{kept:?}");
    }
}
