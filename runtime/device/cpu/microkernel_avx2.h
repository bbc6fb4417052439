/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of the innermost kernel of matrix products in AVX2 instructions. Two multiplications a cycle leave the processor room for few
 * other instructions: the loop has none but loads, and four k per turn. A compiler's has copies between registers, of which it needs more
 * than there are, and one to two k: such a loop waits for each operand that comes from the second-level cache. Its bits are the same. */
#ifndef HSPMD_CPU_MICROKERNEL_AVX2_H
#define HSPMD_CPU_MICROKERNEL_AVX2_H

#include "runtime/device/cpu/kernel.h"

#if REAL_BITS == 32
#define SUFFIX "s"
#define ELEMENT "4"
#else
#define SUFFIX "d"
#define ELEMENT "8"
#endif

#define BROADCAST(n, base, to) "vbroadcasts" SUFFIX " " n "*" ELEMENT base ",%%ymm" to "\n\t"
#define MULTIPLY_ROW(left, sum0, sum1)                                                                                                     \
	"vfmadd231p" SUFFIX " %%ymm12,%%ymm" left ",%" sum0 "\n\t"                                                                         \
	"vfmadd231p" SUFFIX " %%ymm13,%%ymm" left ",%" sum1 "\n\t"

/* The products of one k: row i of A is n_i elements after base_i, the row of B `at` bytes after b. */
#define ONE_K(at, n0, base0, n1, base1, n2, base2, n3, base3, n4, base4, n5, base5)                                                        \
	"vmovups " at "(%[b]),%%ymm12\n\t"                                                                                                 \
	"vmovups " at "+32(%[b]),%%ymm13\n\t" BROADCAST(n0, base0, "14") BROADCAST(n1, base1, "15") MULTIPLY_ROW("14", "0", "1")           \
	        MULTIPLY_ROW("15", "2", "3") BROADCAST(n2, base2, "14") BROADCAST(n3, base3, "15") MULTIPLY_ROW("14", "4", "5")            \
	                MULTIPLY_ROW("15", "6", "7") BROADCAST(n4, base4, "14") BROADCAST(n5, base5, "15") MULTIPLY_ROW("14", "8", "9")    \
	                        MULTIPLY_ROW("15", "10", "11")

/* Element n of each row, where rows are `step` bytes apart and their elements one after another; and the n-th of columns that are `step`
 * bytes apart, where the elements of a column are one after another. */
#define ROWS_AT(at, n)                                                                                                                     \
	ONE_K(at, n, "(%[a])", n, "(%[a],%[step])", n, "(%[a],%[step],2)", n, "(%[a],%[step3])", n, "(%[a],%[step],4)", n,                 \
	      "(%[a],%[step5])")
#define COLUMN_AT(at, base) ONE_K(at, "0", base, "1", base, "2", base, "3", base, "4", base, "5", base)

#define CLEAR(sum) "vxorps %" sum ",%" sum ",%" sum "\n\t"

/* `four` and `one`: the instructions of four k and of one; they leave a and b at the next. */
#define LOOP(four, one)                                                                                                                    \
	__asm__(CLEAR("0") CLEAR("1") CLEAR("2") CLEAR("3") CLEAR("4") CLEAR("5") CLEAR("6") CLEAR("7") CLEAR("8") CLEAR("9") CLEAR("10")  \
	                CLEAR("11") "cmp %[fours],%[b]\n\tjae 2f\n\t.p2align 5\n1:\n\t" four                                               \
	                            "cmp %[fours],%[b]\n\tjb 1b\n2:\n\tcmp %[end],%[b]\n\tjae 4f\n3:\n\t" one                              \
	                            "cmp %[end],%[b]\n\tjb 3b\n4:"                                                                         \
	        : "=&x"(sum[0][0]), "=&x"(sum[0][1]), "=&x"(sum[1][0]), "=&x"(sum[1][1]), "=&x"(sum[2][0]), "=&x"(sum[2][1]),              \
	          "=&x"(sum[3][0]), "=&x"(sum[3][1]), "=&x"(sum[4][0]), "=&x"(sum[4][1]), "=&x"(sum[5][0]),                                \
	          "=&x"(sum[5][1]), [a] "+r"(a), [b] "+r"(b)                                                                               \
	        : [step] "r"(step), [step3] "r"(3 * step), [step5] "r"(5 * step), [fours] "r"(fours), [end] "r"(end)                       \
	        : "ymm12", "ymm13", "ymm14", "ymm15", "cc", "memory")

/* sum = the products of `depth` k; row i of A at k is a[i * row_step + k * column_step], and one of these steps is 1. */
static inline __attribute__((always_inline)) void sum_products(vec sum[6][2], int64_t depth, const real *a, int64_t row_step,
                                                               int64_t column_step, const real *b)
{
	const real *fours = b + depth / 4 * 4 * 2 * LANES, *end = b + depth * 2 * LANES;
	int64_t step = (int64_t)sizeof *a * (column_step == 1 ? row_step : column_step);
	if (column_step == 1)
		LOOP(ROWS_AT("0", "0") ROWS_AT("64", "1") ROWS_AT("128", "2") ROWS_AT("192", "3") "add $4*" ELEMENT
		                                                                                  ",%[a]\n\tadd $256,%[b]\n\t",
		     ROWS_AT("0", "0") "add $" ELEMENT ",%[a]\n\tadd $64,%[b]\n\t");
	else
		LOOP(COLUMN_AT("0", "(%[a])") COLUMN_AT("64", "(%[a],%[step])") COLUMN_AT("128", "(%[a],%[step],2)")
		             COLUMN_AT("192", "(%[a],%[step3])") "lea (%[a],%[step],4),%[a]\n\tadd $256,%[b]\n\t",
		     COLUMN_AT("0", "(%[a])") "add %[step],%[a]\n\tadd $64,%[b]\n\t");
}

#undef SUFFIX
#undef ELEMENT
#undef BROADCAST
#undef MULTIPLY_ROW
#undef ONE_K
#undef ROWS_AT
#undef COLUMN_AT
#undef CLEAR
#undef LOOP

#endif
