//! A run written down: the requests of clients, the faults, and the fates of messages.
//!
//! The run of a seed can be recorded as a [`Script`], which gives the same run again; with lines
//! left out it gives a shorter one. As text it reads like the interaction files of the protocol
//! crates:
//!
//! ```text
//! engine meerkat
//! seed 17
//! expect safety
//! 0.512301000 client 3 at 2/0: MULTI; GET reg:0; SET reg:1 v44.1; EXEC
//! 0.530000000 session 0 at 1/0: CALL 4 INCR call:1
//! 0.530000000 session 0 at 3/1 late 2.100000000: CALL 4 INCR call:1
//! 0.602113040 kill 2
//! 0.604000000 message 1->3/0 #1 lost
//! 1.100000000 start 2
//! ```
//!
//! Times are seconds of virtual time. A message is named by its link (sender, receiver and lane),
//! the moment when it is sent, and its place among the messages sent on that link at that moment.
//! So a message keeps its fate when earlier events are left out, as long as it is sent.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use quorate_types::{Duration, KeyspaceId, NodeId, NodeSet};

use crate::disk_faults::Failing;
use crate::intent::Intent;
use crate::keyspaces::ClientId;
use crate::links::Links;
use crate::operator::{Ask, Wish};
use crate::options::{Durabilities, Isolations, Options};
use crate::session_plan::{SessionAction, SessionStep};
use crate::sweep::FailureKind;

/// A message: sender, receiver, lane, the moment when it is sent, and its place among the messages
/// sent on that link at that moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct MessageId {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) lane: u16,
    pub(crate) at: u64,
    pub(crate) number: u64,
}

/// The fate of a message, in nanoseconds beyond the shortest delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Fate {
    /// It arrives after the shortest delay.
    #[default]
    Prompt,
    Lost,
    Late(u64),
    /// It arrives twice.
    Twice(u64, u64),
}

/// A process: a node by its index, or a guest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Process {
    Node(usize),
    Guest(usize),
}

/// The range of a wrong clock in millionths: from standing still to ten times too fast.
const RATES: std::ops::RangeInclusive<i64> = -1_000_000..=9_000_000;

/// A fault, or the end of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Kill(Process),
    /// All nodes lose power at once.
    Blackout,
    /// These do, and the others live.
    Dark(NodeSet),
    /// All do, and the disks of these are lost: a person accepts it.
    Ruin(NodeSet),
    /// It dies instead of sending one of its next messages, after this many.
    Ambush(Process, u64),
    Start(Process),
    /// It stops, for this many nanoseconds.
    Pause(Process, u64),
    /// The process stops at the end of a lane's turn, before the turn has sent anything: at the
    /// first turn after that moment, or, at that very moment, at the one after `turn` others.
    Interrupt {
        node: usize,
        lane: u16,
        turn: u64,
        span: u64,
    },
    /// One lane of a node stands still for this many nanoseconds, while the others go on.
    Stall {
        node: usize,
        lane: u16,
        span: u64,
    },
    /// Links carry nothing.
    Cut(Links),
    /// Messages on links arrive this many nanoseconds later.
    Delay(Links, u64),
    /// A guest can't reach a node.
    CutGuest {
        guest: usize,
        node: usize,
    },
    /// The connections of links break, after this many more messages on the link, for this many
    /// nanoseconds.
    Reset {
        links: Links,
        after: u64,
        span: u64,
    },
    /// All links carry everything again, at once.
    Reconnect,
    /// A wall clock is wrong by this many nanoseconds.
    Clock(Process, i64),
    /// The clock of a node runs wrong by this many millionths, for this many nanoseconds.
    Rate {
        node: usize,
        ppm: i64,
        span: u64,
    },
    /// An operator asks for a change of the membership.
    Ask(Ask),
    /// What the disk of a node keeps that has just ended is damaged.
    Rot(usize),
    /// The next write or flush of a node's disk fails.
    DiskFails {
        node: usize,
        what: Failing,
    },
    /// A node's disk has no room for this many nanoseconds.
    DiskFull {
        node: usize,
        span: u64,
    },
    /// What is asked of a node's disk takes long, for this many nanoseconds.
    DiskSlow {
        node: usize,
        span: u64,
    },
}

