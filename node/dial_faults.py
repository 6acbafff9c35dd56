"""Why a dial is refused, in words for whoever can mend it, and which of these are shown.

Decides which failures of a handshake are faults at all: most are a process that just ends. Does
not decide when to dial again: that is `node.zmq_links`. Called by `node.zmq_transport`.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict

import zmq

log = logging.getLogger(__name__)

FAULTS_MAX = 1024
FAULT_REPEAT_S = 60.0
FAULT_CHANGE_S = 20.0


class DialFaults:
    """What only an operator can mend about our dials, by address; logged when it begins, once a
    minute while it lasts, and not much sooner when the reason changes."""

    def __init__(self) -> None:
        self._faults: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._suspected: OrderedDict[str, None] = OrderedDict()

    def suspect(self, address: str, why: str) -> None:
        """A dial failed as it does for this reason, but also when a process ends: it counts when
        it comes twice in a row."""
        if address in self._suspected and address not in self._faults:
            self.note(address, why)
        self._suspected[address] = None
        if len(self._suspected) > FAULTS_MAX:
            self._suspected.popitem(last=False)

    def note(self, address: str, why: str) -> None:
        """A dial to `address` failed in this way."""
        now = time.monotonic()
        before, logged_at = self._faults.get(address, ("", -FAULT_REPEAT_S))
        # Two reasons that take turns are one trouble.
        pause_s = FAULT_REPEAT_S if before == why else FAULT_CHANGE_S
        if now - logged_at >= pause_s:
            logged_at = now
            log.warning("no connection", extra={"peer": address, "why": why})
        self._faults[address] = (why, logged_at)
        self._faults.move_to_end(address)
        if len(self._faults) > FAULTS_MAX:
            self._faults.popitem(last=False)

    def end(self, address: str) -> None:
        """A dial to `address` succeeded, or nobody is to be dialled there any more."""
        self._suspected.pop(address, None)
        self._faults.pop(address, None)

    def all(self) -> dict[str, str]:
        """Address → why, the latest last."""
        return {address: why for address, (why, _) in self._faults.items()}


def handshake_fault(event: int, value: int, address: str, own_key: bytes) -> str | None:
    """In words: why the far end did not take our connection; None when it may yet.

    `event`, `value`: what the monitor of the dialling socket told last.
    """
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return (
            f"refused: key not trusted by {address}: add {own_key.hex()} to the trusted file there"
        )
    if event != zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return None  # it may have ended for reasons of its own: see `broken_off`
    if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        if own_key:
            return (
                f"refused: {address} has no keys and this node has: start it with --keys, or all "
                "nodes without"
            )
        return f"refused: {address} wants keys and this node has none: start this one with --keys"
    return f"refused: the handshake with {address} failed (ZMTP error {value:#x})"


def broken_off(address: str, own_key: bytes) -> str:
    """In words: why the far end may have ended handshakes without saying so."""
    if own_key:
        return (
            f"refused: {address} ends each handshake: its key is not the one that the trusted file "
            "here has for it, or it has no keys"
        )
    return (
        f"refused: {address} ends each handshake: it may want keys (--keys), and this node has none"
    )
