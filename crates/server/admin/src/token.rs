//! The token: an operator must know it to change anything. It lies in a file that only its owner
//! can read, so that permission to read the file is permission to change the cluster.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Random words of 64 bits in a token that is made here.
const WORDS: usize = 4;
/// Shortest and longest token that an operator may choose, in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 16..=1024;
/// Bits that a file's mode must not have: any permission for users other than its owner.
const OTHERS: u32 = 0o077;

/// A token and the file that has it.
pub struct Token {
    text: String,
    file: PathBuf,
}

/// The reasons why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// There is no file and none can be made, or it can't be read.
    #[error(
        "{file}: no token can be read or made there: {source}; name a file that can with \
         --token-file"
    )]
    Unusable {
        /// Its path.
        file: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Users other than its owner can read or write it.
    #[error("{file}: others than its owner have access to it (mode {mode:o}); set it to 600")]
    Open {
        /// Its path.
        file: String,
        /// Its mode.
        mode: u32,
    },
    /// It does not hold a token.
    #[error(
        "{file}: a token is one word of {} to {} bytes; remove the file, and a node makes one",
        BYTES.start(), BYTES.end()
    )]
    NoToken {
        /// Its path.
        file: String,
    },
}

impl Token {
    /// The token in a file.
    ///
    /// # Errors
    /// If the file has no token, or users other than its owner may have read it.
    pub fn read(file: &Path) -> Result<Self, TokenError> {
        let name = || file.display().to_string();
        let unusable = |source| TokenError::Unusable { file: name(), source };
        let mode = fs::metadata(file).map_err(unusable)?.mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(TokenError::Open { file: name(), mode });
        }
        let text = fs::read_to_string(file).map_err(unusable)?.trim().to_owned();
        if !BYTES.contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::NoToken { file: name() });
        }
        Ok(Self { text, file: file.to_owned() })
    }

    /// The token in a file, which is made if there is none.
    ///
    /// # Errors
    /// As [`Token::read`], and if the file can't be made.
    pub fn read_or_make(file: &Path) -> Result<Self, TokenError> {
        match Self::read(file) {
            Err(TokenError::Unusable { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                make(file).map_err(|source| TokenError::Unusable {
                    file: file.display().to_string(),
                    source,
                })?;
                Self::read(file)
            }
            found => found,
        }
    }

    /// The value of a request's `Authorization`.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.text)
    }

    /// Its path.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether this is the token. The duration does not depend on how much of it is right.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        let pairs = self.text.bytes().zip(given);
        let differences =
            pairs.fold(0, |differences, (ours, theirs)| differences | (ours ^ theirs));
        given.len() == self.text.len() && differences == 0
    }
}

/// Makes a file with a fresh token. If another process makes the same file at the same time, the
/// file is that of one of them, and whole.
fn make(file: &Path) -> io::Result<()> {
    let words = (0..WORDS).map(|_| format!("{:016x}", quorate_runtime::random_seed()));
    let text: String = words.collect();
    let mut draft = file.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(draft);
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = writeln!(opened, "{text}").and_then(|()| fs::hard_link(&draft, file));
    fs::remove_file(&draft)?;
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        written => written,
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// An unused path, removed with this value.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("quorate-token-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_token_is_made_once_and_nobody_else_can_read_it() {
        let place = Place::new("made");
        let token = Token::read_or_make(&place.0).unwrap();
        assert_eq!(token.text.len(), 16 * WORDS);
        assert_eq!(fs::metadata(&place.0).unwrap().mode() & 0o777, 0o600);
        let again = Token::read_or_make(&place.0).unwrap();
        assert_eq!(again.text, token.text);
        assert!(again.is(token.text.as_bytes()));
        for wrong in ["", &token.text[1..], &format!("{}0", token.text), &"0".repeat(64)] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        let dir = fs::read_dir(place.0.parent().unwrap()).unwrap();
        let name = place.0.file_name().unwrap().to_str().unwrap();
        let drafts = dir.filter(|entry| {
            entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with(&format!("{name}."))
        });
        assert_eq!(drafts.count(), 0);
    }

    #[test]
    fn a_file_that_others_read_and_one_without_a_token_are_refused() {
        let place = Place::new("wrong");
        fs::write(&place.0, "0123456789abcdef\n").unwrap();
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Token::read_or_make(&place.0).unwrap_err();
        assert!(error.to_string().contains("mode 640"), "{error}");
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Token::read(&place.0).unwrap().is(b"0123456789abcdef"));
        for wrong in ["", "short", "two words of enough bytes"] {
            fs::write(&place.0, wrong).unwrap();
            assert!(matches!(Token::read(&place.0), Err(TokenError::NoToken { .. })), "{wrong}");
        }
        let nowhere = place.0.join("below a file");
        let error = Token::read_or_make(&nowhere).unwrap_err();
        assert!(error.to_string().contains("--token-file"), "{error}");
    }
}
