//! Ctrl-C sets a flag, so that a command can end its work and clean up.

use std::sync::atomic::{AtomicBool, Ordering};

use myelin_api::ApiError;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: nix::libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM set the returned flag, and nothing else.
///
/// # Errors
/// The kernel refuses the signal handlers.
pub(crate) fn catch_signals() -> Result<&'static AtomicBool, ApiError> {
    let action = SigAction::new(
        SigHandler::Handler(interrupt),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is allowed at any point of any
        // thread.
        unsafe { sigaction(signal, &action) }
            .map_err(|errno| ApiError::failed(format!("cannot catch {signal}: {errno}")))?;
    }
    Ok(&INTERRUPTED)
}
