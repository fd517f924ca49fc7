//! Names that requests reserve: one request at a time works on a name.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::api::ApiError;
use crate::pool::lock;

/// Interval at which a waiting request checks for its cancellation.
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
    /// Whether the set refuses further reservations.
    is_closed: bool,
}

/// The names that one request works on. Dropping the value frees the names.
pub(crate) struct Reservation<'a> {
    reserved: &'a ReservedNames,

    names: BTreeSet<String>,
}

impl ReservedNames {
    /// Reserves all these names. Waits while another request has reserved any of them.
    ///
    /// # Errors
    /// The request was cancelled meanwhile, or the agent is stopping.
    pub(crate) fn reserve(
        &self,
        names: BTreeSet<String>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Reservation<'_>, ApiError> {
        let mut set = lock(&self.names);
        loop {
            if set.is_closed {
                return Err(ApiError::failed("the agent is stopping"));
            }
            let Some(busy) = names.iter().find(|name| set.taken.contains(*name)) else {
                set.taken.extend(names.iter().cloned());
                drop(set);
                return Ok(Reservation {
                    reserved: self,
                    names,
                });
            };
            if is_cancelled() {
                return Err(ApiError::failed(format!(
                    "the request was cancelled while another request worked on `{busy}`"
                )));
            }
            let waited = self.freed.wait_timeout(set, CHECK_INTERVAL);
            set = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The names that are reserved now.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        lock(&self.names).taken.clone()
    }

    /// Refuses all further reservations. Returns false if the set was closed before.
    pub(crate) fn close(&self) -> bool {
        !std::mem::replace(&mut lock(&self.names).is_closed, true)
    }

    /// Waits until no name is reserved.
    pub(crate) fn wait_until_free(&self) {
        let mut set = lock(&self.names);
        while !set.taken.is_empty() {
            let waited = self.freed.wait_timeout(set, CHECK_INTERVAL);
            set = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        lock(&self.reserved.names)
            .taken
            .retain(|name| !self.names.contains(name));
        self.reserved.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_a_reserved_name_waits_or_is_cancelled() {
        let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        let reserved = ReservedNames::default();
        let held = reserved.reserve(names(&["a", "b"]), &|| false).unwrap();
        let other = reserved.reserve(names(&["c"]), &|| false).unwrap();
        let error = reserved
            .reserve(names(&["b", "d"]), &|| true)
            .err()
            .unwrap();
        assert!(error.message.contains("`b`"), "{error}");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| reserved.reserve(names(&["b", "d"]), &|| false).is_ok());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waits.is_finished());
            drop(held);
            assert!(waits.join().unwrap());
        });
        assert_eq!(reserved.names(), names(&["c"]));
        assert!(reserved.close() && !reserved.close());
        assert!(reserved.reserve(names(&["a"]), &|| false).is_err());
        drop(other);
        reserved.wait_until_free();
    }
}
