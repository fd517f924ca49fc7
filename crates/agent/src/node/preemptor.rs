//! The preemptors of this node: one process for each core that black boxes share.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use myelin_dataplane::CoreStats;
use myelin_kernel::Plane;
use myelin_linux::inherit;
use myelin_linux::journal::{Journal, Resource, ResourceGuard};
use myelin_policy::sharing::Parameters;
use myelin_spec::SharingMechanism;

use crate::api::ApiError;
use crate::control::actuator;
use crate::control::preemptor::setup::{CoreSetup, LaneSetup, RingSetup, TaskMembers, TaskSetup};
use crate::control::preemptor::{self, Record};
use crate::node::cores::{MemberKind, TurnMember};

/// What a node needs to start preemptors.
pub(crate) struct Preemptors {
    pub(crate) program: PathBuf,
    pub(crate) run_id: String,
    pub(crate) journal: Journal,
    pub(crate) plane: Arc<Plane>,
    pub(crate) next: AtomicU32,
}

/// A running preemptor. Dropping the value gives the tasks back to the kernel's fair class.
pub(crate) struct Preemptor {
    child: Child,
    record: Record,
    tasks: usize,
    pub(crate) mechanism: SharingMechanism,
    _recorded: ResourceGuard,
}

impl Preemptors {
    /// Starts the preemptor of a core with these members.
    ///
    /// # Errors
    /// The kernel permits no mechanism, or refuses to show a ring.
    pub(crate) fn start(
        &self,
        core: u32,
        members: &[TurnMember],
        (policy, mechanism): (Parameters, SharingMechanism),
    ) -> Result<Preemptor, ApiError> {
        let failed = |error: &dyn std::fmt::Display| {
            ApiError::failed(format!("cannot give turns on core {core}: {error}"))
        };
        let record = Record::create().map_err(|error| failed(&error))?;
        let mut fds = Vec::new();
        let tasks = describe_tasks(members, &mut fds).map_err(|error| failed(&error))?;
        let counters = self.plane.counters();
        let mut pass = |fd: io::Result<OwnedFd>| {
            let fd = fd.map_err(|error| failed(&error))?;
            let number = fd.as_raw_fd();
            fds.push(fd);
            Ok::<_, ApiError>(number)
        };
        let setup = CoreSetup {
            core,
            policy,
            mechanisms: mechanisms(mechanism, members),
            tasks,
            counters: (
                pass(counters.as_fd().try_clone_to_owned())?,
                counters.layout(),
            ),
            record: pass(record.fd())?,
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let agent = std::process::id();
        let name = format!("myelin-preemptor-{}-{agent}-{core}-{number}", self.run_id);
        let recorded = self.journal.guard(Resource::Processes {
            argument: name.clone(),
        });
        let recorded = recorded.map_err(|error| failed(&error))?;
        let mut command = Command::new(&self.program);
        command
            .args(["preemptor", "--name", &name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        inherit::pass(&mut command, fds);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let told = preemptor::tell(&mut child, &setup);
        let chosen = told.and_then(|()| preemptor::await_ready(&mut child));
        let word = chosen.map_err(|error| {
            preemptor::stop(&mut child);
            failed(&error)
        })?;
        let mut words = SharingMechanism::WORDS.iter();
        let chosen = words.find(|(known, _)| *known == word);
        Ok(Preemptor {
            child,
            record,
            tasks: members.len(),
            mechanism: chosen.map_or(mechanism, |(_, mechanism)| *mechanism),
            _recorded: recorded,
        })
    }
}

/// Describes the tasks, and collects the descriptors of their rings.
fn describe_tasks(members: &[TurnMember], fds: &mut Vec<OwnedFd>) -> io::Result<Vec<TaskSetup>> {
    let mut tasks = Vec::new();
    // The place of each ring in its chain; rings of workers have none.
    let mut places = Vec::new();
    for member in members {
        let mut lanes = Vec::new();
        let mut cost_ps = None;
        let members = match &member.kind {
            MemberKind::BlackBox(black_box) => {
                places.push(Some(black_box.place));
                cost_ps = black_box.cost_ps;
                lanes.push((
                    RingSetup::Counted {
                        entered: black_box.entered,
                        left: black_box.left,
                    },
                    black_box.capacity,
                ));
                TaskMembers::Group(black_box.group.clone())
            }
            MemberKind::Worker { member, pid } => {
                for (kind, capacity, fd) in member.rings()? {
                    places.push(None);
                    let number = fd.as_raw_fd();
                    lanes.push((RingSetup::Mapped { kind, fd: number }, capacity));
                    fds.push(fd);
                }
                TaskMembers::Process(*pid)
            }
        };
        let lane = |(ring, capacity)| LaneSetup {
            ring,
            capacity,
            egress: None,
            cost_ps,
            budget_ns: member.budget_ns,
        };
        tasks.push(TaskSetup {
            members,
            lanes: lanes.into_iter().map(lane).collect(),
        });
    }
    let lanes = tasks.iter_mut().flat_map(|task| &mut task.lanes);
    for (lane, place) in lanes.zip(&places) {
        lane.egress = place.and_then(|place| ring_behind(place, &places));
    }
    Ok(tasks)
}

/// Returns the ring of the next black box of the same generation on this core.
fn ring_behind(
    (spi, generation, position): (u32, u16, u8),
    places: &[Option<(u32, u16, u8)>],
) -> Option<usize> {
    let rings = places.iter().enumerate();
    let behind = rings.filter_map(|(ring, place)| {
        let (other_spi, other_generation, other) = (*place)?;
        let is_behind = (other_spi, other_generation) == (spi, generation) && other > position;
        is_behind.then_some((other, ring))
    });
    behind.min().map(|(_, ring)| ring)
}

/// The mechanisms that may be used, the best first.
fn mechanisms(wanted: SharingMechanism, members: &[TurnMember]) -> Vec<SharingMechanism> {
    if wanted != SharingMechanism::Auto {
        return vec![wanted];
    }
    let has_quota = |member: &TurnMember| matches!(&member.kind, MemberKind::BlackBox(black_box) if black_box.has_quota);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // A quota and a real-time priority exclude each other.
    let real_time =
        (!members.iter().any(has_quota) && actuator::permits_real_time()).then_some(if cores > 1 {
            SharingMechanism::Flip
        } else {
            SharingMechanism::Preempt
        });
    real_time
        .into_iter()
        .chain([SharingMechanism::Weights])
        .collect()
}

impl Preemptor {
    /// Whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> CoreStats {
        self.record.read(self.tasks)
    }
}

impl Drop for Preemptor {
    fn drop(&mut self) {
        preemptor::stop(&mut self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_behind_a_black_box_is_that_of_the_next_one_of_its_generation() {
        let places = [
            Some((7, 0, 3)),
            None,
            Some((7, 0, 0)),
            Some((7, 1, 1)),
            Some((7, 0, 2)),
            Some((8, 0, 1)),
        ];
        assert_eq!(ring_behind((7, 0, 0), &places), Some(4));
        assert_eq!(ring_behind((7, 0, 2), &places), Some(0));
        assert_eq!(ring_behind((7, 0, 3), &places), None);
        assert_eq!(ring_behind((7, 1, 1), &places), None);
    }
}
