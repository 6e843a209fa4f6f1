//! `quorate.toml`: its legal contents, and the errors in it.
//!
//! Every error that can be found before a socket is opened is found here, and its message names the
//! file, the line, the key and the remedy.
#![forbid(unsafe_code)]

mod disk;
mod file;
mod keyspaces;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use quorate_node::{KeyspaceConfig, NodeAddress, NodeConfig, with_pins};
use quorate_resp::Share;
use quorate_types::{NodeId, limits};
use toml::Spanned;

use crate::disk::Disk;
use crate::file::{File, Node};

/// Shortest and longest lease, in milliseconds: below, ordinary scheduling delays expel healthy
/// nodes; above, a crash stops writes for longer than clients wait.
const LEASE_MS: std::ops::RangeInclusive<u64> = 20..=60_000;
/// Longest silence before suspicion, in milliseconds; the shortest is a lease.
const SUSPECT_MS_MAX: u64 = 600_000;
/// Largest clock drift, in parts per million: a tenth.
const DRIFT_PPM_MAX: u64 = 100_000;
/// Longest cluster name, in bytes.
const CLUSTER_BYTES_MAX: usize = 256;
/// Longest password: longer arguments are refused from clients that have not authenticated.
const PASSWORD_BYTES_MAX: usize = 16 * 1024;
/// Longest name of a host, in bytes, as in DNS.
const HOST_BYTES_MAX: usize = 253;
/// Longest spinning before a thread sleeps, in microseconds.
const BUSY_POLL_US_MAX: u64 = 1_000_000;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    file: String,
    cluster: String,
    lanes: u16,
    lease: Duration,
    suspect_after: Duration,
    clock_drift_ppm: u32,
    max_memory: u64,
    /// `None` for the default share of the memory of the machine.
    max_memory_clients: Option<Share>,
    max_clients: u64,
    debug_command: u64,
    sessions_max: usize,
    /// Whether clients may coordinate their transactions themselves, over the peer port.
    pub guests: bool,
    /// The password that clients must give before anything else.
    pub password: Option<String>,
    /// Further names by which clients address administration endpoints.
    hosts: Vec<String>,
    /// Whether threads are bound to processors.
    pub pin: bool,
    /// How long a thread looks for work before it sleeps.
    pub busy_poll: Duration,
    disk: Disk,
    nodes: Vec<NodeAddress>,
    keyspaces: Vec<KeyspaceConfig>,
}

