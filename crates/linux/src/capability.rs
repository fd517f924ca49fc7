//! The rights of the calling process.

use nix::unistd::geteuid;

/// Returns whether the effective user is root.
pub fn is_root() -> bool {
    geteuid().is_root()
}
