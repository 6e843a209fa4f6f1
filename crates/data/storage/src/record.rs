//! A record: one allocation that never moves, holding key, protocol words and a small value.
//!
//! ```text
//! Header (32 bytes) | meta words | locked state | key, padded to 8 bytes | value words
//! ```
//! The locked state is plain memory of the protocol's own type: only the lock's holder looks at it,
//! so it needs no atomics, and readers need not notice its changes. It is dropped with the record.
//! Protocols without one (`()`) pay nothing for it.
//!
//! A record with a locked state is written by several lanes, one after the other, and two records
//! by two lanes at once. So that disjoint transactions write no common cache line, such records and
//! their buffers begin on a line of their own and fill their last one. Records without locked state
//! have one writing lane per part of the store; they are packed.
//!
//! The room for the value is fixed when the record is made. A value that outgrows it lies in a
//! buffer of its own, to which the header points; a later, much smaller value lies in the record
//! again. A large value is a collection, which lies where the header points to as well; only the lock's
//! holder looks at it, and readers take a copy of it, which shares its content.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use std::alloc::{Layout, handle_alloc_error};

use quorate_machine::{Collection, Content, Meta, ValueKind, mutant};
use quorate_types::UnixMillis;
use quorate_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::counters::Weight;
use crate::memory::{alloc, dealloc};
use crate::sequence::{Sequence, Version};
use crate::snapshot::{Snapshot, ValueInfo};
use crate::sync::{
    Alive, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Backoff, Exclusive, IS_MODEL, Ordering,
    WrittenOnce, note_write,
};
use crate::words::{bytes_in_place, load_bytes, store_bytes, words_for};

/// The largest value that is given room in its record, in bytes: the memory that a deleted key may
/// keep until its record is removed.
pub(crate) const INLINE_BYTES_MAX: usize = 1024;
/// The most words that a protocol may keep in a record.
pub(crate) const META_WORDS_MAX: usize = 8;
/// How often a reader copies in vain before it takes the lock for its copy.
const COPIES_MAX: u32 = 256;
/// A value lies in at least this part of its buffer, or moves to a smaller one.
const SLACK_MAX: usize = 4;

/// The record has a value.
const PRESENT: u16 = 1;
/// The value lies in a buffer of its own.
const EXTERNAL: u16 = 2;
/// The value expires.
const EXPIRES: u16 = 4;
/// The record was removed.
const REMOVED: u16 = 8;
/// The value is large: the header points to its collection.
const LARGE: u16 = 16;
/// The lowest bit of the value's kind.
const KIND_SHIFT: u32 = 8;

/// The fixed part of a record. `key_len` and `inline_words` never change; the rest changes under
/// the sequence lock.
#[repr(C)]
pub(crate) struct Header {
    sequence: Sequence,
    key_len: u32,
    value_len: AtomicU32,
    inline_words: u16,
    state: AtomicU16,
    expire_at: AtomicU64,
    external: AtomicPtr<Buffer>,
    written: WrittenOnce,
    locked_state: Exclusive,
    alive: Alive,
}

/// The start of a value's own buffer; the words follow it.
#[repr(C, align(8))]
pub(crate) struct Buffer {
    words: usize,
    written: WrittenOnce,
    alive: Alive,
}

/// Points to a record with protocol words of type `M`.
pub(crate) struct RecordPtr<M> {
    header: NonNull<Header>,
    meta: PhantomData<fn() -> M>,
}

impl<M> Clone for RecordPtr<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for RecordPtr<M> {}

/// Memory that a change of a record releases, to be freed once no reader looks at it any more.
pub(crate) struct Garbage {
    buffer: NonNull<Buffer>,
    align: usize,
}

/// A collection that a record points to.
fn as_large(external: NonNull<Buffer>) -> NonNull<Collection> {
    external.cast()
}

/// The size that an allocator with four size classes per doubling gives for `bytes`. Asking for
/// all of it makes the accounting honest and gives values room to grow in place.
fn whole_class(bytes: usize) -> usize {
    let class = match bytes.saturating_sub(1).checked_ilog2() {
        Some(log) if log > 5 => 1 << (log - 2),
        _ => 8,
    };
    bytes.next_multiple_of(class)
}