/// An intent of a client: when, and through which node and lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Order {
    pub(crate) at: u64,
    pub(crate) client: ClientId,
    pub(crate) node: usize,
    pub(crate) lane: u16,
    pub(crate) intent: Intent,
}

/// A run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    pub(crate) seed: u64,
    pub(crate) options: Options,
    /// How the run must fail, if it must.
    pub(crate) expect: Option<FailureKind>,
    /// The number of values drawn for each keyspace, which makes the values at the end unique.
    pub(crate) drawn: Vec<u64>,
    pub(crate) orders: Vec<Order>,
    /// The steps of clients with sessions.
    pub(crate) session_steps: Vec<SessionStep>,
    pub(crate) faults: Vec<(u64, Fault)>,
    pub(crate) fates: Vec<(MessageId, Fate)>,
}

impl Script {
    /// How the recorded run failed, if it did.
    pub fn expect(&self) -> Option<FailureKind> {
        self.expect
    }

    /// The number of ops, of faults, and of messages with a fate of their own.
    pub fn sizes(&self) -> [usize; 3] {
        [self.orders.len() + self.session_steps.len(), self.faults.len(), self.fates.len()]
    }

    /// The options of the run.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The seed of everything that is not written down: incarnations, clocks, jitter of the
    /// machines.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The fates of messages.
    pub(crate) fn fate_table(&self) -> BTreeMap<MessageId, Fate> {
        self.fates.iter().copied().collect()
    }
}

/// A time at the beginning of a line.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "{}", node + 1),
            Self::Guest(guest) => write!(f, "guest {guest}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(process) => write!(f, "kill {process}"),
            Self::Ambush(process, left) => write!(f, "ambush {process} after {left}"),
            Self::Start(process) => write!(f, "start {process}"),
            Self::Pause(process, span) => write!(f, "pause {process} for {}", Seconds(*span)),
            Self::Interrupt { node, lane, turn, span } => {
                write!(f, "interrupt {}/{lane} turn {turn} for {}", node + 1, Seconds(*span))
            }
            Self::Stall { node, lane, span } => {
                write!(f, "stall {}/{lane} for {}", node + 1, Seconds(*span))
            }
            Self::Cut(links) => write!(f, "cut {links}"),
            Self::Delay(links, by) => write!(f, "delay {links} by {}", Seconds(*by)),
            Self::Reset { links, after, span } => {
                write!(f, "reset {links} after {after} for {}", Seconds(*span))
            }
            Self::CutGuest { guest, node } => write!(f, "cut guest {guest}<->{}", node + 1),
            Self::Blackout => f.write_str("blackout"),
            Self::Dark(nodes) => write!(f, "dark {}", names(*nodes)),
            Self::Ruin(nodes) => write!(f, "ruin {}", names(*nodes)),
            Self::Reconnect => f.write_str("reconnect"),
            Self::Clock(process, error) => write!(f, "clock {process} off {error}"),
            Self::Rate { node, ppm, span } => {
                write!(f, "rate {} off {ppm} for {}", node + 1, Seconds(*span))
            }
            Self::Ask(ask) => write!(f, "{ask}"),
            Self::Rot(node) => write!(f, "rot {}", node + 1),
            Self::DiskFails { node, what: Failing::Write } => {
                write!(f, "disk {} fails write", node + 1)
            }
            Self::DiskFails { node, what: Failing::Flush } => {
                write!(f, "disk {} fails flush", node + 1)
            }
            Self::DiskFull { node, span } => {
                write!(f, "disk {} full for {}", node + 1, Seconds(*span))
            }
            Self::DiskSlow { node, span } => {
                write!(f, "disk {} slow for {}", node + 1, Seconds(*span))
            }
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt => f.write_str("prompt"),
            Self::Lost => f.write_str("lost"),
            Self::Late(by) => write!(f, "late {}", Seconds(*by)),
            Self::Twice(by, again) => write!(f, "twice {} {}", Seconds(*by), Seconds(*again)),
        }
    }
}

