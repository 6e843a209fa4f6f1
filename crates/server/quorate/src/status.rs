//! `quorate status` and `quorate member`: what operators ask of a running cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use quorate_admin::{
    AddMember, Changed, KeepMember, Loss, Problem, Progress, Recover, RemoveMember, Status, Token,
    ViewStatus,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::{self, Member, MemberChange};
use crate::log::say;

/// How long a node may take to answer about itself.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The gauges of engines that count ops in progress or waiting; others count records.
const PENDING: [&str; 6] =
    ["updates_pending", "ops_waiting", "keys_waited_for", "ops_forwarded", "attempts", "waiting"];
/// The environment variable that names the file with the token, unless `--token-file` does.
const TOKEN_FILE: &str = "QUORATE_TOKEN_FILE";
/// How long a membership change may take.
const CHANGE_MAX: Duration = Duration::from_secs(15);
/// How often a command that waits for a removal looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long the node that it asks may give no answer.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Prints how the cluster is, as one node sees it and as each says of itself.
pub(crate) fn show(options: &cli::Status) -> anyhow::Result<()> {
    let status: Status = get(&options.admin)?;
    if options.json {
        say(&serde_json::to_string_pretty(&status)?);
        return Ok(());
    }
    let others: Vec<Option<Status>> = status
        .members
        .iter()
        .map(|member| match member.node == status.node {
            true => Some(status.clone()),
            false => get(&member.admin).ok(),
        })
        .collect();
    for line in render(&status, &others) {
        say(&line);
    }
    Ok(())
}

/// Adds or removes a member, or has one stay.
pub(crate) fn change_members(options: &Member) -> anyhow::Result<()> {
    let token = token(options.token_file.as_deref())?;
    let token = token.as_ref();
    let (epoch, what) = match &options.change {
        MemberChange::Add { id, peer, client, admin_address, admin } => {
            let body = AddMember {
                id: *id,
                peer: peer.clone(),
                client: client.clone(),
                admin: admin_address.clone(),
            };
            let changed: Changed = post(admin, "/member/add", &body, token)?;
            (changed.epoch, format!("node {id} is a member; start its process now"))
        }
        MemberChange::Remove { id, admin, no_wait, now } => {
            let body = RemoveMember { id: *id, now: *now };
            let changed: Changed = post(admin, "/member/remove", &body, token)?;
            let epoch = match changed.leaving {
                None => changed.epoch,
                Some(progress) if *no_wait => {
                    say(&leaving(*id, progress));
                    say("it is removed when all have; `quorate status` shows how far they are");
                    return Ok(());
                }
                Some(progress) => wait_for_removal(admin, *id, progress)?,
            };
            (epoch, format!("node {id} is no member any more"))
        }
        MemberChange::Keep { id, admin } => {
            let changed: Changed = post(admin, "/member/keep", &KeepMember { id: *id }, token)?;
            (changed.epoch, format!("node {id} stays a member"))
        }
    };
    say(&format!("{what} (epoch {epoch})"));
    if matches!(options.change, MemberChange::Remove { now: true, .. }) {
        say("its copies are gone with it: where keys are at some of the nodes only, the death of \
             further ones may lose data until the others have copied what falls to them");
    }
    Ok(())
}

/// Goes on without nodes that are lost, or says what that would give up.
pub(crate) fn recover(options: &cli::Recover) -> anyhow::Result<()> {
    let lost: Vec<String> = options.lost.iter().map(u16::to_string).collect();
    let what = match lost.is_empty() {
        true => "what is missing from the disks that are here".to_owned(),
        false => format!("what only node {} had", lost.join(", ")),
    };
    let token = token(options.token_file.as_deref())?;
    let body = Recover { lost: options.lost.clone(), dry_run: !options.accept_loss };
    if !options.accept_loss {
        let loss: Loss = post(&options.admin, "/recover", &body, token.as_ref())?;
        let groups = loss.groups.iter().map(|group| format!("\n  {group}"));
        bail!(
            "this gives up {what}, for good; `quorate status` says for whom the nodes wait. If that is \
             lost, say so with --accept-loss. Nothing would be left of{}",
            if loss.groups.is_empty() { " no keyspace".into() } else { groups.collect::<String>() }
        );
    }
    let changed: Changed = post(&options.admin, "/recover", &body, token.as_ref())?;
    say(&format!("the cluster goes on without {what} (epoch {})", changed.epoch));
    Ok(())
}

