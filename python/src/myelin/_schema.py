"""Checks objects against the JSON Schema of chain files, so that a wrong value is told at the call."""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import Any, Optional

from .errors import ArgumentError

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list, tuple),
}
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_RATE = re.compile(r"[0-9.]+ *([kMG]?pps|[kMG]?bit(/s)?|[kMG]?bps)")


@lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    # The module `importlib.resources` would take half of the time of the package's import.
    with open(os.path.join(os.path.dirname(__file__), "chain.json"), encoding="utf-8") as file:
        schema: dict[str, Any] = json.load(file)
    return schema


def check_name(what: str, name: Any) -> str:
    """Returns the name of an object, a host, a switch or a function."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ArgumentError(
        f"{what}: {name!r} is not a name: write 1 to 32 of a-z, 0-9 and `-`, no `-` first or last",
        object=str(name),
        remedy="write 1 to 32 of a-z, 0-9 and `-`, no `-` first or last",
    )


def check_rate(what: str, value: Any) -> None:
    """Refuses a rate without a unit."""
    rates = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(rate, str) and _RATE.fullmatch(rate) for rate in rates):
        raise ArgumentError(
            f"{what}: {value!r} is not a rate with its unit: write text such as '20kpps' or '100Mbit'",
            object=what,
            remedy="write text such as '20kpps' or '100Mbit'",
        )


def check_object(document: dict[str, Any]) -> None:
    """Refuses a document with an unknown key or a wrong value."""
    name = document["metadata"]["name"]
    _raise(_find_fault(_schema(), document, ""), f"{document['kind']} `{name}`")


def check_part(kind: str, key: str, value: Any, what: str) -> None:
    """Refuses a wrong value of `spec.KEY`, or of one of its elements if KEY ends with `[]`."""
    branches = (branch["then"]["properties"] for branch in _schema()["allOf"])
    properties = next(one["spec"]["properties"] for one in branches if one["kind"]["enum"] == [kind])
    part = properties[key.removesuffix("[]")]
    _raise(_find_fault(part["items"] if key.endswith("[]") else part, value, ""), what)


def _raise(fault: Optional[tuple[str, str, str]], what: str) -> None:
    if fault is not None:
        path, message, remedy = fault
        raise ArgumentError(f"{what}: {path.lstrip('.')}: {message}: {remedy}", object=what, remedy=remedy)


def _find_fault(schema: dict[str, Any], value: Any, path: str) -> Optional[tuple[str, str, str]]:
    """Returns the path, the fault and the remedy of the first wrong value."""
    about = schema.get("description", "")
    if not _has_type(schema, value):
        return path, f"{value!r} is {_describe(value)}", f"write {_expected(schema)}. {about}"
    if "enum" in schema and value not in schema["enum"]:
        return path, f"{value!r} is unknown", f"write one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return path, f"{value!r} lacks its unit or is no such value", about
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return path, f"{value!r} is out of range", f"write {schema['minimum']} to {schema['maximum']}"
    if "anyOf" in schema:
        faults = [_find_fault(branch, value, path) for branch in schema["anyOf"]]
        fitting = (fault for fault, branch in zip(faults, schema["anyOf"]) if _has_type(branch, value))
        if None not in faults:
            return next(fitting, faults[0]) if about == "" else (path, f"{value!r} is no such value", about)
    found = _find_fault_inside(schema, value, path)
    for branch in schema.get("allOf", []):
        if found is None and _find_fault(branch["if"], value, path) is None:
            found = _find_fault(branch["then"], value, path)
    return found


def _find_fault_inside(schema: dict[str, Any], value: Any, path: str) -> Optional[tuple[str, str, str]]:
    if isinstance(value, (list, tuple)):
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
        if not least <= len(value) <= most:
            return path, f"{len(value)} elements", f"write {least}"
        faults = (_find_fault(schema.get("items", {}), item, f"{path}[{index}]") for index, item in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)
    if not isinstance(value, dict):
        return _check_const(schema, value, path)
    properties = schema.get("properties", {})
    for key in schema.get("required", []):
        if key not in value:
            return path, f"the key `{key}` is missing", properties.get(key, {}).get("description", "write it")
    for key, item in value.items():
        if key not in properties and schema.get("additionalProperties") is False:
            return f"{path}.{key}", "no such key", f"the keys are {', '.join(properties) or 'none'}"
        fault = _find_fault(properties.get(key, {}), item, f"{path}.{key}")
        if fault is not None:
            return fault
    return None


def _check_const(schema: dict[str, Any], value: Any, path: str) -> Optional[tuple[str, str, str]]:
    if "const" in schema and value != schema["const"]:
        return path, f"{value!r} is unknown", f"write {schema['const']}"
    return None


def _has_type(schema: dict[str, Any], value: Any) -> bool:
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not kinds:
        return True
    if isinstance(value, bool):
        return "boolean" in kinds
    return any(isinstance(value, _KINDS[kind]) for kind in kinds if kind in _KINDS)


def _expected(schema: dict[str, Any]) -> str:
    kinds = schema["type"]
    names = {"string": "text", "object": "a mapping", "array": "a list", "integer": "a whole number", "number": "a number"}
    words = [names.get(kind, str(kind)) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return " or ".join(words) + (" with its unit" if "pattern" in schema else "")


def _describe(value: Any) -> str:
    for kind, word in ((bool, "a boolean"), (str, "text"), (int, "a bare number"), (float, "a bare number"), (dict, "a mapping")):
        if isinstance(value, kind):
            return word
    return f"a {type(value).__name__}"
