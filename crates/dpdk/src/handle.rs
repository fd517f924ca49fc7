//! The agent's end of a worker over DPDK: starts it, tells it its chains, and can start it anew.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use myelin_dataplane::WORKER_NAME;

use crate::error::Error;
use crate::protocol::{Figures, PlacedChain, Reply, Request, Setup};

/// How long a worker may take to answer; starting the environment with all drivers takes up to some seconds.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// How long a worker that was told to stop may take to close its devices.
const STOP_TIME: Duration = Duration::from_secs(5);

/// The program that becomes a worker.
#[derive(Debug, Clone)]
pub struct WorkerProgram {
    /// The program, which must call [`worker_main`](crate::worker_main) with its standard input.
    pub exe: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Stands in the command line, so that a worker that outlived its agent is found.
    pub run_id: String,
}

/// A running worker. Its chains are kept here, so that another process can take them over; packets in the rings of a worker that is
/// killed are lost, and so are its counters and the state of its functions, for DPDK's memory goes with it.
///
/// A worker that does not answer, in time and with sense, is ended: [`Self::is_alive`] tells, and [`Self::restart`] brings its chains back.
///
/// Dropping the handle kills the worker.
#[derive(Debug)]
pub struct WorkerHandle {
    program: WorkerProgram,
    setup: Setup,
    chains: Vec<PlacedChain>,
    process: Option<Process>,
    restarts: u64,
}

#[derive(Debug)]
struct Process {
    child: Child,
    control: BufReader<UnixStream>,
}

impl WorkerHandle {
    /// Starts a worker without chains.
    ///
    /// # Errors
    /// It cannot be started, or refuses its set-up: the environment or a device, as its message says.
    pub fn spawn(program: WorkerProgram, setup: Setup) -> Result<Self, Error> {
        let mut handle = Self {
            program,
            setup,
            chains: Vec::new(),
            process: None,
            restarts: 0,
        };
        handle.start()?;
        Ok(handle)
    }

    /// How it was set up.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Runs a generation of a chain from now on: packets are led to it between two batches. A former one stays until [`Self::settle`],
    /// so this leads back to it too. Returns what the door counted for a former match that went.
    ///
    /// # Errors
    /// A function cannot be made, or the match is another chain's.
    pub fn run(&mut self, placed: PlacedChain) -> Result<Figures, Error> {
        let figures = self.ask("run a chain", &Request::Run(Box::new(placed.clone())))?;
        self.chains
            .retain(|chain| chain.chain.spi != placed.chain.spi);
        self.chains.push(placed);
        Ok(figures.unwrap_or_default())
    }

