//! Prometheus text, made from the facts that lanes publish: no counter is shared between lanes, and
//! only the scraper waits for this text.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use quorate_node::{FLUSH_BUCKETS, LogFacts};
use quorate_runtime::{Handle, NodeFacts};

use crate::LogCounts;
use crate::disk::{ALARMS, Alarm, Disk, DiskStatus};
use crate::status::role_name;

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of one node.
pub(crate) fn text(
    handle: &Handle,
    node: usize,
    log: &Arc<LogCounts>,
    disk: Option<&Disk>,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("quorate");
    let collector = NodeCollector {
        handle: handle.clone(),
        node,
        log: Arc::clone(log),
        disk: disk.map(Disk::status),
    };
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct NodeCollector {
    handle: Handle,
    node: usize,
    log: Arc<LogCounts>,
    disk: Option<DiskStatus>,
}

/// Labels and values of one metric.
type Samples = Vec<(Vec<(&'static str, String)>, u64)>;

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let node = &self.handle.nodes()[self.node];
        let facts = node.facts();
        let mut writer = Writer { encoder: &mut encoder };
        writer.node(&facts)?;
        writer.members(&facts)?;
        writer.keyspaces(&facts)?;
        writer.lanes(&facts)?;
        writer.log(&facts)?;
        if let Some(disk) = &self.disk {
            writer.disk(disk)?;
        }
        writer.links(&facts)?;
        let totals = node.front_end().totals();
        let calls = totals.per_command.iter().filter(|command| command.1 > 0);
        let calls =
            calls.map(|command| (vec![("command", command.0.to_owned())], command.1)).collect();
        writer.counter("commands", "Commands executed, by name", calls)?;
        let one = |value| vec![(Vec::new(), value)];
        writer.counter("error_replies", "Error replies", one(totals.errors))?;
        writer.counter("connections", "Clients accepted", one(totals.connections))?;
        writer.counter(
            "connections_rejected",
            "Clients turned away at maxclients",
            one(totals.rejected),
        )?;
        writer.counter(
            "clients_evicted",
            "Clients disconnected because all held too much together (maxmemory-clients)",
            one(totals.evicted),
        )?;
        for (name, help, value) in [
            (
                "subscribers_disconnected",
                "Subscribers disconnected because they read too little (client-output-buffer-limit)",
                totals.subscribers_cut,
            ),
            (
                "readers_disconnected",
                "Other clients disconnected because they read too little",
                totals.readers_cut,
            ),
            (
                "pubsub_messages_delivered",
                "Messages delivered, counted once for each subscriber",
                totals.messages_delivered,
            ),
            (
                "pubsub_messages_dropped",
                "Messages lost for the subscribers of a lane because too much waited for them",
                totals.messages_dropped,
            ),
        ] {
            writer.counter(name, help, one(value))?;
        }
        writer.gauge(
            "clients_bytes",
            "What clients hold: query buffers, commands in progress, queues, replies",
            one(node.front_end().clients_bytes()),
        )?;
        let log = [
            ("no_room", &self.log.no_room),
            ("not_taken", &self.log.not_taken),
            ("repeated", &self.log.repeated),
        ];
        let log = log.map(|(why, lines)| (vec![("reason", why.to_owned())], lines.load(Relaxed)));
        writer.counter("log_lines_dropped", "Log lines not written, by reason", log.into())
    }
}

struct Writer<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Writer<'_, '_> {
    fn node(&mut self, facts: &NodeFacts) -> fmt::Result {
        let one = |value| vec![(Vec::new(), value)];
        let control = &facts.control;
        let serving = u64::from(facts.not_serving.is_none());
        self.gauge("serving", "Whether the node serves clients", one(serving))?;
        self.gauge("epoch", "The epoch of the view in force", one(control.epoch.0))?;
        let lease = control.lease_remaining.as_millis() as u64;
        self.gauge("lease_remaining_milliseconds", "What is left of the lease", one(lease))?;
        self.counter("views", "Views installed", one(control.views))?;
        self.counter("rejoins", "New lives after an expulsion", one(control.rejoins))?;
        self.gauge("uptime_seconds", "Time since the start", one(facts.uptime_seconds))?;
        self.gauge("clients", "Connected clients", one(facts.clients))?;
        self.gauge("memory_used_bytes", "Records and indexes", one(facts.memory_used))
    }

    fn members(&mut self, facts: &NodeFacts) -> fmt::Result {
        let members = &facts.control.members;
        let roles = members.iter().map(|member| {
            let labels =
                vec![("peer", member.node.to_string()), ("role", role_name(member.role).into())];
            (labels, 1)
        });
        self.gauge("member", "The members and what they do", roles.collect())?;
        let heard = members.iter().filter_map(|member| {
            let age = member.last_heard?.as_millis() as u64;
            Some((vec![("peer", member.node.to_string())], age))
        });
        self.gauge("last_heard_milliseconds", "Time since a member was heard", heard.collect())
    }

    fn keyspaces(&mut self, facts: &NodeFacts) -> fmt::Result {
        let samples = |value: fn(&quorate_node::StoreFacts) -> u64| -> Samples {
            let keyspaces = facts.keyspaces.iter();
            keyspaces
                .map(|(keyspace, store)| (vec![("db", keyspace.id.to_string())], value(store)))
                .collect()
        };
        self.gauge("keys", "Keys with a value", samples(|store| store.keys))?;
        self.gauge("keys_expiring", "Keys that expire", samples(|store| store.expiring))?;
        self.gauge("tombstones", "Records of deleted keys", samples(|store| store.tombstones))?;
        self.gauge("keyspace_bytes", "Records and index", samples(|store| store.bytes))
    }

    fn lanes(&mut self, facts: &NodeFacts) -> fmt::Result {
        let lanes = || facts.lanes.iter().enumerate();
        let of = |value: fn(&quorate_node::LaneFacts) -> u64| -> Samples {
            lanes()
                .map(|(number, lane)| (vec![("lane", number.to_string())], value(lane)))
                .collect()
        };
        self.counter("submitted", "Ops submitted to engines", of(|lane| lane.submitted))?;
        self.counter("local_reads", "Reads from local records", of(|lane| lane.local_reads))?;
        self.counter("messages", "Peer messages handled", of(|lane| lane.messages))?;
        self.counter(
            "seals_failed",
            "Turns whose answers had to wait because the lease had run out",
            of(|lane| lane.seals_failed),
        )?;
        self.counter(
            "ops_parked",
            "Ops that waited until the node served again",
            of(|lane| lane.parked),
        )?;
        let ignored = lanes().flat_map(|(number, lane)| {
            lane.ignored.iter().map(move |&(reason, count)| {
                (vec![("lane", number.to_string()), ("reason", reason.to_owned())], count)
            })
        });
        self.counter("messages_ignored", "Peer messages dropped, by reason", ignored.collect())?;
        self.gauge("sessions", "Sessions with a lease of the lane", of(|lane| lane.sessions.open))?;
        self.counter("session_calls", "Calls of sessions", of(|lane| lane.sessions.calls))?;
        let refused = lanes().flat_map(|(number, lane)| {
            lane.sessions.refused.iter().map(move |&(reason, count)| {
                (vec![("lane", number.to_string()), ("reason", reason.to_owned())], count)
            })
        });
        self.counter(
            "session_refusals",
            "Calls of sessions and requests for leases refused, by reason",
            refused.collect(),
        )?;
        let engine = |list: fn(&quorate_node::EngineFacts) -> &Vec<(&'static str, u64)>| {
            let mut samples = Samples::new();
            for (number, lane) in lanes() {
                for engine in &lane.engines {
                    samples.extend(list(engine).iter().map(|&(name, value)| {
                        let labels = vec![
                            ("lane", number.to_string()),
                            ("db", engine.keyspace.to_string()),
                            ("name", name.to_owned()),
                        ];
                        (labels, value)
                    }));
                }
            }
            samples
        };
        self.counter("engine_events", "What an engine counted", engine(|facts| &facts.counters))?;
        self.gauge("engine_state", "What an engine holds", engine(|facts| &facts.gauges))?;
        let io = |value: fn(&quorate_runtime::IoFacts) -> u64| -> Samples {
            let lanes = facts.io.iter().enumerate();
            lanes.map(|(number, io)| (vec![("lane", number.to_string())], value(io))).collect()
        };
        self.counter("turns", "Turns of the loop", io(|io| io.turns))?;
        self.gauge(
            "longest_turn_microseconds",
            "The longest turn of the loop since CONFIG RESETSTAT, 0 if none took a millisecond",
            io(|io| io.longest_turn_micros),
        )?;
        self.gauge("lane_clients", "Clients of the lane", io(|io| io.clients))?;
        self.counter("client_received_bytes", "From clients", io(|io| io.client_bytes_received))?;
        self.counter("client_sent_bytes", "To clients", io(|io| io.client_bytes_sent))?;
        self.counter("strangers_refused", "Peer port refusals", io(|io| io.strangers_refused))
    }

    /// The logs of the lanes, if they have any.
    fn log(&mut self, facts: &NodeFacts) -> fmt::Result {
        let logs: Vec<(usize, &LogFacts)> = { facts.lanes.iter().enumerate() }
            .filter_map(|(number, lane)| Some((number, lane.log.as_ref()?)))
            .collect();
        if logs.is_empty() {
            return Ok(());
        }
        let of = |value: fn(&LogFacts) -> u64| -> Samples {
            let lane = |number: usize| vec![("lane", number.to_string())];
            logs.iter().map(|(number, log)| (lane(*number), value(log))).collect()
        };
        self.counter("log_entries", "Entries appended", of(|log| log.appended_entries))?;
        self.counter("log_bytes", "Bytes appended", of(|log| log.appended_bytes))?;
        self.counter("log_written_bytes", "Written, durable", of(|log| log.written_bytes))?;
        self.gauge("log_lag_bytes", "Appended, not durable yet", of(|log| log.pending_bytes))?;
        self.gauge("log_full", "Whether the disk has no room", of(|log| u64::from(log.is_full)))?;
        self.counter("log_restored_entries", "Restored", of(|log| log.restored_entries))?;
        self.counter("log_restored_bytes", "Restored", of(|log| log.restored_bytes))?;
        self.counter("log_flushes", "Flushes", of(|log| log.flushes.iter().sum()))?;
        self.counter("log_flush_microseconds", "Time of flushes", of(|log| log.flush_micros))?;
        let mut buckets = Samples::new();
        for (number, log) in &logs {
            let mut sum = 0;
            for (power, count) in log.flushes.iter().enumerate() {
                sum += count;
                let last = power + 1 == FLUSH_BUCKETS;
                let bound = if last { "+Inf".to_owned() } else { (1u64 << power).to_string() };
                buckets.push((vec![("lane", number.to_string()), ("le", bound)], sum));
            }
        }
        self.counter(
            "log_flush_microseconds_bucket",
            "Flushes that took less than so many microseconds",
            buckets,
        )?;
        self.counter("snapshots", "Snapshots completed", of(|log| log.snapshots))?;
        self.gauge("snapshot_bytes", "Of the last snapshot", of(|log| log.snapshot_bytes))?;
        self.gauge(
            "snapshot_failed",
            "Whether the last snapshot found no room",
            of(|log| u64::from(log.snapshot_failed)),
        )?;
        self.gauge(
            "snapshot_time_seconds",
            "When the last snapshot was complete, since 1970; 0 before the first of this process",
            of(|log| log.snapshot_at.map_or(0, |at| at.0 / 1000)),
        )?;
        self.gauge(
            "log_bytes_since_snapshot",
            "Bytes that a restart would read behind the snapshot",
            of(|log| log.bytes_since_snapshot),
        )
    }

    /// The file system that the log is on.
    fn disk(&mut self, disk: &DiskStatus) -> fmt::Result {
        let one = |value| vec![(Vec::new(), value)];
        self.gauge("disk_bytes", "Of the file system of the log", one(disk.bytes))?;
        self.gauge("disk_free_bytes", "Of these, what may be used", one(disk.free_bytes))?;
        let of = |alarm: Alarm| {
            let is_raised = disk.alarms.iter().any(|raised| raised.alarm == alarm);
            (vec![("alarm", alarm.name().to_owned())], u64::from(is_raised))
        };
        self.gauge("disk_alarm", "What is wrong with the disk", ALARMS.map(of).into())
    }

    fn links(&mut self, facts: &NodeFacts) -> fmt::Result {
        let of = |value: fn(&quorate_runtime::LinkFacts) -> u64| -> Samples {
            let mut samples = Samples::new();
            for (number, io) in facts.io.iter().enumerate() {
                samples.extend(io.links.iter().map(|link| {
                    let labels =
                        vec![("lane", number.to_string()), ("peer", link.peer.to_string())];
                    (labels, value(link))
                }));
            }
            samples
        };
        self.gauge("link_up", "Whether messages flow to a peer", of(|link| u64::from(link.up)))?;
        self.counter("link_losses", "Connections lost", of(|link| link.counts.losses))?;
        self.counter("link_frames_sent", "Flushes sent", of(|link| link.counts.frames_sent))?;
        self.counter("link_frames_received", "Received", of(|link| link.counts.frames_received))?;
        self.counter("link_frames_dropped", "Dropped", of(|link| link.counts.frames_dropped))?;
        self.counter("link_frames_bad", "Damaged", of(|link| link.counts.frames_bad))?;
        self.counter("link_sent_bytes", "Bytes sent", of(|link| link.counts.bytes_sent))?;
        self.counter("link_received_bytes", "Received", of(|link| link.counts.bytes_received))
    }

    fn counter(&mut self, name: &str, help: &str, samples: Samples) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            let labels = labels.as_slice();
            if labels.is_empty() {
                metric.encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
            } else {
                let mut sample = metric.encode_family(&labels)?;
                sample.encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
            }
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, samples: Samples) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            let labels = labels.as_slice();
            if labels.is_empty() {
                metric.encode_gauge(&value)?;
            } else {
                metric.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}
