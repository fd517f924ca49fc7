//! What users without all rights may do: `/etc/myelin/access.yaml`, read anew for each request.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use myelin_spec::units;
use nix::unistd::Uid;
use serde::Deserialize;

use crate::api::{ApiError, ContainerLimits};
use crate::node::hosts::FoundHost;

/// The variable that names another file than [`DEFAULT`].
const VARIABLE: &str = "MYELIN_ACCESS";
const DEFAULT: &str = "/etc/myelin/access.yaml";
/// Longest file, bytes.
const MAX_FILE: u64 = 1 << 20;
/// A name that stands for all.
const ALL: &str = "*";

/// The rules of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Access {
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Rule {
    users: Vec<String>,
    groups: Vec<String>,
    /// Topologies whose hosts the rule is about.
    topologies: Vec<String>,
    /// Owners (`metadata.namespace`) of chains whose end hosts the rule is about.
    namespaces: Vec<String>,
    exec: bool,
    containers: bool,
    /// Processor time of all containers of the user together.
    cpu: Option<String>,
    /// Memory of all containers of the user together.
    memory: Option<String>,
}

/// The names of a user and of its groups.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) user: String,
    pub(super) groups: Vec<String>,
}

/// What a rule permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Exec,
    Containers,
}

/// Returns the path of the file.
pub(super) fn path() -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(DEFAULT), PathBuf::from)
}

impl Access {
    /// Reads the file. Without a file there are no rules.
    ///
    /// # Errors
    /// The file is unreadable, not valid, or another user can change it.
    pub(super) fn read() -> Result<Self, ApiError> {
        let path = path();
        let failed = |cause: String| ApiError::failed(format!("{}: {cause}", path.display()));
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            other => other.map_err(|error| failed(error.to_string()))?,
        };
        let found = file.metadata().map_err(|error| failed(error.to_string()))?;
        let is_own = found.uid() == 0 || found.uid() == Uid::effective().as_raw();
        if !is_own || found.mode() & 0o022 != 0 {
            return Err(failed(
                "another user than root can change the file, so it has no effect: `chown root` and `chmod go-w`".to_owned(),
            ));
        }
        let mut text = String::new();
        let read = file.take(MAX_FILE).read_to_string(&mut text);
        read.map_err(|error| failed(error.to_string()))?;
        Self::parse(&text).map_err(failed)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let access: Self = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        for rule in &access.rules {
            rule.limits()?;
            if rule.users.is_empty() && rule.groups.is_empty() {
                return Err("a rule names no `users` and no `groups`".to_owned());
            }
        }
        Ok(access)
    }

    /// Returns the limits of the first rule that lets a user do something on a host.
    ///
    /// # Errors
    /// The reason why no rule does.
    pub(super) fn grant(
        &self,
        names: &Names,
        action: Action,
        host: &FoundHost,
    ) -> Result<ContainerLimits, ApiError> {
        let (what, key) = match action {
            Action::Exec => ("run programs on", "exec: true"),
            Action::Containers => ("use containers in", "containers: true"),
        };
        let refuse = |reason: String| {
            let (user, host) = (&names.user, host.path());
            Err(ApiError::failed(format!(
                "user `{user}` may not {what} host `{host}`: {reason}; use sudo, or let root write such a rule into {}",
                path().display()
            )))
        };
        let own: Vec<&Rule> = self.rules.iter().filter(|rule| rule.names(names)).collect();
        if own.is_empty() {
            return refuse("no rule names this user or one of its groups".to_owned());
        }
        let about: Vec<&Rule> = own.into_iter().filter(|rule| rule.is_about(host)).collect();
        if about.is_empty() {
            let object = &host.object;
            return refuse(match &host.owner {
                None => format!("no rule for this user names the topology `{object}`"),
                Some(owner) => format!("no rule for this user names the namespace `{owner}`"),
            });
        }
        let permits = |rule: &&&Rule| match action {
            Action::Exec => rule.exec,
            Action::Containers => rule.containers,
        };
        match about.iter().find(permits) {
            Some(rule) => rule.limits().map_err(ApiError::failed),
            None => refuse(format!("its rule has no `{key}`")),
        }
    }
}

impl Rule {
    fn names(&self, names: &Names) -> bool {
        self.users.contains(&names.user)
            || self.groups.iter().any(|group| names.groups.contains(group))
    }

    fn is_about(&self, host: &FoundHost) -> bool {
        let (listed, name) = match &host.owner {
            None => (&self.topologies, &host.object),
            Some(owner) => (&self.namespaces, owner),
        };
        listed.iter().any(|one| one == ALL || one == name)
    }

