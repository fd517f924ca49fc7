//! What an agent has on this node: the kernel's part, ports, workers, circuits and the journal of all that.

use std::collections::BTreeMap;
use std::path::PathBuf;

use myelin_kernel::{Capacity, Plane};
use myelin_linux::bpffs;
use myelin_linux::journal::{Journal, Resource};

use crate::admitted::Admitted;
use crate::api::ApiError;
use crate::api::RunDir;
use crate::circuit::Circuit;
use crate::discipline::Disciplines;
use crate::dpdk::Devices;
use crate::external::BlackBoxes;
use crate::ports::Ports;
use crate::workers::Workers;

/// Everything that chains are made of.
pub(crate) struct Node {
    // The order is that of the end: who uses goes before what is used.
    pub(crate) workers: Workers,
    /// The programs of `kind: external`.
    pub(crate) black_boxes: BlackBoxes,
    /// What lies between devices of DPDK.
    pub(crate) devices: Devices,
    /// Shapers of egress interfaces.
    pub(crate) disciplines: Disciplines,
    pub(crate) circuits: BTreeMap<String, Circuit>,
    pub(crate) ports: Ports,
    pub(crate) plane: Plane,
    /// What was admitted.
    pub(crate) admitted: Admitted,
    pub(crate) journal: Journal,
    /// The program that also is the worker.
    pub(crate) program: PathBuf,
    /// Identity of the run directory.
    pub(crate) run_id: String,
    pub(crate) run_dir: RunDir,
    pin_dir: PathBuf,
    next_spi: u32,
    /// What the journal held when this agent started: things of an agent that was killed.
    orphans: Vec<Resource>,
}

impl Node {
    /// Mounts the bpffs, makes the shared maps and opens the journal.
    pub(crate) fn open(run_dir: &RunDir, program: PathBuf) -> Result<Self, ApiError> {
        let mut journal = Journal::open(&run_dir.journal()).map_err(ApiError::failed)?;
        let orphans = journal.replay();
        let (plane, pin_dir) = open_plane(run_dir, &mut journal)?;
        Ok(Self {
            workers: Workers::default(),
            black_boxes: BlackBoxes::default(),
            devices: Devices::default(),
            disciplines: Disciplines::default(),
            circuits: BTreeMap::new(),
            ports: Ports::default(),
            plane,
            admitted: Admitted::default(),
            journal,
            program,
            run_id: run_dir.id(),
            run_dir: run_dir.clone(),
            pin_dir,
            next_spi: 1,
            orphans,
        })
    }

    /// What a killed agent left, each as kind and name.
    pub(crate) fn orphans(&self) -> Vec<String> {
        self.orphans.iter().map(describe).collect()
    }

