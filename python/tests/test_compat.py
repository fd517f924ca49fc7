#!/usr/bin/env python3
"""Scripts of Mininet run unmodified on Myelin, among them the examples of Debian's package."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

from support import ROOT, AgentTest, run, wait_for

LEARNING = ROOT / "examples/openflow/learning_switch.py"
EXAMPLES = ROOT / "target/mininet/usr/share/doc/mininet/examples"

# What the output of each example has.
RUN_UNMODIFIED = {
    "controllers2": "0% dropped (12/12 received)",
    "emptynet": "0% dropped (2/2 received)",
    "intfoptions": "Done testing",
    "linuxrouter": "0% dropped (12/12 received)",
    "multilink": "0% dropped (2/2 received)",
    "multiping": "1 received",
    "multipoll": "bytes from",
    "multitest": "0% dropped (12/12 received)",
    "natnet": "1 received",
    "popen": "5 received",
    "popenpoll": "bytes from",
    "simpleperf": "Mbits/sec",
}
INPUT = {"natnet": "h1 ping -c1 h0\nexit\n"}

# A sentence of each example that does not run.
SENTENCES = {
    "baresshd": "inNamespace=False",
    "clusterdemo": "a network is on one machine",
    "controlnet": "inNamespace=False",
    "limit": "sched='rt'",
    "mobility": "`detach` of the switch `s1`",
    "nat": "the NAT `nat0`",
    "numberedports": "ovs-vsctl get Interface",
    "scratchnet": "inNamespace=False",
    "sshd": "inNamespace=False",
}

SCRIPT = """
import os, sys, time
from functools import partial
from mininet.net import Mininet
from mininet.topo import Topo, SingleSwitchTopo, LinearTopo, SingleSwitchReversedTopo
from mininet.topolib import TreeTopo, TreeNet
from mininet.link import TCLink, Link, Intf
from mininet.node import Host, CPULimitedHost, Controller, OVSSwitch, OVSKernelSwitch, UserSwitch, OVSBridge
from mininet.cli import CLI
from mininet.log import setLogLevel, info, lg
from mininet.util import dumpNodeConnections, irange, pmonitor, waitListening, quietRun, macColonHex, ipAdd
import mininet.node

class Lab(Topo):
    def build(self, **opts):
        s1, s2 = self.addSwitch('s1'), self.addSwitch('s2')
        self.addLink(self.addHost('h1', cpu=.25), s1, bw=50, delay='5ms')
        self.addLink(self.addHost('H_2', ip='10.0.1.2/8', mac='00:00:00:00:00:22'), s2, loss=0,
                     params1={'delay': '2ms'}, params2={'delay': '1ms'})
        self.addLink(s1, s2)

net = Mininet(topo=Lab(), link=TCLink, host=CPULimitedHost, switch=OVSKernelSwitch, autoSetMacs=True)
net.start()
h1, h2, s1 = net.get('h1', 'H_2', 's1')
dumpNodeConnections(net.hosts)
print('addresses', h1.IP(), h2.IP(), h1.MAC(), h2.MAC(), h1.intf(), h1.defaultIntf().IP(), s1.intfNames())
print('ping', net.pingAll())
print('rtt', net.pingFull([h1, h2])[0][2][2] >= 10)
print('shell', repr(h1.cmd('cd /; x=5; echo one')), repr(h1.cmd('pwd; echo $x')))
print('seen', '10.0.0.2' in h1.cmd('ip -4 address show h1-eth0'), '00:00:00:00:00:22' in h2.cmd('ip link'))
print('group', 'host-' in h1.cmd('cat /proc/self/cgroup'))
h1.cmd('sleep 1000 &')
print('background', h1.lastPid == int(h1.cmd('echo $!')), h1.cmd('kill %sleep; wait; echo ended').strip().splitlines()[-1])
h1.sendCmd("sh -c 'echo begun; exec sleep 1000'")
while 'begun' not in h1.monitor():
    pass
