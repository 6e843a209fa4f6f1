//! The file format: JSON lines with a header, one line per operation or transaction, and a count
//! at the end.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::collection::CollectionCommand;
use crate::history::{Action, Answer, Bytes, Header, History, Initial, Operation, Outcome};
use crate::txn::{TxnHistory, TxnRecord};
use crate::txn_format::{self, TxnLine};

/// The version of the format that this crate writes, and the only one that it reads.
pub const VERSION: u32 = 1;

const FORMAT: &str = "quorate-history";

/// The longest line that is read, in bytes. A line without an end would otherwise take all
/// memory.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Why a history can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file can't be opened or read.
    #[error("cannot read the history: {0}")]
    Io(#[from] io::Error),
    /// A line breaks the format.
    #[error("line {line}: {reason}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what was expected.
        reason: String,
    },
}

/// Bytes as JSON: a string where they are UTF-8, otherwise `{"hex":"00ff"}`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum BytesText {
    Text(String),
    Hex { hex: String },
}

impl From<&Bytes> for BytesText {
    fn from(bytes: &Bytes) -> Self {
        match std::str::from_utf8(&bytes.0) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Hex { hex: bytes.0.iter().map(|b| format!("{b:02x}")).collect() },
        }
    }
}

impl BytesText {
    pub(crate) fn decode(self) -> Result<Bytes, String> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::Hex { hex } => decode_hex(&hex)
                .map(Bytes)
                .ok_or_else(|| format!("\"hex\" needs pairs of hexadecimal digits, not {hex:?}")),
        }
    }
}

