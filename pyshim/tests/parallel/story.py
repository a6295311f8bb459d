"""What happens to an engine: prompts that share beginnings, and the same again after its memory was lost."""

import random


class Story:
    """Prompts are counted in scheduler blocks, whatever the layout makes of them."""

    def __init__(self, block):
        draw = random.Random(17)
        self._block = block
        self._words = [draw.randrange(1, 800) for _ in range(64 * block)]

    def _text(self, blocks, more, at):
        first = at * self._block
        return self._words[first : first + blocks * self._block + more]

    @property
    def long(self):
        return self._text(5, 7, 0)

    @property
    def branch(self):
        return self.long[: 3 * self._block] + self._text(2, 5, 8)

    @property
    def short(self):
        return self._text(1, 3, 12)

    def store(self, engine):
        """The first life: everything is computed."""
        engine.add("long", self.long)
        engine.step()
        engine.add("short", self.short)
        engine.step()
        engine.run()
        engine.add("branch", self.branch)
        engine.run()

    def load(self, engine):
        """The second: what is there is loaded, at first all of a hit, then behind what the engine has by then."""
        engine.add("branch", self.branch)
        engine.add("short", self.short)
        engine.run()
        engine.add("longer", self.long + self._text(2, 9, 16))
        engine.run()
        engine.add("other", self.long[: 2 * self._block] + self._text(1, 4, 20))
        engine.run()
