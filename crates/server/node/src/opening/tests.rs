//! Directories on a simulated disk, and what becomes of their files.

use quorate_disk::{Device, DeviceFaults, Files};
use quorate_durability::{Disk, Log, Options};
use quorate_types::{
    Duration, Incarnation, Instant, KeyspaceId, Lsn, NodeId, Now, UnixNanos, limits,
};

use super::*;
use crate::{DiskDone, DiskOwner, DiskRequest, Lane, NodeAddress, Outbox, Shared};

const LANES: u16 = 2;

fn config() -> NodeConfig {
    let addresses = vec![NodeAddress::in_memory(NodeId(1))];
    NodeConfig {
        cluster: "test".into(),
        ..NodeConfig::new(NodeId(1), LANES, addresses, Vec::new())
    }
}

fn empty() -> Files {
    Files::new(Device::new(16 << 20, 512, DeviceFaults::default(), 1), 1)
}

/// Does what was asked for until nothing is under way.
fn settle(files: &mut Files, mut done: impl FnMut(quorate_durability::Completion, &mut Files)) {
    while !files.is_idle() {
        if let Some(completion) = files.step() {
            done(completion, files);
        }
    }
}

/// A lane appends some entries, each in a batch of its own.
fn append(files: &mut Files, config: &NodeConfig, lane: u16, entries: u8) {
    let found = LaneFound::look(files, identity(config, LaneId(lane))).expect("sound files");
    let options =
        Options { segment_bytes: 1 << 20, batch_bytes_max: 1 << 16, ..Options::default() };
    let mut log = Log::resume(found.found, options, 7);
    log.write(files);
    settle(files, |completion, files| {
        log.complete(completion, files);
    });
    for entry in 0..entries {
        log.append(1, KeyspaceId(0), |out| out.push(entry));
        log.write(files);
        settle(files, |completion, files| {
            log.complete(completion, files);
        });
    }
}

fn promise(files: &mut Files, config: &NodeConfig) {
    let (mut voter, _) = VoterFile::load(files, identity(config, LaneId(0))).expect("a sound file");
    voter.save(b"promises", files);
    settle(files, |completion, files| {
        voter.complete(completion, files);
    });
}

/// The directory of a node that has run.
fn used() -> Files {
    let (mut files, config) = (empty(), config());
    (0..LANES).for_each(|lane| append(&mut files, &config, lane, 3));
    promise(&mut files, &config);
    files
}

fn segment(lane: u16) -> String {
    format!("lane-{lane:04}-00000000.segment")
}

/// Opens a directory: what is put aside, and what the node begins with.
fn open(files: &mut Files) -> (Vec<Aside>, Result<Box<Opened>, LogError>) {
    let (mut opening, mut all) = (Opening::default(), Vec::new());
    loop {
        match opening.judge(NodeFound::look(files, &config())) {
            Ok(Verdict::Use(opened)) => return (all, Ok(opened)),
            Ok(Verdict::PutAside { aside, why }) => {
                assert!(!why.is_empty());
                put_aside(files, aside);
                all.push(aside);
            }
            Err(error) => return (all, Err(error)),
        }
    }
}

fn put_aside(files: &mut Files, aside: Aside) {
    for file in files.files().expect("it can be listed") {
        if &*file.name != VOTER_FILE || aside == Aside::All {
            files.delete(&file.name);
        }
    }
}

/// Asserts what is put aside, how much is there, and whether the node has a past.
fn expect(mut files: Files, aside: &[Aside], store: RestoredStore, has_past: bool) {
    let (put, opened) = open(&mut files);
    let opened = opened.expect("the node begins");
    assert_eq!((&put[..], opened.store, opened.has_past), (aside, store, has_past));
}

#[test]
fn a_node_begins_with_nothing_or_goes_on_with_what_it_had() {
    expect(empty(), &[], RestoredStore::None, false);
    expect(used(), &[], RestoredStore::Intact, true);
}

