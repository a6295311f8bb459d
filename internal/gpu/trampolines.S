//go:build cgo && linux && (amd64 || arm64) && !nonvml

// NVML's functions: jumps through slots, so that arguments and the answer are
// left as they are. See doc.go.

#if defined(__x86_64__)
#define JUMP(name) endbr64; jmp *slot_##name(%rip)
#define SLOT(name) slot_##name: .quad gpu_absent
#elif defined(__aarch64__)
#define JUMP(name) hint 34; adrp x16, slot_##name; ldr x16, [x16, :lo12:slot_##name]; br x16
#define SLOT(name) slot_##name: .xword gpu_absent
#endif

	.text
#define FUNCTION(name) .p2align 4; .globl name; .type name, %function; name: JUMP(name); .size name, .-name;
#include "symbols.h"
#undef FUNCTION

	.section .data.rel,"aw"
	.p2align 3
	.globl gpu_slots
	.hidden gpu_slots
	.type gpu_slots, %object
gpu_slots:
#define FUNCTION(name) SLOT(name);
#include "symbols.h"
#undef FUNCTION
	.size gpu_slots, .-gpu_slots

	.section .note.GNU-stack,"",%progbits
