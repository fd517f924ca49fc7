//! Tests plans of chains between DPDK devices.

use myelin_planner::{Costs, Machine, plan};
use myelin_spec::{NoFiles, ServiceChain, Source, Space, parse};

fn chain(functions: &str) -> ServiceChain {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: tried }}\nspec:\n  match: {{}}\n  \
         functions: [ {functions} ]\n  ports: {{ ingress: {{ dpdk: \"net_tap0,iface=a\" }}, egress: {{ dpdk: net_null0 }} }}\n"
    );
    let chains = parse(&text, &Source::new("tried.yaml"), &NoFiles);
    chains.unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

#[test]
fn all_functions_run_in_the_worker_that_owns_the_devices() {
    let chain = chain("{ name: a, kind: forward }, { name: b, kind: xor, config: { key: 1 } }");
    let plan = plan(&chain, &Costs::default(), &Machine::with_end_hosts(2)).unwrap();
    assert!(plan.hops.iter().all(|hop| hop.space == Space::User));
    assert!(plan.hops[0].why.contains("DPDK"), "{}", plan.hops[0].why);
    assert_eq!(plan.segments.len(), 1);
    assert!(plan.mapping_why.contains("AF_XDP") && plan.warnings.is_empty());
}

#[test]
fn black_box_error_has_its_location() {
    let chain = chain("{ name: a, kind: external, config: { command: [box] } }");
    let error = plan(&chain, &Costs::default(), &Machine::with_end_hosts(2)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("tried.yaml:6:16: chain `tried`, function `a`")
            && text.contains("needs interfaces"),
        "{text}"
    );
}

#[test]
fn kernel_pin_error_has_its_location() {
    let chain = chain("{ name: a, kind: forward, space: kernel }");
    let error = plan(&chain, &Costs::default(), &Machine::with_end_hosts(2)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("tried.yaml:6:16: chain `tried`, function `a`")
            && text.contains("remove `space: kernel`"),
        "{text}"
    );
}
