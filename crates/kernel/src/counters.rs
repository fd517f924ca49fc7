//! Packet counters, shared with the eBPF programs and read without a system call.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::MapHandle;

use crate::Error;
use crate::blocks::{Block, Blocks};
use crate::map::mapped;
use crate::mapping::Mapping;

/// The programs' name of the map.
pub(crate) const COUNTERS: &str = ".data.counters";
/// 64-bit words of a line: one cache line, `struct myelin_line`.
const WORDS: usize = 8;

/// Fewest lines a CPU that are of any use.
const LEAST_LINES: u32 = 256;

/// Parts of a map in which each of `cpus` CPUs has its own: a power of two, so that a mask keeps a program within it.
pub(crate) fn parts(cpus: usize) -> usize {
    cpus.next_power_of_two()
}

/// One more than the highest number of a CPU that is plugged in.
fn present_cpus() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/present").ok()?;
    last_of_list(&text).map(|last| last + 1)
}

/// The last number of a list as the kernel writes it: `0-3,5`.
fn last_of_list(text: &str) -> Option<usize> {
    text.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// What one station of a chain has counted, summed over the CPUs. The order of the fields is that of `struct myelin_line`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CounterLine {
    /// Packets that came in (at the egress: went out); a GSO packet counts as its segments.
    pub packets: u64,
    /// Their bytes, Ethernet header included.
    pub bytes: u64,
    /// Packets that were dropped here.
    pub drops: u64,
    /// When the last packet was counted: CLOCK_MONOTONIC, nanoseconds; 0 where that is not kept (functions).
    pub last_ns: u64,
    /// Time spent in the sampled runs of a function, nanoseconds, each with the cost of one clock reading.
    pub sampled_ns: u64,
    /// Sampled runs: one packet in 1024.
    pub samples: u64,
    /// At the front door: packets that the policer dropped; not among `drops`.
    pub policed: u64,
    /// Their bytes on the wire.
    pub policed_bytes: u64,
}

/// `struct counting`: where each CPU's part of a map lies.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Counting {
    lines: u32,
    last_cpu: u32,
}

/// All counters of a plane: line `cpu * lines + slot`, one writer each.
#[derive(Debug)]
pub struct Counters {
    map: MapHandle,
    mapping: Mapping,
    lines: u32,
    cpus: usize,
    blocks: Arc<Mutex<Blocks>>,
}

impl Counters {
    /// At least `lines` lines for each CPU that this machine may ever have. Before Linux 6.7 an element of a map has 4 MiB at most:
    /// where that does not suffice, for each CPU that it has now, and as many as fit; one that is plugged in later then shares the
    /// lines of another, and counts of the two may be lost.
    pub(crate) fn of_machine(lines: u32) -> Result<Self, Error> {
        let possible = libbpf_rs::num_possible_cpus()
            .map_err(|cause| Error::map("counters", "size", &cause))?;
        let all = Self::new(lines, possible);
        if all.as_ref().is_ok_and(|counters| counters.lines >= lines) {
            return all;
        }
        match present_cpus() {
            Some(present) if parts(present) < parts(possible) => Self::new(lines, present),
            _ => all,
        }
    }

    /// At least `lines` lines a CPU, or as many as the kernel takes.
    fn new(lines: u32, cpus: usize) -> Result<Self, Error> {
        let mut lines = lines.next_power_of_two();
        let size = |lines: u32| parts(cpus) * lines as usize * WORDS * 8;
        let (map, mapping) = loop {
            match mapped("counters", size(lines), 1) {
                Err(error) if error.is_too_big() && lines > LEAST_LINES => lines /= 2,
                result => break result?,
            }
        };
        Ok(Self {
            map,
            mapping,
            lines,
            cpus,
            blocks: Blocks::new("counter lines", 0, lines),
        })
    }

    /// CPUs that have lines of their own.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// The counters of a slot; all zero for one that does not exist.
    pub fn read(&self, slot: u32) -> CounterLine {
        let mut sum = CounterLine::default();
        for cpu in 0..self.cpus {
            let line: CounterLine = bytemuck::cast(self.line(cpu, slot));
            sum.packets += line.packets;
            sum.bytes += line.bytes;
            sum.drops += line.drops;
            sum.last_ns = sum.last_ns.max(line.last_ns);
            sum.sampled_ns += line.sampled_ns;
            sum.samples += line.samples;
            sum.policed += line.policed;
            sum.policed_bytes += line.policed_bytes;
        }
        sum
    }

    fn line(&self, cpu: usize, slot: u32) -> [u64; WORDS] {
        let at = (cpu * self.lines as usize + slot as usize) * WORDS;
        match self.mapping.words().get(at..at + WORDS) {
            Some(words) if slot < self.lines => {
                std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
            }
            _ => [0; WORDS],
        }
    }

    /// What programs need to find a line.
    pub(crate) fn counting(&self) -> Counting {
        Counting {
            lines: self.lines,
            last_cpu: u32::try_from(parts(self.cpus) - 1).unwrap_or(u32::MAX),
        }
    }

    /// `count` lines in a row, all zero.
    pub(crate) fn take(&self, count: u32) -> Result<Block, Error> {
        let block = Block::take(&self.blocks, count)?;
        // Now, not when they were given back: packets in flight may have counted since.
        for cpu in 0..self.cpus {
            for slot in block.range() {
                let at = (cpu * self.lines as usize + slot as usize) * WORDS * 8;
                self.mapping.write(at, &[0; WORDS * 8]);
            }
        }
        Ok(block)
    }
}

impl AsFd for Counters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::DOOR;
    use crate::tests::assert_twins;

    #[test]
    fn the_last_cpu_is_found_in_a_list() {
        let lists = ["0\n", "0-1\n", "0-3,5,8-11\n", "", "none"];
        let found = [Some(0), Some(1), Some(11), None, None];
        assert_eq!(lists.map(last_of_list), found);
    }

    #[test]
    fn lines_lie_as_in_c() {
        assert_twins!(
            DOOR,
            "myelin_line",
            CounterLine {
                packets,
                bytes,
                drops,
                last_ns,
                sampled_ns,
                samples,
                policed,
                policed_bytes
            }
        );
        assert_twins!(DOOR, "counting", Counting { lines, last_cpu });
    }
}
