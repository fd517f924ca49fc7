"""The requests of the agent's socket, for both clients."""

from __future__ import annotations

import re
from typing import Any, Optional
from urllib.parse import quote

from ._lazy import types
from ._wire import Call
from .errors import bad_argument

_PREFIX = "/v2"


def object_path(path: str, name: Optional[str]) -> str:
    """Returns the path of one chain or topology, or of all."""
    if name is None:
        return f"{_PREFIX}{path}"
    if not isinstance(name, str) or not name:
        raise bad_argument("name", name, "the name of a chain or topology", "write its name as text")
    return f"{_PREFIX}{path}/{quote(name, safe='')}"


def info() -> Call[types.AgentInfo]:
    return Call("GET", f"{_PREFIX}/agent", types.AgentInfo)


def chains() -> Call[list[types.ChainStatus]]:
    return Call("GET", f"{_PREFIX}/chains", list[types.ChainStatus])


def topologies() -> Call[list[types.TopologyStatus]]:
    return Call("GET", f"{_PREFIX}/topologies", list[types.TopologyStatus])


def cores() -> Call[list[types.CoreStatus]]:
    return Call("GET", f"{_PREFIX}/cores", list[types.CoreStatus])


def flows(chain: Optional[str]) -> Call[list[types.FunctionFlows]]:
    return Call("GET", object_path("/flows", chain), list[types.FunctionFlows])


def events(chain: Optional[str], after: int) -> Call[list[types.SlaEvent]]:
    return Call("GET", f"{object_path('/events', chain)}?after={after}", list[types.SlaEvent])


def seconds(chain: str, last: int) -> Call[list[types.SlaSecond]]:
    if not isinstance(last, int) or last < 0:
        raise bad_argument("last", last, "a number of seconds", "write a whole number, for example 60")
    return Call("GET", f"{object_path('/seconds', chain)}?last={last}", list[types.SlaSecond])


def texts(name: str, text: str) -> Call[types.TextContents]:
    return Call("POST", f"{_PREFIX}/texts", types.TextContents, types.TextRequest(name=name, text=text))


def up(source: types.ChainSource, force: bool, lease: Optional[int]) -> Call[list[types.ChainUp]]:
    body = types.UpRequest(name=source.name, text=source.text, files=source.files, force=force, lease=lease)
    return Call("POST", f"{_PREFIX}/chains", list[types.ChainUp], body)


def down(name: str) -> Call[types.DownReply]:
    return Call("DELETE", object_path("/chains", name), types.DownReply)


def down_all() -> Call[types.DownReply]:
    return Call("DELETE", f"{_PREFIX}/chains", types.DownReply)


def link(
    link: str, change: types.LinkChange, topology: Optional[str], direction: Optional[str]
) -> Call[types.TopologyLink]:
    body = types.LinkRequest(link=link, change=change, topology=topology, from_=direction)
    return Call("POST", f"{_PREFIX}/links", types.TopologyLink, body)


def lease() -> Call[types.Lease]:
    return Call("POST", f"{_PREFIX}/leases", types.Lease)


def end_lease(number: int) -> Call[types.DownReply]:
    return Call("DELETE", f"{_PREFIX}/leases/{number}", types.DownReply)


def exec_(request: types.ExecRequest) -> Call[types.ExecEvent]:
    return Call("POST", f"{_PREFIX}/exec", types.ExecEvent, request)


def containers() -> Call[list[types.ContainerStatus]]:
    return Call("GET", f"{_PREFIX}/containers", list[types.ContainerStatus])


def add_container(request: types.ContainerRequest) -> Call[types.ContainerStatus]:
    return Call("POST", f"{_PREFIX}/containers", types.ContainerStatus, request)


def limit_container(host: str, name: str, limits: types.ContainerLimits) -> Call[types.ContainerStatus]:
    body = types.ContainerLimitsRequest(host=host, name=name, limits=limits)
    if limits.cpu_millicores is None and limits.memory_bytes is None:
        raise bad_argument("limits", None, "a limit", "give cpu or memory")
    return Call("POST", f"{_PREFIX}/containers/limits", types.ContainerStatus, body)


def container_log(host: str, name: str) -> Call[types.ContainerLog]:
    return Call("POST", f"{_PREFIX}/containers/log", types.ContainerLog, types.ContainerName(host=host, name=name))


def remove_container(host: str, name: str) -> Call[types.DownReply]:
    return Call("POST", f"{_PREFIX}/containers/remove", types.DownReply, types.ContainerName(host=host, name=name))


