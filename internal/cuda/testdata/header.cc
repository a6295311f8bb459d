// What this package takes for the driver's, against NVIDIA's cuda.h: compiled, never
// linked. The library's own names are wanted, not those that the header makes of them.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#define _Static_assert static_assert
extern "C" {
#include "../clib.c"
}

// alike: a caller that takes one type for the other passes the same bits.
template <class A, class B> constexpr bool alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using a = std::remove_pointer_t<A>;
    using b = std::remove_pointer_t<B>;
    // What is pointed at: an opaque thing is void for us, a buffer is bytes, anything else of the same size.
    if constexpr (std::is_void_v<a> || std::is_void_v<b> || std::is_pointer_v<a> && std::is_pointer_v<b>) return true;
    else return sizeof(a) == sizeof(b) || sizeof(b) == 1;
  } else {
    return sizeof(A) == sizeof(B) && std::is_class_v<A> == std::is_class_v<B> && std::is_pointer_v<A> == std::is_pointer_v<B>;
  }
}

template <class F, class G> struct same : std::false_type {};
template <class... A, class... B> struct same<CUresult (*)(A...), int (*)(B...)> {
  static constexpr bool check() {
    if constexpr (sizeof...(A) != sizeof...(B)) return false;
    else return (alike<A, B>() && ...);
  }
  static constexpr bool value = check();
};

#define CHECK(field, symbol, arguments) static_assert(same<decltype(&symbol), int(*) arguments>::value, #symbol);
CUD_FUNCTIONS(CHECK, CHECK)

#define IS(ours, theirs) static_assert(int(ours) == int(theirs), #theirs);
IS(LAZY_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
IS(NON_BLOCKING, CU_STREAM_NON_BLOCKING)
IS(BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC)
IS(DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)
IS(HOST_DEVICE_MAP, CU_MEMHOSTREGISTER_DEVICEMAP)
IS(HOST_DEVICE_MAP, CU_MEMHOSTALLOC_DEVICEMAP)
IS(POSIX_DESCRIPTOR, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
IS(FABRIC, CU_MEM_HANDLE_TYPE_FABRIC)
IS(LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE)
IS(ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
IS(SOURCE_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)

static_assert(sizeof(CUuuid) == 16, "a UUID");

#define LIES(ours, theirs, field, their_field)                                                                  \
  static_assert(sizeof(ours) == sizeof(theirs) && offsetof(ours, field) == offsetof(theirs, their_field) &&    \
                    sizeof(ours::field) == sizeof(theirs::their_field), #theirs "." #their_field);
LIES(cud_handle, CUipcMemHandle, bytes, reserved)
LIES(cud_handle, CUipcEventHandle, bytes, reserved)
LIES(cud_handle, CUmemFabricHandle, bytes, data)
LIES(cud_location, CUmemLocation, type, type)
LIES(cud_location, CUmemLocation, id, id)
LIES(cud_access, CUmemAccessDesc, location, location)
LIES(cud_access, CUmemAccessDesc, flags, flags)
LIES(cud_copy_attributes, CUmemcpyAttributes, source_order, srcAccessOrder)
LIES(cud_copy_attributes, CUmemcpyAttributes, source, srcLocHint)
LIES(cud_copy_attributes, CUmemcpyAttributes, destination, dstLocHint)
LIES(cud_copy_attributes, CUmemcpyAttributes, flags, flags)
