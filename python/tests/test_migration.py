#!/usr/bin/env python3
"""A state hook that hangs or fails leaves the old service running, and the client's packets go to it."""

from __future__ import annotations

import sys

from support import ROOT, AgentTest, run, wait_for

import myelin

sys.path.insert(0, str(ROOT / "python/examples"))
import state  # noqa: E402


class Migration(AgentTest):
    def setUp(self) -> None:
        self.net = myelin.Network(self.name("edge"), client=self.client)
        switch = self.net.add_switch("s")
        self.user, self.old, self.new = (self.net.add_host(name) for name in ("user", "old", "new"))
        for host in (self.user, self.old, self.new):
            self.net.add_link(host, switch)
        self.net.start()
        self.addCleanup(self.net.stop)
        for server in (self.old, self.new):
            server.cmd(f"sysctl -q net.ipv4.conf.all.arp_ignore=1; ip address add {state.SERVICE}/32 dev lo", check=True)
        self.user.cmd(f"ip neighbour replace {state.SERVICE} lladdr 02:00:00:00:00:01 dev eth0", check=True)
        self.old.popen(state.run("serve"))
        self.steering = myelin.Steering(self.net, self.user, state.SERVICE, state.PORT)
        self.steering.to(self.old)
        self.counted = 0
        wait_for("the service", lambda: self.count() == 1)

    def count(self) -> int:
        """Sends a datagram, and returns the service's count; 0: no answer."""
        program = (
            "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(2); "
            f"s.connect(('{state.SERVICE}', {state.PORT})); s.send(b'0000'); print(int.from_bytes(s.recv(8)[4:], 'big'))"
        )
        done = self.user.run(["python3", "-c", program])
        self.counted = int(done.stdout) if done.returncode == 0 else 0
        return self.counted

    def check_failure(self, hook: myelin.StateHook, reason: str, timeout_s: float = 30.0) -> None:
        before = self.counted
        with self.assertRaises(myelin.CommandError) as caught:
            myelin.move_state(self.old, self.new, hook, self.steering, timeout_s=timeout_s)
        self.assertIn(reason, str(caught.exception))
        self.assertIn("the old service stays", str(caught.exception))
        self.assertIs(self.steering.at, self.old)
        self.assertEqual(self.count(), before + 1)

    def test_the_old_service_stays(self) -> None:
        export, store = state.run("export", self.new.address), state.run("store")
        self.check_failure(myelin.StateHook("sleep 1000", store), "it is not ready in time", timeout_s=1)
        self.check_failure(myelin.StateHook("echo no", store), "it printed 'no' in place of 'ready'")
        self.check_failure(myelin.StateHook("echo ready; exec sleep 1000", store), "does not arrive in time", timeout_s=3)
        self.check_failure(myelin.StateHook("echo ready; read line; exit 3", store), "exit status 3")
        self.check_failure(myelin.StateHook("echo ready; yes", store), "does not arrive in time", timeout_s=3)
        # The service has stopped for the state hook, and serves on. Nobody takes the state: no new service runs.
        self.check_failure(myelin.StateHook(export, store), "exit status 1")
        with self.assertRaises(myelin.ArgumentError):
            myelin.move_state(self.old, self.new, myelin.StateHook(export, store), self.steering, timeout_s=0)
        self.assertEqual(len(self.client.ps()), 1)

        waiting = self.new.popen(state.run("serve", "waits"))
        assert waiting.stdout is not None
        self.assertEqual(waiting.stdout.readline(), b"serves\n")
        self.assertGreater(myelin.move_state(self.old, self.new, myelin.StateHook(export, store), self.steering), 0)
        self.assertIs(self.steering.at, self.new)
        self.assertEqual(self.count(), 8)


if __name__ == "__main__":
    run()
