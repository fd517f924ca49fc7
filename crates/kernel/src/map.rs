//! eBPF maps made by hand, because several programs share them.

use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::Error;
use crate::mapping::Mapping;

/// A map by the name that programs give it.
pub(crate) type Named = (&'static str, MapHandle);

/// The same as programs are loaded with them.
pub(crate) fn fds(maps: &[Named]) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
    maps.iter().map(|(name, map)| (*name, map.as_fd()))
}

/// A map with these sizes in bytes.
pub(crate) fn create(
    name: &'static str,
    kind: MapType,
    key: usize,
    value: usize,
    entries: u32,
    flags: u32,
) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    MapHandle::create(kind, Some(name), size(key), size(value), entries, &options)
        .map_err(|cause| Error::map(name, "create", &cause))
}

/// Makes or overwrites an element; `action` says in errors what that means.
pub(crate) fn put(
    map: &MapHandle,
    (name, action): (&'static str, &'static str),
    key: &[u8],
    value: &[u8],
) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY)
        .map_err(|cause| Error::map(name, action, &cause))
}

/// An array map of so many elements of that many bytes, a multiple of eight, mapped into memory.
pub(crate) fn mapped(
    name: &'static str,
    element: usize,
    elements: usize,
) -> Result<(MapHandle, Mapping), Error> {
    let (kind, number) = (MapType::Array, size_of::<u32>());
    let flags = libbpf_sys::BPF_F_MMAPABLE;
    let map = create(name, kind, number, element, elements as u32, flags)?;
    let mapping = Mapping::new(map.as_fd(), name, elements * element)?;
    Ok((map, mapping))
}

/// An array map of elements of that many bytes, a multiple of eight, filled end to end with `bytes`; at least one element, for
/// an array cannot be empty.
pub(crate) fn filled(name: &'static str, element: usize, bytes: &[u8]) -> Result<MapHandle, Error> {
    let (map, mapping) = mapped(name, element, bytes.len().div_ceil(element).max(1))?;
    mapping.write(0, bytes);
    Ok(map)
}
