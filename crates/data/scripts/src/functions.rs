//! Libraries of functions: `FUNCTION` and `FCALL`.
//!
//! The libraries of a keyspace are the value of one key ([`LIBRARIES_KEY`]), which only these commands
//! touch. So a library is replicated as data is, is there as long as data is, and `FCALL` sees the
//! library and the keys as of one moment: it reads the key in its own transaction.

use mlua::Function;
use quorate_commands::{
    Args, LIBRARIES_KEY, Notes, Reply, Spec, glob_match, libraries_dump, parse_libraries_dump,
};
use quorate_machine::{Change, ValueKind, Verdict, Workspace};
use quorate_types::UnixMillis;
use quorate_wire::{Malformed, Reader, Writer};

use crate::limits;
use crate::vm::{self, Script};

/// What a function may do: bits of [`Described::flags`].
pub(crate) const FLAGS: [&str; 5] =
    ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];
const NO_WRITES: u8 = 1;

/// A function as its library describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Described {
    pub(crate) name: Vec<u8>,
    pub(crate) flags: u8,
    pub(crate) description: Option<Vec<u8>>,
}

impl Described {
    /// Whether a client may call it that: in any case.
    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// A function that a library has registered.
pub(crate) struct Registered {
    pub(crate) described: Described,
    pub(crate) callback: Function,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Library {
    name: Vec<u8>,
    functions: Vec<Described>,
    code: Vec<u8>,
}

type Answer = std::result::Result<Reply<'static>, Reply<'static>>;

fn failure<T>(text: impl Into<String>) -> std::result::Result<T, Reply<'static>> {
    Err(Reply::Error(text.into().into()))
}

/// `FCALL` and the subcommands of `FUNCTION`.
pub(crate) fn run(
    spec: &'static Spec,
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
    notes: &mut Notes,
) -> Verdict<Reply<'static>> {
    if spec.name.starts_with("fcall") {
        return call(spec, args, now, workspace, notes);
    }
    let answer = match spec.name {
        "function|load" => load(args, workspace),
        "function|delete" => delete(args, workspace),
        "function|flush" => flush(args, workspace),
        "function|list" => list(args, workspace),
        "function|dump" => dump(workspace),
        "function|restore" => restore(args, workspace),
        _ => stats(workspace),
    };
    Verdict::Commit(answer.unwrap_or_else(|error| error))
}

/// `FCALL name numkeys key ... argument ...`.
fn call(
    spec: &'static Spec,
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
    notes: &mut Notes,
) -> Verdict<Reply<'static>> {
    let libraries = match read(workspace) {
        Ok(libraries) => libraries,
        Err(reply) => return Verdict::Commit(reply),
    };
    let named = args.get(1);
    let found = libraries.iter().find_map(|library| {
        let function = library.functions.iter().find(|function| function.is_called(named))?;
        Some((library, function.flags & NO_WRITES != 0))
    });
    let Some((library, is_read_only)) = found else {
        return Verdict::Commit(Reply::error("ERR Function not found"));
    };
    let keys = match crate::count_of_keys(args, "ERR Bad number of keys provided") {
        Ok(keys) => keys,
        Err(reply) => return Verdict::Commit(reply),
    };
    if spec.name == "fcall_ro" && !is_read_only {
        return Verdict::Commit(Reply::error(
            "ERR Can not execute a script with write flag using *_ro command.",
        ));
    }
    let script =
        Script { source: body(&library.code), args, keys, is_read_only, function: Some(named) };
    vm::run(&script, now, workspace, notes)
}

/// A library's code behind its first line, whose line end it keeps.
fn body(code: &[u8]) -> &[u8] {
    let end = code.iter().position(|byte| *byte == b'\n').unwrap_or(code.len());
    &code[end..]
}

/// The name that the first line says.
fn name_of(code: &[u8]) -> std::result::Result<Vec<u8>, Reply<'static>> {
    if !code.starts_with(b"#!") {
        return failure("ERR Missing library metadata");
    }
    let Some(end) = code.iter().position(|byte| *byte == b'\n') else {
        return failure("ERR Invalid library metadata");
    };
    let line = String::from_utf8_lossy(&code[2..end]).into_owned();
    let (engine, metadata) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
    let mut name = None;
    for word in metadata.split_whitespace() {
        let Some(value) = word.strip_prefix("name=") else {
            return failure(format!("ERR Invalid metadata value given: {word}"));
        };
        // A name has no blanks, so quotes can only stand around it.
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        if name.replace(quoted.unwrap_or(value).to_owned()).is_some() {
            return failure("ERR Invalid metadata value, name argument was given multiple times");
        }
    }
    let Some(name) = name else { return failure("ERR Library name was not given") };
    if !is_name(name.as_bytes()) {
        return failure(BAD_NAME);
    }
    if !engine.eq_ignore_ascii_case("lua") {
        return failure(format!("ERR Engine '{engine}' not found"));
    }
    Ok(name.into_bytes())
}

