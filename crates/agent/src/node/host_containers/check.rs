//! Refuses requests for containers before anything is made.

use myelin_spec::units;

use crate::api::{ApiError, ContainerImage, ContainerLimits, ContainerRequest, ExecRequest};
use crate::node::hosts::FoundHost;

/// Longest name of a container. Its file names have the names of topology and host too.
const MAX_NAME: usize = 40;
/// Most containers of a topology. Each holds descriptors of the agent, and groups of the kernel.
const MAX_CONTAINERS: usize = 1024;

/// Refuses a request that no host could grant.
pub(super) fn check(
    title: &str,
    host: &FoundHost,
    request: &ContainerRequest,
) -> Result<(), ApiError> {
    let name = &request.name;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !starts_well || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        return Err(ApiError::usage(format!(
            "{title}: the name is not valid: write at most {MAX_NAME} letters, digits and `-`, the first a letter or a digit"
        )));
    }
    let is_stored = matches!(request.image, ContainerImage::Stored(_));
    let program = request.command.first();
    if program.is_none() && !is_stored || program.is_some_and(String::is_empty) {
        return Err(ApiError::usage(format!(
            "{title}: no program is given: write the program and its arguments"
        )));
    }
    if let ContainerImage::Directory(directory) = &request.image
        && !directory.starts_with('/')
    {
        return Err(ApiError::usage(format!(
            "{title}: the image {directory} is no absolute path: write the path from `/` on"
        )));
    }
    let variables = request.env.iter().flat_map(|(name, value)| [name, value]);
    check_texts(title, request.command.iter().chain(variables))?;
    check_limits(title, host, &request.limits)
}

/// Refuses a container of a topology that has this many.
pub(super) fn check_count(title: &str, count: usize) -> Result<(), ApiError> {
    if count < MAX_CONTAINERS {
        return Ok(());
    }
    Err(ApiError::failed(format!(
        "{title}: the topology has {count} containers already, which is the most: remove one with `myelin container rm`, or \
         run more programs in each"
    )))
}

/// Refuses a further program of a container that cannot run.
pub(super) fn check_program(title: &str, request: &ExecRequest) -> Result<(), ApiError> {
    if request.command.first().is_none_or(String::is_empty) {
        return Err(ApiError::usage(format!(
            "{title}: no program is given: write the program and its arguments"
        )));
    }
    if request.is_terminal {
        return Err(ApiError::usage(format!(
            "{title}: a further program gets pipes and no terminal: send the request without `is_terminal`"
        )));
    }
    let directory = &request.directory;
    if !directory.is_empty() && !directory.starts_with('/') {
        return Err(ApiError::usage(format!(
            "{title}: the directory {directory} is no absolute path: write the path from `/` on"
        )));
    }
    let variables = request.env.iter().flat_map(|(name, value)| [name, value]);
    check_texts(title, request.command.iter().chain(variables))
}

fn check_texts<'t>(
    title: &str,
    mut texts: impl Iterator<Item = &'t String>,
) -> Result<(), ApiError> {
    if texts.any(|text| text.contains('\0')) {
        return Err(ApiError::usage(format!(
            "{title}: an argument or a variable has a zero byte: remove it"
        )));
    }
    Ok(())
}

/// Refuses limits that the kernel, or the host's own limit, does not allow.
pub(super) fn check_limits(
    title: &str,
    host: &FoundHost,
    limits: &ContainerLimits,
) -> Result<(), ApiError> {
    use myelin_spec::isolation::{MIN_CPU_MILLICORES, MIN_MEMORY_BYTES};
    let refuse = |asked: String, bound: String| {
        Err(ApiError::usage(format!(
            "{title}: a limit of {asked} is not possible: write {bound}, or give no limit"
        )))
    };
    let cpu = |millicores: u32| units::CPU.format(millicores.into());
    if let Some(asked) = limits.cpu_millicores {
        if asked < MIN_CPU_MILLICORES {
            return refuse(cpu(asked), format!("at least {}", cpu(MIN_CPU_MILLICORES)));
        }
        if let Some(most) = host.limits.cpu_millicores.filter(|most| asked > *most) {
            return refuse(
                cpu(asked),
                format!("at most {}, which the host has", cpu(most)),
            );
        }
    }
    let memory = units::format_memory_bytes;
    if let Some(asked) = limits.memory_bytes {
        if asked < MIN_MEMORY_BYTES {
            return refuse(
                memory(asked),
                format!("at least {}", memory(MIN_MEMORY_BYTES)),
            );
        }
        if let Some(most) = host.limits.memory_bytes.filter(|most| asked > *most) {
            return refuse(
                memory(asked),
                format!("at most {}, which the host has", memory(most)),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_containers_are_refused() {
        assert!(check_count("c", MAX_CONTAINERS - 1).is_ok());
        for count in [MAX_CONTAINERS, 10_000] {
            let error = check_count("host `lab/h1`, container `c`", count).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("`lab/h1`") && error.contains("remove one"),
                "{error}"
            );
        }
    }
}
