//! Connections between nodes, and their faults.
//!
//! There is one connection for each pair of nodes and each lane, as in the runtime, and each of its
//! directions is a link of its own here.

use std::fmt;
use std::str::FromStr;

use quorate_frame::FRAME_BYTES_MAX;

use crate::script::{node, number};

/// How long a cut lasts before the operating system gives up the cut connections
/// (`TCP_USER_TIMEOUT` of the runtime), and their ends hear of it.
pub(crate) const SILENCE_MAX: u64 = 3_000 * crate::world::MS;

/// The most bytes that a socket holds unsent: no message overtakes them.
const SOCKET_BYTES: u64 = 2 * FRAME_BYTES_MAX as u64;

/// Some links: from a node to another one or to all others, and back unless it is one way, of one
/// lane or of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Links {
    pub(crate) from: usize,
    /// The other node; `None` stands for all others.
    pub(crate) to: Option<usize>,
    /// The lane; `None` stands for all.
    pub(crate) lane: Option<u16>,
    pub(crate) one_way: bool,
}

impl Links {
    /// The links of a node with all others, on all lanes.
    pub(crate) const fn of(node: usize, one_way: bool) -> Self {
        Self { from: node, to: None, lane: None, one_way }
    }

    /// Whether one of them leads from one node to another on a lane.
    pub(crate) fn contain(&self, from: usize, to: usize, lane: u16) -> bool {
        let leads = |from, to| self.from == from && self.to.is_none_or(|other| other == to);
        let there = leads(from, to) || (!self.one_way && leads(to, from));
        there && self.lane.is_none_or(|only| only == lane)
    }

    /// The nodes that may suffer.
    pub(crate) fn ends(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.from).chain(self.to)
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.from + 1, if self.one_way { "->" } else { "<->" })?;
        match self.to {
            Some(to) => write!(f, "{}", to + 1)?,
            None => f.write_str("*")?,
        }
        self.lane.map_or(Ok(()), |lane| write!(f, "/{lane}"))
    }
}

impl FromStr for Links {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' names no links; write 1->2, 1<->2/0 or 1<->*");
        let (ends, lane) = match text.split_once('/') {
            Some((ends, lane)) => (ends, Some(number(lane)?)),
            None => (text, None),
        };
        let two_way = ends.split_once("<->").map(|ends| (ends, false));
        let either = two_way.or_else(|| Some((ends.split_once("->")?, true)));
        let ((from, to), one_way) = either.ok_or_else(wrong)?;
        let to = if to == "*" { None } else { Some(node(to)?) };
        Ok(Self { from: node(from)?, to, lane, one_way })
    }
}

/// The faults of one link.
#[derive(Clone, Default, Debug)]
pub(crate) struct Link {
    /// The time since when it carries nothing.
    cut_since: Option<u64>,
    /// Its ends have heard that the connection is gone.
    given_up: bool,
    /// The extra delay of its messages.
    late_by: u64,
    /// Its connection breaks after this many more messages, for this long.
    breaks: Option<(u64, u64)>,
    /// Messages sent before this time are lost, since the connection is broken.
    broken_until: u64,
    /// The time when all messages sent so far have left.
    free_at: u64,
    /// The time when the small ones among them have left.
    small_free_at: u64,
}

impl Link {
    /// Sends a message behind those sent before it, where 1024 bytes take `pace`. A small message
    /// waits only for small ones, and for the part of a large one that the socket holds. Returns
    /// how much later it arrives than on a link without a queue; `None` if the queue has no room
    /// for it.
    pub(crate) fn queue(
        &mut self,
        now: u64,
        bytes: usize,
        pace: u64,
        bytes_max: usize,
    ) -> Option<u64> {
        if pace == 0 {
            return Some(self.late_by);
        }
        let waiting = self.free_at.saturating_sub(now);
        if waiting * 1024 / pace > bytes_max as u64 {
            return None;
        }
        let takes = bytes as u64 * pace / 1024;
        self.free_at = now + waiting + takes;
        if bytes > FRAME_BYTES_MAX {
            return Some(self.free_at - now + self.late_by);
        }
        let in_socket = SOCKET_BYTES * pace / 1024;
        self.small_free_at = self.small_free_at.max(now + waiting.min(in_socket)) + takes;
        Some(self.small_free_at - now + self.late_by)
    }

