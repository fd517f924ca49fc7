//! Kernel parameters under `/proc/sys`.
//!
//! Parameters under `net/` belong to the network namespace of the calling thread. For another
//! namespace, call these functions in [`Netns::enter`](crate::netns::Netns::enter). If the kernel
//! runs without IPv6, the IPv6 functions do nothing.

use std::fs;
use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};

/// Selects the parameters of new links, instead of the name of a link.
pub const NEW_LINKS: &str = "default";

/// Reads a parameter by its path, `net/ipv4/ip_forward`.
pub fn get(path: &str) -> Result<String> {
    let file = file_of(path)?;
    let text = fs::read_to_string(file)
        .map_err(|error| Error::os(format!("read kernel parameter {path}"), error))?;
    Ok(text.trim().to_owned())
}

/// Writes a parameter.
pub fn set(path: &str, value: &str) -> Result<()> {
    let file = file_of(path)?;
    // `fs::write` would create and truncate the file.
    fs::OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| std::io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|error| Error::os(format!("set kernel parameter {path} to {value}"), error))
}

/// Returns whether the link has IPv6 parameters. A link with an MTU below 1280 (RFC 8200) has none.
pub fn has_ipv6(link: &str) -> bool {
    file_of(&format!("net/ipv6/conf/{link}")).is_ok_and(|directory| directory.is_dir())
}

/// Turns IPv6 of the link on or off. Without IPv6 the link has no IPv6 address and accepts no IPv6
/// packet. `link` may be [`NEW_LINKS`].
pub fn disable_ipv6(link: &str, off: bool) -> Result<()> {
    set_ipv6(link, "disable_ipv6", off.into())
}

/// Sets duplicate address detection of the link (RFC 4862). Mode 0 turns the detection off, mode 1
/// on. Mode 2 also turns off IPv6 if the detection fails.
pub fn set_accept_dad(link: &str, mode: u8) -> Result<()> {
    set_ipv6(link, "accept_dad", mode)
}

/// Sets the number of router solicitations (RFC 4861) that a link sends after the link is up.
pub fn set_router_solicitations(link: &str, count: u8) -> Result<()> {
    set_ipv6(link, "router_solicitations", count)
}

/// Makes the link keep its IPv6 addresses while it is down, as it keeps its IPv4 addresses.
pub fn keep_ipv6_addresses(link: &str) -> Result<()> {
    set_ipv6(link, "keep_addr_on_down", 1)
}

/// Sets the IPv4 reverse path filter (RFC 3704): 0 none, 1 strict, 2 loose. The kernel uses the
/// larger of this value and the value of `all`.
pub fn set_rp_filter(link: &str, mode: u8) -> Result<()> {
    set(
        &format!("net/ipv4/conf/{link}/rp_filter"),
        &mode.to_string(),
    )
}

/// Forwards IP packets between all links, of IPv6 too if `with_ipv6`. Reverse path filters are off:
/// packets may return on another way.
pub fn forward_packets(with_ipv6: bool) -> Result<()> {
    set("net/ipv4/ip_forward", "1")?;
    for links in ["all", NEW_LINKS] {
        set_rp_filter(links, 0)?;
    }
    if with_ipv6 {
        set_ipv6("all", "forwarding", 1)?;
    }
    Ok(())
}

fn set_ipv6(link: &str, parameter: &str, value: u8) -> Result<()> {
    let outcome = set(
        &format!("net/ipv6/conf/{link}/{parameter}"),
        &value.to_string(),
    );
    match outcome {
        Err(error) if error.is_not_found() && !fs::exists("/proc/sys/net/ipv6").unwrap_or(true) => {
            Ok(())
        }
        outcome => outcome,
    }
}

fn file_of(path: &str) -> Result<PathBuf> {
    // Slashes separate the parts, because a link's name may contain a dot. No part may lead out of
    // the directory.
    if path
        .split('/')
        .any(|part| part.is_empty() || part == "." || part == "..")
    {
        return Err(Error::new(
            format!("use `{path}` as a kernel parameter"),
            ErrorKind::Invalid,
            "the path is not below /proc/sys",
        ));
    }
    Ok(PathBuf::from("/proc/sys").join(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Namespace, root_or_skip};

    #[test]
    fn parameters_belong_to_the_entered_namespace() {
        if !root_or_skip("parameters_belong_to_the_entered_namespace") {
            return;
        }
        let here = get("net/ipv4/ip_forward").unwrap();
        let namespace = Namespace::new("sysctl");
        namespace
            .enter(|| {
                disable_ipv6("lo", true).unwrap();
                set_accept_dad(NEW_LINKS, 0).unwrap();
                set_router_solicitations(NEW_LINKS, 0).unwrap();
                set_rp_filter("lo", 2).unwrap();
                for (path, value) in [
                    ("net/ipv6/conf/lo/disable_ipv6", "1"),
                    ("net/ipv6/conf/default/accept_dad", "0"),
                    ("net/ipv6/conf/default/router_solicitations", "0"),
                    ("net/ipv4/conf/lo/rp_filter", "2"),
                ] {
                    assert_eq!(get(path).unwrap(), value, "{path}");
                }
                forward_packets(true).unwrap();
                for path in ["net/ipv4/ip_forward", "net/ipv6/conf/default/forwarding"] {
                    assert_eq!(get(path).unwrap(), "1", "{path}");
                }
                let error = disable_ipv6("absent", true).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    "cannot set kernel parameter net/ipv6/conf/absent/disable_ipv6 to 1: the object does not exist"
                );
            })
            .unwrap();
        assert_eq!(get("net/ipv4/ip_forward").unwrap(), here);
    }

    #[test]
    fn paths_outside_proc_sys_are_refused() {
        for path in ["../../etc/passwd", "net//x", "", "net/./x", "/etc/passwd"] {
            assert_eq!(
                get(path).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{path:?}"
            );
        }
        assert!(get("net/absent").unwrap_err().is_not_found());
    }
}