/// The token in the file that is named, or in that of the environment.
fn token(file: Option<&Path>) -> anyhow::Result<Option<Token>> {
    let file = file.map(Into::into).or_else(|| std::env::var_os(TOKEN_FILE).map(PathBuf::from));
    Ok(file.map(|file| Token::read(&file)).transpose()?)
}

/// Waits until a member that is about to leave is out, and says how far it is. Gives the epoch in which
/// it is out.
fn wait_for_removal(admin: &str, id: u16, begun: Progress) -> anyhow::Result<u64> {
    let (mut said, mut last_answer) = (None, Instant::now());
    let mut progress = begun;
    loop {
        if said.replace(progress) != Some(progress) {
            say(&leaving(id, progress));
        }
        std::thread::sleep(LOOK_EVERY);
        let view: ViewStatus = match read(admin, agent(ANSWER_MAX).get(url(admin, "/view")).call())
        {
            Ok(view) => view,
            Err(_) if last_answer.elapsed() < SILENCE_MAX => continue,
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("node {id} is still leaving, and `quorate status` shows how far it is")
                });
            }
        };
        last_answer = Instant::now();
        match Progress::of(&view.members, id) {
            Some(now) => progress = now,
            // A node that is in no view says nothing of members.
            None if view.members.is_empty() => {}
            None if view.members.iter().all(|member| member.node != id) => return Ok(view.epoch),
            None => bail!("node {id} stays a member: somebody has asked for that meanwhile"),
        }
    }
}

fn leaving(id: u16, progress: Progress) -> String {
    format!("node {id} is leaving: {progress}")
}

fn url(admin: &str, path: &str) -> String {
    format!("http://{admin}{path}")
}

fn get(admin: &str) -> anyhow::Result<Status> {
    let agent = agent(ANSWER_MAX);
    let answer = agent.get(url(admin, "/status")).call();
    read(admin, answer)
}

/// Without a token the node says where it has its own.
fn post<T: DeserializeOwned>(
    admin: &str,
    path: &str,
    body: &impl Serialize,
    token: Option<&Token>,
) -> anyhow::Result<T> {
    let mut request = agent(CHANGE_MAX).post(url(admin, path));
    if let Some(token) = token {
        request = request.header("Authorization", token.authorization());
    }
    read(admin, request.send_json(body))
}

fn agent(patience: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(patience))
        // The body says what went wrong.
        .http_status_as_error(false);
    config.build().into()
}

