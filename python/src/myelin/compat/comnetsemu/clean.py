"""`comnetsemu.clean`."""

from __future__ import annotations

from ..mininet.clean import cleanup as cleanup
