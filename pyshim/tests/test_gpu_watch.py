"""What is told of a GPU's KV cache that vLLM's allocator takes away and gives back, and what is refused."""

import os
from types import SimpleNamespace

import pytest
from conftest import make_geometry
from mooncake_sidecar import config, gpusleep
from mooncake_sidecar import messages as msg
from mooncake_sidecar.layout import UnsupportedLayout
from mooncake_sidecar.registration import Memory


class Books:
    """An allocator of the shape that vLLM's has; it fails when it is told to."""

    def __init__(self, *tags):
        self.pointer_to_data = {
            0x1000 * i: SimpleNamespace(handle=(0, 0x1000, 0x1000 * i, 0), tag=tag, is_asleep=False)
            for i, tag in enumerate(tags, 1)
        }
        self.fail_at = 0

    def _set(self, asleep, tags=None):
        for pointer, data in self.pointer_to_data.items():
            if tags is None or data.tag in tags:
                if pointer == self.fail_at:
                    raise MemoryError("no memory")
                data.is_asleep = asleep

    def sleep(self, offload_tags=None):
        self._set(True)

    def discard(self, tags):
        self._set(True, tags)

    def wake_up(self, tags=None):
        self._set(False, tags)
        return "what it returns"


class Owner:
    def __init__(self):
        self.told = []
        self.fails = False

    def __getattr__(self, name):
        def note():
            self.told.append(name)
            if self.fails:
                raise OSError("a pipe")

        return note


def kv_memory(*places, kind="cuda_vmm"):
    return Memory([msg.KVRegion(kind, 0, 0, size) for _, size in places], [], [], places=list(places))


def watched(*tags, places=((0x1000, 0x800), (0x2100, 0x200))):
    books, owner = Books(*tags), Owner()
    return books, owner, gpusleep.Watch(books, "cumem", kv_memory(*places), owner)


def test_the_owner_is_told_in_turns():
    books, owner, watch = watched("kv_cache", "kv_cache", "weights")
    books.sleep(("weights",))
    assert owner.told == ["leave_memory", "memory_gone"]
    books.sleep()
    books.wake_up(["weights"])
    assert owner.told[2:] == [], "still gone"
    owner.told.clear()
    assert books.wake_up(["kv_cache"]) == "what it returns"
    assert owner.told == ["memory_back"]
    books.wake_up()
    assert owner.told == ["memory_back"]
    books.discard(tags=("kv_cache",))
    books.wake_up()
    assert owner.told[1:] == ["leave_memory", "memory_gone", "memory_back"]
    watch.close()
    books.sleep()
    assert len(owner.told) == 4
    assert "sleep" not in vars(books) and "wake_up" not in vars(books), "as it was"


def test_a_sleep_that_fails_halfway():
    books, owner, _ = watched("kv_cache", "kv_cache")
    books.fail_at = 0x2000
    with pytest.raises(MemoryError):
        books.sleep()
    assert owner.told == ["leave_memory"], "some of it is the engine's still: a stuck daemon may reach that"
    books.fail_at = 0x1000
    with pytest.raises(MemoryError):
        books.wake_up()
    assert owner.told == ["leave_memory"]
    books.fail_at = 0
    books.wake_up()
    assert owner.told == ["leave_memory", "memory_back"]


def test_a_failure_of_ours_is_not_vllms():
    books, owner, _ = watched("kv_cache", "kv_cache")
    owner.fails = True
    books.sleep()
    assert books.wake_up() == "what it returns"
    assert owner.told == ["leave_memory", "memory_gone", "memory_back"]


def test_one_that_others_wrapped_too():
    books, owner, watch = watched("kv_cache", "kv_cache")
    inner = books.sleep
    books.sleep = lambda *a, **k: inner(*a, **k)
    watch.close()
    books.sleep()
    assert owner.told == [] and all(data.is_asleep for data in books.pointer_to_data.values())


def test_what_stood_there_before_stands_there_again():
    books, first, outer = watched("kv_cache", "kv_cache")
    second = Owner()
    inner = gpusleep.Watch(books, "cumem", kv_memory((0x1000, 0x800), (0x2100, 0x200)), second)
    inner.close()
    books.sleep()
    assert second.told == [] and first.told == ["leave_memory", "memory_gone"]
    outer.close()
    assert not {"sleep", "discard", "wake_up"} & vars(books).keys()


def test_freed_memory_is_gone():
    books, owner, _ = watched("kv_cache", "kv_cache")
    books.sleep()
    books.pointer_to_data.clear()
    books.wake_up()
    assert "memory_back" not in owner.told


