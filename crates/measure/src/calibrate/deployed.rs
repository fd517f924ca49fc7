//! Chains that calibration deploys.

use myelin_api::{ApiError, ChainSource, ChainUp};
use myelin_linux::netns::Netns;

use super::{Chains, Result};

/// Deployed chains. Dropping the value removes the chains.
pub(super) struct DeployedChains<'a> {
    pub(super) chains: &'a dyn Chains,
    names: Vec<String>,
}

impl<'a> DeployedChains<'a> {
    /// Starts without chains.
    pub(super) fn new(chains: &'a dyn Chains) -> Self {
        Self {
            chains,
            names: Vec::new(),
        }
    }

    /// Deploys the chains of the file text. `names` are the names of these chains.
    pub(super) fn up(
        &mut self,
        names: impl IntoIterator<Item = String>,
        text: String,
    ) -> Result<Vec<ChainUp>> {
        self.names.extend(names);
        Ok(self.chains.up(&ChainSource {
            name: "<calibrate>".to_owned(),
            text,
            ..ChainSource::default()
        })?)
    }
}

impl Drop for DeployedChains<'_> {
    fn drop(&mut self) {
        for chain in self.names.iter().rev() {
            let _ = self.chains.down(chain);
        }
    }
}

/// Opens the namespaces of client and server. One of the chains must have end hosts.
pub(super) fn open_hosts(up: &[ChainUp]) -> Result<[Netns; 2]> {
    let open = |role: &str| -> Result<Netns> {
        let mut hosts = up.iter().flat_map(|chain| &chain.hosts);
        let host = hosts.find(|host| host.role == role);
        let host =
            host.ok_or_else(|| ApiError::failed("the calibration chains have no end hosts"))?;
        Ok(Netns::open(&host.netns)?)
    };
    Ok([open("client")?, open("server")?])
}
