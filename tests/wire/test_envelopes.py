"""Golden bytes of the data lane: what other versions read. Change them only with the protocol."""

from __future__ import annotations

import pytest

from node.actor import Actor, on
from node.codec import Codec, Envelope, Kind
from node.ref import ActorRef
from tests.node.stage import A, Add, B, Collector, Greet, Pair

HELLO = "ab2f757365722f68656c6c6f"
REF_OF_B = f"c72301 95 a831302e302e302e32 cd63b0 cfffffffffffffffff {HELLO} 07"
GOLDEN = {
    "tell": f"98 00 {HELLO} 00 c0 00 aa746573742e6772656574 91a3616e6e 00",
    "watch": f"98 04 {HELLO} 07 {REF_OF_B} 00 a0 90 00",
    "terminated": f"98 06 {HELLO} 07 c0 00 a0 94a72f757365722f78 03 06 a3627965 00",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_envelopes(name: str) -> None:
    pair = Pair()
    ref = ActorRef[object](pair.runtime, B, "/user/hello", 7)
    envelope = {
        "tell": Envelope(Kind.TELL, "/user/hello", 0, None, 0, "test.greet", ["ann"], 0),
        "watch": Envelope(Kind.WATCH, "/user/hello", 7, ref, 0, "", [], 0),
        "terminated": Envelope(
            Kind.TERMINATED, "/user/hello", 7, None, 0, "", ["/user/x", 3, 6, "bye"], 0
        ),
    }[name]
    codec = Codec(pair.runtime.ref_at)
    payload = codec.encode(envelope)
    assert payload == bytes.fromhex(GOLDEN[name])
    assert codec.decode(payload, lambda *_: None) == [envelope]


SAID = [
    "98 00 a72f757365722f78 00 c0 00 aa746573742e6772656574 91a3616e6e 00",
    "98 01 a72f757365722f78 00 c71501 95 a831302e302e302e31 cd63b0 0b a52f74656d70 00 01 "
    "a8746573742e616464 9102 00",
]
SHORT = [
    "94 13 00 a72f757365722f78 00  93 14 01 aa746573742e6772656574  94 10 00 01 91a3616e6e",
    "93 14 02 a8746573742e616464  95 11 00 02 9102 01",
]
REFUSED = "98 03 a52f74656d70 00 c0 01 a0 93 03 a0 d927"


@pytest.mark.parametrize(("version", "said"), [(1, SAID), (2, SHORT)])
def test_golden_conversation(version: int, said: list[str]) -> None:
    """An ask that fails and a told message, as they leave the nodes; in version 2 with numbers."""
    pair = Pair(version)
    nobody = pair.to_far("/user/x")
    nobody.tell(Greet("ann"))
    asking = pair.loop.create_task(nobody.ask(Add(2)))
    pair.run_for(0.01)
    assert asking.exception() is not None
    error = "/user/x: there is no actor at this path"
    assert pair.sent == [
        *((A, B, bytes.fromhex(text)) for text in said),
        (B, A, bytes.fromhex(REFUSED) + error.encode() + b"\x00"),
    ]


def test_golden_answer_and_sender() -> None:
    pair = Pair()
    adder = pair.far.spawn(Adder, name="x")
    collector = pair.runtime.spawn(Collector, [], name="c")
    pair.settle()
    pair.sent.clear()
    ref = pair.to_far("/user/x", adder.uid)
    assert pair.run(ref.ask(Add(2))) == 2
    ref.tell(Greet("ann"), collector)
    pair.settle()
    by = "c71701 95 a831302e302e302e31 cd63b0 0b a72f757365722f63 01"
    assert [payload.hex() for _, _, payload in pair.sent] == [
        bytes.fromhex(text).hex()
        for text in (
            "94 13 00 a72f757365722f78 01  93 14 01 a8746573742e616464  95 11 00 01 9102 01",
            "93 12 01 02",
            f"93 14 02 aa746573742e6772656574  93 15 03 {by}  95 10 00 02 91a3616e6e 03",
        )
    ]


class Adder(Actor):
    """Sums."""

    @on(Add)
    def add(self, msg: Add) -> int:
        return msg.amount

    def receive(self, message: object, /) -> None:
        """Anything."""