/// The power went before anything was flushed that did not have to be.
#[test]
fn a_node_whose_logs_have_lost_all_has_a_past() {
    let (mut files, config) = (empty(), config());
    (0..LANES).for_each(|lane| append(&mut files, &config, lane, 0));
    expect(files.clone(), &[], RestoredStore::None, false);
    promise(&mut files, &config);
    expect(files, &[], RestoredStore::Intact, true);
}

#[test]
fn a_damaged_log_is_put_aside_with_those_of_the_other_lanes_and_the_promises_stay() {
    let mut files = used();
    // The first of three batches.
    files.damage(&segment(1), 4096 + 20, b"rot");
    expect(files, &[Aside::Lanes], RestoredStore::Damaged, false);
}

#[test]
fn promises_that_are_lost_take_the_logs_with_them() {
    let mut files = used();
    for slot in 0..2 {
        files.damage(VOTER_FILE, slot * 64 * 1024 + 44, b"rot");
    }
    expect(files, &[Aside::All], RestoredStore::None, false);
    let mut files = used();
    files.delete(VOTER_FILE);
    expect(files, &[Aside::All], RestoredStore::None, false);
    // One of the two copies is enough.
    let mut files = used();
    files.damage(VOTER_FILE, 44, b"rot");
    expect(files, &[], RestoredStore::Intact, true);
}

/// The process that put the logs aside has ended before it had new ones.
#[test]
fn who_has_promised_something_and_has_no_log_is_not_intact() {
    let mut files = used();
    put_aside(&mut files, Aside::Lanes);
    expect(files, &[], RestoredStore::Damaged, false);
    let mut files = used();
    for file in files.files().expect("it can be listed") {
        if file.name.starts_with("lane-0001-") {
            files.delete(&file.name);
        }
    }
    let (_, opened) = open(&mut files);
    assert_eq!(opened.expect("the node begins").store, RestoredStore::Damaged);
}

#[test]
fn what_belongs_elsewhere_is_refused_and_stays() {
    let mut files = empty();
    let other = NodeConfig { cluster: "another".into(), ..config() };
    (0..LANES).for_each(|lane| append(&mut files, &other, lane, 1));
    let (put, opened) = open(&mut files);
    assert!(put.is_empty());
    assert!(matches!(opened, Err(LogError::Foreign { .. })), "{opened:?}");
}

#[test]
fn where_a_log_ends_is_known_to_who_asks() {
    let mut files = used();
    let (_, opened) = open(&mut files);
    let lane = &opened.expect("the node begins").found.lanes[0];
    assert_eq!(lane.end(), Lsn(3));
    let (file, offset) = lane.tail().expect("there is a batch");
    assert_eq!((&**file, offset), (&*segment(0), 3 * 4096));
}

/// The power may go at any moment: the voter's file has to say that a log was damaged before there is a
/// new one, which is sound.
#[test]
fn what_a_node_promises_is_on_its_disk_before_it_begins_a_log() {
    let mut files = empty();
    let (_, opened) = open(&mut files);
    let Opened { found: NodeFound { mut lanes, voter }, store, .. } = *opened.expect("it begins");
    let now = Now { monotonic: Instant(1), unix: UnixNanos(1) };
    let mut lane = Lane::new(Shared::new(config()), LaneId(0), Incarnation(7), now);
    let mut out = Outbox::bounded(limits::PEER_BUFFER_BYTES_MAX);
    lane.open_log(lanes.swap_remove(0), &mut files, 1, &mut |_, _| {}).expect("nothing to restore");
    lane.open_voter(now, voter, store).expect("no state");
    loop {
        lane.write_log(now, &mut out);
        if lane.is_voter_saved() {
            break;
        }
        for DiskRequest { owner, ticket, request } in out.disk.drain(..) {
            assert_eq!(owner, DiskOwner::Voter, "{request:?}");
            files.submit(ticket, request);
        }
        settle(&mut files, |completion, _| {
            let (took, error) = (Duration::from_micros(100), String::new());
            lane.disk_done(
                now,
                DiskDone { owner: DiskOwner::Voter, completion, took, error },
                &mut out,
            );
        });
    }
    assert!(out.disk.iter().any(|request| request.owner == DiskOwner::Log));
}
