//! The members of the cluster: what they say of themselves, and a pause of their clients' writes.

use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::cut::Standing;
use super::follow;
use crate::transfer::{Connection, Reply, Target, Trouble, answers, ask, expect_ok, send_all};

/// The lines of some sections of `INFO`.
pub(super) fn info(connection: &mut Connection, sections: &[&str]) -> Result<String, Trouble> {
    match ask(connection, &[&["INFO"], sections].concat())? {
        Reply::Bulk(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        other => Err(anyhow!("the target answered INFO with {other:?}").into()),
    }
}

/// What a line says.
pub(super) fn said<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// A field of a line of several.
pub(super) fn field<'t>(line: &'t str, name: &str) -> Option<&'t str> {
    line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// What is followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Followed {
    /// The life of the node.
    pub(super) life: String,
    /// How often it had not told key by key what has changed.
    untold: String,
}

/// What would be followed by a connection.
pub(super) fn followed(connection: &mut Connection) -> Result<Followed, Trouble> {
    let text = info(connection, &["server", "stats"])?;
    let said = |name| said(&text, name).map(str::to_owned);
    let lacks = || anyhow!("INFO has no run_id or no tracking_untold; is the node older?");
    let (life, untold) = said("run_id").zip(said("tracking_untold")).ok_or_else(lacks)?;
    Ok(Followed { life, untold })
}

struct Node {
    name: String,
    connection: Connection,
}

/// Connections to all members.
pub(super) struct Nodes {
    nodes: Vec<Node>,
    rounds: u64,
    paused_until: Option<Instant>,
}

impl Nodes {
    /// Connects to every member that serves, as a node's `INFO` says.
    pub(super) fn connect(target: &Target, about: &str) -> Result<Self, Trouble> {
        let mut nodes = Vec::new();
        for line in about.lines() {
            let Some((number, line)) =
                line.strip_prefix("member").and_then(|rest| rest.split_once(':'))
            else {
                continue;
            };
            let role = field(line, "role").unwrap_or_default();
            let address = field(line, "address").unwrap_or_default();
            if number.parse::<u16>().is_err() || role != "active" {
                continue;
            }
            let name = format!("node {number} ({address})");
            let opened = target.open(address).map_err(|trouble| match trouble {
                Trouble::Later(why) => Trouble::Later(format!("{name}: {why}")),
                Trouble::Stop(error) => Trouble::Stop(error.context(name.clone())),
            });
            nodes.push(Node { name, connection: opened? });
        }
        Ok(Self { nodes, rounds: 0, paused_until: None })
    }

    /// What each of them says now.
    pub(super) fn ask(&mut self) -> Result<Vec<Standing>, Trouble> {
        self.rounds += 1;
        let prefix = follow::prefix(self.rounds);
        let round = follow::round(&prefix);
        // What the lanes count is published with such a round.
        let commands: [&[&str]; 3] = [&round, &follow::END_OF_ROUND, &["INFO", "quorate"]];
        for node in &mut self.nodes {
            send_all(&mut node.connection, &commands)?;
        }
        let mut standings = Vec::new();
        for node in &mut self.nodes {
            let answer = answers(&mut node.connection, commands.len())?.pop();
            let Some(Reply::Bulk(text)) = answer else {
                return Err(anyhow!("{} answered INFO with {answer:?}", node.name).into());
            };
            let text = String::from_utf8_lossy(&text);
            let number = |name| said(&text, name).and_then(|number| number.parse().ok());
            let lacks = |name| anyhow!("{}: INFO has no {name}; is it older?", node.name);
            standings.push(Standing {
                epoch: number("epoch").ok_or_else(|| lacks("epoch"))?,
                unsettled: number("unsettled_updates").ok_or_else(|| lacks("unsettled_updates"))?,
                serves: said(&text, "lease") == Some("held")
                    && said(&text, "node_role") == Some("active"),
            });
        }
        Ok(standings)
    }

    /// Has the clients of all nodes wait with what may change something, for so long at most.
    pub(super) fn pause(&mut self, most: Duration) -> Result<(), Trouble> {
        // The first one's ends first.
        self.paused_until = Some(Instant::now() + most);
        let words = pause_words(most);
        self.nodes.iter_mut().try_for_each(|node| expect_ok(&mut node.connection, &words))
    }

    /// How much longer they wait; `None` if no pause was asked for.
    pub(super) fn pause_left(&self) -> Option<Duration> {
        self.paused_until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Ends the pause. Says whether there was one.
    pub(super) fn go_on(&mut self) -> bool {
        let words = pause_words(Duration::ZERO);
        let was_paused = self.paused_until.take().is_some();
        if was_paused {
            for node in &mut self.nodes {
                // If it can't be told, its pause ends by itself.
                let _ = expect_ok(&mut node.connection, &words);
            }
        }
        was_paused
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// A pause that nobody's `CLIENT UNPAUSE` ends; one of no length ends it.
fn pause_words(span: Duration) -> [String; 5] {
    ["CLIENT", "PAUSE", &span.as_millis().to_string(), "WRITE", "BACKUP"].map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_info_are_taken_apart() {
        let text = "# Quorate\r\nepoch:7\r\nmember2:role=active,address=h:1\r\n";
        assert_eq!(said(text, "epoch"), Some("7"));
        assert_eq!(said(text, "epo"), None);
        let line = said(text, "member2").expect("it is there");
        assert_eq!((field(line, "role"), field(line, "address")), (Some("active"), Some("h:1")));
        assert_eq!(field(line, "addr"), None);
    }
}
