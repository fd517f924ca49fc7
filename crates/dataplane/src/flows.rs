//! Transfers the flow records of a function from the worker's loop to the agent.
//!
//! The agent sends an empty file with its request. Between two batches, the worker's control thread
//! fetches a page of flows from the loop. A packet waits at most for the copy of one page. The
//! control thread writes the records and then the totals into the file. If the file stays empty,
//! the function keeps no flows.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use myelin_functions::FlowPage;
use myelin_packet::{FlowRecord, FlowTotals, Flows};

/// Number of flows that the loop copies at once: 30 KB, about 2 us.
pub(crate) const PAGE: usize = 256;

/// Writes the pages that `fetch` returns, up to the last page.
pub(crate) fn write(
    file: &mut File,
    mut fetch: impl FnMut(FlowPage) -> Result<FlowPage, String>,
) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write the flows: {error}");
    let mut page = FlowPage::new(PAGE);
    loop {
        page = fetch(page)?;
        let Some(totals) = page.totals else {
            return Ok(());
        };
        file.write_all(bytemuck::cast_slice(&page.records))
            .map_err(failed)?;
        page.records.clear();
        if page.is_last() {
            return file.write_all(bytemuck::bytes_of(&totals)).map_err(failed);
        }
    }
}

/// Reads the flows from the file. Returns `None` if the file is empty.
pub(crate) fn read(file: &mut File) -> io::Result<Option<Flows>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let (records, totals) = bytes
        .split_last_chunk::<{ size_of::<FlowTotals>() }>()
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    let records = records.chunks_exact(size_of::<FlowRecord>());
    if !records.remainder().is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(Flows {
        records: records.map(bytemuck::pod_read_unaligned).collect(),
        totals: bytemuck::pod_read_unaligned(totals),
    }))
}

#[cfg(test)]
mod tests {
    use myelin_functions::flow_table::FlowTable;
    use myelin_packet::FlowKey;

    use super::*;
    use crate::shm::anonymous_file;

    fn file() -> File {
        File::from(anonymous_file("myelin-test", 0).unwrap())
    }

    #[test]
    fn flows_of_all_pages_arrive() {
        let mut table = FlowTable::<u64, ()>::new(3 * PAGE);
        for number in 0..2 * PAGE as u64 + 7 {
            table.insert(number, ());
        }
        let totals = FlowTotals {
            begun: 900,
            evicted: 3,
            outside: 1,
        };
        let mut file = file();
        let mut pages = 0;
        write(&mut file, |mut page| {
            pages += 1;
            assert!(page.records.is_empty());
            page.read_page(&table, totals, |number, ()| {
                let mut record = FlowRecord::new(FlowKey::default());
                record.packets = *number;
                record
            });
            Ok(page)
        })
        .unwrap();
        assert_eq!(pages, 3);
        let flows = read(&mut file).unwrap().unwrap();
        let mut packets: Vec<u64> = flows.records.iter().map(|flow| flow.packets).collect();
        packets.sort_unstable();
        assert_eq!(packets, (0..2 * PAGE as u64 + 7).collect::<Vec<_>>());
        assert_eq!(flows.totals, totals);
    }

    #[test]
    fn a_function_without_flows_leaves_the_file_empty() {
        let mut file = file();
        write(&mut file, Ok).unwrap();
        assert_eq!(read(&mut file).unwrap(), None);
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        for length in [1, size_of::<FlowTotals>() - 1, size_of::<FlowTotals>() + 1] {
            let mut file = file();
            file.write_all(&vec![0; length]).unwrap();
            assert!(read(&mut file).is_err(), "{length} bytes");
        }
    }
}
