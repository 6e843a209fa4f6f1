//! `quorate serve`: one node of a cluster.

use anyhow::Context;
use quorate_runtime::{HostedNode, NodeDisk, Options};

use crate::cli::Serve;
use crate::log::{self, say};
use crate::run;
use quorate_admin::Endpoint;
use quorate_config::Config;

/// Starts the node and runs it until it is stopped.
pub(crate) fn run(options: &Serve) -> anyhow::Result<()> {
    let logs = log::start("info")?;
    let config = Config::read(&options.config)?;
    let node = config.node(options.node)?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let directory = config.directory(&node);
    let disk = directory.as_deref().map(|path| NodeDisk::open(path, &node)).transpose()?;
    let address = config.address(&node);
    let listen = |what: &str, address: &str| {
        quorate_runtime::listen(address).with_context(|| {
            format!(
                "cannot open the {what} address of node {}; change {what} in its [[node]] of {}, \
                 or stop the process that has it",
                options.node,
                options.config.display()
            )
        })
    };
    let client = listen("client", &address.client)?;
    let peer = listen("peer", &address.peer)?;
    let admin = listen("admin", &address.admin)?;
    let token_file =
        options.token_file.clone().unwrap_or_else(|| options.config.with_extension("token"));
    let admin = Endpoint {
        listener: admin,
        names: config.admin_names(),
        token: run::token(&token_file),
        directory,
    };
    let hosted = HostedNode {
        config: node,
        client,
        peer: Some(peer),
        guests: config.guests,
        settings: config.settings(),
        password: config.password.clone(),
        disk,
    };
    let runtime = Options { pin: config.pin, busy_poll: config.busy_poll, fail: run::fail };
    run::run(vec![hosted], vec![admin], runtime, &logs, |handle| {
        let node = &handle.nodes()[0];
        say(&format!("ready: node {} serves on {}", options.node, node.client_address()));
    })
}
