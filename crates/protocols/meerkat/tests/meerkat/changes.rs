//! Epoch changes over slow links: a part of a report or of the merged record may be on its way for
//! longer than the timeout after which a message counts as lost.

use crate::support::{Cluster, MLT};

/// Timeouts without an answer.
const WAITS: u32 = 12;
/// What is sent at once, and again after one, three and seven timeouts.
const SENT: usize = 4;

#[test]
fn a_part_of_a_report_that_is_on_its_way_is_not_sent_at_every_timeout() {
    let mut cluster = Cluster::new(3);
    cluster.renew_view();
    cluster.deliver(1, 2, "freeze");
    for _ in 0..WAITS {
        cluster.advance(MLT);
        cluster.tick_node(1);
        cluster.deliver_some(|packet| packet.is(1, 2, "freeze"));
    }
    assert_eq!(cluster.take(2, 1, "frozen").len(), SENT);
}

/// A part that is full takes its time over a slow link, and copies of it on the way take the link from it.
#[test]
fn a_full_part_is_given_longer() {
    let mut cluster = Cluster::new(3);
    for key in 0..4 {
        cluster.run(1, &format!("write=k{key}:{}", "v".repeat(100_000)));
    }
    cluster.pool.clear();
    cluster.renew_view();
    cluster.deliver(1, 2, "freeze");
    for _ in 0..WAITS {
        cluster.advance(MLT);
        cluster.tick_node(1);
        cluster.deliver_some(|packet| packet.is(1, 2, "freeze"));
    }
    assert_eq!(cluster.take(2, 1, "frozen").len(), 2);
}

#[test]
fn a_part_of_the_outcome_that_is_on_its_way_is_not_sent_at_every_timeout() {
    let mut cluster = Cluster::new(3);
    cluster.renew_view();
    cluster.deliver(1, 2, "freeze");
    cluster.deliver(1, 3, "freeze");
    cluster.deliver(2, 1, "frozen");
    cluster.deliver(3, 1, "frozen");
    for _ in 0..WAITS {
        cluster.advance(MLT);
        cluster.tick_node(1);
    }
    assert_eq!(cluster.take(1, 2, "adopt").len(), SENT);
}

/// The leader does not know when a member has heard of the view, so it does not lose patience with
/// one that is late.
#[test]
fn a_member_that_froze_late_is_asked_within_a_timeout() {
    let mut cluster = Cluster::new(3);
    let roles = cluster.roles();
    let view = cluster.decide(&roles);
    cluster.install_on(1, &view);
    cluster.install_on(3, &view);
    for _ in 0..WAITS {
        cluster.advance(MLT);
        cluster.tick_node(1);
        cluster.deliver_some(|packet| packet.is(1, 2, "freeze"));
    }
    cluster.install_on(2, &view);
    assert!(cluster.take(2, 1, "frozen").is_empty());
    cluster.advance(MLT);
    cluster.tick_node(1);
    cluster.deliver(1, 2, "freeze");
    cluster.deliver(2, 1, "frozen");
}