impl fmt::Display for SessionAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { node, lane, late, asks } => {
                write!(f, "at {}/{lane}", node + 1)?;
                if let Some(late) = late {
                    write!(f, " late {}", Seconds(*late))?;
                }
                write!(f, ": {asks}")
            }
            Self::GiveUp => f.write_str("gives up"),
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [orders, faults, fates] = self.sizes();
        writeln!(f, "# A run of {orders} ops, {faults} faults, {fates} disturbed messages.")?;
        writeln!(f, "# Run it again: quorate sim --replay FILE [--trace]")?;
        let options = &self.options;
        writeln!(f, "engine {}", options.engine)?;
        writeln!(f, "workload {}", options.workload)?;
        writeln!(f, "isolation {}", Isolations(options.isolation))?;
        writeln!(f, "seed {}", self.seed)?;
        let number = |f: &mut fmt::Formatter<'_>, name: &str, value: Option<u32>| match value {
            Some(value) => writeln!(f, "{name} {value}"),
            None => Ok(()),
        };
        number(f, "nodes", options.nodes.map(u32::from))?;
        number(f, "lanes", options.lanes.map(u32::from))?;
        number(f, "guests", options.guests.map(u32::from))?;
        number(f, "sessions", options.sessions.map(u32::from))?;
        number(f, "records", options.records)?;
        number(f, "large", options.large)?;
        if options.disks {
            writeln!(f, "disks yes")?;
            writeln!(f, "durability {}", Durabilities(options.durability))?;
        }
        writeln!(f, "shapes {}", options.shapes)?;
        writeln!(f, "beside {}", options.beside)?;
        writeln!(f, "faults {}", options.faults)?;
        writeln!(f, "clients {}", options.clients)?;
        writeln!(f, "keys {}", options.keys)?;
        writeln!(f, "safety {}", Seconds(options.safety_phase.as_nanos() as u64))?;
        writeln!(f, "heal {}", Seconds(options.heal_limit.as_nanos() as u64))?;
        let drawn: Vec<String> = self.drawn.iter().map(u64::to_string).collect();
        writeln!(f, "drawn {}", drawn.join(" "))?;
        writeln!(f, "expect {}", self.expect.map_or("success", FailureKind::name))?;
        let mut lines: Vec<(u64, String)> = Vec::new();
        for order in &self.orders {
            let Order { at, client, node, lane, intent } = order;
            lines.push((*at, format!("client {client} at {}/{lane}: {intent}", node + 1)));
        }
        for SessionStep { at, client, action } in &self.session_steps {
            lines.push((*at, format!("session {client} {action}")));
        }
        for (at, fault) in &self.faults {
            lines.push((*at, fault.to_string()));
        }
        for (id, fate) in &self.fates {
            let MessageId { from, to, lane, at, number } = id;
            lines.push((*at, format!("message {from}->{to}/{lane} #{number} {fate}")));
        }
        lines.sort_by_key(|(at, _)| *at);
        for (at, line) in lines {
            writeln!(f, "{} {line}", Seconds(at))?;
        }
        Ok(())
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no time; write seconds, such as 1.25");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 9 {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let part: u64 = format!("{part:0<9}").parse().map_err(|_| wrong())?;
    Ok(whole * 1_000_000_000 + part)
}

pub(crate) fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("'{text}' is no number of the size expected here"))
}

/// Nodes count from 1.
pub(crate) fn node(text: &str) -> Result<usize, String> {
    let number: usize = number(text)?;
    number.checked_sub(1).ok_or_else(|| "nodes count from 1".to_owned())
}

fn place(text: &str) -> Result<(usize, u16), String> {
    let (at, lane) = text.split_once('/').ok_or_else(|| format!("'{text}' is no node/lane"))?;
    Ok((node(at)?, number(lane)?))
}

