//! `myelin container`: containers in the hosts of topologies.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::units::{self, CPU, DURATION, MEMORY};
use myelin_api::{
    ApiError, Client, ContainerImage, ContainerLimits, ContainerLimitsRequest, ContainerName,
    ContainerRequest, ContainerStatus, RunDir,
};
use myelin_report::terminal::Column;

use crate::commands::exec;
use crate::output;

/// Arguments of `myelin container`.
#[derive(Debug, clap::Subcommand)]
#[command(
    after_help = "Examples:\n  myelin container add h1 web --cpu 0.25cores --memory 64MiB -- python3 -m http.server 80\n  \
    myelin container ps\n  myelin container logs h1 web\n  myelin container exec h1 web -- ls /\n  myelin container limit h1 web --cpu 0.5cores\n  \
    myelin container rm h1 web\n\n\
    A container lies in the network of its host. All containers and programs of a host share its limits.\n\
    A container ends with its topology. Needs runc."
)]
pub(crate) enum Arguments {
    /// Start a program as a container in a host.
    Add(AddArguments),
    /// List the containers with their limits and the resources that they have used.
    Ps(PsArguments),
    /// Show the end of a container's output and errors.
    Logs(NameArguments),
    /// Run a further program in a container, with the container's rights.
    Exec(ExecArguments),
    /// Change limits of a running container.
    Limit(LimitArguments),
    /// End a container and remove it.
    Rm(NameArguments),
}

/// The name of a container.
#[derive(Debug, clap::Args)]
pub(crate) struct NameArguments {
    /// The host, or `TOPOLOGY/HOST`.
    host: String,
    /// The container's name in the host.
    name: String,
}

/// Limits of the container's own.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitOptions {
    /// Processor time, for example `0.25cores`.
    #[arg(long, value_parser = parse_cpu)]
    cpu: Option<u32>,
    /// Memory, for example `64MiB`.
    #[arg(long, value_parser = parse_memory)]
    memory: Option<u64>,
}

