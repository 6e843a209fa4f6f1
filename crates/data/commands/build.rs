//! Makes the command table: of `commands.txt`, which says who runs each command, and of `facts/*.json`,
//! what Redis states about it.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let table = Table { rows: rows(&root.join("commands.txt")), facts: facts(&root.join("facts")) };
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("table.rs"), table.to_rust()).expect("cargo's directory can be written");
    let redis =
        fs::read_to_string(root.join("redis.txt")).expect("the commands of Redis are listed");
    let redis = list(redis.lines().map(|line| {
        let (name, group) = line.split_once(' ').expect("a name and its group");
        format!("({name:?}, {group:?})")
    }));
    fs::write(out.join("redis.rs"), redis).expect("cargo's directory can be written");
    println!("cargo::rerun-if-changed=redis.txt");
    println!("cargo::rerun-if-changed=commands.txt");
    println!("cargo::rerun-if-changed=facts");
}

/// The words behind the name of each command.
fn rows(path: &Path) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(path).expect("the commands are listed");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let row = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().expect("the line is not empty"), words.collect())
    };
    let mut rows = BTreeMap::new();
    for (name, words) in lines.map(row) {
        assert!(rows.insert(name.clone(), words).is_none(), "commands.txt: `{name}` has two lines");
    }
    rows
}

fn facts(folder: &Path) -> BTreeMap<String, Value> {
    let files = fs::read_dir(folder).expect("there are facts");
    let mut facts = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(file.expect("a file").path()).expect("a file of facts");
        let commands: BTreeMap<String, Value> =
            serde_json::from_str(&text).expect("facts are JSON");
        facts.extend(commands);
    }
    facts
}

/// See `table::by_id`.
fn subcommand_id(command: usize, at: usize) -> usize {
    assert!(at < 64, "the number of a subcommand fits into six bits of its id");
    1 << 15 | command << 6 | at
}

struct Table {
    rows: BTreeMap<String, Vec<String>>,
    facts: BTreeMap<String, Value>,
}

impl Table {
    fn to_rust(&self) -> String {
        let mut rust = String::new();
        let commands: Vec<&String> = self.rows.keys().filter(|name| !name.contains('|')).collect();
        let count = commands.len();
        assert!(count <= 512, "the number of a command fits into nine bits of its id");
        writeln!(rust, "pub(super) static TABLE: [Spec; {count}] = [").expect("a string takes it");
        for (number, name) in commands.into_iter().enumerate() {
            let parts = self.rows.keys().filter(|part| part.starts_with(&format!("{name}|")));
            let part =
                |(at, part): (usize, &String)| self.spec(part, subcommand_id(number, at), "[]");
            let parts = list(parts.enumerate().map(part));
            writeln!(rust, "{},", self.spec(name, number, &parts)).expect("a string takes it");
        }
        rust + "];\n"
    }

    fn spec(&self, name: &str, id: usize, subcommands: &str) -> String {
        let facts = self.facts.get(name).unwrap_or_else(|| {
            panic!("nothing is known of `{name}`: run facts.py, or add it to facts/later.json")
        });
        let keys = &facts["keys"];
        let (run, access, split, packed) = self.runs(name);
        format!(
            "Spec {{ id: {id}, name: {name:?}, arity: {}, flags: Flags({}),
            keys: Keys {{ first: {}, last: {}, step: {} }}, categories: Categories({}), tips: &{},
            key_specs: &{}, docs: {}, subcommands: &{subcommands}, access: AccessRule::{access},
            split: Split::{split}, takes_packed: {packed}, run: Run::{run} }}",
            facts["arity"],
            bits("flag", &facts["flags"]),
            keys[0],
            keys[1],
            keys[2],
            bits("category", &facts["categories"]),
            texts(&facts["tips"]),
            list(items(&facts["key_specs"]).map(key_spec)),
            docs(&facts["docs"]),
        )
    }

    /// Who runs a command, what it does to its key, how it comes apart, and whether it takes packed
    /// values only.
    fn runs(&self, name: &str) -> (String, String, String, bool) {
        let mut words: Vec<&str> = self.rows[name].iter().map(String::as_str).collect();
        let packed = words.pop_if(|word| *word == "packed").is_some();
        let (run, access, parts) = match *words {
            ["key", function, access] => (format!("Key(Keyed::One({function}))"), access, "none"),
            ["key", function, access, parts] => {
                (format!("Key(Keyed::One({function}))"), access, parts)
            }
            ["keys", function, access] => {
                (format!("Key(Keyed::Several({function}))"), access, "none")
            }
            ["script", access] => ("Key(Keyed::Script)".into(), access, "none"),
            ["range", function] => (format!("Key(Keyed::Several({function}))"), "read", "none"),
            ["connection"] => {
                (format!("Connection(ConnectionCommand::{})", camel(name)), "read", "none")
            }
            ["server"] => (format!("Server(ServerCommand::{})", camel(name)), "read", "none"),
            ["help"] => ("Help".into(), "read", "none"),
            ["refused"] => ("Refused".into(), "read", "none"),
            ["container"] => ("Container".into(), "read", "none"),
            _ => {
                panic!("commands.txt: the line of `{name}` has another form than those at its top")
            }
        };
        let access = match access {
            "read" | "update" => camel(access),
            function => format!("OfCall({function})"),
        };
        (run, access, camel(parts), packed)
    }
}