/// The unit of memory that two processors can't write at the same time without cost, in bytes.
pub(crate) const CACHE_LINE: usize = 64;

impl<M: Meta> RecordPtr<M> {
    const META_AT: usize = {
        assert!(M::WORDS <= META_WORDS_MAX, "a protocol keeps at most eight words per record");
        size_of::<Header>().next_multiple_of(align_of::<AtomicU64>())
    };
    const LOCKED_STATE_AT: usize = (Self::META_AT + M::WORDS * size_of::<AtomicU64>())
        .next_multiple_of(align_of::<M::LockedState>());
    pub(crate) const KEY_AT: usize = Self::LOCKED_STATE_AT + size_of::<M::LockedState>();
    /// The alignment of records and buffers; a power of two that divides their sizes.
    const ALIGN: usize = {
        let least =
            if size_of::<M::LockedState>() == 0 { align_of::<Header>() } else { CACHE_LINE };
        if align_of::<M::LockedState>() > least { align_of::<M::LockedState>() } else { least }
    };

    /// Makes a record without value and with default meta and locked state, with room for a value
    /// of `value_len` bytes (up to [`INLINE_BYTES_MAX`]).
    pub(crate) fn new(key: &[u8], value_len: usize) -> Self {
        assert!(key.len() <= KEY_BYTES_MAX, "a key within its limit");
        let room = if value_len > INLINE_BYTES_MAX { 0 } else { value_len };
        let value_at = Self::value_at(key.len());
        let least = value_at + words_for(room) * size_of::<AtomicU64>();
        let whole = whole_class(least).next_multiple_of(Self::ALIGN);
        let inline_words = (whole - value_at) / size_of::<AtomicU64>();
        let inline_words = u16::try_from(inline_words).expect("key and value sizes are limited");
        let layout = Self::layout(key.len(), inline_words);
        let locked_state = M::LockedState::default();
        // SAFETY: the layout is not empty, it holds a header.
        let Some(header) = NonNull::new(unsafe { alloc(layout) }.cast::<Header>()) else {
            handle_alloc_error(layout)
        };
        note_write(header, layout.size());
        let record = Self { header, meta: PhantomData };
        // SAFETY: the allocation is ours alone and has room, in this order and aligned, for the
        // header, the meta words, the locked state, the key and the value words; each is
        // initialized here.
        unsafe {
            header.write(Header {
                sequence: Sequence::new(),
                key_len: u32::try_from(key.len()).expect("checked against the limit"),
                value_len: AtomicU32::new(0),
                inline_words,
                state: AtomicU16::new(0),
                expire_at: AtomicU64::new(0),
                external: AtomicPtr::new(ptr::null_mut()),
                written: WrittenOnce::new(),
                locked_state: Exclusive::new(),
                alive: Alive::new(),
            });
            let mut packed = [0; META_WORDS_MAX];
            M::default().pack(&mut packed[..M::WORDS]);
            init_words(header.cast::<u8>().add(Self::META_AT), &packed[..M::WORDS]);
            header.cast::<u8>().add(Self::LOCKED_STATE_AT).cast().write(locked_state);
            let key_at = header.cast::<u8>().add(Self::KEY_AT);
            key_at.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            let values = header.cast::<u8>().add(value_at).cast::<AtomicU64>();
            for index in 0..usize::from(inline_words) {
                values.add(index).write(AtomicU64::new(0));
            }
        }
        record
    }

    /// Drops the locked state and frees the record and its value.
    ///
    /// # Safety
    /// The record is alive, and no thread uses it from now on.
    pub(crate) unsafe fn free(self) {
        // SAFETY: the record is alive, by the caller; it was allocated with this layout.
        unsafe {
            let header = self.header.as_ref();
            let layout = Self::layout(header.key_len as usize, header.inline_words);
            if let Some(garbage) = self.take_external() {
                garbage.free();
            }
            self.locked_state_at().drop_in_place();
            header.alive.end();
            dealloc(self.header.as_ptr().cast(), layout);
        }
    }

    /// The record that a pointer from [`RecordPtr::as_ptr`] names.
    ///
    /// # Safety
    /// It is alive for as long as the result is used, and holds protocol words of type `M`.
    pub(crate) unsafe fn from_ptr(header: NonNull<Header>) -> Self {
        Self { header, meta: PhantomData }
    }

