//! Commands over several keys that run key by key, in a keyspace whose engine has no transactions.

use quorate_commands::{Call, Reply as Answer, Split};
use quorate_machine::{Access, Command};

use crate::backend::Backend;
use crate::connection::Reply;
use crate::dispatch::Context;
use crate::encode::{array_header, encode, integer};
use crate::limits;
use crate::pending::{Gather, Merge};
use crate::shared::add;

impl<B: Backend> Context<'_, B> {
    /// A command that runs key by key.
    pub(crate) fn split(&mut self, call: &Call<'_>) {
        let parts = call.keys().count();
        let update = call.access() != Access::Read;
        let few = parts <= limits::READS_AT_ONCE;
        if few && !update && self.reads_locally(call) && self.read_parts(call, parts) {
            return;
        }
        let session = &self.connection.session;
        let merge = if call.spec.split == Split::Array { Merge::Array } else { Merge::Sum };
        let mut gather = Gather::new(call.spec, session.protocol, merge, parts);
        gather.database = session.database;
        gather.update = update;
        gather.call = Some(call.to_owned_call());
        gather.call_bytes = call.args.buffer.len() + size_of_val(call.args.spans);
        self.connection.gathered_bytes += gather.bytes();
        let number = self.connection.push(Reply::Gather(Box::new(gather)));
        self.connection.updates += u32::from(update);
        self.feed(number);
    }

    /// Answers every part from this node's replica, or none: not what takes long.
    fn read_parts(&mut self, call: &Call<'_>, parts: usize) -> bool {
        let session = &self.connection.session;
        let (protocol, database) = (session.protocol, session.database);
        let (backend, now) = (&mut *self.backend, self.now);
        let array = call.spec.split == Split::Array;
        let mut touched = 0;
        let answered = self.connection.write(|out| {
            let start = out.len();
            if array {
                array_header(parts, out);
            }
            let mut sum = 0;
            for index in 0..parts {
                let read =
                    backend.read(database, now, &call.split(index).call(), |reply| match reply {
                        Answer::Int(number) if !array => sum += number,
                        reply => encode(reply.element(), protocol, out),
                    });
                touched += backend.touched();
                if read.is_none() || touched > limits::READS_AT_ONCE_BYTES {
                    out.truncate(start);
                    return false;
                }
            }
            if !array {
                integer(b':', sum, out);
            }
            true
        });
        self.spend(parts as u64 + touched / limits::BYTES_PER_WORK);
        if answered {
            add(&self.core.stats.local_reads, parts as u64);
            self.bind_to_lease();
        }
        answered
    }

    /// Goes on with the parts of a command: as many as may be in flight at once, and as long as the
    /// connection has time in this turn.
    pub(crate) fn feed(&mut self, number: u64) {
        loop {
            let is_full = self.connection.in_flight_bytes >= self.connection.in_flight_bytes_max;
            let Some(Reply::Gather(gather)) = self.connection.reply(number) else { return };
            if gather.is_complete() {
                return self.finish_gather(number);
            }
            // Later commands must not overtake the parts that are still to come.
            let (wants_more, more) = (gather.wants_more(is_full), gather.next < gather.parts);
            self.connection.barrier |= more;
            if !wants_more {
                return;
            }
            if !self.core.turn.has_time(&self.connection.share) {
                self.connection.feeding = Some(number);
                return self.core.postpone(self.connection, self.id);
            }
            self.feed_one(number);
        }
    }

    /// Answers the next part of a command from this node's replica, or submits it.
    fn feed_one(&mut self, number: u64) {
        let Some(Reply::Gather(gather)) = self.connection.reply(number) else { return };
        let Some(call) = gather.call.take() else { return };
        let part = gather.next;
        gather.next += 1;
        let split = call.call().split(part);
        if !self.read_part(number, part, &split.call()) {
            self.submit_part(number, part, split.call());
        }
        if let Some(Reply::Gather(gather)) = self.connection.reply(number) {
            gather.call = Some(call);
        }
    }

    /// Answers a part of a command from this node's replica, if the part is a read and the replica can
    /// answer it.
    fn read_part(&mut self, number: u64, part: usize, call: &Call<'_>) -> bool {
        if call.access() != Access::Read || !self.reads_locally(call) {
            return false;
        }
        let Some(Reply::Gather(gather)) = self.connection.reply(number) else { return false };
        let (database, before) = (gather.database, gather.bytes());
        let fold = |reply: Answer<'_>| gather.fold(part, Ok(&reply));
        if self.backend.read(database, self.now, call, fold).is_none() {
            return false;
        }
        let after = gather.bytes();
        self.connection.gathered_bytes += after;
        self.connection.gathered_bytes -= before;
        add(&self.core.stats.local_reads, 1);
        self.bind_to_lease();
        let touched = self.backend.touched();
        self.spend(1 + touched / limits::BYTES_PER_WORK);
        true
    }

    fn submit_part(&mut self, number: u64, part: usize, call: Call<'_>) {
        let Some(Reply::Gather(gather)) = self.connection.reply(number) else { return };
        gather.in_flight += 1;
        let database = gather.database;
        let mut bytes = call.key().len();
        if gather.merge == Merge::Array {
            let value = self.backend.memory_usage(database, self.now, call.key());
            bytes += value.unwrap_or(0) as usize;
        }
        let read = self.read_hash(&call);
        self.submit(database, number, part as u32, bytes, read, call);
        self.spend(limits::WORK_OF_OP);
    }

    fn finish_gather(&mut self, number: u64) {
        let Some(Reply::Gather(gather)) = self.take(number) else { return };
        self.connection.gathered_bytes -= gather.bytes();
        self.connection.updates -= u32::from(gather.update);
        if let Some(failure) = gather.failure() {
            self.core.stats.failed(gather.spec, failure.text());
        }
        self.connection.finish(number, |out| gather.encode(out));
    }
}
