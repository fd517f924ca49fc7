//! Packet counters, shared with the eBPF programs and read without a system call.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::MapHandle;

use crate::Error;
use crate::map::create_mapped;
use crate::mapped_array::MappedArray;
use crate::numbers::{NumberAllocator, NumberRange};

/// The map's name in the programs.
pub(crate) const COUNTERS: &str = ".data.counters";
/// 64-bit words of a line: one cache line, `struct myelin_line`.
const WORDS: usize = 8;

/// Smallest useful number of lines per CPU.
const MIN_LINES: u32 = 256;

/// Returns the number of per-CPU parts of a map. The number is a power of two, so programs can mask
/// the CPU number.
pub(crate) fn cpu_parts(cpus: usize) -> usize {
    cpus.next_power_of_two()
}

/// Returns one more than the highest number of a present CPU.
fn count_present_cpus() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/present").ok()?;
    last_in_list(&text).map(|last| last + 1)
}

/// Returns the last number of a list in the kernel's format: `0-3,5`.
fn last_in_list(text: &str) -> Option<usize> {
    text.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Counters of a front door, function or egress, summed over the CPUs. The fields have the order of
/// `struct myelin_line`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CounterLine {
    /// Packets that arrived, or left in the case of an egress. Each segment of a GSO packet counts
    /// as a packet.
    pub packets: u64,
    /// Bytes of these packets, with the Ethernet header.
    pub bytes: u64,
    /// Packets that this front door, function or egress dropped.
    pub drops: u64,
    /// Time of the last packet: CLOCK_MONOTONIC, ns; 0 for functions, which do not record this
    /// time.
    pub last_ns: u64,
    /// Total time of the sampled runs of a function, ns. Each run includes the cost of one clock
    /// reading.
    pub sampled_ns: u64,
    /// Number of sampled runs. A function samples one packet in 1024.
    pub samples: u64,
    /// Packets that the policer at the front door dropped. `drops` does not include these packets.
    /// A function has no policer; see [`special`](Self::special).
    pub policed: u64,
    /// Bytes on the wire of the packets that the policer dropped.
    pub policed_bytes: u64,
}

impl CounterLine {
    /// Returns the counter of a function that its kind describes; 0 if the kind describes none.
    pub fn special(&self) -> u64 {
        self.policed
    }
}

/// `struct counting`: layout of the counter map's per-CPU parts.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Counting {
    lines: u32,
    last_cpu: u32,
}

/// All counters of a plane. Line `cpu * lines + slot` has one writer.
#[derive(Debug)]
pub struct Counters {
    map: MapHandle,
    mapping: MappedArray,
    lines: u32,
    cpus: usize,
    blocks: Arc<Mutex<NumberAllocator>>,
}

impl Counters {
    /// Creates at least `lines` lines for each possible CPU. Before Linux 6.7 a map element has at
    /// most 4 MiB. If 4 MiB are too small, creates as many lines as fit for each present CPU. A CPU
    /// that is added later then shares the lines of another CPU, and both CPUs may lose counts.
    pub(crate) fn for_machine(lines: u32) -> Result<Self, Error> {
        let possible = libbpf_rs::num_possible_cpus()
            .map_err(|cause| Error::map("counters", "size", &cause))?;
        let all = Self::new(lines, possible);
        if all.as_ref().is_ok_and(|counters| counters.lines >= lines) {
            return all;
        }
        match count_present_cpus() {
            Some(present) if cpu_parts(present) < cpu_parts(possible) => Self::new(lines, present),
            _ => all,
        }
    }

    /// Creates at least `lines` lines per CPU, or as many lines as the kernel accepts.
    fn new(lines: u32, cpus: usize) -> Result<Self, Error> {
        let mut lines = lines.next_power_of_two();
        let size = |lines: u32| cpu_parts(cpus) * lines as usize * WORDS * 8;
        let (map, mapping) = loop {
            match create_mapped("counters", size(lines), 1) {
                Err(error) if error.is_too_big() && lines > MIN_LINES => lines /= 2,
                result => break result?,
            }
        };
        Ok(Self {
            map,
            mapping,
            lines,
            cpus,
            blocks: NumberAllocator::new("counter lines", 0, lines),
        })
    }

    /// Returns the number of CPUs with their own lines.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// Returns the counters of a slot; all zero if the slot does not exist.
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

    /// Returns how [`CounterReader::open`] finds the lines: lines per CPU, and CPUs.
    pub fn layout(&self) -> (u32, u32) {
        (self.lines, u32::try_from(self.cpus).unwrap_or(u32::MAX))
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

    /// Returns the layout that programs need to find a line.
    pub(crate) fn counting(&self) -> Counting {
        Counting {
            lines: self.lines,
            last_cpu: u32::try_from(cpu_parts(self.cpus) - 1).unwrap_or(u32::MAX),
        }
    }

    /// Allocates `count` contiguous lines, all zero.
    pub(crate) fn allocate(&self, count: u32) -> Result<NumberRange, Error> {
        let block = NumberRange::allocate(&self.blocks, count)?;
        // Clear the lines here, not at the drop, because packets in flight may count after the
        // drop.
        for cpu in 0..self.cpus {
            for slot in block.range() {
                let at = (cpu * self.lines as usize + slot as usize) * WORDS * 8;
                self.mapping.write(at, &[0; WORDS * 8]);
            }
        }
        Ok(block)
    }
}

/// The counters of a plane in another process, which has the descriptor of the map.
#[derive(Debug)]
pub struct CounterReader {
    mapping: MappedArray,
    lines: u32,
    cpus: u32,
}

impl CounterReader {
    /// Maps the counters. `layout` is that of [`Counters::layout`].
    ///
    /// # Errors
    /// The descriptor is not a map of this size.
    pub fn open(map: BorrowedFd<'_>, (lines, cpus): (u32, u32)) -> Result<Self, Error> {
        let bytes = cpu_parts(cpus as usize) * lines as usize * WORDS * 8;
        Ok(Self {
            mapping: MappedArray::new(map, "counters", bytes)?,
            lines,
            cpus,
        })
    }

    /// Returns the packets of a slot that were not dropped there.
    #[inline]
    pub fn passed(&self, slot: u32) -> u64 {
        const PACKETS: usize = 0;
        const DROPS: usize = 2;
        let words = self.mapping.words();
        let word = |cpu: u32, word: usize| {
            let line = cpu as usize * self.lines as usize + slot as usize;
            let word = words.get(line * WORDS + word);
            word.map_or(0, |word| word.load(Ordering::Relaxed))
        };
        let passed = (0..self.cpus)
            .map(|cpu| word(cpu, PACKETS).wrapping_sub(word(cpu, DROPS)))
            .fold(0, u64::wrapping_add);
        if slot < self.lines { passed } else { 0 }
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
    use crate::tests::assert_same_layout;

    #[test]
    fn last_in_list_returns_the_last_cpu() {
        let lists = ["0\n", "0-1\n", "0-3,5,8-11\n", "", "none"];
        let found = [Some(0), Some(1), Some(11), None, None];
        assert_eq!(lists.map(last_in_list), found);
    }

    #[test]
    fn lines_match_their_c_layout() {
        assert_same_layout!(
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
        assert_same_layout!(DOOR, "counting", Counting { lines, last_cpu });
    }
}
