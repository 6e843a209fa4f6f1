//! `INFO`: the node in sections of `name:value` lines.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Args, Reply};
use quorate_types::{Topic, limits as bounds};

use crate::backend::{Backend, ServerFacts};
use crate::dispatch::Context;
use crate::session::REDIS_VERSION;
use crate::shared::lock;

/// The sections, in order, and whether `INFO` shows them unasked.
const SECTIONS: [(&str, bool); 14] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("cpu", true),
    ("commandstats", false),
    ("errorstats", true),
    ("latencystats", false),
    ("cluster", true),
    ("keyspace", true),
    ("placement", true),
    ("quorate", true),
];

impl<B: Backend> Context<'_, B> {
    /// `INFO [section ...]`.
    pub(crate) fn info(&mut self, args: Args<'_>) -> Reply<'static> {
        let asked: Vec<Vec<u8>> = args.iter().skip(1).map(<[u8]>::to_ascii_lowercase).collect();
        let facts = self.backend.facts();
        let mut text = String::new();
        for (section, by_default) in SECTIONS {
            let wanted = asked.iter().any(|asked| match asked.as_slice() {
                b"all" | b"everything" => true,
                b"default" => by_default,
                name => name == section.as_bytes(),
            });
            if !(wanted || asked.is_empty() && by_default) {
                continue;
            }
            // Where no keys move there is nothing to tell.
            if section == "placement" && self.backend.placement().is_none() {
                continue;
            }
            if !text.is_empty() {
                text += "\r\n";
            }
            let mut lines = Lines(&mut text);
            lines.title(section);
            self.section(section, &facts, &mut lines);
        }
        Reply::Verbatim(Cow::Owned(text))
    }

    fn section(&mut self, section: &str, facts: &ServerFacts, lines: &mut Lines<'_>) {
        match section {
            "server" => self.info_server(facts, lines),
            "clients" => {
                lines.put("connected_clients", self.core.shared.connected());
                lines.put("cluster_connections", 0);
                lines.put("maxclients", self.core.shared.settings.max_clients.load(Relaxed));
                lines.put("blocked_clients", self.core.shared.blocked_clients());
                lines.put("tracking_clients", self.core.shared.tracking.clients.load(Relaxed));
            }
            "memory" => self.info_memory(lines),
            "persistence" => self.info_persistence(lines),
            "stats" => self.info_stats(lines),
            "replication" => {
                // Every node takes writes; clients that look for a master have found one.
                lines.put("role", "master");
                lines.put("connected_slaves", 0);
                lines.put("master_failover_state", "no-failover");
                // There is no stream of writes to follow.
                lines.put("master_repl_offset", 0);
                lines.put("repl_backlog_active", 0);
            }
            "cpu" => {
                let (system, user) = facts.cpu_micros;
                let seconds =
                    |micros: u64| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
                lines.put("used_cpu_sys", seconds(system));
                lines.put("used_cpu_user", seconds(user));
            }
            "commandstats" => {
                let totals = self.core.shared.totals();
                for ((name, calls, rejected, failed), micros) in
                    totals.per_command.into_iter().zip(totals.micros)
                {
                    let per_call = micros as f64 / calls.max(1) as f64;
                    if calls + rejected + failed > 0 {
                        lines.put(
                            &format!("cmdstat_{name}"),
                            format!(
                                "calls={calls},usec={micros},usec_per_call={per_call:.2},\
                                 rejected_calls={rejected},failed_calls={failed}"
                            ),
                        );
                    }
                }
            }
            "errorstats" => {
                for (code, count) in self.core.shared.totals().per_code {
                    lines.put(&format!("errorstat_{code}"), format!("count={count}"));
                }
            }
            "latencystats" => {
                let wanted = lock(&self.core.shared.settings.percentiles).clone();
                for (name, buckets) in self.core.shared.histograms(self.core.ran) {
                    let percentiles: Vec<_> = { wanted.iter() }
                        .map(|&percent| {
                            let micros = percentile(&buckets, percent);
                            format!("p{percent}={micros}.000")
                        })
                        .collect();
                    lines.put(&format!("latency_percentiles_usec_{name}"), percentiles.join(","));
                }
            }
            "cluster" => lines.put("cluster_enabled", 0),
            "keyspace" => {
                for number in 0..bounds::KEYSPACES_MAX as u8 {
                    if let Some(keyspace) = self.backend.keyspace(number)
                        && keyspace.keys > 0
                    {
                        let (keys, expires) = (keyspace.keys, keyspace.expires);
                        lines.put(
                            &format!("db{number}"),
                            format!("keys={keys},expires={expires},avg_ttl=0"),
                        );
                    }
                }
            }
            "placement" => self.info_placement(lines),
            _ => self.info_quorate(facts, lines),
        }
    }

    /// Where transactions run whose keys move.
    fn info_placement(&mut self, lines: &mut Lines<'_>) {
        let Some(facts) = self.backend.placement() else { return };
        lines.put("key_moves", facts.moves);
        let rate = self.core.shared.moves.rate(self.now.monotonic, facts.moves);
        lines.put("key_moves_per_second", rate);
        let (percent, tenth) = (facts.local_share / 10, facts.local_share % 10);
        lines.put("local_updates_percent", format!("{percent}.{tenth}"));
        let (begun, now) = facts.bounced;
        lines.put("units_bounced", begun);
        lines.put("units_bouncing", now);
        lines.put("units_pinned", facts.pins);
        lines.put("copies_dropped", facts.copies_dropped);
    }

    fn info_server(&mut self, facts: &ServerFacts, lines: &mut Lines<'_>) {
        lines.put("redis_version", REDIS_VERSION);
        lines.put("redis_mode", "standalone");
        lines.put("os", std::env::consts::OS);
        lines.put("arch_bits", usize::BITS);
        lines.put("process_id", facts.process);
        lines.put("run_id", format!("{:040x}", facts.incarnation));
        lines.put("tcp_port", facts.port);
        lines.put("server_time_usec", self.now.wall().0 * 1000);
        lines.put("uptime_in_seconds", facts.uptime_seconds);
        lines.put("uptime_in_days", facts.uptime_seconds / 86_400);
        lines.put("io_threads_active", 0);
    }

    fn info_memory(&mut self, lines: &mut Lines<'_>) {
        let memory = self.backend.memory();
        let bound = self.core.shared.settings.max_memory.load(Relaxed);
        for (name, bytes) in [
            ("used_memory", memory.used),
            ("used_memory_rss", memory.resident),
            ("used_memory_peak", memory.peak),
            ("maxmemory", bound),
        ] {
            lines.put(name, bytes);
            lines.put(&format!("{name}_human"), human(bytes));
        }
        lines.put("mem_clients_slaves", 0);
        lines.put("mem_clients_normal", self.core.shared.clients_bytes());
        lines.put("maxmemory_policy", "noeviction");
        lines.put("number_of_cached_scripts", self.core.shared.scripts.len());
    }

    fn info_stats(&mut self, lines: &mut Lines<'_>) {
        let totals = self.core.shared.totals();
        lines.put("total_connections_received", totals.connections);
        // As in Redis, without the command at hand.
        let at_hand = u64::from(self.core.ran.is_some());
        lines.put("total_commands_processed", totals.commands.saturating_sub(at_hand));
        lines.put("total_net_input_bytes", totals.input_bytes);
        lines.put("total_net_output_bytes", totals.output_bytes);
        lines.put("rejected_connections", totals.rejected);
        lines.put("evicted_keys", 0);
        lines.put("evicted_clients", totals.evicted);
        lines.put(
            "client_output_buffer_limit_disconnections",
            totals.readers_cut + totals.subscribers_cut,
        );
        lines.put("keyspace_hits", totals.hits);
        lines.put("keyspace_misses", totals.misses);
        for (name, topic) in [
            ("pubsub_channels", Topic::Channel),
            ("pubsub_patterns", Topic::Pattern),
            ("pubsubshard_channels", Topic::Shard),
        ] {
            let mut names = 0;
            self.backend.visit_names(topic, &mut |_| names += 1);
            lines.put(name, names);
        }
        lines.put("pubsub_messages_delivered", totals.messages_delivered);
        lines.put("pubsub_messages_dropped", totals.messages_dropped);
        let tracking = &self.core.shared.tracking;
        lines.put("tracking_total_keys", tracking.keys.load(Relaxed));
        lines.put("tracking_total_items", tracking.items.load(Relaxed));
        lines.put("tracking_total_prefixes", tracking.prefixes.load(Relaxed));
        lines.put("tracking_untold", tracking.untold.load(Relaxed));
        lines.put("total_error_replies", totals.errors);
        lines.put("local_reads", totals.local_reads);
        lines.put("submitted_operations", totals.submitted);
    }

    fn info_quorate(&mut self, facts: &ServerFacts, lines: &mut Lines<'_>) {
        lines.put("quorate_version", &facts.version);
        let name = facts.cluster.replace(char::is_control, " ");
        lines.put("cluster_name", name);
        lines.put("node", facts.node);
        lines.put("incarnation", facts.incarnation);
        lines.put("epoch", facts.epoch);
        lines.put("node_role", facts.role);
        lines.put("lease", if facts.lease { "held" } else { "lapsed" });
        lines.put("unsettled_updates", self.backend.unsettled());
        lines.put("lanes", facts.lanes);
        for (lane, micros) in facts.longest_turns_micros.iter().enumerate() {
            lines.put(&format!("lane{lane}"), format!("longest_turn_usec={micros}"));
        }
        lines.put("members", facts.members.len());
        for (node, role, address) in &facts.members {
            lines.put(&format!("member{node}"), format!("role={role},address={address}"));
        }
        for number in 0..bounds::KEYSPACES_MAX as u8 {
            // Those that are not in use would hide the others.
            if let Some(keyspace) = self.backend.keyspace(number)
                && (number == 0 || keyspace.keys > 0)
            {
                lines.put(
                    &format!("keyspace{number}"),
                    format!(
                        "name={},engine={},replicas={},live_replicas={},keys={}",
                        keyspace.name,
                        keyspace.engine,
                        keyspace.replicas,
                        self.backend.replicas(number) + 1,
                        keyspace.keys
                    ),
                );
            }
        }
    }
}

pub(crate) struct Lines<'a>(&'a mut String);

impl Lines<'_> {
    fn title(&mut self, section: &str) {
        let (first, rest) = section.split_at(1);
        let first = if section == "cpu" { "CPU".to_owned() } else { first.to_uppercase() + rest };
        self.0.push_str("# ");
        self.0.push_str(&first);
        self.0.push_str("\r\n");
    }

    pub(crate) fn put(&mut self, name: &str, value: impl std::fmt::Display) {
        write!(self.0, "{name}:{value}\r\n").expect("a string takes everything");
    }
}

/// The end of the bucket in which so many percent of the calls have ended, in microseconds.
fn percentile(buckets: &[u64], percent: f64) -> u64 {
    let all: u64 = buckets.iter().sum();
    let wanted = (all as f64 * percent / 100.0).ceil() as u64;
    let mut sum = 0;
    let bucket = buckets.iter().position(|count| {
        sum += count;
        sum >= wanted
    });
    1 << bucket.unwrap_or(0)
}

/// Bytes as Redis shows them to people.
fn human(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    for (size, unit) in UNITS {
        if bytes >= size {
            return format!("{:.2}{unit}", bytes as f64 / size as f64);
        }
    }
    format!("{bytes}B")
}