def test_a_vllm_of_another_shape_is_refused():
    place = (0x1000, 0x800)
    memory = kv_memory(place)

    class Without(Books):
        wake_up = None

    class Sleepless(Books):
        def __init__(self):
            super().__init__("kv_cache")
            self.pointer_to_data[0x1000] = SimpleNamespace(handle=(0, 0x1000))

    class Bookless(Books):
        def __init__(self):
            pass

    for allocator_, backend, what, text in (
        (Books("kv_cache"), "criu", memory, "'criu'"),
        (Without("kv_cache"), "cumem", memory, "no wake_up"),
        (Sleepless(), "cumem", memory, "other books"),
        (Bookless(), "cumem", memory, "other books"),
        (Books(), "cumem", memory, "not in the memory"),
        (Books("kv_cache"), "cumem", kv_memory(place, kind="cuda_ipc"), "chunks"),
    ):
        with pytest.raises(UnsupportedLayout, match=rf"takes a GPU's KV cache away.*{text}.*--enable-sleep-mode"):
            gpusleep.Watch(allocator_, backend, what, Owner())
        assert not {"sleep", "wake_up", "discard"} & set(vars(allocator_)), "nothing is left behind"


@pytest.mark.parametrize(("cumem", "sleep", "goes"), [(False, False, False), (True, False, True), (None, True, True)])
def test_which_engines_can_lose_their_memory(cumem, sleep, goes):
    """``release_kv_cache_memory`` needs the allocator alone."""
    model = SimpleNamespace(enable_sleep_mode=sleep)
    if cumem is not None:
        model.enable_cumem_allocator = cumem
    assert gpusleep.may_go(model) is goes




@pytest.fixture
def connector(runtime_dir, monkeypatch):
    """Makes connectors of a rank whose KV cache is in an allocator's memory."""
    pytest.importorskip("vllm")
    from mooncake_sidecar import connector as module
    from mooncake_sidecar.stats import SidecarStats
    from vllm import device_allocator
    from vllm.distributed import parallel_state

    group = SimpleNamespace(rank=0, local_rank=0, rank_in_group=0)
    monkeypatch.setattr(parallel_state, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parallel_state, "get_pp_group", lambda: group)
    monkeypatch.setattr(parallel_state, "get_world_group", lambda: group)
    monkeypatch.setattr(module.namespace, "parallel_sizes", lambda _: SimpleNamespace(tp=1, pp=1, pcp=1, dcp=1))
    monkeypatch.setattr(module, "_WORKER_WAITS_S", 0.0)
    made = []

    def make(find_allocator, **model):
        monkeypatch.setattr(device_allocator, "get_mem_allocator_instance", find_allocator)
        one = module.MooncakeSidecarConnector.__new__(module.MooncakeSidecarConnector)
        read, write = os.pipe()
        os.close(write)
        memory = kv_memory((0x1000, 0x800))
        memory.owned.append(read)
        vars(one).update(
            _vllm_config=SimpleNamespace(
                model_config=SimpleNamespace(**model),
                parallel_config=SimpleNamespace(data_parallel_size=1),
                device_config=SimpleNamespace(device_type="cuda"),
                max_concurrent_batches=1,
            ),
            _settings=config.parse({"runtime_dir": runtime_dir, "autostart": False}),
            _kv_cache_config=SimpleNamespace(num_blocks=1),
            _geometry=make_geometry(),
            _engine_id="e",
            _epoch=1,
            _by_block=True,
            _stats=SidecarStats(),
            _share=lambda *_: (lambda: memory, None, "cuda-0"),
            **dict.fromkeys(("_presence", "_watch", "_worker", "_allocation", "_registrar", "_follower", "_lookup")),
            _closed=False,
        )
        one.register_kv_caches({})
        made.append(one)
        return one, memory

    yield make
    for one in made:
        one.shutdown()


def test_the_connector_watches_vllms_allocator(connector):
    books = Books("kv_cache")
    one, memory = connector(lambda: books, enable_sleep_mode=True, sleep_mode_backend="cumem")
    books.sleep()
    assert memory.owned == [], "the descriptors are closed"
    one.shutdown()
    assert "sleep" not in vars(books)
    one, memory = connector(lambda: books, enable_sleep_mode=False, enable_cumem_allocator=False)
    assert "sleep" not in vars(books) and memory.owned


def test_the_connector_does_without_the_store_where_it_can_not(connector, caplog):
    def nowhere():
        raise RuntimeError("not on this platform")

    for find, model in (
        (nowhere, {"sleep_mode_backend": "cumem"}),
        (lambda: Books("kv_cache"), {"sleep_mode_backend": "criu"}),
    ):
        caplog.clear()
        one, memory = connector(find, enable_sleep_mode=True, **model)
        assert "running without the KV store: sleep mode takes" in caplog.text
        assert memory.owned == [] and one._presence.take() is None and not one._worker.ready
