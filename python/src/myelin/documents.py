"""Texts of chains and topologies: files, and objects that describe themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Protocol, Union, runtime_checkable

from ._source import read_text
from .errors import bad_argument

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ._record import dataclass

Document = dict[str, Any]

API_VERSION = "myelin.dev/v1alpha1"


@runtime_checkable
class DescribesItself(Protocol):
    """An object that writes itself as the documents of a file."""

    directory: Optional[Path]
    """Where the files that it names are; None: the working directory."""

    def documents(self) -> list[Document]:
        """Returns the documents."""
        ...


Described = Union[str, "os.PathLike[str]", DescribesItself, Sequence[DescribesItself]]
"""The path of a file, an object such as a Chain or a Network, or several objects."""


@dataclass(frozen=True)
class Description:
    """A text, and where the files that it names are."""

    name: str
    text: str
    directory: Path


def to_text(documents: list[Document]) -> str:
    """Writes documents as a file of the command line: JSON, which is YAML."""
    return "---\n".join(json.dumps(document, indent=2, ensure_ascii=False) + "\n" for document in documents)


def describe(source: Described) -> Description:
    """Reads a file, or writes objects as text."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return Description(str(path), read_text(path), path.parent)
    objects: list[DescribesItself]
    if isinstance(source, DescribesItself):
        objects = [source]
    else:
        objects = list(source) if isinstance(source, (list, tuple)) else []
    if not objects or not all(isinstance(one, DescribesItself) for one in objects):
        raise bad_argument("source", source, "a file, a Chain or a Network", "give the path of a file, or such an object")
    documents = [document for one in objects for document in one.documents()]
    names = ", ".join(str(document["metadata"]["name"]) for document in documents)
    directory = next((one.directory for one in objects if one.directory is not None), Path.cwd())
    return Description(f"<{names}>", to_text(documents), directory)
