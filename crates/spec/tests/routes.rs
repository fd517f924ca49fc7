//! Tests long lists of routes.

use std::collections::BTreeMap;
use std::fmt::Write;

use myelin_packet::routes::MAX_ROUTES;
use myelin_spec::{FunctionConfig, ServiceChain, Source, SpecErrors, parse};

fn chain(routes: usize) -> Result<Vec<ServiceChain>, SpecErrors> {
    let mut list = String::new();
    for route in 0..routes {
        let [_, a, b, c] = (route as u32).to_be_bytes();
        writeln!(
            list,
            "- {{ prefix: {a}.{b}.{c}.0/24, mac: \"02:00:00:{a:02x}:{b:02x}:{c:02x}\", sourceMac: \"02:00:00:00:00:01\" }}"
        )
        .unwrap();
    }
    let text = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: long }
spec:
  match: {}
  functions: [ { name: core, kind: router, config: { routesFile: routes.yaml } } ]
";
    let files = BTreeMap::from([("routes.yaml".to_owned(), list)]);
    parse(text, &Source::new("long.yaml"), &files)
}

#[test]
fn one_route_above_the_limit_is_refused() {
    let chains = chain(MAX_ROUTES).unwrap();
    let FunctionConfig::Router(router) = &chains[0].functions[0].config else {
        panic!("no router");
    };
    assert_eq!(router.routes.len(), MAX_ROUTES);
    let last = router.routes[MAX_ROUTES - 1];
    assert_eq!(last.prefix.to_string(), "1.255.255.0/24");
    let errors = chain(MAX_ROUTES + 1).unwrap_err();
    let error = errors.iter().next().unwrap();
    assert_eq!(error.message, "131073 routes");
    assert_eq!(error.key, "spec.functions[0].config.routesFile");
}