    pub(crate) fn as_ptr(self) -> NonNull<Header> {
        self.header
    }

    fn value_at(key_len: usize) -> usize {
        (Self::KEY_AT + key_len).next_multiple_of(align_of::<AtomicU64>())
    }

    fn layout(key_len: usize, inline_words: u16) -> Layout {
        let size = Self::value_at(key_len) + usize::from(inline_words) * size_of::<AtomicU64>();
        Layout::from_size_align(size, Self::ALIGN).expect("key and value sizes are limited")
    }

    fn header<'a>(self) -> &'a Header {
        // SAFETY: the holder of a `RecordPtr` keeps its record alive (`new`, `from_ptr`); every
        // changing field of a header is atomic.
        let header = unsafe { self.header.as_ref() };
        header.alive.assert();
        header
    }

    /// The key.
    #[inline]
    pub(crate) fn key<'a>(self) -> &'a [u8] {
        self.header().written.read();
        let len = self.header().key_len as usize;
        // SAFETY: the key lies there, initialized by `new`, and never changes.
        unsafe { NonNull::slice_from_raw_parts(self.at(Self::KEY_AT), len).as_ref() }
    }

    fn meta_words<'a>(self) -> &'a [AtomicU64] {
        // SAFETY: `new` initialized that many atomic words there; they are never borrowed mutably.
        unsafe { NonNull::slice_from_raw_parts(self.at(Self::META_AT), M::WORDS).as_ref() }
    }

    fn inline_words<'a>(self) -> &'a [AtomicU64] {
        let header = self.header();
        let start = self.at(Self::value_at(header.key_len as usize));
        let count = usize::from(header.inline_words);
        // SAFETY: `new` initialized that many atomic words there; they are never borrowed mutably.
        unsafe { NonNull::slice_from_raw_parts(start, count).as_ref() }
    }

    fn locked_state_at(self) -> NonNull<M::LockedState> {
        self.at(Self::LOCKED_STATE_AT)
    }

    fn garbage(buffer: NonNull<Buffer>) -> Garbage {
        Garbage { buffer, align: Self::ALIGN }
    }

    fn at<T>(self, offset: usize) -> NonNull<T> {
        // SAFETY: every offset passed is one that `new` laid out within the allocation.
        unsafe { self.header.cast::<u8>().add(offset).cast() }
    }

    /// The sequence lock.
    pub(crate) fn sequence<'a>(self) -> &'a Sequence {
        &self.header().sequence
    }

    /// Takes the record's lock. Returns whether the record is still in the store; if not, the lock
    /// is released again. The caller has been pinned since before it found the record; from then on
    /// the lock keeps the record in the store, and so alive.
    #[inline]
    pub(crate) fn lock_present(self) -> bool {
        self.sequence().lock();
        let present = !self.is_removed() || mutant!("storage_removed_record_locked");
        if !present {
            self.sequence().unlock();
        }
        present
    }

    /// Memory in bytes. For the lock's holder.
    pub(crate) fn weight(self) -> Weight {
        let header = self.header();
        let state = header.state.load(Ordering::Relaxed);
        let own = Self::layout(header.key_len as usize, header.inline_words).size();
        let external = match NonNull::new(header.external.load(Ordering::Relaxed)) {
            None => 0,
            // SAFETY: the header points to a living collection, and under the lock it stays.
            Some(external) if state & LARGE != 0 => unsafe { as_large(external).as_ref() }.memory(),
            // SAFETY: the header points to a living buffer, and under the lock it stays.
            Some(buffer) => unsafe { Self::garbage(buffer).bytes() },
        };
        Weight { value: state & PRESENT != 0, expiry: state & EXPIRES != 0, bytes: own + external }
    }
}

/// Operations of readers, which hold no lock.
impl<M: Meta> RecordPtr<M> {
    /// Copies the record as of one moment, and the value's bytes into `value`.
    ///
    /// The caller has been pinned since before it found the record, or keeps it alive otherwise.
    /// Waits for a writer at work, so a holder that has changed the record must not call this.
    #[inline]
    pub(crate) fn snapshot(self, mut value: Option<&mut Vec<u8>>) -> Snapshot<M> {
        match self.sequence().begin_read() {
            Some(version) => match self.copy(version, value.as_deref_mut()) {
                Some(snapshot) => snapshot,
                None => self.snapshot_contended(value),
            },
            None => self.snapshot_contended(value),
        }
    }

