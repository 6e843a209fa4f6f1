//! How often a line may be repeated: a peer that connects, sends garbage and comes again must not
//! fill the log, nor hide other lines.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_admin::LogCounts;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::Context;

/// Lines are counted from the beginning of one window to the next.
pub(super) const WINDOW: Duration = Duration::from_secs(5);
/// Lines that one place in the code may log in a window.
const SITE_LINES_MAX: u32 = 100;
/// Lines of these that may be about one sender, where a line names it in its field `sender`.
const SENDER_LINES_MAX: u32 = 5;

/// Lets events through that are not repeated too often. Events below [`Level::INFO`] are only seen
/// by somebody who asked for all of them.
pub(super) struct Layer(pub(super) Arc<Limit>);

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::INFO {
            return true;
        }
        let mut words = Words::default();
        event.record(&mut words);
        self.0.admits(event.metadata().callsite(), words, Instant::now())
    }
}

/// What a line says, as far as the limit looks at it.
#[derive(Default)]
struct Words {
    message: String,
    sender: Option<String>,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            // Writing to a string doesn't fail.
            "message" => drop(write!(self.message, "{value:?}")),
            "sender" => self.sender = Some(format!("{value:?}")),
            _ => {}
        }
    }
}

/// The lines of the current window.
pub(super) struct Limit {
    window: Mutex<Window>,
    counts: Arc<LogCounts>,
}

struct Window {
    begun: Instant,
    sites: HashMap<Identifier, Site>,
    /// What was left out in former windows and has not been said: how many lines like which.
    left_out: Vec<(String, u64)>,
}

/// One place in the code that logs.
#[derive(Default)]
struct Site {
    lines: u32,
    /// Only senders with lines that were let through, and so at most [`SITE_LINES_MAX`].
    senders: HashMap<String, u32>,
    left_out: u64,
    /// The first line that was left out.
    message: String,
}

impl Limit {
    pub(super) fn new(counts: Arc<LogCounts>) -> Self {
        let window = Window { begun: Instant::now(), sites: HashMap::new(), left_out: Vec::new() };
        Self { window: Mutex::new(window), counts }
    }

    fn admits(&self, site: Identifier, words: Words, now: Instant) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.turn(now);
        let site = window.sites.entry(site).or_default();
        let admitted = site.admits(words);
        self.counts.repeated.fetch_add(u64::from(!admitted), Relaxed);
        admitted
    }

    /// Logs how many lines were left out in windows that have ended.
    pub(super) fn report(&self, now: Instant) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.turn(now);
        let left_out = std::mem::take(&mut window.left_out);
        // What is logged now comes by here.
        drop(window);
        for (message, lines) in left_out {
            tracing::warn!(lines, "more lines like this were left out: {message}");
        }
    }
}

impl Window {
    fn turn(&mut self, now: Instant) {
        if now.saturating_duration_since(self.begun) < WINDOW {
            return;
        }
        self.begun = now;
        for (_, site) in self.sites.drain().filter(|(_, site)| site.left_out > 0) {
            match self.left_out.iter_mut().find(|(message, _)| *message == site.message) {
                Some((_, lines)) => *lines += site.left_out,
                None => self.left_out.push((site.message, site.left_out)),
            }
        }
    }
}

impl Site {
    fn admits(&mut self, words: Words) -> bool {
        let from_sender =
            words.sender.as_ref().and_then(|sender| self.senders.get(sender)).copied();
        if self.lines >= SITE_LINES_MAX || from_sender >= Some(SENDER_LINES_MAX) {
            if self.left_out == 0 {
                self.message = words.message;
            }
            self.left_out += 1;
            return false;
        }
        self.lines += 1;
        if let Some(sender) = words.sender {
            *self.senders.entry(sender).or_insert(0) += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(message: &str, sender: Option<&str>) -> Words {
        Words { message: message.to_owned(), sender: sender.map(str::to_owned) }
    }

    #[test]
    fn one_sender_has_few_lines_and_leaves_room_for_others() {
        let mut site = Site::default();
        let admitted = (0..1000).filter(|_| site.admits(words("refused", Some("a")))).count();
        assert_eq!(admitted, SENDER_LINES_MAX as usize);
        assert!(site.admits(words("refused", Some("b"))));
        assert_eq!((site.left_out, site.message.as_str()), (995, "refused"));
        // Many senders together have what the place in the code has.
        let admitted =
            (0..1000).filter(|n| site.admits(words("refused", Some(&n.to_string())))).count();
        assert_eq!(admitted, (SITE_LINES_MAX - SENDER_LINES_MAX - 1) as usize);
        assert!(site.senders.len() <= SITE_LINES_MAX as usize);
    }

    #[test]
    fn what_was_left_out_is_kept_until_it_is_said_and_the_next_window_is_free() {
        let begun = Instant::now();
        let mut window = Window { begun, sites: HashMap::new(), left_out: Vec::new() };
        let site = Identifier(&SITE);
        let fill = |window: &mut Window, lines: usize| {
            let site = window.sites.entry(site.clone()).or_default();
            (0..lines).filter(|_| site.admits(words("lost", None))).count()
        };
        assert_eq!(fill(&mut window, 150), SITE_LINES_MAX as usize);
        window.turn(begun + WINDOW / 2);
        assert_eq!(fill(&mut window, 10), 0);
        window.turn(begun + WINDOW);
        assert_eq!(fill(&mut window, 101), SITE_LINES_MAX as usize);
        window.turn(begun + 2 * WINDOW);
        assert_eq!(window.left_out, [("lost".to_owned(), 61)]);
    }

    struct Nowhere;
    static SITE: Nowhere = Nowhere;

    impl tracing::Callsite for Nowhere {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}

        fn metadata(&self) -> &tracing::Metadata<'_> {
            unreachable!("the limit compares places by identity")
        }
    }
}
