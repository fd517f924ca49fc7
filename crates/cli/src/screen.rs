//! Draws texts on the terminal's alternate screen, reads single keys, and restores the terminal at
//! the end.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use myelin_api::ApiError;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

/// Switches to the alternate screen without a cursor (xterm's control sequences).
const BEGIN: &str = "\x1b[?1049h\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Ctrl-C and escape arrive as keys, because the terminal sends no signals.
const INTERRUPT: u8 = 3;
const ESCAPE: u8 = 27;

/// The terminal in single-key mode, on the alternate screen.
pub(crate) struct Screen {
    term: console::Term,
    /// The terminal's former settings. `None` if standard input is no terminal.
    saved_settings: Option<Termios>,
    /// The signals that end this process.
    signals: SignalFd,
}

impl Screen {
    /// Switches the terminal to the alternate screen and to single keys.
    pub(crate) fn open() -> Result<Self, ApiError> {
        let mut end_signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            end_signals.add(signal);
        }
        // No other thread runs yet, so this call blocks the signals in all threads. Nothing
        // unblocks the signals, because the process ends with its screen.
        end_signals.thread_block().map_err(terminal_error)?;
        let signals =
            SignalFd::with_flags(&end_signals, SfdFlags::SFD_CLOEXEC).map_err(terminal_error)?;
        let stdin = io::stdin();
        let saved_settings = if stdin.is_terminal() {
            let saved_settings = tcgetattr(&stdin).map_err(terminal_error)?;
            let mut keys = saved_settings.clone();
            keys.local_flags
                .remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
            tcsetattr(&stdin, SetArg::TCSANOW, &keys).map_err(terminal_error)?;
            Some(saved_settings)
        } else {
            None
        };
        let screen = Self {
            saved_settings,
            signals,
            term: console::Term::stdout(),
        };
        write(BEGIN)?;
        Ok(screen)
    }

    /// Replaces the text on the screen with one write, to avoid flicker.
    pub(crate) fn draw(&self, text: &str) -> Result<(), ApiError> {
        let (rows, columns) = self.term.size();
        write(&format_screen(text, rows.into(), columns.into()))
    }

    /// Waits for `time`. Returns true as soon as a key or a signal ends the command.
    pub(crate) fn wait_for_end(&self, time: Duration) -> Result<bool, ApiError> {
        let stdin = io::stdin();
        let end = Instant::now() + time;
        loop {
            let remaining = end.saturating_duration_since(Instant::now());
            let mut sources = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            if self.saved_settings.is_some() {
                sources.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
            }
            // Rounds up, to avoid polling with a timeout of 0.
            let millis = remaining.as_millis() + u128::from(!remaining.is_zero());
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            match poll(&mut sources, timeout) {
                Ok(0) => return Ok(false),
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(terminal_error(errno)),
            }
            let is_ready = |source: &PollFd<'_>| source.any().unwrap_or(false);
            if is_ready(&sources[0]) {
                return Ok(true);
            }
            if sources.get(1).is_some_and(is_ready) {
                let mut keys = [0; 16];
                let read = nix::unistd::read(&stdin, &mut keys).map_err(terminal_error)?;
                // A read of 0 bytes means that the terminal is closed.
                if read == 0 || keys[..read].iter().any(|key| is_end_key(*key)) {
                    return Ok(true);
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // An error cannot be reported here.
        let _ = write(END);
        if let Some(saved_settings) = &self.saved_settings {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, saved_settings);
        }
    }
}

fn write(text: &str) -> Result<(), ApiError> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(terminal_error)
}

fn is_end_key(key: u8) -> bool {
    matches!(key, b'q' | b'Q' | INTERRUPT | ESCAPE)
}

/// Formats the text as a full screen, cut to the size of the terminal.
fn format_screen(text: &str, rows: usize, columns: usize) -> String {
    let lines: Vec<String> = text
        .lines()
        .take(rows)
        .map(|line| console::truncate_str(line, columns, "").into_owned())
        .collect();
    let lines = lines.join(&format!("{CLEAR_LINE}\r\n"));
    format!("{HOME}{lines}{CLEAR_LINE}{CLEAR_BELOW}")
}

fn terminal_error(error: impl std::fmt::Display) -> ApiError {
    ApiError::failed(format!("cannot use the terminal: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_the_size_of_the_terminal() {
        let drawn = format_screen("one two\nthree\nfour", 2, 4);
        assert_eq!(drawn, "\x1b[Hone \x1b[K\r\nthre\x1b[K\x1b[J");
    }

    #[test]
    fn q_escape_and_ctrl_c_end_the_screen() {
        assert!([b'q', b'Q', 3, 27].into_iter().all(is_end_key));
        assert!(!is_end_key(b'x'));
    }
}