/// A process at the beginning of some words, and the words behind it.
fn process<'a>(words: &'a [&'a str]) -> Result<(Process, &'a [&'a str]), String> {
    match words {
        ["guest", guest, rest @ ..] => Ok((Process::Guest(number(guest)?), rest)),
        [at, rest @ ..] => Ok((Process::Node(node(at)?), rest)),
        [] => Err("a process is missing".to_owned()),
    }
}

fn names(nodes: NodeSet) -> String {
    let names: Vec<String> = nodes.into_iter().map(|node| node.0.to_string()).collect();
    names.join("+")
}

fn node_set(text: &str) -> Result<NodeSet, String> {
    text.split('+').map(|text| Ok(NodeId(node(text)? as u16 + 1))).collect()
}

fn parse_fault(verb: &str, words: &[&str]) -> Result<Fault, String> {
    let wrong = || format!("'{verb} {}' is nothing that breaks", words.join(" "));
    Ok(match (verb, words) {
        ("blackout", []) => Fault::Blackout,
        ("dark", [nodes]) => Fault::Dark(node_set(nodes)?),
        ("ruin", [nodes]) => Fault::Ruin(node_set(nodes)?),
        ("reconnect", []) => Fault::Reconnect,
        ("member", [verb, subject, "at", at]) => {
            let (_, wish) = *Wish::ALL.iter().find(|(name, _)| name == verb).ok_or_else(wrong)?;
            Fault::Ask(Ask { wish, node: node(subject)?, at: node(at)? })
        }
        ("rot", [at]) => Fault::Rot(node(at)?),
        ("disk", [at, "fails", "write"]) => {
            Fault::DiskFails { node: node(at)?, what: Failing::Write }
        }
        ("disk", [at, "fails", "flush"]) => {
            Fault::DiskFails { node: node(at)?, what: Failing::Flush }
        }
        ("disk", [at, "full", "for", span]) => {
            Fault::DiskFull { node: node(at)?, span: seconds(span)? }
        }
        ("disk", [at, "slow", "for", span]) => {
            Fault::DiskSlow { node: node(at)?, span: seconds(span)? }
        }
        ("cut", ["guest", ends]) => {
            let (guest, at) = ends.split_once("<->").ok_or_else(wrong)?;
            Fault::CutGuest { guest: number(guest)?, node: node(at)? }
        }
        ("cut", [links]) => Fault::Cut(links.parse()?),
        ("delay", [links, "by", by]) => Fault::Delay(links.parse()?, seconds(by)?),
        ("reset", [links, "after", after, "for", span]) => {
            Fault::Reset { links: links.parse()?, after: number(after)?, span: seconds(span)? }
        }
        ("stall", [at, "for", span]) => {
            let (node, lane) = place(at)?;
            Fault::Stall { node, lane, span: seconds(span)? }
        }
        ("interrupt", [at, "turn", turn, "for", span]) => {
            let (node, lane) = place(at)?;
            Fault::Interrupt { node, lane, turn: number(turn)?, span: seconds(span)? }
        }
        ("rate", [at, "off", ppm, "for", span]) => {
            let ppm = number(ppm)?;
            if !RATES.contains(&ppm) {
                return Err(format!("a clock is off by {RATES:?} ppm, not by {ppm}"));
            }
            Fault::Rate { node: node(at)?, ppm, span: seconds(span)? }
        }
        _ => {
            let (process, rest) = process(words)?;
            match (verb, rest) {
                ("kill", []) => Fault::Kill(process),
                ("start", []) => Fault::Start(process),
                ("ambush", ["after", left]) => Fault::Ambush(process, number(left)?),
                ("pause", ["for", span]) => Fault::Pause(process, seconds(span)?),
                ("clock", ["off", error]) => Fault::Clock(process, number(error)?),
                _ => return Err(wrong()),
            }
        }
    })
}

fn parse_session_step(at: u64, text: &str) -> Result<SessionStep, String> {
    let wrong = || format!("'session {text}' is nothing that a client with a session does");
    let (head, asks) = text.split_once(": ").unwrap_or((text, ""));
    let (client, action) = match head.split(' ').collect::<Vec<_>>()[..] {
        [client, "gives", "up"] => (client, SessionAction::GiveUp),
        [client, "at", to, ref late @ ..] => {
            let (node, lane) = place(to)?;
            let late = match late {
                [] => None,
                ["late", by] => Some(seconds(by)?),
                _ => return Err(wrong()),
            };
            (client, SessionAction::Send { node, lane, late, asks: asks.parse()? })
        }
        _ => return Err(wrong()),
    };
    Ok(SessionStep { at, client: number(client)?, action })
}

fn parse_message(at: u64, words: &[&str]) -> Result<(MessageId, Fate), String> {
    let wrong = || format!("'message {}' says nothing about a message", words.join(" "));
    let [link, place, fate @ ..] = words else { return Err(wrong()) };
    let (ends, lane) = link.split_once('/').ok_or_else(wrong)?;
    let (from, to) = ends.split_once("->").ok_or_else(wrong)?;
    let place = place.strip_prefix('#').ok_or_else(wrong)?;
    let id = MessageId {
        from: number(from)?,
        to: number(to)?,
        lane: number(lane)?,
        at,
        number: number(place)?,
    };
    let fate = match fate {
        ["prompt"] => Fate::Prompt,
        ["lost"] => Fate::Lost,
        ["late", by] => Fate::Late(seconds(by)?),
        ["twice", by, again] => Fate::Twice(seconds(by)?, seconds(again)?),
        _ => return Err(wrong()),
    };
    Ok((id, fate))
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut script = Self {
            seed: 0,
            options: Options::new(),
            expect: None,
            drawn: Vec::new(),
            orders: Vec::new(),
            session_steps: Vec::new(),
            faults: Vec::new(),
            fates: Vec::new(),
        };
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                script.take(line).map_err(|error| format!("line {}: {error}", at + 1))?;
            }
        }
        script.orders.sort_by_key(|order| order.at);
        script.session_steps.sort_by_key(|session_step| session_step.at);
        script.faults.sort_by_key(|(at, _)| *at);
        Ok(script)
    }
}

