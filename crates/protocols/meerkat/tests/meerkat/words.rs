//! What happens in words, for traces: messages, and the answers to ops.

use std::fmt::Write as _;

use quorate_machine::Outcome;
use quorate_meerkat::{Body, Kind, Merged, Vote};
use quorate_types::Timestamp;

use crate::entries::entries;
use crate::packets::{Packet, id_of, kind_name};
use crate::support::Cluster;
use crate::txn::Reply;

impl Cluster {
    /// `#3`: attempts are numbered in order of appearance; `0` is no version at all, and other
    /// numbers are floors.
    pub(crate) fn name(&self, id: Timestamp) -> String {
        match self.subject.names.iter().position(|known| *known == id) {
            Some(at) => format!("#{}", at + 1),
            None if id == Timestamp::ZERO => "0".to_owned(),
            None => "floor".to_owned(),
        }
    }

    fn say_body(&self, out: &mut String, body: Option<Body<'_>>) {
        for entry in body.map(entries).unwrap_or_default() {
            write!(out, " {}", entry.key).expect("to a string");
            if let Some(base) = entry.base {
                write!(out, "@{}", self.name(base)).expect("to a string");
            }
            match entry.write {
                None => {}
                Some(None) => out.push_str("=(deleted)"),
                Some(Some(value)) => write!(out, "={value}").expect("to a string"),
            }
        }
    }

    fn say_vote(&self, vote: Vote) -> String {
        match vote {
            Ok(()) => "OK".to_owned(),
            Err(conflict) => {
                format!("{} {}", conflict.reason.name(), self.name(conflict.with))
            }
        }
    }

    /// A message in words.
    pub(crate) fn describe(&self, packet: &Packet) -> String {
        let message = packet.message();
        let kind = &message.kind;
        let mut text =
            format!("{}->{} e{} {}", packet.from, packet.to, packet.epoch, kind_name(kind));
        if let Some(id) = id_of(kind) {
            write!(text, " {}", self.name(id)).expect("to a string");
        }
        let verdict = |ok: bool| if ok { " commit" } else { " abort" };
        match *kind {
            Kind::Validate { body, .. } | Kind::Check { body, .. } => {
                self.say_body(&mut text, Some(body));
            }
            Kind::Vote { vote, .. } | Kind::Checked { result: vote, .. } => {
                write!(text, " {}", self.say_vote(vote)).expect("to a string");
            }
            Kind::Accept { view, ok, .. } => {
                write!(text, " view {view}{}", verdict(ok)).expect("to a string");
            }
            Kind::Accepted { view, .. } | Kind::Superseded { view, .. } => {
                write!(text, " view {view}").expect("to a string");
            }
            Kind::Prepare { view, .. } => write!(text, " view {view}").expect("to a string"),
            Kind::Decided { commit, body, .. } => {
                text.push_str(verdict(commit));
                self.say_body(&mut text, body);
            }
            Kind::Promise { view, vote, accepted, .. } => {
                let vote = vote.map_or("no vote".to_owned(), |vote| self.say_vote(vote));
                write!(text, " view {view}, {vote}").expect("to a string");
                if let Some((view, ok)) = accepted {
                    write!(text, ", accepted in view {view}:{}", verdict(ok)).expect("to a string");
                }
            }
            Kind::Adopt { bytes, .. } => {
                let merged = Merged::decode(bytes).expect("leaders send well-formed records");
                for (key, settled) in &merged.settled {
                    write!(text, " {}{}", self.name(key.id()), verdict(settled.commit))
                        .expect("to a string");
                }
            }
            Kind::Chunk { next: 0, .. } => text.push_str(" last"),
            _ => {}
        }
        text
    }
}

/// An answer in words.
pub(crate) fn describe_outcome(outcome: &Outcome<Reply>) -> String {
    match outcome {
        Outcome::Done(reply) => {
            let mut text = "done".to_owned();
            for seen in reply {
                let value = seen.value.as_deref().unwrap_or("(absent)");
                write!(text, " {}={value}", seen.key).expect("to a string");
            }
            text
        }
        Outcome::Refused(why) => format!("refused, {why:?}"),
        Outcome::Unknown => "unknown".to_owned(),
    }
}
