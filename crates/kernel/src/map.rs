//! eBPF maps made by hand, because several programs share them.

use libbpf_rs::{MapHandle, MapType};

use crate::Error;

/// The array can be mapped into memory.
pub(crate) const MMAPABLE: u32 = libbpf_sys::BPF_F_MMAPABLE;

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