fn key_spec(spec: &Value) -> String {
    let begin = match (&spec["index"], &spec["keyword"]) {
        (Value::Null, Value::Null) => "Unknown".into(),
        (Value::Null, keyword) => format!("Keyword({keyword}, {})", spec["from"]),
        (index, _) => format!("Index({index})"),
    };
    let find = match (&spec["last"], &spec["count"]) {
        (Value::Null, Value::Null) => "Unknown".into(),
        (Value::Null, count) => {
            format!(
                "Counted {{ count: {count}, first: {}, step: {} }}",
                spec["first"], spec["step"]
            )
        }
        (last, _) => {
            format!("Range {{ last: {last}, step: {}, limit: {} }}", spec["step"], spec["limit"])
        }
    };
    format!(
        "KeySpec {{ notes: {}, flags: &{}, begin: KeysBegin::{begin}, find: KeysFind::{find} }}",
        option(&spec["notes"]),
        texts(&spec["flags"]),
    )
}

fn docs(docs: &Value) -> String {
    format!(
        "Docs {{ summary: {}, since: {}, group: {}, complexity: {}, flags: &{}, deprecated_since: {},
        replaced_by: {}, history: &{}, arguments: &{} }}",
        docs["summary"],
        docs["since"],
        docs["group"],
        option(&docs["complexity"]),
        texts(&docs["doc_flags"]),
        option(&docs["deprecated_since"]),
        option(&docs["replaced_by"]),
        list(items(&docs["history"]).map(|change| format!("({}, {})", change[0], change[1]))),
        list(items(&docs["arguments"]).map(argument)),
    )
}

fn argument(argument: &Value) -> String {
    format!(
        "Argument {{ name: {}, kind: {}, key_spec: {}, token: {}, summary: {}, since: {},
        deprecated_since: {}, flags: &{}, arguments: &{} }}",
        argument["name"],
        argument["type"],
        option(&argument["key_spec_index"]),
        option(&argument["token"]),
        option(&argument["summary"]),
        option(&argument["since"]),
        option(&argument["deprecated_since"]),
        texts(&argument["flags"]),
        list(items(&argument["arguments"]).map(self::argument)),
    )
}

/// The items of a list; none where there is no list.
fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A list of texts or numbers, which JSON writes as Rust does.
fn texts(value: &Value) -> String {
    list(items(value))
}

fn list(items: impl Iterator<Item: Display>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    format!("[{}]", items.join(", "))
}

fn option(value: &Value) -> String {
    if value.is_null() { "None".into() } else { format!("Some({value})") }
}

fn bits(module: &str, names: &Value) -> String {
    let name = |name: &Value| name.as_str().expect("a name").trim_start_matches('@').to_uppercase();
    let bits: Vec<_> =
        items(names).map(|bit| format!("{module}::{}", name(bit).replace('-', "_"))).collect();
    if bits.is_empty() { "0".into() } else { bits.join(" | ") }
}

/// The name of a variant: `ConfigGet` of `config|get`.
fn camel(name: &str) -> String {
    let words = name.split(['|', '-', '_']);
    words.map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}
