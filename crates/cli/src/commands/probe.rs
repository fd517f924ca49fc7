//! `myelin probe`: measures a running chain from its end hosts.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use myelin_api::{ApiError, Client, Event, ProbeOptions, ProbeRequest, ReportReply, RunDir};
use myelin_report::chain;
use myelin_report::terminal::Style;

use crate::output::{self, Progress};
use crate::page::Page;

/// Arguments of `myelin probe`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin probe tactile\n  \
                  myelin probe tactile -v\n  \
                  myelin probe tactile --mode inline --payload 256,1400 --interval 5ms --repeats 50\n  \
                  myelin probe tactile --report tactile.html\n\n\
                  Exit status 5: the SLA was not met.")]
pub(crate) struct Arguments {
    /// The chain's name.
    chain: String,
    #[command(flatten)]
    options: Options,
}

/// Options of `probe` and `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How client and server wait for a packet. `inline`: one thread polls both, which leaves out
    /// wake-ups; `spin`: two threads poll, on two cores; `blocking`: both sleep, as applications
    /// do.
    #[arg(long, value_delimiter = ',', default_value = "inline,blocking",
          value_parser = ["inline", "spin", "blocking"])]
    mode: Vec<String>,
    /// UDP payload, bytes. Measures several sizes one after the other.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "256,1400",
        value_name = "BYTES"
    )]
    payload: Vec<u16>,
    /// Time between packets, with its unit. `0us` sends the next packet when the last returns.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = output::parse_duration)]
    interval: Duration,
    /// Packets in a repeat.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Repeats. The confidence interval is over the repeats.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Write a self-contained page with plots.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Show more: all figures of the round trips, the probes' packets, histograms, the CPU.
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Plain ASCII tables and histograms.
    #[arg(long)]
    ascii: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    /// Converts the options for a request to the agent.
    pub(crate) fn to_request(&self) -> ProbeOptions {
        ProbeOptions {
            modes: self.mode.clone(),
            payloads: self.payload.clone(),
            interval_us: u64::try_from(self.interval.as_micros()).unwrap_or(u64::MAX),
            count: self.count,
            repeats: self.repeats,
        }
    }

    /// Opens the page of `--report`. Callers open the page before the measurement, so that a bad
    /// path fails at once.
    ///
    /// # Errors
    /// No page can be written to the path.
    pub(crate) fn open_page(&self) -> Result<Option<Page>, ApiError> {
        self.report.as_deref().map(Page::at).transpose()
    }

    /// Prints the reports and writes their pages, the first to `page`. The exit status is 5 if an
    /// SLA was not met.
    pub(crate) fn show_reports(
        &self,
        reports: &[ReportReply],
        page: Option<Page>,
    ) -> Result<ExitCode, ApiError> {
        if self.json {
            match reports {
                [reply] => output::print_json(&reply.envelope)?,
                replies => {
                    let envelopes: Vec<_> = replies.iter().map(|reply| &reply.envelope).collect();
                    output::print_json(&envelopes)?
                }
            };
        } else {
            let style = Style {
                ascii: self.ascii,
                ..output::style()
            };
            for reply in reports {
                print!("{}", chain::summary(&reply.report, style));
                if self.verbose {
                    print!("{}", chain::details(&reply.report, style));
                }
            }
        }
        if let (Some(path), Some(mut page)) = (&self.report, page) {
            for (index, reply) in reports.iter().enumerate() {
                let mut path = path.clone();
                if index > 0 {
                    path.set_file_name(format!(
                        "{}-{}.html",
                        path.file_stem().unwrap_or_default().to_string_lossy(),
                        reply.report.chain
                    ));
                    page = Page::at(&path)?;
                }
                page.write(&chain::page(reply).map_err(ApiError::failed)?)?;
                if !self.json {
                    println!("report: {}", path.display());
                }
            }
        }
        let is_met = reports
            .iter()
            .all(|reply| reply.report.met() != Some(false));
        Ok(output::exit_status(is_met, output::NOT_MET_STATUS))
    }
}

/// Probes the chain and prints the report.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let page = arguments.options.open_page()?;
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed(
            "no agent runs, so no chain can be probed: `myelin up FILE` deploys a chain",
        )
    })?;
    let request = ProbeRequest {
        chain: arguments.chain.clone(),
        options: arguments.options.to_request(),
    };
    let mut progress = Progress::new();
    let mut reports = Vec::new();
    let outcome = client.probe(&request, &mut |event| {
        if let Some(Event::Report(report)) = progress.show_progress(event) {
            reports.push(*report);
        }
    });
    progress.finish();
    outcome?;
    arguments.options.show_reports(&reports, page)
}
