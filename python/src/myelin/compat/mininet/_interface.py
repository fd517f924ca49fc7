"""Requests to interfaces of the calling thread's network namespace (netdevice(7)), without a process."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from typing import Optional

_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_GET_ADDRESS, _SET_ADDRESS = 0x8915, 0x8916
_GET_MASK, _SET_MASK = 0x891B, 0x891C
_SET_NAME = 0x8923
_SET_MAC, _GET_MAC = 0x8924, 0x8927
_UP = 1
_ETHERNET = 1


def _request(number: int, name: str, value: bytes = b"") -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return fcntl.ioctl(control, number, struct.pack("16s24s", name.encode(), value))[16:]


def _pack(address: str) -> bytes:
    return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(address))


def is_up(name: str) -> bool:
    """Whether the interface is up."""
    return bool(struct.unpack("H", _request(_GET_FLAGS, name)[:2])[0] & _UP)


def set_up(name: str, up: bool) -> None:
    """Sets the interface up or down."""
    flags = struct.unpack("H", _request(_GET_FLAGS, name)[:2])[0]
    _request(_SET_FLAGS, name, struct.pack("H", flags | _UP if up else flags & ~_UP))


def rename(name: str, new: str) -> None:
    """Renames the interface. Before Linux 6.2 an interface must be down for that."""
    try:
        _request(_SET_NAME, name, new.encode())
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        set_up(name, False)
        _request(_SET_NAME, name, new.encode())
        set_up(new, True)


def address(name: str) -> Optional[tuple[str, int]]:
    """Returns the IPv4 address and the length of its prefix."""
    try:
        own = socket.inet_ntoa(_request(_GET_ADDRESS, name)[4:8])
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return own, int.from_bytes(_request(_GET_MASK, name)[4:8], "big").bit_count()


def set_address(name: str, own: str, prefix_len: int) -> None:
    """Sets the IPv4 address; 0.0.0.0 removes it."""
    if own == "0.0.0.0" and address(name) is None:
        return
    _request(_SET_ADDRESS, name, _pack(own))
    if own != "0.0.0.0":
        mask = (0xFFFFFFFF << (32 - prefix_len)) & 0xFFFFFFFF
        _request(_SET_MASK, name, _pack(socket.inet_ntoa(mask.to_bytes(4, "big"))))


def mac(name: str) -> str:
    """Returns the MAC address."""
    return ":".join(f"{byte:02x}" for byte in _request(_GET_MAC, name)[2:8])


def set_mac(name: str, own: str) -> None:
    """Sets the MAC address."""
    _request(_SET_MAC, name, struct.pack("H6s", _ETHERNET, bytes.fromhex(own.replace(":", ""))))
