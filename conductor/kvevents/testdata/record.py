"""Writes vllm.hex: KV-event batches as the installed vLLM encodes them. Run with vLLM's Python: record.py > vllm.hex."""

import msgspec
import vllm
from vllm.distributed.kv_events import (
    MEDIUM_CPU,
    MEDIUM_GPU,
    MEDIUM_STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)

enc = msgspec.msgpack.Encoder()
H=[0x1122334455667788, 2**64-1, 5]
cases = {
 "stored_full": KVEventBatch(ts=1.5, data_parallel_rank=0, events=[BlockStored(block_hashes=H[:1], parent_block_hash=None, token_ids=[1,2,70000,5], block_size=4, lora_id=None, medium=MEDIUM_GPU, lora_name=None)]),
 "stored_all_fields": KVEventBatch(ts=1790000000.25, data_parallel_rank=3, events=[BlockStored(block_hashes=H, parent_block_hash=77, token_ids=list(range(12)), block_size=4, lora_id=9, medium=MEDIUM_CPU, lora_name="a", extra_keys=[("a",), None, (("img",-3),"salt")], group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=64, locality="LOCAL", ownership="x", session_id="s")]),
 "stored_placeholder": KVEventBatch(ts=2.0, events=[BlockStored(block_hashes=H, parent_block_hash=None, token_ids=[], block_size=0, lora_id=None, medium=MEDIUM_STORAGE, lora_name=None, group_idx=0, kv_cache_spec_kind="full_attention")]),
 "removed_cleared": KVEventBatch(ts=3.0, events=[BlockRemoved(block_hashes=H, medium=MEDIUM_CPU, group_idx=2), AllBlocksCleared()]),
 "bytes_hashes": KVEventBatch(ts=4.0, data_parallel_rank=1, events=[BlockStored(block_hashes=[bytes(range(32))], parent_block_hash=bytes(range(16)), token_ids=[1], block_size=1, lora_id=None, medium="cpu", lora_name=None), BlockRemoved(block_hashes=[b"\x01"*32], medium=None)]),
}
print("# vLLM", vllm.__version__, "msgspec", msgspec.__version__)
for k,v in cases.items(): print(k, enc.encode(v).hex())
# positional, as vLLM <= 0.23 and SGLang write it
print("positional", msgspec.msgpack.encode([1.0,[["BlockStored",H,7,[1,2,3],1,None,"GPU",None,None,4,"full_attention",None],["BlockRemoved",H[:1],"CPU"],["AllBlocksCleared"]]]).hex())
