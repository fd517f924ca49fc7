//! `myelin`: the command line. It is a client of the agent and keeps no state.

mod commands;
mod output;
mod page;
mod picture;
mod screen;
mod secret_file;
mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Service function chains that keep a latency contract.
///
/// One file names the traffic, the functions in their order, and the contract: rate, burst, delay,
/// loss. Myelin plans the chain, deploys it on this machine and measures it against the contract.
#[derive(Debug, Parser)]
#[command(
    name = "myelin",
    version,
    max_term_width = 100,
    after_help = "Examples:\n  \
        myelin plan examples/tactile.yaml            place and cost of each function (no root)\n  \
        sudo myelin run examples/tactile.yaml        deploy, probe, report, remove\n  \
        sudo myelin up examples/tactile.yaml         deploy and leave running\n  \
        sudo myelin exec client -- ping -c3 10.0.0.2 run any program on an emulated host\n  \
        sudo myelin down --all                       remove all chains, stop the agent\n\n\
        Exit status: 0 done; 1 failed; 2 bad usage or bad file; 3 refused by admission;\n\
        5 SLA not met, or traffic does not conform. 4 is reserved for claims of `bench`."
)]
struct Arguments {
    /// Directory of the agent's socket, journals and pinned eBPF objects [default: /run/myelin].
    #[arg(
        long,
        global = true,
        env = "MYELIN_RUN_DIR",
        value_name = "DIR",
        hide_env = true
    )]
    run_dir: Option<PathBuf>,
    /// Use the agent of this node of a running topology: `NODE`, or `TOPOLOGY/NODE`.
    #[arg(long, global = true, value_name = "NODE")]
    node: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a first chain file.
    Init(commands::init::Arguments),
    /// Deploy a chain file on emulated end hosts, probe it, report against its SLA, remove it.
    Run(commands::run::Arguments),
    /// Show class, space, mapping and predicted cost of each function. Needs no root.
    Plan(commands::plan::Arguments),
    /// Deploy the topologies and chains of a file and leave them running.
    Up(commands::up::Arguments),
    /// Remove a chain or a topology, or everything.
    Down(commands::down::Arguments),
    /// List the running chains and topologies.
    Ps(commands::ps::Arguments),
    /// Draw a topology: as text, or as SVG into a file.
    Graph(commands::graph::Arguments),
    /// Set a link of a topology up or down, or move it to another switch.
    Link(commands::link::Arguments),
    /// Write the frames of a topology's link to a pcap file.
    Pcap(commands::pcap::Arguments),
    /// Show rates, losses, delays and contracts of the running chains each second.
    Top(commands::top::Arguments),
    /// List violations of contracts, each with its time, hop and cause.
    Events(commands::events::Arguments),
    /// Measure a running chain from its end hosts.
    Probe(commands::probe::Arguments),
    /// Check the traffic of an interface against a rate and a burst. Needs no agent.
    Conform(commands::conform::Arguments),
    /// Run a program on an emulated host, with this terminal.
    Exec(commands::exec::Arguments),
    /// Run containers in the hosts of topologies.
    #[command(subcommand)]
    Container(commands::container::Arguments),
    /// Store images of containers.
    #[command(subcommand)]
    Image(commands::image::Arguments),
    /// Open a shell for a network, with Mininet's words.
    Shell(commands::shell::Arguments),
    /// Show the catalogue of function kinds.
    Functions(commands::functions::Arguments),
    /// Measure the costs of functions and space changes on this machine, for `plan`.
    Calibrate(commands::calibrate::Arguments),
    /// Check whether this machine can run chains, and list missing features.
    Doctor(commands::doctor::Arguments),
    /// Run an experiment, for example one from a paper.
    Bench(commands::bench::Arguments),
    /// Run the agent, the privileged process; other commands start it if none runs.
    Agent(commands::agent::Arguments),
    /// Print the JSON Schema of chain files or of the agent's socket.
    Schema(commands::schema::Arguments),
    /// Print a completion script for a shell.
    Completions(commands::completions::Arguments),
    /// Write the manual pages to a directory.
    #[command(hide = true)]
    Man(commands::man::Arguments),
    /// Run user functions. The agent starts this process.
    #[command(hide = true)]
    Worker(commands::worker::Arguments),
    /// Give black boxes their turns on a shared core. The agent starts this process.
    #[command(hide = true)]
    Preemptor(commands::preemptor::Arguments),
    /// Run one function on packets from memory. Experiments start this process.
    #[command(hide = true)]
    Feed,
}

