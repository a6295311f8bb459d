#include "textflag.h"

// The three kernels are one: four registers hold what was read so far, folded
// (see copysum_amd64.go); a round moves each of them on by the length of a round
// and adds what it reads. They differ in the width of a register.
//
// DI and SI are where it writes and reads, R8 how far from there it fetches, CX
// what is left, AX the CRC.
#define ARGUMENTS \
	MOVQ dst_base+0(FP), DI \
	MOVQ src_base+24(FP), SI \
	MOVQ src_len+32(FP), CX \
	MOVL crc+48(FP), AX \
	MOVQ ahead+56(FP), R8 \
	MOVQ k+64(FP), DX

// STEP moves on by so many bytes.
#define STEP(bytes) \
	ADDQ $bytes, SI \
	ADDQ $bytes, DI \
	SUBQ $bytes, CX

// FETCH asks for a line that is read later. It can't fault, whatever the address.
#define FETCH(line) \
	PREFETCHNTA line(SI)(R8*1)

// FOLDZ moves acc on as k says and adds data; it spoils tmp.
#define FOLDZ(k, acc, data, tmp) \
	VPCLMULQDQ $0x00, k, acc, tmp \
	VPCLMULQDQ $0x11, k, acc, acc \
	VPTERNLOGQ $0x96, data, tmp, acc // the sum of all three

// func copyZMM(dst, src []byte, crc uint32, ahead uintptr, k *folds) uint32
TEXT ·copyZMM(SB), NOSPLIT, $64-76
	ARGUMENTS
	VBROADCASTI32X4 (DX), Z12
	VBROADCASTI32X4 16(DX), Z13

	FETCH(0)
	FETCH(64)
	FETCH(128)
	FETCH(192)
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVNTDQ  Z0, (DI)
	VMOVNTDQ  Z1, 64(DI)
	VMOVNTDQ  Z2, 128(DI)
	VMOVNTDQ  Z3, 192(DI)
	VMOVD     AX, X4
	VPXORQ    Z4, Z0, Z0
	STEP(256)
	CMPQ CX, $256
	JB   one

round:
	FETCH(0)
	FETCH(64)
	FETCH(128)
	FETCH(192)
	VMOVDQU64 (SI), Z8
	VMOVDQU64 64(SI), Z9
	VMOVDQU64 128(SI), Z10
	VMOVDQU64 192(SI), Z11
	VMOVNTDQ  Z8, (DI)
	VMOVNTDQ  Z9, 64(DI)
	VMOVNTDQ  Z10, 128(DI)
	VMOVNTDQ  Z11, 192(DI)
	FOLDZ(Z12, Z0, Z8, Z4)
	FOLDZ(Z12, Z1, Z9, Z5)
	FOLDZ(Z12, Z2, Z10, Z6)
	FOLDZ(Z12, Z3, Z11, Z7)
	STEP(256)
	CMPQ CX, $256
	JAE  round

one:
	FOLDZ(Z13, Z0, Z1, Z4)
	FOLDZ(Z13, Z0, Z2, Z4)
	FOLDZ(Z13, Z0, Z3, Z4)

line:
	CMPQ CX, $64
	JB   sum
	VMOVDQU64 (SI), Z8
	VMOVNTDQ  Z8, (DI)
	FOLDZ(Z13, Z0, Z8, Z4)
	STEP(64)
	JMP  line

sum:
	VMOVDQU64 Z0, acc-64(SP)
	VZEROUPPER
	XORL   AX, AX
	CRC32Q acc-64(SP), AX
	CRC32Q acc-56(SP), AX
	CRC32Q acc-48(SP), AX
	CRC32Q acc-40(SP), AX
	CRC32Q acc-32(SP), AX
	CRC32Q acc-24(SP), AX
	CRC32Q acc-16(SP), AX
	CRC32Q acc-8(SP), AX
	MOVL   AX, ret+72(FP)
	RET

// FOLDY is FOLDZ without the instruction that adds three.
#define FOLDY(k, acc, data, tmp) \
	VPCLMULQDQ $0x00, k, acc, tmp \
	VPCLMULQDQ $0x11, k, acc, acc \
	VPXOR      data, tmp, tmp \
	VPXOR      tmp, acc, acc

