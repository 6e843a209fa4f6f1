//! Zeus's guards that can be removed, and what must notice.

use super::Check::{self, Tests};
use super::Mutant;

const RANDOM: Check = Tests("zeus", "random::");

const fn mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    const CHECKS: &[Check] = &[
        Tests("zeus", "pitfalls::"),
        Tests("zeus", "transitions::"),
        Tests("zeus", "lanes::"),
        RANDOM,
    ];
    Mutant { name, home: "zeus", guard, checks: CHECKS, in_gate }
}

/// A guard of groups that change.
const fn move_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    Mutant { name, home: "zeus", guard, checks: &[Tests("zeus", "moves::"), RANDOM], in_gate }
}

/// A guard of how a node comes back with what it has.
const fn difference_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    Mutant { name, home: "zeus", guard, checks: &[Tests("zeus", "difference::")], in_gate }
}

/// A guard of what is forgotten.
const fn release_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    Mutant { name, home: "zeus", guard, checks: &[Tests("zeus", "release::"), RANDOM], in_gate }
}

/// A guard of where transactions run.
const fn placement_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    Mutant { name, home: "zeus", guard, checks: &[Tests("zeus", "placement::")], in_gate }
}

/// A guard of what is repeated in vain.
const fn wait_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    Mutant { name, home: "zeus", guard, checks: &[Tests("zeus", "waits::")], in_gate }
}

/// A guard of values that are changed in place.
const fn delta_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    const CHECKS: &[Check] = &[Tests("zeus", "deltas::"), Tests("zeus", "random::lists_")];
    Mutant { name, home: "zeus", guard, checks: CHECKS, in_gate }
}

/// A guard against what no correct peer says.
const fn lie_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    Mutant { name, home: "zeus", guard, checks: &[Tests("zeus", "lies::")], in_gate }
}

/// A guard of calls.
const fn call_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    const CHECKS: &[Check] = &[Tests("zeus", "calls::"), Tests("zeus", "random::calls::")];
    Mutant { name, home: "zeus", guard, checks: CHECKS, in_gate }
}

/// A guard of reads of keys without a copy.
const fn remote_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    const CHECKS: &[Check] = &[Tests("zeus", "remote::")];
    Mutant { name, home: "zeus", guard, checks: CHECKS, in_gate }
}

/// A guard of what gives way when memory is short.
const fn relief_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    Mutant { name, home: "zeus", guard, checks: &[Tests("zeus", "relief::")], in_gate }
}

/// A guard of copies outside the groups of keys.
const fn extra_mutant(name: &'static str, guard: &'static str, in_gate: bool) -> Mutant {
    const CHECKS: &[Check] = &[Tests("zeus", "extras::")];
    Mutant { name, home: "zeus", guard, checks: CHECKS, in_gate }
}

