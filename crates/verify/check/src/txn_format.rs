//! Transactions as lines of a history file.

use quorate_types::{Timestamp, WriterId};
use serde::{Deserialize, Serialize};

use crate::format::{BytesText, present};
use crate::history::Bytes;
use crate::txn::{TxnOp, TxnOutcome, TxnRecord};

/// The field that tells a transaction from an operation.
pub(crate) const MARK: &str = "txn";

/// A timestamp: its version and the number of its writer.
type TimestampText = (u64, u32);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TxnLine {
    process: u64,
    txn: u64,
    invoke: u64,
    #[serde(rename = "return", default, skip_serializing_if = "Option::is_none")]
    returned: Option<u64>,
    outcome: OutcomeText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timestamp: Option<TimestampText>,
    ops: Vec<OpText>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OutcomeText {
    Committed,
    Aborted,
    Unknown,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpText {
    op: String,
    key: BytesText,
    /// The outer option tells a missing field from `null`, which means absent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    value: Option<Option<BytesText>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    values: Option<Vec<BytesText>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<TimestampText>,
}

pub(crate) fn parse(line: TxnLine) -> Result<TxnRecord, String> {
    if line.returned.is_some_and(|returned| returned < line.invoke) {
        return Err("\"return\" lies before \"invoke\"".to_owned());
    }
    let at = || line.returned.ok_or("\"return\" is missing; only unknown may lack it");
    let outcome = match line.outcome {
        OutcomeText::Committed => TxnOutcome::Committed { at: at()? },
        OutcomeText::Aborted => TxnOutcome::Aborted { at: at()? },
        OutcomeText::Unknown => TxnOutcome::Unknown,
    };
    Ok(TxnRecord {
        process: line.process,
        id: line.txn,
        invoke: line.invoke,
        outcome,
        timestamp: line.timestamp.map(timestamp),
        ops: line.ops.into_iter().map(parse_op).collect::<Result<_, _>>()?,
    })
}

fn timestamp((version, writer): TimestampText) -> Timestamp {
    Timestamp::new(version, WriterId(writer))
}

fn parse_op(text: OpText) -> Result<TxnOp, String> {
    let name = text.op.as_str();
    let fields = (text.value.is_some(), text.values.is_some());
    let wanted = match name {
        "read" | "write" | "append" => (true, false),
        "list" => (false, true),
        _ => return Err(format!("\"op\" is {name:?}, expected read, write, append or list")),
    };
    for (field, found, wanted) in [("value", fields.0, wanted.0), ("values", fields.1, wanted.1)] {
        match (found, wanted) {
            (true, false) => return Err(format!("{name:?} takes no {field:?}")),
            (false, true) => return Err(format!("{name:?} needs {field:?}")),
            _ => {}
        }
    }
    if text.version.is_some() && !matches!(name, "read" | "list") {
        return Err(format!("{name:?} takes no \"version\""));
    }
    let key = text.key.decode()?;
    let version = text.version.map(timestamp);
    let value = text.value.flatten().map(BytesText::decode).transpose()?;
    let values = text.values.unwrap_or_default().into_iter().map(BytesText::decode);
    Ok(match (name, value) {
        ("read", value) => TxnOp::Read { key, value, version },
        ("write", value) => TxnOp::Write { key, value },
        ("append", Some(element)) => TxnOp::Append { key, element },
        ("append", None) => return Err("\"append\" needs a \"value\" that is not null".to_owned()),
        _ => TxnOp::ReadList { key, elements: values.collect::<Result<_, _>>()?, version },
    })
}

pub(crate) fn line(record: &TxnRecord) -> TxnLine {
    let (returned, outcome) = match record.outcome {
        TxnOutcome::Committed { at } => (Some(at), OutcomeText::Committed),
        TxnOutcome::Aborted { at } => (Some(at), OutcomeText::Aborted),
        TxnOutcome::Unknown => (None, OutcomeText::Unknown),
    };
    TxnLine {
        process: record.process,
        txn: record.id,
        invoke: record.invoke,
        returned,
        outcome,
        timestamp: record.timestamp.map(timestamp_text),
        ops: record.ops.iter().map(op_text).collect(),
    }
}

fn timestamp_text(timestamp: Timestamp) -> TimestampText {
    (timestamp.version, timestamp.writer.0)
}

fn op_text(op: &TxnOp) -> OpText {
    let value = |value: &Option<Bytes>| Some(value.as_ref().map(BytesText::from));
    let (name, value, values, version) = match op {
        TxnOp::Read { value: seen, version, .. } => ("read", value(seen), None, *version),
        TxnOp::Write { value: stored, .. } => ("write", value(stored), None, None),
        TxnOp::Append { element, .. } => ("append", Some(Some(element.into())), None, None),
        TxnOp::ReadList { elements, version, .. } => {
            ("list", None, Some(elements.iter().map(BytesText::from).collect()), *version)
        }
    };
    OpText {
        op: name.to_owned(),
        key: op.key().into(),
        value,
        values,
        version: version.map(timestamp_text),
    }
}
