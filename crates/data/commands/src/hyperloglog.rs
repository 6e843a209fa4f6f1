//! HyperLogLog: how many different elements were added, by about one percent, in at most 12 KiB.
//!
//! A value is a string in the form in which Redis keeps it, so that it can travel between the two:
//!
//! ```text
//! "HYLL" | encoding u8 | 3 unused | cached count u64, little-endian | registers
//! ```
//! There are 2^14 registers. The lower 14 bits of an element's hash choose one, which keeps the
//! longest run of zeros, plus one, that the other 50 bits of any element ended with. Dense, a
//! register has six bits. Sparse, registers are runs: `00llllll` is 1 to 64 zeros, `01llllll
//! llllllll` 1 to 16384 of them, `1vvvvvll` 1 to 4 registers with a value from 1 to 32. A value
//! becomes dense when it would be longer than [`SPARSE_BYTES_MAX`] or a register exceeds 32. The
//! top bit of the cached count says that it is out of date.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, ValueKind, Workspace};
use quorate_types::UnixMillis;

use crate::options::{c_string, is_word};
use crate::string::{Outcome, expiry_of, key_functions, replace_string, string_of};
use crate::{Args, Reply, expiry};

const MAGIC: &[u8] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const ENCODING_AT: usize = 4;
const COUNT_AT: usize = 8;
const HEADER_BYTES: usize = 16;
/// The top bit of the last byte of the cached count.
const STALE: u8 = 0x80;

const REGISTERS: usize = 1 << 14;
const REGISTER_BITS: usize = 6;
/// Bits of a hash that no register's number uses.
const HASH_BITS: usize = 64 - 14;
const DENSE_BYTES: usize = HEADER_BYTES + REGISTERS * REGISTER_BITS / 8;
/// Redis's default of `hll-sparse-max-bytes`.
const SPARSE_BYTES_MAX: usize = 3000;

const ZEROS_MAX: usize = 64;
const VALUE_MAX: u8 = 32;
const VALUES_MAX: usize = 4;
/// Runs looked at to join neighbours after a change.
const JOINS_MAX: usize = 5;

const NOT_VALID: Reply<'static> =
    Reply::error("WRONGTYPE Key is not a valid HyperLogLog string value.");
const CORRUPTED: Reply<'static> = Reply::error("INVALIDOBJ Corrupted HLL object detected");

key_functions! {
    pfadd => |args, _, current| try_pfadd(args, current);
    pfdebug => |args, _, current| try_pfdebug(args, current);
}

/// `PFCOUNT key ...`. It leaves the cached count alone and so is a read, also by what it does.
pub(crate) fn pfcount(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let count = if args.len() == 2 {
        count_of(workspace.read(args.get(1)))
    } else {
        union(args, workspace).map(|union| estimate(&histogram(&union.registers)))
    };
    count.map_or_else(|error| error, |count| Reply::Int(count.cast_signed()))
}

/// `PFMERGE target [source ...]`.
pub(crate) fn pfmerge(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    try_pfmerge(args, workspace).unwrap_or_else(|error| error)
}

/// What `PFMERGE` does to its key if every key is the same one.
pub(crate) fn merge_access(args: Args<'_>) -> Access {
    let target = args.get(1);
    let is_one = args.iter().skip(2).all(|source| source == target);
    if is_one { Access::Update } else { Access::Read }
}

fn try_pfadd<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let held = held(current)?;
    let mut changed = held.is_none();
    let mut sketch = held.map_or_else(Sketch::empty, |bytes| Sketch { bytes: bytes.into() });
    for element in args.iter().skip(2) {
        let (register, value) = place(element);
        changed |= sketch.raise(register, value)?;
    }
    if !changed {
        return Ok((Reply::Int(0), Change::Keep));
    }
    sketch.set_stale();
    Ok((Reply::Int(1), replace_string(sketch.bytes, current)))
}

