//! Tests that the files in `examples/` are valid and match their comments.

use std::fs;
use std::path::{Path, PathBuf};

use myelin_planner::admission::{Ledger, Node, Site, review};
use myelin_planner::{Cost, Costs, Machine, Plan, plan};
use myelin_spec::{FileResolver, FunctionConfig, ServiceChain, Source, Space, parse};

struct Directory(PathBuf);

impl FileResolver for Directory {
    fn read(&self, path: &str) -> Result<String, String> {
        // The client reads a key from this device, which has no end.
        if path == "/dev/urandom" {
            return Ok("5a".repeat(32));
        }
        fs::read_to_string(self.0.join(path)).map_err(|error| error.to_string())
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn chains(name: &str) -> Vec<ServiceChain> {
    let text = fs::read_to_string(directory().join(name)).unwrap();
    let chains = parse(&text, &Source::new(name), &Directory(directory()));
    chains.unwrap_or_else(|errors| panic!("{errors}"))
}

fn plans(name: &str) -> Vec<Plan> {
    let machine = Machine::with_end_hosts(2);
    let costs = Costs::default();
    let mut ledger = Ledger::default();
    let plan_on_node = |chain: &ServiceChain| {
        let mut plan = plan(chain, &costs, &machine).unwrap();
        let node = Node {
            costs: &costs,
            machine: &machine,
            ledger: &ledger,
        };
        let site = Site::planned(chain, &machine);
        ledger.insert(review(&mut plan, chain, &node, &site));
        plan
    };
    chains(name).iter().map(plan_on_node).collect()
}

fn spaces(plan: &Plan) -> Vec<Space> {
    plan.hops.iter().map(|hop| hop.space).collect()
}

#[test]
fn every_example_is_admitted_without_warnings() {
    let mut count = 0;
    for entry in fs::read_dir(directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        count += 1;
        for plan in plans(path.file_name().unwrap().to_str().unwrap()) {
            assert!(plan.admitted, "{}: {:?}", plan.chain, plan.refusal);
            assert!(
                plan.warnings.is_empty(),
                "{}: {:?}",
                plan.chain,
                plan.warnings
            );
        }
    }
    assert!(count >= 7, "only {count} examples found");
}

#[test]
fn each_example_matches_its_comments() {
    use Space::{Kernel, User};
    assert_eq!(spaces(&plans("tactile.yaml")[0]), [Kernel, User]);
    assert_eq!(spaces(&plans("kernel-only.yaml")[0]), [Kernel; 3]);
    assert_eq!(
        spaces(&plans("mixed-order.yaml")[0]),
        [Kernel, User, Kernel]
    );
    let FunctionConfig::Firewall(firewall) = &chains("firewall-1000.yaml")[0].functions[0].config
    else {
        panic!("not a firewall");
    };
    assert_eq!(firewall.rules.len(), 1 + 1000);
    let sharing = chains("two-chains-one-port.yaml");
    assert_eq!(sharing[0].ports, sharing[1].ports);
    assert!(sharing[1].matches.specificity() > sharing[0].matches.specificity());
    let pair = chains("reverse.yaml");
    assert_eq!(pair[0].reverse.as_deref(), Some(pair[1].name.as_str()));
    assert_eq!(pair[1].reverse.as_deref(), Some(pair[0].name.as_str()));
    let nats = chains("nat.yaml");
    let [out, back] = [0, 1].map(|chain| &nats[chain].functions[0]);
    assert_eq!(back.reverse_of.as_deref(), Some(out.name.as_str()));
    assert_eq!(back.config, out.config);
}

/// The first example uses both spaces. Measured costs must not move its functions.
#[test]
fn first_example_uses_both_spaces_for_any_costs() {
    let mut costs = Costs::default();
    costs
        .functions
        .values_mut()
        .for_each(|function| function.user = Some(Cost::default()));
    costs.steps.enter_user.per_packet_ns = 1.0;
    let plan = plan(
        &chains("tactile.yaml")[0],
        &costs,
        &Machine::with_end_hosts(2),
    )
    .unwrap();
    assert_eq!(spaces(&plan), [Space::Kernel, Space::User]);
}
