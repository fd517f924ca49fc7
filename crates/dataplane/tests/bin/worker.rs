//! A worker without the rest of Myelin, for the tests and measurements of this crate.

fn main() -> std::process::ExitCode {
    match myelin_dataplane::control_from_stdin() {
        Ok(control) => myelin_dataplane::worker_main::<myelin_dataplane::Sockets>(control),
        Err(error) => {
            eprintln!("myelin-dataplane-worker: no control connection on standard input: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