fn try_pfmerge(
    args: Args<'_>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let union = union(args, workspace)?;
    let target = workspace.read(args.get(1));
    let mut sketch =
        held(target)?.map_or_else(Sketch::empty, |bytes| Sketch { bytes: bytes.into() });
    if union.any_dense {
        sketch.make_dense()?;
    }
    for (register, value) in union.registers.iter().enumerate().filter(|(_, value)| **value > 0) {
        sketch.raise(register, *value)?;
    }
    sketch.set_stale();
    let expire_at = expiry_of(target);
    let change = Change::Set { bytes: sketch.bytes.into(), kind: ValueKind::String, expire_at };
    workspace.write(args.get(1), change);
    Ok(Reply::Ok)
}

fn try_pfdebug<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let bytes = held(current)?.ok_or(Reply::error("ERR The specified key does not exist"))?;
    let mut sketch = Sketch { bytes: bytes.into() };
    let was_sparse = !sketch.is_dense();
    let word = args.get(1);
    let reply = if is_word(word, "GETREG") {
        sketch.make_dense()?;
        let values = (0..REGISTERS).map(|register| dense_value(&sketch.bytes, register));
        Reply::Array(values.map(|value| Reply::Int(value.into())).collect())
    } else if is_word(word, "TODENSE") {
        sketch.make_dense()?;
        Reply::Int(i64::from(was_sparse))
    } else if is_word(word, "ENCODING") {
        return Ok((Reply::status(if was_sparse { "sparse" } else { "dense" }), Change::Keep));
    } else if is_word(word, "DECODE") {
        return Ok((Reply::Bulk(decode(bytes)?.into_bytes().into()), Change::Keep));
    } else {
        let word = expiry::quote(c_string(word));
        return Err(Reply::Error(format!("ERR Unknown PFDEBUG subcommand '{word}'").into()));
    };
    let change = if was_sparse { replace_string(sketch.bytes, current) } else { Change::Keep };
    Ok((reply, change))
}

/// The runs of a sparse value as text.
fn decode(bytes: &[u8]) -> Result<String, Reply<'static>> {
    if bytes[ENCODING_AT] != SPARSE {
        return Err(Reply::error("ERR HLL encoding is not sparse"));
    }
    let mut words = Vec::new();
    let mut rest = &bytes[HEADER_BYTES..];
    while !rest.is_empty() {
        let run = Run::read(rest).ok_or(CORRUPTED)?;
        words.push(match run {
            Run { value: 0, bytes: 1, length } => format!("z:{length}"),
            Run { value: 0, length, .. } => format!("Z:{length}"),
            Run { value, length, .. } => format!("v:{value},{length}"),
        });
        rest = &rest[run.bytes..];
    }
    Ok(words.join(" "))
}

