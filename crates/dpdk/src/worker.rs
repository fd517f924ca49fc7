//! The worker process over DPDK: a loop that forwards between two devices, and a thread that listens to the agent.
//!
//! The loop makes every change itself between two batches, so a packet meets the whole of one generation. When the agent's end of
//! the connection closes it goes on with what it has; it ends on SIGTERM, or when the agent asks, and then closes its devices and removes the
//! environment's files.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use myelin_dataplane::{Forwarder, NamedCount, Stats};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use crate::environment::Environment;
use crate::error::Error;
use crate::port::DpdkPort;
use crate::protocol::{Figures, PlacedChain, Position, Reply, Request, Setup, Waiting};

/// How long a worker that naps does not look.
const NAP: Duration = Duration::from_micros(20);
/// What the scheduler calls the thread that asks.
const THIS_THREAD: Pid = Pid::from_raw(0);
/// Turns without a packet between two looks at the clock and at what is stuck.
const LOOK_EVERY: u32 = 256;

/// Runs the worker until it is told to stop. `control` is the connection to the agent.
///
/// Never returns: the process ends with status 0 when it was told to, and 1 with a message on standard error when the set-up fails.
pub fn worker_main(control: UnixStream) -> ! {
    match run(control) {
        Ok(()) => exit(0),
        Err(message) => {
            eprintln!("myelin-worker: {message}");
            exit(1)
        }
    }
}

/// What the other threads want of the loop.
enum Wish {
    Asked(Request, Sender<Reply>),
    Terminate,
}

fn run(control: UnixStream) -> Result<(), String> {
    // Cosmetic: the command line names the worker too.
    let _ = prctl::set_name(c"myelin-worker");
    // A nap is to be as short as it says.
    let _ = prctl::set_timerslack(1);
    let mut terminate = SigSet::empty();
    terminate.add(Signal::SIGTERM);
    // Before any thread exists, DPDK's included, so that all inherit the mask.
    terminate
        .thread_block()
        .map_err(|errno| format!("block SIGTERM: {errno}"))?;

    let writer = control
        .try_clone()
        .map_err(|error| format!("control connection: {error}"))?;
    let mut reader = BufReader::new(control);
    let first = receive(&mut reader)?.ok_or("the agent closed the connection before the set-up")?;
    let Request::Setup(mut setup) = first else {
        return Err("the first request is not the set-up".into());
    };
    // DPDK binds this thread to the core where it polls, and threads that come after inherit that.
    let cores =
        sched_getaffinity(THIS_THREAD).map_err(|errno| format!("allowed cores: {errno}"))?;
    let gone = setup
        .environment
        .core
        .filter(|core| setup.restarted && !may_have(*core, &cores));
    if let Some(core) = gone {
        // Whoever looks after this worker binds it when the core comes back.
        eprintln!("myelin-worker: core {core} is gone; going on without");
        setup.environment.core = None;
    }
    let started = Worker::start(&setup).map_err(|error| error.to_string());
    if gone.is_some() {
        // Anywhere, not on one of others' cores alone.
        let _ = sched_setaffinity(THIS_THREAD, &cores);
    }
    reply(
        &writer,
        &started.as_ref().map(|_| None).map_err(Clone::clone),
    )?;
    let mut worker = started?;

    let (wish, wishes) = channel();
    let waiting = Arc::new(AtomicBool::new(false));
    let listener = Listener {
        wish,
        waiting: Arc::clone(&waiting),
    };
    let signalled = listener.clone();
    spawn("myelin-signal", cores, move || {
        // It cannot fail for a set that is not empty.
        let _ = terminate.wait();
        signalled.tell(Wish::Terminate);
    })?;
    spawn("myelin-control", cores, move || {
        listener.listen(reader, &writer);
    })?;
    worker.serve(&wishes, &waiting, setup.waiting);
    worker.stop();
    Ok(())
}

/// Whether this thread may run on a core, beside `cores` where it may run now and after.
fn may_have(core: u32, cores: &CpuSet) -> bool {
    let mut one = CpuSet::new();
    let bound = one
        .set(core as usize)
        .and_then(|()| sched_setaffinity(THIS_THREAD, &one));
    if bound.is_ok() {
        let _ = sched_setaffinity(THIS_THREAD, cores);
    }
    bound.is_ok()
}

/// Starts a thread that may run on `cores`.
fn spawn(name: &str, cores: CpuSet, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            // It fails when these cores were taken from the process meanwhile, and then it has others.
            let _ = sched_setaffinity(THIS_THREAD, &cores);
            work();
        })
        .map(drop)
        .map_err(|error| format!("start a thread: {error}"))
}

/// The next request; `None` when the agent is gone.
fn receive(reader: &mut BufReader<UnixStream>) -> Result<Option<Request>, String> {
    let mut line = String::new();
    let read = reader
        .read_line(&mut line)
        .map_err(|error| format!("control connection: {error}"))?;
    if read == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line)
        .map(Some)
        .map_err(|error| format!("control connection: {error}"))
}