    /// Copies the record as of one moment, and its value if that is large. Takes the lock.
    ///
    /// The caller has been pinned since before it found the record, or keeps it alive otherwise.
    pub(crate) fn snapshot_large(self) -> (Snapshot<M>, Option<Collection>) {
        let sequence = self.sequence();
        sequence.lock();
        let version = sequence.begin_read().expect("the lock's holder knows that nobody writes");
        let snapshot = self.copy(version, None).expect("nobody writes while the lock is held");
        // SAFETY: this thread holds the lock and changes nothing.
        let large = unsafe { self.large() }.cloned();
        sequence.unlock();
        (snapshot, large)
    }

    #[cold]
    fn snapshot_contended(self, mut value: Option<&mut Vec<u8>>) -> Snapshot<M> {
        let (sequence, backoff) = (self.sequence(), Backoff::default());
        let copies_max = if IS_MODEL { 2 } else { COPIES_MAX };
        for _ in 0..copies_max {
            backoff.wait();
            if let Some(version) = sequence.begin_read()
                && let Some(snapshot) = self.copy(version, value.as_deref_mut())
            {
                return snapshot;
            }
        }
        // A hot record under a stream of writes: taking the lock bounds the wait.
        sequence.lock();
        let version = sequence.begin_read().expect("the lock's holder knows that nobody writes");
        let snapshot = self.copy(version, value).expect("nobody writes while the lock is held");
        sequence.unlock();
        snapshot
    }

    /// One attempt: `None` if a writer came between.
    #[inline]
    fn copy(self, version: Version, value: Option<&mut Vec<u8>>) -> Option<Snapshot<M>> {
        let header = self.header();
        let state = header.state.load(Ordering::Relaxed);
        let len = header.value_len.load(Ordering::Relaxed) as usize;
        let expire_at = header.expire_at.load(Ordering::Relaxed);
        let mut packed = [0; META_WORDS_MAX];
        for (to, word) in packed.iter_mut().zip(self.meta_words()) {
            *to = word.load(Ordering::Relaxed);
        }
        let external = header.external.load(Ordering::Relaxed);
        // The whole header is compared before any of it is believed (rule 12, pitfall P3): a
        // length goes with its buffer, and meta words make sense only together.
        if !header.sequence.unchanged(version) {
            return None;
        }
        if let Some(value) = value {
            value.clear();
            if state & (PRESENT | LARGE) == PRESENT {
                let words = match NonNull::new(external) {
                    // SAFETY: the header was whole, so this was the record's buffer while this
                    // thread was pinned; it is freed only after the pin is gone.
                    Some(buffer) if state & EXTERNAL != 0 => unsafe { buffer_words(buffer) },
                    _ => self.inline_words(),
                };
                load_bytes(words, len, value);
                if !header.sequence.unchanged(version) && !mutant!("storage_copy_not_compared") {
                    return None;
                }
            }
        }
        Some(Snapshot { meta: M::unpack(&packed[..M::WORDS]), value: info(state, len, expire_at) })
    }
}

/// Operations of the sequence lock's holder. Every change comes after [`Sequence::begin_write`].
impl<M: Meta> RecordPtr<M> {
    pub(crate) fn meta(self) -> M {
        let mut packed = [0; META_WORDS_MAX];
        for (to, word) in packed.iter_mut().zip(self.meta_words()) {
            *to = word.load(Ordering::Relaxed);
        }
        M::unpack(&packed[..M::WORDS])
    }

    pub(crate) fn set_meta(self, meta: M) {
        let mut packed = [0; META_WORDS_MAX];
        meta.pack(&mut packed[..M::WORDS]);
        for (word, from) in self.meta_words().iter().zip(packed) {
            word.store(from, Ordering::Relaxed);
        }
    }

