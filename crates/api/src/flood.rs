//! Requests to flood chains of a file while the file's other chains are measured.

use std::str::FromStr;

use myelin_spec::ServiceChain;
use serde::{Deserialize, Serialize};

use crate::ApiError;

/// Multiple of the chain's rate, if the request has no multiple.
const DEFAULT_TIMES: f64 = 10.0;

/// A chain to flood.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FloodRequest {
    /// The chain's name.
    pub chain: String,
    /// Multiple of the rate in the chain's profile; above 0.
    pub times: f64,
}

/// Parses `CHAIN` or `CHAIN=TIMES`.
impl FromStr for FloodRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (chain, times) = text
            .split_once('=')
            .map_or((text, None), |(chain, times)| (chain, Some(times)));
        let times = match times {
            None => DEFAULT_TIMES,
            Some(written) => written
                .parse()
                .ok()
                .filter(|times| is_valid_multiple(*times))
                .ok_or_else(|| format!("`{written}` is not a number above 0: write a multiple of the chain's rate, as in `{chain}=10`"))?,
        };
        Ok(Self {
            chain: chain.to_owned(),
            times,
        })
    }
}

fn is_valid_multiple(times: f64) -> bool {
    times.is_finite() && times > 0.0
}

/// Checks that each flood is possible, and that at least one chain is not flooded.
///
/// # Errors
/// Usage: the file has no such chain; a chain is named twice, has no rate, or uses named interfaces
/// or the end hosts of another chain; or all chains are flooded.
pub fn check_floods(floods: &[FloodRequest], chains: &[ServiceChain]) -> Result<(), ApiError> {
    for (index, flood) in floods.iter().enumerate() {
        let name = &flood.chain;
        let refuse = |why: String| Err(ApiError::usage(format!("--flood {name}: {why}")));
        let Some(chain) = chains.iter().find(|chain| chain.name == *name) else {
            let names: Vec<_> = chains
                .iter()
                .map(|chain| format!("`{}`", chain.name))
                .collect();
            return refuse(format!(
                "this file has no chain `{name}`, only {}",
                names.join(", ")
            ));
        };
        let places = &chain.places;
        if floods[..index].iter().any(|earlier| earlier.chain == *name) {
            return refuse(format!("chain `{name}` is named twice: name it once"));
        }
        if !is_valid_multiple(flood.times) {
            return refuse(format!("{} is not a number above 0", flood.times));
        }
        if chain.sla.profile().is_unlimited() {
            return refuse(format!(
                "{}: chain `{name}` has no rate to multiply: write `rate` in the chain's `sla`",
                places.sla
            ));
        }
        if chain.ports.is_some() {
            return refuse(format!(
                "{}: chain `{name}` is between named interfaces or devices (spec.ports) and has no client \
                 host: send your own traffic",
                places.ports
            ));
        }
        // A chain of replies uses the sockets that the probe of the forward chain needs.
        let forward = chain.reverse.as_ref().and_then(|reverse| {
            let mut before = chains.iter().take_while(|other| other.name != *name);
            before.find(|other| other.name == *reverse)
        });
        if let Some(forward) = forward {
            return refuse(format!(
                "{}: chain `{name}` carries the replies of chain `{}` and uses that chain's end hosts: \
                flood that chain",
                places.reverse, forward.name
            ));
        }
    }
    let is_flooded = |chain: &ServiceChain| floods.iter().any(|flood| flood.chain == chain.name);
    if !floods.is_empty() && chains.iter().all(is_flooded) {
        return Err(ApiError::usage(
            "--flood: all chains of this file are flooded, so no chain can be measured: omit one of them",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChainSource;

    fn request(text: &str) -> Result<FloodRequest, String> {
        text.parse()
    }

    #[test]
    fn a_request_is_a_chain_and_a_multiple_of_its_rate() {
        let ten = FloodRequest {
            chain: "noisy".into(),
            times: 10.0,
        };
        assert_eq!(request("noisy"), Ok(ten));
        assert!((request("noisy=2.5").unwrap().times - 2.5).abs() < 1e-9);
        for bad in [
            "noisy=",
            "noisy=ten",
            "noisy=0",
            "noisy=-1",
            "noisy=NaN",
            "noisy=inf",
        ] {
            let error = request(bad).unwrap_err();
            assert!(error.contains("not a number above 0"), "{bad}: {error}");
        }
    }

    fn chains(specs: &[&str]) -> Vec<ServiceChain> {
        let objects = specs.iter().enumerate().map(|(index, spec)| {
            format!(
                "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: c{index} }}\nspec:\n  \
                 functions: [ {{ name: f{index}, kind: forward }} ]\n{spec}"
            )
        });
        let source = ChainSource {
            name: "file.yaml".into(),
            text: objects.collect::<Vec<_>>().join("---\n"),
            ..ChainSource::default()
        };
        source.parse().unwrap()
    }

    const TO_A: &str = "  match: { protocol: udp, destination: 10.0.0.2/32 }\n";
    const RATE: &str = "  sla: { rate: 2kpps }\n";

    #[test]
    fn only_a_chain_with_a_rate_and_its_own_hosts_can_be_flooded() {
        let rated = format!("{TO_A}{RATE}");
        let named = format!("{rated}  ports: {{ ingress: eth1, egress: eth2 }}\n");
        let back =
            format!("  match: {{ protocol: udp, source: 10.0.0.2/32 }}\n{RATE}  reverse: c0\n");
        let chains = chains(&[&rated, TO_A, &named, &back]);
        let check = |names: &[&str]| {
            let floods: Vec<_> = names.iter().map(|name| request(name).unwrap()).collect();
            check_floods(&floods, &chains).map_err(|error| (error.exit_status(), error.message))
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["c0=3"]), Ok(()));
        for (names, expected) in [
            (
                &["nobody"][..],
                "this file has no chain `nobody`, only `c0`, `c1`",
            ),
            (&["c0", "c0"], "named twice"),
            (&["c1"], "has no rate"),
            (&["c2"], "between named interfaces"),
            (&["c3"], "flood that chain"),
        ] {
            let (status, message) = check(names).unwrap_err();
            assert_eq!(status, 2);
            assert!(
                message.contains(expected) && message.starts_with("--flood "),
                "{message}"
            );
        }
        let zero = FloodRequest {
            chain: "c0".into(),
            times: 0.0,
        };
        assert!(check_floods(&[zero], &chains).is_err());
        let error = check_floods(&[request("c0").unwrap()], &chains[..1]).unwrap_err();
        assert!(
            error.message.contains("no chain can be measured"),
            "{error}"
        );
    }
}