fn read<T: DeserializeOwned>(
    admin: &str,
    answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> anyhow::Result<T> {
    let mut answer = answer.with_context(|| {
        format!("no node answers at {admin}; give the admin address of a live one with --admin")
    })?;
    let status = answer.status();
    let body = answer.body_mut();
    if status.is_success() {
        return body.read_json().with_context(|| {
            format!("{admin} answers, but not as a Quorate node of this version")
        });
    }
    match body.read_json::<Problem>() {
        Ok(problem) => bail!("{}", problem.error),
        Err(_) => bail!("{admin} answered {status}"),
    }
}

fn render(status: &Status, nodes: &[Option<Status>]) -> Vec<String> {
    let mut lines = vec![format!(
        "cluster {}, epoch {}, seen by node {} ({})",
        status.cluster,
        status.epoch,
        status.node,
        if status.serving { "serving" } else { "not serving" },
    )];
    if let Some(reason) = &status.reason {
        lines.push(format!("  {reason}"));
    }
    if let Some(seconds) = status.formed_seconds_ago {
        lines.push(format!("  formed {seconds} s ago, empty: what its nodes held before is gone"));
    }
    for member in &status.members {
        if let Some(progress) = Progress::of(&status.members, member.node) {
            lines.push(format!("  {}", leaving(member.node, progress)));
        }
    }
    for (member, node) in status.members.iter().zip(nodes) {
        let disk = node.as_ref().and_then(|node| node.disk.as_ref());
        for alarm in disk.iter().flat_map(|disk| &disk.alarms) {
            lines.push(format!("  disk of node {}: {}", member.node, alarm.text));
        }
    }
    lines.push(String::new());
    let mut members = vec![row(&[
        "NODE", "ROLE", "LIVE", "SERVING", "EPOCH", "LEASE", "HEARD", "CLIENTS", "REDIS", "ADMIN",
    ])];
    for (member, node) in status.members.iter().zip(nodes) {
        let own = |value: fn(&Status) -> String| node.as_ref().map_or("-".into(), value);
        let live = match (member.live, member.suspected) {
            (false, _) => "no",
            (true, true) => "suspected",
            (true, false) => "yes",
        };
        members.push(vec![
            member.node.to_string(),
            member.role.clone(),
            live.to_owned(),
            own(|node| if node.serving { "yes".into() } else { "no".into() }),
            own(|node| node.epoch.to_string()),
            own(|node| format!("{} ms", node.lease_remaining_ms)),
            member.last_heard_ms.map_or("-".into(), |age| format!("{age} ms ago")),
            own(|node| node.clients.to_string()),
            member.client.clone(),
            member.admin.clone(),
        ]);
    }
    lines.extend(align(&members));
    lines.push(String::new());
    lines.extend(align(&keyspaces(nodes)));
    for link in status.links.iter().filter(|link| !link.up && !link.complaint.is_empty()) {
        lines.push(format!("lane {} to node {}: {}", link.lane, link.peer, link.complaint));
    }
    lines
}

/// One line for each keyspace of each node that answers: what it holds, and how far it is behind
/// the node that holds most.
fn keyspaces(nodes: &[Option<Status>]) -> Vec<Vec<String>> {
    let mut rows = vec![row(&[
        "DB",
        "NAME",
        "ENGINE",
        "NODE",
        "KEYS",
        "EXPIRING",
        "BYTES",
        "CAUGHT UP",
        "LAG",
        "PENDING",
    ])];
    let answering = || nodes.iter().flatten();
    let Some(first) = answering().next() else { return rows };
    for keyspace in &first.keyspaces {
        let of =
            |node: &Status| node.keyspaces.iter().find(|other| other.db == keyspace.db).cloned();
        let most = answering().filter_map(of).map(|other| other.keys).max().unwrap_or(0);
        let used = most > 0 || keyspace.db == 0;
        for node in answering().filter(|_| used) {
            let Some(here) = of(node) else { continue };
            rows.push(vec![
                here.db.to_string(),
                here.name,
                here.engine,
                node.node.to_string(),
                here.keys.to_string(),
                here.expiring.to_string(),
                here.bytes.to_string(),
                if here.caught_up { "yes".into() } else { format!("copied {}", here.copied) },
                format!("{} keys", most - here.keys),
                pending(&here.gauges).to_string(),
            ]);
        }
    }
    rows
}

fn pending(gauges: &BTreeMap<String, u64>) -> u64 {
    PENDING.iter().filter_map(|name| gauges.get(*name)).sum()
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

/// Pads cells to columns.
fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_not_pending() {
        let gauges = [("records", 7), ("attempts", 2), ("waiting", 1), ("undecided", 5)];
        let gauges = gauges.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(pending(&BTreeMap::from(gauges)), 3);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [row(&["A", "LONG"]), row(&["long", "B"])];
        assert_eq!(align(&rows), ["A     LONG", "long  B"]);
    }
}
