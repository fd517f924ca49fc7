"""Results as pandas frames (extra `frames`). Column names carry their unit: `rtt_p99_us`, `sent_bps`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import types
from .errors import FailedError, bad_argument

if TYPE_CHECKING:
    import pandas


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise FailedError(
            "frames need pandas: `pip install 'myelin[frames]'`", object="pandas", remedy="`pip install 'myelin[frames]'`"
        ) from error
    return pandas


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the fields of a dataclass as one row. A field of a field becomes `OUTER_INNER`; lists stay."""
    row: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        name = f"{prefix}{field.name.rstrip('_')}"
        if dataclasses.is_dataclass(item):
            row.update(flatten(item, f"{name}_"))
        elif isinstance(item, dict):
            row.update({f"{name}_{key}": one for key, one in item.items()})
        else:
            row[name] = item
    return row


def frame(values: Iterable[Any]) -> pandas.DataFrame:
    """Makes a frame of results: pings, statuses of chains, events, flows, each a row."""
    rows = list(values)
    if not all(dataclasses.is_dataclass(row) and not isinstance(row, type) for row in rows):
        raise bad_argument("values", rows, "results", "give a list of results, for example of `ps()`")
    return _pandas().DataFrame([flatten(row) for row in rows])


def seconds(values: Iterable[types.SlaSecond]) -> pandas.DataFrame:
    """Makes a frame of a chain's seconds, by the time of their ends."""
    made = frame(values)
    made["end"] = _pandas().to_datetime(made["end"])
    return made.set_index("end")


def probes(report: types.ReportReply) -> pandas.DataFrame:
    """Makes a frame of a probe: a row for each mode and payload."""
    rows = []
    for name, result in report.report.probes:
        row = flatten(result)
        for key in [key for key in row if "distribution" in key or key.endswith(("timeline", "cdf_us"))]:
            del row[key]
        rows.append({"probe": name, **row})
    return _pandas().DataFrame(rows)
