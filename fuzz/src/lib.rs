//! The fuzz targets, one module each: `run` judges one input. `fuzz_targets` passes the fuzzer's
//! inputs to them; the test `crates/functions/tests/fuzz_corpora.rs` passes those of `corpus`.

pub mod aes_decrypt;
pub mod capture_file;
pub mod chain_file;
pub mod decompress;
pub mod dpi_patterns;
pub mod image_layer;
pub mod parse_packet;
mod payloads;
pub mod rlnc_decode;
pub mod rlnc_recode;
pub mod rules;
pub mod wire_frames;
