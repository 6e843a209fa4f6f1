//! `[[keyspace]]`: the replicas, the engine, and the engine's own options.

use std::ops::Range;

use quorate_engine::{OptionValue, Unfit};
use quorate_node::{EngineConfig, KeyspaceConfig, NodeAddress};
use quorate_types::{KeyspaceId, NodeId, NodeSet, limits};
use toml::Spanned;

use super::disk::Disk;
use super::file::{Keyspace, NodeList, OptionText};
use super::{ConfigError, Source, parts};

/// The fewest replicas with which a keyspace survives the loss of one.
const REPLICAS_SAFE: usize = 3;

impl Source<'_> {
    pub(super) fn keyspaces(
        &self,
        keyspaces: &[Keyspace],
        nodes: &[NodeAddress],
        disk: &Disk,
    ) -> Result<Vec<KeyspaceConfig>, ConfigError> {
        if keyspaces.is_empty() {
            return Ok(vec![KeyspaceConfig::new(
                KeyspaceId(0),
                "default",
                EngineConfig::default(),
            )]);
        }
        let mut numbers = Vec::new();
        let mut names: Vec<(String, Range<usize>)> = Vec::new();
        let mut configs = Vec::new();
        for keyspace in keyspaces {
            let most = limits::KEYSPACES_MAX as u64 - 1;
            let number = self.in_range(&keyspace.db, "[[keyspace]] db", 0..=most)?;
            self.unique(&mut numbers, number, keyspace.db.span(), "[[keyspace]] db")?;
            let (name, span) = parts(&keyspace.name);
            if name.is_empty() {
                let problem = "the name is empty".to_owned();
                return Err(self.wrong(&span, "[[keyspace]] name", problem, "choose one"));
            }
            self.unique(&mut names, name.clone(), span, "[[keyspace]] name")?;
            let engine = self.engine(keyspace, nodes)?;
            let partitions = self.partitions(keyspace, &engine, nodes)?;
            // A node with a part of the keyspace is a replica of it.
            let kept = partitions.iter().flatten().copied().reduce(NodeSet::union);
            let replicas = self.replicas(keyspace, &engine, nodes)?.or(kept);
            let mut config = KeyspaceConfig {
                replicas,
                partitions,
                ..KeyspaceConfig::new(KeyspaceId(number as u8), name.clone(), engine)
            };
            config.durability = self.durability(keyspace, &config, disk)?;
            configs.push(config);
        }
        Ok(configs)
    }

    /// The engine, with the options that the file gives.
    fn engine(
        &self,
        keyspace: &Keyspace,
        nodes: &[NodeAddress],
    ) -> Result<EngineConfig, ConfigError> {
        let (name, span) = parts(&keyspace.engine);
        let Some(mut engine) = EngineConfig::named(name) else {
            let problem = format!("there is no engine \"{name}\"");
            let remedy = format!("choose {}", EngineConfig::names_with(|_| true));
            return Err(self.wrong(&span, "[[keyspace]] engine", problem, &remedy));
        };
        if !engine.capabilities().recovers {
            let problem = format!("\"{name}\" is a measuring instrument without recovery");
            let remedy = format!(
                "choose {}, or measure it with `quorate bench --embedded`",
                EngineConfig::names_with(|_| true)
            );
            return Err(self.wrong(&span, "[[keyspace]] engine", problem, &remedy));
        }
        if !engine.capabilities().replicated && nodes.len() > 1 {
            let problem =
                format!("engine '{name}' keeps one copy, and the file has {} nodes", nodes.len());
            let remedy = format!(
                "choose {}, or keep one [[node]]",
                EngineConfig::names_with(|can| can.replicated)
            );
            return Err(self.wrong(&span, "[[keyspace]] engine", problem, &remedy));
        }
        if let Some(replicas) = &keyspace.replicas
            && engine.capabilities().spreads
        {
            let most = nodes.len() as u64;
            let count = self.in_range(replicas, "[[keyspace]] replicas", 0..=most)?;
            let value = OptionValue::Number(count as i64);
            engine.set("replicas", value).expect("no cluster has more nodes than an engine takes");
        }
        for (key, value) in &keyspace.options {
            let (text, span) = parts(value);
            let value = match text {
                OptionText::Flag(flag) => OptionValue::Flag(*flag),
                OptionText::Number(number) => OptionValue::Number(*number),
                OptionText::Word(word) => OptionValue::Word(word),
            };
            engine.set(key, value).map_err(|Unfit { problem, remedy }| {
                self.wrong(&span, &format!("[[keyspace]] {key}"), problem, &remedy)
            })?;
        }
        Ok(engine)
    }

    // --- replicas ------------------------------------------------------------------------------

    fn replicas(
        &self,
        keyspace: &Keyspace,
        engine: &EngineConfig,
        nodes: &[NodeAddress],
    ) -> Result<Option<NodeSet>, ConfigError> {
        if engine.capabilities().spreads {
            let Some(list) = &keyspace.nodes else { return Ok(None) };
            let problem = format!("engine '{}' chooses nodes for each key itself", engine.name());
            let remedy = format!(
                "say how many with replicas, or choose engine {}",
                EngineConfig::names_with(|can| can.replicated && !can.spreads)
            );
            return Err(self.wrong(&list.span(), "[[keyspace]] nodes", problem, &remedy));
        }
        match (&keyspace.nodes, &keyspace.replicas) {
            (None, None) => Ok(None),
            (Some(_), Some(replicas)) => Err(self.wrong(
                &replicas.span(),
                "[[keyspace]] replicas",
                "both nodes and replicas are given".into(),
                "keep one of them",
            )),
            (None, Some(replicas)) => {
                let (count, span) = (*replicas.get_ref(), replicas.span());
                if count < 1 || count > nodes.len() as i64 {
                    let problem = format!("{count} replicas in a cluster of {} nodes", nodes.len());
                    let remedy = format!("choose 1 to {}, or add nodes", nodes.len());
                    return Err(self.wrong(&span, "[[keyspace]] replicas", problem, &remedy));
                }
                Ok(Some(nodes.iter().take(count as usize).map(|node| node.node).collect()))
            }
            (Some(list), None) => self
                .node_set(list, "[[keyspace]] nodes", "leave the key out for all", nodes)
                .map(Some),
        }
    }

    /// The replica group of each partition; `None` stands for all replicas of the keyspace.
    fn partitions(
        &self,
        keyspace: &Keyspace,
        engine: &EngineConfig,
        nodes: &[NodeAddress],
    ) -> Result<Vec<Option<NodeSet>>, ConfigError> {
        let given = [
            ("partitions", keyspace.partitions.as_ref().map(Spanned::span)),
            ("partition_nodes", keyspace.partition_nodes.as_ref().map(Spanned::span)),
        ];
        let given = given.into_iter().find_map(|(key, span)| Some((key, span?)));
        if let Some((key, span)) = given.filter(|_| !engine.capabilities().partitions) {
            let other = EngineConfig::names_with(|can| can.partitions);
            let problem = format!("engine '{}' has no partitions", engine.name());
            let remedy = format!("remove the key, or choose engine {other}");
            return Err(self.wrong(&span, &format!("[[keyspace]] {key}"), problem, &remedy));
        }
        let most = u64::from(limits::PARTITIONS_MAX);
        let Some(groups) = &keyspace.partition_nodes else {
            let count = keyspace.partitions.as_ref().map_or(Ok(1), |partitions| {
                self.in_range(partitions, "[[keyspace]] partitions", 1..=most)
            })?;
            return Ok(vec![None; count as usize]);
        };
        let (groups, span) = parts(groups);
        let key = "[[keyspace]] partition_nodes";
        for (other, given) in [
            ("nodes", keyspace.nodes.is_some()),
            ("replicas", keyspace.replicas.is_some()),
            ("partitions", keyspace.partitions.is_some()),
        ] {
            if given {
                let problem = format!("both {other} and partition_nodes are given");
                return Err(self.wrong(&span, key, problem, "keep one of them"));
            }
        }
        if groups.is_empty() || groups.len() as u64 > most {
            let problem = format!("{} partitions are out of range", groups.len());
            let remedy = format!("list the nodes of 1 to {most} partitions");
            return Err(self.wrong(&span, key, problem, &remedy));
        }
        let remedy = "leave the partition out";
        groups.iter().map(|group| self.node_set(group, key, remedy, nodes).map(Some)).collect()
    }

    /// Nodes of the file, each once, at least one.
    fn node_set(
        &self,
        list: &Spanned<NodeList>,
        key: &str,
        instead: &str,
        nodes: &[NodeAddress],
    ) -> Result<NodeSet, ConfigError> {
        let mut set = NodeSet::EMPTY;
        for id in list.get_ref() {
            let Some(node) = known(id, nodes) else {
                let problem = format!("there is no node {}", id.get_ref());
                let remedy = "name ids that a [[node]] of this file has";
                return Err(self.wrong(&id.span(), key, problem, remedy));
            };
            if set.contains(node) {
                let problem = format!("node {node} is named twice");
                return Err(self.wrong(&id.span(), key, problem, "name each node once"));
            }
            set.insert(node);
        }
        if set.is_empty() {
            let remedy = format!("name one, or {instead}");
            return Err(self.wrong(&list.span(), key, "no node replicates it".into(), &remedy));
        }
        Ok(set)
    }
}

