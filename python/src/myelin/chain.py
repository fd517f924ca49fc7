"""Service function chains in code: `Chain`, `Function`, `Sla`. The keys are those of a chain file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _schema
from ._agent import StrPath
from .documents import API_VERSION, Document, to_text
from .errors import ArgumentError, FileError, of_text

if TYPE_CHECKING:
    from dataclasses import dataclass, field
else:
    from ._record import dataclass, field

if TYPE_CHECKING:
    from .client import Client

Quantity = Union[str, int, list[Union[str, int]]]


def _snake_to_camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {_snake_to_camel(key): value for key, value in values.items() if value is not None}


@dataclass(kw_only=True)
class Sla:
    """A contract. `rate`, `burst`: the profile; `latency`: the longest one-way delay at `percentile`."""

    rate: Optional[Quantity] = None
    burst: Optional[Quantity] = None
    latency: Optional[str] = None
    percentile: Optional[float] = None
    loss: Optional[str] = None
    round_trip: Optional[str] = None
    enforce: Optional[str] = None
    policing_burst: Optional[Quantity] = None
    excess: Optional[dict[str, Any]] = None
    shaper: Optional[dict[str, Any]] = None

    def __post_init__(self) -> None:
        if self.rate is not None:
            _schema.check_rate("Sla: rate", self.rate)
        _schema.check_part("ServiceChain", "sla", self.to_keys(), "Sla")

    def to_keys(self) -> dict[str, Any]:
        """Returns `spec.sla` of a file."""
        return _given(vars(self))


@dataclass
class Function:
    """A function of a chain. `keys`: other keys of the file, for example `limits`."""

    name: str
    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    space: Optional[str] = None
    keys: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _schema.check_name("Function", self.name)
        _schema.check_part("ServiceChain", "functions[]", self.to_keys(), f"Function `{self.name}`")

    def to_keys(self) -> dict[str, Any]:
        """Returns the element of `spec.functions` of a file."""
        config = {"config": self.config} if self.config else {}
        space = {"space": self.space} if self.space is not None else {}
        return {"name": self.name, "kind": self.kind, **config, **space, **self.keys}


class Chain:
    """A service function chain."""

    def __init__(
        self,
        name: str,
        *,
        match: dict[str, Any],
        functions: Sequence[Function],
        sla: Optional[Sla] = None,
        ports: Optional[tuple[Any, Any]] = None,
        namespace: Optional[str] = None,
        directory: Optional[StrPath] = None,
        **keys: Any,
    ) -> None:
        """`match`: which traffic. `ports`: the hosts of a network, or the interfaces, where packets enter and leave;
        without ports Myelin makes the hosts `client` and `server`. `directory`: where the files that functions name
        are. `keys`: other keys of `spec`, with `_` before a capital: `mapping="pipeline"`, `on_failure="drop"`.
        """
        if not isinstance(functions, (list, tuple)) or not all(isinstance(one, Function) for one in functions):
            raise ArgumentError("functions: not a list of Function: write `[Function(...)]`", object="functions")
        if sla is not None and not isinstance(sla, Sla):
            raise ArgumentError(f"sla: {sla!r} is not an Sla: write `Sla(rate=...)`", object="sla")
        metadata = {"name": _schema.check_name("Chain", name), **_given({"namespace": namespace})}
        spec: dict[str, Any] = {"match": match, "functions": [one.to_keys() for one in functions]}
        if sla is not None:
            spec["sla"] = sla.to_keys()
        if ports is not None:
            if not isinstance(ports, (list, tuple)) or len(ports) != 2:
                raise ArgumentError("ports: not a pair: write `(h1, h2)`", object="ports", remedy="write `(h1, h2)`")
            spec["ports"] = {"ingress": _port(ports[0]), "egress": _port(ports[1])}
        spec.update(_given(keys))
        self.directory: Optional[Path] = None if directory is None else Path(directory).absolute()
        self._document: Document = {
            "apiVersion": API_VERSION,
            "kind": "ServiceChain",
            "metadata": metadata,
            "spec": spec,
        }
        _schema.check_object(self._document)

    @property
    def name(self) -> str:
        """The chain's name."""
        return str(self._document["metadata"]["name"])

    @property
    def functions(self) -> list[Function]:
        """The functions, in chain order."""
        return [_read_function(one) for one in self._document["spec"]["functions"]]

    @property
    def sla(self) -> Sla:
        """The contract."""
        keys = self._document["spec"].get("sla", {})
        return Sla(**{name: keys[camel] for name in vars(Sla()) if (camel := _snake_to_camel(name)) in keys})

    def documents(self) -> list[Document]:
        """Returns the document of a chain file."""
        return [self._document]

    def save(self, path: StrPath) -> None:
        """Writes the file that the command line takes."""
        Path(path).write_text(to_text(self.documents()), encoding="utf-8")

    @classmethod
    def from_document(cls, document: Document, directory: Optional[Path] = None) -> Chain:
        """Makes the chain of a document."""
        if not isinstance(document, dict) or document.get("kind") != "ServiceChain":
            kind = document.get("kind") if isinstance(document, dict) else document
            raise ArgumentError(f"kind: {kind!r} is not ServiceChain: name a chain file", object="kind")
        _schema.check_object(document)
        chain = cls.__new__(cls)
        chain._document, chain.directory = document, directory
        return chain

    @classmethod
    def load(cls, path: StrPath, client: Optional[Client] = None) -> Chain:
        """Reads the only chain of a file. The agent parses YAML; a file that `save` wrote needs none."""
        documents = [one for one in read_documents(path, client) if one.get("kind") == "ServiceChain"]
        if len(documents) != 1:
            raise FileError(f"{path}: {len(documents)} chains: `read_documents` reads all objects", file=str(path))
        return cls.from_document(documents[0], Path(path).absolute().parent)

    def svg(self, client: Optional[Client] = None) -> str:
        """Draws the planned chain."""
        from .client import Client

        return draw(client or Client(), ["plan"], self.documents(), self.directory, "--graph=")

    def _repr_svg_(self) -> str:
        return self.svg()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self._document == other._document

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kinds = " > ".join(one["kind"] for one in self._document["spec"]["functions"])
        return f"<Chain {self.name}: {kinds}>"


