//! What functions count by names of their own, on its way from the worker's loop to the agent.
//!
//! As with flows the agent sends an empty file along with its request, and the worker's control thread writes into it what the loop told between two batches.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, Write};

use serde::Deserialize;

/// What one function counts under one name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NamedCount {
    /// The function's position in its chain.
    pub position: u8,
    /// What is counted: a few words in small letters with hyphens.
    pub name: String,
    /// How many.
    pub count: u64,
}

/// The same as the loop tells it, without a word being copied; as JSON, an array of the fields of [`NamedCount`].
pub(crate) type Told = (u8, &'static str, u64);

pub(crate) fn write(file: &mut File, told: &[Told]) -> Result<(), String> {
    let mut file = BufWriter::new(file);
    serde_json::to_writer(&mut file, told)
        .map_err(io::Error::from)
        .and_then(|()| file.flush())
        .map_err(|error| format!("hand the counters over: {error}"))
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
    fn counts_arrive_and_a_torn_file_is_an_error() {
        let told: [Told; 2] = [(0, "replayed", 3), (7, "too-long", u64::MAX)];
        let mut file = File::from(anonymous_file("myelin-test", 0).unwrap());
        write(&mut file, &told).unwrap();
        let counts = told.map(|(position, name, count)| NamedCount {
            position,
            name: name.into(),
            count,
        });
        assert_eq!(read(&mut file).unwrap(), counts);
        file.set_len(5).unwrap();
        assert!(read(&mut file).is_err());
    }
}
