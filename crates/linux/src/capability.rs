//! What the calling process may do (capabilities(7)).

use nix::unistd::geteuid;

/// True when the effective user is root.
pub fn is_root() -> bool {
    geteuid().is_root()
}
