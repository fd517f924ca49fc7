#!/usr/bin/env python3
"""An inverted pendulum over the network of examples/pendulum.yaml. The delay of its loop is a slider.

  plant (pendulum, sensor, motor) ---- delay ---- s ---- controller

The sensor sends the angle, the controller answers with an acceleration (PD). A chain in each direction takes these
datagrams. Up to 44 ms of delay in the loop, the pendulum stands.

  sudo python3 python/examples/pendulum.py           where a screen is, a window with a slider (matplotlib); else a sweep
  sudo python3 python/examples/pendulum.py 10 60     a sweep over these delays of the loop, ms
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import myelin
from myelin.chain import read_documents

FILE = Path(__file__).resolve().parents[2] / "examples/pendulum.yaml"
START_DEG = 5.0
# The model of `myelin bench pendulum`: a rod of 1 m on a cart that the motor accelerates. Sends the angle each
# millisecond, and prints it, deg, each 25 ms. A line of input releases the pendulum again. The model's time stops
# while the machine gives the program no processor.
PLANT = f"""
import math, select, socket, struct, sys, time
plant = socket.socket(type=socket.SOCK_DGRAM)
plant.connect(("10.0.0.2", 9000))
angle, speed, motor = math.radians({START_DEG}), 0.0, 0.0
then = sample = trace = time.monotonic()
while True:
    if plant in (ready := select.select([plant, sys.stdin], [], [], max(0.0, sample - time.monotonic()))[0]):
        motor = max(-60.0, min(60.0, struct.unpack("d", plant.recv(64))[0]))
    if sys.stdin in ready:
        if not sys.stdin.readline():
            break
        angle, speed, motor = math.radians({START_DEG}), 0.0, 0.0
    now = time.monotonic()
    then = max(then, now - 0.05)
    while then < now:
        step = min(now - then, 5e-4)
        speed += (9.80665 * math.sin(angle) - motor * math.cos(angle)) * step
        angle += speed * step
        then += step
        if abs(angle) >= math.pi / 2:
            angle, speed = math.copysign(math.pi / 2, angle), 0.0
    if now >= sample:
        plant.send(struct.pack("dd", now, angle))
        sample = max(sample + 0.001, now)
    if now >= trace:
        print(f"{{math.degrees(angle):.3f}}", flush=True)
        trace = max(trace + 0.025, now)
"""
# Proportional to the angle and to its change since the sample before.
CONTROLLER = """
import socket, struct
controller = socket.socket(type=socket.SOCK_DGRAM)
controller.bind(("10.0.0.2", 9000))
print("listens", flush=True)
before = None
while True:
    data, plant = controller.recvfrom(64)
    at, angle = struct.unpack("dd", data)
    change = 0.0 if before is None or at <= before[0] else (angle - before[1]) / (at - before[0])
    before = at, angle
    controller.sendto(struct.pack("d", 260 * angle + 27 * change), plant)
"""


class Loop:
    """The plant and its controller, as programs on the hosts of the network."""

    def __init__(self, net: myelin.Network) -> None:
        self.link = net.link("plant", "s")
        controller = net.host("controller").popen(["python3", "-c", CONTROLLER])
        assert controller.stdout is not None
        controller.stdout.readline()
        self.plant = net.host("plant").popen(["python3", "-c", PLANT], stdin=subprocess.PIPE)

    def set_delay(self, ms: float) -> None:
        """Changes the delay of the running loop: half of it in each direction."""
        self.link.set(delay=f"{ms * 500:.0f}us")

    def release(self) -> None:
        """Lifts the pendulum, and releases it at its first angle."""
        assert self.plant.stdin is not None
        self.plant.stdin.write(b"again\n")
        self.plant.stdin.flush()

    def angle_deg(self) -> float:
        """The next angle: one each 25 ms."""
        assert self.plant.stdout is not None
        return float(self.plant.stdout.readline())


def sweep(loop: Loop, delays_ms: list[float]) -> None:
    """Releases the pendulum with each delay, and says whether it stands after four seconds."""
    for delay_ms in delays_ms:
        loop.set_delay(delay_ms)
        loop.release()
        angles = [loop.angle_deg() for _ in range(160)]
        most = max(abs(angle) for angle in angles[-40:])
        print(f"{delay_ms:3.0f} ms: {'stands' if most < START_DEG / 2 else 'falls'}, {most:.1f} deg at the end", flush=True)


class Window:
    """A figure of the angle, with the delay as a slider. The pendulum rises again after a fall."""

    def __init__(self, loop: Loop, pyplot: Any, widgets: Any) -> None:
        self.loop, self.angles = loop, [0.0] * 200
        self.figure, axes = pyplot.subplots()
        self.figure.subplots_adjust(bottom=0.25)
        axes.set(ylim=(-90, 90), xlabel="time (25 ms each)", ylabel="angle (deg)")
        (self.line,) = axes.plot(self.angles)
        self.slider = widgets.Slider(self.figure.add_axes((0.2, 0.1, 0.6, 0.03)), "delay (ms)", 1, 80, valinit=1)
        self.slider.on_changed(loop.set_delay)
        self.timer = self.figure.canvas.new_timer(interval=25)
        self.timer.add_callback(self.draw)

    def draw(self) -> None:
        """Adds an angle to the figure."""
        self.angles = [*self.angles[1:], self.loop.angle_deg()]
        if min(abs(angle) for angle in self.angles[-40:]) > 60:
            self.loop.release()
        self.line.set_ydata(self.angles)
        self.figure.canvas.draw_idle()


def find_window() -> Optional[tuple[Any, Any]]:
    """Returns matplotlib's modules, if a screen is there."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return None
    try:
        from matplotlib import pyplot, widgets
    except ImportError:
        return None
    return pyplot, widgets


def load() -> tuple[myelin.Network, list[myelin.Chain]]:
    """Reads the network and its two chains, with names that no other script has."""
    topology, *documents = read_documents(FILE)
    net = myelin.Network.from_document(topology, name=myelin.Network().name)
    for document in documents:
        spec = document["spec"]
        document["metadata"]["name"] = f"{net.name}-{document['metadata']['name']}"
        spec["reverse"] = f"{net.name}-{spec['reverse']}"
        spec["ports"] = {side: f"{net.name}/{port.partition('/')[2]}" for side, port in spec["ports"].items()}
    return net, [myelin.Chain.from_document(document) for document in documents]


def main(delays_ms: list[float]) -> None:
    net, chains = load()
    with net:
        net.start()
        net.up(*chains, force=True)
        loop = Loop(net)
        if not delays_ms and (modules := find_window()):
            window = Window(loop, *modules)
            window.timer.start()
            modules[0].show()
        else:
            sweep(loop, delays_ms or [1, 20, 40, 60])
        for status in net.client.ps():
            name = status.chain.removeprefix(net.name + "-")
            print(f"{name}: {status.packets_in} datagrams in, {status.packets_out} out")
            if status.packets_out == 0:
                raise SystemExit(f"the chain `{name}` does not carry the datagrams of the loop")


if __name__ == "__main__":
    main([float(argument) for argument in sys.argv[1:]])