def images() -> Call[list[types.ImageStatus]]:
    return Call("GET", f"{_PREFIX}/images", list[types.ImageStatus])


def import_image(name: str, archive: str) -> Call[types.ImageStatus]:
    return Call("POST", f"{_PREFIX}/images", types.ImageStatus, types.ImageRequest(name=name, archive=archive))


def remove_image(name: str) -> Call[types.DownReply]:
    return Call("DELETE", object_path("/images", name), types.DownReply)


def probe(chain: str, options: types.ProbeOptions) -> Call[types.Event]:
    object_path("", chain)
    _check_probe(options)
    return Call("POST", f"{_PREFIX}/probe", types.Event, types.ProbeRequest(chain=chain, options=options))


def run(
    source: types.ChainSource, options: types.ProbeOptions, force: bool, floods: dict[str, float]
) -> Call[types.Event]:
    _check_probe(options)
    for chain, times in floods.items():
        if isinstance(times, bool) or not isinstance(times, (int, float)) or not 0 < times < float("inf"):
            raise bad_argument(f"floods: {chain}", times, "a number above 0", "write a multiple of the chain's rate")
    flooded = [types.FloodRequest(chain=chain, times=float(times)) for chain, times in floods.items()]
    body = types.RunRequest(source=source, options=options, force=force, floods=flooded)
    return Call("POST", f"{_PREFIX}/run", types.Event, body)


def _check_probe(options: types.ProbeOptions) -> None:
    for mode in options.modes:
        if mode not in ("inline", "spin", "blocking"):
            raise bad_argument("modes", mode, "a probe mode", "write `inline`, `spin` or `blocking`")
    for what, value, least in (
        ("count", options.count, 1),
        ("repeats", options.repeats, 1),
        ("interval_us", options.interval_us, 0),
        *(("payloads", payload, 1) for payload in options.payloads),
    ):
        if not isinstance(value, int) or value < least:
            raise bad_argument(what, value, f"a whole number from {least} on", "write a larger number")


_UNITS = {
    "duration": (r"([0-9.]+) *(ns|us|ms|s)", "10ms", {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}),
    "bit rate": (r"([0-9.]+) *([kMG]?)(?:bit(?:/s)?|bps)", "100Mbit", {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}),
    "share of the processor": (r"([0-9.]+) *(m|cores?)", "0.25cores", {"m": 1, "core": 1e3, "cores": 1e3}),
    "size": (
        r"([0-9.]+) *(B|kB|MB|GB|KiB|MiB|GiB)",
        "64MiB",
        {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
    ),
    "percentage": (r"([0-9.]+) *(%)", "1%", {"%": 1e4}),
}


def parse_quantity(what: str, value: Any, kind: str) -> int:
    """Parses text with a unit into ns, bits a second, or millionths."""
    pattern, example, factors = _UNITS[kind]
    found = re.fullmatch(pattern, value) if isinstance(value, str) else None
    try:
        if found is not None:
            return round(float(found[1]) * factors[found[2]])
    except ValueError:
        pass
    raise bad_argument(what, value, f"a {kind} with its unit", f"write text such as {example!r}")


def impairments(
    delay: Optional[str],
    jitter: Optional[str],
    bandwidth: Optional[str],
    queue: Optional[int],
    loss: Optional[str],
    burst: Optional[int],
) -> types.LinkChangeImpair:
    """Makes the change of a link's delay, rate and loss. None leaves a value as it is."""

    def parse(what: str, value: Optional[str], kind: str) -> Optional[int]:
        return None if value is None else parse_quantity(what, value, kind)

    for what, number in (("queue", queue), ("burst", burst)):
        if number is not None and (not isinstance(number, int) or number < 0):
            raise bad_argument(what, number, "a number of packets", "write a whole number")
    change = types.ImpairmentChange(
        delay_ns=parse("delay", delay, "duration"),
        jitter_ns=parse("jitter", jitter, "duration"),
        rate_bps=parse("bandwidth", bandwidth, "bit rate"),
        queue_packets=queue,
        loss_ppm=parse("loss", loss, "percentage"),
        loss_burst=burst,
    )
    if change.loss_ppm is not None and change.loss_ppm > 1_000_000:
        raise bad_argument("loss", loss, "a share from 0% to 100%", "write a smaller share")
    if change == types.ImpairmentChange():
        raise bad_argument("change", None, "a change", "give delay, jitter, bandwidth, queue, loss or burst")
    return types.LinkChangeImpair(impair=change)
