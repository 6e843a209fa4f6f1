//! Loss of power: nodes that end together, on disks that lose what was not flushed.

mod mount;
mod volume;

use std::time::Duration;

use anyhow::ensure;

pub(crate) use mount::Mount;

use crate::faults::{Field, PAST_LEASE, pause};

/// Longest that clients work before the power goes, beyond what they have done before.
const WORK_MS: u64 = 400;
/// Longest from when nodes are started again until their power goes once more: they are reading what
/// they have, or forming a view, or serve already.
const RETURN_MS: u64 = 2500;

/// How long a disk is full or slow.
const WRONG: Duration = Duration::from_secs(2);
const SLOW_MS: u64 = 300;
/// How a process ends whose disk has failed.
const DISK_FAILED: i32 = 74;

/// What nodes keep on disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Disks {
    /// Nothing.
    None,
    /// What they acknowledge, in files of this machine.
    Plain,
    /// What they acknowledge, on disks that lose what was not flushed when their power goes.
    Volatile,
}

/// What promises wait for, where nodes have disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Durability {
    /// For nothing.
    Async,
    /// For the disks.
    Sync,
}

impl Durability {
    /// As the configuration names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Sync => "sync",
        }
    }
}

fn work(field: &mut Field<'_>) {
    pause(Duration::from_millis(field.random.below(WORK_MS)));
}

fn all(field: &Field<'_>) -> Vec<usize> {
    (0..field.cluster.nodes.len()).collect()
}

/// Starts these nodes, in any order.
fn launch(field: &mut Field<'_>, mut nodes: Vec<usize>) -> anyhow::Result<()> {
    while !nodes.is_empty() {
        let next = field.random.below(nodes.len() as u64) as usize;
        field.cluster.launch(field.net, nodes.swap_remove(next))?;
        pause(Duration::from_millis(field.random.below(100)));
    }
    Ok(())
}

fn all_but_one(field: &mut Field<'_>) -> Vec<usize> {
    let spared = field.any();
    let mut nodes = all(field);
    nodes.retain(|node| *node != spared);
    nodes
}

/// All at one moment: none of them notices the end of another.
fn kill_at_once(field: &mut Field<'_>, nodes: &[usize]) -> anyhow::Result<()> {
    nodes.iter().try_for_each(|node| field.cluster.begin_kill(*node))?;
    nodes.iter().try_for_each(|node| field.cluster.kill(*node))
}

pub(crate) fn kill_all_but_one(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let nodes = all_but_one(field);
    kill_at_once(field, &nodes)?;
    launch(field, nodes)
}

pub(crate) fn cut_all_but_one(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let nodes = all_but_one(field);
    field.cluster.cut_power(&nodes)?;
    launch(field, nodes)
}

pub(crate) fn kill_all(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let nodes = all(field);
    kill_at_once(field, &nodes)?;
    launch(field, nodes)
}

pub(crate) fn cut_all(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let nodes = all(field);
    field.cluster.cut_power(&nodes)?;
    launch(field, nodes)
}

pub(crate) fn cut_again(field: &mut Field<'_>) -> anyhow::Result<()> {
    cut_all(field)?;
    pause(Duration::from_millis(field.random.below(RETURN_MS)));
    let nodes = all(field);
    field.cluster.cut_power(&nodes)?;
    launch(field, nodes)
}

pub(crate) fn cut_one(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let node = field.any();
    field.cluster.cut_power(&[node])?;
    pause(PAST_LEASE);
    field.cluster.launch(field.net, node)
}

pub(crate) fn cut_and_one_late(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let mut nodes = all(field);
    field.cluster.cut_power(&nodes)?;
    let late = field.any();
    nodes.retain(|node| *node != late);
    launch(field, nodes)?;
    pause(Duration::from_millis(field.random.below(2 * RETURN_MS)));
    field.cluster.launch(field.net, late)
}

pub(crate) fn rot(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let nodes = all(field);
    nodes.iter().try_for_each(|node| field.cluster.begin_kill(*node))?;
    nodes.iter().try_for_each(|node| field.cluster.kill(*node))?;
    let node = field.any();
    let is_of_log = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("lane-");
    let rotten = field.cluster.mount(node)?.volume().rot(is_of_log);
    let Some((file, at)) = rotten else { anyhow::bail!("a node has no log") };
    println!("a bit of {} tips, at byte {at}", file.display());
    launch(field, nodes)
}

pub(crate) fn disk_full(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let node = field.any();
    field.cluster.mount(node)?.volume().set_full(true);
    pause(WRONG);
    field.cluster.mount(node)?.volume().set_full(false);
    Ok(())
}

pub(crate) fn flush_fails(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let node = field.any();
    field.cluster.mount(node)?.volume().fail_next_flush();
    let code = field.cluster.exit_code(node)?;
    ensure!(code == Some(DISK_FAILED), "a node whose disk has failed ended with {code:?}");
    field.cluster.cut_power(&[node])?;
    pause(PAST_LEASE);
    field.cluster.launch(field.net, node)
}

pub(crate) fn slow_disk(field: &mut Field<'_>) -> anyhow::Result<()> {
    work(field);
    let node = field.any();
    field.cluster.mount(node)?.delay_flushes(SLOW_MS);
    pause(WRONG);
    field.cluster.mount(node)?.delay_flushes(0);
    Ok(())
}
