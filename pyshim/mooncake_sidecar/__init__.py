"""vLLM KV connector that leaves the store path to daemons beside the engine.

Importing this package is cheap and needs neither vLLM nor torch: vLLM loads it
in the front end, in the engine core and in every worker.
"""

__version__ = "0.1.0"


def register() -> None:
    """Entry point ``vllm.general_plugins``: makes the connector known by name."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    name = "MooncakeSidecarConnector"
    # The plugin runs in every process and may run twice in one.
    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, "mooncake_sidecar.connector", name)