h1.sendInt()
h1.waitOutput()
print('interrupted', h1.cmd('echo yes').strip())
out, err, status = h1.pexec('sh', '-c', 'echo out; echo err >&2; exit 3')
print('pexec', repr(out), repr(err), status)
server = h2.popen('python3 -m http.server 8000')
print('listens', waitListening(h1, h2, 8000, timeout=60), h1.popen(['true']).wait())
lines = [line for host, line in pmonitor({h1: h1.popen('echo monitored')}) if host]
print('lines', lines)
h1.setIP('10.0.0.9/8')
print('changed', h1.IP(), '10.0.0.9' in h1.cmd('ip -4 address'), net.pingPair())
net.configLinkStatus('h1', 's1', 'down')
print('down', net.ping([h1, h2], timeout='0.3'))
net.configLinkStatus('h1', 's1', 'up')
print('iperf', [rate.split()[1] for rate in net.iperf(seconds=1)])
h1.intf().link.config(delay='20ms')
print('delay', net.pingFull([h1, h2])[0][2][2] >= 40)
def ways(intf):
    status = intf.link.made.status
    return [one.delay_ns // 1000000 for one in (status.impairments, status.back)]
h1.intf().config(delay='30ms')
print('ways', ways(h1.intf()), ways(h2.intf()), net.pingFull([h1, h2])[0][2][2] >= 50)
print('switch', 's1-eth1' in s1.cmd('ip link show s1-eth1'), s1.connected(), len(net.linksBetween(h1, s1)))
print('names', 'h1' in net, len(net), sorted(net.keys()), net['H_2'] is h2, h1.connectionsTo(s1)[0][1])
CLI(net, script='@commands')
h3 = net.addHost('h3')
late = net.addLink(h3, s1)
s1.attach('s1-eth3')
h3.configDefault()
net.delLinkBetween(h3, s1)
print('unlinked', h3.intfNames(), len(net.links), 'h3-eth0' in h3.cmd('ip link'))
net.addLink(h3, s1)
s1.attach('s1-eth3')
h3.configDefault()
print('late', h3.IP(), h3.intfNames(), net.ping([h1, h3]), h1.cmd('echo $x').strip())
net.delHost(h3)
print('removed', 'h3' in net, len(net.links), net.pingPair(), h3.cmd('true'))
net.stop()
print('after', h1.cmd('true'))

private = Mininet(SingleSwitchTopo(2), host=partial(Host, privateDirs=[('@shared', '@own-%(name)s'), '@scratch']))
private.start()
a, b = private.hosts
a.cmd('echo mine > @shared/file; echo x > @scratch/x')
print('private', a.cmd('cat @shared/file').strip(), b.cmd('ls @shared @scratch | grep -c file').strip(), os.listdir('@scratch'))
private.stop()

tree = TreeNet(depth=2, fanout=2)
print('run', tree.run(tree.pingAll))
reversed_ = Mininet(SingleSwitchReversedTopo(3))
print('ports', reversed_['s1'].intf('s1-eth3').link.intf1, [str(i) for i in reversed_['s1'].intfList()])
print('tools', list(irange(1, 3)), macColonHex(258), ipAdd(3), quietRun('echo quiet').strip())
"""

EXPECTED = """addresses 10.0.0.2 10.0.1.2 00:00:00:00:00:02 00:00:00:00:00:22 h1-eth0 10.0.0.2 ['s1-eth1', 's1-eth2']
ping 0.0
rtt True
shell 'one\\r\\n' '/\\r\\n5\\r\\n'
seen True True
group True
background True ended
interrupted yes
pexec 'out\\n' 'err\\n' 3
listens True 0
lines ['monitored\\n']
changed 10.0.0.9 True 0.0
down 100.0
iperf ['Mbits/sec', 'Mbits/sec']
delay True
ways [30, 20] [2, 1] True
switch True True 1
names True 5 ['H_2', 'c0', 'h1', 's1', 's2'] True s1-eth1
unlinked [] 3 False
late 10.0.0.3 ['h3-eth0'] 0.0 5
removed False 3 0.0 None
after None
private mine 0 []
run 0.0
ports h1-eth0 ['s1-eth1', 's1-eth2', 's1-eth3']
tools [1, 2, 3] 00:00:00:00:01:02 10.0.0.3 quiet
"""

COMMANDS = """nodes
net
intfs
links
h1 ping -c 1 H_2
pingall
link s1 s2 down
link s1 s2 up
py h1.IP()
px print('px')
sh echo outside
h9 ls
iperf h1 h9
dpctl show
time nodes
"""

STEERED = """
import time
from functools import partial
from mininet.net import Mininet
from mininet.node import Controller, OVSBridge, OVSSwitch, RemoteController
from mininet.topo import LinearTopo

net = Mininet(LinearTopo(2), switch=partial(OVSSwitch, protocols='OpenFlow13'), controller=None)
c0 = net.addController('c0', controller=RemoteController, ip='127.0.0.1', port=@PORT)
net.start()
print('lost', net.ping(timeout='0.5'), net.waitConnected(timeout=0.1), c0.IP(), c0.isListening(c0.ip, c0.port))
program = c0.popen(['osken-manager', '--ofp-tcp-listen-port', '@PORT', '@SWITCH'])
print('connected', net.waitConnected(timeout=60), [switch.connected() for switch in net.switches])
until = time.monotonic() + 60
while net.ping(timeout='2') and time.monotonic() < until:
    pass
print('steered', net.pingAll())
net.stop()

class Learning(Controller):
    def __init__(self, name, **params):
        super().__init__(name, command='osken-manager', cargs='--ofp-tcp-listen-port %d @SWITCH', port=@PORT, **params)

program.kill()
program.wait()
net = Mininet(LinearTopo(2), switch=OVSSwitch, controller=Learning, waitConnected=True)
net.start()
print('own program', [switch.connected() for switch in net.switches], net['c0'].isListening('127.0.0.1', @PORT))
net.stop()
print('ended', net['c0'].isListening('127.0.0.1', @PORT))
net = Mininet(LinearTopo(2), switch=OVSBridge, controller=RemoteController)
net.start()
print('bridges', net.pingAll())
net.stop()
"""

STEERED_OUTPUT = """lost 100.0 False 127.0.0.1 False
connected True [True, True]
steered 0.0
own program [True, True] True
ended False
bridges 0.0
"""

ECHO = """
from comnetsemu.cli import CLI
from comnetsemu.net import Containernet, VNFManager
from mininet.link import TCLink
from mininet.log import info, setLogLevel
from mininet.node import Controller

SERVER = '''
import socket
server = socket.create_server(('', 65000))
print('listens', flush=True)
while True:
    peer, address = server.accept()
    print(address[0], flush=True)
    peer.sendall(peer.recv(100))
    peer.close()
'''
CLIENT = '''python3 -c "import socket; s = socket.create_connection(('10.0.0.2', 65000)); s.send(b'hello'); print(s.recv(9))"'''

net = Containernet(controller=Controller, link=TCLink, xterms=False)
mgr = VNFManager(net)
net.addController("c0")
h1 = net.addDockerHost("h1", dimage="dev_test", ip="10.0.0.1", docker_args={"hostname": "h1"})
h2 = net.addDockerHost("h2", dimage="dev_test", ip="10.0.0.2", docker_args={"cpu_quota": 50000, "cpu_period": 100000})
s1, s2 = net.addSwitch("s1"), net.addSwitch("s2")
net.addLink(s1, h1, bw=10, delay="5ms")
net.addLink(s1, s2, bw=10, delay="5ms")
net.addLinkNamedIfce(s2, h2)
net.start()
print("ping", net.ping([h1, h2]))
srv = mgr.addContainer("srv", "h2", "echo_server", f'exec python3 -c "{SERVER}"', docker_args={"cpu_quota": 25000})
while "listens" not in srv.getLogs():
    pass
print("echo", h1.cmd(CLIENT).strip())
print("logs", "10.0.0.1" in srv.dins.logs().decode(), srv.dins.status, mgr.getContainersDhost("h2") == [srv])
print("inside", srv.dins.exec_run("ls /sys/class/net"), srv.dins.exec_run(["sh", "-c", "exit 3"])[0], srv.cmd("id -u"))
wrong = mgr.addContainer("wrong", "h2", "dev_test", "echo wrong; exit 3")
print("wrong", wrong.getLogs().strip(), wrong.dins.status)
busy = mgr.addContainer("busy", h2, "dev_test", "while :; do :; done", docker_args={"mem_limit": "64m"})
(share, memory), = mgr.monResourceStats("busy", sample_num=1, sample_period=2.0)
print("shares", 10 < share < 60, 0 < memory < 64)
busy.updateCpuLimit(cpu_quota=10000)
mgr.removeContainer("srv")
print("removed", mgr.getContainerInstance("srv"), h1.cmd(CLIENT).strip().splitlines()[-1])
net.stop()
mgr.stop()
"""

ECHOED = """ping 0.0
echo b'hello'
logs True running True
inside ExecResult(exit_code=0, output=b'h2-s2\\nlo\\n') 3 0

wrong wrong exited
shares True True
removed None ConnectionRefusedError: [Errno 111] Connection refused
"""

# The container's host has a further name, as it lies in its network.
XTERM = """
import os
from comnetsemu.cli import spawnXtermDocker
from comnetsemu.net import Containernet, VNFManager

net = Containernet()
mgr = VNFManager(net)
net.addLink(net.addDockerHost("h1"), net.addSwitch("s1"))
net.start()
mgr.addContainer("srv", "h1", "dev_test", "bash")
os.environ.pop("DISPLAY", None)
try:
    spawnXtermDocker("srv")
except Exception as error:
    print("without a display", error)
os.environ["DISPLAY"] = ":99"
print("status", spawnXtermDocker("srv").wait())
try:
    os.environ["PATH"] = "/nowhere"
    spawnXtermDocker("srv")
except Exception as error:
    print("without xterm", error)
net.stop()
mgr.stop()
"""

# Stands for the terminal program: writes its arguments, and runs the program after `-e` as if somebody typed.
STUB = """#!/bin/sh
echo "$@"
while [ "$1" != -e ]; do shift; done
shift
printf 'ls /sys/class/net\\nexit 7\\n' | "$@" 2>&1
"""

TWO_CONTROLLERS = """
from mininet.net import Mininet
from mininet.node import RemoteController
net = Mininet(controller=RemoteController)
c0, c1, s1 = net.addController('c0', port=1), net.addController('c1', port=2), net.addSwitch('s1')
net.start()
"""


def free_port() -> int:
    """A port where no program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Compat(AgentTest):
    def start(self, script: str, text: str = "") -> subprocess.Popen[str]:
        """Starts a script with this test's agent."""
        path = {"PYTHONPATH": str(ROOT / "python/src"), "MYELIN_RUN_DIR": str(self.client.run_dir)}
        process = subprocess.Popen(
            [sys.executable, "-m", "myelin.compat", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, **path},
        )
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        process.stdin = None
        return process

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Waits for the end of a script: exit status, output, errors."""
        try:
            output, errors = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            self.fail(f"the script hangs after this output:\n{output}{errors}")
        return process.returncode, output, errors

    def run_text(self, text: str) -> tuple[int, str, str]:
        path = self.directory / "script.py"
        path.write_text(text.replace("@", f"{self.directory}/"))
        return self.finish(self.start(str(path)))

    def test_the_api_of_mininet_works_on_real_packets(self) -> None:
        (self.directory / "commands").write_text(COMMANDS)
        (self.directory / "shared").mkdir()
        status, output, errors = self.run_text(SCRIPT)
        self.assertEqual(status, 0, errors)
        own = [line for line in output.splitlines() if line.split(" ")[0] in EXPECTED.replace("\n", " ").split(" ")]
        self.assertEqual([line for line in own if line in EXPECTED.splitlines()], EXPECTED.splitlines(), output + errors)
        for part in ("px\n", "outside\n", "Elapsed time"):
            self.assertIn(part, output)
        for part in (
            "h1 h1-eth0:s1-eth1", "h1-eth0<->s1-eth1 (OK OK)", "1 received", "0% dropped (2/2 received)", "10.0.0.9",
            "*** Unknown command: h9 ls", "node 'h9' not in network", "kernel bridge, which learns by itself",
        ):
            self.assertIn(part, errors)
        wait_for("the end of the networks", lambda: self.client.topologies() == [])

    def test_controllers_steer_switches(self) -> None:
        for program in ("ovs-vswitchd", "osken-manager"):
            if shutil.which(program) is None:
                self.skipTest(f"OpenFlow needs {program}")
        text = STEERED.replace("@PORT", str(free_port())).replace("@SWITCH", str(LEARNING))
        status, output, errors = self.run_text(text)
        self.assertEqual((status, output), (0, STEERED_OUTPUT), errors)
        self.assertIn("Unable to contact the remote controller", errors)

    def test_a_script_of_comnetsemu_runs_containers_in_hosts(self) -> None:
        if shutil.which("runc") is None:
            self.skipTest("containers need runc")
        status, output, errors = self.run_text(ECHO)
        self.assertEqual((status, output), (0, ECHOED), errors)
        self.assertIn("sees the machine's files instead of the image echo_server", errors)
        self.assertEqual(self.client.containers(), [])

    def test_a_terminal_of_a_container_runs_a_shell_in_it(self) -> None:
        if shutil.which("runc") is None:
            self.skipTest("containers need runc")
        stub = self.directory / "bin/xterm"
        stub.parent.mkdir()
        stub.write_text(STUB)
        stub.chmod(0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{stub.parent}:{before}"
        try:
            status, output, errors = self.run_text(XTERM)
        finally:
            os.environ["PATH"] = before
        self.assertEqual(status, 0, errors)
        self.assertRegex(output, r"without a display .*there is no display: run `myelin container exec \S+ srv -- sh`")
        self.assertRegex(output, r"(?m)^-title srv -e \S+ .*container exec \S+/h1 srv -- sh -i$")
        self.assertRegex(output, r"(?m)h1-eth0$")
        self.assertIn("status 7\n", output)
        self.assertIn("without xterm the program `xterm` is not installed", output)
        self.assertEqual(self.client.containers(), [])

    def test_what_has_no_counterpart_fails_with_a_sentence(self) -> None:
        for code, words in (
            ("from mininet.node import Ryu; Ryu('c0', 'app.py')", "`RemoteController`"),
            (TWO_CONTROLLERS, "several controllers of the switch `s1` (c0, c1)"),
            ("from mininet.net import Mininet\nfrom mininet.node import RemoteController\nnet = Mininet(controller=RemoteController)"
             "\nnet.addController(port=1); net.addSwitch('s1', dpid='7'); net.start()", "the datapath id 0000000000000007"),
            ("from mininet.net import Mininet; Mininet(inNamespace=True)", "`inNamespace=True`"),
            ("from mininet.wifi import x", "`mininet.wifi` has no counterpart"),
            ("from mininet.node import OVSSwitch; OVSSwitch('s1', stp=True)", "`stp` of the switch `s1`"),
            ("from mininet.link import Intf\nfrom mininet.node import Switch\nIntf('eth7', node=Switch('s1'))", "`eth7`"),
            ("from mininet.net import Mininet\nfrom mininet.topolib import TorusTopo\nMininet(TorusTopo(3, 3)).start()", "loop"),
            ("from mininet.link import TCLink\nfrom mininet.node import Host\nTCLink(Host('a'), Host('b'), enable_red=True)",
             "`enable_red`"),
            ("from mininet.link import TCLink\nfrom mininet.node import Host\nTCLink(Host('a'), Host('b'), delay='soon')",
             "'5ms'"),
            ("from comnetsemu.node import DockerHost; DockerHost('h1', docker_args={'volumes': {}})", "`volumes`"),
            ("from comnetsemu.net import VNFManager; VNFManager(None).migrateCRIU()", "`migrateCRIU`"),
        ):
            with self.subTest(words):
                status, _, errors = self.run_text(code)
                self.assertEqual(status, 2, errors)
                self.assertIn(words, errors)
                self.assertNotIn("Traceback", errors)
        self.assertEqual(self.client.topologies() if self.client.is_running() else [], [])

    def test_a_script_that_is_missing_or_fails_is_told(self) -> None:
        status, _, errors = self.finish(self.start(f"{self.directory}/none.py"))
        self.assertEqual((status, "there is no such script" in errors), (2, True))
        status, _, errors = self.run_text("import sys\nprint(sys.argv[0][-9:], __name__)\n1 / 0\n")
        self.assertEqual((status, "ZeroDivisionError" in errors), (1, True))

    def examples(self) -> None:
        if not EXAMPLES.is_dir():
            self.skipTest("`scripts/install-deps test` has not unpacked the examples of the package mininet")

    def test_examples_of_mininet_run_unmodified(self) -> None:
        self.examples()
        default = "pingall\nh1 ping -c1 h2\nexit\n"
        started = {
            name: self.start(str(EXAMPLES / f"{name}.py"), INPUT.get(name, default))
            for name in RUN_UNMODIFIED
        }
        for name, process in started.items():
            with self.subTest(name):
                status, output, errors = self.finish(process)
                self.assertEqual(status, 0, errors)
                self.assertIn(RUN_UNMODIFIED[name], output + errors)
                self.assertNotRegex(output + errors, r"Results: \[.*''", "iperf wrote no rate")

    def test_the_example_with_controllers_runs_beside_one(self) -> None:
        self.examples()
        for program in ("ovs-vswitchd", "osken-manager"):
            if shutil.which(program) is None:
                self.skipTest(f"OpenFlow needs {program}")
        # The example's third switch has a remote controller at this port.
        command = ["osken-manager", "--ofp-tcp-listen-port", "6633", str(LEARNING)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as controller:
            try:
                text = "pingall\npingall\npingall\nexit\n"
                status, output, errors = self.finish(self.start(str(EXAMPLES / "controllers.py"), text))
            finally:
                controller.kill()
        self.assertEqual(status, 0, errors)
        self.assertIn("0% dropped (12/12 received)", output + errors)

    def test_examples_without_a_counterpart_say_why(self) -> None:
        self.examples()
        started = {name: self.start(str(EXAMPLES / f"{name}.py"), "exit\n") for name in SENTENCES}
        for name, process in started.items():
            with self.subTest(name):
                status, output, errors = self.finish(process)
                self.assertEqual(status, 2, errors)
                self.assertIn(SENTENCES[name], errors)
        wait_for("the end of the networks", lambda: self.client.topologies() == [])


if __name__ == "__main__":
    run()
