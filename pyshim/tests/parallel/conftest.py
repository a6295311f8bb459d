"""One node with its daemons for all tests."""

import pytest


@pytest.fixture(scope="session")
def node():
    from .node import Node  # needs vLLM

    made = Node()
    yield made
    made.close()
