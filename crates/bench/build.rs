//! Compiles the C reference programs of `reference/` into executables for `src/reference.rs`, and
//! the eBPF programs into objects for `src/ebpf.rs`.
//!
//! DPDK is optional. Without it the crate builds, and the experiments that need it report the
//! reason for the skipped rows.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The kernel crate's code, which `accounting.bpf.c` measures.
const KERNEL_HEADERS: &str = "../kernel/src/bpf";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=reference");
    println!("cargo::rerun-if-changed={KERNEL_HEADERS}");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rustc-check-cfg=cfg(has_dpdk)");
    println!("cargo::rustc-env=MYELIN_NO_DPDK=");

    compile_ebpf("redirect", None)?;
    compile_ebpf("arrivals", None)?;
    compile_ebpf("tc_police", None)?;
    for hook in ["XDP", "TC"] {
        for name in [
            "accounting",
            "look_up_router",
            "look_up_load_balancer",
            "look_up_nat",
        ] {
            compile_ebpf(name, Some(hook))?;
        }
    }
    compile("afxdp_forward", &[])?;
    compile("packet_forward", &[])?;
    compile("vnet_forward", &[])?;
    compile("centralized_forward", &[])?;
    compile("aes_ctr", &[])?;
    compile("core_switch", &[])?;
    let dpdk = pkg_config("libdpdk").and_then(|flags| {
        compile("dpdk_forward", &flags)?;
        compile("ring_throughput", &flags)
    });
    match dpdk {
        Ok(()) => println!("cargo::rustc-cfg=has_dpdk"),
        Err(reason) => println!(
            "cargo::rustc-env=MYELIN_NO_DPDK={}",
            one_line(&reason.to_string())
        ),
    }
    Ok(())
}

/// Compiles `reference/<name>.c` to the executable `OUT_DIR/<name>`, always optimised for
/// measurements.
fn compile(name: &str, flags: &[String]) -> Result<()> {
    let source = Path::new("reference").join(name).with_extension("c");
    let program = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?).join(name);
    let compiler = cc::Build::new()
        .opt_level(2)
        .cargo_metadata(false)
        .get_compiler();
    // Libraries must follow the source that needs them.
    let mut command = compiler.to_command();
    command
        .args(["-std=gnu11", "-Wall", "-Wextra", "-o"])
        .arg(program)
        .arg(&source)
        .args(flags);
    run(&mut command)?;
    Ok(())
}

/// Compiles `reference/<name>.bpf.c`, optionally for a hook, as the kernel crate compiles its
/// programs.
fn compile_ebpf(name: &str, hook: Option<&str>) -> Result<()> {
    let suffix = hook.map_or_else(String::new, |hook| format!(".{}", hook.to_lowercase()));
    let out = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    let object = PathBuf::from(out).join(format!("{name}{suffix}.o"));
    let mut command = Command::new(env::var("CLANG").unwrap_or_else(|_| "clang".into()));
    command
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g"])
        .args(["-fdebug-compilation-dir=.", "-fno-stack-protector"])
        .args(["-Wall", "-Wextra", "-Wno-unused-parameter"])
        .arg(format!("-I{KERNEL_HEADERS}"))
        .arg(format!("-I{}", env::var("DEP_BPF_INCLUDE")?));
    // Debian's directory of `asm/`, which clang uses only when it compiles for the machine itself.
    let multiarch = format!(
        "/usr/include/{}-linux-gnu",
        env::var("CARGO_CFG_TARGET_ARCH")?
    );
    if Path::new(&multiarch).is_dir() {
        command.arg(format!("-I{multiarch}"));
    }
    if let Some(hook) = hook {
        command.arg(format!("-DMYELIN_HOOK_{hook}"));
    }
    command
        .arg("-c")
        .arg(format!("reference/{name}.bpf.c"))
        .arg("-o")
        .arg(object);
    run(&mut command)?;
    Ok(())
}

/// The compiler and linker flags of an installed library.
fn pkg_config(library: &str) -> Result<Vec<String>> {
    // An installation of DPDK changes the folder of its .pc file, which must trigger a build.
    let folders = run(Command::new("pkg-config").args(["--variable=pc_path", "pkg-config"]))?;
    for folder in folders
        .trim()
        .split(':')
        .filter(|folder| fs::exists(folder).unwrap_or(false))
    {
        println!("cargo::rerun-if-changed={folder}");
    }
    let flags =
        run(Command::new("pkg-config").args(["--print-errors", "--cflags", "--libs", library]))?;
    Ok(flags.split_whitespace().map(String::from).collect())
}

fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("running {program}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )
        .into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A directive to cargo must be one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