    /// The locked state.
    ///
    /// # Safety
    /// The caller holds the lock, and borrows nothing of the locked state mutably while the result
    /// lives.
    pub(crate) unsafe fn locked_state<'a>(self) -> &'a M::LockedState {
        self.header().locked_state.read();
        // SAFETY: `new` initialized it there. Only the lock's holder gets here, so no other thread
        // changes it, by the caller's promise.
        unsafe { self.locked_state_at().as_ref() }
    }

    /// The locked state, to be changed.
    ///
    /// # Safety
    /// The caller holds the lock, and borrows nothing else of the locked state while the result
    /// lives.
    pub(crate) unsafe fn locked_state_mut<'a>(self) -> &'a mut M::LockedState {
        self.header().locked_state.write();
        note_write(self.locked_state_at(), size_of::<M::LockedState>());
        // SAFETY: as in `locked_state`; it lies in none of the memory that readers look at.
        unsafe { self.locked_state_at().as_mut() }
    }

    /// The value in place.
    ///
    /// # Safety
    /// The caller holds the lock and changes nothing while the result lives.
    pub(crate) unsafe fn content<'a>(self) -> Option<Content<'a>> {
        let header = self.header();
        let state = header.state.load(Ordering::Relaxed);
        let len = header.value_len.load(Ordering::Relaxed) as usize;
        let ValueInfo { kind, expire_at, .. } =
            info(state, len, header.expire_at.load(Ordering::Relaxed))?;
        if state & LARGE != 0 {
            return Some(Content { bytes: &[], kind, expire_at });
        }
        // SAFETY: only the lock's holder stores to value words, and the caller promises not to.
        // Readers at work at the same time only load.
        let bytes = unsafe { bytes_in_place(self.value_words(state), len) };
        Some(Content { bytes, kind, expire_at })
    }

    /// The value, if it is large.
    ///
    /// # Safety
    /// The caller holds the lock and changes nothing while the result lives.
    pub(crate) unsafe fn large<'a>(self) -> Option<&'a Collection> {
        let header = self.header();
        if header.state.load(Ordering::Relaxed) & LARGE == 0 {
            return None;
        }
        let external = NonNull::new(header.external.load(Ordering::Relaxed))?;
        // SAFETY: `set_large` put a collection there, which lives until `take_external`; nobody else
        // looks at it, by the caller's promise.
        Some(unsafe { as_large(external).as_ref() })
    }

    /// The same, to be changed.
    ///
    /// # Safety
    /// The caller holds the lock, and borrows nothing else of the value while the result lives.
    pub(crate) unsafe fn large_mut<'a>(self) -> Option<&'a mut Collection> {
        let header = self.header();
        if header.state.load(Ordering::Relaxed) & LARGE == 0 {
            return None;
        }
        let external = NonNull::new(header.external.load(Ordering::Relaxed))?;
        // SAFETY: as in `large`.
        Some(unsafe { as_large(external).as_mut() })
    }

    /// Makes the value a large one. The garbage it returns must be retired.
    pub(crate) fn set_large(
        self,
        large: Collection,
        expire_at: Option<UnixMillis>,
    ) -> Option<Garbage> {
        let header = self.header();
        let garbage = self.take_external();
        let kind = u16::from(large.kind() as u8) << KIND_SHIFT;
        let expires = if expire_at.is_some() { EXPIRES } else { 0 };
        let large = Box::into_raw(Box::new(large));
        header.external.store(large.cast(), Ordering::Relaxed);
        header.expire_at.store(expire_at.map_or(0, |at| at.0), Ordering::Relaxed);
        header.state.store(PRESENT | LARGE | expires | kind, Ordering::Relaxed);
        self.note_large();
        garbage
    }

    /// Makes the header say how long a large value is, after a change of it.
    pub(crate) fn note_large(self) {
        // SAFETY: the caller holds the lock, and its borrow of the value is over.
        if let Some(large) = unsafe { self.large() } {
            let len = u32::try_from(large.packed_len()).unwrap_or(u32::MAX);
            self.header().value_len.store(len, Ordering::Relaxed);
        }
    }

