//! What the list of engines expands to: enums over them, so that dispatch is static.

/// For each line: how users call the engine as a function, its variant, and its machine.
macro_rules! engines {
    ($(
        $(#[doc = $doc:expr])+
        $(#[cfg($cfg:meta)])?
        $name:ident: $Variant:ident => $machine:ty;
    )+) => {
        /// An engine and its options.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum EngineConfig {
            $($(#[doc = $doc])+ $(#[cfg($cfg)])? $Variant(<$machine as quorate_engine::Engine>::Options),)+
        }

        impl EngineConfig {
            /// Every engine, in the order of the list.
            pub const ALL: &'static [EngineInfo] =
                &[$($(#[cfg($cfg)])? EngineInfo::of::<$machine>(),)+];

            $(
                /// The engine with its default options.
                $(#[cfg($cfg)])?
                pub fn $name() -> Self {
                    Self::$Variant(Default::default())
                }
            )+

            /// The engine of this name, with its default options.
            pub fn named(name: &str) -> Option<Self> {
                $(
                    $(#[cfg($cfg)])?
                    if name == <$machine as quorate_engine::Engine>::NAME {
                        return Some(Self::$name());
                    }
                )+
                None
            }

            /// What users are told of it.
            pub fn info(&self) -> EngineInfo {
                match self {
                    $($(#[cfg($cfg)])? Self::$Variant(_) => EngineInfo::of::<$machine>(),)+
                }
            }

            fn set_checked(&mut self, name: &str, value: quorate_engine::OptionValue<'_>) {
                match self {
                    $($(#[cfg($cfg)])? Self::$Variant(options) => {
                        quorate_engine::Options::set(options, name, value)
                    })+
                }
            }

            /// The value of one of its options.
            pub fn get(&self, name: &str) -> quorate_engine::OptionValue<'static> {
                match self {
                    $($(#[cfg($cfg)])? Self::$Variant(options) => {
                        quorate_engine::Options::get(options, name)
                    })+
                }
            }

            /// Members of the group of each key, if a view decides which those are.
            pub fn group_size(&self) -> Option<usize> {
                match self {
                    $($(#[cfg($cfg)])? Self::$Variant(options) => {
                        <$machine as quorate_engine::Engine>::group_size(options)
                    })+
                }
            }

            fn unfit_for_sync(&self) -> Option<&'static str> {
                match self {
                    $($(#[cfg($cfg)])? Self::$Variant(options) => {
                        <$machine as quorate_engine::Engine>::unfit_for_sync(options)
                    })+
                }
            }

            /// What a guest must know to coordinate its transactions.
            pub(crate) fn guest_terms(&self) -> Vec<u8> {
                match self {
                    $($(#[cfg($cfg)])? Self::$Variant(options) => {
                        <$machine as quorate_engine::Engine>::guest_terms(options)
                    })+
                }
            }

            /// An empty store for it, in which collections of more than so many bytes are large if it
            /// has large ones.
            pub(crate) fn new_store(&self, lanes: u16, packed_bytes_max: usize) -> KeyspaceStore {
                match self {
                    $($(#[cfg($cfg)])? Self::$Variant(options) => {
                        let has_large = <$machine as quorate_engine::Engine>::CAPABILITIES
                            .large_collections;
                        let store = quorate_storage::Store::keeping(lanes, quorate_storage::Keeps {
                            order: <$machine as quorate_engine::Engine>::keeps_order(options),
                            packed_bytes_max: has_large.then_some(packed_bytes_max),
                        });
                        KeyspaceStore::$Variant(store, std::sync::Arc::default())
                    })+
                }
            }
        }

        /// The records of one keyspace on one node, shared by its lanes, and what else those share.
        #[derive(Clone, Debug)]
        pub enum KeyspaceStore {
            $(
                $(#[doc = $doc])+
                $(#[cfg($cfg)])?
                $Variant(
                    std::sync::Arc<quorate_storage::Store<crate::engine::MetaOf<$machine>>>,
                    std::sync::Arc<<$machine as quorate_engine::Engine>::Shared>,
                ),
            )+
        }

        impl KeyspaceStore {
            /// What the engine can do.
            #[inline]
            pub fn capabilities(&self) -> quorate_engine::Capabilities {
                match self {
                    $($(#[cfg($cfg)])? Self::$Variant(..) => {
                        <$machine as quorate_engine::Engine>::CAPABILITIES
                    })+
                }
            }
        }

        /// What an engine says to its sibling on another lane.
        #[derive(Debug)]
        pub enum EngineMail {
            $(
                $(#[doc = $doc])+
                $(#[cfg($cfg)])?
                $Variant(<$machine as quorate_machine::Protocol>::Mail),
            )+
        }

        /// Every probe of a lane and its machines.
        pub const PROBES: &[&[&str]] = &[
            $($(#[cfg($cfg)])? <$machine as quorate_machine::Protocol>::PROBES,)+
            <quorate_membership::Membership as quorate_machine::Protocol>::PROBES,
            <quorate_rifl::LeaseManager as quorate_machine::Protocol>::PROBES,
            crate::forwarding::PROBES,
            crate::pubsub::PROBES,
            crate::tracking::PROBES,
        ];

        /// A message of an engine in words.
        pub(crate) fn describe(
            engine: quorate_types::EngineId,
            body: &[u8],
        ) -> Result<String, quorate_wire::Malformed> {
            $(
                $(#[cfg($cfg)])?
                if engine == <$machine as quorate_engine::Engine>::ID {
                    let message = <$machine as quorate_engine::Engine>::decode(body)?;
                    return Ok(format!("{message:?}"));
                }
            )+
            Err(quorate_wire::Malformed("no engine has this number"))
        }

        /// One lane of an engine.
        pub(crate) enum EngineLane {
            $($(#[cfg($cfg)])? $Variant(Box<$machine>),)+
        }

        $(
            $(#[cfg($cfg)])?
            impl crate::engine::Listed for $machine {
                fn wrap(mail: Self::Mail) -> EngineMail {
                    EngineMail::$Variant(mail)
                }
            }
        )+

        impl EngineLane {
            pub(crate) fn new(
                config: &EngineConfig,
                store: &KeyspaceStore,
                seat: &crate::engine::Seat<'_>,
            ) -> Self {
                match (config, store) {
                    $($(#[cfg($cfg)])? (EngineConfig::$Variant(options), KeyspaceStore::$Variant(store, shared)) => {
                        Self::$Variant(seat.take::<$machine>(options, store, shared))
                    })+
                    _ => unreachable!("a keyspace's store is made for its engine"),
                }
            }

            /// Hands over what the sibling on another lane says.
            pub(crate) fn deliver(
                &mut self,
                now: quorate_types::Now,
                from: quorate_types::LaneId,
                mail: EngineMail,
                sink: &mut crate::engine::Sink<'_>,
            ) {
                match (self, mail) {
                    $($(#[cfg($cfg)])? (Self::$Variant(machine), EngineMail::$Variant(mail)) => {
                        let event = quorate_machine::Event::Mail { from, mail };
                        quorate_machine::Machine::step(&mut **machine, now, event, sink);
                    })+
                    _ => unreachable!("siblings have one engine"),
                }
            }
        }

        /// Does the same with the machine of any engine.
        macro_rules! each {
            ($lane:expr, $bound:ident => $body:expr) => {
                match $lane {
                    $($(#[cfg($cfg)])? crate::engines::EngineLane::$Variant($bound) => $body,)+
                }
            };
        }
        pub(crate) use each;

        /// Does the same with the records of any engine.
        macro_rules! each_store {
            ($keyspace:expr, $bound:ident => $body:expr) => {
                match $keyspace {
                    $($(#[cfg($cfg)])? crate::engines::KeyspaceStore::$Variant($bound, _) => $body,)+
                }
            };
        }
        pub(crate) use each_store;
    };
}
