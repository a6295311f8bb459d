// Package config holds the daemons' settings: documented structs, their
// defaults, their validation, and the rules by which a flag goes before the
// environment, the environment before the file, and the file before a default.
//
// # The file
//
// One YAML file serves all daemons of a node. Settings that they share stand at
// the top, those of one daemon in its section:
//
//	runtime_dir: /run/user/1000/mooncake-sidecar
//	log_level: info
//	lookupd:
//	  store_bytes: 16GiB
//	worker:
//	  device: host-0
//
// A key that no struct has is refused. Sizes are numbers of bytes or carry a
// unit (KiB, MiB, GiB, TiB; KB, MB, GB, TB), times are Go durations ("15m").
//
// # The environment
//
// MOONCAKE_SIDECAR_ and the key in capitals: MOONCAKE_SIDECAR_STORE_BYTES. An
// empty variable counts as unset.
//
// [LookupdConfig.Fields] and [WorkerConfig.Fields] list every setting with its
// names and its help text; the commands make their flags from them.
package config
