"""Writes chain.json: questions that name few of a request's hashes, frame by frame, after docs/protocol.md and by none of our codecs.

python testdata/golden/lookup/chain.py
"""

import json
import pathlib
import struct

STRIDE = 128


def runs_of(count: int, *more: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    return [(0, 1, 16), (STRIDE - 1, STRIDE, count // STRIDE), (count - 16, 1, 16), *more]


def lookup3(tokens: int, hashes: list[bytes], runs: list[tuple[int, int, int]], name: str, seq: int) -> list[bytes]:
    given = b"".join(hashes[first + i * step] for first, step, count in runs for i in range(count))
    counts = struct.pack(">I", tokens), struct.pack(">H", len(hashes[0])), struct.pack(">I", len(hashes))
    return [b"lookup3", *counts, b"".join(struct.pack(">III", *run) for run in runs), given, name.encode(), struct.pack(">Q", seq)]


def lookup2(tokens: int, hashes: list[bytes], name: str, seq: int) -> list[bytes]:
    return [b"lookup2", struct.pack(">I", tokens), struct.pack(">H", len(hashes[0])), b"".join(hashes), name.encode(), struct.pack(">Q", seq)]


def turn(seq: int, frames: list[bytes], reply: list[bytes], again: bool) -> dict[str, object]:
    return {"seq": seq, "frames": [f.hex() for f in frames], "reply": [f.hex() for f in reply], "again": again}


def more(seq: int, first: int, end: int) -> list[bytes]:
    return [struct.pack(">II", first, end), struct.pack(">QB", seq, 2)]


def hit(seq: int, tokens: int, flags: int = 0) -> list[bytes]:
    return [struct.pack(">III", tokens, 0, tokens) if tokens else struct.pack(">I", 0), struct.pack(">QB", seq, flags)]


def main() -> None:
    vectors = []
    for count, name, answers in (
        (300, "cmpl-ä", [(16, 127), None]),
        (384, "r", [None]),
        (400, "r2", [(0, 400), None]),
        (500, "r3", [(128, 255), (256, 383), None]),
        (256, "short", [None]),
    ):
        hashes, turns, runs = [struct.pack(">Q", 7 * i + 1) for i in range(count)], [], runs_of(count)
        whole = count <= 2 * STRIDE
        for seq, gap in enumerate(answers, 1):
            frames = lookup2(16 * count + 1, hashes, name, seq) if whole else lookup3(16 * count + 1, hashes, runs, name, seq)
            turns.append(turn(seq, frames, hit(seq, 16 * 20, 4 * (not whole)) if gap is None else more(seq, *gap), gap is not None))
            if gap is not None:
                whole = len(runs) > 3 or gap[1] - gap[0] > STRIDE
                runs = runs_of(count, (gap[0], 1, gap[1] - gap[0]))
        seen = [b"seen", struct.pack(">H", 8), b"".join(hashes)]
        vectors.append({
            "tokens": 16 * count + 1, "hash_len": 8, "hashes": b"".join(hashes).hex(), "id": name, "stride": STRIDE, "turns": turns, "seen": [f.hex() for f in seen],
        })  # fmt: skip
    pathlib.Path(__file__).with_name("chain.json").write_text(json.dumps(vectors, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
