// The driver's functions: N(field, symbol, arguments) must be there, O(field, symbol, arguments)
// may be missing. Symbols are those that cuda.h gives the names of CUDA 12 to.
#define CUD_FUNCTIONS(N, O)                                                                                            \
  N(init, cuInit, (unsigned))                                                                                          \
  N(version, cuDriverGetVersion, (int *))                                                                              \
  N(error_name, cuGetErrorName, (int, const char **))                                                                  \
  N(error_string, cuGetErrorString, (int, const char **))                                                              \
  N(device_count, cuDeviceGetCount, (int *))                                                                           \
  N(device_get, cuDeviceGet, (int *, int))                                                                             \
  N(device_name, cuDeviceGetName, (char *, int, int))                                                                  \
  N(device_uuid, cuDeviceGetUuid_v2, (char *, int))                                                                    \
  N(device_attribute, cuDeviceGetAttribute, (int *, int, int))                                                         \
  N(primary_retain, cuDevicePrimaryCtxRetain, (void **, int))                                                          \
  N(primary_release, cuDevicePrimaryCtxRelease_v2, (int))                                                              \
  N(set_current, cuCtxSetCurrent, (void *))                                                                            \
  N(priorities, cuCtxGetStreamPriorityRange, (int *, int *))                                                           \
  N(stream_create, cuStreamCreateWithPriority, (void **, unsigned, int))                                               \
  N(stream_destroy, cuStreamDestroy_v2, (void *))                                                                      \
  N(event_create, cuEventCreate, (void **, unsigned))                                                                  \
  N(event_destroy, cuEventDestroy_v2, (void *))                                                                        \
  N(event_record, cuEventRecord, (void *, void *))                                                                     \
  N(event_query, cuEventQuery, (void *))                                                                               \
  N(event_synchronize, cuEventSynchronize, (void *))                                                                   \
  N(ipc_open_event, cuIpcOpenEventHandle, (void **, cud_handle))                                                       \
  N(ipc_open_memory, cuIpcOpenMemHandle_v2, (uint64_t *, cud_handle, unsigned))                                        \
  N(ipc_close_memory, cuIpcCloseMemHandle, (uint64_t))                                                                 \
  N(range, cuMemGetAddressRange_v2, (uint64_t *, size_t *, uint64_t))                                                  \
  N(alloc, cuMemAlloc_v2, (uint64_t *, size_t))                                                                        \
  N(free, cuMemFree_v2, (uint64_t))                                                                                    \
  N(host_alloc, cuMemHostAlloc, (void **, size_t, unsigned))                                                           \
  N(host_free, cuMemFreeHost, (void *))                                                                                \
  N(host_register, cuMemHostRegister_v2, (void *, size_t, unsigned))                                                   \
  N(host_unregister, cuMemHostUnregister, (void *))                                                                    \
  N(host_address, cuMemHostGetDevicePointer_v2, (uint64_t *, void *, unsigned))                                        \
  N(copy, cuMemcpyAsync, (uint64_t, uint64_t, size_t, void *))                                                         \
  N(module_load, cuModuleLoadDataEx, (void **, const void *, unsigned, int *, void **))                                \
  N(module_unload, cuModuleUnload, (void *))                                                                           \
  N(module_function, cuModuleGetFunction, (void **, void *, const char *))                                             \
  N(launch, cuLaunchKernel,                                                                                            \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))          \
  O(vmm_import, cuMemImportFromShareableHandle, (uint64_t *, void *, int))                                             \
  O(vmm_reserve, cuMemAddressReserve, (uint64_t *, size_t, size_t, uint64_t, unsigned long long))                      \
  O(vmm_unreserve, cuMemAddressFree, (uint64_t, size_t))                                                               \
  O(vmm_map, cuMemMap, (uint64_t, size_t, size_t, uint64_t, unsigned long long))                                       \
  O(vmm_unmap, cuMemUnmap, (uint64_t, size_t))                                                                         \
  O(vmm_access, cuMemSetAccess, (uint64_t, size_t, const cud_access *, size_t))                                        \
  O(vmm_release, cuMemRelease, (uint64_t))                                                                             \
  O(copy_batch, cuMemcpyBatchAsync,                                                                                    \
    (uint64_t *, uint64_t *, size_t *, size_t, const cud_copy_attributes *, size_t *, size_t, size_t *, void *))