pub(crate) const BAD_NAME: &str = "ERR Library names can only contain letters, numbers, or \
                                   underscores(_) and must be at least one character long";

/// Whether a library or a function may be called that.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// `FUNCTION LOAD [REPLACE] code`.
fn load(args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let last = args.len() - 1;
    for option in args.iter().take(last).skip(2) {
        if !option.eq_ignore_ascii_case(b"replace") {
            let option = String::from_utf8_lossy(option);
            return failure(format!("ERR Unknown option given: {option}"));
        }
    }
    let mut libraries = read(workspace)?;
    let name = add(args.get(last), last > 2, &mut libraries)?;
    write(&libraries, workspace)?;
    Ok(Reply::Bulk(name.into()))
}

/// Adds a library, or replaces the one of its name.
fn add(
    code: &[u8],
    replace: bool,
    libraries: &mut Vec<Library>,
) -> std::result::Result<Vec<u8>, Reply<'static>> {
    let name = name_of(code)?;
    let known = libraries.iter().position(|library| library.name == name);
    if known.is_some() && !replace {
        let name = String::from_utf8_lossy(&name);
        return failure(format!("ERR Library '{name}' already exists"));
    }
    let functions = vm::describe(body(code))?;
    if functions.is_empty() {
        return failure("ERR No functions registered");
    }
    let others = libraries.iter().filter(|library| library.name != name);
    for known in others.flat_map(|library| &library.functions) {
        if functions.iter().any(|function| function.is_called(&known.name)) {
            let name = String::from_utf8_lossy(&known.name);
            return failure(format!("ERR Function {name} already exists"));
        }
    }
    let library = Library { name: name.clone(), functions, code: code.to_vec() };
    match known {
        Some(at) => libraries[at] = library,
        None => libraries.push(library),
    }
    Ok(name)
}

/// `FUNCTION DELETE name`.
fn delete(args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let mut libraries = read(workspace)?;
    let before = libraries.len();
    libraries.retain(|library| library.name != args.get(2));
    if libraries.len() == before {
        return failure("ERR Library not found");
    }
    write(&libraries, workspace)?;
    Ok(Reply::Ok)
}

fn too_many(args: Args<'_>) -> String {
    let subcommand = String::from_utf8_lossy(args.get(1));
    format!(
        "ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try FUNCTION HELP."
    )
}

