//! What runs say of `WATCH`.

use quorate_machine::Outcome;
use quorate_types::{Duration, Timestamp};

use super::Run;
use crate::txn::Step;

impl Run {
    /// A watch of an absent key notes a version above all that was written before, and below all that is
    /// written later; so it fails if there is any such write. It fails for nothing only if time has passed.
    pub(super) fn check_watches(&mut self) {
        let reply = |tag: u64| match self.answered.get(&tag) {
            Some((Outcome::Done(reply), at)) => Some((&reply[0], *at)),
            _ => None,
        };
        let mut watched = [0, 0];
        for (look, (watch, looked_at)) in &self.looks {
            let (Some((noted, noted_at)), Some((found, _))) = (reply(*watch), reply(*look)) else {
                continue;
            };
            if noted.value.is_some() || found.value.is_some() {
                continue;
            }
            let key = self.asked[watch].txn.0[0].key();
            let is_write = |step: &Step| step.key() == key && step.is_update();
            let writers = self.asked.iter().filter(|(_, asked)| asked.txn.0.iter().any(is_write));
            // Without a follower nobody is told of it.
            let told = writers.clone().filter_map(|(tag, _)| self.cluster.stamps.get(tag).copied());
            let sent = self.cluster.subject.written.iter();
            let sent = sent.filter(|(_, written)| written.keys.iter().any(|(k, _)| k == key));
            let writes: Vec<Timestamp> = sent.map(|(version, _)| *version).chain(told).collect();
            let is_any_open = writers.clone().any(|(tag, _)| {
                !matches!(self.answered.get(tag), Some((Outcome::Done(_) | Outcome::Refused(_), _)))
            });
            for (tag, version) in &self.cluster.stamps {
                let asked = &self.asked[tag];
                if !writes.contains(version) {
                    continue;
                }
                let is_before =
                    self.answered.get(tag).is_some_and(|(_, at)| *at < self.asked[watch].invoke);
                assert!(!is_before || *version <= noted.version, "op {watch} missed op {tag}");
                let is_after = asked.invoke > noted_at;
                assert!(!is_after || *version > noted.version, "op {tag} is below op {watch}");
            }
            let holds = found.is_as(noted);
            watched[usize::from(!holds)] += 1;
            let until = self.cluster.stamps.get(look).copied();
            let is_between = |version: &Timestamp| {
                *version > noted.version && until.is_none_or(|until| *version < until)
            };
            let told = |version: &Timestamp| {
                let tag = self.cluster.stamps.iter().find(|(_, stamp)| *stamp == version);
                tag.is_some_and(|(tag, _)| {
                    self.answered.get(tag).is_some_and(|(_, at)| *at < self.asked[look].invoke)
                })
            };
            assert!(
                !holds || !writes.iter().any(|version| is_between(version) && told(version)),
                "op {look} has not seen that {key} was made since op {watch}"
            );
            let may_fail_at =
                self.asked[watch].sent_at + Duration::from_millis(self.plan.collect_ms);
            assert!(
                holds
                    || is_any_open
                    || writes.iter().any(is_between)
                    || looked_at.expect("it was answered") >= may_fail_at,
                "op {look} finds {found:?} after op {watch} has found {noted:?}"
            );
        }
        self.watched = watched;
    }
}
