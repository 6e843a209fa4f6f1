//! Clients that publish and clients that listen, on every lane of every node.
//!
//! To each lane that listens the messages of a lane that publishes come in order and none twice, and
//! only those of channels to which it listens or has listened. Messages may get lost, but once faults
//! have ended every lane knows how many listen, and hears what is published on any other: what clients
//! listen to survives every change of the view. What is drawn here is drawn apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quorate_machine::Rng;
use quorate_types::{Publication, Topic};

use crate::world::{Event, MS, World};

/// The longest pause between two acts.
const PAUSE: u64 = 16 * MS;
/// The channels, of which nobody listens to the last one.
const CHANNELS: u8 = 4;
const UNHEARD: u8 = CHANNELS - 1;

/// A lane of a node's process, by its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    pub(crate) node: usize,
    pub(crate) life: u64,
    pub(crate) lane: usize,
}

/// What the clients of a lane do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Publish(u8),
    /// Begins or ends to listen.
    Listen(u8, bool),
}

/// What a lane's clients listen to, and what they have heard.
#[derive(Debug, Default)]
struct Listener {
    now: BTreeSet<u8>,
    ever: BTreeSet<u8>,
    /// The number of the last message of each lane that publishes.
    heard: BTreeMap<Place, u64>,
}

/// The clients of all lanes.
pub(crate) struct Channels {
    rng: Rng,
    /// Whether clients do anything more.
    pub(crate) working: bool,
    listeners: BTreeMap<Place, Listener>,
    /// How many messages each lane has published.
    published: BTreeMap<Place, u64>,
    /// What no correct cluster tells its clients.
    pub(crate) complaints: Vec<String>,
}

impl Channels {
    pub(crate) fn new(seed: u64, world: &mut World) -> Self {
        world.schedule(0, Event::Channels);
        Self {
            rng: Rng::new(seed ^ u64::from_le_bytes(*b"channels")),
            working: true,
            listeners: BTreeMap::new(),
            published: BTreeMap::new(),
            complaints: Vec::new(),
        }
    }

    /// Draws what some client does.
    pub(crate) fn draw(&mut self, world: &mut World) {
        if !self.working {
            return;
        }
        let node = self.rng.below(world.nodes.len() as u64) as usize;
        let lane = self.rng.below(u64::from(world.lanes())) as usize;
        let act = match self.rng.chance(1, 8) {
            true => Act::Listen(self.rng.below(u64::from(UNHEARD)) as u8, self.rng.chance(3, 4)),
            false => Act::Publish(self.rng.below(u64::from(CHANNELS)) as u8),
        };
        let (life, at) = (world.nodes[node].life, world.time + 1 + self.rng.below(PAUSE));
        world.schedule(at, Event::Channels);
        self.act(world, Place { node, life, lane }, act);
    }

    /// Does it, once the lane runs.
    pub(crate) fn act(&mut self, world: &mut World, place: Place, act: Act) {
        let Place { node, life, lane } = place;
        if !world.nodes[node].up || world.nodes[node].life != life {
            return;
        }
        if world.hold(node, lane as u16, Event::Channel { place, act }).is_none() {
            return;
        }
        match act {
            Act::Listen(channel, begins) => {
                let listener = self.listeners.entry(place).or_default();
                if begins {
                    listener.now.insert(channel);
                    listener.ever.insert(channel);
                } else {
                    listener.now.remove(&channel);
                }
                world.listen(node, lane, &name(channel), u32::from(begins));
            }
            Act::Publish(channel) => {
                let number = self.published.entry(place).or_default();
                *number += 1;
                let message = format!("{node} {life} {lane} {number}").into_bytes().into();
                let channel_name = name(channel).into_bytes().into();
                let topic = Topic::Channel;
                let publication = Publication { topic, channel: channel_name, message };
                let receivers = world.publish(node, lane, &Arc::new(publication));
                if channel == UNHEARD && receivers > 0 {
                    let wrong = format!("{receivers} listen to a channel to which nobody listens");
                    self.complaints.push(wrong);
                }
            }
        }
    }

    /// Takes what lanes have heard.
    pub(crate) fn collect(&mut self, world: &mut World) {
        for (place, publication) in std::mem::take(&mut world.published) {
            if let Err(wrong) = self.hear(place, &publication) {
                let text = String::from_utf8_lossy(&publication.message);
                self.complaints.push(format!("{place:?} hears \"{text}\": {wrong}"));
            }
        }
    }

