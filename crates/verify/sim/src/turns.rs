//! Turns: the work of one loop turn of a lane, and its interruptions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorate_commands::{Op, Reply, Wait};
use quorate_machine::{Outcome, Rng, Seal};
use quorate_node::{BlockingCall, Lane, Mail, Outbox, SessionCall};
use quorate_types::{Instant, KeyspaceId, LaneId, NodeSet, Now, Publication, Tag, Topic};

use crate::channels::Place;
use crate::command::Command;
use crate::script::Fault;
use crate::world::{Answer, Event, MS, World};

/// A time, a number of turns at that very time, and a length: the turn that comes after both is
/// interrupted for that length.
type Interruption = (u64, u64, u64);

/// The interruptions of turns: drawn, or as a script has them.
pub(crate) struct Interruptions {
    pub(crate) rng: Rng,
    /// The chance of each turn, of 100 000.
    pub(crate) chance: u64,
    /// For each lane, in order.
    pub(crate) script: BTreeMap<(usize, u16), VecDeque<Interruption>>,
    /// The interruptions that happened.
    pub(crate) done: Vec<(u64, Fault)>,
}

/// Turns of a lane within a millisecond for which nothing has come to it: more, and it is always due.
const DUE_TURNS_MAX: u64 = 100_000;

/// Counts the turns that a lane takes because something is due.
#[derive(Default)]
pub(crate) struct DueTurns {
    millisecond: u64,
    turns: u64,
}

impl DueTurns {
    /// It takes one now.
    pub(crate) fn count(&mut self, time: u64) {
        let millisecond = time / MS;
        self.turns = if millisecond == self.millisecond { self.turns + 1 } else { 0 };
        self.millisecond = millisecond;
        assert!(self.turns < DUE_TURNS_MAX, "a lane takes turn after turn, and time stands still");
    }
}

