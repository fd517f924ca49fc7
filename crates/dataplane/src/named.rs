//! What functions count by names of their own, on its way from the worker's loop to the agent.
//!
//! As with flows the agent sends an empty file along with its request, and the worker's control thread writes into it what the loop told between two batches.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use serde::{Deserialize, Serialize};

/// What one function counts under one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCount {
    /// The function's position in its chain.
    pub position: u8,
    /// What is counted: a few words in small letters with hyphens.
    pub name: String,
    /// How many.
    pub count: u64,
}

/// The same as the loop tells it, without a word being copied.
pub(crate) type Told = (u8, &'static str, u64);

pub(crate) fn write(file: &mut File, told: &[Told]) -> Result<(), String> {
    let counts: Vec<NamedCount> = told.iter().map(NamedCount::from).collect();
    serde_json::to_vec(&counts)
        .map_err(io::Error::from)
        .and_then(|text| file.write_all(&text))
        .map_err(|error| format!("hand the counters over: {error}"))
}

pub(crate) fn read(file: &mut File) -> io::Result<Vec<NamedCount>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

impl From<&Told> for NamedCount {
    fn from((position, name, count): &Told) -> Self {
        Self {
            position: *position,
            name: (*name).to_owned(),
            count: *count,
        }
    }
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
        let counts: Vec<NamedCount> = told.iter().map(NamedCount::from).collect();
        assert_eq!(read(&mut file).unwrap(), counts);
        file.set_len(5).unwrap();
        assert!(read(&mut file).is_err());
    }
}
