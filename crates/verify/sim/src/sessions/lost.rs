//! What becomes of calls when what their keyspace had answered may be lost.

use quorate_types::KeyspaceId;

use super::{Answered, Open, SessionClients};
use crate::losses::Losing;

impl SessionClients {
    /// What was answered last may be lost: then a call that is tried again runs again. If a loss may be torn,
    /// what it has done to some of its counters may be there all the same, with its record or without.
    pub(crate) fn power_lost(&mut self, keyspace: KeyspaceId, Losing { loss, torn }: Losing) {
        let is_lost = |answered: &Answered| {
            answered.keyspace == keyspace && loss.takes(answered.at, answered.at)
        };
        for (id, answered) in self.answers.extract_if(.., |_, answered| is_lost(answered)) {
            let halves = u64::from(torn && answered.counted.len() > 1);
            self.torn.extend((halves > 0).then_some(id));
            for (key, count) in answered.counted {
                let counts = self.counts.entry((keyspace, key)).or_default();
                counts.seen.remove(&count);
                let acknowledged = u64::from(answered.is_acknowledged);
                counts.acknowledged -= acknowledged;
                counts.unknown += acknowledged + halves;
            }
        }
        for session in self.clients.iter().filter_map(|client| client.session.as_ref()) {
            // What a shadow had copied of a keyspace in memory may be left without all records of its calls.
            let in_parts = |open: &&Open| {
                open.keyspace == keyspace && (torn && open.keys.len() > 1 || loss.all)
            };
            for (sequence, open) in session.open.iter().filter(|(_, open)| in_parts(open)) {
                self.torn.insert((session.grant.lease, *sequence));
                for key in &open.keys {
                    self.counts.entry((keyspace, key.clone())).or_default().unknown += 1;
                }
            }
        }
    }
}