impl World {
    /// A client's op reaches a node: answered from the local record, or submitted.
    pub(crate) fn execute(
        &mut self,
        node: usize,
        lane: usize,
        tag: Tag,
        origin: u64,
        keyspace: KeyspaceId,
        command: &Command,
    ) {
        self.flow.begin_op();
        self.awaited.ask(tag, keyspace);
        let read_at = self.nodes[node].lanes[lane].clock_read_at.take();
        self.turn_at(read_at.unwrap_or(self.time), node, lane, |lane, now, out| {
            if let Op::Call(call) = &command.0
                && let Ok(Some(Wait { timeout, line })) = call.call().waits()
            {
                let until = timeout.map_or(Instant::NEVER, |timeout| now.monotonic + timeout);
                let call = BlockingCall { keyspace, origin, call: call.clone(), line, until };
                lane.block(now, tag, call, out);
                return None;
            }
            if let Some(call) = command.single_read() {
                let reply = lane.read(now, keyspace, &call, |reply: Reply<'_>| reply.into_owned());
                if let Some(reply) = reply {
                    return Some(Answer { tag, outcome: Outcome::Done(reply), at: None });
                }
            }
            match &command.0 {
                Op::Call(call) => lane.submit(now, keyspace, tag, origin, call.call(), out),
                op => lane.submit(now, keyspace, tag, origin, op.clone(), out),
            }
            None
        });
    }

    /// A client's request for a lease reaches a node.
    pub(crate) fn lease(
        &mut self,
        node: usize,
        lane: usize,
        tag: Tag,
        request: quorate_rifl::Request,
    ) {
        self.flow.begin_op();
        let read_at = self.nodes[node].lanes[lane].clock_read_at.take();
        self.turn_at(read_at.unwrap_or(self.time), node, lane, |lane, now, out| {
            lane.lease(now, tag, request, out);
            None
        });
    }

    /// So many clients of a lane listen to a channel from now on.
    pub(crate) fn listen(&mut self, node: usize, lane: usize, channel: &str, clients: u32) {
        self.flow.begin_op();
        self.turn(node, lane, |lane, _, _| {
            lane.listen(Topic::Channel, channel.as_bytes(), clients);
            None
        });
    }

    /// A client of a lane publishes; how many get it, as far as is known.
    pub(crate) fn publish(
        &mut self,
        node: usize,
        lane: usize,
        publication: &Arc<Publication>,
    ) -> u64 {
        self.flow.begin_op();
        let mut receivers = 0;
        self.turn(node, lane, |lane, _, out| {
            receivers = lane.broadcast(publication, out);
            None
        });
        receivers
    }

    /// A session's call reaches a node.
    pub(crate) fn call(&mut self, node: usize, lane: usize, tag: Tag, call: SessionCall) {
        self.flow.begin_op();
        self.awaited.ask(tag, call.keyspace);
        let read_at = self.nodes[node].lanes[lane].clock_read_at.take();
        self.turn_at(read_at.unwrap_or(self.time), node, lane, |lane, now, out| {
            lane.call(now, tag, call, out);
            None
        });
    }

    /// One loop turn of a lane.
    pub(crate) fn turn(
        &mut self,
        node: usize,
        lane: usize,
        event: impl FnOnce(&mut Lane, Now, &mut Outbox) -> Option<Answer>,
    ) {
        self.nodes[node].lanes[lane].clock_read_at = None;
        self.turn_at(self.time, node, lane, event);
    }

    /// One loop turn of a lane that read the clock at `read_at`.
    fn turn_at(
        &mut self,
        read_at: u64,
        node: usize,
        lane: usize,
        event: impl FnOnce(&mut Lane, Now, &mut Outbox) -> Option<Answer>,
    ) {
        let now = self.nodes[node].clock(read_at);
        let host = &mut self.nodes[node].lanes[lane];
        host.lane.begin_turn(now);
        let answer = event(&mut host.lane, now, &mut host.out);
        host.reads.extend(answer.map(|answer| self.awaited.answer(answer)));
        self.finish_turn(node, lane);
    }

    /// Timers, the end of the turn, and the flush, unless the process is stopped just before it.
    pub(crate) fn finish_turn(&mut self, node: usize, lane: usize) {
        let now = self.nodes[node].clock(self.time);
        let host = &mut self.nodes[node].lanes[lane];
        host.lane.tick(now, &mut host.out);
        host.lane.end_turn(now, &mut host.out);
        host.check_invariants();
        self.write_log(node, lane);
        if lane == 0 {
            self.note_view(node);
        }
        match self.draw_interruption(node, lane) {
            Some(span) => {
                self.nodes[node].lanes[lane].interrupted = true;
                self.pause(node, None, span);
            }
            None => self.flush(node, lane),
        }
    }

    /// How long the process stops before this turn's output leaves, if it does.
    fn draw_interruption(&mut self, node: usize, lane: usize) -> Option<u64> {
        let (last, turns) = &mut self.nodes[node].turns[lane];
        *turns = if *last == self.time { *turns + 1 } else { 0 };
        *last = self.time;
        let turn = *turns;
        let this = &mut self.interruptions;
        let lane = lane as u16;
        let span = if this.chance > 0 && this.rng.chance(this.chance, 100_000) {
            50 * MS + this.rng.below(600 * MS)
        } else {
            // The first turn from that time on: a script with fewer events has other turns.
            let due = this.script.get_mut(&(node, lane))?;
            let &(at, skip, span) = due.front()?;
            if self.time < at {
                return None;
            }
            if self.time == at && skip > 0 {
                due[0].1 -= 1;
                return None;
            }
            due.pop_front();
            span
        };
        if self.healed || !self.may_silence(NodeSet::only(self.nodes[node].id)) {
            return None;
        }
        let fault = Fault::Interrupt { node, lane, turn, span };
        self.interruptions.done.push((self.time, fault));
        Some(span)
    }

    /// Sends the output of a turn: after the seal, as in the runtime.
    pub(crate) fn flush(&mut self, node: usize, lane: usize) {
        let now = self.nodes[node].clock(self.time);
        let life = self.nodes[node].life;
        let host = &mut self.nodes[node].lanes[lane];
        self.leased.append(&mut host.out.leased);
        for done in host.out.done.drain(..) {
            let answer = Answer { tag: done.tag, outcome: done.outcome, at: done.at };
            let answer = self.awaited.answer(answer);
            let answers = if done.lease_bound { &mut host.reads } else { &mut self.answers };
            answers.push(answer);
        }
        let seal = host.lane.seal(now, !host.reads.is_empty(), &mut host.out);
        if seal != Seal::Waits {
            for mut answer in host.reads.drain(..) {
                // An answer that rests on a lapsed lease must not leave, and the client must not
                // learn whether the op changed anything.
                if seal == Seal::Lost && matches!(answer.outcome, Outcome::Done(_)) {
                    answer.outcome = Outcome::Unknown;
                }
                self.answers.push(answer);
            }
        }
        let incarnation = host.lane.incarnation();
        let control: Vec<_> = host.out.control.drain(..).collect();
        for (name, times) in host.out.probes.drain(..) {
            *self.probes.entry(name).or_default() += times;
        }
        let place = Place { node, life, lane };
        self.published.extend(host.out.published.drain(..).map(|heard| (place, heard)));
        let rejoined = host.out.rejoined.take();
        let mail: Vec<(LaneId, Mail)> = host.out.mail.drain(..).collect();
        let peers = host.out.take_waiting();
        if let Some(incarnation) = rejoined {
            self.nodes[node].lives.push(incarnation);
            self.nodes[node].link += 1;
            self.nodes[node].seats.clear();
        }
        for (tag, answer) in control {
            self.operator_answered(node, tag, answer);
        }
        for (to, mail) in mail {
            // Mail between lanes is in order.
            let at = self.time + 1_000;
            self.schedule(at, Event::Mail { node, life, lane: to.0, mail: Box::new(mail) });
        }
        for peer in peers {
            let waiting = self.nodes[node].lanes[lane].out.peer(peer);
            let mut bytes = std::mem::take(waiting);
            self.transmit(node, lane as u16, peer, incarnation, &bytes);
            if self.nodes[node].life != life {
                return;
            }
            // Give the buffer back, so that the next messages find room.
            bytes.clear();
            *self.nodes[node].lanes[lane].out.peer(peer) = bytes;
        }
        self.rearm(node, lane);
    }

    fn rearm(&mut self, node: usize, lane: usize) {
        let this = &self.nodes[node];
        let deadline = this.lanes[lane].lane.next_deadline();
        if deadline == Instant::NEVER {
            return;
        }
        let at = this.monotonic.world_time(deadline).max(self.time + 1);
        let life = this.life;
        let host = &mut self.nodes[node].lanes[lane];
        if at < host.wake_at {
            host.wake_at = at;
            self.schedule(at, Event::Wake { node, life, lane: lane as u16 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_may_be_due_often_but_not_always() {
        let mut due = DueTurns::default();
        (0..2 * DUE_TURNS_MAX).for_each(|turn| due.count(turn * MS / 1_000));
        let always = std::panic::catch_unwind(move || {
            (0..2 * DUE_TURNS_MAX).for_each(|turn| due.count(1_000 * MS + turn));
        });
        assert!(always.is_err(), "it would be simulated for ever");
    }
}
