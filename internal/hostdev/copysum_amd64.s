#include "textflag.h"

// One word of each of the three streams: read, summed, written past the caches.
// The CRC instruction takes three cycles and a new one can begin in each: three
// streams keep it busy.
#define WORD(at) \
	MOVQ at(SI), R11 \
	MOVQ at(SI)(R8*1), R12 \
	MOVQ at(SI)(R8*2), R13 \
	CRC32Q R11, AX \
	CRC32Q R12, BX \
	CRC32Q R13, CX \
	MOVNTIQ R11, at(DI) \
	MOVNTIQ R12, at(DI)(R8*1) \
	MOVNTIQ R13, at(DI)(R8*2)

// How far ahead is fetched, in bytes of a stream.
#define AHEAD 1024

// func copySum3(dst, src []byte, stream int, sums *[3]uint32)
TEXT ·copySum3(SB), NOSPLIT, $0-64
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ stream+48(FP), R8
	MOVQ sums+56(FP), DX
	MOVL 0(DX), AX
	MOVL 4(DX), BX
	MOVL 8(DX), CX
	MOVQ R8, R9 // bytes left of a stream

line:
	PREFETCHT0 AHEAD(SI)
	PREFETCHT0 AHEAD(SI)(R8*1)
	PREFETCHT0 AHEAD(SI)(R8*2)
	WORD(0)
	WORD(8)
	WORD(16)
	WORD(24)
	WORD(32)
	WORD(40)
	WORD(48)
	WORD(56)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $64, R9
	JNZ  line
	MOVL AX, 0(DX)
	MOVL BX, 4(DX)
	MOVL CX, 8(DX)
	RET

// func copySum1(dst, src []byte, sum uint32) uint32
TEXT ·copySum1(SB), NOSPLIT, $0-60
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), R9
	MOVL sum+48(FP), AX

word:
	MOVQ    (SI), R11
	CRC32Q  R11, AX
	MOVNTIQ R11, (DI)
	ADDQ    $8, SI
	ADDQ    $8, DI
	SUBQ    $8, R9
	JNZ     word
	MOVL    AX, ret+56(FP)
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET
