//! What `dev` and `serve` have in common: signals, waiting, the end.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, ensure};
use quorate_admin::{Endpoint, Token};
use quorate_runtime::{Handle, HostedNode, Options};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log::{Logs, complain};

/// How often the beginning of service is looked for.
const READY_POLL: Duration = Duration::from_millis(5);
/// The exit code after a signal that ends what is under way, as shells report an interrupt.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// The exit code if a disk has failed, or what it holds can't be restored (EX_IOERR).
const EXIT_DISK: u8 = 74;

/// Says why the process can't go on, and ends it.
pub(crate) fn fail(why: &str) -> ! {
    complain(&format!("error: {why}"));
    std::process::exit(i32::from(EXIT_DISK))
}

/// Runs nodes until they stop: on SIGTERM or SIGINT, which drain, or on a client's `SHUTDOWN`. A
/// second signal ends the process at once. `ready` is called once every node serves.
pub(crate) fn run(
    nodes: Vec<HostedNode>,
    admin: Vec<Endpoint>,
    options: Options,
    logs: &Logs,
    ready: impl FnOnce(&Handle),
) -> anyhow::Result<()> {
    share_files(&nodes)?;
    let mut signals =
        Signals::new([SIGTERM, SIGINT]).context("cannot listen to signals of the system")?;
    let runtime = quorate_runtime::start(nodes, options).context("cannot start the lanes")?;
    let handle = runtime.handle().clone();
    let stopper = handle.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if stopper.is_stopping() {
                std::process::exit(i32::from(EXIT_INTERRUPTED));
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

/// Leaves descriptors to what isn't a client: raises the limit of open files as far as the system
/// allows, and bounds the clients by what is left of it.
fn share_files(nodes: &[HostedNode]) -> anyhow::Result<()> {
    let Some(limit) = quorate_runtime::raise_file_limit() else { return Ok(()) };
    let own = quorate_runtime::files_needed(nodes) + quorate_admin::CONNECTIONS_MAX as u64;
    let remedy = "raise it (ulimit -Hn, or LimitNOFILE of systemd)";
    let each = limit.saturating_sub(own) / nodes.len() as u64;
    ensure!(
        each > 0,
        "the limit of open files is {limit}, and this process needs {own} for peers, \
         administrators and itself, and one for each client of a node; {remedy}"
    );
    for node in nodes {
        let settings = &node.settings;
        settings.max_clients_ceiling.store(each, Relaxed);
        let wanted = settings.max_clients.load(Relaxed);
        if wanted > each {
            settings.max_clients.store(each, Relaxed);
            tracing::warn!(
                "maxclients is {each} instead of {wanted}: the limit of open files is {limit}, and \
                 {own} are kept for peers, administrators and the process itself; {remedy}, or \
                 lower maxclients"
            );
        }
    }
    Ok(())
}