    fn hear(&mut self, place: Place, publication: &Publication) -> Result<(), &'static str> {
        let listener = self.listeners.get_mut(&place).ok_or("it never listened")?;
        let known = listener.ever.iter().any(|one| name(*one).as_bytes() == &*publication.channel);
        if !known {
            return Err("it never listened to that");
        }
        let text = String::from_utf8_lossy(&publication.message);
        let parts: Vec<u64> = text.split(' ').filter_map(|part| part.parse().ok()).collect();
        let [node, life, lane, number] = parts[..] else { return Err("nobody says that") };
        let from = Place { node: node as usize, life, lane: lane as usize };
        match listener.heard.insert(from, number) {
            Some(before) if before == number => Err("twice"),
            Some(before) if before > number => Err("out of order"),
            _ => Ok(()),
        }
    }

    /// Publishes on every lane for every channel; see [`Channels::missing`].
    pub(crate) fn publish_everywhere(&mut self, world: &mut World) {
        for node in 0..world.nodes.len() {
            for lane in 0..usize::from(world.lanes()) {
                let place = Place { node, life: world.nodes[node].life, lane };
                for channel in 0..CHANNELS {
                    self.act(world, place, Act::Publish(channel));
                }
            }
        }
    }

    /// A lane that has not heard the last message of another one for it, or counts other listeners than
    /// there are. What is published on the lane itself, it hands to its clients without being asked.
    pub(crate) fn missing(&self, world: &World) -> Option<String> {
        let is_there = |place: &Place| world.nodes[place.node].life == place.life;
        let listeners = || self.listeners.iter().filter(|(place, _)| is_there(place));
        for (place, all) in self.published.iter().filter(|(place, _)| is_there(place)) {
            let lane = &world.nodes[place.node].lanes[place.lane].lane;
            for channel in 0..CHANNELS {
                let count =
                    listeners().filter(|(_, one)| one.now.contains(&channel)).count() as u64;
                let counted = lane.listeners(Topic::Channel, name(channel).as_bytes());
                if counted != count {
                    return Some(format!("{place:?} counts {counted} listeners, not {count}"));
                }
            }
            for (other, listener) in listeners().filter(|(other, _)| *other != place) {
                // The last of its messages, one for each channel, are the last that it published.
                let Some(last) = listener.now.last() else { continue };
                let wanted = all + 1 + u64::from(*last) - u64::from(CHANNELS);
                let heard = listener.heard.get(place).copied().unwrap_or_default();
                if heard < wanted {
                    return Some(format!("{other:?} heard {heard} of {wanted} of {place:?}"));
                }
            }
        }
        None
    }
}

fn name(channel: u8) -> String {
    format!("channel:{channel}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(channel: u8, message: &str) -> Publication {
        let (channel, message) = (name(channel).into_bytes().into(), message.as_bytes().into());
        Publication { topic: Topic::Channel, channel, message }
    }

    #[test]
    fn a_listener_hears_each_lane_in_order_and_nothing_else() {
        let place = Place { node: 0, life: 0, lane: 0 };
        let listener = Listener { ever: BTreeSet::from([1]), ..Listener::default() };
        let mut channels = Channels {
            rng: Rng::new(0),
            working: true,
            listeners: BTreeMap::from([(place, listener)]),
            published: BTreeMap::new(),
            complaints: Vec::new(),
        };
        let mut hear = |channel, message| channels.hear(place, &said(channel, message));
        assert_eq!(hear(1, "1 0 0 4"), Ok(()));
        assert_eq!(hear(1, "1 0 0 6"), Ok(()));
        assert_eq!(hear(1, "1 0 1 5"), Ok(()));
        assert_eq!(hear(1, "1 1 0 1"), Ok(()));
        assert_eq!(hear(1, "1 1 0 1"), Err("twice"));
        assert_eq!(hear(1, "1 0 0 5"), Err("out of order"));
        assert_eq!(hear(2, "1 0 0 9"), Err("it never listened to that"));
        assert_eq!(
            channels.hear(Place { life: 1, ..place }, &said(1, "1 0 0 9")),
            Err("it never listened")
        );
    }
}
