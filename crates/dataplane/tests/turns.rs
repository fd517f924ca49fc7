//! Tests workers and pipeline stages that take turns on one core, with real packets.

mod common;

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use common::{
    ADAPTIVE, Network, TO_SERVER, UdpPath, assert_sleeping, chain, config, connect_udp, drain,
    echo, flood, forward_function, is_root, wait_until,
};
use myelin_dataplane::{CoreTable, Idle, Pipeline, RingEnds, WorkerConfig, WorkerHandle};
use myelin_policy::sharing::{DeadlineParameters, Parameters, UnisParameters};
use myelin_spec::{FunctionConfig, XorConfig};
use nix::sched::sched_getaffinity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A pipeline of three processes on one core.
struct Fixture {
    path: UdpPath,
    pipeline: Pipeline,
    table: Arc<CoreTable>,
}

/// The last core that this test may use.
fn core() -> u32 {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let core = (0..4096).rfind(|&core| allowed.is_set(core).unwrap_or(false));
    core.unwrap() as u32
}

fn on_core(idle: Idle) -> WorkerConfig {
    WorkerConfig {
        core: Some(core()),
        ..config(32, idle)
    }
}

fn xor(key: u8) -> FunctionConfig {
    FunctionConfig::Xor(XorConfig { key })
}

fn policies() -> [Parameters; 5] {
    let unis = UnisParameters {
        // Without a longest wait, a few packets stay in a ring for ever.
        longest_wait_ns: Some(50_000),
        ..UnisParameters::for_batch(32)
    };
    [
        Parameters::Cooperative { reads: 8 },
        Parameters::RoundRobin { slice_ns: 20_000 },
        Parameters::LoadTurns {
            round_ns: 100_000,
            batch: 32,
        },
        Parameters::Unis(unis),
        Parameters::Deadline(DeadlineParameters {
            batch: 32,
            ..DeadlineParameters::default()
        }),
    ]
}

impl Fixture {
    fn new(network: &Network, idle: Idle, policy: Parameters) -> Self {
        let mut path = UdpPath::new(network, on_core(idle), forward_function());
        path.worker.remove_chain(TO_SERVER, 0).unwrap();
        let functions = vec![xor(0x5a), FunctionConfig::Forward, xor(0x0f)];
        let chain = chain(TO_SERVER, functions, path.server);
        let mut pipeline = Pipeline::deploy(&mut path.worker, &chain, |_| on_core(idle)).unwrap();
        let table = share(&mut path, &mut pipeline, policy);
        Self {
            path,
            pipeline,
            table,
        }
    }

    fn echo_100(network: &Network) {
        Self::echo_between(&connect_udp(network));
    }

    fn echo_between((client, server): &(UdpSocket, UdpSocket)) {
        for i in 0..100_usize {
            let sent: Vec<u8> = (0..=i * 14).map(|j| (i + j) as u8).collect();
            let expected: Vec<u8> = sent.iter().map(|byte| byte ^ 0x55).collect();
            echo(client, server, &sent, &expected).unwrap();
        }
    }

    /// Returns for each ring its ends, the enqueued descriptors and the occupancy.
    fn rings(&self) -> Vec<(RingEnds, u64, u32)> {
        let reader = self.pipeline.reader(&self.path.worker);
        let rings = reader.rings();
        rings
            .map(|(ends, ring)| (ends, ring.enqueued(), ring.occupancy()))
            .collect()
    }

    fn pid(&self, task: usize) -> Pid {
        let pid = match task {
            0 => self.path.worker.pid(),
            stage => self.pipeline.stages()[stage - 1].handle.pid(),
        };
        Pid::from_raw(pid.cast_signed())
    }

    fn handle(&mut self, task: usize) -> &mut WorkerHandle {
        match task {
            0 => &mut self.path.worker,
            stage => &mut self.pipeline.stages_mut()[stage - 1].handle,
        }
    }
}

fn share(path: &mut UdpPath, pipeline: &mut Pipeline, policy: Parameters) -> Arc<CoreTable> {
    let mut handles = vec![&mut path.worker];
    handles.extend(
        pipeline
            .stages_mut()
            .iter_mut()
            .map(|stage| &mut stage.handle),
    );
    let members: Vec<_> = handles
        .iter()
        .map(|handle| (handle.member(), None))
        .collect();
    let table = Arc::new(CoreTable::create(&members, policy).unwrap());
    // Also before a process has the table.
    assert!(table.stats().tasks.iter().all(|task| task.is_alive));
    for (task, handle) in handles.into_iter().enumerate() {
        handle.share(Some((Arc::clone(&table), task))).unwrap();
    }
    table
}

