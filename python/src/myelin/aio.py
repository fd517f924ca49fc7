"""The client for asyncio: the requests of `myelin.Client` as coroutines, its streams as asynchronous iterators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Optional, TypeVar

from . import _agent, _requests, _source, types
from ._agent import StrPath
from ._json import decode
from ._wire import Call, Head, decode_line, fail, lost
from .client import probe_options, require_running
from .conform import ConformReport, Conformance
from .container import Command, Image, check, make_limits, make_request
from .documents import Described, describe
from .errors import ConnectionLostError, FailedError, NoAgentError
from .program import Program

T = TypeVar("T")

_EVENTS_INTERVAL_S = 1.0
# Longest line of a stream: a report with its distributions.
_LONGEST_LINE = 64 << 20


class _Answer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.head = Head(0, False, 0)

    @classmethod
    async def request(cls, run_dir: Path, request: bytes) -> _Answer:
        try:
            path = str(run_dir / "agent.sock")
            answer = cls(*await asyncio.open_unix_connection(path, limit=_LONGEST_LINE))
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoAgentError(f"no agent runs at {run_dir}", object="agent", remedy="run `myelin up FILE`") from None
        try:
            answer._writer.write(request)
            await answer._writer.drain()
            answer.head = Head.parse((await answer._reader.readuntil(b"\r\n\r\n"))[:-4])
            if not 200 <= answer.head.status < 300:
                fail(answer.head, await answer.body())
        except (asyncio.IncompleteReadError, OSError) as error:
            answer.close()
            raise lost(error) from error
        except BaseException:
            answer.close()
            raise
        return answer

    async def body(self) -> bytes:
        try:
            if not self.head.is_chunked:
                return await self._reader.readexactly(self.head.length)
            return b"".join([chunk async for chunk in self._chunks()])
        except (asyncio.IncompleteReadError, OSError) as error:
            raise lost(error) from error

    async def lines(self) -> AsyncIterator[bytes]:
        pending = b""
        try:
            async for chunk in self._chunks():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield line
        except (asyncio.IncompleteReadError, OSError) as error:
            raise lost(error) from error

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            chunk = (await self._reader.readexactly(size + 2))[:-2]
            if not chunk:
                return
            yield chunk

    def close(self) -> None:
        self._writer.close()


class Stream(Generic[T]):
    """An asynchronous iterator over the lines of an answer. Leaving it ends the work of the agent."""

    def __init__(self, call: Call[T], answer: _Answer) -> None:
        self._call = call
        self._answer = answer
        self._lines = answer.lines()

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return decode_line(self._call, await self._lines.__anext__())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the stream."""
        self._answer.close()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(
        self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class Lease:
    """As `myelin.Lease`."""

    def __init__(self, client: Client, stream: Stream[types.Lease], number: int) -> None:
        self._client = client
        self._stream = stream
        self.number = number

    def close(self) -> None:
        """Ends the lease. The agent removes the objects soon after."""
        self._stream.close()

    async def end(self) -> types.DownReply:
        """Ends the lease, and waits until the agent has removed the objects."""
        try:
            return await self._client._call(_requests.end_lease(self.number))
        except (NoAgentError, ConnectionLostError):
            return types.DownReply(removed=[], recovered=[])
        finally:
            self.close()

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.end()


class Client:
    """As `myelin.Client`, for asyncio."""

    def __init__(self, run_dir: Optional[StrPath] = None, *, program: Optional[StrPath] = None) -> None:
        self.run_dir: Path = _agent.resolve_run_dir(run_dir)
        self.program = Program(self.run_dir, program)

    async def start_agent(self) -> None:
        """Starts an agent, unless one runs. Needs root."""
        await asyncio.to_thread(_agent.start, self.run_dir, self.program.path)

    async def info(self) -> types.AgentInfo:
        """Describes the agent."""
        return await self._call(_requests.info())

    async def plan(self, source: Described) -> list[types.Plan]:
        """Plans the chains of a file or object. Needs no root and no agent."""
        text = await asyncio.to_thread(self.program.plan, describe(source))
        plans: list[types.Plan] = decode(list[types.Plan], text)
        return plans

    async def up(
        self, source: Described, *, force: bool = False, lease: Optional[Lease] = None
    ) -> list[types.ChainUp]:
        """Makes the topologies and chains of a file or object, or none; changes running chains under traffic."""
        await self.start_agent()
        read = await self._read(source)
        return await self._call(_requests.up(read, force, None if lease is None else lease.number))

    async def change(
        self, source: Described, *, force: bool = False, lease: Optional[Lease] = None
    ) -> list[types.ChainUp]:
        """Changes running chains under traffic. Unlike `up`, it refuses chains that do not run."""
        require_running(await self.read(source), await self.ps())
        return await self.up(source, force=force, lease=lease)

    async def read(self, source: Described) -> types.TextContents:
        """Parses a file without checking its keys: its objects, and the files that it names."""
        await self.start_agent()
        described = describe(source)
        return await self._call(_requests.texts(described.name, described.text))

    async def flows(self, chain: Optional[str] = None) -> list[types.FunctionFlows]:
        """Lists the flow tables of one chain's functions, or of all."""
        return await self._call(_requests.flows(chain))

    async def cores(self) -> list[types.CoreStatus]:
        """Lists the cores whose workers take turns."""
        return await self._call(_requests.cores())

    async def down(self, name: str) -> types.DownReply:
        """Removes a chain or a topology."""
        return await self._call(_requests.down(name))

    async def down_all(self) -> types.DownReply:
        """Removes every chain, every topology and the objects of a killed agent."""
        await self.start_agent()
        return await self._call(_requests.down_all())

    async def lease(self) -> Lease:
        """Opens a lease."""
        await self.start_agent()
        stream = await self._stream(_requests.lease())
        return Lease(self, stream, (await stream.__anext__()).lease)

    async def ps(self) -> list[types.ChainStatus]:
        """Lists the running chains."""
        return await self._call(_requests.chains())

    async def topologies(self) -> list[types.TopologyStatus]:
        """Lists the running topologies."""
        return await self._call(_requests.topologies())

    async def seconds(self, chain: str, last: int = 300) -> list[types.SlaSecond]:
        """Lists the last seconds of a chain against its contract, the oldest first."""
        return await self._call(_requests.seconds(chain, last))

    async def events(self, chain: Optional[str] = None, *, after: int = 0) -> list[types.SlaEvent]:
        """Lists violations with a serial above `after`."""
        return await self._call(_requests.events(chain, after))

    async def follow_events(self, chain: Optional[str] = None) -> AsyncIterator[types.SlaEvent]:
        """Yields each violation when it begins and when it has ended, until it is left."""
        seen: dict[int, bool] = {}
        while True:
            for event in await self.events(chain):
                has_ended = event.end is not None
                if seen.get(event.serial) != has_ended:
                    seen[event.serial] = has_ended
                    yield event
            await asyncio.sleep(_EVENTS_INTERVAL_S)

    async def containers(self) -> list[types.ContainerStatus]:
        """Lists the containers of all hosts."""
        return await self._call(_requests.containers())

    async def add_container(
        self,
        host: str,
        name: str,
        image: Image = None,
        command: Command = None,
        *,
        cpu: Optional[str] = None,
        memory: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        watch: str = "100ms",
    ) -> types.ContainerStatus:
        """Starts a program as a container in a host, as `myelin.Client.add_container`."""
        request = make_request(host, name, image, command, cpu, memory, env, watch)
        return check(await self._call(_requests.add_container(request)))

    async def limit_container(
        self, host: str, name: str, *, cpu: Optional[str] = None, memory: Optional[str] = None
    ) -> types.ContainerStatus:
        """Changes limits of a container. What is not named stays."""
        return await self._call(_requests.limit_container(host, name, make_limits(cpu, memory)))

    async def container_log(self, host: str, name: str) -> str:
        """The end of the output and the errors of a container."""
        return (await self._call(_requests.container_log(host, name))).text

    async def remove_container(self, host: str, name: str) -> types.DownReply:
        """Ends a container and removes it."""
        return await self._call(_requests.remove_container(host, name))

    async def link(
        self, link: str, change: types.LinkChange, *, topology: Optional[str] = None, direction: Optional[str] = None
    ) -> types.TopologyLink:
        """Changes a link of a running topology; `direction`: only of the packets that this end sends."""
        return await self._call(_requests.link(link, change, topology, direction))

    async def probe(self, chain: str, *, options: Optional[types.ProbeOptions] = None) -> types.ReportReply:
        """Measures a running chain from its end hosts, and returns the report."""
        report: Optional[types.ReportReply] = None
        async with await self.follow_probe(chain, options=options) as events:
            async for event in events:
                if isinstance(event, types.EventReport):
                    report = event.report
        if report is None:
            raise FailedError(f"the probe of chain `{chain}` ended without a report", object=chain)
        return report

    async def follow_probe(self, chain: str, *, options: Optional[types.ProbeOptions] = None) -> Stream[types.Event]:
        """Measures a running chain: an iterator over its progress, with the report at the end."""
        return await self._stream(_requests.probe(chain, options or probe_options()))

    async def run(
        self, source: Described, *, options: Optional[types.ProbeOptions] = None, force: bool = False
    ) -> list[types.ReportReply]:
        """Deploys the chains of a file or object, measures each from its end hosts, and removes them."""
        await self.start_agent()
        call = _requests.run(await self._read(source), options or probe_options(), force, {})
        async with await self._stream(call) as events:
            return [event.report async for event in events if isinstance(event, types.EventReport)]

    async def conform(self, traffic: Conformance) -> ConformReport:
        """Checks the traffic of an interface against a rate and a burst. Needs root."""
        traffic.check_end()
        report = await asyncio.to_thread(self.program.conform, traffic.arguments())
        return ConformReport.parse(report.decode())

    async def _read(self, source: Described) -> types.ChainSource:
        described = describe(source)
        named = (await self._call(_requests.texts(described.name, described.text))).files
        files = await asyncio.to_thread(_source.read_named, described.directory, named)
        return types.ChainSource(name=described.name, text=described.text, files=files)

    async def _call(self, call: Call[T]) -> T:
        answer = await _Answer.request(self.run_dir, call.to_bytes())
        try:
            result: T = decode(call.answer, await answer.body())
            return result
        finally:
            answer.close()

    async def _stream(self, call: Call[T]) -> Stream[T]:
        return Stream(call, await _Answer.request(self.run_dir, call.to_bytes()))