/// An error of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// The path as given.
        file: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file has an illegal setting.
    #[error("{file}, line {line}, {key}: {problem}; {remedy}")]
    Wrong {
        /// The path as given.
        file: String,
        /// Counted from 1.
        line: usize,
        /// The key, with the table that it is in.
        key: String,
        /// The problem.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// `--node` names a node that isn't there.
    #[error(
        "{file}: [[node]] id: there is no node {node}; the file has {known}; correct --node, or add the node"
    )]
    NoSuchNode {
        /// The path as given.
        file: String,
        /// The id that was asked for.
        node: u16,
        /// The ids in the file.
        known: String,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// A [`ConfigError`] with the remedy.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { file: file.clone(), source })?;
        Self::parse(&file, &text)
    }

    /// Checks a text; `file` is for messages.
    ///
    /// # Errors
    /// A [`ConfigError`] with the remedy.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let source = Source { file, text };
        let parsed: File = toml::from_str(text).map_err(|error| source.syntax(&error))?;
        source.check(parsed)
    }

    /// The configuration of node `id`.
    ///
    /// # Errors
    /// If the file has no such node.
    pub fn node(&self, id: u16) -> Result<NodeConfig, ConfigError> {
        if !self.nodes.iter().any(|node| node.node.0 == id) {
            let known: Vec<String> = self.nodes.iter().map(|node| node.node.to_string()).collect();
            let (file, known) = (self.file.clone(), known.join(", "));
            return Err(ConfigError::NoSuchNode { file, node: id, known });
        }
        Ok(NodeConfig {
            cluster: self.cluster.clone(),
            lease: self.lease,
            suspect_after: self.suspect_after,
            clock_drift_ppm: self.clock_drift_ppm,
            sessions_max: self.sessions_max,
            revive_patience: self.disk.revive_patience,
            log: self.disk.log,
            seed: quorate_runtime::random_seed(),
            ..NodeConfig::new(
                NodeId(id),
                self.lanes,
                self.nodes.clone(),
                with_pins(self.keyspaces.clone()),
            )
        })
    }

    /// The directory of a node, of its own although the file is the same on every one. `None` if no
    /// keyspace is durable.
    pub fn directory(&self, node: &NodeConfig) -> Option<PathBuf> {
        let dir = self.disk.dir.as_ref().filter(|_| node.is_durable())?;
        Some(dir.join(format!("node-{}", node.node)))
    }

    /// The addresses on which this node listens.
    ///
    /// # Panics
    /// If the node's configuration is not of this file.
    pub fn address(&self, node: &NodeConfig) -> NodeAddress {
        let found = self.nodes.iter().find(|address| address.node == node.node);
        found.expect("a node's configuration is made only for a node of the file").clone()
    }

    /// Names by which clients may address administration endpoints of the cluster.
    pub fn admin_names(&self) -> Vec<String> {
        let nodes = self.nodes.iter().filter_map(|node| split_address(&node.admin));
        nodes.map(|(host, _)| host.to_owned()).chain(self.hosts.iter().cloned()).collect()
    }

    /// The front end's settings.
    pub fn settings(&self) -> quorate_resp::Settings {
        let settings = quorate_resp::Settings::default();
        settings.max_memory.store(self.max_memory, Relaxed);
        let share = self
            .max_memory_clients
            .unwrap_or_else(|| Share::Bytes(quorate_runtime::default_clients_bytes(1)));
        settings.max_memory_clients.store(share.to_bits(), Relaxed);
        settings.max_clients.store(self.max_clients, Relaxed);
        settings.debug_command.store(self.debug_command, Relaxed);
        settings
    }

    /// Legal settings that deserve attention at every start.
    pub fn warnings(&self) -> Vec<String> {
        let keyspaces = self.keyspaces.iter();
        keyspaces
            .flat_map(|keyspace| keyspaces::warnings(&self.file, keyspace, &self.nodes))
            .collect()
    }
}

