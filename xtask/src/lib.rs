//! The project's chores as a library, so that `tidy` also runs as a test and is itself tested.

pub mod ahead;
pub mod ci;
pub mod docs;
pub mod fuzz;
pub mod layers;
pub mod model;
pub mod mutants;
pub mod porcupine;
pub mod threads;
pub mod tidy;

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Where cargo puts what it builds.
pub fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}