    /// Takes what the header points to away: a buffer, for which readers may still look, comes back; a
    /// collection, for which they don't, is freed.
    fn take_external(self) -> Option<Garbage> {
        let header = self.header();
        let external = NonNull::new(header.external.load(Ordering::Relaxed))?;
        header.external.store(ptr::null_mut(), Ordering::Relaxed);
        let state = header.state.load(Ordering::Relaxed);
        if state & LARGE == 0 {
            return Some(Self::garbage(external));
        }
        header.state.store(state & !(PRESENT | LARGE), Ordering::Relaxed);
        // SAFETY: `set_large` made it from a box, and the header no longer leads to it.
        drop(unsafe { Box::from_raw(as_large(external).as_ptr()) });
        None
    }

    fn value_words<'a>(self, state: u16) -> &'a [AtomicU64] {
        if state & EXTERNAL == 0 {
            return self.inline_words();
        }
        let buffer = NonNull::new(self.header().external.load(Ordering::Relaxed))
            .expect("an external value has a buffer");
        // SAFETY: under the lock the buffer stays the record's and alive.
        unsafe { buffer_words(buffer) }
    }

    /// Replaces the value by a packed one. The garbage it returns must be retired.
    pub(crate) fn set_content(self, content: Content<'_>) -> Option<Garbage> {
        let len = u32::try_from(content.bytes.len())
            .ok()
            .filter(|&len| len as usize <= VALUE_BYTES_MAX)
            .expect("a value within its limit");
        let header = self.header();
        let (place, garbage) = self.make_room(content.bytes.len());
        store_bytes(self.value_words(place), content.bytes);
        header.value_len.store(len, Ordering::Relaxed);
        let expires = if content.expire_at.is_some() { EXPIRES } else { 0 };
        let forgets = mutant!("storage_record_without_kind");
        let kind = if forgets { ValueKind::String } else { content.kind };
        let kind = u16::from(kind as u8) << KIND_SHIFT;
        header.expire_at.store(content.expire_at.map_or(0, |at| at.0), Ordering::Relaxed);
        header.state.store(PRESENT | expires | kind | place, Ordering::Relaxed);
        garbage
    }

    /// Finds a place for a value of `len` bytes: `EXTERNAL` or 0, and the buffer that the record
    /// no longer needs.
    fn make_room(self, len: usize) -> (u16, Option<Garbage>) {
        let header = self.header();
        let words = words_for(len);
        if header.state.load(Ordering::Relaxed) & LARGE != 0 {
            self.take_external();
        }
        let old = NonNull::new(header.external.load(Ordering::Relaxed));
        if let Some(buffer) = old {
            // SAFETY: under the lock the buffer stays the record's and alive.
            let capacity = unsafe { buffer_words(buffer) }.len();
            if words <= capacity && words.saturating_mul(SLACK_MAX) >= capacity {
                return (EXTERNAL, None);
            }
        }
        let (place, new) = if words <= usize::from(header.inline_words) {
            (0, ptr::null_mut())
        } else {
            (EXTERNAL, new_buffer(words, Self::ALIGN).as_ptr())
        };
        // A reader that believes the pointer has acquired the version that this lock's release
        // makes, and so finds the buffer initialized.
        header.external.store(new, Ordering::Relaxed);
        (place, old.map(Self::garbage))
    }

    pub(crate) fn set_expiry(self, expire_at: Option<UnixMillis>) {
        let header = self.header();
        let state = header.state.load(Ordering::Relaxed);
        if state & PRESENT != 0 {
            let expires = if expire_at.is_some() { EXPIRES } else { 0 };
            header.expire_at.store(expire_at.map_or(0, |at| at.0), Ordering::Relaxed);
            header.state.store((state & !EXPIRES) | expires, Ordering::Relaxed);
        }
    }

    /// Removes the value. The garbage it returns must be retired.
    pub(crate) fn clear(self) -> Option<Garbage> {
        let header = self.header();
        let garbage = self.take_external();
        header.state.store(0, Ordering::Relaxed);
        header.value_len.store(0, Ordering::Relaxed);
        header.expire_at.store(0, Ordering::Relaxed);
        garbage
    }

    /// Marks a record that is no longer in the index.
    pub(crate) fn mark_removed(self) {
        let state = &self.header().state;
        state.store(state.load(Ordering::Relaxed) | REMOVED, Ordering::Relaxed);
    }

    pub(crate) fn is_removed(self) -> bool {
        self.header().state.load(Ordering::Relaxed) & REMOVED != 0
    }
}