fn reply(mut writer: &UnixStream, reply: &Reply) -> Result<(), String> {
    let mut line = serde_json::to_vec(reply).map_err(|error| error.to_string())?;
    line.push(b'\n');
    writer
        .write_all(&line)
        .map_err(|error| format!("control connection: {error}"))
}

/// The other threads' end of the connection to the loop.
#[derive(Clone)]
struct Listener {
    wish: Sender<Wish>,
    waiting: Arc<AtomicBool>,
}

impl Listener {
    fn tell(&self, wish: Wish) {
        // When the loop has ended the process ends too.
        let _ = self.wish.send(wish);
        self.waiting.store(true, Ordering::Release);
    }

    fn listen(&self, mut reader: BufReader<UnixStream>, writer: &UnixStream) {
        while let Ok(Some(request)) = receive(&mut reader) {
            let (answer, answered) = channel();
            self.tell(Wish::Asked(request, answer));
            let Ok(answer) = answered.recv() else { return };
            if reply(writer, &answer).is_err() {
                return;
            }
        }
    }
}

struct Worker {
    // In this order they are dropped: who uses goes before what is used.
    forwarder: Forwarder<'static, DpdkPort>,
    stats: Stats,
    environment: Environment,
    /// To which packets are led.
    chains: Vec<PlacedChain>,
    /// Those before, until it is settled that nothing leads back to them.
    former: Vec<PlacedChain>,
}

/// Whether the loop goes on.
#[derive(PartialEq, Eq)]
enum Life {
    On,
    Over,
}

impl Worker {
    fn start(setup: &Setup) -> Result<Self, Error> {
        let refused = |error: myelin_dataplane::Error| Error::Refused {
            message: error.to_string(),
        };
        let environment = Environment::start(&setup.environment)?;
        let opened = open_pair(&environment, setup);
        let [mut first, mut second] = match opened {
            Ok(ports) => ports,
            Err(error) => {
                environment.stop();
                return Err(error);
            }
        };
        first.set_opposite(&second);
        second.set_opposite(&first);
        let stats = Stats::create().map_err(refused)?;
        let mut forwarder =
            Forwarder::in_process(environment.memory(), setup.batch, &stats).map_err(refused)?;
        forwarder.add_port(0, first);
        forwarder.add_port(1, second);
        forwarder.start();
        Ok(Self {
            forwarder,
            stats,
            environment,
            chains: Vec::new(),
            former: Vec::new(),
        })
    }

    /// The loop.
    fn serve(&mut self, wishes: &Receiver<Wish>, wished: &AtomicBool, waiting: Waiting) {
        let (mut quiet, mut turns) = (0_u32, 0_u32);
        let mut since: Option<Instant> = None;
        loop {
            if wished.load(Ordering::Relaxed) {
                wished.store(false, Ordering::Relaxed);
                for wish in wishes.try_iter() {
                    if self.fulfil(wish) == Life::Over {
                        return;
                    }
                }
            }
            if self.forwarder.has_timers() {
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(LOOK_EVERY) {
                    self.forwarder.expire();
                }
            }
            if self.forwarder.is_shaping() && self.forwarder.release() > 0 {
                quiet = 0;
                since = None;
            }
            if self.forwarder.turn() > 0 {
                quiet = 0;
                since = None;
                continue;
            }
            quiet = quiet.wrapping_add(1);
            if !quiet.is_multiple_of(LOOK_EVERY) && since.is_none() {
                continue;
            }
            self.forwarder.settle();
            if let Waiting::NapAfter(patience) = waiting {
                let since = since.get_or_insert_with(Instant::now);
                if since.elapsed() >= patience {
                    std::thread::sleep(self.nap());
                    // Turns are rare now.
                    turns = LOOK_EVERY.wrapping_sub(1);
                }
            }
        }
    }

    /// How long to nap: no longer than until the next packet leaves a shaper.
    fn nap(&self) -> Duration {
        self.forwarder
            .departs_in()
            .map_or(NAP, |departs| departs.min(NAP))
    }

    fn fulfil(&mut self, wish: Wish) -> Life {
        let Wish::Asked(request, answer) = wish else {
            return Life::Over;
        };
        let reply = match &request {
            Request::Setup(_) => Err("the worker is set up already".into()),
            Request::Run(placed) => self.run(placed).map(Some),
            Request::Settle(placed) => Ok(Some(self.settle(placed))),
            Request::Remove(placed) => self.remove(placed).map(|()| None),
            Request::Read(placed) => self.read(placed).map(Some),
            Request::Stop => Ok(None),
        };
        // Nobody waits for the answer when the agent is gone.
        let _ = answer.send(reply);
        if request == Request::Stop {
            Life::Over
        } else {
            Life::On
        }
    }