fn decode_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderLine {
    format: String,
    version: u32,
    #[serde(default)]
    initial: InitialText,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    note: String,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum InitialText {
    #[default]
    Absent,
    Any,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    end: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OutcomeText {
    Done,
    Refused,
    Unknown,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationLine {
    process: u64,
    op: String,
    key: BytesText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<BytesText>,
    /// The outer option tells a missing field from `null`, which means absent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    expected: Option<Option<BytesText>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    words: Option<Vec<BytesText>>,
    invoke: u64,
    #[serde(rename = "return", default, skip_serializing_if = "Option::is_none")]
    returned: Option<u64>,
    outcome: OutcomeText,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    result: Option<Value>,
}

/// Keeps a field that is there with the value `null` apart from a field that is missing.
pub(crate) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Reads the file of a history without transactions.
///
/// # Errors
/// See [`read_history`].
pub fn read_history_file(path: &Path) -> Result<History, ReadError> {
    read_history(BufReader::new(File::open(path)?))
}

/// Reads the file of a history that may hold transactions.
///
/// # Errors
/// See [`read_txn_history`].
pub fn read_txn_history_file(path: &Path) -> Result<TxnHistory, ReadError> {
    read_txn_history(BufReader::new(File::open(path)?))
}

/// Reads a history without transactions.
///
/// # Errors
/// [`ReadError::Line`] names the first line that breaks the format, among others a version that
/// this crate does not know, an answer that the operation can't give, a missing or wrong count at
/// the end, and a transaction.
pub fn read_history(input: impl BufRead) -> Result<History, ReadError> {
    let TxnHistory { header, operations, .. } = read(input, false)?;
    Ok(History { header, operations })
}

/// Reads a history that may hold transactions.
///
/// # Errors
/// As [`read_history`], but for transactions.
pub fn read_txn_history(input: impl BufRead) -> Result<TxnHistory, ReadError> {
    read(input, true)
}

fn read(mut input: impl BufRead, transactions: bool) -> Result<TxnHistory, ReadError> {
    let mut text = Vec::new();
    let mut line = 0;
    let mut history: Option<TxnHistory> = None;
    loop {
        line += 1;
        let fail = |reason: String| ReadError::Line { line, reason };
        text.clear();
        io::Read::take(&mut input, LINE_BYTES_MAX).read_until(b'\n', &mut text)?;
        if text.is_empty() {
            return Err(fail(missing_end(history.is_none())));
        }
        if text.len() as u64 == LINE_BYTES_MAX {
            return Err(fail(format!("the line is longer than {LINE_BYTES_MAX} bytes")));
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let Some(history) = &mut history else {
            let header = parse_header(&text).map_err(fail)?;
            history = Some(TxnHistory { header, ..TxnHistory::default() });
            continue;
        };
        let value: Value = serde_json::from_slice(&text).map_err(|e| fail(not_json(&e)))?;
        if value.get("end").is_some() {
            let end: EndLine = serde_json::from_value(value).map_err(|e| fail(e.to_string()))?;
            let found = history.operations.len() + history.transactions.len();
            if end.end != found as u64 {
                let wanted = end.end;
                let reason = format!("\"end\" says {wanted} operations, but {found} were read");
                return Err(fail(reason));
            }
            require_blank_rest(input, line)?;
            return Ok(std::mem::take(history));
        }
        if value.get(txn_format::MARK).is_some() {
            if !transactions {
                return Err(fail("a transaction, where only operations are expected".to_owned()));
            }
            let record: TxnLine = serde_json::from_value(value).map_err(|e| fail(e.to_string()))?;
            history.transactions.push(txn_format::parse(record).map_err(fail)?);
            continue;
        }
        let operation: OperationLine =
            serde_json::from_value(value).map_err(|e| fail(e.to_string()))?;
        history.operations.push(parse_operation(operation).map_err(fail)?);
    }
}

/// Nothing may follow the count, or it would be ignored in silence.
fn require_blank_rest(mut input: impl BufRead, mut line: usize) -> Result<(), ReadError> {
    let mut text = Vec::new();
    loop {
        line += 1;
        text.clear();
        if io::Read::take(&mut input, LINE_BYTES_MAX).read_until(b'\n', &mut text)? == 0 {
            return Ok(());
        }
        if !text.iter().all(u8::is_ascii_whitespace) {
            let reason = "nothing may follow the line with \"end\"".to_owned();
            return Err(ReadError::Line { line, reason });
        }
    }
}

fn not_json(error: &serde_json::Error) -> String {
    format!("not a JSON object on one line: {error}")
}

fn missing_end(empty: bool) -> String {
    if empty {
        return format!("the file is empty; the first line must be a {FORMAT:?} header");
    }
    "the file ends without the line {\"end\":N}; the recorder was cut off, so operations may be \
     missing and the history can't be judged"
        .to_owned()
}

fn parse_header(text: &[u8]) -> Result<Header, String> {
    let header: HeaderLine = serde_json::from_slice(text).map_err(|e| {
        format!("the first line must be {{\"format\":{FORMAT:?},\"version\":{VERSION}}}: {e}")
    })?;
    if header.format != FORMAT {
        return Err(format!("\"format\" is {:?}, expected {FORMAT:?}", header.format));
    }
    if header.version != VERSION {
        let found = header.version;
        return Err(format!("\"version\" is {found}, this program reads version {VERSION}"));
    }
    let initial = match header.initial {
        InitialText::Absent => Initial::Absent,
        InitialText::Any => Initial::Any,
    };
    Ok(Header { initial, note: header.note })
}

fn parse_operation(line: OperationLine) -> Result<Operation, String> {
    let key = line.key.decode()?;
    let action = match (line.op.as_str(), line.words) {
        ("command", Some(words)) => {
            if line.value.is_some() || line.expected.is_some() || line.by.is_some() {
                return Err("\"command\" takes its arguments in \"words\"".to_owned());
            }
            let words: Result<Vec<Bytes>, String> =
                words.into_iter().map(BytesText::decode).collect();
            Action::Command(CollectionCommand::new(words?)?)
        }
        ("command", None) => return Err("\"command\" needs \"words\"".to_owned()),
        (op, Some(_)) => return Err(format!("{op:?} takes no \"words\"")),
        (op, None) => parse_action(op, line.value, line.expected, line.by)?,
    };
    if line.returned.is_some_and(|returned| returned < line.invoke) {
        return Err("\"return\" lies before \"invoke\"".to_owned());
    }
    let returned = || line.returned.ok_or("\"return\" is missing; only unknown may lack it");
    let outcome = match line.outcome {
        OutcomeText::Done => {
            Outcome::Done { at: returned()?, answer: parse_answer(&action, line.result)? }
        }
        OutcomeText::Refused | OutcomeText::Unknown if line.result.is_some() => {
            return Err("\"result\" is only for the outcome \"done\"".to_owned());
        }
        OutcomeText::Refused => Outcome::Refused { at: returned()? },
        OutcomeText::Unknown => Outcome::Unknown,
    };
    Ok(Operation { process: line.process, key, action, invoke: line.invoke, outcome })
}

fn parse_action(
    op: &str,
    value: Option<BytesText>,
    expected: Option<Option<BytesText>>,
    by: Option<i64>,
) -> Result<Action, String> {
    let fields = (value.is_some(), expected.is_some(), by.is_some());
    let wanted = match op {
        "get" | "del" => (false, false, false),
        "set" | "getset" | "setnx" | "append" => (true, false, false),
        "cas" => (true, true, false),
        "incr" => (false, false, true),
        _ => {
            return Err(format!(
                "\"op\" is {op:?}, expected get, set, del, incr, getset, setnx, cas, append or \
                 command"
            ));
        }
    };
    for (name, found, wanted) in [
        ("value", fields.0, wanted.0),
        ("expected", fields.1, wanted.1),
        ("by", fields.2, wanted.2),
    ] {
        match (found, wanted) {
            (true, false) => return Err(format!("{op:?} takes no {name:?}")),
            (false, true) => return Err(format!("{op:?} needs {name:?}")),
            _ => {}
        }
    }
    let value = value.map(BytesText::decode).transpose()?.unwrap_or_default();
    Ok(match op {
        "get" => Action::Get,
        "set" => Action::Set(value),
        "del" => Action::Del,
        "incr" => Action::Incr(by.unwrap_or_default()),
        "getset" => Action::GetSet(value),
        "setnx" => Action::SetNx(value),
        "append" => Action::Append(value),
        _ => {
            let expected = expected.flatten().map(BytesText::decode).transpose()?;
            Action::Cas { expected, value }
        }
    })
}

fn parse_answer(action: &Action, result: Option<Value>) -> Result<Answer, String> {
    let name = action.name();
    let answer = match (action, result) {
        (Action::Command(_), result) => parse_any(result.unwrap_or(Value::Null), 0)?,
        (Action::Set(_), None) => Answer::Ok,
        (Action::Set(_), Some(Value::String(text))) if text == "OK" => Answer::Ok,
        (_, None) => return Err(format!("{name:?} that was done needs a \"result\"")),
        (Action::Get | Action::GetSet(_), Some(Value::Null)) => Answer::Value(None),
        (Action::Get | Action::GetSet(_), Some(value @ (Value::String(_) | Value::Object(_)))) => {
            let bytes: BytesText = serde_json::from_value(value)
                .map_err(|_| format!("the result of {name:?} is a string or {{\"hex\":...}}"))?;
            Answer::Value(Some(bytes.decode()?))
        }
        (Action::Incr(_), Some(Value::Object(mut fields))) if fields.len() == 1 => {
            match fields.remove("error") {
                Some(Value::String(text)) => Answer::Error(text),
                _ => return Err("an \"incr\" that failed has the result {\"error\":TEXT}".into()),
            }
        }
        (_, Some(Value::Number(number))) => {
            let Some(n) = number.as_i64() else {
                return Err(format!("the result {number} is not a 64-bit integer"));
            };
            Answer::Integer(n)
        }
        (_, Some(other)) => return Err(format!("{name:?} can't have the result {other}")),
    };
    if !action.admits(&answer) {
        return Err(format!("{name:?} can't have the result {answer}"));
    }
    Ok(answer)
}

/// How deep answers of commands nest.
const DEPTH_MAX: u32 = 4;

/// The answer of a command on a collection.
fn parse_any(result: Value, depth: u32) -> Result<Answer, String> {
    let wrong = |result: &Value| Err(format!("no command has the result {result}"));
    Ok(match result {
        Value::Null => Answer::Value(None),
        Value::Number(ref number) => match number.as_i64() {
            Some(number) => Answer::Integer(number),
            None => return wrong(&result),
        },
        Value::Array(items) if depth < DEPTH_MAX => {
            let items = items.into_iter().map(|item| parse_any(item, depth + 1));
            Answer::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Object(ref fields) if fields.len() == 1 && fields.contains_key("error") => {
            match &fields["error"] {
                Value::String(text) => Answer::Error(text.clone()),
                _ => return wrong(&result),
            }
        }
        Value::Object(ref fields) if fields.len() == 1 && fields.contains_key("status") => {
            match &fields["status"] {
                Value::String(text) if text == "OK" => Answer::Ok,
                _ => return wrong(&result),
            }
        }
        Value::String(_) | Value::Object(_) => {
            let bytes: BytesText = serde_json::from_value(result)
                .map_err(|_| "a value is a string or {\"hex\":...}".to_owned())?;
            Answer::Value(Some(bytes.decode()?))
        }
        _ => return wrong(&result),
    })
}

/// Writes a history, an operation or a transaction at a time.
#[derive(Debug)]
pub struct HistoryWriter<W: Write> {
    output: W,
    written: u64,
}

impl<W: Write> HistoryWriter<W> {
    /// Writes the header. Give a buffered `output`; nothing here flushes before
    /// [`HistoryWriter::finish`].
    ///
    /// # Errors
    /// Errors of `output`.
    pub fn new(output: W, header: &Header) -> io::Result<Self> {
        let initial = match header.initial {
            Initial::Absent => InitialText::Absent,
            Initial::Any => InitialText::Any,
        };
        let line = HeaderLine {
            format: FORMAT.to_owned(),
            version: VERSION,
            initial,
            note: header.note.clone(),
        };
        let mut writer = Self { output, written: 0 };
        writer.line(&line)?;
        Ok(writer)
    }

    /// Writes one operation.
    ///
    /// # Errors
    /// Errors of `output`; `InvalidInput` for an answer that the action can't give, which no reader
    /// would accept.
    pub fn write(&mut self, operation: &Operation) -> io::Result<()> {
        if let Outcome::Done { answer, .. } = &operation.outcome
            && !operation.action.admits(answer)
        {
            let reason = format!("{:?} can't have the result {answer}", operation.action.name());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        self.line(&operation_line(operation))?;
        self.written += 1;
        Ok(())
    }

    /// Writes one transaction.
    ///
    /// # Errors
    /// Errors of `output`.
    pub fn write_transaction(&mut self, record: &TxnRecord) -> io::Result<()> {
        self.line(&txn_format::line(record))?;
        self.written += 1;
        Ok(())
    }

    /// Writes the count that makes the history complete, flushes, and gives the output back.
    ///
    /// # Errors
    /// Errors of `output`.
    pub fn finish(mut self) -> io::Result<W> {
        self.line(&EndLine { end: self.written })?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.output, line)?;
        self.output.write_all(b"\n")
    }
}

fn operation_line(operation: &Operation) -> OperationLine {
    let mut words = None;
    let (value, expected, by) = match &operation.action {
        Action::Command(all) => {
            words = Some(all.words().iter().map(BytesText::from).collect());
            (None, None, None)
        }
        Action::Get | Action::Del => (None, None, None),
        Action::Incr(by) => (None, None, Some(*by)),
        Action::Cas { expected, value } => {
            (Some(value.into()), Some(expected.as_ref().map(BytesText::from)), None)
        }
        Action::Set(value)
        | Action::GetSet(value)
        | Action::SetNx(value)
        | Action::Append(value) => (Some(value.into()), None, None),
    };
    let (returned, outcome, result) = match &operation.outcome {
        Outcome::Done { at, answer } => {
            let is_command = words.is_some();
            let result = if is_command { Some(any_value(answer)) } else { answer_value(answer) };
            (Some(*at), OutcomeText::Done, result)
        }
        Outcome::Refused { at } => (Some(*at), OutcomeText::Refused, None),
        Outcome::Unknown => (None, OutcomeText::Unknown, None),
    };
    OperationLine {
        process: operation.process,
        op: operation.action.name().to_owned(),
        key: (&operation.key).into(),
        value,
        expected,
        by,
        words,
        invoke: operation.invoke,
        returned,
        outcome,
        result,
    }
}

/// The answer of a command on a collection.
fn any_value(answer: &Answer) -> Value {
    match answer {
        Answer::Ok => serde_json::json!({ "status": "OK" }),
        Answer::Array(items) => Value::Array(items.iter().map(any_value).collect()),
        other => answer_value(other).unwrap_or(Value::Null),
    }
}

fn answer_value(answer: &Answer) -> Option<Value> {
    match answer {
        Answer::Ok => None,
        Answer::Value(None) => Some(Value::Null),
        Answer::Value(Some(bytes)) => Some(match BytesText::from(bytes) {
            BytesText::Text(text) => Value::String(text),
            BytesText::Hex { hex } => serde_json::json!({ "hex": hex }),
        }),
        Answer::Integer(n) => Some((*n).into()),
        Answer::Error(text) => Some(serde_json::json!({ "error": text })),
        Answer::Array(_) => Some(any_value(answer)),
    }
}
