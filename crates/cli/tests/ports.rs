//! Chains on existing interfaces (`spec.ports`), of one owner and of several.

mod common;

use common::chains::{KERNEL, MIXED};
use common::port_pair::PortPair;
use common::{Myelin, sh, skip_unless_root, wait_for};

#[test]
fn down_restores_the_interfaces_of_a_chain() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let before = ports.show_links();
    let file = myelin.write_file(&ports.add_to(KERNEL));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    ports.send_ten(9000);
    wait_for("ten packets", || {
        myelin.read_status("k")["packets_out"] == 10
    });
    assert_eq!(myelin.read_status("k")["packets_out"], 10);
    assert!(
        ports.show_links().contains("PROMISC"),
        "the port must receive frames for the address of the next hop"
    );
    let error = myelin.run_failing(1, &["probe", &myelin.chain_name("k")]);
    assert!(error.contains("spec.ports"), "{error}");
    myelin.run_ok(&["down", "--all"]);
    assert_eq!(ports.show_links(), before);
    // `down --all` also restores the interfaces after a killed agent.
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    myelin.kill_agent();
    myelin.run_ok(&["down", "--all"]);
    assert_eq!(ports.show_links(), before);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn a_chain_stays_on_its_interface_after_a_rename() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let old_name = &ports.ingress;
    let new_name = format!("{old_name}n");
    let show = |name: &str| sh(&format!("ip -d link show {name}"));
    let has_port_state = |name: &str| show(name).contains("PROMISC") || show(name).contains("xdp");
    for (text, chain, is_killed) in [
        (KERNEL, "k", false),
        (MIXED, "m", false),
        (KERNEL, "k", true),
    ] {
        let text = ports.add_to(text);
        let file = myelin.write_file(&text);
        myelin.run_ok(&["up", file.to_str().unwrap()]);
        assert!(show(old_name).contains("PROMISC"), "{}", show(old_name));
        // Another program renames the interface, and gives its name to a link that is down.
        sh(&format!(
            "ip link set {old_name} down; ip link set {old_name} name {new_name}
             ip link set {new_name} up
             ip link add {old_name} type veth peer name other netns {client}
             ip link set {old_name} promisc on",
            client = ports.open_client().name().unwrap()
        ));
        if is_killed {
            myelin.kill_agent();
        } else {
            let changed = text.replace("latency: 50ms", "latency: 60ms");
            let changed = myelin.write_file(&changed);
            myelin.run_ok(&["up", changed.to_str().unwrap()]);
            ports.send_ten(9000);
            wait_for("ten packets", || {
                myelin.read_status(chain)["packets_out"] == 10
            });
        }
        myelin.run_ok(&["down", "--all"]);
        assert!(!has_port_state(&new_name), "{}", show(&new_name));
        let other = show(old_name);
        assert!(
            other.contains("PROMISC") && !other.contains("xdp"),
            "{other}"
        );
        sh(&format!(
            "ip link del {old_name}; ip link set {new_name} down
             ip link set {new_name} name {old_name}; ip link set {old_name} up"
        ));
    }
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn chains_of_one_owner_share_port_and_worker_and_another_owner_is_distributed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let one = ports.add_to(MIXED);
    let other = one
        .replace("@m", "@n")
        .replace("10.77.0.2/32 }", "10.77.0.2/32, destinationPort: 9001 }");
    let file = myelin.write_file(&format!("{one}---{other}"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert_eq!(
        myelin.read_status("m")["worker"]["pid"],
        myelin.read_status("n")["worker"]["pid"]
    );
    // The more specific match has precedence.
    for (port, name) in [(9000, "m"), (9001, "n")] {
        ports.send_ten(port);
        wait_for("ten packets", || {
            myelin.read_status(name)["packets_out"] == 10
        });
        assert_eq!(myelin.read_status(name)["packets_out"], 10, "{name}");
    }
    let other_owner_chain = other
        .replace("@n", "@o")
        .replace("metadata: {", "metadata: { namespace: other-owner,")
        .replace("9001", "9002");
    let file = myelin.write_file(&other_owner_chain.replace("spec:", "spec:\n  mapping: compact"));
    let error = myelin.run_failing(1, &["up", file.to_str().unwrap()]);
    assert!(
        error.contains(&ports.ingress) && error.contains("owner") && error.contains("distributed"),
        "{error}"
    );
    assert_eq!(
        myelin.run_json(&["ps", "--json"]).as_array().unwrap().len(),
        2
    );
    let up = myelin.run_json(&[
        "up",
        myelin.write_file(&other_owner_chain).to_str().unwrap(),
        "--json",
    ]);
    assert_eq!(up[0]["plan"]["mapping"], "distributed", "{up}");
    let why = up[0]["plan"]["mapping_why"].as_str().unwrap();
    assert!(why.contains("owners share no UMEM"), "{why}");
    let other_worker = myelin.read_status("o")["worker"]["pid"].clone();
    assert!(other_worker.is_number() && other_worker != myelin.read_status("m")["worker"]["pid"]);
    ports.send_ten(9002);
    wait_for("ten packets", || {
        myelin.read_status("o")["packets_out"] == 10
    });
    assert_eq!(myelin.read_status("o")["packets_out"], 10);
    assert_eq!(
        myelin.read_status("m")["packets_out"],
        10,
        "a chain received packets of another owner"
    );
    myelin.run_ok(&["down", &myelin.chain_name("o")]);
    // The removal of one chain leaves the other.
    myelin.run_ok(&["down", &myelin.chain_name("m")]);
    ports.send_ten(9001);
    wait_for("ten more packets", || {
        myelin.read_status("n")["packets_out"] == 20
    });
    assert_eq!(myelin.read_status("n")["packets_out"], 20);
    myelin.run_ok(&["down", "--all"]);
    drop(ports);
    myelin.assert_clean();
}

#[test]
fn another_owner_may_use_a_port_after_its_last_chain_is_removed() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let (ports, other_ports) = (PortPair::new(), PortPair::new());
    let first_chain = ports.add_to(MIXED);
    // The second chain keeps the worker of the owner alive.
    let second_chain = other_ports.add_to(MIXED).replace("@m", "@n");
    let file = myelin.write_file(&format!("{first_chain}---{second_chain}"));
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    let worker = myelin.read_status("n")["worker"]["pid"].clone();
    assert_eq!(myelin.read_status("m")["worker"]["pid"], worker);
    let other_owner_chain = first_chain
        .replace("@m", "@o")
        .replace("metadata: {", "metadata: { namespace: other-owner,")
        .replace("spec:", "spec:\n  mapping: compact");
    let other_owner_chain = myelin.write_file(&other_owner_chain);
    let error = myelin.run_failing(1, &["up", other_owner_chain.to_str().unwrap()]);
    assert!(error.contains(&ports.ingress), "{error}");
    myelin.run_ok(&["down", &myelin.chain_name("m")]);
    myelin.run_ok(&["up", other_owner_chain.to_str().unwrap()]);
    assert_ne!(myelin.read_status("o")["worker"]["pid"], worker);
    for (ports, name) in [(&ports, "o"), (&other_ports, "n")] {
        ports.send_ten(9000);
        wait_for("ten packets", || {
            myelin.read_status(name)["packets_out"] == 10
        });
        assert_eq!(myelin.read_status(name)["packets_out"], 10, "{name}");
    }
    // The same worker of the first owner binds to the port again.
    myelin.run_ok(&["down", &myelin.chain_name("o")]);
    myelin.run_ok(&["up", file.to_str().unwrap()]);
    assert_eq!(myelin.read_status("m")["worker"]["pid"], worker);
    ports.send_ten(9000);
    wait_for("ten packets", || {
        myelin.read_status("m")["packets_out"] == 10
    });
    assert_eq!(myelin.read_status("m")["packets_out"], 10);
    myelin.run_ok(&["down", "--all"]);
    drop((ports, other_ports));
    myelin.assert_clean();
}