/// `FUNCTION FLUSH [ASYNC | SYNC]`.
fn flush(args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let is_mode =
        |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
    if args.len() > 3 {
        return failure(too_many(args));
    }
    if args.len() == 3 && !is_mode(args.get(2)) {
        return failure("ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
    }
    write(&[], workspace)?;
    Ok(Reply::Ok)
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`.
fn list(args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let (mut pattern, mut with_code) = (None, false);
    let mut options = args.iter().skip(2);
    while let Some(option) = options.next() {
        if !with_code && option.eq_ignore_ascii_case(b"withcode") {
            with_code = true;
        } else if pattern.is_none() && option.eq_ignore_ascii_case(b"libraryname") {
            let Some(given) = options.next() else {
                return failure("ERR library name argument was not given");
            };
            pattern = Some(given);
        } else {
            let option = String::from_utf8_lossy(option);
            return failure(format!("ERR Unknown argument {option}"));
        }
    }
    let libraries = read(workspace)?;
    let matches =
        |library: &&Library| pattern.is_none_or(|pattern| glob_match(pattern, &library.name, true));
    let shown = libraries.iter().filter(matches).map(|library| show(library, with_code));
    Ok(Reply::Array(shown.collect()))
}

fn show(library: &Library, with_code: bool) -> Reply<'static> {
    let bulk = |bytes: &[u8]| Reply::Bulk(bytes.to_vec().into());
    let function = |function: &Described| {
        let description = function.description.as_deref().map_or(Reply::Null, bulk);
        let set = FLAGS.iter().enumerate().filter(|(bit, _)| function.flags >> bit & 1 == 1);
        Reply::Map(vec![
            (Reply::text("name"), bulk(&function.name)),
            (Reply::text("description"), description),
            (Reply::text("flags"), Reply::Set(set.map(|(_, flag)| Reply::status(flag)).collect())),
        ])
    };
    let mut facts = vec![
        (Reply::text("library_name"), bulk(&library.name)),
        (Reply::text("engine"), Reply::text("LUA")),
        (Reply::text("functions"), Reply::Array(library.functions.iter().map(function).collect())),
    ];
    if with_code {
        facts.push((Reply::text("library_code"), bulk(&library.code)));
    }
    Reply::Map(facts)
}

/// `FUNCTION DUMP`.
fn dump(workspace: &mut dyn Workspace) -> Answer {
    let libraries = read(workspace)?;
    let codes = libraries.iter().map(|library| library.code.as_slice());
    Ok(Reply::Bulk(libraries_dump(codes).into()))
}

/// `FUNCTION RESTORE payload [FLUSH | APPEND | REPLACE]`.
fn restore(args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let policy = if args.len() > 3 { args.get(3).to_ascii_lowercase() } else { b"append".to_vec() };
    if args.len() > 4 {
        return failure(too_many(args));
    }
    if ![&b"flush"[..], b"append", b"replace"].contains(&policy.as_slice()) {
        return failure(
            "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
        );
    }
    let codes = parse_libraries_dump(args.get(2))?;
    let mut libraries = if policy == b"flush" { Vec::new() } else { read(workspace)? };
    for code in codes {
        add(&code, policy == b"replace", &mut libraries)?;
    }
    write(&libraries, workspace)?;
    Ok(Reply::Ok)
}

/// `FUNCTION STATS`.
fn stats(workspace: &mut dyn Workspace) -> Answer {
    let libraries = read(workspace)?;
    let functions: usize = libraries.iter().map(|library| library.functions.len()).sum();
    let number = |count: usize| Reply::Int(count as i64);
    let lua = Reply::Map(vec![
        (Reply::text("libraries_count"), number(libraries.len())),
        (Reply::text("functions_count"), number(functions)),
    ]);
    Ok(Reply::Map(vec![
        (Reply::text("running_script"), Reply::Null),
        (Reply::text("engines"), Reply::Map(vec![(Reply::text("LUA"), lua)])),
    ]))
}

/// The libraries of the keyspace.
fn read(workspace: &mut dyn Workspace) -> std::result::Result<Vec<Library>, Reply<'static>> {
    let Some(content) = workspace.read(LIBRARIES_KEY).content else { return Ok(Vec::new()) };
    decode(content.bytes).or_else(|_| {
        failure("ERR the libraries of functions are damaged; FUNCTION FLUSH removes them")
    })
}

fn decode(bytes: &[u8]) -> std::result::Result<Vec<Library>, Malformed> {
    let mut reader = Reader(bytes);
    let mut libraries = Vec::new();
    for _ in 0..reader.u32()? {
        let name = reader.bytes()?.to_vec();
        let mut functions = Vec::new();
        for _ in 0..reader.u32()? {
            let name = reader.bytes()?.to_vec();
            let flags = reader.u8()?;
            let has_description = reader.u8()? == 1;
            let description = reader.bytes()?;
            let description = has_description.then(|| description.to_vec());
            functions.push(Described { name, flags, description });
        }
        libraries.push(Library { name, functions, code: reader.bytes()?.to_vec() });
    }
    reader.end()?;
    Ok(libraries)
}

fn write(
    libraries: &[Library],
    workspace: &mut dyn Workspace,
) -> std::result::Result<(), Reply<'static>> {
    if libraries.is_empty() {
        workspace.write(LIBRARIES_KEY, Change::Delete);
        return Ok(());
    }
    let count = |length: usize| u32::try_from(length).expect("libraries are bounded");
    let mut bytes = Vec::new();
    let mut writer = Writer(&mut bytes);
    writer.u32(count(libraries.len()));
    for library in libraries {
        writer.bytes(&library.name);
        writer.u32(count(library.functions.len()));
        for function in &library.functions {
            writer.bytes(&function.name);
            writer.u8(function.flags);
            writer.u8(u8::from(function.description.is_some()));
            writer.bytes(function.description.as_deref().unwrap_or_default());
        }
        writer.bytes(&library.code);
    }
    if bytes.len() > limits::LIBRARIES_BYTES_MAX {
        return failure(
            "ERR the libraries of a database are longer than 1048576 bytes together, the most that \
             they may be; delete some",
        );
    }
    let change = Change::Set { bytes: bytes.into(), kind: ValueKind::String, expire_at: None };
    workspace.write(LIBRARIES_KEY, change);
    Ok(())
}