    /// Frees the other generations of a chain that runs. Returns what they did behind the door.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn settle(&mut self, placed: &PlacedChain) -> Result<Figures, Error> {
        self.ask("settle a chain", &Request::Settle(Box::new(placed.clone())))
            .map(Option::unwrap_or_default)
    }

    /// Stops running a chain.
    ///
    /// # Errors
    /// It does not run here, or the worker is gone.
    pub fn remove(&mut self, placed: &PlacedChain) -> Result<(), Error> {
        self.chains.retain(|chain| chain != placed);
        self.ask("remove a chain", &Request::Remove(Box::new(placed.clone())))
            .map(drop)
    }

    /// What a chain did.
    ///
    /// # Errors
    /// It does not run here, or the worker is gone.
    pub fn read(&mut self, placed: &PlacedChain) -> Result<Figures, Error> {
        self.ask("read counters", &Request::Read(Box::new(placed.clone())))
            .map(Option::unwrap_or_default)
    }

    /// Its process number; 0 when there is none because a restart failed.
    pub fn pid(&self) -> u32 {
        self.process
            .as_ref()
            .map_or(0, |process| process.child.id())
    }

    /// How often it was started anew.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| matches!(process.child.try_wait(), Ok(None)))
    }

    /// Ends the process, if it runs, and starts another with the same devices and chains: with all of them, or there is none.
    ///
    /// # Errors
    /// As for [`Self::spawn`] and [`Self::run`].
    pub fn restart(&mut self) -> Result<(), Error> {
        self.process = None;
        self.restarts += 1;
        self.start()?;
        let told = self.chains.clone().into_iter().try_for_each(|placed| {
            self.ask("run a chain", &Request::Run(Box::new(placed)))
                .map(drop)
        });
        if told.is_err() {
            self.process = None;
        }
        told
    }

    /// Lets the worker close its devices and exit; kills it when it does not.
    pub fn shutdown(mut self) {
        // A worker that is gone already cannot be told to stop.
        let _ = self.ask("stop", &Request::Stop);
        if let Some(process) = &mut self.process {
            let deadline = Instant::now() + STOP_TIME;
            while Instant::now() < deadline && matches!(process.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn start(&mut self) -> Result<(), Error> {
        let failed = |cause: io::Error| self.error("start it", cause);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_read_timeout(Some(ANSWER_TIME)).map_err(failed)?;
        let child = Command::new(&self.program.exe)
            .args(&self.program.args)
            .arg0(format!("{WORKER_NAME}@{}", self.program.run_id))
            // libxdp's dispatcher would need an eBPF file system of its own; without it net_af_xdp takes its program away when it closes.
            .env("LIBXDP_SKIP_DISPATCHER", "1")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .current_dir("/")
            // Out of the agent's process group: Ctrl-C on a terminal is the agent's to handle.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        self.process = Some(Process {
            child,
            control: BufReader::new(ours),
        });
        let setup = Request::Setup(Setup {
            restarted: self.restarts > 0,
            ..self.setup.clone()
        });
        let told = self.ask("set it up", &setup).map(drop);
        if told.is_err() {
            self.process = None;
        }
        told
    }

    fn ask(&mut self, what: &'static str, request: &Request) -> Result<Option<Figures>, Error> {
        let reply = match &mut self.process {
            Some(process) => process.ask(request),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if reply.is_err() {
            // Replies carry no number: one that came late would be taken for the next.
            self.process = None;
        }
        reply
            .map_err(|cause| self.error(what, cause))?
            .map_err(|message| Error::Refused { message })
    }

    fn error(&self, what: &'static str, cause: io::Error) -> Error {
        Error::Worker {
            worker: self.program.run_id.clone(),
            what,
            cause: Arc::new(cause),
        }
    }
}

impl Process {
    fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.control.get_mut().write_all(&line)?;
        let mut answer = String::new();
        if self.control.read_line(&mut answer)? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the worker is gone",
            ));
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Not by its number, which is another process' once this one has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use myelin_dataplane::{SocketId, UserChain, UserExit, UserSegment};
    use myelin_packet::Match;
    use myelin_spec::{DpdkDevice, FunctionConfig};

    use super::*;
    use crate::environment::EnvironmentConfig;
    use crate::protocol::{Direction, Waiting};

    /// A program that is no worker but answers as `script` says: `$1` is what it may look at, `say` answers the request that it waits for.
    fn impostor(script: &str, file: &str) -> Result<WorkerHandle, Error> {
        let script = format!("say() {{ read -r line; echo \"$1\" >&0; }}; {script}; read -r line");
        let program = WorkerProgram {
            exe: "/bin/sh".into(),
            args: ["-c", &script, "sh", file].map(Into::into).into(),
            run_id: "impostor".into(),
        };
        let device = |name| DpdkDevice::new(name).unwrap();
        let setup = Setup {
            environment: EnvironmentConfig::new("impostor"),
            devices: [device("net_ring0"), device("net_ring1")],
            batch: 1,
            waiting: Waiting::Poll,
            restarted: false,
        };
        WorkerHandle::spawn(program, setup)
    }

    fn placed() -> PlacedChain {
        PlacedChain {
            matches: Match::default(),
            direction: Direction::Forward,
            policing: myelin_packet::traffic::Profile::default(),
            chain: UserChain {
                spi: 1,
                generation: 0,
                positions: 1,
                segments: vec![UserSegment {
                    first_position: 0,
                    functions: vec![FunctionConfig::Forward.into()],
                    exit: UserExit::Port(SocketId::of_port(1)),
                    shaping: None,
                }],
            },
        }
    }

    #[test]
    fn a_worker_whose_answer_makes_no_sense_is_ended() {
        let script = r#"say '{"Ok":null}'; say 'what?'"#;
        let mut worker = impostor(script, "").unwrap();
        assert!(worker.is_alive());
        let error = worker.read(&placed()).unwrap_err();
        assert!(matches!(error, Error::Worker { .. }), "{error}");
        assert!(!worker.is_alive());
        assert_eq!(worker.pid(), 0);
        worker.restart().unwrap();
        assert!(worker.is_alive());
    }

    #[test]
    fn a_refusal_leaves_the_worker_alone() {
        let script = r#"say '{"Ok":null}'; say '{"Err":"no"}'"#;
        let mut worker = impostor(script, "").unwrap();
        let pid = worker.pid();
        let error = worker.run(placed()).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(worker.is_alive());
        assert_eq!(worker.pid(), pid);
    }

    #[test]
    fn a_restart_brings_all_chains_back_or_no_process() {
        let file = std::env::temp_dir().join(format!("myelin-impostor-{}", std::process::id()));
        // Once the file is there it refuses the chain.
        let script = r#"say '{"Ok":null}'; if [ -e "$1" ]; then say '{"Err":"no"}'; else say '{"Ok":null}'; fi"#;
        let mut worker = impostor(script, file.to_str().unwrap()).unwrap();
        worker.run(placed()).unwrap();
        std::fs::write(&file, "").unwrap();
        let refused = worker.restart();
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
        assert!(!worker.is_alive(), "it would run without the chain");
        worker.restart().unwrap();
        assert!(worker.is_alive());
    }
}
