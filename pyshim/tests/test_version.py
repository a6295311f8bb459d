import pytest

from mooncake_sidecar import version


def base_with(hooks):
    return type("KVConnectorBase_V1", (), dict.fromkeys(hooks))


def test_the_version_it_is_written_for_is_silent(caplog):
    version.check(base_with(version.REQUIRED_HOOKS), "0.32.0")
    version.check(base_with(version.REQUIRED_HOOKS), "0.32.1+cpu")
    assert not caplog.records


@pytest.mark.parametrize("hook", ["get_mem_pool_context", "get_loaded_kv_cache_group_ids", "get_transfer_results"])
def test_an_older_one_is_refused_with_the_hook(hook):
    hooks = [name for name in version.REQUIRED_HOOKS if name != hook]
    with pytest.raises(ValueError, match=f"0.28.0 is too old.*{hook}"):
        version.check(base_with(hooks), "0.28.0")


def test_a_newer_one_is_warned_about_once(caplog):
    version.check(base_with(version.REQUIRED_HOOKS), "0.33.0")
    assert len(caplog.records) == 1 and "0.33.0" in caplog.text


def test_a_development_build_is_judged_by_its_hooks_alone(caplog):
    version.check(base_with(version.REQUIRED_HOOKS), "dev")
    assert not caplog.records
