//! The token of a session: a client shows it beside the id, which others can guess.

use core::hash::Hasher;
#[expect(
    deprecated,
    reason = "what is in its place in std has no keys that nodes could share"
)]
use core::hash::SipHasher;

use crate::LeaseId;

/// The secret of one life of a node. [`Key::token`] of a session that this life began shows that a
/// client was told the id by this node, or by its client. Lease managers exchange their keys, so
/// that each can check the token of any session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Key(pub [u64; 2]);

impl Key {
    /// SipHash-2-4 of the id under this key: tokens of other sessions don't reveal it.
    #[expect(deprecated, reason = "see the import")]
    pub fn token(self, lease: LeaseId) -> u64 {
        let Self([first, second]) = self;
        let mut hasher = SipHasher::new_with_keys(first, second);
        hasher.write(&lease.0.to_le_bytes());
        hasher.finish()
    }
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a key")
    }
}

/// A lease manager's verdict on a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Genuine {
    /// It is the session's, or no live node can tell.
    Yes,
    /// It is not the session's.
    No,
    /// The member that can tell has not been heard yet.
    Unready,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_that_of_siphash() {
        // The test vector of the paper's reference code for the eight bytes 0 to 7.
        let key = Key([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let lease = LeaseId(0x0706_0504_0302_0100);
        assert_eq!(key.token(lease), 0x93f5_f579_9a93_2462);
        assert_ne!(key.token(LeaseId(lease.0 + 1)), key.token(lease));
        assert_ne!(Key([1, 2]).token(lease), key.token(lease));
    }
}
