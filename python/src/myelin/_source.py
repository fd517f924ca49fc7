"""Reads the files that a text names, with the rights of this user."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Union

from ._lazy import types
from .errors import FileError

# As `myelin` reads them.
_MAX_BYTES = 64 << 20
_MAX_SECRET_BYTES = 64 * 1024
_RANDOM = "/dev/urandom"


def read_text(file: Path) -> str:
    """Reads a chain file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {file}: {error}", file=str(file)) from error


def read_named(directory: Path, files: list[types.NamedFile]) -> dict[str, types.FileContents]:
    """Reads the files that a text in this directory names. The agent reports missing files."""
    contents: dict[str, types.FileContents] = {}
    for named in files:
        path = directory / named.path
        found = _read_secret(path) if named.is_secret else _read_limited(path)
        if found is not None:
            contents[named.path] = found
    return contents


def _refuse(path: Path, fault: str, remedy: str) -> FileError:
    return FileError(f"{path}: {fault}: {remedy}", object=str(path), file=str(path), remedy=remedy)


def _read_limited(path: Path) -> Union[types.FileContents, None]:
    try:
        with open(path, "rb") as file:
            contents = file.read(_MAX_BYTES + 1)
    except OSError:
        return None
    if len(contents) > _MAX_BYTES:
        raise _refuse(path, "longer than 64 MiB, the limit for files that a chain file names", "name a shorter file")
    try:
        return contents.decode()
    except UnicodeDecodeError:
        import base64

        return types.FileContentsBase64(base64=base64.b64encode(contents).decode())


def _read_secret(path: Path) -> Union[str, None]:
    if str(path) == _RANDOM:
        return os.urandom(32).hex()
    try:
        # Opening a pipe must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refuse(path, str(error), "name a key file that you can read") from error
    with open(descriptor, "rb") as file:
        # The open file is checked, because another process may replace the file at the path.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refuse(path, "the path is not a regular file", "name a key file")
        _check_access(path, status)
        contents = file.read(_MAX_SECRET_BYTES + 1)
    if len(contents) > _MAX_SECRET_BYTES:
        raise _refuse(path, f"the file is longer than {_MAX_SECRET_BYTES} bytes, so it is no key file", "name a key file")
    try:
        return contents.decode()
    except UnicodeDecodeError:
        raise _refuse(path, "the file is not text (UTF-8)", "write keys in hexadecimal digits") from None


def _check_access(path: Path, status: os.stat_result) -> None:
    users = {os.geteuid(), 0}
    sudo_user = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and sudo_user.isdigit():
        users.add(int(sudo_user))
    if status.st_uid not in users:
        fault = f"the file holds keys and belongs to user {status.st_uid}, neither to you nor to root"
        raise _refuse(path, fault, "make a copy that no other user can read, and name the copy")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        fault = f"the file holds keys, and mode {mode:04o} gives other users access"
        raise _refuse(path, fault, f"`chmod 600 {path}`, and replace keys that others may have read")
