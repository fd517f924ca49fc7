#!/usr/bin/env python3
"""The examples run as they stand, and leave nothing. The shell understands Mininet's words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from support import ROOT, AgentTest, run, wait_for

import myelin

LAB = """
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @lab }
spec: { hosts: [ h1, h2 ], switches: [ s1, s2 ], links: [ { ends: [ h1, s1 ] }, { ends: [ h2, s1 ] }, { ends: [ s1, s2 ] } ] }
"""

# Moves the slider of the pendulum's window, without a screen.
SLIDER = """
import sys
sys.path.append({!r})
import matplotlib
matplotlib.use("agg")
from matplotlib import pyplot, widgets
import pendulum
net, chains = pendulum.load()
with net:
    net.start()
    net.up(*chains, force=True)
    window = pendulum.Window(pendulum.Loop(net), pyplot, widgets)
    window.slider.set_val(60)
    before = list(window.line.get_ydata())
    window.draw()
    delay_ns = net.link("plant", "s").status.impairments.delay_ns
    print(f"{{delay_ns}} ns in each direction, the figure moves: {{before != list(window.line.get_ydata())}}")
"""

# Changes that break an example's network, in copies of the repository's files: example, file, text, replacement, and the
# example's own sentence about it.
BROKEN = (
    ("learning_switch.py", "examples/openflow/learning_switch.py", "if frame.dst in ports:", "if False:",
     "s1 must have a flow for each direction"),
    ("learning_switch.py", "examples/openflow/learning_switch.py", "ports.get(frame.dst, protocol.OFPP_FLOOD)", "7",
     "h1 does not reach h2"),
    ("slicing.py", "examples/openflow/slices.py", "return [parser.OFPInstructionMeter(vlan)]", "return []",
     "the limit makes no difference"),
    ("slicing.py", "examples/openflow/slices.py", "parser.OFPActionOutput(port)]", "parser.OFPActionOutput(protocol.OFPP_ALL)]",
     "the slices are not separate"),
    ("vpn.py", "python/examples/vpn.py", "seen = send_captured(net, ends[1].address)", "seen = send_captured(net, h2.address)",
     "it is not encrypted"),
    ("vpn.py", "python/examples/vpn.py", "allowed-ips {other.address}/32", "allowed-ips 10.9.9.9/32",
     "no datagram from h1 arrives at 10.9.0.2"),
    ("vpn.py", "python/examples/vpn.py", '"destinationPort": PORT', '"destinationPort": 9',
     "does not carry the datagrams of the tunnel"),
    ("coding.py", "python/examples/coding.py", "functions=[decoder]", "functions=[myelin.Function('none', 'forward')]",
     "the code does not recover what the link loses"),
    ("pendulum.py", "examples/pendulum.yaml", "sourcePort: 9000 }", "sourcePort: 9 }",
     "the chain `motor` does not carry the datagrams of the loop"),
    ("l2fwd.py", "python/examples/l2fwd.py", "--forward-mode=mac", "--forward-mode=io", "write a new source"),
)

# Follows the code of docs/examples.md in a notebook, and moves the slider as a browser does.
MOVE = """
before = net.link("plant", "s").status.impairments.delay_ns
slider = control.widget.children[0]
message = {"content": {"data": {"method": "update", "state": {"value": 60}, "buffer_paths": []}}, "buffers": []}
slider.comm.handle_msg(message)
print(before, net.link("plant", "s").status.impairments.delay_ns)
net.stop()
"""


class Scripts(AgentTest):
    def start(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a program with this test's agent and the package of this repository."""
        path = {"PYTHONPATH": str(ROOT / "python/src"), "MYELIN_RUN_DIR": str(self.client.run_dir)}
        environment = {**os.environ, **path, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
        return subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=300, check=False)

    def example(self, name: str, *arguments: str) -> str:
        done = self.start(sys.executable, str(ROOT / "python/examples" / name), *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.client.topologies(), self.client.ps()), ([], []))
        return done.stdout

    def assert_prints(self, output: str, *parts: str) -> None:
        """Fails unless a program has printed all these parts."""
        for part in parts:
            self.assertIn(part, output)

    def need(self, *programs: str) -> None:
        """Skips the test where a program is missing."""
        for program in programs:
            if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
                self.skipTest(f"{program} is not installed")

    def assert_counts(self, output: str, pattern: str, directions: int, least: int, kept: float) -> None:
        """Fails unless each direction of a chain has this many packets, of which this share has left."""
        counts = re.findall(pattern, output)
        self.assertEqual(len(counts), directions, output)
        for entered, left in counts:
            self.assertGreaterEqual(int(entered), least, output)
            self.assertGreaterEqual(int(left), kept * int(entered), output)

    def test_walkthrough(self) -> None:
        output = self.example("walkthrough.py")
        self.assert_prints(output, "0% lost (6/6 received)", "link down: 0 answers", "h3 moved: 3 answers")

    def test_star(self) -> None:
        self.assertIn("30 hosts:", self.example("star.py", "30"))

    def test_contract(self) -> None:
        output = self.example("contract.py")
        self.assertIn("500 packets in, 500 out", output)

    def test_echo(self) -> None:
        self.need("runc")
        self.assertEqual(self.example("echo.py"), "the answer: hello\na call from 10.0.0.1\n")

    def test_migration(self) -> None:
        self.need("runc")
        output = self.example("migration.py")
        places = re.findall("the service runs on e([0-9])", output)
        # Near the client's station, then near its next station, then not on the busy server.
        self.assertEqual([int(place) > 2 for place in places[:2]], [False, True], output)
        self.assertNotEqual(places[1], places[2])
        self.assertRegex(output, r"the client sent [1-9][0-9]+ datagrams, 0 without an answer")
        self.assertEqual(self.client.containers(), [])

    def test_state(self) -> None:
        self.need("runc")
        output = self.example("state.py")
        self.assertRegex(output, r"sleep 1000`: it is not ready in time; the old service stays\nthe service is on e1\nthe service is on e2")
        self.assertRegex(output, r"the client sent ([1-9][0-9]+) datagrams, \1 were answered, \1 counted")
        self.assertEqual(self.client.containers(), [])

    def test_learning_switch(self) -> None:
        self.need("ovs-vswitchd", "osken-manager")
        output = self.example("learning_switch.py")
        # A flow for each direction.
        flows = ("s1 has learned 2 flows", "s2 has learned 2 flows")
        answers = ("without a controller: 0 answers", "with the controller: 3 answers", "the controller has ended: 3 answers")
        self.assert_prints(output, *answers, *flows)

    def test_slicing(self) -> None:
        self.need("ovs-vswitchd", "osken-manager")
        output = self.example("slicing.py")
        self.assertIn("red's r1 reaches r2\n", output)
        beside, limited = re.findall("blue receives ([0-9]+) of 25 answers, in a mean of ([0-9.]+) ms", output)
        # Red fills the queue of the link, 150 ms; with its limit the queue is empty.
        self.assertLess(int(beside[0]), 25, output)
        self.assertEqual(int(limited[0]), 25, output)
        self.assertGreater(float(beside[1]), 2 * float(limited[1]), output)

    def test_vpn(self) -> None:
        self.need("wireguard-go", "wg")
        output = self.example("vpn.py")
        self.assertEqual(output.count("h2 receives: the treasure is under the oak\n"), 2)
        self.assert_prints(output, "the middle reads the message: True\n", "the middle reads the message in the tunnel: False\n")
        # The handshake, the message, and the answers to the handshake.
        self.assert_counts(output, "(?:to|back): ([0-9]+) encrypted datagrams in, ([0-9]+) out", 2, least=1, kept=1)

    def test_coding(self) -> None:
        output = self.example("coding.py")
        plain, coded = (float(lost) for lost in re.findall("coding: ([0-9.]+) % lost", output))
        # Six standard deviations of a loss of 10 % of 2000 datagrams.
        self.assertGreater(plain, 6.0, output)
        self.assertLess(coded, plain / 4, output)
        recovered = re.findall("the decoder recovered ([0-9]+) datagrams", output)
        self.assertGreater(int(recovered[0]), 100, output)

    def test_l2fwd(self) -> None:
        self.need("dpdk-testpmd")
        output = self.example("l2fwd.py")
        parts = ("h2 receives 100 of 100 frames", "their source is that of h1: False", "l2fwd-2: 100 packets in")
        self.assert_prints(output, *parts)

    def test_pendulum(self) -> None:
        output = self.example("pendulum.py", "10", "80")
        self.assert_prints(output, " 10 ms: stands", " 80 ms: falls")
        self.assert_counts(output, "(?:sensor|motor): ([0-9]+) datagrams in, ([0-9]+) out", 2, least=1000, kept=0.9)

    def test_pendulum_has_a_slider(self) -> None:
        done = self.start(sys.executable, "-c", SLIDER.format(str(ROOT / "python/examples")))
        self.assertEqual((done.returncode, done.stdout), (0, "30000000 ns in each direction, the figure moves: True\n"), done.stderr)

    def test_pendulum_has_a_slider_in_a_notebook(self) -> None:
        try:
            import nbclient
            import nbformat
        except ImportError as error:
            self.fail(f"{error}: `scripts/install-deps test` installs it")
        text = (ROOT / "docs/examples.md").read_text()
        (code,) = re.findall("```python\n(.*ipywidgets.*?)```", text, re.DOTALL)
        # The page's last line is the cell's result, which Python keeps in a variable here.
        code = code.replace("ipywidgets.interact(", "control = ipywidgets.interact(")
        os.environ.update(PYTHONPATH=str(ROOT / "python/src"), MYELIN_RUN_DIR=str(self.client.run_dir))
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (code, MOVE)])
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
        printed = [one.get("text", "") for one in notebook.cells[1].outputs]
        # Half of the delay in each direction. The slider begins in the middle of its range.
        self.assertEqual("".join(printed), "20000000 30000000\n")

    def test_examples_fail_in_broken_networks(self) -> None:
        self.need("ovs-vswitchd", "osken-manager", "wireguard-go", "wg", "dpdk-testpmd")
        for number, (example, file, text, replacement, sentence) in enumerate(BROKEN):
            with self.subTest(f"{example}: {replacement}"):
                copy = self.directory / f"broken{number}"
                for kept in {f"python/examples/{example}", file}:
                    (copy / kept).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / kept, copy / kept)
                intact = (copy / file).read_text()
                self.assertEqual(intact.count(text), 1, text)
                (copy / file).write_text(intact.replace(text, replacement))
                done = self.start(sys.executable, str(copy / "python/examples" / example))
                self.assertNotEqual(done.returncode, 0, done.stdout)
                self.assertIn(sentence, done.stderr)
                self.assertEqual((self.client.topologies(), self.client.ps()), ([], []))

    def test_all_examples_are_tested(self) -> None:
        names = {path.stem for path in (ROOT / "python/examples").glob("*.py")}
        self.assertEqual(names, {name[5:] for name in dir(self) if name.startswith("test_")} & names)

    def shell(self, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.start(*self.client.program.command("shell", *arguments), text=text)

    def test_the_shell_understands_the_words_of_mininet(self) -> None:
        path = self.write(LAB, "lab.yaml")
        done = self.shell(
            "nodes\nlinks\nnet\npingall\nh1 ping -c 1 h2\niperf h1 h2\nlink h1 s1 down\nlinks\nlink h1 s1 up\n"
            "link h1 s1 delay=15ms\nlinks\nmove h2 s2\nlinks\npy h1.address\npy x = 3\npy len(net.hosts)\n"
            "sh echo outside\ndump\nhelp\nps\nexit\n",
            str(path),
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assert_prints(
            done.stdout, "h1 h2 s1 s2", "h1 - s1: up", "h1: s1", "0% lost (2/2 received)", "1 received", "Mbit/s", "h1 - s1: down",
            "h1 - s1: up, delay 15 ms", "h2 - s2: up", "10.0.0.1", "\n2\n", "outside", "pingall",
        )
        self.assertEqual(self.client.topologies(), [])

    def test_the_shell_keeps_variables(self) -> None:
        done = self.shell("py x = h1.address\npy x\n")
        self.assertEqual((done.returncode, done.stdout), (0, "10.0.0.1\n"))

    def test_the_walkthrough_of_mininet(self) -> None:
        """Runs the commands of both tables in docs/python.md."""
        text = (ROOT / "docs/python.md").read_text()
        tables = re.findall(r"\| Mininet \| Myelin \|\n\|---\|---\|\n((?:\|.*\n)+)", text)
        shell, python = ([tuple(row.strip("|\n").split(" | ")) for row in one.splitlines()] for one in tables[:2])
        commands = [
            command
            for theirs, ours in shell
            for command in re.findall("`([^`]+)`", f"{theirs} {ours}" if "the same" in ours else ours)
            if re.match("(help|nodes|net|dump|links?|pingall|iperf|h[12]|py|sh|exit)\\b", command)
        ]
        for word in ("help", "pingall", "link s1 h1 down", "h1 bash", "h2 curl -s h1", "exit"):
            self.assertIn(word, commands)
        # The server must listen before its client asks. A row may stand behind the one that it needs.
        wait = "h1 sh -c 'until curl -s -o /dev/null localhost; do sleep 0.1; done'"
        lines = [line for command in commands for line in ([wait, command] if "curl" in command else [command])]
        done = self.shell("\n".join([*lines, ""]))
        self.assertEqual((done.returncode, re.sub(r'.*"GET / HTTP.*\n', "", done.stderr)), (0, ""))
        self.assertIn("<title>Directory listing", done.stdout)

        names: dict[str, object] = {"myelin": myelin}
        statements = [found for _, ours in python for found in re.findall("^ ?`([^`]+)`", ours)]
        place = statements.index("net.start()")
        link = re.search(r"`(net\.add_link\(h1, s1, [^`]*)`", text)
        assert link is not None
        statements.insert(place, link[1])
        with_input = "import io, myelin.shell; myelin.shell.Shell(net, stdin=io.StringIO('nodes\\nexit\\n')).cmdloop()"
        for statement in statements:
            exec(with_input if "Shell(net)" in statement else statement, names)
        self.assertGreaterEqual(len(statements), 15)
        wait_for("the end of the network", lambda: self.client.topologies() == [])

    def test_the_shell_tells_errors_and_goes_on(self) -> None:
        done = self.shell("h9 ls\nlink h1 s9 down\nlink h1\nlink h1 s1 delay=5\npy 1/0\nnodes\n")
        self.assertEqual(done.returncode, 1)
        self.assert_prints(done.stderr, "no host `h9`", "'s9'", "link A B", "'10ms'", "ZeroDivisionError")
        self.assertIn("h1 h2 s1", done.stdout)
        wait_for("the end of the shell's network", lambda: self.client.topologies() == [])
        self.assertEqual(self.shell("", self.name("none")).returncode, 1)

    def test_the_shell_completes(self) -> None:
        from myelin.shell import Shell

        network = myelin.Network(client=self.client)
        network.add_link(network.add_host("h1"), network.add_switch("s1"))
        shell = Shell(network)
        self.assertEqual(shell.completenames("pi"), ["pingall "])
        self.assertEqual(shell.completenames("h1"), ["h1 "])
        self.assertEqual(shell.completedefault("s", "link h1 s", 8, 9), ["s1"])
        self.assertEqual(shell.completedefault("d", "link h1 s1 d", 11, 12), ["down", "delay="])
        self.assertIn("ping", shell.completedefault("pin", "h1 pin", 3, 6))


if __name__ == "__main__":
    run()