fn main() -> ExitCode {
    output::end_on_closed_pipe();
    let arguments = Arguments::parse();
    let run_dir = myelin_api::RunDir::resolve(arguments.run_dir.as_deref());
    let run_dir = match arguments.node.map(|node| run_dir.find_node(&node)) {
        None => run_dir,
        Some(Ok(of_node)) => of_node,
        Some(Err(error)) => {
            output::print_error(&error);
            return ExitCode::from(error.exit_status());
        }
    };
    let outcome = match arguments.command {
        Command::Init(arguments) => commands::init::execute(&arguments),
        Command::Run(arguments) => commands::run::execute(&run_dir, &arguments),
        Command::Plan(arguments) => commands::plan::execute(&arguments),
        Command::Up(arguments) => commands::up::execute(&run_dir, &arguments),
        Command::Down(arguments) => commands::down::execute(&run_dir, &arguments),
        Command::Ps(arguments) => commands::ps::execute(&run_dir, &arguments),
        Command::Graph(arguments) => commands::graph::execute(&run_dir, &arguments),
        Command::Link(arguments) => commands::link::execute(&run_dir, &arguments),
        Command::Pcap(arguments) => commands::pcap::execute(&run_dir, &arguments),
        Command::Top(arguments) => commands::top::execute(&run_dir, &arguments),
        Command::Events(arguments) => commands::events::execute(&run_dir, &arguments),
        Command::Probe(arguments) => commands::probe::execute(&run_dir, &arguments),
        Command::Conform(arguments) => commands::conform::execute(&run_dir, &arguments),
        Command::Exec(arguments) => commands::exec::execute(&run_dir, &arguments),
        Command::Container(arguments) => commands::container::execute(&run_dir, &arguments),
        Command::Image(arguments) => commands::image::execute(&run_dir, &arguments),
        Command::Shell(arguments) => commands::shell::execute(&run_dir, &arguments),
        Command::Functions(arguments) => commands::functions::execute(&arguments),
        Command::Calibrate(arguments) => commands::calibrate::execute(&run_dir, &arguments),
        Command::Doctor(arguments) => commands::doctor::execute(&arguments),
        Command::Bench(arguments) => commands::bench::execute(&arguments),
        Command::Agent(arguments) => commands::agent::execute(&run_dir, &arguments),
        Command::Schema(arguments) => commands::schema::execute(&arguments),
        Command::Completions(arguments) => commands::completions::execute(&arguments),
        Command::Man(arguments) => commands::man::execute(&arguments),
        Command::Worker(arguments) => commands::worker::execute(&arguments),
        Command::Preemptor(arguments) => commands::preemptor::execute(&arguments),
        Command::Feed => commands::feed::execute(),
    };
    match outcome {
        Ok(status) => status,
        Err(error) => {
            output::print_error(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    /// Lists the example commands of a help text, without `sudo`, comment and redirection.
    fn list_examples(help: &str) -> Vec<String> {
        let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        lines
            .take_while(|line| line.starts_with("  "))
            .map(|line| {
                let line = line.trim_start().trim_start_matches("sudo ");
                let command = line.split("  ").next().unwrap_or_default();
                command.split(" > ").next().unwrap_or_default().to_owned()
            })
            .collect()
    }

    #[test]
    fn each_visible_command_has_examples_that_parse() {
        let mut command = Arguments::command();
        command.build();
        let visible = command
            .get_subcommands()
            .filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help");
        for documented in visible.chain([&command]) {
            let name = documented.get_name();
            let help = documented.get_after_help().map(ToString::to_string);
            let examples = list_examples(&help.unwrap_or_default());
            assert!(!examples.is_empty(), "{name} has no examples");
            for example in examples {
                assert!(example.starts_with("myelin "), "{name}: {example}");
                let parsed = Arguments::command().try_get_matches_from(example.split_whitespace());
                let parsed = parsed.unwrap_or_else(|error| panic!("{example}: {error}"));
                let subcommand = parsed.subcommand_name();
                assert!(name == "myelin" || subcommand == Some(name), "{example}");
            }
        }
    }

    #[test]
    fn clap_accepts_all_argument_definitions() {
        Arguments::command().debug_assert();
    }
}
