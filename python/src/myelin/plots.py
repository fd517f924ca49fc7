"""Plots with matplotlib (extra `plots`): distributions of a probe, a contract over time, also live."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Optional

from . import types
from .client import Client
from .errors import FailedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _axes(axes: Optional[Axes]) -> Any:
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise FailedError(
            "plots need matplotlib: `pip install 'myelin[plots]'`",
            object="matplotlib",
            remedy="`pip install 'myelin[plots]'`",
        ) from error
    return pyplot.subplots(constrained_layout=True)[1]


def distributions(report: types.ReportReply, axes: Optional[Axes] = None) -> Axes:
    """Draws the cumulative distributions of a probe's round-trip times, and the limit of the contract."""
    drawn = _axes(axes)
    for name, result in report.report.probes:
        delays, shares = _cumulate(result.rtt_distribution)
        drawn.step(delays, shares, where="post", label=name)
    drawn.set_xscale("log")
    drawn.set(xlabel="round-trip time, us", ylabel="share of packets", title=report.report.chain, ylim=(0, 1.02))
    drawn.legend()
    result_axes: Axes = drawn
    return result_axes


def _cumulate(distribution: types.Distribution) -> tuple[list[float], list[float]]:
    total = sum(count for _, count in distribution.buckets)
    delays, shares, sum_so_far = [], [], 0
    for delay_ns, count in distribution.buckets:
        sum_so_far += count
        delays.append(delay_ns / 1e3)
        shares.append(sum_so_far / total)
    return delays, shares


def contract(
    seconds: Sequence[types.SlaSecond], sla: Optional[types.SlaContract] = None, axes: Optional[Axes] = None
) -> Axes:
    """Draws the sojourn of each second, and the latency of the contract."""
    drawn = _axes(axes)
    drawn.clear()
    times = range(1 - len(seconds), 1)
    for name, figure in (("median", "p50_us"), ("99th percentile", "p99_us")):
        sojourns = [one.sojourn for one in seconds]
        values = [float("nan") if sojourn is None else getattr(sojourn, figure) for sojourn in sojourns]
        drawn.plot(times, values, label=name)
    if sla is not None and sla.latency_us is not None:
        drawn.axhline(sla.latency_us, color="black", linestyle="--", label="contract")
    drawn.set_yscale("log")
    drawn.set(xlabel="time, s", ylabel="sojourn, us")
    drawn.legend(loc="upper left")
    result_axes: Axes = drawn
    return result_axes


def live(client: Client, chain: str, *, last: int = 60, interval_s: float = 1.0) -> Generator[Figure, None, None]:
    """Draws the contract of a chain again and again, until the iterator is left. In a notebook, display each figure."""
    axes = _axes(None)
    try:
        while True:
            (status,) = client.ps(chain)
            contract(client.seconds(chain, last), status.sla.contract if status.sla else None, axes)
            axes.set_title(chain)
            yield axes.figure
            time.sleep(interval_s)
    finally:
        from matplotlib import pyplot

        pyplot.close(axes.figure)
