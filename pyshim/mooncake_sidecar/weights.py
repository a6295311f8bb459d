"""What tells two engines apart that compute other numbers from one model path.

None of it shows in the KV cache's geometry, so a namespace names it by a digest
(``NamespaceSpec.fingerprint``).
"""

import hashlib
import logging
from typing import Any

from mooncake_sidecar import checkpoint, naming

logger = logging.getLogger("vllm.mooncake_sidecar.weights")

# Drafters without layers of their own leave the KV cache as it is.
_WITHOUT_LAYERS = ("ngram", "suffix")


def fingerprint(vllm_config: Any) -> str:
    """Digest of a checkpoint's files and of the settings that change its numbers; empty without either.

    An engine with a setting that can't be named is alone: it has a digest that no
    other engine has, nor itself after a restart.
    """
    try:
        files, how = files_of(vllm_config), settings(vllm_config)
        text = naming.name([files, how])
    except naming.UnnameableError as error:
        logger.warning(
            "this engine shares KV cache with no other, and finds none of its own after a restart: what %s computes can't be "
            "told from outside. In hf_overrides use plain values, or a function whose code, defaults and globals are such",
            error,
        )
        text = _alone(vllm_config)
        return hashlib.sha256(text.encode()).hexdigest()
    if not files and not how:
        return ""
    return hashlib.sha256(text.encode()).hexdigest()


def files_of(vllm_config: Any) -> str:
    """The state of the files of the model; empty if they are not known."""
    model = vllm_config.model_config
    found = _files(vllm_config, model.model, getattr(model, "revision", None))
    if not found and getattr(getattr(vllm_config, "load_config", None), "load_format", None) != "dummy":
        logger.warning(
            "the weights of %s are known by name and revision alone: there is no such directory, nor a snapshot in the hub's cache. "
            "Engines that got other weights by this name share KV cache; name a commit as --revision, or a cache_prefix",
            model.model,
        )
    return found


def settings(vllm_config: Any) -> dict[str, Any]:
    """What changes the numbers of a model, without what is at its default."""
    return {name: value for name, value in every_setting(vllm_config).items() if value and value != "auto"}


def every_setting(vllm_config: Any) -> dict[str, Any]:
    """What can change the numbers of a model beside its files, by the name of the setting."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    load = getattr(vllm_config, "load_config", None)
    dtype = getattr(model, "dtype", None)
    form = getattr(load, "load_format", "auto")
    # Of what is in other places than the model: a commit is one of the model's own.
    revision, code = checkpoint.asked_for(getattr(model, "revision", None)), getattr(model, "code_revision", None)
    return {
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "quantization": getattr(model, "quantization", None),
        "quantization_config": getattr(model, "quantization_config", None),
        "hf_overrides": getattr(model, "hf_overrides", None),
        "hf_config_path": _place(vllm_config, getattr(model, "hf_config_path", None), revision),
        "model_weights": _place(vllm_config, getattr(model, "model_weights", None), revision),
        "model_impl": getattr(model, "model_impl", "auto"),
        "model_class_overrides": getattr(model, "model_class_overrides", None),
        "code_revision": code and [code, _files(vllm_config, model.model, code)],
        "code": _code(vllm_config, model, code),
        "config_format": getattr(model, "config_format", "auto"),
        # It chooses among the files of a checkpoint.
        "load_format": form,
        "model_loader_extra_config": getattr(load, "model_loader_extra_config", None),
        # Weights that were made up.
        "seed": f"{getattr(model, 'seed', 0)}" if form == "dummy" else None,
        "kv_cache_dtype_skip_layers": getattr(cache, "kv_cache_dtype_skip_layers", None),
        "drafter": _drafter(vllm_config),
    }


def _files(vllm_config: Any, model: str, revision: str | None, load: Any = None) -> str:
    loads = (getattr(vllm_config, "load_config", None), load)
    return checkpoint.identity(model, revision, [getattr(each, "download_dir", None) or "" for each in loads])


def _code(vllm_config: Any, model: Any, revision: str | None) -> list[Any]:
    """Other repositories that a model's code is from, each with its state."""
    return [_place(vllm_config, name, revision) for name in sorted(checkpoint.code_repositories(model))]


def _place(vllm_config: Any, path: str | None, revision: str | None) -> list[str] | None:
    """A path with the state of what is there."""
    return [path, _files(vllm_config, path, revision)] if path else None


def _drafter(vllm_config: Any) -> dict[str, Any] | None:
    """The drafter's weights and how it runs: its layers are in the KV cache too."""
    speculative = vllm_config.speculative_config
    method = getattr(speculative, "method", None)
    if speculative is None or method is None or method.startswith(_WITHOUT_LAYERS):
        return None
    model = getattr(speculative, "model", None)
    # Its configuration has the commit that was loaded.
    config = getattr(speculative, "draft_model_config", None)
    revision = getattr(config, "revision", None) or getattr(speculative, "revision", None)
    names = ("code_revision", "quantization", "kv_cache_dtype", "attention_backend")
    draft_load = getattr(speculative, "draft_load_config", None)
    return {
        "method": method,
        "model": model,
        "revision": checkpoint.asked_for(revision),
        **{name: getattr(speculative, name, None) for name in names},
        "load_format": getattr(draft_load, "load_format", None),
        "code": _code(vllm_config, config, getattr(speculative, "code_revision", None)),
        "files": _files(vllm_config, model, revision, draft_load) if model else "",
    }


def _alone(vllm_config: Any) -> str:
    """What the roles of one engine have in common, and no other engine has."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    # The second is the time at which the engine's configuration was made.
    found = [getattr(transfer, "engine_id", None), getattr(vllm_config, "instance_id", None)]
    if not all(found):
        raise ValueError(f"the engine has no name of its own (engine_id {found[0]!r}, instance_id {found[1]!r})")
    return f"alone {found[0]} {found[1]}"
