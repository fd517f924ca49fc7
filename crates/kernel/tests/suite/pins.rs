//! Tests that kernel chains continue after a kill of their process.

use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use myelin_kernel::{Capacity, Error, Hook, Plane, Port, PortConfig, XdpMode};
use myelin_packet::Match;
use myelin_packet::fixtures;
use myelin_spec::{FunctionConfig, XorConfig};

use crate::common::{LOOPBACK, is_root, kernel_chain};
use crate::door_bench::{add_port, run_once};
use crate::net::{Net, PATIENCE, SILENCE, receive};

const PORT: u16 = 9000;

/// A private bpffs. The drop unmounts the file system.
struct BpfFs(tempfile::TempDir);

impl BpfFs {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("myelin-test-")
            .tempdir()
            .unwrap();
        let status = Command::new("mount")
            .args(["-t", "bpf", "bpf"])
            .arg(dir.path())
            .status()
            .unwrap();
        assert!(status.success(), "cannot mount a bpffs");
        Self(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("myelin")
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.path())
            .map(|dir| {
                dir.map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

fn create_plane(dir: &Path) -> Result<Plane, Error> {
    let capacity = Capacity {
        lines: 256,
        programs: 64,
        chains: 16,
        matches: 64,
        ports: 16,
        queues: 4,
    };
    Plane::create(Some(dir), capacity)
}

/// Environment variable of the child process: pin directory, hook, client and server link.
const CHILD_ARGUMENTS: &str = "MYELIN_TEST_PINS";

/// The child process of `chains_survive_a_killed_agent`. Deploys a chain, then kills itself.
#[test]
fn child_that_kills_itself() {
    let Ok(arguments) = std::env::var(CHILD_ARGUMENTS) else {
        return;
    };
    let [dir, hook, name, client, server] = arguments.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{arguments}")
    };
    let hook = Hook::ALL
        .into_iter()
        .find(|known| known.to_string() == hook)
        .unwrap();
    let plane = create_plane(Path::new(dir)).unwrap();
    let config = PortConfig {
        name: name.into(),
        ifindex: client.parse().unwrap(),
        opposite: None,
        single_queue: false,
        behind_link: myelin_kernel::BehindLink::No,
        discards: false,
    };
    let port = plane.add_port(config).unwrap();
    let mut chain = kernel_chain(
        hook,
        1,
        &[
            FunctionConfig::Xor(XorConfig { key: 0xff }),
            FunctionConfig::Forward,
        ],
    );
    chain.segments[0].exit = myelin_kernel::Exit::Egress {
        ifindex: server.parse().unwrap(),
        peer: true,
        by_stack: false,
    };
    let chain = plane.load_chain(&chain).unwrap();
    port.insert(
        &Match {
            destination_port: Some(PORT),
            ..Match::default()
        },
        &chain,
    )
    .unwrap();
    port.attach_tcx().unwrap();
    if hook == Hook::Xdp {
        port.attach_xdp(XdpMode::Native).unwrap();
    }
    // SAFETY: the call sends SIGKILL to this process, and no code runs afterwards.
    unsafe { libc::raise(libc::SIGKILL) };
}

#[test]
fn chains_survive_a_killed_agent() {
    for hook in Hook::ALL {
        let Some(net) = Net::new() else { return };
        let fs = BpfFs::new();
        // The chain forwards no ARP, so the neighbour entry is static.
        net.client.ip(&[
            "neighbour",
            "add",
            &net.server.address.to_string(),
            "lladdr",
            &net.server.mac(),
            "dev",
            "eth0",
        ]);
        for host in net.hosts() {
            host.set_offloads(&["tx", "off", "gro", "on"]);
        }
        let (client, server) = (net.client.ifindex, net.server.ifindex);
        let arguments = format!(
            "{} {hook} {} {client} {server}",
            fs.path().display(),
            net.client.link
        );
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "pins::child_that_kills_itself"])
            .env(CHILD_ARGUMENTS, arguments)
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));

        let (sender, receiver) = (net.client.open_udp(1000), net.server.open_udp(PORT));
        let to = SocketAddrV4::new(net.server.address, PORT);
        sender.send_to(&[1, 2, 3], to).unwrap();
        assert_eq!(
            receive(&receiver, PATIENCE),
            Some(vec![254, 253, 252]),
            "{hook}: the chain must outlive its agent"
        );

        let error = create_plane(&fs.path()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("`myelin down --all` removes them"),
            "{error}"
        );
        assert!(fs.names().len() >= 4, "{:?}", fs.names());
        Plane::remove_pins(&fs.path()).unwrap();
        assert!(!fs.path().exists());
        sender.send_to(&[1, 2, 3], to).unwrap();
        assert_eq!(
            receive(&receiver, SILENCE),
            None,
            "{hook}: the programs must be detached"
        );
        // Another plane can use the interface.
        drop(create_plane(&fs.path()).unwrap());
        Plane::remove_pins(&fs.path()).unwrap();
    }
}