/// Arguments of `myelin container add`.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArguments {
    #[command(flatten)]
    name: NameArguments,
    #[command(flatten)]
    limits: LimitOptions,
    /// An image, or a directory with a `/` in its path. Default: the machine's files.
    #[arg(long)]
    image: Option<String>,
    /// A variable of the program's environment.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Watch the program for this time. If it fails meanwhile, so does this command.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_watch)]
    watch: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The program and its arguments. Default: those of the image.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Arguments of `myelin container exec`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExecArguments {
    #[command(flatten)]
    name: NameArguments,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Arguments of `myelin container ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArguments {
    /// Only the containers of this host: `HOST`, or `TOPOLOGY/HOST`.
    host: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `myelin container limit`.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArguments {
    #[command(flatten)]
    name: NameArguments,
    #[command(flatten)]
    limits: LimitOptions,
}

impl NameArguments {
    fn to_name(&self) -> ContainerName {
        ContainerName {
            host: self.host.clone(),
            name: self.name.clone(),
        }
    }
}

impl LimitOptions {
    fn to_limits(&self) -> ContainerLimits {
        ContainerLimits {
            cpu_millicores: self.cpu,
            memory_bytes: self.memory,
        }
    }
}

/// Runs the command.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed("no agent runs, so there is no host: `myelin up FILE` makes a topology")
    })?;
    match arguments {
        Arguments::Add(arguments) => return add(&client, arguments),
        Arguments::Ps(arguments) => return list(&client, arguments),
        Arguments::Exec(arguments) => {
            let name = arguments.name.to_name();
            return exec::execute_in_container(&client, name, &arguments.command);
        }
        Arguments::Logs(name) => print!("{}", client.container_log(&name.to_name())?.text),
        Arguments::Limit(arguments) => {
            let limits = arguments.limits.to_limits();
            if limits == ContainerLimits::default() {
                return Err(ApiError::usage("no change: write `--cpu` or `--memory`"));
            }
            let container = arguments.name.to_name();
            client.limit_container(&ContainerLimitsRequest { container, limits })?;
        }
        Arguments::Rm(name) => {
            client.remove_container(&name.to_name())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add(client: &Client, arguments: &AddArguments) -> Result<ExitCode, ApiError> {
    let request = ContainerRequest {
        host: arguments.name.host.clone(),
        name: arguments.name.name.clone(),
        image: find_image(arguments.image.as_deref())?,
        command: arguments.command.clone(),
        env: arguments.env.iter().cloned().collect(),
        limits: arguments.limits.to_limits(),
        watch_ms: arguments.watch,
    };
    let status = client.add_container(&request)?;
    let title = format!("{}/{}/{}", status.topology, status.host, status.name);
    if arguments.json {
        output::print_json(&status)?;
    } else if !status.has_failed {
        let end = status.end.as_ref();
        let end = end.map_or_else(String::new, |end| format!(", {end}"));
        println!(
            "container {title}: started in {:.0} ms{end}",
            status.start_ms
        );
    }
    if !status.has_failed {
        return Ok(ExitCode::SUCCESS);
    }
    let end = status.end.as_deref().unwrap_or_default();
    Err(ApiError::failed(format!(
        "container {title}: the program {end}; {}",
        describe_output(&status)
    )))
}

fn describe_output(status: &ContainerStatus) -> String {
    if status.last_lines.is_empty() {
        return "it wrote no output".to_owned();
    }
    format!("last output:\n  {}", status.last_lines.join("\n  "))
}

/// A word with a slash is a directory, as for a shell's programs.
fn find_image(image: Option<&str>) -> Result<ContainerImage, ApiError> {
    match image {
        None => Ok(ContainerImage::Machine),
        Some(path) if path.contains('/') => {
            let absolute = PathBuf::from(path).canonicalize().map_err(|error| {
                ApiError::usage(format!(
                    "cannot use the directory {path} as an image: {error}"
                ))
            })?;
            Ok(ContainerImage::Directory(absolute.display().to_string()))
        }
        Some(name) => Ok(ContainerImage::Stored(name.to_owned())),
    }
}

fn list(client: &Client, arguments: &PsArguments) -> Result<ExitCode, ApiError> {
    let mut all = client.containers()?;
    if let Some(host) = &arguments.host {
        all.retain(|found| {
            found.host == *host || format!("{}/{}", found.topology, found.host) == *host
        });
    }
    if arguments.json {
        return output::print_json(&all);
    }
    if all.is_empty() {
        println!("no container runs");
        return Ok(ExitCode::SUCCESS);
    }
    let columns: [Column<ContainerStatus>; 7] = [
        ("host", |found| format!("{}/{}", found.topology, found.host)),
        ("container", |found| found.name.clone()),
        ("state", |found| {
            found.end.clone().unwrap_or_else(|| "runs".to_owned())
        }),
        (">cpu limit", |found| {
            let cpu = found.limits.cpu_millicores;
            cpu.map_or_else(|| "-".to_owned(), |cpu| CPU.format(cpu.into()))
        }),
        (">cpu used", |found| format!("{:.1} s", found.cpu_s)),
        (">memory limit", |found| {
            let memory = found.limits.memory_bytes;
            memory.map_or_else(|| "-".to_owned(), units::format_memory_bytes)
        }),
        (">memory", |found| {
            format!("{} MiB", found.memory_bytes >> 20)
        }),
    ];
    println!("{}", output::format_table(&columns, &all));
    for found in all.iter().filter(|found| found.has_failed) {
        let (title, output) = (
            format!("{}/{}", found.host, found.name),
            describe_output(found),
        );
        println!("{title}: {output}");
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_watch(text: &str) -> Result<u64, String> {
    const NS_PER_MS: u64 = 1_000_000;
    let time = DURATION.parse(text);
    time.map(|ns| ns / NS_PER_MS)
        .map_err(|fault| fault.to_string())
}

fn parse_cpu(text: &str) -> Result<u32, String> {
    let millicores = CPU.parse(text).map_err(|fault| fault.to_string())?;
    u32::try_from(millicores).map_err(|_| "the value is too large".to_owned())
}

fn parse_memory(text: &str) -> Result<u64, String> {
    MEMORY.parse(text).map_err(|fault| fault.to_string())
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let pair = pair.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "write NAME=VALUE".to_owned())
}
