//! The bytes that say what comes next.

/// What stands between keys.
pub(crate) mod opcode {
    /// In a node of a Redis Cluster: how many keys a slot has.
    pub(crate) const SLOT: u8 = 244;
    pub(crate) const FUNCTION: u8 = 245;
    /// Of candidates of Redis 7.0, which were never released.
    pub(crate) const FUNCTION_EARLY: u8 = 246;
    pub(crate) const MODULE_AUX: u8 = 247;
    pub(crate) const IDLE: u8 = 248;
    pub(crate) const FREQUENCY: u8 = 249;
    pub(crate) const AUX: u8 = 250;
    pub(crate) const SIZES: u8 = 251;
    pub(crate) const EXPIRY_MS: u8 = 252;
    pub(crate) const EXPIRY_S: u8 = 253;
    pub(crate) const DATABASE: u8 = 254;
    pub(crate) const END: u8 = 255;
}

/// What a module writes before each of its parts.
pub(crate) mod part {
    pub(crate) const END: u64 = 0;
    pub(crate) const SIGNED: u64 = 1;
    pub(crate) const UNSIGNED: u64 = 2;
    pub(crate) const FLOAT: u64 = 3;
    pub(crate) const DOUBLE: u64 = 4;
    pub(crate) const STRING: u64 = 5;
}

macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident = $byte:literal, $kind:ident;)*) => {
        /// How a value is written.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Form {
            $($(#[$doc])* $name = $byte,)*
        }

        impl Form {
            /// Every form.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The form that a byte says.
            pub const fn of(byte: u8) -> Option<Self> {
                match byte {
                    $($byte => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The type of a value in this form.
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$name => Kind::$kind,)*
                }
            }
        }
    };
}

forms! {
    /// One string.
    String = 0, String;
    /// Elements, one after the other.
    List = 1, List;
    /// Members, one after the other.
    Set = 2, Set;
    /// Members, each with its score in decimal.
    SortedSetText = 3, SortedSet;
    /// Fields, each with its value.
    Hash = 4, Hash;
    /// Members, each with its score in eight bytes.
    SortedSet = 5, SortedSet;
    /// What a module wrote, marked so that it can be skipped.
    Module = 7, Module;
    /// A zipmap: hashes before Redis 2.6.
    HashZipmap = 9, Hash;
    /// A ziplist.
    ListZiplist = 10, List;
    /// An array of integers of one width.
    SetIntegers = 11, Set;
    /// A ziplist of members and scores.
    SortedSetZiplist = 12, SortedSet;
    /// A ziplist of fields and values.
    HashZiplist = 13, Hash;
    /// Ziplists.
    ListZiplists = 14, List;
    /// A stream of Redis 5 and 6, which doesn't say how many entries it ever had.
    StreamUncounted = 15, Stream;
    /// A listpack of fields and values.
    HashListpack = 16, Hash;
    /// A listpack of members and scores.
    SortedSetListpack = 17, SortedSet;
    /// Listpacks, and long elements on their own.
    ListListpacks = 18, List;
    /// A stream of Redis 7.0.
    Stream = 19, Stream;
    /// A listpack of members.
    SetListpack = 20, Set;
    /// A stream of Redis 7.2, which says when a consumer last got something.
    StreamActive = 21, Stream;
    /// Fields with their expiries, of candidates of Redis 7.4.
    HashExpiringEarly = 22, Hash;
    /// A listpack of fields, values and expiries, of candidates of Redis 7.4.
    HashListpackExpiringEarly = 23, Hash;
    /// Fields with their expiries, counted from the earliest one.
    HashExpiring = 24, Hash;
    /// A listpack of fields, values and expiries, behind the earliest one.
    HashListpackExpiring = 25, Hash;
}

impl Form {
    /// The least version of the format that has this form.
    pub const fn version(self) -> u16 {
        match self {
            Self::SetListpack | Self::StreamActive => 11,
            Self::HashExpiringEarly
            | Self::HashListpackExpiringEarly
            | Self::HashExpiring
            | Self::HashListpackExpiring => 12,
            _ => 10,
        }
    }
}

/// The type of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(missing_docs, reason = "they are the types of Redis")]
pub enum Kind {
    String,
    List,
    Set,
    SortedSet,
    Hash,
    Stream,
    /// One that a module adds.
    Module,
}

impl Kind {
    /// How `TYPE` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "zset",
            Self::Hash => "hash",
            Self::Stream => "stream",
            Self::Module => "module",
        }
    }
}