    /// Removes what a killed agent left behind, and returns what that was.
    pub(crate) fn recover(&mut self) -> Result<Vec<String>, ApiError> {
        let orphans = std::mem::take(&mut self.orphans);
        let mut first_error = None;
        let mut recovered = Vec::new();
        for resource in orphans {
            let removed = match &resource {
                // This agent's own pins lie in the same file system: only the others' go.
                Resource::Bpffs { path } => self.remove_foreign_pins(path),
                _ => myelin_linux::journal::remove(&resource)
                    .and_then(|()| self.journal.removed(&resource))
                    .map_err(ApiError::failed),
            };
            match removed {
                Ok(()) => recovered.push(describe(&resource)),
                Err(error) => {
                    self.orphans.push(resource);
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(recovered), Err)
    }

    fn remove_foreign_pins(&self, bpffs: &std::path::Path) -> Result<(), ApiError> {
        for entry in std::fs::read_dir(bpffs).into_iter().flatten().flatten() {
            // Some kernels put files of their own (progs.debug, maps.debug) into every bpffs.
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && entry.path() != self.pin_dir {
                Plane::remove_pins(&entry.path()).map_err(ApiError::failed)?;
            }
        }
        Ok(())
    }

    /// The last act of an agent: nothing of it stays, the run directory's log excepted.
    pub(crate) fn close(self) {
        let Self {
            workers,
            circuits,
            mut ports,
            plane,
            mut journal,
            pin_dir,
            run_dir,
            ..
        } = self;
        drop(workers);
        for (_, circuit) in circuits {
            circuit.destroy(&mut ports, &mut journal);
        }
        drop(ports);
        drop(plane);
        // The pins go with their file system too, so that they could not be removed one by one is no reason to leave that.
        let unpinned = Plane::remove_pins(&pin_dir).map_err(ApiError::failed);
        let removed = journal.remove_all().map_err(ApiError::failed);
        match (removed, unpinned) {
            (Err(error), _) => {
                tracing::error!(%error, "not everything could be removed; `myelin down --all` tries again");
            }
            (Ok(()), unpinned) => {
                if let Err(error) = unpinned {
                    tracing::warn!(%error, "unmounted with what is pinned there");
                }
                for directory in [run_dir.bpf(), run_dir.containers(), run_dir.runc()] {
                    let _ = std::fs::remove_dir(directory);
                }
            }
        }
    }

    /// A service path identifier that no chain of this agent has had: a late packet of a removed chain must not
    /// meet another one.
    pub(crate) fn take_spi(&mut self) -> u32 {
        let spi = self.next_spi;
        self.next_spi = if spi == myelin_packet::meta::MAX_SPI {
            1
        } else {
            spi + 1
        };
        spi
    }

    /// The circuit that a chain made.
    pub(crate) fn circuit(&self, name: &str) -> Result<&Circuit, ApiError> {
        self.circuits.get(name).ok_or_else(|| no_circuit(name))
    }

    /// The circuit that a chain made, to change it.
    pub(crate) fn circuit_mut(&mut self, name: &str) -> Result<&mut Circuit, ApiError> {
        self.circuits.get_mut(name).ok_or_else(|| no_circuit(name))
    }

    /// One chain less on that circuit; with the last one it goes.
    pub(crate) fn leave_circuit(&mut self, name: &str) {
        if self.circuits.get_mut(name).is_some_and(Circuit::leave)
            && let Some(circuit) = self.circuits.remove(name)
        {
            circuit.destroy(&mut self.ports, &mut self.journal);
        }
    }
}

fn no_circuit(name: &str) -> ApiError {
    ApiError::failed(format!("chain `{name}` has no ports here"))
}

/// Pins go into a directory of this process' own, so that those of a killed agent are not in the way.
fn open_plane(run_dir: &RunDir, journal: &mut Journal) -> Result<(Plane, PathBuf), ApiError> {
    let mount = run_dir.bpf();
    let resource = Resource::Bpffs {
        path: mount.clone(),
    };
    if !bpffs::is_bpffs(&mount) {
        journal.intend(&resource).map_err(ApiError::failed)?;
        std::fs::create_dir_all(&mount).map_err(|error| {
            ApiError::failed(format!("cannot make {}: {error}", mount.display()))
        })?;
        bpffs::mount(&mount).map_err(ApiError::failed)?;
    }
    let start = myelin_linux::procfs::start_time(std::process::id()).map_err(ApiError::failed)?;
    let pin_dir = mount.join(format!("{}-{start}", std::process::id()));
    let plane = Plane::create(Some(&pin_dir), Capacity::default()).map_err(ApiError::failed)?;
    Ok((plane, pin_dir))
}

/// A resource, as a person reads it.
fn describe(resource: &Resource) -> String {
    match resource {
        Resource::Netns { name, .. } => format!("network namespace {name}"),
        Resource::Link { name } => format!("link {name}"),
        Resource::Promiscuous { name } => format!("promiscuous mode of {name}"),
        Resource::Qdisc { name } => format!("queueing discipline of {name}"),
        Resource::Bpffs { path } => format!("eBPF objects in {}", path.display()),
        Resource::Process(process) => format!("process {}", process.pid),
        Resource::Processes { argument } => format!("process {argument}"),
        Resource::Cgroup { path } => format!("control group {path}"),
        Resource::HugePages { prefix } => format!("hugepages of {prefix}"),
        Resource::File { path } => format!("file {}", path.display()),
        Resource::Directory { path } => format!("directory {}", path.display()),
    }
}