/// The bytes of the key's value, if it has one.
///
/// # Errors
/// If the value is not of this form.
fn held(current: Current<'_>) -> Result<Option<&[u8]>, Reply<'static>> {
    let Some(bytes) = string_of(current)? else { return Ok(None) };
    let is_valid = bytes.len() >= HEADER_BYTES
        && bytes.starts_with(MAGIC)
        && match bytes[ENCODING_AT] {
            DENSE => bytes.len() == DENSE_BYTES,
            encoding => encoding == SPARSE,
        };
    if is_valid { Ok(Some(bytes)) } else { Err(NOT_VALID) }
}

/// The count of one key: the cached one if it is up to date.
fn count_of(current: Current<'_>) -> Result<u64, Reply<'static>> {
    let Some(bytes) = held(current)? else { return Ok(0) };
    let cached = bytes[COUNT_AT..HEADER_BYTES].try_into().expect("eight bytes");
    let cached = u64::from_le_bytes(cached);
    if cached >> 63 == 0 {
        return Ok(cached);
    }
    let mut registers = vec![0; REGISTERS];
    merge(bytes, &mut registers)?;
    Ok(estimate(&histogram(&registers)))
}

/// The largest value of each register in all the keys of a call.
struct Union {
    registers: Vec<u8>,
    any_dense: bool,
}

fn union(args: Args<'_>, workspace: &mut dyn Workspace) -> Result<Union, Reply<'static>> {
    let mut union = Union { registers: vec![0; REGISTERS], any_dense: false };
    for key in args.iter().skip(1) {
        let Some(bytes) = held(workspace.read(key))? else { continue };
        union.any_dense |= bytes[ENCODING_AT] == DENSE;
        merge(bytes, &mut union.registers)?;
    }
    Ok(union)
}

/// Raises each register to its value in these bytes.
fn merge(bytes: &[u8], registers: &mut [u8]) -> Result<(), Reply<'static>> {
    if bytes[ENCODING_AT] == DENSE {
        for (register, held) in registers.iter_mut().enumerate() {
            *held = (*held).max(dense_value(bytes, register));
        }
        return Ok(());
    }
    let mut rest = &bytes[HEADER_BYTES..];
    let mut registers = registers.iter_mut();
    while !rest.is_empty() {
        let run = Run::read(rest).ok_or(CORRUPTED)?;
        if run.length > registers.len() {
            return Err(CORRUPTED);
        }
        registers.by_ref().take(run.length).for_each(|held| *held = (*held).max(run.value));
        rest = &rest[run.bytes..];
    }
    if registers.len() == 0 { Ok(()) } else { Err(CORRUPTED) }
}

/// Some registers with the same value, as a sparse value has them.
#[derive(Clone, Copy)]
struct Run {
    value: u8,
    length: usize,
    /// How many bytes it takes.
    bytes: usize,
}

impl Run {
    /// The run at the beginning of these bytes.
    fn read(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        Some(match first >> 6 {
            0 => Self { value: 0, length: usize::from(first & 0x3f) + 1, bytes: 1 },
            1 => {
                let low = usize::from(*bytes.get(1)?);
                Self { value: 0, length: (usize::from(first & 0x3f) << 8 | low) + 1, bytes: 2 }
            }
            _ => Self {
                value: (first >> 2 & 0x1f) + 1,
                length: usize::from(first & 3) + 1,
                bytes: 1,
            },
        })
    }

    /// Appends so many registers with this value, if there are any.
    fn write(value: u8, length: usize, out: &mut Vec<u8>) {
        match (value, length) {
            (_, 0) => {}
            (0, 1..=ZEROS_MAX) => out.push(length as u8 - 1),
            (0, _) => out.extend_from_slice(&(0x4000 | (length - 1) as u16).to_be_bytes()),
            _ => out.push(0x80 | (value - 1) << 2 | (length - 1) as u8),
        }
    }
}

/// A value that is being changed.
struct Sketch {
    bytes: Vec<u8>,
}

impl Sketch {
    /// Nothing was added to it yet.
    fn empty() -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        bytes[ENCODING_AT] = SPARSE;
        Run::write(0, REGISTERS, &mut bytes);
        Self { bytes }
    }

    fn is_dense(&self) -> bool {
        self.bytes[ENCODING_AT] == DENSE
    }

    fn set_stale(&mut self) {
        self.bytes[HEADER_BYTES - 1] |= STALE;
    }

    /// Gives a register this value unless it has a larger one. Whether it changed.
    fn raise(&mut self, register: usize, value: u8) -> Result<bool, Reply<'static>> {
        if !self.is_dense() {
            if let Some(changed) = self.raise_sparse(register, value)? {
                return Ok(changed);
            }
            self.make_dense()?;
        }
        let changed = value > dense_value(&self.bytes, register);
        if changed {
            set_dense_value(&mut self.bytes, register, value);
        }
        Ok(changed)
    }

    /// The same for a sparse one; `None` if it would have to be dense.
    fn raise_sparse(&mut self, register: usize, value: u8) -> Result<Option<bool>, Reply<'static>> {
        if value > VALUE_MAX {
            return Ok(None);
        }
        let (mut at, mut first, mut previous) = (HEADER_BYTES, 0, HEADER_BYTES);
        let run = loop {
            let run = Run::read(&self.bytes[at..]).ok_or(CORRUPTED)?;
            if register < first + run.length {
                break run;
            }
            previous = at;
            at += run.bytes;
            first += run.length;
        };
        if run.value >= value {
            return Ok(Some(false));
        }
        // The run comes apart into what is before the register, the register, and the rest.
        let mut parts = Vec::with_capacity(5);
        Run::write(run.value, register - first, &mut parts);
        Run::write(value, 1, &mut parts);
        Run::write(run.value, first + run.length - 1 - register, &mut parts);
        let longer = parts.len() > run.bytes;
        if longer && self.bytes.len() + parts.len() - run.bytes > SPARSE_BYTES_MAX {
            return Ok(None);
        }
        self.bytes.splice(at..at + run.bytes, parts);
        self.join_from(previous);
        Ok(Some(true))
    }

    /// Makes one of neighbouring runs with the same value where they fit into one.
    fn join_from(&mut self, mut at: usize) {
        for _ in 0..JOINS_MAX {
            let Some(run) = Run::read(&self.bytes[at..]) else { return };
            let next = Run::read(&self.bytes[at + run.bytes..]).filter(|next| {
                run.value > 0 && next.value == run.value && run.length + next.length <= VALUES_MAX
            });
            let Some(next) = next else {
                at += run.bytes;
                continue;
            };
            let mut joined = Vec::with_capacity(1);
            Run::write(run.value, run.length + next.length, &mut joined);
            self.bytes.splice(at..at + 2, joined);
        }
    }

    /// Gives it the dense form, unless it has it. The cached count stays.
    fn make_dense(&mut self) -> Result<(), Reply<'static>> {
        if self.is_dense() {
            return Ok(());
        }
        let mut registers = vec![0; REGISTERS];
        merge(&self.bytes, &mut registers)?;
        self.bytes.truncate(HEADER_BYTES);
        self.bytes.resize(DENSE_BYTES, 0);
        self.bytes[ENCODING_AT] = DENSE;
        for (register, value) in registers.into_iter().enumerate().filter(|(_, value)| *value > 0) {
            set_dense_value(&mut self.bytes, register, value);
        }
        Ok(())
    }
}

