//! Commands that are known and never done, each with the reason and what to do instead.

use crate::Reply;
use crate::spec::Spec;

const CLUSTER: &str = "ERR This instance has cluster support disabled: every node serves every key, so \
                       connect to any of them as to a single Redis";
const MEMBERS: &str = "ERR nodes don't follow one another here, every replica takes writes; members are \
                       added and removed through the admin address, see docs/src/operating.md";
const STREAM: &str = "ERR Quorate has no stream of writes for a Redis replica; copy keys with SCAN, DUMP and \
                      RESTORE";
const USERS: &str = "ERR there is one user, 'default', who may do everything; its password is set with CONFIG \
                     SET requirepass";
const MODULES: &str = "ERR Quorate loads no modules";
const KEYSPACES: &str = "ERR a transaction stays in one database here; read the key with DUMP, SELECT the \
                         other database and RESTORE it there";
const SWAP: &str = "ERR databases can't be exchanged: each is a keyspace with an engine of its own; let \
                    clients SELECT the other one";
const CONFIGURATION: &str = "ERR the configuration file is not rewritten; what CONFIG SET changes lasts until \
                             the node stops, so put it into the file too";

/// What the command answers.
pub(crate) fn refusal(spec: &Spec) -> Reply<'static> {
    let container = spec.name.split('|').next().unwrap_or(spec.name);
    let text = match container {
        "cluster" | "readonly" | "readwrite" | "asking" => CLUSTER,
        "replicaof" | "slaveof" | "failover" => MEMBERS,
        "sync" | "psync" | "replconf" => STREAM,
        "acl" => USERS,
        "module" => MODULES,
        "move" => KEYSPACES,
        "swapdb" => SWAP,
        "config" => CONFIGURATION,
        other => unreachable!("{other} is refused without a reason"),
    };
    Reply::error(text)
}

#[cfg(test)]
mod tests {
    use crate::spec::Run;
    use crate::table::table;

    #[test]
    fn every_refusal_has_a_reason() {
        let rows = table().iter().flat_map(|spec| core::iter::once(spec).chain(spec.subcommands));
        let refused: alloc::vec::Vec<_> =
            rows.filter(|spec| matches!(spec.run, Run::Refused)).map(super::refusal).collect();
        assert!(refused.len() > 30 && refused.iter().all(crate::Reply::is_error));
    }
}
