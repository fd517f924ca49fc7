//! Compiles the shim into a shared object, which `src/library.rs` embeds and loads on demand. So a
//! program built with DPDK runs on machines without DPDK. Only a worker with DPDK ports loads DPDK.
//!
//! DPDK is optional: without DPDK the crate builds, and each start reports why DPDK is missing.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The oldest DPDK version that the shim compiles with.
const MIN_VERSION: &str = "21.11";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/shim.c");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo::rustc-check-cfg=cfg(has_dpdk)");
    let compiled = if env::var_os("CARGO_FEATURE_DPDK").is_some() {
        compile_shim()
    } else {
        Err("the cargo feature `dpdk` is off".into())
    };
    match compiled {
        Ok(version) => {
            println!("cargo::rustc-cfg=has_dpdk");
            println!("cargo::rustc-env=MYELIN_DPDK_VERSION={version}");
        }
        // A directive to cargo must be one line.
        Err(reason) => println!(
            "cargo::rustc-env=MYELIN_NO_DPDK={}",
            reason
                .to_string()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        ),
    }
}

/// Compiles the shim. Returns DPDK's version.
fn compile_shim() -> Result<String> {
    // An installation of DPDK adds a .pc file to one of these folders. Cargo then runs this script
    // again.
    let folders = run(Command::new("pkg-config").args(["--variable=pc_path", "pkg-config"]))?;
    for folder in folders.trim().split(':').filter(|folder| exists(folder)) {
        println!("cargo::rerun-if-changed={folder}");
    }
    let requirement = format!("libdpdk >= {MIN_VERSION}");
    let flags = run(Command::new("pkg-config").args([
        "--print-errors",
        "--cflags",
        "--libs",
        requirement.as_str(),
    ]))?;
    let version = run(Command::new("pkg-config").args(["--modversion", "libdpdk"]))?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    // Also optimise in debug builds, because DPDK's burst functions are inlined into the shim.
    let compiler = cc::Build::new()
        .opt_level(2)
        .cargo_metadata(false)
        .get_compiler();
    run(compiler
        .to_command()
        .args(["-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"])
        .arg(out.join("shim.so"))
        .arg("src/shim.c")
        .arg("-Wl,--as-needed")
        .args(flags.split_whitespace()))?;
    Ok(version.trim().to_owned())
}

fn exists(folder: &str) -> bool {
    fs::exists(Path::new(folder)).unwrap_or(false)
}

fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("running {program}: {error}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}", message.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
