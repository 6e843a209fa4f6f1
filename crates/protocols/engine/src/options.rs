//! An engine's options as data: configuration files, `--help` and the documentation read the same
//! table.

use alloc::string::String;
use core::fmt::Debug;

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionSpec {
    /// The key in a configuration file.
    pub name: &'static str,
    /// What it takes.
    pub kind: OptionKind,
    /// What it means, in one sentence.
    pub doc: &'static str,
}

/// What an option takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionKind {
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number between two bounds, both included.
    Number {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

/// The value of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionValue<'a> {
    /// Of [`OptionKind::Flag`].
    Flag(bool),
    /// Of [`OptionKind::Choice`].
    Word(&'a str),
    /// Of [`OptionKind::Number`].
    Number(i64),
}

impl core::fmt::Display for OptionValue<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Word(word) => write!(f, "\"{word}\""),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Why a value doesn't fit an option: what is wrong, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl OptionKind {
    /// Whether a value fits.
    ///
    /// # Errors
    /// When it doesn't.
    pub fn check(&self, value: OptionValue<'_>) -> Result<(), Unfit> {
        use alloc::format;
        let (fits, remedy) = match (self, value) {
            (Self::Flag, value) => {
                (matches!(value, OptionValue::Flag(_)), "write true or false".into())
            }
            (Self::Choice(words), value) => {
                let fits = matches!(value, OptionValue::Word(word) if words.contains(&word));
                (fits, format!("choose \"{}\"", words.join("\" or \"")))
            }
            (Self::Number { min, max }, value) => {
                let in_range = |number: i64| {
                    u64::try_from(number).is_ok_and(|number| (*min..=*max).contains(&number))
                };
                let fits = matches!(value, OptionValue::Number(number) if in_range(number));
                (fits, format!("choose {min} to {max}"))
            }
        };
        if fits {
            Ok(())
        } else {
            Err(Unfit { problem: format!("{value} is out of range"), remedy })
        }
    }
}

/// The options of an engine: their table, and the same as typed fields.
pub trait Options: Clone + PartialEq + Eq + Debug + Default {
    /// What a configuration file may say.
    const SPECS: &'static [OptionSpec];

    /// Sets the option of this name to a value that [`OptionKind::check`] has let pass.
    fn set(&mut self, name: &str, value: OptionValue<'_>);

    /// The value of the option of this name.
    fn get(&self, name: &str) -> OptionValue<'static>;
}

/// No options.
impl Options for () {
    const SPECS: &'static [OptionSpec] = &[];

    fn set(&mut self, name: &str, _: OptionValue<'_>) {
        unreachable!("there is no option {name}");
    }

    fn get(&self, name: &str) -> OptionValue<'static> {
        unreachable!("there is no option {name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_fits_its_kind_and_range_only() {
        let (flag, number) = (OptionKind::Flag, OptionKind::Number { min: 1, max: 3 });
        let choice = OptionKind::Choice(&["a", "b"]);
        assert_eq!(flag.check(OptionValue::Flag(true)), Ok(()));
        assert_eq!(choice.check(OptionValue::Word("b")), Ok(()));
        assert_eq!(number.check(OptionValue::Number(3)), Ok(()));
        let wrong = [
            (flag, OptionValue::Number(1), "true or false"),
            (choice, OptionValue::Word("c"), "\"a\" or \"b\""),
            (choice, OptionValue::Flag(true), "\"a\" or \"b\""),
            (number, OptionValue::Number(4), "1 to 3"),
            (number, OptionValue::Number(0), "1 to 3"),
            (number, OptionValue::Number(-1), "1 to 3"),
            (number, OptionValue::Word("2"), "1 to 3"),
        ];
        for (kind, value, remedy) in wrong {
            let unfit = kind.check(value).expect_err("it doesn't fit");
            assert!(unfit.remedy.contains(remedy), "{unfit:?}");
        }
    }
}