    /// Whether a message sent now arrives.
    pub(crate) fn carries(&self, now: u64) -> bool {
        self.cut_since.is_none() && self.broken_until <= now
    }

    /// Counts a message before it is sent. Returns for how long the connection breaks before this
    /// message, if it does.
    pub(crate) fn count(&mut self) -> Option<u64> {
        let (left, span) = self.breaks.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let span = *span;
        self.breaks = None;
        Some(span)
    }

    pub(crate) fn break_until(&mut self, until: u64) {
        self.broken_until = self.broken_until.max(until);
    }
}

/// Every link of a world.
#[derive(Clone, Debug)]
pub(crate) struct LinkTable {
    nodes: usize,
    lanes: usize,
    links: Vec<Link>,
}

impl LinkTable {
    pub(crate) fn new(nodes: usize, lanes: u16) -> Self {
        let lanes = usize::from(lanes);
        Self { nodes, lanes, links: vec![Link::default(); nodes * nodes * lanes] }
    }

    /// The link from one node to another on a lane.
    pub(crate) fn at(&mut self, from: usize, to: usize, lane: u16) -> &mut Link {
        &mut self.links[(from * self.nodes + to) * self.lanes + usize::from(lane)]
    }

    /// Every link, with the nodes and the lane that it joins.
    fn each(&mut self) -> impl Iterator<Item = ((usize, usize, u16), &mut Link)> {
        let (nodes, lanes) = (self.nodes, self.lanes);
        let place = move |at: usize| (at / lanes / nodes, at / lanes % nodes, (at % lanes) as u16);
        self.links.iter_mut().enumerate().map(move |(at, link)| (place(at), link))
    }

    fn some(&mut self, links: Links) -> impl Iterator<Item = &mut Link> {
        let chosen = move |place: &(usize, usize, u16)| links.contain(place.0, place.1, place.2);
        self.each().filter(move |(place, _)| chosen(place)).map(|(_, link)| link)
    }

    /// From now on these links carry nothing.
    pub(crate) fn cut(&mut self, links: Links, now: u64) {
        self.some(links).for_each(|link| link.cut_since = Some(now));
    }

    /// From now on messages on these links arrive `by` later.
    pub(crate) fn delay(&mut self, links: Links, by: u64) {
        self.some(links).for_each(|link| link.late_by = by);
    }

    /// The connections of these links will break after this many more messages, for this long.
    pub(crate) fn break_after(&mut self, links: Links, messages: u64, span: u64) {
        self.some(links).for_each(|link| link.breaks = Some((messages, span)));
    }

    /// The links whose ends give the connection up now, after too long a silence.
    pub(crate) fn give_up(&mut self, now: u64) -> Vec<(usize, usize, u16)> {
        let mut gone = Vec::new();
        for (place, link) in self.each() {
            let silent = link.cut_since.is_some_and(|since| since + SILENCE_MAX <= now);
            if silent && !link.given_up {
                link.given_up = true;
                gone.push(place);
            }
        }
        gone
    }

    /// Ends cuts and delays, and no connection breaks any more. Returns the links whose connections
    /// had been given up and stand again.
    pub(crate) fn mend(&mut self) -> Vec<(usize, usize, u16)> {
        let mut back = Vec::new();
        for (place, link) in self.each() {
            if link.given_up {
                back.push(place);
            }
            let Link { broken_until, free_at, small_free_at, .. } = *link;
            *link = Link { broken_until, free_at, small_free_at, ..Link::default() };
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_named_by_their_ends() {
        for text in ["1->2", "1<->2/1", "2<->*", "3->*/0"] {
            assert_eq!(text.parse::<Links>().unwrap().to_string(), text);
        }
        assert!("1-2".parse::<Links>().unwrap_err().contains("1->2"));
        let links: Links = "2<->*/1".parse().unwrap();
        assert!(links.contain(1, 0, 1) && links.contain(2, 1, 1));
        assert!(!links.contain(1, 0, 0) && !links.contain(0, 2, 1));
        let links: Links = "2->3".parse().unwrap();
        assert!(links.contain(1, 2, 0) && !links.contain(2, 1, 0) && !links.contain(1, 0, 0));
    }
}
