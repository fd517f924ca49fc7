//! A worker without the rest of Myelin, for the tests of this crate and for measuring a worker
//! alone.

fn main() -> std::process::ExitCode {
    match myelin_dataplane::control_from_stdin() {
        Ok(control) => myelin_dataplane::worker_main::<myelin_dataplane::Sockets>(control),
        Err(error) => {
            eprintln!("no control connection on standard input: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
