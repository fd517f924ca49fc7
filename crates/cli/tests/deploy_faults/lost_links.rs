//! An interface that goes in the middle of `up` or of a live change: the agent refuses the request
//! whole, or the chain waits for its interface and comes back with it. In the middle of `down`: the
//! agent removes the rest.

use std::process::Output;

use crate::common::chains::{KERNEL, USER};
use crate::common::port_chains::{
    assert_untouched, pass_ten, wait_for_fault, wait_until_active, wait_until_passing,
};
use crate::common::port_pair::PortPair;
use crate::common::{Myelin, skip_unless_root, skip_without, wait_for};
use crate::steps::{SteppedAgent, choose_steps};

/// Number of steps at which an interface goes, during `up`, a live change and `down`.
const LOSSES: u32 = 5;

/// What happens to an interface while the agent is stopped.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Ingress,
    Egress,
    /// The ingress is made again at once, with another index.
    IngressMadeAgain,
}

impl Loss {
    /// Each step of a sequence gets another loss.
    fn nth(at: usize) -> Self {
        [Self::Ingress, Self::Egress, Self::IngressMadeAgain][at % 3]
    }

    fn happen(self, ports: &PortPair) {
        match self {
            Self::Ingress => ports.delete_ingress(),
            Self::Egress => ports.delete_egress(),
            Self::IngressMadeAgain => {
                ports.delete_ingress();
                ports.make_ingress();
            }
        }
    }

    fn interface(self, ports: &PortPair) -> &str {
        match self {
            Self::Ingress | Self::IngressMadeAgain => &ports.ingress,
            Self::Egress => &ports.egress,
        }
    }

    /// Makes an interface again that is still missing.
    fn make_again(self, ports: &PortPair) {
        match self {
            Self::Ingress => ports.make_ingress(),
            Self::Egress => ports.make_egress(),
            Self::IngressMadeAgain => {}
        }
    }

    /// Waits until the agent says that the chain waits for its interface, and makes the interface
    /// again. Then the chain passes packets.
    fn undo(self, myelin: &Myelin, ports: &PortPair, name: &str) {
        let gone = format!("interface {} (index", self.interface(ports));
        match self {
            Self::Ingress | Self::Egress => {
                wait_for_fault(myelin, name, "waiting", &gone);
                self.make_again(ports);
            }
            // The chain may be deployed again before `ps` shows a fault.
            Self::IngressMadeAgain => wait_until_passing(ports),
        }
        wait_until_active(myelin, name);
        pass_ten(myelin, ports, name);
    }
}

/// A chain between interfaces, its changed description, and its agent.
struct LossTest<'a> {
    name: &'a str,
    myelin: Myelin,
    ports: PortPair,
    agent: SteppedAgent,
    files: [String; 2],
    /// Objects of an agent without chains.
    idle: Vec<String>,
}

impl<'a> LossTest<'a> {
    fn start(name: &'a str, texts: [&str; 2]) -> Self {
        let (myelin, ports) = (Myelin::new_shared(), PortPair::new());
        let files = texts.map(|text| {
            let file = myelin.write_file(&ports.add_to(text));
            file.to_str().expect("the path is UTF-8").to_owned()
        });
        let agent = SteppedAgent::start(&myelin);
        let idle = myelin.list_leftovers();
        Self {
            name,
            myelin,
            ports,
            agent,
            files,
            idle,
        }
    }

    fn up(&self, file: usize) -> [&str; 2] {
        ["up", &self.files[file]]
    }

    /// Takes the chain down. Nothing of it is left.
    fn down(&self, at: &str) {
        self.myelin
            .run_ok(&["down", &self.myelin.chain_name(self.name)]);
        self.myelin.expect_chains(0);
        self.expect_nothing_left(at);
    }

    fn expect_nothing_left(&self, at: &str) {
        let left = || self.myelin.list_leftovers();
        wait_for("the agent to undo all", || left() == self.idle);
        assert_eq!(left(), self.idle, "{at}\n{}", self.agent.read_log());
    }

    /// Runs a command, and loses an interface at a step. Returns the output and a description.
    fn lose_during(&mut self, command: &[&str], step: u32, loss: Loss) -> (Output, String) {
        let meanwhile = || loss.happen(&self.ports);
        let stepped = self.myelin.command(command);
        let output = self.agent.run_with_stop(step, stepped, meanwhile);
        let steps = self.agent.read_step_log();
        let call = steps.lines().nth(step as usize - 1).unwrap_or("the end");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let at = format!("{command:?}, {loss:?} at step {step}: {call}: {stderr}");
        println!("{at}");
        let log = self.agent.read_log();
        assert!(self.agent.is_alive(), "{at}\n{log}");
        assert!(!log.contains("panicked"), "{at}\n{log}");
        if !output.status.success() {
            assert_eq!(output.status.code(), Some(1), "{at}");
            assert!(stderr.contains(&self.myelin.chain_name(self.name)), "{at}");
            assert!(stderr.contains(loss.interface(&self.ports)), "{at}");
        }
        (output, at)
    }

