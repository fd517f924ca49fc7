#!/usr/bin/env python3
"""Programs and containers on hosts over a real agent: pipes, signals, limits, bad arguments, ended agents."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from support import AgentTest, run, wait_for

import myelin
from myelin.errors import ArgumentError, CommandError


def write_archive(path: Path, command: list[str]) -> None:
    """Writes an OCI archive with a shell, two programs and their libraries."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for program in ("/bin/sh", "/bin/sleep", "/bin/ls"):
            listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
            libraries = re.findall(r"(/\S+) \(", listed)
            for file in (program, *libraries):
                if file[1:] not in tar.getnames():
                    tar.add(os.path.realpath(file), file[1:])
    write_layer(path, layer.getvalue(), command)


def hostile_layer(*entries: tuple[bytes, str, str]) -> bytes:
    """Makes a layer with a good file and these entries: kind, path, target of a link."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for kind, name, target in ((tarfile.REGTYPE, "first", ""), *entries):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return layer.getvalue()


def write_layer(path: Path, layer: bytes, command: list[str]) -> None:
    """Writes an OCI archive with one layer."""
    blobs: dict[str, bytes] = {}

    def add(blob: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(blob).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = blob
        return {"digest": f"sha256:{digest}", "size": len(blob)}

    config = {"config": {"Cmd": command, "Env": ["GREETING=of the image"], "WorkingDir": "/srv"}}
    manifest = {"config": add(json.dumps(config).encode()), "layers": [add(gzip.compress(layer))]}
    blobs["index.json"] = json.dumps({"manifests": [add(json.dumps(manifest).encode())]}).encode()
    with tarfile.open(path, "w") as archive:
        for name, blob in blobs.items():
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            archive.addfile(info, io.BytesIO(blob))


class HostsTest(AgentTest):
    """A network for each test."""

    def network(self, name: str) -> myelin.Network:
        """A running network of two hosts, of which h2 has limits. It ends with the test."""
        network = myelin.Network(self.name(name), client=self.client)
        self.addCleanup(network.stop)
        h1, h2 = network.add_host("h1"), network.add_host("h2", cpu="0.5cores", memory="256MiB")
        network.add_link(h1, h2)
        return network.start()

    def find_programs(self, pattern: str) -> list[str]:
        """The programs with this command line."""
        return subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=False).stdout.split()

    def nap(self, number: int) -> str:
        """A command that goes on for weeks, and that no other process has."""
        return f"sleep 2{os.getpid():07}{number}"

    def runs(self, pid: Optional[int]) -> bool:
        """Whether a process runs. One that has ended may wait for its parent."""
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] not in "ZX"
        except FileNotFoundError:
            return False


class OnHosts(HostsTest):
    def test_programs_have_the_callers_pipes_and_signals(self) -> None:
        h1 = self.network("pipes").host("h1")
        with h1.popen(["cat"], stdin=subprocess.PIPE) as cat:
            big = os.urandom(1 << 20)
            self.assertEqual(cat.communicate(big, timeout=60), (big, None))
        self.assertEqual(cat.returncode, 0)
        waiting = h1.popen("trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
        assert waiting.stdout is not None
        self.assertEqual(waiting.stdout.readline(), b"ready\n")
        self.assertIsNone(waiting.poll())
        with self.assertRaises(subprocess.TimeoutExpired):
            waiting.wait(timeout=0.01)
        waiting.terminate()
        self.assertEqual(waiting.wait(60), 5)
        self.assertIn(b"caught\n", waiting.stdout.read())
        waiting.stdout.close()
        # A block that fails does not wait for a program that goes on.
        with self.assertRaises(ZeroDivisionError), h1.popen(["sleep", "1000"]) as left:
            raise ZeroDivisionError
        self.assertEqual(left.returncode, -signal.SIGKILL)
        killed = h1.popen(f"{self.nap(0)} & {self.nap(0)}")
        wait_for("the programs", lambda: len(self.find_programs(f"^{self.nap(0)}")) == 2)
        killed.kill()
        self.assertEqual(killed.wait(60), -signal.SIGKILL)
        self.assertEqual(self.find_programs(f"^{self.nap(0)}"), [])
        killed.communicate()
        with self.assertRaises(CommandError) as raised:
            h1.popen(["true"], cwd="/no/such/directory")
        self.assertIn("/no/such/directory", raised.exception.message)

    def test_a_program_that_floods_or_never_reads_does_not_grow_the_agent(self) -> None:
        h1 = self.network("flood").host("h1")
        h1.cmd("true")
        before = self.client.info().resident_kib
        flood, deaf = h1.popen(["yes"]), h1.popen(["sleep", "1000"], stdin=subprocess.PIPE)
        assert deaf.stdin is not None and flood.stdout is not None
        os.set_blocking(deaf.stdin.fileno(), False)
        written = 0
        while part := deaf.stdin.raw.write(bytes(1 << 16)):  # type: ignore[attr-defined]
            written += part
        for _ in range(1000):
            os.read(flood.stdout.fileno(), 1 << 16)
        self.assertLess(self.client.info().resident_kib, before + 4096)
        for process in (flood, deaf):
            process.kill()
            process.wait(60)
        deaf.stdin.close()

    def test_an_agent_that_is_gone_is_told_to_a_waiting_program(self) -> None:
        network = self.network("gone")
        napping = network.host("h2").popen(self.nap(1))
        os.kill(self.client.info().pid, signal.SIGKILL)
        with self.assertRaises(myelin.FailedError) as raised:
            napping.wait(60)
        self.assertIn("the agent", raised.exception.message)
        network.stop()
        subprocess.run(self.client.program.command("down", "--all"), check=True, stdout=subprocess.DEVNULL)
        wait_for("the end of the program", lambda: not self.find_programs(self.nap(1)))

    def test_containers_share_their_host(self) -> None:
        network = self.network("box")
        h1, h2 = network.host("h1"), network.host("h2")
        server = h2.add_container(
            "server", command="echo $GREETING; exec sleep 1000", env={"GREETING": "hello"}
        )
        wait_for("the output", lambda: "hello" in server.logs())
        inside = h2.add_container("inside", None, ["sh", "-c", "ip -4 -o address show eth0; touch /usr/x /tmp/x; sleep 999"])
        wait_for("the address", lambda: "10.0.0.2/" in inside.logs())
        wait_for("the refused file", lambda: "Read-only" in inside.logs())
        self.assertEqual([one.name for one in h2.containers], ["inside", "server"])
        self.assertEqual(h1.containers, [])
        busy = h2.add_container("busy", command="while :; do :; done", cpu="0.25cores", memory="64MiB")
        stats = busy.stats()
        self.assertEqual((stats.limits.cpu_millicores, stats.limits.memory_bytes), (250, 64 << 20))
        self.assertTrue(busy.is_running)
        wait_for("the limit", lambda: busy.stats().throttled_periods > 0)
        self.assertEqual(busy.set_limits(cpu="0.1cores").limits.cpu_millicores, 100)
        group = network.status.hosts[1].cgroup
        with open(f"/proc/{stats.pid}/cgroup") as groups:
            self.assertIn(f"{group}/", groups.read())
        for call in (
            lambda: h2.add_container("busy", command="true"),
            lambda: h2.add_container("bad_name", command="true"),
            lambda: h2.add_container("big", command="true", cpu="2cores"),
            lambda: busy.set_limits(memory="1GiB"),
            lambda: h2.add_container("none", "/no/such/directory", "true"),
            lambda: h2.add_container("none", command=["no-such-program"]),
        ):
            with self.assertRaises(myelin.MyelinError) as raised:
                call()
            self.assertIn(h2.path, raised.exception.message)
        pid = stats.pid
        busy.remove()
        self.assertFalse(self.runs(pid))
        with self.assertRaises(myelin.FailedError):
            busy.stats()
        pids = [one.stats().pid for one in h2.containers]
        network.stop()
        self.assertEqual([pid for pid in pids if self.runs(pid)], [])
        self.assertEqual(self.client.containers(), [])

    def test_images_are_stored_and_run(self) -> None:
        h1 = self.network("image").host("h1")
        archive = self.directory / "image.tar"
        write_archive(archive, ["/bin/sh", "-c", "echo $GREETING $PWD; exec /bin/sleep 1000"])
        stored = self.client.import_image("shell", archive)
        self.assertEqual((stored.layers, [one.name for one in self.client.images()]), (1, ["shell"]))
        box = h1.add_container("box", "shell", env={"GREETING": "hello"})
        wait_for("the output", lambda: box.logs() == "hello /srv\n")
        other = h1.add_container("other", "shell", ["/bin/sh", "-c", "echo $GREETING; ls /; ls /nowhere || true"])
        wait_for("the other output", lambda: "/nowhere" in other.logs())
        self.assertTrue(other.logs().startswith("of the image\n"), other.logs())
        for call in (
            lambda: self.client.import_image("shell", archive),
            lambda: self.client.import_image("../shell", archive),
            lambda: self.client.import_image("other", "/etc/passwd"),
            lambda: self.client.import_image("other", "/no/such/file"),
            lambda: self.client.import_image("other", "/dev/zero"),
            lambda: h1.add_container("third", "missing"),
            lambda: self.client.remove_image("missing"),
        ):
            with self.assertRaises(myelin.MyelinError) as raised:
                call()
            self.assertIn("image", raised.exception.message)
        self.client.remove_image("shell")
        self.assertEqual((self.client.images(), os.listdir(self.directory / "images")), ([], []))

    def test_a_container_that_ends_is_told(self) -> None:
        h1 = self.network("ends").host("h1")
        with self.assertRaises(myelin.ContainerError) as raised:
            h1.add_container("ends", command="echo last words; exit 3", watch="60s")
        error = raised.exception
        self.assertEqual((error.exit_code, error.last_lines), (3, ["last words"]))
        self.assertIn("last words", error.message)
        (ended,) = h1.containers
        self.assertEqual((ended.logs(), ended.stats().has_failed), ("last words\n", True))
        with self.assertRaises(CommandError) as told:
            ended.cmd("true")
        self.assertIn("exited with status 3", told.exception.message)
        again = h1.add_container("ends", command="sleep 1000")
        self.assertTrue(again.is_running)
        done = h1.add_container("done", command="true", watch="60s")
        self.assertEqual(done.stats().exit_code, 0)

    def test_further_programs_run_in_a_container(self) -> None:
        h2 = self.network("further").host("h2")
        box = h2.add_container("box", command="sleep 1000", env={"GREETING": "hello"})
        self.assertEqual(box.cmd("echo $GREETING $PWD; ls /sys/class/net"), "hello /\neth0\nlo\n")
        with box.popen(["cat"], stdin=subprocess.PIPE) as cat:
            big = os.urandom(1 << 20)
            self.assertEqual(cat.communicate(big, timeout=60), (big, None))
        done = box.run("echo $GREETING; echo errors >&2; exit 5")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (5, "hello\n", "errors\n"))
        self.assertEqual(box.popen(["env"], env={"GREETING": "own"}).communicate()[0].count(b"GREETING=own"), 1)  # type: ignore[union-attr]
        waiting = box.popen("trap 'echo caught; exit 6' TERM; echo ready; while :; do sleep 0.01; done")
        assert waiting.stdout is not None
        self.assertEqual(waiting.stdout.readline(), b"ready\n")
        waiting.terminate()
        self.assertEqual(waiting.wait(60), 6)
        self.assertIn(b"caught\n", waiting.stdout.read())
        waiting.stdout.close()
        calls: list[Callable[[], object]] = [
            lambda: box.popen(["no-such-program"]),
            lambda: box.popen(["true"], cwd="/no/such/directory"),
        ]
        for call in calls:
            with self.assertRaises(CommandError) as raised:
                call()
            self.assertIn("box", raised.exception.message)

    def test_bad_input_is_refused_and_leaves_nothing(self) -> None:
        network = self.network("bad")
        h1, h2 = network.host("h1"), network.host("h2")
        kept = h2.add_container("kept", command="sleep 1000")
        outside = self.directory / "outside"
        agent = self.client.info().pid

        def archive(*entries: tuple[bytes, str, str], change: Optional[Callable[[bytes], bytes]] = None) -> Callable[[], object]:
            def call() -> object:
                path = self.directory / "bad.tar"
                write_layer(path, hostile_layer(*entries), ["/bin/true"])
                if change is not None:
                    path.write_bytes(change(path.read_bytes()))
                return self.client.import_image("bad", path)

            return call

        def many(_: bytes) -> bytes:
            text = io.BytesIO()
            with tarfile.open(fileobj=text, mode="w") as tar:
                for number in range(10_001):
                    tar.addfile(tarfile.TarInfo(f"file-{number}"))
            return text.getvalue()

        group = f"{network.status.hosts[1].cgroup}".partition("/")[0]
        own = myelin.Chain(self.name("own"), match={"protocol": "udp"}, functions=[myelin.Function("f", "forward")])
        self.client.up(own)
        self.addCleanup(self.client.down, own.name)
        before = self.count_parts(agent, group)
        file, link, symlink = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE
        cases: list[tuple[Callable[[], object], str]] = [
            (archive((file, "../outside", "")), "leads out"),
            (archive((file, f"{outside}", "")), "root of the machine"),
            (archive((link, "a", "/etc/shadow")), "root of the machine"),
            (archive((link, "a", "../../etc/shadow")), "leads out"),
            (archive((symlink, "a", "nowhere"), (file, "a/b", "")), "leads nowhere"),
            (archive((tarfile.CHRTYPE, "null", "")), "a device"),
            (archive((tarfile.FIFOTYPE, "pipe", "")), "a pipe"),
            (archive(change=lambda text: text[:1200]), "bad"),
            (archive(change=lambda text: text.replace(b"/bin/true", b"/bin/tree")), "does not match its digest"),
            (archive(change=lambda text: b"no archive " * 1000), "no tar file"),
            (archive(change=lambda text: b""), "index.json"),
            (archive(change=many), "more than 10000 files"),
            (lambda: self.client.import_image("../bad", "/etc/passwd"), "the name is not valid"),
            (lambda: self.client.import_image("b" * 65, "/etc/passwd"), "the name is not valid"),
            (lambda: self.client.import_image("bad", self.directory), "no file"),
            (lambda: h1.add_container("c", "unknown"), "no image `unknown`"),
            (lambda: h1.add_container("c", "/no/such/directory", "true"), "does not exist"),
            (lambda: h1.add_container("c", "/etc/passwd", "true"), "not a directory"),
            (lambda: h1.add_container("c", command=[""]), "no program"),
            (lambda: h1.add_container("c", command=["a\0b"]), "zero byte"),
            (lambda: h1.add_container("c", command=["no-such-program"]), "no-such-program"),
            (lambda: h1.add_container("c", command="true", env={"A": "b\0"}), "zero byte"),
            (lambda: h1.add_container("c" * 41, command="true"), "the name is not valid"),
            (lambda: h1.add_container("../c", command="true"), "the name is not valid"),
            (lambda: h2.add_container("kept", command="true"), "a container of that name exists"),
            (lambda: h2.add_container("c", command="true", cpu="0m"), "at least"),
            (lambda: h2.add_container("c", command="true", memory="0B"), "at least"),
            (lambda: h2.add_container("c", command="true", cpu="0.6cores"), "which the host has"),
            (lambda: h2.add_container("c", command="true", memory="257MiB"), "which the host has"),
            (lambda: kept.set_limits(cpu="0.6cores"), "which the host has"),
            (lambda: kept.popen([""]), "no program"),
            (lambda: kept.popen(["true"], cwd="relative"), "no absolute path"),
            (lambda: self.client.add_container("h9", "c", command="true"), "h9"),
            (lambda: self.client.add_container(f"{own.name}/client", "c", command="true"), "write a topology"),
            (lambda: self.client.remove_container(h1.path, "none"), "no container `none`"),
        ]
        for call, words in cases:
            with self.subTest(words):
                with self.assertRaises(myelin.MyelinError) as raised:
                    call()
                self.assertIn(words, raised.exception.message)
        self.assertFalse(outside.exists())
        self.assertEqual((self.client.images(), [one.name for one in self.client.containers()]), ([], ["kept"]))
        self.assertTrue(kept.is_running)
        wait_for("the same parts as before", lambda: self.count_parts(agent, group) == before)

    def count_parts(self, agent: int, group: str) -> list[int]:
        """Counts the descriptors of the agent, the groups of this run, and the files of containers and images."""
        groups = subprocess.run(["find", "/sys/fs/cgroup", "-path", f"*{group}*", "-type", "d"], capture_output=True, check=False)
        parts = [self.client.run_dir / "containers", self.client.run_dir / "runc", self.directory / "images"]
        files = [len(list(part.rglob("*"))) if part.exists() else 0 for part in parts]
        return [len(os.listdir(f"/proc/{agent}/fd")), len(groups.stdout.splitlines()), *files]

    def test_wrong_arguments_make_nothing(self) -> None:
        network = myelin.Network(client=self.client)
        h1 = network.add_host("h1")
        with self.assertRaises(myelin.FailedError):
            h1.add_container("c", command="true")
        calls: list[Callable[[], object]] = [
            lambda: self.client.add_container("h1", "", command="true"),
            lambda: self.client.add_container("h1", "c"),
            lambda: self.client.add_container("h1", "c", command=""),
            lambda: self.client.add_container("h1", "c", "", "true"),
            lambda: self.client.add_container("h1", "c", command="true", cpu="half"),
            lambda: self.client.add_container("h1", "c", command="true", memory="12"),
            lambda: self.client.limit_container("h1", "c"),
        ]
        for number, call in enumerate(calls):
            with self.subTest(number), self.assertRaises(ArgumentError):
                call()

    def test_a_killed_agent_leaves_containers_that_down_removes(self) -> None:
        network = self.network("killed")
        container = network.host("h2").add_container("c", command=self.nap(2))
        group = f"{network.status.hosts[1].cgroup}"
        pid = container.stats().pid
        for delay_s in (0.0, 0.02, 0.04):
            starting = [self.client.program.command("container", "add", network.host("h1").path, "x", "--", "sleep", "9")]
            with subprocess.Popen(starting[0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                time.sleep(delay_s)
                os.kill(self.client.info().pid, signal.SIGKILL)
            subprocess.run(self.client.program.command("down", "--all"), check=True, stdout=subprocess.DEVNULL)
            self.assertFalse(self.runs(pid))
            found = subprocess.run(["find", "/sys/fs/cgroup", "-path", f"*{group.split('/')[0]}*"], capture_output=True)
            self.assertEqual(found.stdout, b"")
            self.assertEqual(os.listdir(self.client.run_dir / "containers") if (
                self.client.run_dir / "containers").exists() else [], [])
            network.stop()
            network.start()


NOBODY = 65534
RULES = """
rules:
  - users: [nobody]
    topologies: [@open]
    exec: true
    containers: true
    cpu: 0.3cores
  - { users: [nobody], topologies: [@half], exec: true }
