#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| myelin_fuzz::capture_file::run(data));
