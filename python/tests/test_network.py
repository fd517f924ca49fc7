#!/usr/bin/env python3
"""Networks in code over a real agent: real packets, files, live changes, bad arguments, killed scripts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import ROOT, AgentTest, run, wait_for

import myelin
from myelin.errors import ArgumentError, CommandError


class Networks(AgentTest):
    def network(self, name: str = "net") -> myelin.Network:
        """A network that ends with the test, with h1 - s1 - s2 - h2."""
        network = myelin.Network(self.name(name), client=self.client)
        self.addCleanup(network.stop)
        h1, h2 = network.add_host("h1"), network.add_host("h2")
        s1, s2 = network.add_switch("s1"), network.add_switch("s2")
        network.add_link(h1, s1)
        network.add_link(s1, s2)
        network.add_link(h2, s2)
        return network

    def test_parts_of_a_running_network_go(self) -> None:
        network = self.network().start()
        h1, s1, s2 = network.host("h1"), network.switch("s1"), network.switch("s2")
        h3 = network.add_host("h3")
        network.add_link(h3, s1)
        program = h3.popen(["sleep", "1000"])
        network.remove_host(h3)
        self.assertNotEqual(program.wait(), 0)
        self.assertEqual([host.name for host in network.hosts], ["h1", "h2"])
        self.assertEqual([link.name for link in network.read_status().links], ["h1-s1", "s1-s2", "h2-s2"])
        self.assertNotIn(f"myelin-{network.name}-h3", self.namespaces())
        self.assertEqual(network.ping(h1, "h2", timeout_s=60).received, 1)
        # A host with two links keeps its address when the first one goes.
        network.add_host("h4", address="10.0.0.4/8")
        network.add_link("h4", s1)
        network.add_link("h4", h1, delay="1ms")
        network.remove_link("h4-s1")
        self.assertIn("10.0.0.4/8", network.host("h4").cmd("ip -4 address show eth1"))
        chain = myelin.Chain(
            self.name("stays"), match={"protocol": "udp"}, functions=[myelin.Function("count", "monitor", space="kernel")],
            ports=(h1, network.host("h2")),
        )
        network.up(chain)
        with self.assertRaises(myelin.FailedError) as raised:
            network.remove_host("h2")
        self.assertIn(f"`myelin down {chain.name}` first", raised.exception.message)
        # Nothing has gone, also not here.
        self.assertEqual(network.ping(h1, "h2", timeout_s=60).received, 1)
        self.client.down(chain.name)
        with network.batch():
            network.remove_switch(s2)
            network.remove_host("h2")
        self.assertEqual([switch.name for switch in network.read_status().switches], ["s1"])
        with self.assertRaises(ArgumentError):
            network.remove_host("h2")
        network.stop()
        self.assertEqual(self.namespaces(), [])

    def test_hosts_reach_each_other_and_run_programs(self) -> None:
        network = self.network().start()
        h1 = network.host("h1")
        self.assertEqual((h1.address, len(network.status.links)), ("10.0.0.1", 3))
        pings = network.ping_all(timeout_s=60)
        self.assertEqual((pings.sent, pings.received, pings.loss_percent), (2, 2, 0.0))
        self.assertEqual(str(pings).splitlines()[0], "h1 -> h2")
        self.assertIn("10.0.0.1/8", h1.cmd("ip -4 address show eth0"))
        self.assertIn("10.0.0.1/8", h1.cmd("ip", "-4", "address", "show", "eth0"))
        self.assertEqual(sorted(h1.cmd(["ls", "/sys/class/net"]).split()), ["eth0", "lo"])
        done = h1.run("echo out; echo err >&2; exit 3")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "out\n", "err\n"))
        with h1.popen(["cat"], stdin=subprocess.PIPE) as cat:
            self.assertEqual(cat.communicate(b"hello")[0], b"hello")
        # This process stays in its namespace.
        self.assertNotEqual(h1.cmd("readlink /proc/self/ns/net").strip(), os.readlink("/proc/thread-self/ns/net"))
        measured = network.iperf("h1", "h2", seconds=1)
        self.assertGreater(measured.received_bps, 1e6)
        with self.assertRaises(CommandError) as raised:
            h1.cmd("exit 3", check=True)
        self.assertIn("exit status 3", raised.exception.message)
        with self.assertRaises(CommandError) as raised:
            h1.popen(["no-such-program"])
        self.assertIn("no-such-program", raised.exception.message)
        network.stop()
        self.assertEqual(self.namespaces(), [])

    def test_a_host_without_a_link_loses_all_pings(self) -> None:
        network = self.network("alone")
        network.add_host("h3")
        network.start()
        pings = network.ping_all(timeout_s=60)
        self.assertEqual((pings.sent, pings.received), (6, 2))
        alone = [ping for ping in pings if "h3" in (ping.source, ping.destination)]
        self.assertEqual([ping.received for ping in alone], [0] * 4)
        self.assertTrue(all(f"{network.name}/h3` has no link" in ping.reason for ping in alone), pings)
        self.assertIn("has no link", str(pings))
        # Packets of a host whose link is down have no way either.
        network.host("h1").cmd("ip link set eth0 down", check=True)
        self.assertIn("unreachable", network.ping("h1", "h2").reason)

    def test_a_capture_has_what_passed_before_its_end(self) -> None:
        network = self.network("captured").start()
        h1, h2 = network.host("h1"), network.host("h2")
        path = self.directory / "link.pcap"
        receiver = h2.call(lambda: socket.socket(type=socket.SOCK_DGRAM))
        sender = h1.call(lambda: socket.socket(type=socket.SOCK_DGRAM))
        with receiver, sender:
            receiver.bind(("", 9000))
            receiver.settimeout(60)
            sender.sendto(b"first", (h2.address, 9000))
            self.assertEqual(receiver.recv(100), b"first")
            with h2.links[0].capture(path):
                for number in range(100):
                    sender.sendto(f"frame-{number:03}".encode(), (h2.address, 9000))
                for _ in range(100):
                    receiver.recv(100)
        written = path.read_bytes()
        self.assertEqual([number for number in range(100) if f"frame-{number:03}".encode() not in written], [])

    def test_links_have_delay_rate_and_loss_and_change_live(self) -> None:
        network = myelin.Network(self.name("live"), client=self.client)
        self.addCleanup(network.stop)
        h1, h2 = network.add_host("h1", address="10.1.0.1/24"), network.add_host("h2", address="10.1.0.2/24")
        s1, s2 = network.add_switch("s1"), network.add_switch("s2")
        slow = network.add_link(h1, s1, delay="20ms", bandwidth="50Mbit", loss="0%")
        network.add_link(h2, s2)
        network.add_link(s1, s2)
        network.start()
        rtt = network.ping(h1, h2, count=2, timeout_s=60).rtt_min_ms
        assert rtt is not None
        self.assertGreaterEqual(rtt, 40.0)
        changed = slow.set(delay="60ms", loss="0%")
        self.assertEqual(changed.impairments.delay_ns, 60_000_000)
        rtt = network.ping(h1, h2, count=2, timeout_s=60).rtt_min_ms
        assert rtt is not None
        self.assertGreaterEqual(rtt, 120.0)
        changed = slow.set(delay="1ms", direction=s1)
        assert changed.back is not None
        self.assertEqual((changed.impairments.delay_ns, changed.back.delay_ns), (60_000_000, 1_000_000))
        with self.assertRaises(ArgumentError):
            slow.set(delay="1ms", direction=h2)
        slow.set(delay="60ms")
        self.assertIsNone(slow.status.back)
        slow.set(loss="100%")
        self.assertEqual(network.ping(h1, h2, timeout_s=0.5).received, 0)
        self.assertIsNotNone(slow.status.directions)
        slow.set(loss="0%")
        slow.down()
        self.assertFalse(slow.status.is_up)
        self.assertEqual(network.ping(h1, h2, timeout_s=0.5).received, 0)
        slow.up()
        wait_for("packets over the link", lambda: network.ping(h1, h2).received == 1)
        h2.move(s1)
        self.assertEqual(h2.links[0].ends, ("h2", "s1"))
        network.link("s1", "s2").down()
        wait_for("packets after the move", lambda: network.ping(h1, h2).received == 1)
        moved = network.link("s1", "h2")
        moved.down()
        self.assertEqual(network.ping(h1, h2, timeout_s=0.5).received, 0)
        moved.up()
        wait_for("packets over the moved link", lambda: network.ping(h1, h2).received == 1)
        udp = network.iperf(h1, h2, seconds=1, udp=True, rate="1Mbit")
        self.assertEqual(udp.protocol, "udp")

    def test_a_running_network_grows_at_once_or_not_at_all(self) -> None:
        network = self.network("grows").start()
        h1, s1 = network.host("h1"), network.switch("s1")
        network.host("h2").move(s1)
        slow = network.link("s1", "s2")
        slow.set(delay="1ms")
        with h1.popen(["ping", "-n", "-i", "0.05", "10.0.0.2"]) as pings:
            assert pings.stdout is not None
            with network.batch():
                h3 = network.add_host("h3", cpu="0.5cores", address="10.0.0.33/8")
                s3 = network.add_switch("s3")
                network.add_link(s3, network.switch("s2"), delay="5ms")
                network.add_link(h3, s3)
            self.assertEqual((h3.address, network.ping(h1, h3, timeout_s=60).received), ("10.0.0.33", 1))
            rtt = network.ping(h1, h3, timeout_s=60).rtt_min_ms
            assert rtt is not None
            self.assertGreaterEqual(rtt, 12.0)
            self.assertIsNotNone(h3.status.cgroup)
            # A host without a link gets its address with its first link, and further links later.
            h4 = network.add_host("h4")
            self.assertEqual(sorted(h4.cmd("ls /sys/class/net").split()), ["lo"])
            network.add_link(h4, s3)
            self.assertEqual(network.ping(h4, "h2", timeout_s=60).received, 1)
            network.add_link(h4, h1, name="direct")
            self.assertIn("eth1", h4.cmd("ls /sys/class/net"))
            before = (len(network.links), self.link_names(), self.links_of(network))
            with self.assertRaises(myelin.FileError) as raised, network.batch():
                network.add_host("h5")
                network.add_link("h5", "s1")
                network.add_link("h4", h1, name="direct-2")
                network.add_link("s3", "s1")
            self.assertIn("loop", raised.exception.message)
            # The kernel refuses the last step: the name of an interface is taken.
            h4.cmd("ip link add eth2 type veth peer name other", check=True)
            with self.assertRaises(myelin.FailedError), network.batch():
                network.add_link(network.add_host("h5"), network.add_switch("s5"))
                network.add_link(h1, "s5")
                network.add_link(h4, "s5")
            self.assertEqual((len(network.links), self.link_names(), self.links_of(network)), before)
            self.assertNotIn(f"myelin-{network.name}-h5", self.namespaces())
            h4.cmd("ip link del eth2", check=True)
            network.add_link(h4, "s1")
            self.assertEqual(network.ping_all(timeout_s=60).loss_percent, 0.0)
            pings.send_signal(signal.SIGINT)
            self.assertIn(" 0% packet loss", pings.stdout.read().decode())
        loaded = myelin.Network.attach(network.name, self.client)
        with self.assertRaises(myelin.FailedError) as refused:
            loaded.add_host("h6")
        self.assertIn("attached", refused.exception.message)
        path = self.directory / "grown.yaml"
        network.save(path)
        self.assertEqual(myelin.Network.load(path, self.client, name="x").host("h3").keys["address"], ["10.0.0.33/8"])
        network.stop()
        self.assertEqual((self.namespaces(), self.client.topologies()), ([], []))

    def link_names(self) -> list[str]:
        """The links of the only topology."""
        return [link.name for link in self.client.topologies()[0].links]

    def links_of(self, network: myelin.Network) -> int:
        """How many interfaces of this machine the network has."""
        listed = subprocess.run(["ip", "-json", "link"], check=True, capture_output=True, text=True).stdout
        return listed.count(f'"ifalias":"{network.name} ')

    def test_a_chain_over_nodes_runs(self) -> None:
        network = myelin.Network(self.name("nodes"), client=self.client)
        self.addCleanup(network.stop)
        h1, h2, n1 = network.add_host("h1"), network.add_host("h2"), network.add_node("n1")
        network.add_link(h1, n1)
        network.add_link(n1, h2)
        network.start()
        self.assertEqual(network.ping(h1, h2, timeout_s=60).received, 1)
        self.assertEqual(([node.name for node in network.nodes], len(network.hosts)), (["n1"], 2))
        self.assertIsNotNone(n1.status.agent)
        reread = myelin.Network.from_document(network.documents()[0], self.client)
        self.assertEqual(reread.nodes[0].name, "n1")

    def test_hosts_reach_each_other_over_routers(self) -> None:
        network = myelin.Network(self.name("routed"), client=self.client)
        self.addCleanup(network.stop)
        h1, h2 = network.add_host("h1"), network.add_host("h2")
        r1 = network.add_router("r1", ["10.1.0.254/24", ["10.2.0.254/24", "fd02::1/64"]])
        network.add_link(h1, r1)
        network.add_link(r1, h2)
        network.start()
        self.assertEqual(network.ping(h1, h2, timeout_s=60).received, 1)
        self.assertEqual((h1.address, h2.address), ("10.1.0.1", "10.2.0.1"))
        self.assertTrue(r1.status.is_router)
        self.assertEqual((network.routers, network.hosts), ([r1], [h1, h2]))
        with self.assertRaises(myelin.FailedError) as raised:
            network.add_router("r2", ["10.3.0.254/24"])
        self.assertIn("add_router", raised.exception.message)
        # A host beside a switch of its own is no neighbour of the router.
        network.add_link(network.add_host("h3"), network.add_switch("s1"))
        self.assertEqual(network.host("h3").address, "10.0.0.1")
        attached = myelin.Network.attach(network.name, self.client)
        self.assertEqual([router.name for router in attached.routers], ["r1"])

    def test_a_chain_runs_between_hosts(self) -> None:
        network = self.network("chained").start()
        chain = myelin.Chain(
            self.name("x"),
            match={"protocol": "udp", "destination": "10.0.0.2/32"},
            functions=[myelin.Function("count", "monitor", space="kernel")],
            ports=(network.host("h1"), network.host("h2")),
        )
        (up,) = network.up(chain)
        self.assertEqual(up.change, "created")
        network.host("h1").cmd("for i in 1 2 3; do echo hello > /dev/udp/10.0.0.2/9; done".join(["bash -c '", "'"]))
        wait_for("three packets", lambda: self.client.ps(chain.name)[0].packets_in == 3)
        network.stop()
        self.assertEqual((self.client.ps(), self.client.topologies()), ([], []))

    def test_limits_bind_the_programs_of_a_host(self) -> None:
        network = myelin.Network(self.name("limits"), client=self.client)
        self.addCleanup(network.stop)
        network.add_host("h1", cpu="0.5cores", memory="64MiB")
        network.start()
        group = network.host("h1").status.cgroup
        assert group is not None
        self.assertIn(group, network.host("h1").cmd("cat /proc/self/cgroup"))

    def test_programs_that_do_not_end_are_ended(self) -> None:
        network = self.network("bad").start()
        h1 = network.host("h1")
        with self.assertRaises(CommandError) as raised:
            h1.cmd(f"{self.nap(0)} & {self.nap(0)}", timeout=0.5)
        self.assertIn("did not end", raised.exception.message)
        with self.assertRaises(CommandError) as raised:
            h1.cmd(["yes", self.tag])
        self.assertIn("MiB", raised.exception.message)
        # A program in the background holds the output and does not hold the call.
        self.assertEqual(h1.cmd(f"{self.nap(1)} & echo started", timeout=60), "started\n")
        self.assertEqual(h1.cmd(f"setsid {self.nap(2)} & echo started", timeout=60), "started\n")
        self.assertEqual(self.find_programs(self.nap(0)), [])
        self.assertEqual([len(self.find_programs(self.nap(number))) for number in (1, 2)], [1, 1])
        network.stop()
        wait_for("the end of the programs", lambda: not self.find_programs(self.nap(0)[:-1]))
        self.assertEqual(self.find_programs(f"yes {self.tag}"), [])

    def nap(self, number: int) -> str:
        """A command that goes on for weeks, and that no other process has."""
        return f"sleep 1{os.getpid():07}{number}"

    def find_programs(self, pattern: str) -> list[str]:
        """The programs with this command line."""
        return subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=False).stdout.split()

    def test_a_thousand_commands_leak_nothing(self) -> None:
        network = self.network("many").start()
        h1 = network.host("h1")
        h1.cmd("true")
        before = (len(os.listdir("/proc/self/fd")), threading.active_count())
        for _ in range(1000):
            h1.cmd(["true"])
        self.assertEqual((len(os.listdir("/proc/self/fd")), threading.active_count()), before)
        network.stop()
        self.assertEqual(threading.active_count(), before[1])

    def test_two_scripts_never_meet_and_a_killed_one_leaves_nothing(self) -> None:
        script = (
            f"import sys; sys.path.insert(0, {str(ROOT / 'python/src')!r}); import myelin\n"
            f"net = myelin.Network(run_dir={str(self.client.run_dir)!r})\n"
            "net.add_host('h1'); net.add_host('h2'); net.add_link('h1', 'h2'); net.start()\n"
            f"net.host('h1').popen('{self.nap(3)} & {self.nap(3)}')\n"
            "print(net.ping_all(timeout_s=60).received, net.name, flush=True)\n"
            "sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", script]
        scripts = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        names = []
        for one in scripts:
            assert one.stdout is not None
            received, name = one.stdout.readline().split()
            self.assertEqual(received, "2")
            names.append(name)
        self.assertNotEqual(*names)
        scripts[0].send_signal(signal.SIGKILL)
        wait_for("the end of the lease", lambda: len(self.client.topologies()) == 1)
        self.assertEqual(self.client.topologies()[0].name, names[1])
        scripts[1].communicate()
        wait_for("the end of the other", lambda: self.client.topologies() == [])
        wait_for("the end of the programs", lambda: not self.find_programs(self.nap(3)))
        scripts[0].communicate()

    def test_a_script_that_is_killed_at_any_time_leaves_nothing(self) -> None:
        chain = self.name("killed-chain")
        script = (
            f"import sys; sys.path.insert(0, {str(ROOT / 'python/src')!r}); import myelin\n"
            f"net = myelin.Network({self.name('killed')!r}, run_dir={str(self.client.run_dir)!r})\n"
            "net.add_host('h1'); net.add_host('h2'); net.add_switch('s1')\n"
            "net.add_link('h1', 's1', delay='1ms'); net.add_link('h2', 's1'); print('x', flush=True); net.start()\n"
            f"net.up(myelin.Chain({chain!r}, match={{}}, functions=[myelin.Function('f', 'forward', space='user')],\n"
            "    ports=(net.host('h1'), net.host('h2'))), force=True); net.ping_all()\n"
            f"net.host('h1').cmd('{self.nap(4)}')\n"
        )
        self.client.start_agent()
        for delay_s in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
            with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as started:
                assert started.stdout is not None
                started.stdout.readline()
                time.sleep(delay_s)
                started.kill()
            wait_for(
                f"the end of all after {delay_s} s",
                lambda: not (self.client.topologies() or self.client.ps() or self.namespaces()),
            )
        wait_for("the end of the programs", lambda: not self.find_programs(self.nap(4)))

    def test_an_agent_that_is_gone_is_told(self) -> None:
        network = self.network("gone").start()
        os.kill(self.client.info().pid, signal.SIGKILL)
        wait_for("the end of the agent", lambda: not self.client.is_running())
        with self.assertRaises(myelin.FailedError):
            network.link("h1", "s1").down()
        network.stop()
        subprocess.run(self.client.program.command("down", "--all"), check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(self.namespaces(), [])

    def test_a_running_network_is_attached(self) -> None:
        path = self.write((ROOT / "examples/topology.yaml").read_text().replace("name: lab", "name: @lab")
                          .replace("name: h1-to-h4", "name: @h14").replace("lab/h", "@lab/h"), "lab.yaml")
        self.client.up(path)
        lab = myelin.Network.attach(self.name("lab"), self.client)
        self.assertEqual(lab.ping("h1", "h3", timeout_s=60).received, 1)
        lab.stop()
        self.assertEqual(len(self.client.topologies()), 1)
        loaded = myelin.Network.load(path, self.client)
        self.assertEqual([host.name for host in loaded.hosts], ["h1", "h2", "h3", "h4"])
        self.assertEqual(loaded.host("h4").keys["memory"], "256MiB")
        chain = myelin.Chain.load(path, self.client)
        self.assertEqual(chain.functions[0].kind, "monitor")
        self.client.down(chain.name)
        self.client.down(lab.name)


class Objects(AgentTest):
    def test_objects_write_themselves_and_read_themselves_back(self) -> None:
        network = myelin.Network(self.name("file"), client=self.client)
        network.add_host("h1", cpu="0.5cores", address=["10.1.0.1/24", "fd00::1/64"])
        network.add_host("h2", cpus=(0, 1))
        network.add_link("h1", "h2", delay="1.5ms", loss="1%", burst=3, bandwidth="10Mbit", queue=50)
        network.add_host("h3", address="10.3.0.1/24", gateway="10.3.0.253")
        network.add_router("r1", ["10.3.0.253/24", ["10.4.0.1/24", "fd04::1/64"]])
        network.add_link("h3", "r1")
        network.add_link("r1", "h2")
        network.add_switch("s1", openflow="tcp:h1:6653")
        network.add_link("h1", "s1", delay="1ms", by="netem")
        chain = myelin.Chain(
            self.name("file-chain"),
            match={"protocol": "udp", "destinationPort": 9000},
            functions=[myelin.Function("coder", "xor", {"key": 0x5A}, space="user"), myelin.Function("end", "forward")],
            sla=myelin.Sla(rate="20kpps", burst=32, latency="500ms", percentile=99.9, loss="0.1%"),
            mapping="pipeline",
            on_failure="drop",
        )
        path = self.directory / "network.yaml"
        network.save(path)
        self.assertEqual(myelin.Network.load(path, self.client), network)
        path = self.directory / "chain.yaml"
        chain.save(path)
        self.assertEqual(myelin.Chain.load(path, self.client), chain)
        self.assertEqual(chain.sla.percentile, 99.9)
        # The command line takes the file, and the agent reads it as it reads YAML.
        plans = self.client.plan(path)
        self.assertEqual((plans[0].chain, plans[0].admitted), (chain.name, self.client.plan(chain)[0].admitted))
        read = self.client.read(path).objects
        self.assertEqual(myelin.Chain.from_document(read[0]), chain)
        graph = subprocess.run(self.client.program.command("graph", str(self.directory / "network.yaml")), check=True,
                               capture_output=True, text=True)
        self.assertIn("h2", graph.stdout)
        for drawn in (network.svg(), chain.svg(self.client)):
            self.assertTrue(drawn.lstrip().startswith("<"), drawn[:80])
            self.assertIn("<svg", drawn)

    def test_wrong_arguments_are_told_at_the_call_and_make_nothing(self) -> None:
        network = myelin.Network(client=self.client)
        h1, h2, s1 = network.add_host("h1"), network.add_host("h2"), network.add_switch("s1")
        link = network.add_link(h1, s1)
        match = {"protocol": "udp"}
        forward = [myelin.Function("f", "forward")]
        calls: list[Callable[[], object]] = [
            lambda: myelin.Network("Big Name"),
            lambda: myelin.Network(client=self.client, run_dir="/tmp"),
            lambda: network.add_host("h1"),
            lambda: network.add_host("h_3"),
            lambda: network.add_host("h3", cpu="half"),
            lambda: network.add_host("h3", memory=12),  # type: ignore[arg-type]
            lambda: network.add_link("h1", "h9"),
            lambda: network.add_link("h1", "h1"),
            lambda: network.add_link("s1", "h1"),
            lambda: network.add_link("h1", "h2", delay=10),  # type: ignore[arg-type]
            lambda: network.add_link("h1", "h2", delay="10"),
            lambda: network.add_link("h1", "h2", bandwidth="fast"),
            lambda: network.add_link("h1", "h2", loss="101%"),
            lambda: network.add_link("h1", "h2", burst=3),
            lambda: network.add_link("h1", "h2", queue=-1),
            lambda: link.set(),
            lambda: link.set(delay="1.2.3ms"),
            lambda: network.host("s1"),
            lambda: network.switch("h1"),
            lambda: network.link("h1", "h2"),
            lambda: network.iperf("h1", "h2", seconds=0),
            lambda: network.iperf("h1", "h2", rate="1"),
            lambda: network.ping("h1", "h2", count=0),
            lambda: network.ping("h1", "h2", timeout_s=-1),
            lambda: h2.cmd(""),
            lambda: h2.cmd([]),
            lambda: myelin.Sla(rate="20"),
            lambda: myelin.Sla(latency="350"),
            lambda: myelin.Sla(enforce="maybe"),
            lambda: myelin.Function("f", "firewal"),
            lambda: myelin.Function("f", "xor"),
            lambda: myelin.Function("f", "xor", {"key": 256}),
            lambda: myelin.Function("f", "xor", {"kee": 1}),
            lambda: myelin.Function("f", "forward", space="moon"),
            lambda: myelin.Chain("c", match={"prot": "udp"}, functions=forward),
            lambda: myelin.Chain("c", match=match, functions=["f"]),  # type: ignore[list-item]
            lambda: myelin.Chain("c", match=match, functions=forward, mapping="best"),
            lambda: myelin.Chain("c", match=match, functions=forward, colour="red"),
            lambda: myelin.Chain("c", match=match, functions=forward, ports=(h1,)),  # type: ignore[arg-type]
            lambda: myelin.Chain("c", match=match, functions=forward, ports=(h1, 3)),
            lambda: myelin.Chain("c", match=match, functions=forward, sla={"rate": 1}),  # type: ignore[arg-type]
            lambda: myelin.Network(client=self.client).start(),
        ]
        for number, call in enumerate(calls):
            with self.subTest(number), self.assertRaises(ArgumentError) as raised:
                call()
            self.assertIn(":", raised.exception.message)
        for call in (network.ping_all, link.down, lambda: network.up(myelin.Chain("c", match=match, functions=forward))):
            with self.assertRaises(myelin.FailedError):
                call()
        self.assertEqual((self.client.topologies(), self.namespaces()), ([], []))

    def test_what_the_agent_refuses_leaves_nothing(self) -> None:
        network = myelin.Network(self.name("loop"), client=self.client)
        network.add_host("h1", address="10.0.0.1/8")
        network.add_host("h2", address="10.0.0.1/8")
        with self.assertRaises(myelin.FileError) as raised:
            network.start()
        self.assertTrue(raised.exception.faults and raised.exception.remedy)
        self.assertFalse(network.is_running)
        self.assertEqual((self.client.topologies(), self.namespaces()), ([], []))
        network = myelin.Network(self.name("loop"), client=self.client)
        network.add_host("h1")
        network.start()
        for call in (network.start, lambda: network.add_node("n1")):
            with self.assertRaises(myelin.FailedError):
                call()
        network.stop()


class Frames(AgentTest):
    def test_results_are_frames_and_plots(self) -> None:
        os.environ["MPLBACKEND"] = "Agg"
        try:
            import matplotlib  # noqa: F401
            import pandas  # noqa: F401
        except ImportError as error:
            self.fail(f"{error}: `scripts/install-deps test` installs the extras")
        from myelin import frames, plots

        path = self.write(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: @p }\nspec:\n"
            "  match: { protocol: udp, destination: 10.0.0.2/32 }\n  functions: [ { name: f, kind: forward } ]\n"
            "  sla: { rate: 20kpps, latency: 500ms }\n"
        )
        self.client.up(path, force=True)
        options = myelin.probe_options(modes=["inline"], payloads=[256, 1400], count=50, repeats=2)
        report = self.client.probe(self.name("p"), options=options)
        probes = frames.probes(report)
        self.assertEqual(list(probes["payload_bytes"]), [256, 1400])
        self.assertGreater(probes["rtt_p50_us"].min(), 0)
        self.assertEqual(list(frames.frame(self.client.ps())["chain"]), [self.name("p")])
        wait_for("a second", lambda: bool(self.client.seconds(self.name("p"))))
        self.assertIn("packets_in", frames.seconds(self.client.seconds(self.name("p"))))
        axes = plots.distributions(report)
        self.assertEqual(len(axes.lines), 2)
        shares: Any = axes.lines[0].get_ydata()
        self.assertEqual(shares[-1], 1.0)
        live = plots.live(self.client, self.name("p"), interval_s=0.01)
        for _ in range(2):
            figure = next(live)
        figure.savefig(self.directory / "contract.png")
        live.close()
        self.assertGreater(Path(self.directory, "contract.png").stat().st_size, 1000)
        network = myelin.Network(client=self.client)
        network.add_link(network.add_host("h1"), network.add_host("h2"))
        with network.start():
            pings = network.ping_all(timeout_s=60).frame()
        self.assertEqual(list(pings["received"]), [1, 1])
        self.assertTrue((pings["rtt_mean_ms"] > 0).all())
        with self.assertRaises(ArgumentError):
            frames.frame([1])


if __name__ == "__main__":
    run()
