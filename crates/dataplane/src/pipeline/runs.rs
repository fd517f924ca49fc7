//! Assigns the functions of a chain to the processes of a pipeline.

use myelin_spec::{FunctionInstance, Shaping};

use crate::chain::{UserChain, UserExit};

/// Consecutive functions that one process runs, and their exit.
#[derive(Debug)]
pub(super) struct ProcessRun {
    /// Index of the stage; `None` for the first process.
    pub(super) process: Option<usize>,
    pub(super) first_position: u8,
    pub(super) functions: Vec<FunctionInstance>,
    /// The exit of the segment that ends with this run; `None` if packets continue at the next run.
    pub(super) exit: Option<UserExit>,
    /// The shaper of the chain's packets at the exit; `None` without a shaper.
    pub(super) shaping: Option<Shaping>,
}

impl ProcessRun {
    fn new(process: Option<usize>, first_position: u8) -> Self {
        Self {
            process,
            first_position,
            functions: Vec::new(),
            exit: None,
            shaping: None,
        }
    }
}

/// Returns the run of a process at `position`. This is the last run if that run and `process` are
/// the first process. Otherwise adds a run.
fn find_or_add_run(
    runs: &mut Vec<ProcessRun>,
    process: Option<usize>,
    position: u8,
) -> &mut ProcessRun {
    let extends =
        |last: &ProcessRun| last.process.is_none() && process.is_none() && last.exit.is_none();
    if !runs.last().is_some_and(extends) {
        runs.push(ProcessRun::new(process, position));
    }
    let last = runs.len() - 1;
    &mut runs[last]
}

/// Assigns functions to processes. Also returns the positions of the functions that get a separate
/// process.
pub(super) fn assign_processes(chain: &UserChain) -> (Vec<ProcessRun>, Vec<u8>) {
    let mut runs: Vec<ProcessRun> = Vec::new();
    let mut stages = Vec::new();
    for (index, segment) in chain.segments.iter().enumerate() {
        // Packets arrive at the sockets of the first process.
        find_or_add_run(&mut runs, None, segment.first_position);
        for (function, position) in segment.functions.iter().zip(segment.first_position..) {
            let is_first = index == 0 && position == segment.first_position;
            let process = if is_first || function.config.needs_socket_worker() {
                None
            } else {
                stages.push(position);
                Some(stages.len() - 1)
            };
            let run = find_or_add_run(&mut runs, process, position);
            run.functions.push(function.clone());
        }
        // Packets also leave through the first process.
        let end = segment.first_position + segment.functions.len() as u8;
        let run = find_or_add_run(&mut runs, None, end);
        run.exit = Some(segment.exit);
        run.shaping = segment.shaping;
    }
    (runs, stages)
}

#[cfg(test)]
mod tests {
    use myelin_spec::{FunctionConfig, NatConfig, XorConfig};

    use super::*;
    use crate::chain::{SocketId, UserSegment};
    use crate::pipeline::Pipeline;

    const OUT: UserExit = UserExit::Port(SocketId(7));

    fn chain(positions: u8, segments: &[(u8, &[FunctionConfig], UserExit)]) -> UserChain {
        let segments = segments
            .iter()
            .map(|(first_position, functions, exit)| UserSegment {
                first_position: *first_position,
                functions: functions.iter().cloned().map(Into::into).collect(),
                exit: *exit,
                shaping: None,
            });
        UserChain {
            spi: 1,
            generation: 0,
            positions,
            segments: segments.collect(),
        }
    }

    /// Returns for each run: process, first position, number of functions, and whether it ends a
    /// segment.
    fn shape(chain: &UserChain) -> Vec<(Option<usize>, u8, usize, bool)> {
        let (runs, _) = assign_processes(chain);
        runs.iter()
            .map(|run| {
                (
                    run.process,
                    run.first_position,
                    run.functions.len(),
                    run.exit.is_some(),
                )
            })
            .collect()
    }

    const XOR: FunctionConfig = FunctionConfig::Xor(XorConfig { key: 1 });

    #[test]
    fn the_first_process_has_the_first_function_and_the_exit() {
        let three = chain(3, &[(0, &[XOR, XOR, XOR], OUT)]);
        assert_eq!(
            shape(&three),
            [
                (None, 0, 1, false),
                (Some(0), 1, 1, false),
                (Some(1), 2, 1, false),
                (None, 3, 0, true)
            ]
        );
        assert_eq!(Pipeline::stage_positions(&three), [1, 2]);
        let single = chain(1, &[(0, &[XOR], OUT)]);
        assert_eq!(shape(&single), [(None, 0, 1, true)]);
    }

    #[test]
    fn functions_with_a_state_stay_in_the_first_process() {
        let nat = FunctionConfig::Nat(NatConfig::default());
        let chain = chain(4, &[(0, &[XOR, nat.clone(), XOR, nat], OUT)]);
        assert_eq!(
            shape(&chain),
            [
                (None, 0, 2, false),
                (Some(0), 2, 1, false),
                (None, 3, 1, true)
            ]
        );
    }

    #[test]
    fn packets_arrive_at_the_first_process_again_after_the_kernel() {
        let inward = UserExit::Internal {
            socket: SocketId(8),
            position: 2,
        };
        let chain = chain(5, &[(1, &[XOR], inward), (3, &[XOR, XOR], OUT)]);
        assert_eq!(
            shape(&chain),
            [
                (None, 1, 1, true),
                (None, 3, 0, false),
                (Some(0), 3, 1, false),
                (Some(1), 4, 1, false),
                (None, 5, 0, true)
            ]
        );
    }
}
