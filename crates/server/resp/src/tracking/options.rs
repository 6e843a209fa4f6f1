//! The words of `CLIENT TRACKING`.

use quorate_commands::{Args, Reply as Answer, parse_integer};

use super::{ClientTracking, Mode};
use crate::session::{NOT_AN_INTEGER, SYNTAX, failure, quoted};

/// What `CLIENT TRACKING` asks for.
#[derive(Default)]
pub(super) struct Options<'a> {
    pub(super) redirect: u64,
    pub(super) broadcast: bool,
    pub(super) opt_in: bool,
    pub(super) opt_out: bool,
    pub(super) no_loop: bool,
    pub(super) coalesced: bool,
    pub(super) prefixes: Vec<&'a [u8]>,
}

impl<'a> Options<'a> {
    pub(super) fn parse(
        args: Args<'a>,
        is_client: impl Fn(u64) -> bool,
    ) -> Result<Self, Answer<'static>> {
        let mut options = Self::default();
        let mut words = args.iter().skip(3);
        while let Some(word) = words.next() {
            let more = words.len() > 0;
            match word.to_ascii_lowercase().as_slice() {
                b"redirect" if more => {
                    if options.redirect != 0 {
                        return Err(Answer::error(
                            "ERR A client can only redirect to a single other client",
                        ));
                    }
                    let id = words.next().and_then(parse_integer).ok_or(NOT_AN_INTEGER)?;
                    let id = u64::try_from(id).ok().filter(|id| is_client(*id));
                    options.redirect = id.ok_or(Answer::error(
                        "ERR The client ID you want redirect to does not exist",
                    ))?;
                }
                b"bcast" => options.broadcast = true,
                b"optin" => options.opt_in = true,
                b"optout" => options.opt_out = true,
                b"noloop" => options.no_loop = true,
                b"coalesce" => options.coalesced = true,
                b"prefix" if more => options.prefixes.extend(words.next()),
                _ => return Err(SYNTAX),
            }
        }
        Ok(options)
    }

    /// Whether they fit together, and what was asked for before. The words are Redis's, but for those of
    /// `COALESCE`.
    pub(super) fn check(&self, before: Option<&ClientTracking>) -> Result<(), Answer<'static>> {
        let error = |text| Err(Answer::error(text));
        if !self.broadcast && !self.prefixes.is_empty() {
            return error("ERR PREFIX option requires BCAST mode to be enabled");
        }
        if before.is_some_and(|before| before.is_broadcast() != self.broadcast) {
            return error(
                "ERR You can't switch BCAST mode on/off before disabling tracking for this client, \
                 and then re-enabling it with a different mode.",
            );
        }
        if self.coalesced && (!self.broadcast || self.no_loop) {
            return error("ERR COALESCE requires BCAST mode to be enabled, without NOLOOP");
        }
        let is_other = |before: &ClientTracking| before.coalesced != self.coalesced;
        if self.broadcast && before.is_some_and(is_other) {
            return error(
                "ERR You can't switch COALESCE on/off before disabling tracking for this client, and \
                 then re-enabling it with a different mode.",
            );
        }
        if self.broadcast && (self.opt_in || self.opt_out) {
            return error("ERR OPTIN and OPTOUT are not compatible with BCAST");
        }
        if self.opt_in && self.opt_out {
            return error("ERR You can't specify both OPTIN mode and OPTOUT mode");
        }
        let mode = before.map(|before| &before.mode);
        if self.opt_in && matches!(mode, Some(Mode::OptOut))
            || self.opt_out && matches!(mode, Some(Mode::OptIn))
        {
            return error(
                "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, \
                 and then re-enabling it with a different mode.",
            );
        }
        let overlap = |one: &[u8], other: &[u8]| one.starts_with(other) || other.starts_with(one);
        for (at, prefix) in self.prefixes.iter().enumerate() {
            let collision = |which: &str, other: &[u8]| {
                let (prefix, other) = (quoted(prefix), quoted(other));
                Err(failure(format!(
                    "ERR Prefix '{prefix}' overlaps with {which} prefix '{other}'. Prefixes for a \
                     single client must not overlap."
                )))
            };
            if let Some(Mode::Broadcast(known)) = mode
                && let Some(other) = known.iter().find(|other| overlap(other, prefix))
            {
                return collision("an existing", other);
            }
            if let Some(other) = self.prefixes[at + 1..].iter().find(|other| overlap(other, prefix))
            {
                return collision("another provided", other);
            }
        }
        Ok(())
    }
}
