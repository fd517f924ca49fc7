//! Compiles each eBPF program of `src/bpf` for each hook. `src/object.rs` embeds the objects.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs for one hook, with this hook. The build compiles all others for both.
const ONE_HOOK: [(&str, &str); 10] = [
    ("reentry", "XDP"),
    ("policer", "XDP"),
    ("leave", "TC"),
    ("depart", "TC"),
    ("conform", "TC"),
    ("delay_enter", "TC"),
    ("delay_leave", "TC"),
    ("delay_stamp", "XDP"),
    ("wire_in", "TC"),
    ("split", "XDP"),
];

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    if let Err(problem) = build() {
        // A panic would print a backtrace before the remedy.
        eprintln!("error: {problem}");
        std::process::exit(1);
    }
}

/// Compiles each program of `src/bpf`, and writes their list as Rust code for `src/object.rs`.
fn build() -> Result<(), String> {
    let out = PathBuf::from(read_variable("OUT_DIR"));
    let mut names: Vec<String> = std::fs::read_dir("src/bpf")
        .map_err(|error| format!("cannot read src/bpf: {error}"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|file| Some(file.strip_suffix(".bpf.c")?.to_owned()))
        .collect();
    names.sort();
    let mut list = Vec::new();
    for name in names {
        let only = ONE_HOOK.iter().find(|(program, _)| *program == name);
        let object = |hook: &str| -> Result<String, String> {
            if only.is_some_and(|(_, only)| *only != hook) {
                return Ok("&[]".to_owned());
            }
            let object = out.join(format!("{name}.{}.o", hook.to_lowercase()));
            compile(&name, hook, &object)?;
            Ok(format!("include_bytes!(r\"{}\")", object.display()))
        };
        let (xdp, tc) = (object("XDP")?, object("TC")?);
        list.push(format!(
            "Program {{ name: {name:?}, xdp: {xdp}, tc: {tc} }}"
        ));
    }
    let list = format!("&[\n{}\n]", list.join(",\n"));
    std::fs::write(out.join("programs.rs"), list)
        .map_err(|error| format!("cannot write the list of programs: {error}"))
}

fn compile(program: &str, hook: &str, object: &Path) -> Result<(), String> {
    let source = format!("src/bpf/{program}.bpf.c");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let mut command = Command::new(&clang);
    command
        .args(["-target", "bpf", "-mcpu=v3", "-O2"])
        // BTF describes the maps. The option keeps this tree's path out of the BTF.
        .args(["-g", "-fdebug-compilation-dir=."])
        .args(["-fno-stack-protector", "-Wall", "-Wextra"])
        // Both hooks share signatures, and one hook may ignore the context.
        .arg("-Wno-unused-parameter")
        .arg(format!("-DMYELIN_HOOK_{hook}"))
        .args(include_paths().iter().map(|path| format!("-I{}", path.display())))
        .args(["-c", &source, "-o"])
        .arg(object);
    let output = command.output().map_err(|error| {
        format!(
            "cannot run {clang}, which compiles the eBPF programs: {error}\n\
             install clang 14 or newer (Debian, Ubuntu: apt install clang; Fedora: dnf install clang), \
             or set the variable CLANG to its path"
        )
    })?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        for line in messages.lines() {
            println!("cargo:warning={line}");
        }
        return Ok(());
    }
    let remedy = if messages.contains("asm/types.h") || messages.contains("file not found") {
        "\ninstall the kernel's user-space headers (Debian, Ubuntu: apt install linux-libc-dev; Fedora: dnf install kernel-headers)"
    } else if messages.contains("bpf") && messages.contains("target") {
        "\nthis clang has no BPF target: install clang 14 or newer from the distribution"
    } else {
        ""
    };
    Err(format!(
        "{clang} did not compile {source}:\n{messages}{remedy}"
    ))
}

/// Returns the include paths: the headers of the linked libbpf, and the directory with `asm/` on
/// Debian-like systems. Clang searches the second directory only for native targets.
fn include_paths() -> Vec<PathBuf> {
    let multiarch = format!(
        "/usr/include/{}-linux-gnu",
        read_variable("CARGO_CFG_TARGET_ARCH")
    );
    let mut paths = vec![PathBuf::from(read_variable("DEP_BPF_INCLUDE"))];
    if Path::new(&multiarch).is_dir() {
        paths.push(multiarch.into());
    }
    paths
}

fn read_variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