#[test]
fn packets_pass_all_processes_of_one_core_under_every_policy() {
    if !is_root() {
        return;
    }
    for policy in policies() {
        for idle in [Idle::Sleep, ADAPTIVE, Idle::Spin] {
            let network = Network::new();
            let fixture = Fixture::new(&network, idle, policy);
            Fixture::echo_100(&network);
            let stats = fixture.table.stats();
            // Each packet to the server visits the first process, two stages, and the first again.
            assert!(stats.switches >= 4, "{policy:?} {idle:?} {stats:?}");
            assert!(
                stats
                    .tasks
                    .iter()
                    .all(|task| task.is_alive && task.turns > 0)
            );
            assert!(stats.switch_ns > 0 && stats.decisions >= stats.switches);
            assert_eq!(stats.tasks.len(), 3);
            let reader = fixture.pipeline.reader(&fixture.path.worker);
            assert!(wait_until(|| reader.stats().unwrap().transmitted == 100));
        }
    }
}

#[test]
fn a_flood_passes_and_no_frame_is_lost() {
    if !is_root() {
        return;
    }
    for policy in policies() {
        let network = Network::new();
        let mut fixture = Fixture::new(&network, ADAPTIVE, policy);
        let sockets = connect_udp(&network);
        let (client, server) = &sockets;
        flood(&fixture.path, client, 20_000);
        let drained = std::panic::catch_unwind(|| drain(client, server));
        assert!(
            drained.is_ok(),
            "{policy:?} {:?} {:?} {:?}",
            fixture.table.stats(),
            fixture.path.count_frames(),
            fixture.rings()
        );
        let reader = fixture.pipeline.reader(&fixture.path.worker);
        let is_complete = || {
            let stats = reader.stats().unwrap();
            let first = stats.positions[0].packets_in;
            first == stats.transmitted + stats.transmit_drops
        };
        assert!(wait_until(is_complete), "{policy:?} {:?}", reader.stats());
        // Without a table the kernel shares the core again.
        for task in 0..3 {
            fixture.handle(task).share(None).unwrap();
        }
        Fixture::echo_between(&sockets);
        let Fixture {
            mut path, pipeline, ..
        } = fixture;
        pipeline.remove(&mut path.worker).unwrap();
        path.assert_all_frames_accounted();
    }
}

#[test]
fn a_killed_process_keeps_the_core_from_nobody() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let mut fixture = Fixture::new(&network, ADAPTIVE, Parameters::Cooperative { reads: 8 });
    let (client, server) = connect_udp(&network);
    for round in 0..6_usize {
        let task = round % 3;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..20_000).for_each(|_| drop(client.send(&[1; 64]))));
            // The process is killed at any point, in its turn or in another's.
            std::thread::sleep(Duration::from_millis(5 + round as u64));
            kill(fixture.pid(task), Signal::SIGKILL).unwrap();
            let handle = fixture.handle(task);
            assert!(wait_until(|| !handle.is_alive()));
            if task > 0 {
                // The first process goes on: it fills the dead one's ring, and then loses packets.
                let received = || fixture.path.worker.stats().worker().received;
                let before = received();
                client.send(&[1; 64]).unwrap();
                assert!(
                    wait_until(|| received() > before),
                    "{:?}",
                    fixture.table.stats()
                );
            }
            fixture.handle(task).restart().unwrap();
        });
        drain(&client, &server);
        echo(&client, &server, &[1; 100], &[1 ^ 0x55; 100]).unwrap();
    }
}

#[test]
fn a_core_without_packets_sleeps() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    let fixture = Fixture::new(&network, ADAPTIVE, Parameters::Cooperative { reads: 8 });
    Fixture::echo_100(&network);
    let before = fixture.table.stats().switches;
    let stages = fixture.pipeline.stages();
    let handles = [&fixture.path.worker, &stages[0].handle, &stages[1].handle];
    for handle in handles {
        assert_sleeping(&[handle]);
    }
    let after = fixture.table.stats();
    assert!(after.switches - before < 10, "{before} {after:?}");
    Fixture::echo_100(&network);
}
