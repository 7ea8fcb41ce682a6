//! Kills processes while they write, and looks for what they had written.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use adit_sim::torture::{self, Options, Pattern, Plant};

const USAGE: &str = "\
usage: adit-torture --dir DIR [--rounds N] [--seed S]
                    [--pattern append|overwrite|mixed|counter|staged|group]
                    [--mode posix|sync|atomic|strict|each [--adit COMMAND] [--declare yes]]
                    [--preload LIBRARY] [--monitor-pid PID] [--monitor COMMAND] [--recover COMMAND]
                    [--plant lose|seek|corrupt|forget] [-- COMMAND...]

Starts writers in DIR, kills them with SIGKILL at random instants, and checks that everything they
had acknowledged is in the files. With --mode they run under `adit run`, whose monitor is stopped and
killed as well; each: all modes in turn; DIR can be declared (`--path`). A COMMAND after -- is put in front of each writer (adit run --);
commands of options are split at spaces. Exit status 1 when anything is lost, 2 when it cannot run.";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--writer") {
        return writer(&arguments[1..]);
    }
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("adit-torture: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match torture::run(&options) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(defeat) => {
            eprintln!("adit-torture: {defeat} (seed {})", options.seed);
            ExitCode::from(if matches!(defeat, torture::Defeat::Lost { .. }) {
                1
            } else {
                2
            })
        }
    }
}

fn writer(arguments: &[OsString]) -> ExitCode {
    let arguments: Option<Vec<String>> = arguments
        .iter()
        .map(|argument| argument.to_str().map(str::to_owned))
        .collect();
    let result = arguments
        .ok_or_else(|| String::from("arguments that are not text"))
        .and_then(|arguments| torture::writer_main(&arguments));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: Vec<OsString>) -> Result<Options, String> {
    let program = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let mut options = Options::new(program, PathBuf::new());
    let mut rest = arguments.into_iter();
    while let Some(flag) = rest.next() {
        let flag = flag
            .into_string()
            .map_err(|flag| format!("unknown argument {flag:?}"))?;
        match flag.as_str() {
            "--" => {
                options.wrap = rest.by_ref().collect();
                break;
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => {}
        }
        let value = rest.next().ok_or_else(|| format!("{flag} needs a value"))?;
        set(&mut options, &flag, value)?;
    }
    if options.dir.as_os_str().is_empty() {
        return Err(String::from("--dir DIR is needed"));
    }
    if let Some((command, _)) = &options.adit
        && !command.is_file()
    {
        return Err(format!("{}: no such command", command.display()));
    }
    Ok(options)
}

fn set(options: &mut Options, flag: &str, value: OsString) -> Result<(), String> {
    let text = || {
        value
            .to_str()
            .ok_or_else(|| format!("{flag} {value:?} is not text"))
    };
    let number = || {
        text()?
            .parse::<u64>()
            .map_err(|_| format!("{flag} needs a number"))
    };
    let words = || Ok::<_, String>(text()?.split_whitespace().map(OsString::from).collect());
    match flag {
        "--rounds" => options.rounds = number()?,
        "--seed" => options.seed = number()?,
        "--dir" => options.dir = value.clone().into(),
        "--preload" => {
            let path = std::path::absolute(&value).map_err(|error| format!("{flag}: {error}"))?;
            if !path.is_file() {
                return Err(format!("{}: no such library", path.display()));
            }
            options.preload = Some(path);
        }
        "--mode" => {
            let mode = text()?;
            if !["posix", "sync", "atomic", "strict", "each"].contains(&mode) {
                return Err(format!("no mode {mode}"));
            }
            let beside = options.program.with_file_name("adit");
            let command = options.adit.take().map_or(beside, |(command, _)| command);
            options.adit = Some((command, mode.to_owned()));
        }
        "--declare" => match text()? {
            "yes" => options.declared = true,
            other => return Err(format!("{flag} yes, or not at all: not {other}")),
        },
        "--adit" => {
            let path = std::path::absolute(&value).map_err(|error| format!("{flag}: {error}"))?;
            let mode = options.adit.take().map(|(_, mode)| mode);
            options.adit = Some((path, mode.unwrap_or_else(|| String::from("posix"))));
        }
        "--monitor-pid" => {
            let pid = i32::try_from(number()?).map_err(|_| format!("{flag} needs a process id"))?;
            options.monitor_pid = Some(pid);
        }
        "--monitor" => options.monitor = words()?,
        "--recover" => options.recover = words()?,
        "--pattern" => {
            let pattern = Pattern::from_name(text()?);
            options.pattern = Some(pattern.ok_or_else(|| format!("no pattern {value:?}"))?);
        }
        "--plant" => {
            let plant = Plant::from_name(text()?);
            options.plant = plant.ok_or_else(|| format!("no plant {value:?}"))?;
        }
        _ => return Err(format!("unknown argument {flag}")),
    }
    Ok(())
}
