//! The book's list of commands is made from the table. `QUORATE_WRITE_DOCS=1 cargo test -p
//! quorate-commands --test documentation` writes it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use quorate_commands::{REDIS_COMMANDS, Run, lookup_name, table};

const BEGIN: &str = "<!-- commands -->\n";
const END: &str = "<!-- /commands -->";

/// The commands of a group that are there, those that answer why they are not done, and those that Redis
/// 7.2 has besides.
type Group = [BTreeSet<String>; 3];

fn groups() -> BTreeMap<&'static str, Group> {
    let mut groups = BTreeMap::<_, Group>::new();
    let rows = table().iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands));
    for spec in rows.filter(|spec| !matches!(spec.run, Run::Container | Run::Help)) {
        let place = usize::from(matches!(spec.run, Run::Refused));
        groups.entry(spec.docs.group).or_default()[place].insert(shown(spec.name));
    }
    for (name, group) in REDIS_COMMANDS {
        let is_container = REDIS_COMMANDS.iter().any(|(other, _)| {
            other.strip_prefix(name).is_some_and(|subcommand| subcommand.starts_with('|'))
        });
        if lookup_name(name.as_bytes()).is_none() && !is_container {
            groups.entry(group).or_default()[2].insert(shown(name));
        }
    }
    groups
}

fn shown(name: &str) -> String {
    name.replace('|', " ").to_uppercase()
}

fn list() -> String {
    let mut text = String::new();
    for (group, lists) in groups() {
        text += &format!("**{group}**\n\n");
        for (title, names) in
            ["there", "answered with the reason why not", "not yet"].iter().zip(lists)
        {
            let names = names.into_iter().filter(|name| !name.ends_with(" HELP"));
            let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
            if !names.is_empty() {
                text += &format!("- {title}: {}\n", names.join(", "));
            }
        }
        text += "\n";
    }
    text
}

#[test]
fn the_list_of_commands_is_that_of_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/commands.md");
    let text = std::fs::read_to_string(&page).expect("the chapter is there");
    let (head, rest) = text.split_once(BEGIN).expect("the list has a place");
    let (written, tail) = rest.split_once(END).expect("the list ends");
    let list = list();
    if std::env::var_os("QUORATE_WRITE_DOCS").is_some() {
        std::fs::write(&page, format!("{head}{BEGIN}{list}{END}{tail}")).expect("it is writable");
        return;
    }
    assert!(
        written == list,
        "the list is not that of the table; write it anew: QUORATE_WRITE_DOCS=1 cargo test -p quorate-commands --test documentation"
    );
}
