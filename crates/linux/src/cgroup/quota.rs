//! The processor time that a group may use.

use std::time::Duration;

use super::check_path;
use super::hierarchy::Hierarchies;
use super::read;
use crate::error::Result;

/// The processor time of a group in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Processor time of all processes together.
    pub quota: Duration,
    /// The period.
    pub period: Duration,
}

/// Returns the quota of the group at `path`; `None` without a quota.
pub fn cpu_quota(path: &str) -> Result<Option<Quota>> {
    check_path(path)?;
    let hierarchies = Hierarchies::detect()?;
    let Some(hierarchy) = hierarchies.find("cpu") else {
        return Ok(None);
    };
    let directory = hierarchy.mount.join(path);
    let text = if hierarchy.unified {
        read(&directory.join("cpu.max"))
    } else {
        let file = |name: &str| read(&directory.join(name)).trim().to_owned();
        format!("{} {}", file("cpu.cfs_quota_us"), file("cpu.cfs_period_us"))
    };
    // Without a quota, the first word is `max` (v2) or -1 (v1).
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    let quota = words.next().flatten().zip(words.next().flatten());
    Ok(quota.map(|(quota, period)| Quota {
        quota: Duration::from_micros(quota),
        period: Duration::from_micros(period),
    }))
}