// func copyYMM(dst, src []byte, crc uint32, ahead uintptr, k *folds) uint32
TEXT ·copyYMM(SB), NOSPLIT, $32-76
	ARGUMENTS
	VBROADCASTI128 (DX), Y12
	VBROADCASTI128 16(DX), Y13

	FETCH(0)
	FETCH(64)
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVDQU  64(SI), Y2
	VMOVDQU  96(SI), Y3
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	VMOVD    AX, X4
	VPXOR    Y4, Y0, Y0
	STEP(128)
	CMPQ CX, $128
	JB   one

round:
	FETCH(0)
	FETCH(64)
	VMOVDQU  (SI), Y8
	VMOVDQU  32(SI), Y9
	VMOVDQU  64(SI), Y10
	VMOVDQU  96(SI), Y11
	VMOVNTDQ Y8, (DI)
	VMOVNTDQ Y9, 32(DI)
	VMOVNTDQ Y10, 64(DI)
	VMOVNTDQ Y11, 96(DI)
	FOLDY(Y12, Y0, Y8, Y4)
	FOLDY(Y12, Y1, Y9, Y5)
	FOLDY(Y12, Y2, Y10, Y6)
	FOLDY(Y12, Y3, Y11, Y7)
	STEP(128)
	CMPQ CX, $128
	JAE  round

one:
	FOLDY(Y13, Y0, Y1, Y4)
	FOLDY(Y13, Y0, Y2, Y4)
	FOLDY(Y13, Y0, Y3, Y4)
	TESTQ CX, CX
	JZ    sum

	// One line is left.
	VMOVDQU  (SI), Y8
	VMOVDQU  32(SI), Y9
	VMOVNTDQ Y8, (DI)
	VMOVNTDQ Y9, 32(DI)
	FOLDY(Y13, Y0, Y8, Y4)
	FOLDY(Y13, Y0, Y9, Y4)

sum:
	VMOVDQU Y0, acc-32(SP)
	VZEROUPPER
	XORL   AX, AX
	CRC32Q acc-32(SP), AX
	CRC32Q acc-24(SP), AX
	CRC32Q acc-16(SP), AX
	CRC32Q acc-8(SP), AX
	MOVL   AX, ret+72(FP)
	RET

// FOLDX is FOLDY of two-operand instructions.
#define FOLDX(k, acc, data, tmp) \
	MOVO      acc, tmp \
	PCLMULQDQ $0x00, k, tmp \
	PCLMULQDQ $0x11, k, acc \
	PXOR      data, tmp \
	PXOR      tmp, acc

// func copyXMM(dst, src []byte, crc uint32, ahead uintptr, k *folds) uint32
TEXT ·copyXMM(SB), NOSPLIT, $16-76
	ARGUMENTS
	MOVOU (DX), X12
	MOVOU 16(DX), X13

	FETCH(0)
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	MOVQ   AX, X4
	PXOR   X4, X0
	STEP(64)
	JZ     one

round:
	FETCH(0)
	MOVOU  (SI), X8
	MOVOU  16(SI), X9
	MOVOU  32(SI), X10
	MOVOU  48(SI), X11
	MOVNTO X8, (DI)
	MOVNTO X9, 16(DI)
	MOVNTO X10, 32(DI)
	MOVNTO X11, 48(DI)
	FOLDX(X12, X0, X8, X4)
	FOLDX(X12, X1, X9, X5)
	FOLDX(X12, X2, X10, X6)
	FOLDX(X12, X3, X11, X7)
	STEP(64)
	JNZ    round

one:
	FOLDX(X13, X0, X1, X4)
	FOLDX(X13, X0, X2, X4)
	FOLDX(X13, X0, X3, X4)
	MOVOU  X0, acc-16(SP)
	XORL   AX, AX
	CRC32Q acc-16(SP), AX
	CRC32Q acc-8(SP), AX
	MOVL   AX, ret+72(FP)
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func cpuid7() (ecx uint32)
TEXT ·cpuid7(SB), NOSPLIT, $0-4
	MOVL $7, AX
	XORL CX, CX
	CPUID
	MOVL CX, ecx+0(FP)
	RET