#[test]
fn the_pin_name_identifies_a_clsact_filter() {
    let Some(net) = Net::new() else { return };
    let fs = BpfFs::new();
    let plane = create_plane(&fs.path()).unwrap();
    let port = plane.add_port(net.client_port(true)).unwrap();
    port.attach_clsact().unwrap();
    let server_port = plane.add_port(net.server_port(true)).unwrap();
    server_port.attach_clsact().unwrap();
    drop((port, server_port, plane));
    let (sender, receiver) = (net.client.open_udp(1000), net.server.open_udp(PORT));
    let to = SocketAddrV4::new(net.server.address, PORT);
    sender.send_to(b"attached", to).unwrap();
    assert!(
        receive(&receiver, PATIENCE).is_some(),
        "the pinned filter must outlive the plane"
    );
    assert!(
        fs.names().iter().any(|name| name.starts_with("clsact-")),
        "{:?}",
        fs.names()
    );
    Plane::remove_pins(&fs.path()).unwrap();
    sender.send_to(b"detached", to).unwrap();
    assert_eq!(receive(&receiver, SILENCE), None);
}

#[test]
fn a_detached_port_leaves_no_pin() {
    let Some(net) = Net::new() else { return };
    let fs = BpfFs::new();
    let plane = create_plane(&fs.path()).unwrap();
    let before = fs.names();
    let port = plane.add_port(net.client_port(true)).unwrap();
    port.attach_tcx().unwrap();
    port.attach_xdp(XdpMode::Native).unwrap();
    assert_eq!(fs.names().len(), before.len() + 2);
    port.detach_xdp().unwrap();
    assert_eq!(fs.names().len(), before.len() + 1);
    port.detach().unwrap();
    let reentry = plane.add_reentry(net.client.ifindex).unwrap();
    reentry.attach_xdp(XdpMode::Native).unwrap();
    // The door at XDP, and the program at tc that transmits.
    assert_eq!(fs.names().len(), before.len() + 2);
    reentry.detach().unwrap();
    assert_eq!(fs.names(), before);
}

#[test]
fn a_pinned_port_keeps_its_matches_and_a_detached_port_removes_them() {
    if !is_root() {
        return;
    }
    let fs = BpfFs::new();
    // All ports get the same number, so a door would find a remaining key of an earlier port.
    let capacity = Capacity {
        lines: 64,
        programs: 4,
        chains: 4,
        matches: 4,
        ports: 1,
        queues: 1,
    };
    let plane = Plane::create(Some(&fs.path()), capacity).unwrap();
    let chain = plane
        .load_chain(&kernel_chain(Hook::Xdp, 1, &[FunctionConfig::Forward]))
        .unwrap();
    let frame = fixtures::named("udp-v4").frame;
    let verdict =
        |port: &Port| run_once(port.program(Hook::Xdp).unwrap().as_fd(), Hook::Xdp, &frame).verdict;
    let first = add_port(&plane);
    first.insert(&Match::default(), &chain).unwrap();
    let door = first.program(Hook::Xdp).unwrap();
    first.detach().unwrap();
    assert_eq!(
        run_once(door.as_fd(), Hook::Xdp, &frame).verdict,
        Hook::Xdp.pass()
    );
    // The number of the first port is free.
    drop(first);
    let second = add_port(&plane);
    assert_eq!(verdict(&second), Hook::Xdp.pass());
    second.insert(&Match::default(), &chain).unwrap();
    let door = second.program(Hook::Xdp).unwrap();
    drop(second);
    assert_eq!(
        run_once(door.as_fd(), Hook::Xdp, &frame).verdict,
        Hook::Xdp.redirect()
    );
    Plane::remove_pins(&fs.path()).unwrap();
}

#[test]
fn pins_need_a_bpffs_and_a_private_directory() {
    if !is_root() {
        return;
    }
    let plain = tempfile::tempdir().unwrap();
    let error = create_plane(plain.path()).unwrap_err().to_string();
    assert!(
        error.contains(
            "the directory is not on a bpffs: mount a bpffs with `mount -t bpf bpf /sys/fs/bpf`"
        ),
        "{error}"
    );

    let fs = BpfFs::new();
    let plane = create_plane(&fs.path()).unwrap();
    assert!(
        create_plane(&fs.path())
            .unwrap_err()
            .to_string()
            .contains("an agent is running")
    );
    let port = plane
        .add_port(PortConfig {
            name: "lo".into(),
            ifindex: LOOPBACK,
            opposite: None,
            single_queue: false,
            behind_link: myelin_kernel::BehindLink::No,
            discards: false,
        })
        .unwrap();
    drop((port, plane));
    // Files of other programs stay.
    std::fs::create_dir(fs.path().join("other-program")).unwrap();
    Plane::remove_pins(&fs.path()).unwrap();
    assert_eq!(fs.names(), ["other-program"]);
    std::fs::remove_dir(fs.path().join("other-program")).unwrap();
    Plane::remove_pins(&fs.path()).unwrap();
    assert!(!fs.path().exists());
    Plane::remove_pins(&fs.path()).unwrap();
}
