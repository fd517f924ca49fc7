//! Helpers for the tests of this crate.

use std::ops::{Deref, DerefMut};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::netns::{self, Netns};

/// Returns whether the test can run as root. If the test cannot run, prints the reason.
pub(crate) fn root_or_skip(test: &str) -> bool {
    let is_root = crate::capability::is_root();
    if !is_root {
        println!("skipped {test}: it changes the kernel's network and needs root");
    }
    is_root
}

/// Returns a link name of at most 15 bytes. Each call in each process returns another name.
pub(crate) fn link_name(letter: char) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    format!(
        "my{}{letter}{}",
        process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed) % 1000
    )
}

/// Returns a namespace name that only this process uses.
pub(crate) fn namespace_name(purpose: &str) -> String {
    format!("myelin-t{}-{purpose}", process::id())
}

/// Removes the name of a namespace at the end of the test, also after a panic.
pub(crate) struct NameGuard(pub(crate) String);

impl Drop for NameGuard {
    fn drop(&mut self) {
        let _ = netns::delete(&self.0);
    }
}

/// A named namespace. The drop removes the name, also after a panic.
pub(crate) struct Namespace {
    netns: Netns,
    _guard: NameGuard,
}

impl Namespace {
    pub(crate) fn new(purpose: &str) -> Self {
        let name = namespace_name(purpose);
        Self {
            netns: Netns::create(&name).unwrap(),
            _guard: NameGuard(name),
        }
    }
}

impl Deref for Namespace {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.netns
    }
}

/// A child process. The drop kills the process, also after a panic.
pub(crate) struct Child(process::Child);

impl Child {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Starts `sleep` with the time `argument`. Each test passes another time.
    pub(crate) fn spawn_sleep(argument: &str) -> Self {
        Self::spawn(Command::new("sleep").arg(argument))
    }
}

impl Deref for Child {
    type Target = process::Child;

    fn deref(&self) -> &process::Child {
        &self.0
    }
}

impl DerefMut for Child {
    fn deref_mut(&mut self) -> &mut process::Child {
        &mut self.0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command, which must succeed. Returns its standard output.
pub(crate) fn stdout_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
