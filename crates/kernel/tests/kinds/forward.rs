//! Runs `forward` on the shared frames.

use myelin_spec::FunctionConfig;

use crate::space::{Kernel, Spaces, on_fixtures};

#[test]
fn every_frame_passes_unchanged() {
    on_fixtures(|spaces, fixtures| {
        for functions in [1, 3] {
            let chains = spaces.load(&vec![FunctionConfig::Forward; functions]);
            for fixture in fixtures {
                chains.expect(&fixture.frame, Some(&fixture.frame), fixture.name);
            }
        }
    });
}

#[test]
fn a_function_without_a_flow_table_reports_no_flows() {
    let chains = Spaces::all().load(&[FunctionConfig::Forward]);
    assert_eq!(chains.flows(), None);
    for kernel in Kernel::at_hooks() {
        let chain = kernel.load_chain(&[FunctionConfig::Forward]);
        let beyond_the_last = chain.loaded.flows(7).unwrap();
        assert_eq!(beyond_the_last, None);
    }
}