impl Script {
    fn take(&mut self, line: &str) -> Result<(), String> {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !first.starts_with(|first: char| first.is_ascii_digit()) {
            return self.take_option(first, rest);
        }
        let at = seconds(first)?;
        let (verb, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let words: Vec<&str> = rest.split(' ').filter(|word| !word.is_empty()).collect();
        match verb {
            "client" => {
                let (head, intent) = rest
                    .split_once(": ")
                    .ok_or_else(|| format!("'{rest}' does not say what the client asks"))?;
                let (client, keyspace, to) = match head.split(' ').collect::<Vec<_>>()[..] {
                    [client, "at", to] => (client, 0, to),
                    [client, "in", keyspace, "at", to] => (client, number(keyspace)?, to),
                    _ => return Err(format!("'{head}' is not: client NUMBER at NODE/LANE")),
                };
                let (node, lane) = place(to)?;
                let client = ClientId { keyspace: KeyspaceId(keyspace), index: number(client)? };
                let intent = intent.parse()?;
                self.orders.push(Order { at, client, node, lane, intent });
            }
            "session" => self.session_steps.push(parse_session_step(at, rest)?),
            "message" => {
                self.fates.push(parse_message(at, &words)?);
            }
            _ => self.faults.push((at, parse_fault(verb, &words)?)),
        }
        Ok(())
    }

    fn take_option(&mut self, name: &str, value: &str) -> Result<(), String> {
        let options = &mut self.options;
        match name {
            "engine" => options.engine = value.parse()?,
            "workload" => options.workload = value.parse()?,
            "isolation" => options.isolation = value.parse::<Isolations>()?.0,
            "seed" => self.seed = number(value)?,
            "nodes" => options.nodes = Some(number(value)?),
            "lanes" => options.lanes = Some(number(value)?),
            "guests" => options.guests = Some(number(value)?),
            "sessions" => options.sessions = Some(number(value)?),
            "records" => options.records = Some(number(value)?),
            "large" => options.large = Some(number(value)?),
            "disks" if value == "yes" => options.disks = true,
            "durability" => options.durability = value.parse::<Durabilities>()?.0,
            "shapes" => options.shapes = value.parse()?,
            "beside" => options.beside = value.parse()?,
            "faults" => options.faults = value.parse()?,
            "clients" => options.clients = number(value)?,
            "keys" => options.keys = number(value)?,
            "safety" => options.safety_phase = Duration::from_nanos(seconds(value)?),
            "heal" => options.heal_limit = Duration::from_nanos(seconds(value)?),
            "drawn" => {
                self.drawn = value.split_whitespace().map(number).collect::<Result<_, _>>()?
            }
            "expect" if value == "success" => self.expect = None,
            "expect" => self.expect = Some(value.parse()?),
            _ => return Err(format!("'{name}' is no option of a run")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    #[test]
    fn every_line_comes_back() {
        let text = "engine meerkat\nseed 17\nexpect liveness\nworkload retwis\nnodes 5\n\
                    isolation strict\nfaults loss,crash\nshapes churn\nrecords 70\nsafety 1.5\n\
                    beside hermes\ndrawn 4 7\n0.1 client 3 in 1 at 1/0: GET key:4\n\
                    0.1 client 3 at 2/0: MULTI; GET reg:0; SET reg:1 v44.1; EXEC\n\
                    0.11 session 0 at 2/1: OPEN\n0.12 session 0 at 1/0: CALL 3 INCR a b\n\
                    0.13 session 0 at 3/0 late 2.5: RENEW\n0.14 session 0 gives up\n\
                    0.2 kill 2\n0.3 start guest 1\n0.4 ambush guest 0 after 3\n\
                    0.5 pause 1 for 0.25\n0.6 cut 3->*\n0.7 stall 1/0 for 0.01\n0.8 cut 1->2\n\
                    0.805 delay 2<->*/1 by 0.04\n0.807 reset 1->2/0 after 3 for 0.1\n\
                    0.81 cut 1<->2\n0.82 cut guest 0<->3\n0.9 reconnect\n0.93 member add 3 at 1\n\
                    0.94 member remove 2 at 3\n\
                    0.95 member remove-now 2 at 3\n0.96 member keep 1 at 2\n1.0 clock 2 off -250\n\
                    1.01 rot 2\n1.02 disk 1 fails write\n1.02 disk 1 fails flush\n\
                    1.03 disk 3 full for 1.5\n1.04 disk 2 slow for 0.25\n\
                    1.05 rate 2 off -1000000 for 0.25\n\
                    1.1 interrupt 2/1 turn 88 for 0.3\n1.2 message 1->63/0 #3 lost\n\
                    1.3 message 1->2/1 #4 late 0.0025\n1.4 message 1->2/1 #5 twice 0 0.1\n";
        let script: Script = text.parse().unwrap();
        assert_eq!(script.sizes(), [6, 24, 3]);
        assert_eq!(script.options.engine, Engine::Meerkat);
        assert_eq!(script.expect, Some(FailureKind::Liveness));
        let again: Script = script.to_string().parse().unwrap();
        assert_eq!(again, script);
    }

    #[test]
    fn what_can_not_be_read_names_its_line() {
        for (line, says) in [
            ("0.1 burn 2", "nothing that breaks"),
            ("colour red", "no option"),
            ("0.1 client 3 at 2/0", "does not say"),
            ("0.1 kill 0", "count from 1"),
            ("0.1 client 3 at 2/0: FLY high", "FLY"),
            ("0.1 message 1->2 #4 lost", "says nothing"),
            ("0.1 session 0 at 1/0 soon: OPEN", "client with a session does"),
            ("0.1 session 0 at 1/0: SING", "SING"),
            ("0.1 rate 1 off -1000001 for 1", "-1000000..=9000000 ppm"),
        ] {
            let error = format!("seed 1\n{line}").parse::<Script>().unwrap_err();
            assert!(error.contains(says) && error.starts_with("line 2"), "{line}: {error}");
        }
    }
}
