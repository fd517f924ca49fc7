#!/usr/bin/env python3
"""The client over a real agent: requests, errors, streams, files, leases, versions."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import unittest

from support import ROOT, AgentTest, run, wait_for

import myelin
from myelin import aio, types
from myelin.errors import ConnectionLostError, MissingRequestError, NoAgentError

CHAIN = """
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @c }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions: [ { name: watch, kind: monitor }, { name: f, kind: xor, config: { key: KEY }, space: user } ]
  sla: { rate: 20kpps, latency: 500ms }
"""
GOOD = CHAIN.replace("KEY", "0x5a")
QUICK = myelin.probe_options(modes=["inline"], payloads=[256], count=50, repeats=1)
LONG = myelin.probe_options(modes=["inline"], payloads=[256], count=1000, repeats=600)


class Requests(AgentTest):
    def tearDown(self) -> None:
        for status in self.client.ps():
            self.client.down(status.chain)

    def can_probe(self) -> bool:
        """Whether no other probe holds the ports of the end hosts."""
        try:
            return self.client.probe(self.name("c"), options=QUICK).report.chain == self.name("c")
        except myelin.FailedError as error:
            self.assertIn("in use", error.message)
            return False

    def test_a_chain_comes_up_changes_is_measured_and_goes_down(self) -> None:
        name = self.name("c")
        (up,) = self.client.up(self.write(GOOD), force=True)
        self.assertEqual((up.chain, up.change, up.hosts[0].role), (name, "created", "client"))
        (status,) = self.client.ps(name)
        self.assertEqual([hop.name for hop in status.hops], ["watch", "f"])
        self.assertEqual(status.state, "active")
        report = self.client.probe(name, options=QUICK)
        self.assertEqual(report.report.probes[0][1].counts.received, 50)
        (changed,) = self.client.change(self.write(GOOD.replace("0x5a", "7")), force=True)
        self.assertEqual((changed.change, changed.generation), ("changed", 1))
        self.assertEqual(self.client.events(name), [])
        wait_for("a second", lambda: bool(self.client.seconds(name, 5)))
        flows = self.client.flows(name)
        self.assertEqual(flows[0].function, "watch")
        self.assertEqual(self.client.info().run_dir, str(self.client.run_dir))
        self.assertEqual(self.client.down(name).removed, [name])
        self.assertEqual(self.namespaces(), [])

    def test_an_error_has_object_file_line_and_remedy(self) -> None:
        bad = self.write(CHAIN.replace("KEY", "1000"), "bad.yaml")
        with self.assertRaises(myelin.FileError) as raised:
            self.client.up(bad)
        error = raised.exception
        self.assertEqual((error.file, error.line), (str(bad), 7))
        self.assertIn(self.name("c"), error.object)
        self.assertTrue(error.remedy and error.message)
        with self.assertRaises(myelin.FileError) as raised:
            self.client.plan(bad)
        self.assertEqual((raised.exception.line, raised.exception.exit_status), (7, 2))
        with self.assertRaises(myelin.FailedError) as failed:
            self.client.down("nobody")
        self.assertEqual(failed.exception.object, "nobody")
        self.assertIn("myelin ps", failed.exception.remedy)
        with self.assertRaises(myelin.FailedError):
            self.client.change(self.write(GOOD))
        self.assertEqual(self.namespaces(), [])

    def test_a_plan_says_which_chain_is_refused(self) -> None:
        (plan,) = self.client.plan(self.write(GOOD))
        self.assertEqual(plan.chain, self.name("c"))
        (refused,) = self.client.plan(self.write(GOOD.replace("500ms", "1ns")))
        self.assertFalse(refused.admitted)
        with self.assertRaises(myelin.RefusedError) as raised:
            self.client.up(self.write(GOOD.replace("500ms", "1ns")))
        self.assertEqual(raised.exception.exit_status, 3)

    def test_named_files_are_read_with_the_rights_of_the_client(self) -> None:
        text = CHAIN.replace("{ name: f, kind: xor, config: { key: KEY }, space: user }",
                             "{ name: e, kind: aes-encrypt, config: { keyFile: a.key } }")
        path = self.write(text, "keys.yaml")
        key = self.write("00112233445566778899aabbccddeeff", "a.key")
        key.chmod(0o644)
        with self.assertRaises(myelin.FileError) as raised:
            self.client.up(path, force=True)
        self.assertIn("chmod 600", raised.exception.remedy)
        key.chmod(0o600)
        (named,) = self.client.read(path).files
        self.assertEqual((named.path, named.is_secret), ("a.key", True))
        self.assertEqual(self.client.up(path, force=True)[0].change, "created")
        key.unlink()
        with self.assertRaises(myelin.FileError):
            self.client.up(path, force=True)

    def test_a_run_deploys_measures_and_removes(self) -> None:
        path = self.write(GOOD)
        (report,) = self.client.run(path, options=QUICK, force=True)
        self.assertEqual(report.report.chain, self.name("c"))
        (report,) = asyncio.run(aio.Client(self.client.run_dir).run(path, options=QUICK, force=True))
        self.assertEqual(report.report.probes[0][1].counts.received, 50)
        self.assertEqual(self.client.ps(), [])
        with self.client.follow_run(path, options=LONG, force=True) as events:
            while not isinstance(next(events), types.EventUp):
                pass
        wait_for("the removal of the chain", lambda: not (self.client.ps() or self.namespaces()))
        with self.assertRaises(myelin.ArgumentError):
            self.client.run(path, floods={"c": 0})

    def test_programs_run_on_the_end_hosts_of_a_chain(self) -> None:
        self.client.up(self.write(GOOD), force=True)
        host, server = self.client.host("client"), self.client.host(f"{self.name('c')}/server")
        self.assertEqual((host.address, server.address), ("10.0.0.1", "10.0.0.2"))
        self.assertIn(" 0% packet loss", host.cmd(["ping", "-c1", "-W10", server.address], check=True))
        self.assertIn("10.0.0.2/", server.cmd("ip -4 address show eth0"))
        for name in ("clint", "other/client"):
            with self.assertRaises(myelin.ArgumentError) as raised:
                self.client.host(name)
            self.assertIn(f"{self.name('c')}/client", raised.exception.message)

    def test_a_stream_that_is_left_ends_the_work(self) -> None:
        name = self.name("c")
        self.client.up(self.write(GOOD), force=True)
        with self.client.follow_probe(name, options=LONG) as events:
            self.assertIsInstance(next(events), types.EventProgress)
        self.assertEqual(list(events), [])
        wait_for("the end of the first probe", self.can_probe)
        blocked = self.client.follow_probe(name, options=LONG)
        next(blocked)
        threading.Timer(0.3, blocked.close).start()
        self.assertTrue(all(isinstance(event, types.EventProgress) for event in blocked))
        violations = self.client.follow_events(name)
        self.assertIsNotNone(violations)

    def test_what_a_killed_program_made_goes_with_its_lease(self) -> None:
        path = self.write(GOOD)
        script = (
            f"import sys; sys.path.insert(0, {str(ROOT / 'python/src')!r}); import myelin\n"
            f"client = myelin.Client({str(self.client.run_dir)!r})\nlease = client.lease()\n"
            f"client.up({str(path)!r}, force=True, lease=lease)\nprint('up', flush=True)\nsys.stdin.read()\n"
        )
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            self.assertEqual(program.stdout.readline(), "up\n")
            with self.client.lease() as other, self.assertRaises(myelin.FailedError) as raised:
                self.client.up(path, force=True, lease=other)
            self.assertIn("does not hold it", raised.exception.message)
            self.assertEqual(len(self.client.ps(self.name("c"))), 1)
            program.kill()
        wait_for("the end of the lease", lambda: not self.client.ps())
        wait_for("the end of its hosts", lambda: not self.namespaces())
        ended = self.client.lease()
        ended.close()

        def is_refused() -> bool:
            try:
                self.client.up(path, force=True, lease=ended)
            except myelin.FailedError as error:
                return "has ended" in error.message
            return False

        wait_for("the agent's notice of the end", is_refused)
        wait_for("the removal", lambda: not self.client.ps())

    def test_a_thousand_requests_leak_nothing(self) -> None:
        self.client.start_agent()
        self.client.info()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(1000):
            self.client.info()
        streams = [self.client.lease() for _ in range(10)]
        for stream in streams:
            stream.close()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_wrong_arguments_are_told_at_the_call(self) -> None:
        for call in (
            lambda: self.client.seconds("c", -1),
            lambda: self.client.down(""),
            lambda: self.client.probe("c", options=myelin.probe_options(modes=["slow"])),
            lambda: myelin.probe_options(payloads=[]),
            lambda: self.client.follow_probe("c", options=myelin.probe_options(count=0)),
            lambda: myelin.Conformance(interface="eth0", rate="20"),
            lambda: self.client.conform(myelin.Conformance(interface="eth0", rate="20kpps")),
            lambda: self.client.up(3),  # type: ignore[arg-type]
        ):
            with self.assertRaises(myelin.ArgumentError):
                call()

    def test_conform_judges_traffic(self) -> None:
        self.client.up(self.write(GOOD), force=True)
        traffic = myelin.Conformance(
            interface="eth0", host=f"{self.name('c')}/server", rate="20kpps", burst="2000", count=50
        )
        reports: list[myelin.ConformReport] = []
        watcher = threading.Thread(target=lambda: reports.append(self.client.conform(traffic)))
        watcher.start()
        while watcher.is_alive():
            self.client.probe(self.name("c"), options=QUICK)
        self.assertTrue(reports[0].conforms)
        self.assertGreaterEqual(reports[0].packets, 50)
        live = self.client.follow_conform(myelin.Conformance(interface="eth0", host=f"{self.name('c')}/server", rate="1pps"))
        self.assertEqual(next(live).interface, "eth0")
        live.close()
        self.assertEqual(list(live), [])
        with self.assertRaises(myelin.UsageError):
            self.client.conform(myelin.Conformance(interface="none", rate="1pps", count=1))

    def test_the_coroutines_do_the_same(self) -> None:
        async def main() -> None:
            client = aio.Client(self.client.run_dir)
            name = self.name("c")
            path = self.write(GOOD)
            self.assertEqual(len(await client.plan(path)), 1)
            async with await client.lease() as lease:
                with self.assertRaises(myelin.FailedError):
                    await client.change(path)
                await client.up(path, force=True, lease=lease)
                (changed,) = await client.change(path, force=True, lease=lease)
                self.assertEqual(changed.change, "unchanged")
                self.assertEqual((await client.flows(name))[0].function, "watch")
                self.assertEqual(await client.cores(), [])
                reports = await asyncio.gather(client.probe(name, options=QUICK), client.ps(), client.info())
                self.assertEqual(reports[0].report.chain, name)
                async with await client.follow_probe(name, options=LONG) as events:
                    async for _ in events:
                        break
                with self.assertRaises(myelin.FailedError):
                    await client.down("nobody")
                self.assertEqual(await client.events(name), [])
            while await client.ps():
                await asyncio.sleep(0.02)

        asyncio.run(main())


class KilledAgent(AgentTest):
    def test_an_agent_that_is_killed_ends_streams_with_an_error(self) -> None:
        name = self.name("c")
        self.client.up(self.write(GOOD), force=True)
        stream = self.client.follow_probe(name, options=LONG)
        lease = self.client.lease()
        next(stream)

        async def follow() -> None:
            events = await aio.Client(self.client.run_dir).lease()
            os.kill(self.client.info().pid, signal.SIGKILL)
            with self.assertRaises(ConnectionLostError):
                await events._stream.__anext__()

        asyncio.run(follow())
        with self.assertRaises(ConnectionLostError) as raised:
            list(stream)
        self.assertIn("myelin ps", raised.exception.remedy)
        wait_for("the end of the agent", lambda: not self.client.is_running())
        self.assertEqual(lease.end().removed, [])
        subprocess.run(self.client.program.command("down", "--all"), check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(self.namespaces(), [])


class OtherAgents(AgentTest):
    """Agents that are gone, end, or are of another version."""

    def answer(self, answer: bytes) -> None:
        """Serves one request with this answer."""
        self.client.run_dir.mkdir(exist_ok=True)
        path = self.client.run_dir / "agent.sock"
        path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            with server:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        self.addCleanup(path.unlink, missing_ok=True)
        self.addCleanup(thread.join)

    def test_near_versions_are_accepted_and_distant_ones_refused(self) -> None:
        ok = "HTTP/1.1 200 OK\r\nmyelin-version: {}\r\ncontent-length: 2\r\n\r\n[]"
        series = types.VERSION.rpartition(".")[0]
        self.answer(ok.format(f"{series}.999").encode())
        self.assertEqual(self.client._call(myelin.client._requests.chains()), [])  # type: ignore[attr-defined]
        self.answer(ok.format("99.1.2").encode())
        with self.assertRaises(myelin.FailedError) as raised:
            self.client.info()
        self.assertIn("99.1.2", raised.exception.message)

    def test_a_missing_request_is_told_by_name(self) -> None:
        self.client.start_agent()
        with self.assertRaises(MissingRequestError) as raised:
            self.client._call(myelin.client.Call("POST", "/v2/migrations", list[str]))  # type: ignore[attr-defined]
        self.assertIn("POST /v2/migrations", raised.exception.message)
        with self.assertRaises(MissingRequestError) as raised:
            self.client._call(myelin.client.Call("PUT", "/v2/chains", list[str]))  # type: ignore[attr-defined]
        self.assertIn("PUT /v2/chains", raised.exception.message)
        subprocess.run(self.client.program.command("down", "--all"), check=True, stdout=subprocess.DEVNULL)

    def test_an_agent_that_ends_in_mid_answer_is_an_error(self) -> None:
        head = f"HTTP/1.1 200 OK\r\nmyelin-version: {types.VERSION}\r\n"
        self.answer(f"{head}content-length: 20\r\n\r\n[1".encode())
        with self.assertRaises(ConnectionLostError):
            self.client.info()
        line = b'{"progress":{"stage":"x","done":0,"total":1}}\n'
        self.answer(f"{head}transfer-encoding: chunked\r\n\r\n{len(line):x}\r\n".encode() + line + b"\r\n")
        stream = self.client.follow_probe("c")
        self.assertIsInstance(next(stream), types.EventProgress)
        with self.assertRaises(ConnectionLostError):
            next(stream)
        self.answer(b"")
        with self.assertRaises(ConnectionLostError):
            self.client.info()

    def test_without_an_agent_nothing_runs(self) -> None:
        self.assertEqual((self.client.ps(), self.client.topologies()), ([], []))
        with self.assertRaises(NoAgentError):
            self.client.info()
        with self.assertRaises(myelin.FailedError) as raised:
            myelin.Client(self.directory / "none", program="no-such-program").up(self.write(GOOD))
        self.assertIn("no-such-program", raised.exception.message)


class Types(unittest.TestCase):
    def test_the_types_match_the_schema(self) -> None:
        check = [sys.executable, str(ROOT / "python/generate-types"), "--check"]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        versions = {myelin.__version__, types.VERSION}
        settings = (ROOT / "python/pyproject.toml").read_text()
        self.assertEqual(versions, {types.VERSION})
        self.assertIn(f'version = "{types.VERSION}"', settings)

    def test_import_is_lazy(self) -> None:
        script = "import sys, myelin; print([name for name in sys.modules if name.startswith('myelin.')])"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python/src")}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
        self.assertEqual(done.stdout, "[]\n")


if __name__ == "__main__":
    run()
