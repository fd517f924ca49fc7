//! Imports for the descriptions of kinds.

pub(super) use super::FunctionConfig;
pub(super) use super::catalogue::{Class, Coding, FragmentSupport, Kind, PacketParts, State};
pub(super) use crate::effect::{AddedBytes, AddedPackets, Cost, Effect};
pub(super) use crate::keys::field::{Field, Fields};
pub(super) use crate::keys::words::word_enum;
pub(super) use crate::keys::{
    BOOLEAN, ConfigKey, DURATION, FILE, FLOWS, REVERSE_OF, Readable, TEXT, ValueType, config,
    integer, keys,
};
pub(super) use crate::printable::Printable;
