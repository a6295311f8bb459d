"""The cluster that other tests stand on: bytes are in its nodes, and each fault does what it is to do."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

OBJECT = 256 << 10


def put(peer, name: str, count: int = 60) -> dict[str, str]:
    data = {f"{name}-{k}": os.urandom(OBJECT).hex() for k in range(count)}
    for key, value in data.items():
        assert peer.ask("put", key=key, data=value) == 0
    return data


def test_bytes_outlive_who_put_them(cluster, peers):
    writer = peers(cluster.config_path)
    data = put(writer, "a")
    assert cluster.keys == len(data)
    assert cluster.stored_bytes == len(data) * OBJECT
    writer.close()
    reader = peers(cluster.config_path)
    before = cluster.read_bytes
    assert {key: reader.ask("get", key=key) for key in data} == data
    assert cluster.read_bytes - before >= len(data) * OBJECT
    assert len({place for key in data for place in reader.ask("replicas", key=key)}) == len(cluster.nodes)


def test_a_killed_node_takes_its_objects_along_and_comes_back(cluster, peers):
    peer = peers(cluster.config_path)
    data = put(peer, "a")
    lost_bytes = cluster.stored_bytes
    cluster.nodes[0].kill()
    cluster.wait("the master to miss the node", lambda: cluster.capacity_bytes == 2 * cluster.segment_bytes)
    lost_bytes -= cluster.stored_bytes
    present = peer.ask("exist", keys=list(data))
    assert 0 < present.count(0) == lost_bytes // OBJECT < len(data)
    assert all(peer.ask("get", key=key) == data[key] for key, there in zip(data, present) if there)
    cluster.nodes[0].start()
    cluster.wait("the node", cluster.whole)
    assert set(peer.ask("exist", keys=list(put(peer, "b")))) == {1}


def test_a_stopped_master_answers_after_it_goes_on(cluster, peers):
    peer = peers(cluster.config_path)
    data = put(peer, "a", 3)
    with ThreadPoolExecutor(1) as pool:
        with cluster.master.stopped():
            asked = pool.submit(peer.ask, "exist", keys=list(data))
            time.sleep(1)
            assert not asked.done()
        asked.result(60)
    cluster.wait("an answer", lambda: peer.ask("exist", keys=list(data)) == [1] * len(data))


def test_a_new_master_on_the_same_ports_knows_the_nodes_and_no_object(cluster, peers):
    peer = peers(cluster.config_path)
    data = put(peer, "a", 3)
    cluster.master.kill()
    assert all(answer < 0 for answer in peer.ask("exist", keys=list(data)))
    cluster.master.start()
    cluster.wait("the nodes", cluster.whole)
    cluster.wait("an answer", lambda: peer.ask("exist", keys=list(data)) == [0] * len(data))
    again = put(peer, "b", 3)
    assert {key: peer.ask("get", key=key) for key in again} == again