/// Zeus's part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    mutant("zeus_owner_not_asked", "the owner of a key is one of its arbiters", false),
    mutant("zeus_reads_at_reader", "a transaction that writes owns what it reads", false),
    mutant(
        "zeus_handover_ignores_reads",
        "an owner is done with a key when what has read it is committed, too",
        false,
    ),
    mutant(
        "zeus_waiting_read_keeps_nothing",
        "an owner is done with a key when the answers of reads of it have left",
        false,
    ),
    mutant(
        "zeus_changes_outlive_their_life",
        "what a stopped lane has yet to look at ends with its life",
        false,
    ),
    mutant(
        "zeus_answers_at_local_commit",
        "a client is answered when all replicas have its transaction",
        false,
    ),
    mutant(
        "zeus_validates_overtaken",
        "a commit makes the version readable that it is about, and no newer one",
        false,
    ),
    mutant("zeus_acks_on_receipt", "a follower acknowledges what it has applied", false),
    mutant(
        "zeus_applied_is_readable",
        "what is applied is unreadable until it is known to be committed",
        false,
    ),
    mutant("zeus_reads_uncommitted", "a reader waits for the commit of what it reads", false),
    mutant("zeus_commit_not_told", "followers are told of commits", false),
    mutant(
        "zeus_view_without_resend",
        "what is under way is sent to the followers of a new epoch at once",
        false,
    ),
    mutant(
        "zeus_waits_for_one",
        "a transaction is committed when all followers have applied it",
        false,
    ),
    mutant(
        "zeus_late_grant_ignored",
        "a round that is complete for a node is taken, whether it waits for it or not",
        false,
    ),
    mutant(
        "zeus_stale_grant_honoured",
        "an agreement counts for the request that it answers",
        false,
    ),
    mutant("zeus_acks_mixed", "agreements to different rounds are counted apart", false),
    mutant(
        "zeus_acks_of_earlier_epochs",
        "agreements of different epochs are counted apart",
        false,
    ),
    mutant("zeus_gate_open", "no transaction begins with a key that is being given away", false),
    mutant(
        "zeus_steal_before_use",
        "a transaction that has got its keys runs before they are given away",
        false,
    ),
    mutant(
        "zeus_given_key_still_read",
        "an owner outside the group stops reading when it agrees to give a key away",
        true,
    ),
    mutant(
        "zeus_default_owner_early",
        "keys without a live owner wait until all nodes have recovered",
        false,
    ),
    mutant("zeus_barrier_of_one", "a node waits for the recovery of all", false),
    Mutant {
        name: "zeus_recovered_clock_of_one_lane",
        home: "zeus",
        guard: "what was read is written under a newer version, also when its owner is gone",
        checks: &[Tests("zeus", "what_was_read_is_written")],
        in_gate: false,
    },
    mutant("zeus_stale_replay_silent", "a driver that is behind is told what is settled", false),
    mutant("zeus_owner_demotes_itself", "a request of the owner begins no round", false),
    mutant(
        "zeus_orphan_settled_without_clock",
        "who owns a key by default writes above what the last owner has read",
        true,
    ),
    mutant("zeus_stuck_round_waits", "a round that is under way goes on in a new epoch", false),
    mutant(
        "zeus_ignores_dependency",
        "a follower applies a transaction after what it depends on",
        false,
    ),
    mutant(
        "zeus_only_last_dependency",
        "a transaction depends on all that it has read, not on the last alone",
        true,
    ),
    mutant(
        "zeus_replays_in_any_order",
        "a replay waits until what it depends on is everywhere",
        false,
    ),
    mutant(
        "zeus_replay_validated_early",
        "what is replayed may be read when all nodes have recovered",
        false,
    ),
    mutant(
        "zeus_claim_not_adopted",
        "what a default owner writes makes it an owner by name",
        false,
    ),
    mutant(
        "zeus_unsettled_round_told",
        "an update names the round in which its key has come, not the one that is under way",
        false,
    ),
    mutant(
        "zeus_younger_wins",
        "an older transaction is not made to wait for a younger one that waits",
        false,
    ),
    mutant(
        "zeus_age_not_inherited",
        "a round is as old as the oldest request that waits behind it",
        false,
    ),
    mutant(
        "zeus_entry_believed",
        "a node whose entry is older than a round asks for the key",
        false,
    ),
    mutant(
        "zeus_request_stays_young",
        "a request is as old as the oldest that waits for it",
        false,
    ),
    mutant("zeus_given_unnoticed", "what waits for a key that was given away asks for it", false),
    mutant(
        "zeus_reader_waits_on",
        "a reader of a key that is written again and again gets a turn",
        false,
    ),
    mutant("zeus_lanes_begin_apart", "all lanes of a node act in one epoch", true),
    mutant(
        "zeus_loan_outlives_epoch",
        "what a lane has lent as a default owner is not used in a later epoch",
        false,
    ),
    mutant(
        "zeus_lane_takes_undrained",
        "a lane lends a key when nothing under way has used it",
        true,
    ),
    mutant(
        "zeus_lane_returns_undrained",
        "a lane returns a key when what has used it is committed",
        false,
    ),
    mutant(
        "zeus_lane_overtakes_asks",
        "a transaction waits for an older one of another lane that asks for its key",
        false,
    ),
    mutant(
        "zeus_single_pass_read",
        "what a reader of several lanes has seen was there at one moment",
        false,
    ),
    mutant("zeus_copy_ends_early", "a replica has joined when it has copied everything", false),
    mutant(
        "zeus_joins_without_awaited",
        "a replica has joined when what was under way has come",
        false,
    ),
    mutant("zeus_copy_without_rounds", "a copy includes the rounds that are under way", true),
    mutant("zeus_takes_again", "an owner does not take again what it has taken", false),
    release_mutant(
        "zeus_releases_what_is_needed",
        "a key is not released while something here waits for it",
        false,
    ),
    release_mutant(
        "zeus_forgets_without_release",
        "nobody forgets a key before its owner has given it up",
        true,
    ),
    release_mutant(
        "zeus_forgets_above_floor",
        "a key is forgotten when the floor is above it",
        false,
    ),
    release_mutant(
        "zeus_absent_before_copied",
        "a key that has not been copied is not one that was forgotten",
        false,
    ),
    release_mutant("zeus_absent_at_zero", "a key without a record is at the floor", true),
    release_mutant(
        "zeus_floor_claims_below",
        "a node promises a floor when what it has under way is committed",
        false,
    ),
    release_mutant(
        "zeus_floor_replays_below",
        "the floor rises when nobody will replay anything below it",
        false,
    ),
    release_mutant(
        "zeus_promise_not_told",
        "a node that was not there begins above the floor too",
        false,
    ),
    release_mutant(
        "zeus_driver_left_behind",
        "arbiters of a round begin from one entry, also where some have forgotten the key",
        false,
    ),
    release_mutant(
        "zeus_floor_wished_blindly",
        "who asks for a floor says which, so that it rises above rounds that are ahead of clocks",
        false,
    ),
    release_mutant(
        "zeus_floor_of_one_round",
        "records are forgotten up to a floor that all know for long",
        true,
    ),
    release_mutant(
        "zeus_watch_of_absence_at_last_change",
        "a watch of an absent key notes the floor",
        false,
    ),
    release_mutant(
        "zeus_donor_keeps_its_floor",
        "a replica knows up to where its donor has forgotten records",
        false,
    ),
    release_mutant(
        "zeus_floor_leaves_loans",
        "a lane calls back what it has lent before a floor",
        false,
    ),
    release_mutant(
        "zeus_loan_without_clock",
        "a lane begins above the floor of what it borrows",
        false,
    ),
    mutant(
        "zeus_forgets_what_has_changed",
        "a record is forgotten if it is as the walk has seen it",
        false,
    ),
    release_mutant(
        "zeus_floor_before_recovery",
        "a floor waits until all lanes have recovered",
        false,
    ),
    release_mutant("zeus_floor_ignores_loans", "a floor waits for what other lanes do", true),
    release_mutant(
        "zeus_floor_asks_one_lane",
        "a floor rises when no lane will replay anything below it",
        false,
    ),
    release_mutant(
        "zeus_borrower_settles_at_zero",
        "what a borrower writes is at the floor of its lane, as to its owner",
        false,
    ),
    release_mutant(
        "zeus_absent_version_of_one_lane",
        "a key without a record shows the floor of its own lane",
        false,
    ),
    release_mutant(
        "zeus_walk_takes_what_is_lent",
        "what is lent is left alone by its own lane",
        false,
    ),
    release_mutant(
        "zeus_hopeless_request_kept",
        "a request that nobody serves goes with its transaction",
        false,
    ),
    release_mutant(
        "zeus_expiry_left_to_readers",
        "an expired value is deleted without a reader",
        false,
    ),
    release_mutant(
        "zeus_expiry_waits_for_deletions",
        "a value that expires is not kept for as long as a deleted key",
        false,
    ),
    release_mutant(
        "zeus_full_list_forgets",
        "where more is to be forgotten than is listed, a pass walks over all records",
        false,
    ),
    move_mutant("zeus_group_of_voters", "a group is of nodes that have what it holds", false),
    move_mutant("zeus_leaver_reads", "a node that is about to leave a group reads no more", false),
    move_mutant(
        "zeus_claim_beneath_round_ignored",
        "a round begins from the last owner, also if that one is heard of after the round",
        true,
    ),
    move_mutant(
        "zeus_copy_without_commits",
        "what is readable at the donor is readable in the copy",
        false,
    ),
    move_mutant("zeus_view_forgets_copies", "a new view costs nothing that was copied", false),
    difference_mutant(
        "zeus_former_records_not_compared",
        "what is left of an earlier life is compared, and not copied again",
        false,
    ),
    difference_mutant(
        "zeus_known_values_sent",
        "of records that a learner has at the same version only entries of the directory are sent",
        false,
    ),
    difference_mutant(
        "zeus_former_keeps_the_deleted",
        "a record of an earlier life that the donor has forgotten goes",
        true,
    ),
    difference_mutant(
        "zeus_former_records_uncommitted",
        "nothing is left of a transaction that was under way",
        false,
    ),
    difference_mutant(
        "zeus_former_rounds_unsettled",
        "nothing is left of a round that was under way",
        false,
    ),
    difference_mutant(
        "zeus_former_records_of_another_cluster",
        "records of another cluster are not compared",
        false,
    ),
    difference_mutant(
        "zeus_former_records_of_one_life",
        "what several lives have left is compared",
        false,
    ),
    move_mutant(
        "zeus_leftovers_kept",
        "a node that comes back to a shard has nothing of before",
        false,
    ),
    mutant(
        "zeus_orphans_are_due",
        "nothing is due of what a coordinator that is gone has left, and others replay",
        false,
    ),
    mutant(
        "zeus_copy_forgets_its_question",
        "the answer to a question counts, although it was put again",
        false,
    ),
    placement_mutant(
        "zeus_bounces_uncounted",
        "a key that nodes write in turn stays with its default owner",
        true,
    ),
    placement_mutant(
        "zeus_bounces_for_ever",
        "a key that has bounced follows its users again after a while",
        false,
    ),
    placement_mutant("zeus_pin_unheeded", "a pinned unit is used where it is pinned", true),
    placement_mutant("zeus_pin_by_key", "what is pinned is a unit, with all its keys", false),
    placement_mutant(
        "zeus_pin_outlives_node",
        "a pin waits while its node is no active member",
        true,
    ),
    wait_mutant("zeus_waits_stay_short", "what is in vain is repeated less and less", false),
    wait_mutant("zeus_asks_about_each", "one question is about all that may be committed", false),
    lie_mutant("zeus_absurd_clock_followed", "a clock that is years ahead is refused", false),
    lie_mutant("zeus_slot_beyond_window", "a stream holds no more than a pipeline", false),
    lie_mutant("zeus_copy_of_anybody", "a replica copies from the donor that it has asked", false),
    lie_mutant("zeus_writes_beside_owner", "nobody overwrites what the owner writes", false),
    lie_mutant("zeus_moved_without_owner", "no key is moved whose owner never agreed", false),
    wait_mutant("zeus_waits_without_bound", "what was long in vain is repeated again", false),
    wait_mutant("zeus_wait_outlives_epoch", "a new epoch begins all waits anew", false),
    Mutant {
        name: "zeus_copy_takes_its_round_along",
        home: "zeus",
        guard: "a copy that goes leaves the words of a round that is under way",
        checks: &[Tests("zeus", "extras::a_former_owner_that_is_asked_late")],
        in_gate: false,
    },
    Mutant {
        name: "zeus_expired_version_shown",
        home: "zeus",
        guard: "who reads what has expired is shown the version of its deletion",
        checks: &[Tests("zeus", "an_expired_value_is_absent")],
        in_gate: false,
    },
    Mutant {
        name: "zeus_read_overtakes_its_origin",
        home: "zeus",
        guard: "a read runs where what its client has asked for before waits",
        checks: &[Tests("node", "what_a_client_asks_for_takes_effect_in_order")],
        in_gate: false,
    },
    Mutant {
        name: "zeus_reads_stay",
        home: "zeus",
        guard: "a read runs where all copies are, if there is such a node",
        checks: &[Tests("node", "a_read_moves_no_key")],
        in_gate: false,
    },
    Mutant {
        name: "zeus_acks_outlive_epoch",
        home: "zeus",
        guard: "what was applied in an epoch is not acknowledged in the next",
        checks: &[Tests("zeus", "turns::")],
        in_gate: true,
    },
    Mutant {
        name: "zeus_former_owner_untold",
        home: "zeus",
        guard: "a former owner outside the group is told that a key was taken",
        checks: &[Tests("zeus", "turns::")],
        in_gate: true,
    },
    move_mutant(
        "zeus_learnt_key_left_out",
        "what a node has applied it applies to keys that it learns before it confirms that again",
        true,
    ),
    move_mutant(
        "zeus_heirs_hear_nobody",
        "who begins a group anew hears what live members have of it",
        true,
    ),
    move_mutant(
        "zeus_given_before_heirs_have_heard",
        "an owner outside a group gives nothing away while nobody has the group's data",
        false,
    ),
    move_mutant(
        "zeus_given_copy_stays_unread",
        "a copy that was given away is read again by a member of a group begun anew",
        false,
    ),
    move_mutant("zeus_taken_from_nobody", "nobody takes a key that nobody owns", false),
    move_mutant(
        "zeus_heirs_not_asked_for_wholes",
        "who lacks a base in a group begun anew asks the others that begin it",
        false,
    ),
    delta_mutant(
        "zeus_delta_on_any_base",
        "a delta is applied to the version that its transaction has overwritten",
        false,
    ),
    delta_mutant(
        "zeus_missing_base_acknowledged",
        "a follower acknowledges a change of what it has",
        true,
    ),
    delta_mutant(
        "zeus_follower_keeps_no_whole",
        "what is replayed can be had whole from those that keep the key",
        false,
    ),
    delta_mutant(
        "zeus_whole_of_record",
        "who lacks a base gets the value as its transaction has left it, not a later one",
        false,
    ),
    delta_mutant("zeus_whole_asked_for_once", "who lacks a base asks again", false),
    call_mutant(
        "zeus_call_not_looked_up",
        "the owner of a call's home key looks for a record of the call before it attempts it",
        false,
    ),
    call_mutant(
        "zeus_call_answered_early",
        "a try that finds an attempt under way waits until that one is committed",
        false,
    ),
    call_mutant("zeus_call_not_covered", "an attempt is made under a grant that covers it", false),
    call_mutant(
        "zeus_forgotten_session_admitted",
        "an attempt is dated above all sessions that may have been forgotten",
        false,
    ),
    call_mutant(
        "zeus_call_known_when_committed",
        "a call that is applied at a member of the group is known to the next owner of its home",
        true,
    ),
    call_mutant(
        "zeus_call_asked_about_once",
        "an owner outside the group asks again about a call once the home key has moved",
        false,
    ),
    call_mutant(
        "zeus_member_asks_its_group",
        "a node that has come into the group of a home key asks nobody about its calls any more",
        false,
    ),
    call_mutant(
        "zeus_found_believed",
        "what a member of the group says of a call counts only if the home key has not moved",
        false,
    ),
    call_mutant(
        "zeus_call_without_its_group",
        "a call's transaction goes to the group of its home key",
        false,
    ),
    call_mutant(
        "zeus_home_given_early",
        "the home key stays until the call is committed, also if the call does not touch it",
        false,
    ),
    call_mutant("zeus_calls_not_copied", "a replica copies the calls of its shards", false),
    call_mutant(
        "zeus_calls_copied_unheard",
        "a donor tells of calls once it knows whether those of earlier epochs are committed",
        false,
    ),
    call_mutant(
        "zeus_calls_kept_by_a_leaver",
        "a node that leaves a shard forgets its calls",
        false,
    ),
    remote_mutant(
        "zeus_remote_read_looks_once",
        "who reads keys of several nodes looks twice at each",
        true,
    ),
    remote_mutant(
        "zeus_look_at_uncommitted",
        "nobody is told of what is not committed, although it is looked at again",
        true,
    ),
    remote_mutant(
        "zeus_look_without_lease",
        "a member tells of its copies behind its lease",
        false,
    ),
    remote_mutant(
        "zeus_check_without_lease",
        "a member confirms what it has told of behind its lease",
        false,
    ),
    remote_mutant(
        "zeus_answer_to_any_question",
        "an answer counts for its question, and for no later one",
        false,
    ),
    remote_mutant(
        "zeus_remote_read_outlives_epoch",
        "a new view begins reads anew that have asked other nodes",
        false,
    ),
    remote_mutant(
        "zeus_remote_read_never_gives_up",
        "who asks in vain for what is always being written becomes its owner",
        false,
    ),
    relief_mutant(
        "zeus_copies_kept_without_memory",
        "copies that nothing rests on give way when memory is short",
        false,
    ),
    relief_mutant(
        "zeus_needed_copy_gives_way",
        "an owner outside the group keeps its copy while a member of the group is away",
        false,
    ),
    extra_mutant(
        "zeus_given_beside_extra_readers",
        "an owner withdraws extra copies before it gives a key away",
        false,
    ),
    extra_mutant(
        "zeus_late_reader_forgotten",
        "extra readers of an epoch follow until they have recovered in the next",
        false,
    ),
    extra_mutant(
        "zeus_extra_copy_not_applied",
        "an extra reader applies to its copy what it acknowledges",
        false,
    ),
    extra_mutant(
        "zeus_grant_overwrites_newer",
        "a grant leaves alone what was applied since it was sent",
        false,
    ),
    extra_mutant(
        "zeus_grant_revives_deleted",
        "a grant counts only where the record that it was asked for is still there",
        false,
    ),
    extra_mutant("zeus_grant_of_any_number", "a grant counts for its request alone", false),
    extra_mutant(
        "zeus_old_end_believed",
        "the end of a copy counts for its request and earlier ones",
        false,
    ),
    extra_mutant("zeus_copy_read_before_grant", "a copy is read from its grant on", false),
    extra_mutant("zeus_grants_uncommitted", "what is granted is committed", false),
    extra_mutant(
        "zeus_reader_counts_from_its_word",
        "an extra reader is a follower from the step in which it is granted its copy",
        false,
    ),
    extra_mutant("zeus_loan_without_readers", "a loan names the extra readers", false),
    extra_mutant(
        "zeus_reader_added_to_loan",
        "no extra reader is added while a key is lent",
        false,
    ),
    extra_mutant(
        "zeus_copies_outlive_epoch",
        "a lane drops its extra copies when it stops for a view",
        true,
    ),
];
