//! Transfers the named counters of functions from the worker's loop to the agent.
//!
//! As for flows, the agent sends an empty file with its request. The loop reads the counters
//! between two batches. The worker's control thread writes the counters into the file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, Write};

use serde::Deserialize;

/// A named counter of a function.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NamedCount {
    /// The function's position in its chain.
    pub position: u8,
    /// Name of the counter: a few lower-case words with hyphens.
    pub name: String,
    /// Value of the counter.
    pub count: u64,
}

/// Position, name and value of a counter, without a copy of the name. Its JSON array has the fields
/// of [`NamedCount`].
pub(crate) type CounterReading = (u8, &'static str, u64);

pub(crate) fn write(file: &mut File, readings: &[CounterReading]) -> Result<(), String> {
    let mut file = BufWriter::new(file);
    serde_json::to_writer(&mut file, readings)
        .map_err(io::Error::from)
        .and_then(|()| file.flush())
        .map_err(|error| format!("cannot write the counters: {error}"))
}

pub(crate) fn read(file: &mut File) -> io::Result<Vec<NamedCount>> {
    file.rewind()?;
    Ok(serde_json::from_reader(BufReader::new(file))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::anonymous_file;

    #[test]
    fn counters_arrive_and_a_truncated_file_is_an_error() {
        let readings: [CounterReading; 2] = [(0, "replayed", 3), (7, "too-long", u64::MAX)];
        let mut file = File::from(anonymous_file("myelin-test", 0).unwrap());
        write(&mut file, &readings).unwrap();
        let counts = readings.map(|(position, name, count)| NamedCount {
            position,
            name: name.into(),
            count,
        });
        assert_eq!(read(&mut file).unwrap(), counts);
        file.set_len(5).unwrap();
        assert!(read(&mut file).is_err());
    }
}
