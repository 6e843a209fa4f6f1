//! Scripts at the front end: the source that a digest stands for, and what a node remembers.
//!
//! A script that runs carries its source, so that it means the same on whatever node and however
//! often it is tried: `EVALSHA` is given it here.

use std::sync::Arc;

use quorate_commands::{Args, Call, OwnedCall, Reply, SCRIPT_DIGEST_BYTES, ServerCommand};
use quorate_machine::mutant;
use quorate_scripts::{NOSCRIPT, runs_without_memory};
use quorate_types::{Now, Publication, Topic};

use crate::backend::Backend;
use crate::dispatch::{Context, Flow};
use crate::frontend::Frontend;
use crate::pending::OOM;

/// The shard channel on which nodes tell each other of scripts that were loaded. What is lost is loaded
/// again by the client that is answered `NOSCRIPT`.
pub(crate) const CHANNEL: &[u8] = b"\0quorate: scripts";

/// Whether a publication is a script that was loaded at another lane or node.
pub(crate) fn is_script(publication: &Publication) -> bool {
    publication.topic == Topic::Shard && *publication.channel == *CHANNEL
}

/// What is told of a script that was loaded: the loading node's incarnation, then the script.
fn told(loader: u64, source: &[u8]) -> Box<[u8]> {
    [&loader.to_le_bytes()[..], source].concat().into()
}

impl Frontend {
    /// Hears of scripts that are loaded at other nodes, once this lane has a client.
    pub(crate) fn hear_of_scripts<B: Backend>(&mut self, now: Now, backend: &mut B) {
        if !self.core.hears_scripts && !self.connections.is_empty() {
            self.core.hears_scripts = true;
            backend.listen(now, Topic::Shard, CHANNEL, 1);
        }
    }

    /// A script was loaded at another lane or node. All lanes of a node share what they remember: what
    /// another lane has loaded is known already, and may have been forgotten since by `SCRIPT FLUSH`.
    pub(crate) fn hear_script<B: Backend>(&mut self, message: &[u8], backend: &B) {
        let Some((loader, source)) = message.split_first_chunk() else { return };
        let loaded_here = u64::from_le_bytes(*loader) == backend.facts().incarnation;
        if !loaded_here || mutant!("resp_script_heard_at_home") {
            self.core.shared.scripts.add(source);
        }
    }
}

const NOTBUSY: Reply<'static> = Reply::error("NOTBUSY No scripts in execution right now.");

impl<B: Backend> Context<'_, B> {
    /// A script that was not rejected as a command.
    pub(crate) fn script(&mut self, call: &Call<'_>) -> Flow {
        let sourced = self.sourced(call);
        let call = sourced.as_ref().map_or(*call, OwnedCall::call);
        if !self.connection.transaction.is_open()
            && let Some(reply) = self.refuse_script(&call, self.connection.numbering.is_some())
        {
            self.reply(call.spec, &reply);
            return Flow::Next;
        }
        self.accept(&call)
    }

    /// `EVALSHA` with the source behind its digest, if this node knows it. The source of `EVAL` is
    /// remembered.
    pub(crate) fn sourced(&mut self, call: &Call<'_>) -> Option<OwnedCall> {
        if !call.spec.name.starts_with("eval") {
            return None;
        }
        let scripts = &self.core.shared.scripts;
        let given = call.args.get(1);
        if !call.names_script() {
            scripts.add(given);
            return None;
        }
        if given.len() != SCRIPT_DIGEST_BYTES {
            return Some(call.with_argument(1, b""));
        }
        let mut script = given.to_ascii_lowercase();
        match scripts.get(given) {
            // An empty script has no source that would tell it from an unknown one.
            Some(source) if source.is_empty() => script.push(b' '),
            Some(source) => script.extend_from_slice(&source),
            None => {}
        }
        Some(call.with_argument(1, &script))
    }

    /// Why a script doesn't run now. What a session calls has a record, which says what became of an
    /// earlier try: that counts, whether this node knows the script or not.
    pub(crate) fn refuse_script(
        &self,
        call: &Call<'_>,
        is_numbered: bool,
    ) -> Option<Reply<'static>> {
        if !call.is_script() {
            return None;
        }
        let source = call.script_source();
        let has_record = is_numbered && call.updates() && !mutant!("resp_unknown_script_unasked");
        if source.is_empty() && call.names_script() && !has_record {
            return Some(NOSCRIPT);
        }
        let may_run = match call.spec.name {
            name if name.starts_with("eval") => runs_without_memory(source),
            // What `FUNCTION` does is known as of any other command.
            name => name.starts_with("function"),
        };
        let lacks = call.updates() && !may_run && self.is_out_of_memory();
        lacks.then(|| Reply::error(OOM))
    }

    /// Whether a call that says how many keys it has names none: a script, or a call with an error.
    pub(crate) fn is_keyless(&self, call: &Call<'_>) -> bool {
        let may_lack_keys = call.is_script() || call.spec.has_movable_keys();
        may_lack_keys && call.keys().next().is_none()
    }

    /// Whether a call runs on this node without an engine: one of single keys can't place a call that
    /// names none.
    pub(crate) fn runs_at_once(&self, call: &Call<'_>) -> bool {
        self.is_keyless(call) && !self.backend.transactional(self.connection.session.database)
    }

    /// `SCRIPT`.
    pub(crate) fn script_command(
        &mut self,
        command: ServerCommand,
        args: Args<'_>,
    ) -> Reply<'static> {
        let scripts = &self.core.shared.scripts;
        match command {
            ServerCommand::ScriptLoad => match quorate_scripts::check(args.get(2)) {
                Ok(()) => {
                    let digest = scripts.add(args.get(2)).0;
                    let message = told(self.backend.facts().incarnation, args.get(2));
                    let (topic, channel) = (Topic::Shard, CHANNEL.into());
                    let publication = Arc::new(Publication { topic, channel, message });
                    self.backend.publish(self.now, &publication);
                    Reply::Bulk(digest.into_bytes().into())
                }
                Err(reply) => reply,
            },
            ServerCommand::ScriptExists => {
                let known = |digest| Reply::Int(i64::from(scripts.get(digest).is_some()));
                Reply::Array(args.iter().skip(2).map(known).collect())
            }
            ServerCommand::ScriptFlush => {
                let modes = [&b"async"[..], b"sync"];
                let is_mode =
                    |word: &[u8]| modes.iter().any(|mode| word.eq_ignore_ascii_case(mode));
                if args.len() > 3 || args.len() == 3 && !is_mode(args.get(2)) {
                    return Reply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option");
                }
                scripts.flush();
                Reply::Ok
            }
            ServerCommand::ScriptKill | ServerCommand::FunctionKill if quorate_scripts::kill() => {
                Reply::Ok
            }
            ServerCommand::ScriptKill | ServerCommand::FunctionKill => NOTBUSY,
            _ if args.get(2).eq_ignore_ascii_case(b"no") => Reply::Ok,
            _ if args.get(2).eq_ignore_ascii_case(b"yes")
                || args.get(2).eq_ignore_ascii_case(b"sync") =>
            {
                Reply::error(
                    "ERR there is no debugger of scripts here; debug the script on a Redis, or have it \
                     return what you want to see",
                )
            }
            _ => Reply::error("ERR Use SCRIPT DEBUG YES/SYNC/NO"),
        }
    }
}