    /// Makes before it breaks: no packet is between two generations, for this is between two batches.
    fn run(&mut self, placed: &PlacedChain) -> Result<Figures, String> {
        let (spi, generation) = (placed.chain.spi, placed.chain.generation);
        let is_there = self.former.contains(placed);
        if !is_there {
            self.forwarder
                .deploy(&placed.chain, &mut self.stats)
                .map_err(|error| error.to_string())?;
        }
        let led = self.door(placed).and_then(|port| {
            let set = port
                .door()
                .set(&placed.matches, spi, generation, &placed.policing);
            set.map_err(|error| format!("device {}: {error}", port.name()))
        });
        if let Err(error) = led {
            if !is_there {
                self.forwarder.undeploy(spi, generation, &mut self.stats);
            }
            return Err(error);
        }
        self.former.retain(|former| former != placed);
        let former = self
            .chains
            .iter()
            .position(|chain| chain.chain.spi == spi)
            .map(|at| self.chains.remove(at));
        self.chains.push(placed.clone());
        let mut figures = Figures::default();
        if let Some(former) = former {
            if former.matches != placed.matches {
                let counted = self.door(&former)?.door().remove(&former.matches);
                figures.door = counted.unwrap_or_default();
            }
            self.former.push(former);
        }
        Ok(figures)
    }

    fn settle(&mut self, placed: &PlacedChain) -> Figures {
        let spi = placed.chain.spi;
        let mut sum = Figures::default();
        for former in self.former.extract_if(.., |chain| chain.chain.spi == spi) {
            let generation = former.chain.generation;
            if let Some(stats) = self.stats.chain(spi, generation) {
                sum.transmitted += stats.transmitted;
                sum.shaper.add(&stats.shaper);
                sum.positions
                    .extend(stats.positions.into_iter().map(Position::from));
                sum.sojourn.merge(&stats.sojourn);
            }
            self.forwarder.undeploy(spi, generation, &mut self.stats);
        }
        sum
    }

    fn remove(&mut self, placed: &PlacedChain) -> Result<(), String> {
        let (spi, generation) = (placed.chain.spi, placed.chain.generation);
        let at = self
            .chains
            .iter()
            .position(|chain| chain == placed)
            .ok_or_else(|| format!("chain {spi} generation {generation} does not run here"))?;
        self.chains.remove(at);
        self.door(placed)?.door().remove(&placed.matches);
        self.forwarder.undeploy(spi, generation, &mut self.stats);
        Ok(())
    }

    fn read(&mut self, placed: &PlacedChain) -> Result<Figures, String> {
        let (spi, generation) = (placed.chain.spi, placed.chain.generation);
        let door = self.door(placed)?.door().chain(&placed.matches);
        let chain = self
            .stats
            .chain(spi, generation)
            .ok_or_else(|| format!("chain {spi} generation {generation} does not run here"))?;
        Ok(Figures {
            door: door.unwrap_or_default(),
            transmitted: chain.transmitted,
            positions: chain.positions.into_iter().map(Into::into).collect(),
            sojourn: chain.sojourn,
            shaper: chain.shaper,
            counters: self.counters(spi, generation),
        })
    }

    fn counters(&self, spi: u32, generation: u16) -> Vec<NamedCount> {
        let mut told = Vec::new();
        self.forwarder.read_counters(spi, generation, &mut told);
        told.iter().map(NamedCount::from).collect()
    }

    /// The port where a chain enters.
    fn door(&mut self, placed: &PlacedChain) -> Result<&mut DpdkPort, String> {
        let ingress = placed.direction.ends().0;
        self.forwarder
            .port_mut(ingress.into())
            .ok_or_else(|| format!("the worker has no port {ingress}"))
    }

    fn stop(self) {
        let Self {
            forwarder,
            environment,
            ..
        } = self;
        // Closes the devices.
        drop(forwarder);
        environment.stop();
    }
}

fn open_pair(environment: &Environment, setup: &Setup) -> Result<[DpdkPort; 2], Error> {
    let [first, second] = &setup.devices;
    Ok([
        DpdkPort::open(environment, first)?,
        DpdkPort::open(environment, second)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_tried_leaves_the_thread_where_it_was() {
        let all = sched_getaffinity(THIS_THREAD).unwrap();
        let first = (0..CpuSet::count()).find(|&core| all.is_set(core).unwrap());
        assert!(may_have(first.unwrap() as u32, &all));
        assert!(!may_have(1000, &all));
        assert!(!may_have(u32::MAX, &all));
        assert_eq!(sched_getaffinity(THIS_THREAD), Ok(all));
    }

    #[test]
    fn a_thread_does_not_inherit_the_core_of_the_loop() {
        let all = sched_getaffinity(THIS_THREAD).unwrap();
        let first = (0..CpuSet::count())
            .find(|&core| all.is_set(core).unwrap())
            .unwrap();
        let mut one = CpuSet::new();
        one.set(first).unwrap();
        sched_setaffinity(THIS_THREAD, &one).unwrap();
        let (tell, told) = channel();
        spawn("myelin-test", all, move || {
            let _ = tell.send(sched_getaffinity(THIS_THREAD));
        })
        .unwrap();
        assert_eq!(told.recv().unwrap(), Ok(all));
        assert_eq!(sched_getaffinity(THIS_THREAD), Ok(one));
    }
}
