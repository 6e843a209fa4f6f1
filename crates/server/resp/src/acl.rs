//! `ACL`: there is one user, who may do everything once it has given the password.

use quorate_commands::{Args, Reply, ServerCommand, category, lookup, lookup_name, resolve, table};

use crate::backend::Backend;
use crate::dispatch::Context;
use crate::session::{SYNTAX, bulk, failure, quoted};

impl<B: Backend> Context<'_, B> {
    /// One of the subcommands that only look.
    pub(crate) fn acl(&mut self, command: ServerCommand, args: Args<'_>) -> Reply<'static> {
        match command {
            ServerCommand::AclWhoami => Reply::text("default"),
            ServerCommand::AclUsers => Reply::Array(vec![Reply::text("default")]),
            ServerCommand::AclList => {
                let pass = if self.core.shared.has_password() { "#hidden" } else { "nopass" };
                Reply::Array(vec![bulk(format!("user default on {pass} ~* &* +@all").as_bytes())])
            }
            ServerCommand::AclGetuser if args.get(2) != b"default" => Reply::Null,
            ServerCommand::AclGetuser => self.default_user(),
            ServerCommand::AclCat => categories(args),
            _ => dry_run(args),
        }
    }

    fn default_user(&self) -> Reply<'static> {
        let has_password = self.core.shared.has_password();
        let flags: &[&str] = if has_password { &["on"] } else { &["on", "nopass"] };
        let flags = flags.iter().map(|flag| Reply::status(flag)).collect();
        Reply::Map(vec![
            (Reply::text("flags"), Reply::Set(flags)),
            (Reply::text("passwords"), Reply::Array(Vec::new())),
            (Reply::text("commands"), Reply::text("+@all")),
            (Reply::text("keys"), Reply::text("~*")),
            (Reply::text("channels"), Reply::text("&*")),
            (Reply::text("selectors"), Reply::Array(Vec::new())),
        ])
    }
}

/// `ACL CAT [category]`.
fn categories(args: Args<'_>) -> Reply<'static> {
    let all = || {
        let every = quorate_commands::Categories(u32::MAX >> (31 - category::SCRIPTING.ilog2()));
        every.names().map(|name| &name[1..])
    };
    match args.len() {
        2 => Reply::Array(all().map(Reply::text).collect()),
        3 => {
            let wanted = args.get(2);
            if !all().any(|name| name.as_bytes().eq_ignore_ascii_case(wanted)) {
                return failure(format!("ERR Unknown category '{}'", quoted(wanted)));
            }
            let rows =
                table().iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands));
            let of_it = rows.filter(|spec| {
                let mut names = spec.categories.names();
                names.any(|name| name.as_bytes()[1..].eq_ignore_ascii_case(wanted))
            });
            Reply::Array(of_it.map(|spec| Reply::text(spec.name)).collect())
        }
        _ => SYNTAX,
    }
}

/// `ACL DRYRUN user command [argument ...]`.
fn dry_run(args: Args<'_>) -> Reply<'static> {
    if args.get(2) != b"default" {
        return failure(format!("ERR User '{}' not found", quoted(args.get(2))));
    }
    let command = Args { spans: &args.spans[3..], ..args };
    if lookup(command.get(0)).or_else(|| lookup_name(command.get(0))).is_none() {
        return failure(format!("ERR Command '{}' not found", quoted(command.get(0))));
    }
    resolve(command).map_or_else(|error| error, |_| Reply::Ok)
}