fn known(id: &Spanned<i64>, nodes: &[NodeAddress]) -> Option<NodeId> {
    nodes.iter().map(|node| node.node).find(|node| i64::from(node.0) == *id.get_ref())
}

/// Legal settings of a keyspace that deserve attention: replica groups that can't lose a node, or
/// that a minority of the nodes could be all of.
pub(super) fn warnings(
    file: &str,
    keyspace: &KeyspaceConfig,
    nodes: &[NodeAddress],
) -> Vec<String> {
    let mut whole = keyspace.replicas.map_or(nodes.len(), NodeSet::len);
    if keyspace.engine.capabilities().spreads
        && let OptionValue::Number(count @ 1..) = keyspace.engine.get("replicas")
    {
        whole = count as usize;
        let minority = nodes.len().saturating_sub(1) / 2;
        if (REPLICAS_SAFE..=minority).contains(&whole) {
            return vec![format!(
                "{file}: keyspace '{}' (db {}) has {whole} copies of each key on {} nodes: a \
                 minority of them, {whole}, may be all that have a key; give it replicas = {} or \
                 more, or 0",
                keyspace.name,
                keyspace.id,
                nodes.len(),
                minority + 1
            )];
        }
    }
    let mut groups = vec![(String::new(), whole)];
    if keyspace.partitions.iter().any(Option::is_some) {
        let sizes = keyspace.partitions.iter().map(|group| group.map_or(whole, NodeSet::len));
        let part = |(number, size)| (format!("partition {number} of "), size);
        groups = sizes.enumerate().map(part).collect();
    }
    let fragile = groups.into_iter().filter(|(_, replicas)| *replicas < REPLICAS_SAFE);
    let warning = |(part, replicas): (String, usize)| {
        format!(
            "{file}: {part}keyspace '{}' (db {}) has {replicas} replica{}: it cannot lose a node \
             without stopping or losing data; give it {REPLICAS_SAFE} or more",
            keyspace.name,
            keyspace.id,
            if replicas == 1 { "" } else { "s" }
        )
    };
    fragile.map(warning).collect()
}
