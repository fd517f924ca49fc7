//! A chain and its reverse chain share the interfaces of their end hosts.

mod common;

use common::{Myelin, skip_unless_root};

const PAIR: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @there }
spec:
  match: { protocol: udp }
  reverse: @back
  functions: [ { name: f, kind: forward } ]
---
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @back }
spec:
  match: { protocol: udp }
  reverse: @there
  functions: [ { name: f, kind: forward } ]
";

const ALONE: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @there }
spec:
  match: { protocol: udp }
  functions: [ { name: f, kind: forward } ]
";

#[test]
fn a_chain_is_refused_while_its_reverse_still_uses_the_interfaces() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let pair = myelin.write_file(PAIR);
    let alone = myelin.write_file(ALONE);
    let (there, back) = (myelin.chain_name("there"), myelin.chain_name("back"));
    myelin.run_ok(&["up", pair.to_str().unwrap()]);
    myelin.run_ok(&["down", &there]);
    let error = myelin.run_failing(1, &["up", alone.to_str().unwrap()]);
    assert!(
        error.contains(&format!("still serve {back}: run `myelin down {back}`")),
        "{error}"
    );
    let hosts = &myelin.run_json(&["ps", "--json"])[0]["hosts"];
    assert_eq!(hosts.as_array().map(Vec::len), Some(2), "{hosts}");
    myelin.run_ok(&["down", &back]);
    myelin.run_ok(&["up", alone.to_str().unwrap()]);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
