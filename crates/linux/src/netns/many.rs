//! Makes many namespaces with several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{Netns, fill_name, path_of, prepare_directory, reserve};
use crate::error::{Error, Result};

/// Largest number of threads. The kernel makes one namespace at a time for a part of the work.
const MAX_THREADS: usize = 4;
/// Smallest number of namespaces for which another thread is worth its start.
const MIN_NAMES: usize = 8;

/// Creates a namespace of `owner` for each name, and runs `prepare` with the name's position inside
/// the new namespace. Stops after the first error; the caller removes what exists by then.
pub fn create_many<T: Send>(
    names: &[String],
    owner: &str,
    prepare: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<(Netns, T)>> {
    prepare_directory()?;
    let next = AtomicUsize::new(0);
    let create = |position: usize, name: &String| -> Result<(Netns, T)> {
        let path = path_of(name)?;
        reserve(name, &path, owner)?;
        let fd = fill_name(name, &path, Some(owner))?;
        let netns = Netns {
            name: Some(name.clone()),
            fd,
        };
        Ok((netns, prepare(position)?))
    };
    // The thread of a worker changes its namespace and ends.
    let work = || {
        let mut made = Vec::new();
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some(name) = names.get(position) else {
                return Ok(made);
            };
            match create(position, name) {
                Ok(namespace) => made.push((position, namespace)),
                Err(error) => {
                    next.store(names.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores
        .min(MAX_THREADS)
        .min(names.len().div_ceil(MIN_NAMES))
        .max(1);
    let mut made = thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, work);
        let started: Vec<_> = (0..threads).map(start).collect();
        let mut made = Vec::with_capacity(names.len());
        let mut outcome = Ok(());
        for thread in started {
            let joined = match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => Err(Error::os("create network namespaces", error)),
            };
            match joined {
                Ok(part) => made.extend(part),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| made)
    })?;
    made.sort_unstable_by_key(|(position, _)| *position);
    Ok(made.into_iter().map(|(_, namespace)| namespace).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Netlink;
    use crate::netns::{delete_owned, owner};
    use crate::tests::{namespace_name, root_or_skip};

    #[test]
    fn namespaces_are_made_in_order_and_prepared_inside() {
        if !root_or_skip("namespaces_are_made_in_order_and_prepared_inside") {
            return;
        }
        let base = namespace_name("many");
        let names: Vec<String> = (0..20).map(|n| format!("{base}-{n}")).collect();
        let prepare = |position| Ok((position, Netlink::open()?.namespace_cookie()?));
        let made = create_many(&names, "run 1", prepare).unwrap();
        for (position, (namespace, (prepared, cookie))) in made.iter().enumerate() {
            assert_eq!(namespace.name(), Some(names[position].as_str()));
            assert_eq!(*prepared, position);
            let found = Netlink::open_in(namespace).unwrap().namespace_cookie();
            assert_eq!(found.unwrap(), *cookie);
            assert_eq!(owner(&names[position]).unwrap().as_deref(), Some("run 1"));
        }
        let error = create_many(&names, "run 2", |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Exists);
        for name in &names {
            assert!(!delete_owned(name, "run 2").unwrap());
            assert!(delete_owned(name, "run 1").unwrap());
        }
    }
}
