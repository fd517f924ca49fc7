//! Compares the layouts of structures in Rust and in the eBPF programs. The BTF of the compiled
//! programs describes the C layouts.

use std::collections::BTreeMap;

use libbpf_rs::HasSize;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{MemberAttr, Struct};

use crate::object::Program;

/// Returns the size of a C structure and the offsets of its members, bytes.
pub(crate) fn layout(program: &Program, name: &str) -> (usize, BTreeMap<String, usize>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), program.any_object()).unwrap();
    let btf = Btf::from_path(file.path()).unwrap();
    let structure: Struct<'_> = btf
        .type_by_name(name)
        .unwrap_or_else(|| panic!("there is no struct {name}"));
    let offset = |attr| match attr {
        MemberAttr::Normal { offset } => offset as usize / 8,
        MemberAttr::BitField { .. } => panic!("struct {name} has a bit field"),
    };
    let members = structure.iter().map(|member| {
        let name = member
            .name
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        (name, offset(member.attr))
    });
    (structure.size(), members.collect())
}

/// Checks that the fields of `$rust` have the offsets of the equally named members of `struct $c`,
/// and that the structure has no other members.
macro_rules! assert_same_layout {
    ($program:expr, $c:literal, $rust:ty { $($field:ident),+ $(,)? }) => {{
        let (size, members) = $crate::tests::layout(&$program, $c);
        let fields = [$((stringify!($field).to_owned(), ::std::mem::offset_of!($rust, $field))),+];
        assert_eq!(members, ::std::collections::BTreeMap::from(fields), "struct {}", $c);
        assert_eq!(size, ::std::mem::size_of::<$rust>(), "struct {}", $c);
    }};
}
pub(crate) use assert_same_layout;