/// The text that is being checked.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn check(&self, file: File) -> Result<Config, ConfigError> {
        let cluster = file.cluster;
        let (name, span) = parts(&cluster.name);
        if name.is_empty() || name.len() > CLUSTER_BYTES_MAX {
            let problem = format!("a name has 1 to {CLUSTER_BYTES_MAX} bytes");
            return Err(self.wrong(&span, "[cluster] name", problem, "choose a shorter one"));
        }
        let lanes = cluster.lanes.as_ref().map_or(Ok(1), |lanes| {
            self.in_range(lanes, "[cluster] lanes", 1..=u64::from(limits::LANES_MAX))
        })?;
        let lease_ms = cluster
            .lease_ms
            .as_ref()
            .map_or(Ok(NodeConfig::LEASE.as_millis() as u64), |lease| {
                self.in_range(lease, "[cluster] lease_ms", LEASE_MS)
            })?;
        let suspect_ms = cluster
            .suspect_ms
            .as_ref()
            .map_or(Ok(lease_ms * u64::from(NodeConfig::SUSPECT_LEASES)), |suspect| {
                self.in_range(suspect, "[cluster] suspect_ms", lease_ms..=SUSPECT_MS_MAX)
            })?;
        let drift = cluster
            .clock_drift_ppm
            .as_ref()
            .map_or(Ok(u64::from(NodeConfig::CLOCK_DRIFT_PPM)), |drift| {
                self.in_range(drift, "[cluster] clock_drift_ppm", 0..=DRIFT_PPM_MAX)
            })?;
        let max_memory = file
            .limits
            .maxmemory
            .as_ref()
            .map_or(Ok(0), |size| self.size(size, "[limits] maxmemory"))?;
        let max_memory_clients = file.limits.maxmemory_clients.as_ref();
        let max_memory_clients =
            max_memory_clients.map(|share| self.share(share, max_memory)).transpose()?;
        let max_clients = file.limits.maxclients.as_ref().map_or(Ok(10_000), |clients| {
            self.in_range(clients, "[limits] maxclients", 1..=u64::from(u32::MAX))
        })?;
        let sessions_max = file.limits.sessions_max.as_ref().map_or(
            Ok(NodeConfig::SESSIONS_MAX as u64),
            |sessions| {
                let most = lanes * limits::LEASES_PER_LANE_MAX as u64;
                self.in_range(sessions, "[limits] sessions_max", 0..=most)
            },
        )?;
        let password = file.security.requirepass.as_ref();
        let password = password.map(|password| self.password(password)).transpose()?;
        let hosts =
            file.admin.hosts.iter().map(|host| self.host(host)).collect::<Result<_, _>>()?;
        let busy_poll_us = file.runtime.busy_poll_us.as_ref().map_or(Ok(0), |busy| {
            self.in_range(busy, "[runtime] busy_poll_us", 0..=BUSY_POLL_US_MAX)
        })?;
        let nodes = self.nodes(&file.node)?;
        let disk = self.disk(&file.disk)?;
        let keyspaces = self.keyspaces(&file.keyspace, &nodes, &disk)?;
        Ok(Config {
            file: self.file.to_owned(),
            cluster: name.clone(),
            lanes: lanes as u16,
            lease: Duration::from_millis(lease_ms),
            suspect_after: Duration::from_millis(suspect_ms),
            clock_drift_ppm: drift as u32,
            max_memory,
            max_memory_clients,
            max_clients,
            debug_command: file.security.enable_debug_command as u64,
            sessions_max: sessions_max as usize,
            guests: cluster.guests,
            password,
            hosts,
            pin: file.runtime.pin,
            busy_poll: Duration::from_micros(busy_poll_us),
            disk,
            nodes,
            keyspaces,
        })
    }

    // --- nodes ---------------------------------------------------------------------------------

    fn nodes(&self, nodes: &[Node]) -> Result<Vec<NodeAddress>, ConfigError> {
        if nodes.is_empty() {
            let remedy = "add a [[node]] with id, peer, client and admin for each node";
            return Err(self.wrong(&(0..0), "[[node]]", "there is no node".into(), remedy));
        }
        if let Some(extra) = nodes.get(limits::MEMBERS_MAX) {
            let problem = format!("a cluster has at most {} nodes", limits::MEMBERS_MAX);
            return Err(self.wrong(&extra.id.span(), "[[node]]", problem, "remove some"));
        }
        let mut ids: Vec<(u64, Range<usize>)> = Vec::new();
        let mut taken: Vec<Taken> = Vec::new();
        let mut addresses = Vec::new();
        for node in nodes {
            let id = self.in_range(&node.id, "[[node]] id", 1..=u64::from(limits::NODE_ID_MAX))?;
            self.unique(&mut ids, id, node.id.span(), "[[node]] id")?;
            for (what, address) in
                [("peer", &node.peer), ("client", &node.client), ("admin", &node.admin)]
            {
                self.take_address(&mut taken, what, address)?;
            }
            addresses.push(NodeAddress {
                node: NodeId(id as u16),
                peer: node.peer.get_ref().clone(),
                client: node.client.get_ref().clone(),
                admin: node.admin.get_ref().clone(),
            });
        }
        Ok(addresses)
    }

    fn take_address(
        &self,
        taken: &mut Vec<Taken>,
        what: &str,
        address: &Spanned<String>,
    ) -> Result<(), ConfigError> {
        let key = format!("[[node]] {what}");
        let (text, span) = parts(address);
        let Some((host, port)) = split_address(text) else {
            let problem = format!("'{text}' is not an address");
            return Err(self.wrong(&span, &key, problem, "write host:port, like 127.0.0.1:7401"));
        };
        if let Some(first) = taken.iter().find(|other| other.conflicts(host, port)) {
            let line = self.line(&first.span);
            let problem = format!("port {port} of {host} is already that of line {line}");
            return Err(self.wrong(&span, &key, problem, "give every address a port of its own"));
        }
        taken.push(Taken { host: host.to_owned(), port, span });
        Ok(())
    }

    // --- values --------------------------------------------------------------------------------

    fn in_range(
        &self,
        value: &Spanned<i64>,
        key: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, ConfigError> {
        match u64::try_from(*value.get_ref()) {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => {
                let problem = format!("{} is out of range", value.get_ref());
                let remedy = format!("choose {} to {}", range.start(), range.end());
                Err(self.wrong(&value.span(), key, problem, &remedy))
            }
        }
    }

    /// A size, or a percentage of `maxmemory`.
    fn share(&self, share: &Spanned<String>, max_memory: u64) -> Result<Share, ConfigError> {
        const KEY: &str = "[limits] maxmemory_clients";
        let (text, span) = parts(share);
        let Some(number) = text.strip_suffix('%') else {
            return self.size(share, KEY).map(Share::Bytes);
        };
        if max_memory == 0 {
            let problem = "it is a part of maxmemory, which has no bound".to_owned();
            return Err(self.wrong(
                &span,
                KEY,
                problem,
                "set maxmemory, or write it like \"512mb\"",
            ));
        }
        let percent = number.parse().ok().filter(|percent| (1..=100).contains(percent));
        percent.map(Share::Percent).ok_or_else(|| {
            let problem = format!("'{text}' is no percentage");
            self.wrong(&span, KEY, problem, "write it like \"5%\" or like \"512mb\"")
        })
    }

    fn size(&self, size: &Spanned<String>, key: &str) -> Result<u64, ConfigError> {
        let (text, span) = parts(size);
        bytes_of(text).ok_or_else(|| {
            let problem = format!("'{text}' is not a number of bytes");
            self.wrong(&span, key, problem, "write it like \"512mb\" or \"4gb\"")
        })
    }

    fn password(&self, password: &Spanned<String>) -> Result<String, ConfigError> {
        let (text, span) = parts(password);
        if text.is_empty() || text.len() > PASSWORD_BYTES_MAX {
            let problem = format!("a password has 1 to {PASSWORD_BYTES_MAX} bytes");
            let remedy = "choose one, or leave the key out for none";
            return Err(self.wrong(&span, "[security] requirepass", problem, remedy));
        }
        Ok(text.clone())
    }

    fn host(&self, host: &Spanned<String>) -> Result<String, ConfigError> {
        let (text, span) = parts(host);
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if text.is_empty() || text.len() > HOST_BYTES_MAX || !text.bytes().all(of_name) {
            let problem = format!("'{text}' is not the name of a host");
            return Err(self.wrong(&span, "[admin] hosts", problem, "write it without a port"));
        }
        Ok(text.clone())
    }

    fn unique<T: PartialEq + std::fmt::Display>(
        &self,
        seen: &mut Vec<(T, Range<usize>)>,
        value: T,
        span: Range<usize>,
        key: &str,
    ) -> Result<(), ConfigError> {
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == value) {
            let problem = format!("{value} is given twice, first on line {}", self.line(first));
            return Err(self.wrong(&span, key, problem, "give each one of its own"));
        }
        seen.push((value, span));
        Ok(())
    }

    // --- errors --------------------------------------------------------------------------------

    fn wrong(&self, span: &Range<usize>, key: &str, problem: String, remedy: &str) -> ConfigError {
        ConfigError::Wrong {
            file: self.file.to_owned(),
            line: self.line(span),
            key: key.to_owned(),
            problem,
            remedy: remedy.to_owned(),
        }
    }

    /// The error of the TOML reader: syntax, unknown and missing keys, wrong types.
    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let message = error.message();
        let remedy = if message.contains("unknown field") {
            "remove the key, or correct its spelling"
        } else if message.contains("unknown variant") {
            "choose one of those"
        } else if message.contains("missing field") {
            "add it"
        } else if message.contains("invalid type") || message.contains("invalid value") {
            "give it a value of that kind"
        } else {
            "correct the TOML"
        };
        let line = self.text.lines().nth(self.line(&span) - 1).unwrap_or("");
        let key = line.split('=').next().unwrap_or("").trim();
        let key = if key.is_empty() { "the file" } else { key };
        self.wrong(&span, key, message.replace('\n', " "), remedy)
    }

    fn line(&self, span: &Range<usize>) -> usize {
        self.text.bytes().take(span.start).filter(|&byte| byte == b'\n').count() + 1
    }
}

/// An address that the file has given out already.
struct Taken {
    host: String,
    port: u16,
    span: Range<usize>,
}

impl Taken {
    fn conflicts(&self, host: &str, port: u16) -> bool {
        let any = |host: &str| host == "0.0.0.0" || host == "[::]";
        self.port == port && (self.host == host || any(&self.host) || any(host))
    }
}

fn parts<T>(value: &Spanned<T>) -> (&T, Range<usize>) {
    (value.get_ref(), value.span())
}

fn split_address(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    (!host.is_empty() && port > 0).then_some((host, port))
}

/// A number of bytes with an optional unit, as Redis writes them.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit)
}
