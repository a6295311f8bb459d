"""``store_retention`` goes from the configuration to mooncake-worker, and no further."""

import msgspec
import pytest
from conftest import make_geometry

from mooncake_sidecar import config, messages
from mooncake_sidecar.board import JobBoard
from mooncake_sidecar.namespace import Ranks
from mooncake_sidecar.registration import Memory, Registrant


@pytest.mark.parametrize(
    ("value", "tokens"), [("engine", 0), ("dense", -1), ("Dense ", -1), (2048, 2048), ("512", 512), (None, 0)]
)
def test_values(value, tokens):
    extra = {} if value is None else {"store_retention": value}
    assert config.parse(extra).store_retention == tokens


@pytest.mark.parametrize("value", [0, -1, "sparse", "", True, 1.5, None, 1 << 40])
def test_what_is_no_retention(value):
    with pytest.raises(ValueError, match='store_retention is .*"engine", "dense"'):
        config.parse({"store_retention": value})


@pytest.mark.parametrize(("value", "tokens"), [("dense", -1), ("engine", 0), (64, 64)])
def test_the_registration_says_it_and_the_namespace_does_not(value, tokens):
    geometry = make_geometry()
    registrant = Registrant(
        config.parse({"store_retention": value}),
        geometry,
        Ranks(1, 1, 1, 1),
        Memory([], [], []),
        num_blocks=8,
        engine_id="e",
        epoch=1,
        device="host-0",
    )
    board = JobBoard()
    try:
        frame = msgspec.msgpack.decode(messages.encode(registrant._message(board)))
    finally:
        board.close()
    assert frame.get("store_retention", 0) == tokens
    assert "store_retention" not in frame["namespace"]