/// The byte in which a register begins, and its lowest bit there.
fn dense_place(register: usize) -> (usize, usize) {
    let bit = register * REGISTER_BITS;
    (HEADER_BYTES + bit / 8, bit % 8)
}

fn dense_value(bytes: &[u8], register: usize) -> u8 {
    let (at, shift) = dense_place(register);
    let next = bytes.get(at + 1).copied().unwrap_or_default();
    (u16::from_le_bytes([bytes[at], next]) >> shift) as u8 & 0x3f
}

fn set_dense_value(bytes: &mut [u8], register: usize, value: u8) {
    let (at, shift) = dense_place(register);
    let [low, high] = (u16::from(value) << shift).to_le_bytes();
    let [low_mask, high_mask] = (0x3f_u16 << shift).to_le_bytes();
    bytes[at] = bytes[at] & !low_mask | low;
    if let Some(next) = bytes.get_mut(at + 1) {
        *next = *next & !high_mask | high;
    }
}

/// The register of an element and the value that it raises it to.
fn place(element: &[u8]) -> (usize, u8) {
    let hash = murmur(element);
    let rest = hash >> (64 - HASH_BITS) | 1 << HASH_BITS;
    (hash as usize % REGISTERS, rest.trailing_zeros() as u8 + 1)
}

/// MurmurHash64A with the seed that Redis uses here.
fn murmur(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    const SHIFT: u32 = 47;
    let mut hash = 0xadc8_3b19 ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(FACTOR);
        word ^= word >> SHIFT;
        hash = (hash ^ word.wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ word).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> SHIFT).wrapping_mul(FACTOR);
    hash ^ hash >> SHIFT
}

/// How many registers have each value.
fn histogram(registers: &[u8]) -> [u32; 64] {
    let mut counts = [0; 64];
    registers.iter().for_each(|value| counts[usize::from(*value & 0x3f)] += 1);
    counts
}

