//! Helpers for the tests of this crate.

use std::ops::{Deref, DerefMut};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::netns::{self, Netns};

/// Whether the test can run; prints the reason if not.
pub(crate) fn root_or_skip(test: &str) -> bool {
    let root = crate::capability::is_root();
    if !root {
        println!("skipped {test}: it changes the kernel's network and needs root");
    }
    root
}

/// A link name that is unique to this process and call: `my<pid><letter>`, within 15 bytes.
pub(crate) fn link_name(letter: char) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    format!(
        "my{}{letter}{}",
        process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed) % 1000
    )
}

/// A namespace name of this process.
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

/// A named namespace that is removed at the end of the test, also after a panic.
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

/// A process that is killed at the end of the test, also after a panic.
pub(crate) struct Child(process::Child);

impl Child {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// `sleep` for about an hour. The fraction distinguishes the tests.
    pub(crate) fn sleeping(argument: &str) -> Self {
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

/// The output of a command, which must succeed.
pub(crate) fn stdout_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
