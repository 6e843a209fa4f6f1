//! The book's tables of engines are made from the list of engines. `QUORATE_WRITE_DOCS=1 cargo test -p
//! quorate-config --test documentation` writes them anew.

use std::fmt::Write;
use std::path::Path;

use quorate_engine::{Capabilities, OptionKind};
use quorate_node::{EngineConfig, EngineInfo};

const BEGIN: &str = "<!-- engines -->\n";
const END: &str = "<!-- /engines -->";

fn engines() -> impl Iterator<Item = &'static EngineInfo> {
    EngineConfig::ALL.iter().filter(|engine| engine.capabilities.recovers)
}

/// The values of `durability` that an engine takes.
fn durability(can: &Capabilities) -> String {
    if can.durable { "`async`, `sync`" } else { "no" }.to_owned()
}

fn tables() -> String {
    let mut text = String::from(
        "| engine | what it is | several keys at once | calls of sessions | clients that coordinate | \
         partitions | replicas | on disks |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let yes = |can: bool| if can { "yes" } else { "no" };
    for EngineInfo { name, summary, capabilities, .. } in engines() {
        let Capabilities { transactions, guests, calls, partitions, replicated, .. } = capabilities;
        let [transactions, calls, guests, partitions, replicated] =
            [*transactions, calls.is_some(), *guests, *partitions, *replicated].map(yes);
        let durable = durability(capabilities);
        writeln!(
            text,
            "| `{name}` | {summary} | {transactions} | {calls} | {guests} | {partitions} | \
             {replicated} | {durable} |"
        )
        .expect("a text takes all");
    }
    text.push_str(
        "\n| engine | key | values | default | meaning |\n| --- | --- | --- | --- | --- |\n",
    );
    for engine in engines() {
        let defaults = EngineConfig::named(engine.name).expect("it is in the list");
        for option in engine.options {
            let values = match option.kind {
                OptionKind::Flag => "`true`, `false`".to_owned(),
                OptionKind::Choice(words) => {
                    words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
                }
                OptionKind::Number { min, max } => format!("{min} to {max}"),
            };
            let (engine, name, doc) = (engine.name, option.name, option.doc);
            let default = defaults.get(name);
            writeln!(text, "| `{engine}` | `{name}` | {values} | `{default}` | {doc} |")
                .expect("a text takes all");
        }
    }
    text
}

#[test]
fn the_tables_of_engines_are_those_of_the_list() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/configuration.md");
    let text = std::fs::read_to_string(&page).expect("the chapter is there");
    let (head, rest) = text.split_once(BEGIN).expect("the tables have a place");
    let (held, tail) = rest.split_once(END).expect("the place has an end");
    if std::env::var_os("QUORATE_WRITE_DOCS").is_some() {
        std::fs::write(&page, format!("{head}{BEGIN}{}{END}{tail}", tables())).expect("written");
        return;
    }
    assert_eq!(
        held,
        tables(),
        "write them anew: QUORATE_WRITE_DOCS=1 cargo test -p quorate-config"
    );
}
