//! Capabilities of the calling process (capabilities(7)).

use nix::unistd::geteuid;

/// Whether the effective user is root.
pub fn is_root() -> bool {
    geteuid().is_root()
}
