//! `myelin bench`: runs an experiment.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::ApiError;
use myelin_bench::{Effort, Error, Experiment, Monitor, Options};
use myelin_report::experiment;

use super::interrupt;
use crate::output::{self, Progress};
use crate::page::Page;

/// Arguments of `myelin bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin bench --list\n  sudo myelin bench hop-cost --quick\n  \
                  sudo myelin bench kernel-chain --json\n  \
                  sudo myelin bench calvin-chain --report calvin-chain.html\n  \
                  sudo myelin bench chain-length --quick --figures figures\n\n\
                  A claim on a ratio holds when the 95 % interval of the median, over at least 30 interleaved\n\
                  rounds, lies within its bound. Measure on a quiet machine: the report says whether it was.\n\
                  Ctrl-C ends cleanly."
)]
pub(crate) struct Arguments {
    /// The experiment's name.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the experiments.
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Fewer rounds: most experiments then take less than a minute.
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a self-contained page with the claims, plots next to those of the papers, and all
    /// rows.
    #[arg(long, value_name = "FILE.html", requires = "name")]
    report: Option<PathBuf>,
    /// Write each plot as an SVG file, NAME-PLOT.svg, into this directory. Creates a missing
    /// directory.
    #[arg(long, value_name = "DIR", requires = "name")]
    figures: Option<PathBuf>,
}

/// Runs or lists experiments.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let Some(name) = &arguments.name else {
        return list_experiments(arguments.json);
    };
    let page = arguments.report.as_deref().map(Page::at).transpose()?;
    if let Some(directory) = &arguments.figures {
        let made = std::fs::create_dir_all(directory);
        made.map_err(|cause| {
            ApiError::usage(format!(
                "--figures {}: cannot create the directory: {cause}; name another directory",
                directory.display()
            ))
        })?;
        Page::at(&directory.join(name))?;
    }
    // Ctrl-C ends the experiment, which then removes everything that it made.
    let cancelled = interrupt::catch_signals()?;
    let options = Options {
        effort: if arguments.quick {
            Effort::Quick
        } else {
            Effort::Whole
        },
        program: output::program_path()?,
    };
    let progress = std::sync::Mutex::new(Progress::new());
    let show = |event| {
        if let Ok(mut progress) = progress.lock() {
            progress.show_progress(event);
        }
    };
    let monitor = Monitor {
        emit: &show,
        cancelled,
    };
    let outcome = myelin_bench::run(name, &options, &monitor);
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    let report = outcome.map_err(api_error)?;
    if arguments.json {
        output::print_json(&report)?;
    } else {
        print!("{}", experiment::text(&report, output::width()));
    }
    if let (Some(page), Some(path)) = (page, &arguments.report) {
        page.write(&myelin_bench::render_page(&report).map_err(api_error)?)?;
        if !arguments.json {
            println!("report: {}", path.display());
        }
    }
    if let Some(directory) = &arguments.figures {
        for figure in myelin_bench::render_figures(&report).map_err(api_error)? {
            let path = directory.join(figure.name);
            Page::at(&path)?.write(&figure.text)?;
            if !arguments.json {
                println!("figure: {}", path.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list_experiments(json: bool) -> Result<ExitCode, ApiError> {
    let experiments = myelin_bench::experiments();
    if json {
        let named = |one: &Experiment| serde_json::json!({ "name": one.name, "about": one.about });
        return output::print_json(&experiments.iter().map(named).collect::<Vec<_>>());
    }
    println!(
        "{} experiments; `sudo myelin bench NAME --quick` runs one in its short form",
        experiments.len()
    );
    let mut table = output::new_table(["experiment", "what it measures"]);
    table.add_rows(experiments.iter().map(|one| [one.name, one.about]));
    println!("{}", table.trim_fmt());
    Ok(ExitCode::SUCCESS)
}

fn api_error(error: Error) -> ApiError {
    match error {
        Error::Agent(error) => error,
        Error::Unknown(_) => ApiError::usage(error),
        error => ApiError::failed(error),
    }
}
