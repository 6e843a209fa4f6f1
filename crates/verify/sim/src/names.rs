//! Sets of names, as users give them in lists.

use quorate_machine::Rng;

/// Declares a set: a struct with a flag for each name, which reads and shows itself as a list.
macro_rules! names {
    (
        $(#[$meta:meta])*
        $set:ident, each called $noun:literal:
        $($(#[$doc:meta])* $name:ident,)+
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $set {
            $($(#[$doc])* pub $name: bool,)+
        }

        impl $set {
            /// The empty set.
            pub const NONE: Self = Self { $($name: false,)+ };
            /// The full set.
            pub const ALL: Self = Self { $($name: true,)+ };
            /// The names that [`std::str::FromStr`] understands.
            pub const NAMES: &[&str] = &[$(stringify!($name),)+];

            /// These without `others`.
            pub(crate) const fn without(self, others: Self) -> Self {
                Self { $($name: self.$name && !others.$name,)+ }
            }

            /// A random part of these, except for those that are drawn elsewhere.
            pub(crate) fn draw(
                self,
                elsewhere: Self,
                rng: &mut quorate_machine::Rng,
                chance: (u64, u64),
            ) -> Self {
                Self {
                    $($name: !elsewhere.$name
                        && crate::names::draw(self.$name, rng, chance),)+
                }
            }
        }

        impl std::fmt::Display for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let flags = [$(self.$name,)+];
                let names = Self::NAMES.iter().zip(flags).filter(|(_, on)| *on);
                let names: Vec<&str> = names.map(|(name, _)| *name).collect();
                f.write_str(&if names.is_empty() { "none".to_owned() } else { names.join(",") })
            }
        }

        impl std::str::FromStr for $set {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    "all" => return Ok(Self::ALL),
                    "none" => return Ok(Self::NONE),
                    _ => {}
                }
                let mut set = Self::NONE;
                for name in text.split(',') {
                    match name.trim() {
                        $(stringify!($name) => set.$name = true,)+
                        name => {
                            return Err(format!(
                                "no {} is called '{name}'; use all, none, or some of {}",
                                $noun,
                                Self::NAMES.join(",")
                            ));
                        }
                    }
                }
                Ok(set)
            }
        }
    };
}
pub(crate) use names;

/// Whether a feature is on in a run: by chance, if it may be on.
pub(crate) fn draw(may_be: bool, rng: &mut Rng, (of, all): (u64, u64)) -> bool {
    let drawn = rng.chance(of, all);
    may_be && drawn
}
