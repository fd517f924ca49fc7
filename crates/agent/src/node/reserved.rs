//! Names that requests reserve: one request at a time works on a name.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::api::ApiError;
use crate::pool::lock;

/// How often a waiting request checks whether it was cancelled.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The reserved names.
#[derive(Default)]
pub(crate) struct ReservedNames {
    names: Mutex<NameSet>,
    freed: Condvar,
}

#[derive(Default)]
struct NameSet {
    taken: BTreeSet<String>,
    /// No more reservations.
    is_closed: bool,
}

/// The names that one request works on. Dropping it frees them.
pub(crate) struct Reservation<'a> {
    all: &'a ReservedNames,
    names: BTreeSet<String>,
}

impl ReservedNames {
    /// Reserves all these names. Waits while another request has one of them.
    ///
    /// # Errors
    /// The request was cancelled meanwhile, or the agent is stopping.
    pub(crate) fn reserve(
        &self,
        names: BTreeSet<String>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Reservation<'_>, ApiError> {
        let mut all = lock(&self.names);
        loop {
            if all.is_closed {
                return Err(ApiError::failed("the agent is stopping"));
            }
            let Some(busy) = names.iter().find(|name| all.taken.contains(*name)) else {
                all.taken.extend(names.iter().cloned());
                drop(all);
                return Ok(Reservation { all: self, names });
            };
            if is_cancelled() {
                return Err(ApiError::failed(format!(
                    "cancelled while it waited for another request that works on `{busy}`"
                )));
            }
            let waited = self.freed.wait_timeout(all, CHECK_INTERVAL);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The names that are reserved now.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        lock(&self.names).taken.clone()
    }

    /// Refuses all further reservations. Returns false if they were refused already.
    pub(crate) fn close(&self) -> bool {
        !std::mem::replace(&mut lock(&self.names).is_closed, true)
    }

    /// Waits until no name is reserved.
    pub(crate) fn wait_until_free(&self) {
        let mut all = lock(&self.names);
        while !all.taken.is_empty() {
            let waited = self.freed.wait_timeout(all, CHECK_INTERVAL);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        lock(&self.all.names)
            .taken
            .retain(|name| !self.names.contains(name));
        self.all.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_a_reserved_name_waits_or_is_cancelled() {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect();
        let all = ReservedNames::default();
        let held = all.reserve(names(&["a", "b"]), &|| false).unwrap();
        let other = all.reserve(names(&["c"]), &|| false).unwrap();
        let error = all.reserve(names(&["b", "d"]), &|| true).err().unwrap();
        assert!(error.message.contains("`b`"), "{error}");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| all.reserve(names(&["b", "d"]), &|| false).is_ok());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waits.is_finished());
            drop(held);
            assert!(waits.join().unwrap());
        });
        assert_eq!(all.names(), names(&["c"]));
        assert!(all.close() && !all.close());
        assert!(all.reserve(names(&["a"]), &|| false).is_err());
        drop(other);
        all.wait_until_free();
    }
}