/// The meaning of a record's state word for its value.
#[inline]
fn info(state: u16, len: usize, expire_at: u64) -> Option<ValueInfo> {
    (state & PRESENT != 0).then(|| ValueInfo {
        kind: ValueKind::from_u8((state >> KIND_SHIFT) as u8)
            .expect("only the numbers of kinds are stored"),
        expire_at: (state & EXPIRES != 0).then_some(UnixMillis(expire_at)),
        len,
        is_large: state & LARGE != 0,
    })
}

fn buffer_layout(words: usize, align: usize) -> Layout {
    let size = BUFFER_WORDS_AT + words * size_of::<AtomicU64>();
    Layout::from_size_align(size, align).expect("value sizes are limited")
}

/// The offset of the words of a buffer.
const BUFFER_WORDS_AT: usize = size_of::<Buffer>().next_multiple_of(align_of::<AtomicU64>());

/// A buffer with room for at least `words` words, aligned as its record is.
fn new_buffer(words: usize, align: usize) -> NonNull<Buffer> {
    let whole = whole_class(buffer_layout(words, align).size()).next_multiple_of(align);
    let words = (whole - BUFFER_WORDS_AT) / size_of::<AtomicU64>();
    let layout = buffer_layout(words, align);
    // SAFETY: the layout is not empty, it holds the buffer's start.
    let Some(buffer) = NonNull::new(unsafe { alloc(layout) }.cast::<Buffer>()) else {
        handle_alloc_error(layout)
    };
    note_write(buffer, layout.size());
    // SAFETY: the allocation is ours alone and has room for the start and the words; all of it is
    // initialized here.
    unsafe {
        buffer.write(Buffer { words, written: WrittenOnce::new(), alive: Alive::new() });
        let first = buffer.cast::<u8>().add(BUFFER_WORDS_AT).cast::<AtomicU64>();
        for index in 0..words {
            first.add(index).write(AtomicU64::new(0));
        }
    }
    buffer
}

/// The words of a buffer.
///
/// # Safety
/// The buffer is alive as long as the result is used.
unsafe fn buffer_words<'a>(buffer: NonNull<Buffer>) -> &'a [AtomicU64] {
    // SAFETY: `new_buffer` initialized the start and that many words behind it; none of them is
    // ever borrowed mutably.
    unsafe {
        buffer.as_ref().alive.assert();
        buffer.as_ref().written.read();
        let first = buffer.cast::<u8>().add(BUFFER_WORDS_AT).cast();
        NonNull::slice_from_raw_parts(first, buffer.as_ref().words).as_ref()
    }
}

/// Initializes atomic words.
///
/// # Safety
/// There is room for them at `at`, aligned, and no other thread looks at it.
unsafe fn init_words(at: NonNull<u8>, values: &[u64]) {
    for (index, &value) in values.iter().enumerate() {
        // SAFETY: by the caller.
        unsafe { at.cast::<AtomicU64>().add(index).write(AtomicU64::new(value)) };
    }
}

impl Garbage {
    /// Memory in bytes.
    ///
    /// # Safety
    /// The buffer is alive.
    pub(crate) unsafe fn bytes(&self) -> usize {
        // SAFETY: by the caller.
        buffer_layout(unsafe { self.buffer.as_ref() }.words, self.align).size()
    }

    /// Frees the buffer.
    ///
    /// # Safety
    /// The buffer is alive, and no thread uses it from now on.
    pub(crate) unsafe fn free(self) {
        // SAFETY: by the caller; it was allocated with this layout.
        unsafe {
            let layout = buffer_layout(self.buffer.as_ref().words, self.align);
            self.buffer.as_ref().alive.end();
            dealloc(self.buffer.as_ptr().cast(), layout);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_half_a_cache_line() {
        assert_eq!(size_of::<Header>(), 32);
    }

    #[test]
    fn classes_are_four_per_doubling() {
        let classes = [(1, 8), (8, 8), (9, 16), (64, 64), (65, 80), (100, 112), (176, 192)];
        for (bytes, class) in classes {
            assert_eq!(whole_class(bytes), class, "{bytes} bytes");
        }
        assert_eq!(whole_class(1025), 1280);
    }
}