/// How many different elements leave registers like these: the estimator of Ertl, "New cardinality
/// estimation algorithms for HyperLogLog sketches" (2017), algorithm 6.
fn estimate(counts: &[u32; 64]) -> u64 {
    /// 1 / (2 ln 2).
    const ALPHA: f64 = 0.721_347_520_444_481_7;
    let registers = REGISTERS as f64;
    let beyond = f64::from(counts[HASH_BITS + 1]);
    let mut sum = registers * tau((registers - beyond) / registers);
    for value in (1..=HASH_BITS).rev() {
        sum = (sum + f64::from(counts[value])) * 0.5;
    }
    sum += registers * sigma(f64::from(counts[0]) / registers);
    // Halves are rounded up.
    (ALPHA * registers * registers / sum + 0.5) as u64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * y;
        y += y;
        if sum == before {
            return sum;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut sum) = (1.0, 1.0 - x);
    loop {
        x = square_root(x);
        let before = sum;
        y *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * y;
        if sum == before {
            return sum / 3.0;
        }
    }
}

/// The square root of a normal positive number, rounded to the nearest.
fn square_root(x: f64) -> f64 {
    const FRACTION_BITS: i32 = 52;
    let bits = x.to_bits();
    let exponent = (bits >> FRACTION_BITS) as i32 - 1023 - FRACTION_BITS;
    let whole = u128::from(bits & ((1 << FRACTION_BITS) - 1) | 1 << FRACTION_BITS);
    // Even with the exponent, and with a root of 55 bits: two more than the result has.
    let shift = 56 + (exponent & 1);
    let square = whole << shift;
    let root = square.isqrt();
    let inexact = u64::from(root * root != square);
    let scale = ((exponent - shift) / 2 + 1023) as u64;
    (root as u64 | inexact) as f64 * f64::from_bits(scale << FRACTION_BITS)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use quorate_machine::Rng;

    use super::*;

    #[test]
    fn the_square_root_is_the_nearest() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let x = f64::from_bits(rng.next_u64() >> 2 | 1 << 52);
            assert_eq!(square_root(x), x.sqrt(), "{x}");
        }
        assert_eq!((square_root(0.25), square_root(2.0)), (0.5, 2.0_f64.sqrt()));
    }

    #[test]
    fn estimates_are_within_a_few_percent_and_do_not_depend_on_the_form() {
        let (mut sparse, mut dense) = (Sketch::empty(), Sketch::empty());
        dense.make_dense().expect("it is valid");
        let mut checkpoint = 1;
        for number in 1..=100_000_u64 {
            let (register, value) = place(&number.to_le_bytes());
            let changed = sparse.raise(register, value);
            assert_eq!(dense.raise(register, value), changed);
            if number == checkpoint {
                let count = |sketch: &Sketch| {
                    let mut registers = vec![0; REGISTERS];
                    merge(&sketch.bytes, &mut registers).expect("it is valid");
                    estimate(&histogram(&registers))
                };
                assert_eq!(count(&sparse), count(&dense));
                assert!(count(&sparse).abs_diff(number) <= number / 20 + 1, "{number}");
                assert_eq!(sparse.is_dense(), number > 1_500, "{number}");
                checkpoint *= 10;
            }
        }
    }

    #[test]
    fn damaged_values_are_errors() {
        let mut rng = Rng::new(7);
        let mut sketch = Sketch::empty();
        for number in 0..300_u32 {
            let (register, value) = place(&number.to_le_bytes());
            sketch.raise(register, value).expect("it is valid");
        }
        for _ in 0..2_000 {
            let mut bytes = sketch.bytes.clone();
            let at = HEADER_BYTES + rng.below((bytes.len() - HEADER_BYTES) as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
            bytes.truncate(at + rng.below(1_000) as usize);
            // Neither of them panics.
            let _ = merge(&bytes, &mut [0; REGISTERS]);
            let mut damaged = Sketch { bytes };
            let _ = damaged.raise(rng.below(REGISTERS as u64) as usize, rng.below(51) as u8 + 1);
        }
    }
}
