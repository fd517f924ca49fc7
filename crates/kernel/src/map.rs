//! Makes eBPF maps that several programs share.

use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::Error;
use crate::mapped_array::MappedArray;

/// A map with its name in the programs.
pub(crate) type NamedMap = (&'static str, MapHandle);

/// Returns the names and descriptors of `maps`, for the load of a program.
pub(crate) fn fds(maps: &[NamedMap]) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
    maps.iter().map(|(name, map)| (*name, map.as_fd()))
}

/// Creates a map. `key` and `value` are sizes in bytes.
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

/// Inserts or overwrites an element. `action` is the verb of the error text.
pub(crate) fn put(
    map: &MapHandle,
    (name, action): (&'static str, &'static str),
    key: &[u8],
    value: &[u8],
) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY)
        .map_err(|cause| Error::map(name, action, &cause))
}

/// Creates an array map and maps the array into memory. The element size in bytes is a multiple of
/// eight.
pub(crate) fn create_mapped(
    name: &'static str,
    element: usize,
    elements: usize,
) -> Result<(MapHandle, MappedArray), Error> {
    let (kind, number) = (MapType::Array, size_of::<u32>());
    let flags = libbpf_sys::BPF_F_MMAPABLE;
    let map = create(name, kind, number, element, elements as u32, flags)?;
    let mapping = MappedArray::new(map.as_fd(), name, elements * element)?;
    Ok((map, mapping))
}

/// Creates an array map and fills the array with `bytes`, without gaps. The element size in bytes
/// is a multiple of eight. The map has at least one element, because an array cannot be empty.
pub(crate) fn create_filled(
    name: &'static str,
    element: usize,
    bytes: &[u8],
) -> Result<MapHandle, Error> {
    let (map, mapping) = create_mapped(name, element, bytes.len().div_ceil(element).max(1))?;
    mapping.write(0, bytes);
    Ok(map)
}