/// Links of a test. Dropping the value removes the links.
struct TestLinks {
    names: Vec<String>,
}

impl TestLinks {
    /// Makes links with a script of `ip`. In the script, `@` stands for the beginning of each name.
    fn new(letter: char, names: &[&str], script: &str) -> Self {
        let tag = format!("my{}{letter}", std::process::id());
        let links = Self {
            names: names.iter().map(|name| format!("{tag}{name}")).collect(),
        };
        sh(&script.replace('@', &tag));
        for name in &links.names {
            sh(&format!("ip link set {name} up"));
        }
        links
    }

    /// Asserts that `up` refuses a chain between two of the links, that the error contains these
    /// words, and that `plan` warns of the same.
    fn assert_refused(&self, myelin: &Myelin, [ingress, egress]: [usize; 2], words: &[&str]) {
        let [ingress, egress] = [ingress, egress].map(|at| &self.names[at]);
        let ports = format!("  ports: {{ ingress: {ingress}, egress: {egress} }}\n  functions:");
        let file = myelin.write_file(&KERNEL.replace("  functions:", &ports));
        let file = file.to_str().unwrap();
        let error = myelin.run_failing(1, &["up", file]);
        let plan = myelin.run(&["plan", file]);
        let warning = String::from_utf8_lossy(&plan.stderr);
        let warning = warning.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plan.status.success(), "{warning}");
        for word in words {
            assert!(error.contains(word), "no `{word}`: {error}");
            assert!(warning.contains(word), "no `{word}`: {warning}");
        }
    }
}

impl Drop for TestLinks {
    fn drop(&mut self) {
        for name in &self.names {
            // The kernel removes both ends of a veth pair, and a macvlan with its lower link.
            sh(&format!("ip link del {name} 2>/dev/null || true"));
        }
    }
}