    fn limits(&self) -> Result<ContainerLimits, String> {
        let cpu = self.cpu.as_deref().map(|text| units::CPU.parse(text));
        let memory = self.memory.as_deref().map(|text| units::MEMORY.parse(text));
        let cpu = cpu.transpose().map_err(|fault| format!("cpu: {fault}"))?;
        let memory = memory
            .transpose()
            .map_err(|fault| format!("memory: {fault}"))?;
        Ok(ContainerLimits {
            cpu_millicores: cpu.map(|millicores| u32::try_from(millicores).unwrap_or(u32::MAX)),
            memory_bytes: memory,
        })
    }
}

/// Refuses limits of a container that exceed, with those of the user's other containers, what the
/// user may use together.
///
/// # Errors
/// Too large a limit, or none.
pub(super) fn check_limits(
    granted: ContainerLimits,
    others: &[ContainerLimits],
    asked: ContainerLimits,
) -> Result<(), ApiError> {
    let check = |what: &str,
                 granted: Option<u64>,
                 used: u64,
                 asked: Option<u64>,
                 format: &dyn Fn(u64) -> String| {
        let Some(granted) = granted else {
            return Ok(());
        };
        let left = granted.saturating_sub(used);
        match asked {
            Some(asked) if asked <= left => Ok(()),
            asked => Err(ApiError::failed(format!(
                "the containers of this user may use {} of {what} together, of which {} is left, and this one asks for {}: write a \
                 smaller limit, or remove a container",
                format(granted),
                format(left),
                asked.map_or_else(|| "no limit".to_owned(), format)
            ))),
        }
    };
    let cpu = |limits: &ContainerLimits| limits.cpu_millicores.map(u64::from);
    let used = others.iter().filter_map(cpu).sum();
    let format = |value| units::CPU.format(value);
    check("the processor", cpu(&granted), used, cpu(&asked), &format)?;
    let used = others.iter().filter_map(|limits| limits.memory_bytes).sum();
    let format = units::format_memory_bytes;
    check(
        "memory",
        granted.memory_bytes,
        used,
        asked.memory_bytes,
        &format,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
rules:
  - users: [alice]
    groups: [students]
    topologies: [lab]
    exec: true
  - groups: [students]
    topologies: ['*']
    containers: true
    cpu: 0.5cores
    memory: 256MiB
  - { users: [bob], namespaces: [edge], exec: true }
";

    fn host(object: &str, owner: Option<&str>) -> FoundHost {
        FoundHost::for_test(object, owner)
    }

    fn names(user: &str, groups: &[&str]) -> Names {
        Names {
            user: user.to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn rules_permit_what_they_name() {
        let access = Access::parse(FILE).unwrap();
        let (alice, carol) = (names("alice", &[]), names("carol", &["students"]));
        let (lab, other) = (host("lab", None), host("other", None));
        assert!(access.grant(&alice, Action::Exec, &lab).is_ok());
        assert!(access.grant(&carol, Action::Exec, &lab).is_ok());
        let granted = access.grant(&carol, Action::Containers, &other).unwrap();
        assert_eq!(granted.cpu_millicores, Some(500));
        assert_eq!(granted.memory_bytes, Some(256 << 20));
        let refused = |names: &Names, action, host: &FoundHost, expected: &str| {
            let error = access.grant(names, action, host).unwrap_err().message;
            assert!(
                error.contains(expected) && error.contains("access.yaml"),
                "{error}"
            );
        };
        refused(&alice, Action::Containers, &lab, "containers: true");
        refused(&alice, Action::Exec, &other, "topology `other`");
        refused(
            &names("eve", &["staff"]),
            Action::Exec,
            &lab,
            "names this user",
        );
        let bob = names("bob", &[]);
        assert!(
            access
                .grant(&bob, Action::Exec, &host("chain", Some("edge")))
                .is_ok()
        );
        refused(
            &bob,
            Action::Exec,
            &host("chain", Some("default")),
            "namespace `default`",
        );
    }

    #[test]
    fn a_wrong_file_has_no_effect() {
        for text in [
            "rules: [ { users: [a], exce: true } ]",
            "rules: [ { exec: true } ]",
            "rules: [ { users: [a], cpu: '2' } ]",
            "rules: 3",
            "rule: []",
        ] {
            assert!(Access::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_containers_of_a_user_share_what_it_may_use() {
        let limits = |cpu: Option<u32>, memory: Option<u64>| ContainerLimits {
            cpu_millicores: cpu,
            memory_bytes: memory,
        };
        let granted = limits(Some(500), None);
        let others = [limits(Some(300), Some(1 << 20))];
        assert!(check_limits(granted, &others, limits(Some(200), None)).is_ok());
        for asked in [limits(Some(201), None), limits(None, None)] {
            let error = check_limits(granted, &others, asked).unwrap_err().message;
            assert!(error.contains("200m is left"), "{error}");
        }
        assert!(check_limits(limits(None, None), &others, limits(None, None)).is_ok());
    }
}