"""


class WithRules(HostsTest):
    """An agent with rules for another user than root."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.directory.chmod(0o755)
        path = cls.directory / "access.yaml"
        path.write_text(RULES.replace("@", f"p{os.getpid()}-"))
        path.chmod(0o644)

    def as_nobody(self, work: Callable[[], object]) -> str:
        """Runs `work` in a process of the user nobody. Returns its result, or the message of its error, as text."""
        import myelin.container
        import myelin.process

        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                os.chdir("/")
                try:
                    result = str(work())
                except myelin.MyelinError as error:
                    result = error.message
                os.write(writing, result.encode()[:4000])
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as result_pipe:
            text = result_pipe.read().decode()
        os.waitpid(child, 0)
        return text

    def test_rules_decide_about_other_users(self) -> None:
        opened, half, closed = (self.network(name) for name in ("open", "half", "closed"))
        h1 = opened.host("h1")
        self.assertEqual(self.as_nobody(lambda: h1.cmd("id -u; id -G; ls /sys/class/net")), "65534\n65534\neth0\nlo\n")
        self.assertIn("Permission denied", self.as_nobody(lambda: h1.cmd("cat /etc/shadow")))
        path = f"{h1.path}"

        def add(host: str, cpu: Optional[str] = "0.2cores", image: Optional[str] = None, name: str = "box") -> str:
            command = "id -u; cat /etc/shadow; cat /proc/self/uid_map; sleep 1000"
            return self.as_nobody(lambda: self.client.add_container(host, name, image, command, cpu=cpu))

        self.assertIn("<Container", add(path))
        (status,) = self.client.containers(path)
        self.assertEqual(status.user, NOBODY)

        def logs() -> str:
            return self.as_nobody(lambda: self.client.container_log(path, "box"))

        wait_for("the output", lambda: len(logs().splitlines()) == 3)
        first, second, third = logs().splitlines()
        self.assertEqual((first, third.split()), ("0", ["0", str(NOBODY), "1"]))
        self.assertIn("Permission denied", second)
        with open(f"/proc/{status.pid}/status") as of_process:
            self.assertIn(f"Uid:\t{NOBODY}\t", of_process.read())
        root_owned = h1.add_container("root", command="sleep 1000")
        box = myelin.Container(self.client, status)
        # Neither the user nor root gets a program in there that has more rights.
        self.assertIn("in a user namespace", self.as_nobody(lambda: box.cmd("id -u")))
        with self.assertRaises(CommandError):
            box.cmd("id -u")
        closed_box = closed.host("h1").add_container("box", command="sleep 1000").stats()
        for refused, expected in (
            (add(path, name="two"), "100m is left"),
            (add(path, cpu=None, name="two"), "no limit"),
            (add(path, image="/usr", cpu="0.1cores", name="two"), "a directory as an image"),
            (add(half.host("h1").path), "containers: true"),
            (add(closed.host("h1").path), f"topology `{closed.name}`"),
            (self.as_nobody(lambda: closed.host("h1").cmd("true")), f"topology `{closed.name}`"),
            (self.as_nobody(lambda: self.client.limit_container(path, "box", cpu="0.4cores")), "300m is left"),
            (self.as_nobody(lambda: self.client.remove_container(path, "root")), "another user"),
            (self.as_nobody(lambda: root_owned.cmd("id")), "another user"),
            (self.as_nobody(lambda: myelin.Container(self.client, closed_box).cmd("id")), f"topology `{closed.name}`"),
            (self.as_nobody(lambda: self.client.down(opened.name)), "may not send"),
            (self.as_nobody(lambda: self.client.import_image("x", "/etc/shadow")), "may not send"),
        ):
            self.assertIn(expected, refused)
            self.assertIn("nobody" if "may not" in expected else "", refused)
        self.assertTrue(root_owned.is_running)
        self.assertIn("removed", self.as_nobody(lambda: self.client.remove_container(path, "box")))
        self.assertEqual([one.name for one in self.client.containers(path)], ["root"])


if __name__ == "__main__":
    run()