#[test]
fn an_interface_without_ethernet_header_is_refused() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let script = "ip tuntap add @t mode tun; ip link add @a type veth peer name @b";
    let links = TestLinks::new('e', &["t", "a", "b"], script);
    let fault = format!("{} has no Ethernet header", links.names[0]);
    let words = [&fault, "kind tun", "link layer NONE", "name an Ethernet"];
    links.assert_refused(&myelin, [0, 1], &words);
    links.assert_refused(&myelin, [1, 0], &words);
    drop(links);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

#[test]
fn interfaces_between_which_packets_would_circle_are_refused() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let script = "ip link add @a type veth peer name @b
        ip link add link @a name @m type macvlan mode bridge
        ip link add link @a name @n type macvlan mode bridge
        ip link add @c type veth peer name @d
        ip link add @r type bridge; ip link set @d master @r";
    let links = TestLinks::new('l', &["a", "b", "m", "n", "c", "d", "r"], script);
    let [a, b, m, n] = [0, 1, 2, 3];
    let [member_end, bridge] = [4, 6];
    for (pair, why) in [
        ([a, b], "two ends of one veth pair"),
        ([b, a], "two ends of one veth pair"),
        ([a, m], "its lower interface"),
        ([m, n], "of one lower interface"),
        (
            [member_end, bridge],
            "a bridge and the other end of its member",
        ),
        (
            [bridge, member_end],
            "a bridge and the other end of its member",
        ),
    ] {
        let [ingress, egress] = pair.map(|at| links.names[at].as_str());
        let direction = format!("leave at {egress} arrive at {ingress}");
        links.assert_refused(&myelin, pair, &[why, &direction, "circle forever"]);
    }
    drop(links);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}

/// A process namespace and a mount namespace, as on a machine of its own. Their process 1 only
/// waits. Dropping the value ends all processes there.
struct ProcessNamespace(std::process::Child);

impl ProcessNamespace {
    fn new() -> Self {
        // Process 1 collects ended processes, as init does.
        let wait = "trap : CHLD; while :; do sleep 1000 & wait; done";
        let mut command = std::process::Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        let child = command.args(["sh", "-c", wait]).spawn();
        let namespace = Self(child.expect("unshare runs"));
        wait_for("process 1", || namespace.find_first_process().is_some());
        namespace
    }

    /// Process 1, by its number in the test's namespace.
    fn find_first_process(&self) -> Option<u32> {
        let unshare = self.0.id();
        let path = format!("/proc/{unshare}/task/{unshare}/children");
        let first = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        // The process has not yet replaced its `unshare` before it has mounted its `/proc`.
        let command = std::fs::read_to_string(format!("/proc/{first}/comm")).ok()?;
        (command.trim() == "sh").then_some(first)
    }

    /// Runs a shell command there, which must succeed.
    fn sh(&self, command: &str) -> String {
        let first = self.find_first_process().expect("process 1 runs");
        let enter = format!("nsenter --target {first} --pid --mount");
        sh(&format!("{enter} sh -ec '{command}'"))
    }
}

impl Drop for ProcessNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_kernel_chain_that_was_set_up_in_a_network_namespace_survives_its_agent() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let ports = PortPair::new();
    let router = ports.add_router();
    let machine = ProcessNamespace::new();
    let file = myelin.write_file(&ports.add_to(KERNEL));
    let run = |directory: &std::path::Path, prefix: &str, arguments: &str| {
        machine.sh(&format!(
            "cd {}; MYELIN_RUN_DIR=run {prefix} {} {arguments}",
            directory.display(),
            env!("CARGO_BIN_EXE_myelin"),
        ))
    };
    let top = myelin.run_dir();
    let top = top.parent().expect("the run directory has a parent");
    let file = file
        .file_name()
        .expect("the path ends with a name")
        .display();
    let inside = format!("ip netns exec {router}");
    run(top, &inside, &format!("up {file}"));
    let lock = myelin.run_dir().join("agent.lock");
    let agent = std::fs::read_to_string(lock).expect("the lock file is readable");
    let agent = agent.trim();
    assert_eq!(
        machine.sh(&format!("readlink /proc/{agent}/ns/mnt")),
        machine.sh("readlink /proc/1/ns/mnt"),
        "{}",
        myelin.read_agent_log()
    );
    machine.sh(&format!("kill -9 {agent}"));
    wait_for("the agent's end", || {
        machine.sh(&format!("test -e /proc/{agent} || echo ended")) == "ended\n"
    });
    let before = ports.count_received();
    ports.send_ten(9000);
    wait_for("ten packets", || ports.count_received() >= before + 10);
    // The user forgets the network namespace.
    run(top, "", "down --all");
    let links = sh(&format!("ip -d -n {router} link show"));
    assert!(
        !links.contains("PROMISC") && !links.contains("xdp"),
        "{links}"
    );
    let before = ports.count_received();
    ports.send_ten(9000);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(ports.count_received() < before + 10);
    drop((ports, machine));
    myelin.assert_clean();
}
