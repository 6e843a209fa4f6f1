//! Read-only transactions, and what nobody writes below.

use quorate_meerkat::{Body, Conflict, Kind, Reason};
use quorate_types::{Duration, Timestamp};

use crate::support::{Cluster, MLT, WALL, body_bytes};

use super::{against, answer, decided, of_2, validate, vote, writes};

#[test]
fn a_read_is_confirmed_by_a_quorum_and_leaves_no_record() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=k:v");
    cluster.run_for(Duration::from_millis(300));
    let tag = cluster.submit(2, "read=k read=none");
    cluster.deliver_some(|packet| packet.kind() == "check");
    cluster.assert_open(tag);
    cluster.deliver(0, 2, "checked");
    assert_eq!(cluster.read_by(tag), [Some("v"), None]);
    cluster.assert_quiet();
}

#[test]
fn a_pending_writer_refuses_a_read() {
    let mut cluster = Cluster::new(3);
    validate(&mut cluster, 1, of_2(50), &writes());
    cluster.pool.clear();
    let bytes = body_bytes(&[("k", Some(Timestamp::ZERO), None)]);
    let body = Body::check(&bytes).expect("just made");
    let ask = |cluster: &mut Cluster, nanos| {
        cluster.tell(2, 1, Kind::Check { at: of_2(nanos), body });
        match answer(cluster).message().kind {
            Kind::Checked { result, .. } => result,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut cluster, 60), against(Reason::PendingWriter, of_2(50)));
    assert_eq!(ask(&mut cluster, 40), Ok(()), "it comes before the writer");
    decided(&mut cluster, 1, of_2(50), true, None);
    assert_eq!(ask(&mut cluster, 70), against(Reason::StaleRead, of_2(50)));
}

#[test]
fn nobody_writes_below_a_confirmed_read() {
    let mut cluster = Cluster::new(3);
    let bytes = body_bytes(&[("k", Some(Timestamp::ZERO), None)]);
    let body = Body::check(&bytes).expect("just made");
    cluster.tell(2, 1, Kind::Check { at: of_2(60), body });
    cluster.pool.clear();
    validate(&mut cluster, 1, of_2(50), &writes());
    assert_eq!(vote(&mut cluster), against(Reason::ReadLater, of_2(60)));
    validate(&mut cluster, 1, of_2(70), &writes());
    assert_eq!(vote(&mut cluster), Ok(()));
}

#[test]
fn nobody_writes_below_what_a_committed_transaction_has_read() {
    let mut cluster = Cluster::new(3);
    let reads = body_bytes(&[("k", Some(Timestamp::ZERO), None), ("m", None, Some("v"))]);
    validate(&mut cluster, 1, of_2(60), &reads);
    vote(&mut cluster).expect("nothing is in the way");
    validate(&mut cluster, 1, of_2(50), &writes());
    assert_eq!(vote(&mut cluster), against(Reason::PendingReader, of_2(60)));
    decided(&mut cluster, 1, of_2(60), true, None);
    validate(&mut cluster, 1, of_2(51), &writes());
    assert_eq!(vote(&mut cluster), against(Reason::ReadLater, of_2(60)));
}

#[test]
fn after_an_epoch_nobody_writes_below_its_reads() {
    let mut cluster = Cluster::new(3);
    cluster.tick(Duration::from_millis(1));
    let tag = cluster.submit(3, "read=k");
    let at = cluster.last_attempt(3);
    cluster.take(3, 1, "check");
    cluster.deliver_all();
    if cluster.outcome(tag).is_none() {
        // It had asked 1; now it asks everybody.
        cluster.tick(MLT);
        cluster.take(3, 1, "check");
        cluster.deliver(3, 2, "check");
        cluster.deliver(2, 3, "checked");
    }
    cluster.assert_done(tag);
    assert_eq!(cluster.meta(1, "k").rts, Timestamp::ZERO, "1 knows nothing of it");
    cluster.renew_view();
    cluster.deliver_all();
    cluster.pool.clear();
    validate(&mut cluster, 1, of_2(at.version - WALL), &writes());
    assert!(matches!(vote(&mut cluster), Err(Conflict { reason: Reason::BelowFloor, .. })));
    // The floor may be a clock's reading; above it nothing stands in the way.
    validate(&mut cluster, 1, of_2(1_000_000_000), &writes());
    assert_eq!(vote(&mut cluster), Ok(()));
}