    fn lose_during_up(&mut self, step: u32, loss: Loss) {
        let up = self.files[0].clone();
        let (output, at) = self.lose_during(&["up", &up], step, loss);
        if output.status.success() {
            loss.undo(&self.myelin, &self.ports, self.name);
        } else {
            self.myelin.expect_chains(0);
            self.expect_nothing_left(&at);
            loss.make_again(&self.ports);
            self.myelin.run_ok(&self.up(0));
            pass_ten(&self.myelin, &self.ports, self.name);
        }
        self.down(&at);
        assert_untouched(&self.ports);
    }

    /// After a refused change the chain with the first description waits for its interface.
    fn lose_during_change(&mut self, step: u32, loss: Loss) {
        self.myelin.run_ok(&self.up(0));
        let change = self.files[1].clone();
        let (output, at) = self.lose_during(&["up", &change], step, loss);
        let functions = if output.status.success() { 1 } else { 2 };
        loss.undo(&self.myelin, &self.ports, self.name);
        let status = self.myelin.read_status(self.name);
        let hops = status["hops"].as_array().map(Vec::len);
        assert_eq!(hops, Some(functions), "{at}{status}");
        self.myelin.run_ok(&self.up(1));
        pass_ten(&self.myelin, &self.ports, self.name);
        self.down(&at);
        assert_untouched(&self.ports);
    }

    /// The chain is removed, and its interfaces can be used again.
    fn lose_during_down(&mut self, step: u32, loss: Loss) {
        self.myelin.run_ok(&self.up(0));
        let chain = self.myelin.chain_name(self.name);
        let (output, at) = self.lose_during(&["down", &chain], step, loss);
        assert!(output.status.success(), "{at}");
        self.myelin.expect_chains(0);
        self.expect_nothing_left(&at);
        loss.make_again(&self.ports);
        assert_untouched(&self.ports);
    }
}

/// Loses interfaces at steps of `up`, of a live change and of `down`. The first description has two
/// functions, the second one.
fn assert_losses_are_survived(name: &str, texts: [&str; 2]) {
    let mut test = LossTest::start(name, texts);
    let steps = [0, 1].map(|file| {
        let up = || test.myelin.run_ok(&test.up(file));
        test.agent.count_steps(up).0
    });
    let down_steps = test.agent.count_steps(|| test.down("")).0;
    println!(
        "{} steps up, {} of a change, {down_steps} down",
        steps[0], steps[1]
    );
    for (at, step) in choose_steps(steps[0], LOSSES).into_iter().enumerate() {
        test.lose_during_up(step, Loss::nth(at));
    }
    for (at, step) in choose_steps(steps[1], LOSSES).into_iter().enumerate() {
        test.lose_during_change(step, Loss::nth(at + 1));
    }
    for (at, step) in choose_steps(down_steps, LOSSES).into_iter().enumerate() {
        test.lose_during_down(step, Loss::nth(at));
    }
    test.myelin.run_ok(&["down", "--all"]);
    assert_untouched(&test.ports);
    drop(test.ports);
    test.myelin.assert_clean();
}

/// A description with these functions.
fn with_functions(functions: &str) -> String {
    let (head, _) = USER.split_once("  functions:").expect("a list");
    format!("{head}  functions: {functions}\n")
}

#[test]
fn a_kernel_chain_survives_lost_interfaces() {
    if skip_unless_root() || skip_without("cc") {
        return;
    }
    let (head, rest) = KERNEL
        .split_once("    - { name: fwd")
        .expect("two functions");
    let (_, tail) = rest.split_once('\n').expect("a line");
    assert_losses_are_survived("k", [KERNEL, &format!("{head}{tail}")]);
}

#[test]
fn a_chain_of_both_spaces_survives_lost_interfaces() {
    if skip_unless_root() || skip_without("cc") {
        return;
    }
    let both =
        "[ { name: a, kind: monitor, space: user }, { name: b, kind: firewall, space: kernel } ]";
    assert_losses_are_survived("u", [&with_functions(both), USER]);
}

#[test]
fn a_chain_of_super_packets_survives_lost_interfaces() {
    if skip_unless_root() || skip_without("cc") {
        return;
    }
    let worker = "  worker: { superPackets: true }\n";
    let two = "[ { name: a, kind: monitor }, { name: b, kind: firewall } ]";
    let texts = [two, "[ { name: a, kind: monitor } ]"].map(|text| with_functions(text) + worker);
    assert_losses_are_survived("u", [&texts[0], &texts[1]]);
}

#[test]
fn a_distributed_chain_survives_lost_interfaces() {
    if skip_unless_root() || skip_without("cc") {
        return;
    }
    let mapping = "  mapping: distributed\n";
    let two =
        "[ { name: a, kind: monitor, space: kernel }, { name: b, kind: monitor, space: user } ]";
    let one = "[ { name: a, kind: monitor, space: user } ]";
    let texts = [two, one].map(|text| with_functions(text) + mapping);
    assert_losses_are_survived("u", [&texts[0], &texts[1]]);
}
