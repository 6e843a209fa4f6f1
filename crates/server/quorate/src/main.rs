//! The Quorate program. See `README.md` for what it does and `docs/` for how to operate it.

mod backup;
mod bench;
mod check;
mod cli;
mod dev;
mod engine_arg;
mod export;
mod import;
mod log;
mod log_files;
mod restore;
mod run;
mod serve;
mod sim;
mod status;
mod transfer;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Dev(options) => dev::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Status(options) => status::show(&options),
        Command::Member(options) => status::change_members(&options),
        Command::Recover(options) => status::recover(&options),
        Command::Check(options) => return check::run(&options),
        Command::Log(options) => return log_files::run(&options),
        Command::Backup(options) => backup::run(&options),
        Command::Restore(options) => restore::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Export(options) => export::run(&options),
        Command::Import(options) => import::run(&options),
        Command::Sim(options) => return sim::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
