//! What peers and guests send: handshakes, frames, and the messages of each protocol in them, those
//! included that carry what is stored.
//!
//! The first byte chooses the decoder. Nothing may panic, and what was understood is encoded to
//! something that is understood in the same way.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use quorate_commands::{Op, Reply};
use quorate_machine::Command;
use quorate_wire::{
    GuestMessage, Header, Hello, ListingMessage, Malformed, Reader, Writer, read_view, write_view,
};

/// Decodes, encodes and decodes again.
fn again<T: Debug>(
    input: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, Malformed>,
    encode: impl Fn(&T, &mut Vec<u8>),
) {
    let Ok(message) = decode(input) else { return };
    let mut bytes = Vec::new();
    encode(&message, &mut bytes);
    let copy = decode(&bytes).expect("what was encoded can be decoded");
    assert_eq!(format!("{message:?}"), format!("{copy:?}"));
}

/// As [`again`], for a message that borrows from its bytes.
macro_rules! again {
    ($input:expr, $decode:expr, $encode:expr) => {
        if let Ok(message) = $decode($input) {
            let mut bytes = Vec::new();
            $encode(&message, &mut bytes);
            let copy = $decode(&bytes[..]).expect("what was encoded can be decoded");
            assert_eq!(format!("{message:?}"), format!("{copy:?}"));
        }
    };
}

fn view(input: &[u8]) -> Result<quorate_types::View, Malformed> {
    let mut reader = Reader(input);
    let view = read_view(&mut reader)?;
    reader.end()?;
    Ok(view)
}

fn op(input: &[u8]) -> Result<Op, Malformed> {
    Op::decode_any(input).ok_or(Malformed("no op"))
}

fn reply(input: &[u8]) -> Result<Reply<'static>, Malformed> {
    Reply::decode(input).ok_or(Malformed("no reply"))
}

fuzz_target!(|input: &[u8]| {
    let Some((&decoder, input)) = input.split_first() else { return };
    match decoder {
        0 => again!(
            input,
            quorate_hermes::Message::decode,
            |message: &quorate_hermes::Message<'_>, out: &mut Vec<u8>| message
                .encode(&mut Writer(out))
        ),
        1 => {
            let entry = |bytes| quorate_hermes::Entry::decode(&mut Reader(bytes));
            again!(input, entry, |entry: &quorate_hermes::Entry<'_>, out: &mut Vec<u8>| entry
                .encode(&mut Writer(out)));
        }
        2 => again!(
            input,
            quorate_meerkat::Message::decode,
            |message: &quorate_meerkat::Message<'_>, out: &mut Vec<u8>| message
                .encode(&mut Writer(out))
        ),
        3 => again(input, quorate_meerkat::Report::decode, quorate_meerkat::Report::encode),
        4 => again(input, quorate_meerkat::Merged::decode, quorate_meerkat::Merged::encode),
        5 => again(
            input,
            |bytes| quorate_membership::Message::decode(Reader(bytes)),
            |message, out| message.encode(&mut Writer(out)),
        ),
        6 => again(input, GuestMessage::decode, |message, out| message.encode(&mut Writer(out))),
        7 => again(input, op, Op::encode),
        8 => again(input, reply, |reply, out| reply.encode(out)),
        9 => again(input, view, |view, out| write_view(view, &mut Writer(out))),
        10 => {
            let mut rest = input;
            if let Ok(Some(hello)) = Hello::decode(&mut rest) {
                let mut bytes = Vec::new();
                hello.encode(&mut bytes);
                assert_eq!(Hello::decode(&mut &bytes[..]), Ok(Some(hello)));
            }
        }
        11 => again(input, ListingMessage::decode, |message, out| {
            message.encode(&mut Writer(out));
        }),
        12 => again!(
            input,
            quorate_zeus::Message::decode,
            |message: &quorate_zeus::Message<'_>, out: &mut Vec<u8>| message
                .encode(&mut Writer(out))
        ),
        _ => {
            let mut rest = input;
            let mut total = 0;
            while let Ok(Some((header, body))) = Header::split(&mut rest) {
                assert_eq!(body.len(), header.length as usize);
                total += Header::BYTES + body.len();
            }
            assert_eq!(total + rest.len(), input.len(), "bytes were lost or made up");
        }
    }
});
