"""The checkpoint itself: if its outputs did not depend on each stretch of the KV cache, no other test could fail."""

import copy
import random

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def prefilled(model):
    """The model, a prompt's last tokens and the cache of all before them."""
    from transformers import LlamaForCausalLM

    from harness.prompts import Prompts

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # else sums may be taken in another order, and the baseline moves
    llama = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([Prompts(model, seed=5).fresh(2000)])
    with torch.no_grad():
        cache = llama(ids[:, :1920], use_cache=True).past_key_values
    yield llama, ids[:, 1920:], cache
    torch.set_num_threads(threads)


def logprobs(llama, ids, cache):
    with torch.no_grad():
        return llama(ids, past_key_values=copy.deepcopy(cache)).logits[0, -1].log_softmax(-1)


def test_same_cache_gives_same_bits(prefilled):
    assert torch.equal(logprobs(*prefilled), logprobs(*prefilled))


def test_any_flipped_byte_changes_the_logprobs(prefilled):
    llama, ids, cache = prefilled
    right = logprobs(llama, ids, cache)
    rng = random.Random(11)
    unseen = []
    for trial in range(24):
        damaged = copy.deepcopy(cache)
        layer = damaged.layers[trial % 4]
        tensor = layer.keys if trial // 4 % 2 else layer.values
        head, token = rng.randrange(2), rng.randrange(1920)
        # Bytes 1 to 3 of a little-endian float: the lowest eight bits of the mantissa may round away.
        byte = rng.randrange(64) * 4 + 1 + trial % 3
        tensor.view(torch.uint8)[0, head, token, byte] ^= 0xFF
        with torch.no_grad():
            now = llama(ids, past_key_values=damaged).logits[0, -1].log_softmax(-1)
        if torch.equal(now, right):
            unseen.append((trial, head, token, byte))
    assert len(unseen) <= 1, f"flips that left the log-probabilities as they were (layer, head, token, byte): {unseen}"


def test_prompts_give_outputs_of_their_own(reference, cut):
    outputs = reference([cut.fresh(1500) for _ in range(6)])
    assert len({o.tokens for o in outputs}) == len(outputs)
    assert len({t for o in outputs for t in o.tokens}) > 24, "the model repeats itself: wrong tokens would go unseen"
