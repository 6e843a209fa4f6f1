//! What `dev` and `serve` have in common: signals, waiting, the end.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use quorate_admin::{Endpoint, Token};
use quorate_runtime::{Handle, HostedNode, Options};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log::Logs;

/// How often the beginning of service is looked for.
const READY_POLL: Duration = Duration::from_millis(5);
/// The exit code after a second signal, as shells report an interrupt.
const EXIT_INTERRUPTED: i32 = 130;

/// Runs nodes until they stop: on SIGTERM or SIGINT, which drain, or on a client's `SHUTDOWN`. A
/// second signal ends the process at once. `ready` is called once every node serves.
pub(crate) fn run(
    nodes: Vec<HostedNode>,
    admin: Vec<Endpoint>,
    options: Options,
    logs: &Logs,
    ready: impl FnOnce(&Handle),
) -> anyhow::Result<()> {
    if let Some(limit) = quorate_runtime::raise_file_limit() {
        warn_about_files(limit, &nodes);
    }
    let mut signals =
        Signals::new([SIGTERM, SIGINT]).context("cannot listen to signals of the system")?;
    let runtime = quorate_runtime::start(nodes, options).context("cannot start the lanes")?;
    let handle = runtime.handle().clone();
    let stopper = handle.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if stopper.is_stopping() {
                std::process::exit(EXIT_INTERRUPTED);
            }
            tracing::info!(signal, "finishing what is pending; a second signal ends at once");
            stopper.stop();
        }
    })?;
    let counts = std::sync::Arc::clone(&logs.counts);
    quorate_admin::serve(admin, handle.clone(), counts)
        .context("cannot start the admin endpoint")?;
    if wait_until_serving(&handle) {
        ready(&handle);
    }
    runtime.join();
    Ok(())
}

/// The token of this process's nodes. Without one they serve all the same, and refuse changes.
pub(crate) fn token(file: &Path) -> Result<Token, String> {
    Token::read_or_make(file)
        .inspect(|_| tracing::info!(file = %file.display(), "the token for changes of the members"))
        .map_err(|error| {
            tracing::warn!("changes of the members will be refused: {error}");
            error.to_string()
        })
}

/// Waits until every node serves; false if the nodes stop before that. Says now and then what it
/// waits for.
fn wait_until_serving(handle: &Handle) -> bool {
    let mut said = Vec::new();
    let mut polls: u32 = 0;
    while !handle.is_stopping() {
        let reasons: Vec<String> = handle
            .nodes()
            .iter()
            .filter_map(|node| {
                let reason = node.not_serving()?;
                Some(format!("node {}: {reason}", node.config().node))
            })
            .collect();
        if reasons.is_empty() {
            return true;
        }
        polls += 1;
        if polls.is_multiple_of(400) && reasons != said {
            for reason in &reasons {
                tracing::info!("waiting: {reason}");
            }
            said = reasons;
        }
        std::thread::sleep(READY_POLL);
    }
    false
}

fn warn_about_files(limit: u64, nodes: &[HostedNode]) {
    let clients: u64 = nodes
        .iter()
        .map(|node| node.settings.max_clients.load(std::sync::atomic::Ordering::Relaxed))
        .sum();
    if limit < clients {
        tracing::info!(
            limit,
            clients,
            "fewer files may be open than there may be clients; raise the limit (ulimit -n) to \
             serve them all"
        );
    }
}