def _port(port: Any) -> str:
    """Returns the name of an interface, or TOPOLOGY/HOST."""
    if isinstance(port, str):
        return port
    path = getattr(port, "path", None)
    if not isinstance(path, str):
        raise ArgumentError(f"ports: {port!r} is neither a host nor an interface: write `(h1, h2)`", object="ports")
    return path


def _read_function(keys: dict[str, Any]) -> Function:
    rest = {key: value for key, value in keys.items() if key not in ("name", "kind", "config", "space")}
    return Function(keys["name"], keys["kind"], keys.get("config", {}), keys.get("space"), rest)


def read_documents(path: StrPath, client: Optional[Client] = None) -> list[Document]:
    """Reads the documents of a file: JSON alone, YAML with the agent."""
    from .client import Client
    from .documents import describe

    text = describe(path).text
    try:
        documents: list[Document] = [json.loads(part) for part in text.split("\n---\n")]
    except ValueError:
        documents = (client or Client()).read(path).objects
    if not all(isinstance(document, dict) for document in documents):
        raise FileError(f"{path}: a document is no mapping: name a chain file", file=str(path))
    return documents


def draw(client: Client, command: list[str], documents: list[Document], directory: Optional[Path], option: str) -> str:
    """Draws documents by a command of `myelin` that writes SVG."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="myelin-") as temporary:
        picture = Path(temporary, "picture.svg")
        source = Path(temporary, "source.yaml")
        source.write_text(to_text(documents), encoding="utf-8")
        # `plan` reads standard input, so named files are those of the working directory.
        file = "-" if command == ["plan"] else str(source)
        arguments = [f"{option}{picture}"] if option.endswith("=") else [option, str(picture)]
        with source.open("rb") as text:
            full = client.program.command(*command, file, *arguments)
            done = subprocess.run(full, stdin=text, capture_output=True, text=True, cwd=directory, check=False)
        if not picture.exists():
            raise of_text(done.stderr, done.returncode)
        return picture.read_text(encoding="utf-8")
