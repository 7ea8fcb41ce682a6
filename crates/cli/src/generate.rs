//! Man pages and shell completions, made from the definitions of the command line.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::failure::{Failure, Outcome};

/// Writes a page for `adit` and one for each of its commands into `dir`.
pub(crate) fn man(dir: &Path) -> Outcome {
    let failed = |e: std::io::Error| {
        Failure::new(format!("{}: {e}", dir.display())).next("name a directory to write to")
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(failed)?;
    Ok(0)
}

/// Prints the completions for a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Outcome {
    // It panics where it cannot write.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "adit", &mut text);
    print!("{}", String::from_utf8_lossy(&text));
    Ok(0)
}
