"""The client of the agent. Start reading at `Client`."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Optional, TypeVar

from . import _agent, _requests, _source
from ._agent import StrPath
from ._json import decode
from ._lazy import types
from ._stream import Answer, Stream
from ._wire import Call
from .documents import Described, describe
from .errors import ArgumentError, ConnectionLostError, FailedError, NoAgentError, bad_argument
from .program import Program

if TYPE_CHECKING:
    from .conform import ConformReport, ConformStream, Conformance
    from .container import Command as ContainerCommand
    from .container import Container, Image
    from .machine import EndHost

T = TypeVar("T")

# The agent judges each chain once a second.
_EVENTS_INTERVAL_S = 1.0


class Lease:
    """Holds the objects that `up` made with it. They are removed when the lease is closed, or its process ends."""

    def __init__(self, client: Client, stream: Stream[types.Lease]) -> None:
        self._client = client
        self._stream = stream
        self.number = next(stream).lease

    def close(self) -> None:
        """Ends the lease. The agent removes the objects soon after."""
        self._stream.close()

    def end(self) -> types.DownReply:
        """Ends the lease, and waits until the agent has removed the objects. An agent that is gone is no error."""
        try:
            return self._client._call(_requests.end_lease(self.number))
        except (NoAgentError, ConnectionLostError):
            return types.DownReply(removed=[], recovered=[])
        finally:
            self.close()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.end()


class Client:
    """A client of the agent that serves one run directory. Each call opens a new connection, so several threads may use
    one client. Requests that make something start an agent if none runs, as the command line does.
    """

    def __init__(self, run_dir: Optional[StrPath] = None, *, program: Optional[StrPath] = None) -> None:
        """`run_dir`: default MYELIN_RUN_DIR, else /run/myelin. `program`: default MYELIN, else `myelin` of PATH."""
        self.run_dir: Path = _agent.resolve_run_dir(run_dir)
        self.program = Program(self.run_dir, program)

    def start_agent(self) -> None:
        """Starts an agent, unless one runs. Needs root."""
        _agent.start(self.run_dir, self.program.path)

    def is_running(self) -> bool:
        """Whether an agent runs."""
        return _agent.is_served(self.run_dir)

    def info(self) -> types.AgentInfo:
        """Describes the agent."""
        return self._call(_requests.info())

    # --- Chains and topologies -----------------------------------------------------------------------------------------

    def plan(self, source: Described) -> list[types.Plan]:
        """Plans the chains of a file or object: the space, cost and worst case of each function. Needs no root and no
        agent. A chain that admission would refuse has a `refusal`.
        """
        plans: list[types.Plan] = decode(list[types.Plan], self.program.plan(describe(source)))
        return plans

    def up(self, source: Described, *, force: bool = False, lease: Optional[Lease] = None) -> list[types.ChainUp]:
        """Makes the topologies and chains of a file or object, or none. Changes chains that run with another
        description, under traffic. `force` deploys chains that admission refuses, without a guarantee. With a lease,
        the objects are removed when the lease ends.
        """
        self.start_agent()
        read = self._read(source)
        return self._call(_requests.up(read, force, None if lease is None else lease.number))

    def change(self, source: Described, *, force: bool = False, lease: Optional[Lease] = None) -> list[types.ChainUp]:
        """Changes running chains under traffic. Unlike `up`, it refuses chains that do not run."""
        require_running(self.read(source), self.chains())
        return self.up(source, force=force, lease=lease)

    def down(self, name: str) -> types.DownReply:
        """Removes a chain or a topology."""
        return self._call(_requests.down(name))

    def down_all(self) -> types.DownReply:
        """Removes every chain, every topology and the objects of a killed agent. The agent goes on."""
        self.start_agent()
        return self._call(_requests.down_all())

    def lease(self) -> Lease:
        """Opens a lease."""
        self.start_agent()
        return Lease(self, self._stream(_requests.lease()))

    def read(self, source: Described) -> types.TextContents:
        """Parses a file without checking its keys: its objects, and the files that it names."""
        self.start_agent()
        described = describe(source)
        return self._call(_requests.texts(described.name, described.text))

    # --- Reading -------------------------------------------------------------------------------------------------------

    def ps(self, chain: Optional[str] = None) -> list[types.ChainStatus]:
        """Lists the running chains, or one of them, with contracts and measured figures."""
        chains = self.chains()
        if chain is None:
            return chains
        found = [status for status in chains if status.chain == chain]
        if not found:
            raise FailedError(f"no chain `{chain}` runs: `ps()` lists the chains", object=chain, remedy="see `ps()`")
        return found

    def chains(self) -> list[types.ChainStatus]:
        """Lists the running chains."""
        return self._call(_requests.chains()) if self.is_running() else []

    def topologies(self) -> list[types.TopologyStatus]:
        """Lists the running topologies."""
        return self._call(_requests.topologies()) if self.is_running() else []

    def cores(self) -> list[types.CoreStatus]:
        """Lists the cores whose workers take turns."""
        return self._call(_requests.cores())

    def flows(self, chain: Optional[str] = None) -> list[types.FunctionFlows]:
        """Lists the flow tables of one chain's functions, or of all."""
        return self._call(_requests.flows(chain))

    def seconds(self, chain: str, last: int = 300) -> list[types.SlaSecond]:
        """Lists the last seconds of a chain against its contract, the oldest first."""
        return self._call(_requests.seconds(chain, last))

    def events(self, chain: Optional[str] = None, *, after: int = 0) -> list[types.SlaEvent]:
        """Lists violations with a serial above `after`."""
        return self._call(_requests.events(chain, after))

    def follow_events(self, chain: Optional[str] = None) -> Generator[types.SlaEvent, None, None]:
        """Yields each violation when it begins and when it has ended, until it is left."""
        seen: dict[int, bool] = {}
        while True:
            for event in self.events(chain):
                has_ended = event.end is not None
                if seen.get(event.serial) != has_ended:
                    seen[event.serial] = has_ended
                    yield event
            time.sleep(_EVENTS_INTERVAL_S)

    def host(self, name: str) -> EndHost:
        """Returns a running host by its name: `client`, `server`, a topology's host, or one of them after `OBJECT/`.
        Programs on it end with this Python process.
        """
        found = {host.netns: host for host in self._hosts() if name in (host.path, host.path.partition("/")[2])}
        if len(found) != 1:
            names = ", ".join(host.path for host in (found.values() or self._hosts()))
            fault = "exists in several chains and topologies" if found else "does not exist"
            raise ArgumentError(
                f"host {name!r} {fault}: write one of {names or 'none: nothing runs'}",
                object=str(name),
                remedy=f"write one of {names}",
            )
        return next(iter(found.values()))

    def _hosts(self) -> list[EndHost]:
        from .machine import EndHost

        hosts = []
        for chain in self.chains():
            for end in chain.hosts:
                hosts.append(EndHost(self.program, f"{chain.chain}/{end.role}", end.netns, end.address))
        for topology in self.topologies():
            for host in topology.hosts:
                address = host.addresses[0].partition("/")[0] if host.addresses else ""
                hosts.append(EndHost(self.program, f"{topology.name}/{host.name}", host.netns, address))
        return hosts

    # --- Containers ----------------------------------------------------------------------------------------------------

    def containers(self, host: Optional[str] = None) -> list[types.ContainerStatus]:
        """Lists the containers of all hosts, or of TOPOLOGY/HOST, with the resources that they have used."""
        all_hosts = self._call(_requests.containers())
        return [one for one in all_hosts if host is None or f"{one.topology}/{one.host}" == host]

    def add_container(
        self,
        host: str,
        name: str,
        image: Image = None,
        command: ContainerCommand = None,
        *,
        cpu: Optional[str] = None,
        memory: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        watch: str = "100ms",
    ) -> Container:
        """Starts a program as a container in a host. `image`: a stored image, a directory with a `/` in its path, or
        None: the machine's files. The command may be None only for a stored image. Raises ContainerError if the program
        fails within the time `watch`.
        """
        from .container import Container, check, make_request

        request = make_request(host, name, image, command, cpu, memory, env, watch)
        return Container(self, check(self._call(_requests.add_container(request))))

    def limit_container(
        self, host: str, name: str, *, cpu: Optional[str] = None, memory: Optional[str] = None
    ) -> types.ContainerStatus:
        """Changes limits of a container. What is not named stays."""
        from .container import make_limits

        return self._call(_requests.limit_container(host, name, make_limits(cpu, memory)))

    def container_log(self, host: str, name: str) -> str:
        """The end of the output and the errors of a container."""
        return self._call(_requests.container_log(host, name)).text

    def remove_container(self, host: str, name: str) -> types.DownReply:
        """Ends a container and removes it."""
        return self._call(_requests.remove_container(host, name))

    def images(self) -> list[types.ImageStatus]:
        """Lists the stored images."""
        return self._call(_requests.images())

    def import_image(self, name: str, archive: StrPath) -> types.ImageStatus:
        """Stores the image of an OCI archive. Needs root."""
        self.start_agent()
        return self._call(_requests.import_image(name, os.path.abspath(archive)))

    def remove_image(self, name: str) -> types.DownReply:
        """Removes a stored image."""
        return self._call(_requests.remove_image(name))

    # --- Links ---------------------------------------------------------------------------------------------------------

    def link(
        self, link: str, change: types.LinkChange, *, topology: Optional[str] = None, direction: Optional[str] = None
    ) -> types.TopologyLink:
        """Changes a link of a running topology: "up", "down", a move, or other delay, rate and loss; `direction`: only
        of the packets that this end sends.
        """
        return self._call(_requests.link(link, change, topology, direction))

    # --- Measuring -----------------------------------------------------------------------------------------------------

    def probe(self, chain: str, *, options: Optional[types.ProbeOptions] = None) -> types.ReportReply:
        """Measures a running chain from its end hosts, and returns the report."""
        report: Optional[types.ReportReply] = None
        with self.follow_probe(chain, options=options) as events:
            for event in events:
                if isinstance(event, types.EventReport):
                    report = event.report
        if report is None:
            raise FailedError(f"the probe of chain `{chain}` ended without a report", object=chain)
        return report

    def follow_probe(self, chain: str, *, options: Optional[types.ProbeOptions] = None) -> Stream[types.Event]:
        """Measures a running chain: an iterator over its progress, with the report at the end."""
        return self._stream(_requests.probe(chain, options or probe_options()))

    def run(
        self,
        source: Described,
        *,
        options: Optional[types.ProbeOptions] = None,
        force: bool = False,
        floods: Optional[dict[str, float]] = None,
    ) -> list[types.ReportReply]:
        """Deploys the chains of a file or object, measures each from its end hosts, and removes them. `floods`: chains
        that get a multiple of their rate while the others are measured.
        """
        with self.follow_run(source, options=options, force=force, floods=floods) as events:
            return [event.report for event in events if isinstance(event, types.EventReport)]

    def follow_run(
        self,
        source: Described,
        *,
        options: Optional[types.ProbeOptions] = None,
        force: bool = False,
        floods: Optional[dict[str, float]] = None,
    ) -> Stream[types.Event]:
        """As `run`: an iterator over its progress, the chains that are up, and the reports. Leaving it removes them."""
        self.start_agent()
        return self._stream(_requests.run(self._read(source), options or probe_options(), force, floods or {}))

    def conform(self, traffic: Conformance) -> ConformReport:
        """Checks the traffic of an interface against a rate and a burst, without the agent. Needs root."""
        from .conform import ConformReport

        traffic.check_end()
        return ConformReport.parse(self.program.conform(traffic.arguments()).decode())

    def follow_conform(self, traffic: Conformance) -> ConformStream:
        """Checks traffic: an iterator over a report each second, which ends with the measurement or when it is left."""
        from .conform import ConformStream

        return ConformStream(self.program.start([*traffic.arguments(), "--follow"]))

    # --- The socket ----------------------------------------------------------------------------------------------------

    def _read(self, source: Described) -> types.ChainSource:
        described = describe(source)
        named = self._call(_requests.texts(described.name, described.text)).files
        files = _source.read_named(described.directory, named)
        return types.ChainSource(name=described.name, text=described.text, files=files)

    def _call(self, call: Call[T]) -> T:
        answer = Answer(self.run_dir, call.to_bytes())
        try:
            result: T = decode(call.answer, answer.body())
            return result
        finally:
            answer.close()

    def _stream(self, call: Call[T]) -> Stream[T]:
        return Stream(call, Answer(self.run_dir, call.to_bytes()))


def require_running(read: types.TextContents, running: list[types.ChainStatus]) -> None:
    """Raises FailedError if a chain of a text does not run."""
    names = {status.chain for status in running}
    for document in read.objects:
        if isinstance(document, dict) and document.get("kind") == "ServiceChain":
            metadata = document.get("metadata")
            name = str(metadata.get("name")) if isinstance(metadata, dict) else ""
            if name not in names:
                raise FailedError(f"chain `{name}` does not run, so there is nothing to change: use `up`", object=name)


def probe_options(
    *,
    modes: Optional[list[str]] = None,
    payloads: Optional[list[int]] = None,
    interval_us: int = 1000,
    count: int = 500,
    repeats: int = 5,
) -> types.ProbeOptions:
    """Makes the options of a probe; the defaults are those of `myelin probe`."""
    if modes is not None and not modes or payloads is not None and not payloads:
        raise bad_argument("modes" if modes is not None and not modes else "payloads", [], "a list", "name at least one")
    return types.ProbeOptions(
        modes=modes or ["inline", "blocking"],
        payloads=payloads or [256, 1400],
        interval_us=interval_us,
        count=count,
        repeats=repeats,
    )
