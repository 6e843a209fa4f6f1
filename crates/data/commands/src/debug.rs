//! What `DEBUG` answers without the node.

use crate::Reply;

/// What `DEBUG PROTOCOL` answers: a reply of each type.
#[expect(clippy::approx_constant, reason = "it is Redis's number")]
pub fn debug_protocol(kind: &[u8]) -> Reply<'static> {
    let numbers = || (0..3).map(Reply::Int).collect();
    match kind.to_ascii_lowercase().as_slice() {
        b"string" => Reply::Bulk(b"Hello World"[..].into()),
        b"integer" => Reply::Int(12345),
        b"double" => Reply::Double(3.141),
        b"bignum" => Reply::BigNumber("1234567999999999999999999999999999999".into()),
        b"null" => Reply::Null,
        b"array" => Reply::Array(numbers()),
        b"set" => Reply::Set(numbers()),
        b"map" => Reply::Map(
            (0..3).map(|number| (Reply::Int(number), Reply::Bool(number == 1))).collect(),
        ),
        b"verbatim" => Reply::Verbatim("This is a verbatim\nstring".into()),
        b"true" => Reply::Bool(true),
        b"false" => Reply::Bool(false),
        _ => Reply::error(
            "ERR Wrong protocol type name. Please use one of the following: \
             string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
        ),
    }
}
