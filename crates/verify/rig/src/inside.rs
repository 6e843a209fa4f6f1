//! The namespaces that the rig runs in.
//!
//! The program starts itself again under `unshare`, in a network, mount and process namespace of
//! its own. So nothing that it does to networks is visible outside, the addresses of two runs never
//! meet, and the kernel ends every process in there when the first one ends, even by SIGKILL.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, ensure};

/// Set in the environment of the process inside.
const MARK: &str = "QUORATE_RIG_INSIDE";

/// Goes on inside; returns there only.
pub(crate) fn enter() -> anyhow::Result<()> {
    if std::env::var_os(MARK).is_some() {
        return Ok(());
    }
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    ensure!(
        Command::new("unshare").arg("--version").output().is_ok(),
        "the rig needs unshare, nsenter (util-linux), ip, ss and tc (iproute2)"
    );
    let failed =
        command.args(spaces).arg(std::env::current_exe()?).args(words).env(MARK, "1").exec();
    Err(failed).context("cannot make namespaces: be root, or allow user namespaces")
}
